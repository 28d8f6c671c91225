"""The dtypes of the safetensors format, and the names of dtypes."""

from __future__ import annotations

import torch

__all__ = ["FORMAT_DTYPES", "MSG_UNKNOWN", "dtype_of", "in_format", "name_of"]

MSG_UNKNOWN = (
    "This version of tensordict cannot read a value of the kind {!r}: upgrade tensordict, "
    "or register a codec for it with tensordict.checkpoint.register_codec."
)

FORMAT_DTYPES: set[torch.dtype] = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    *(
        getattr(torch, name)
        for name in (
            "uint16",
            "uint32",
            "uint64",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
        )
        if hasattr(torch, name)
    ),
}
"""The dtypes of the safetensors format. Tensors of other dtypes are stored as bytes."""


def in_format(value: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor in the form for files: as bytes if the format lacks its dtype."""
    if value.dtype in FORMAT_DTYPES:
        return value
    plain = value.resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of a name, such as ``float32``.

    Raises:
        ValueError: this version of torch has no dtype of this name.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(MSG_UNKNOWN.format(f"dtype {name}"))
    return found
