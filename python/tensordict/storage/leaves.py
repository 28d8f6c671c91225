"""Conversion of unusual tensors to plain memory, before they are saved."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives.special import is_shared_class, is_special_class, kind_of
from tensordict.storage.devices import DeviceReader, is_elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "FILE_DTYPES",
    "describe",
    "detach",
    "flat_components",
    "naming_the_entry",
    "nested_from_flat",
    "nested_table",
    "prepare",
    "prepare_to_write",
    "refuse_special",
    "with_batch_dims",
]

MSG_MEMORY_MAPPED = (
    "{1} entries cannot be memory-mapped yet, but {0!r} is one. Exclude it "
    "first, e.g. with td.exclude({0!r})."
)
MSG_CONSOLIDATED = "{1} entries cannot be consolidated yet, but {0!r} is one."


MSG_DTYPE = (
    "tensors of {} cannot be saved as files, whose formats have no such dtype: save their "
    "bytes, view(torch.uint8), or save a checkpoint, which keeps every dtype."
)

_NAMES = (
    "float32 int64 bool uint8 float16 bfloat16 float64 int8 int16 int32 uint16 uint32 "
    "uint64 complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
    "float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
)
FILE_DTYPES = frozenset(name for name in _NAMES.split() if hasattr(torch, name))
"""The names of the dtypes that files can hold."""


def has_file_dtype(tensor: torch.Tensor) -> bool:
    """Return whether files can hold the dtype of a tensor."""
    return str(tensor.dtype).removeprefix("torch.") in FILE_DTYPES


def refuse_special(td: CollectionProtocol, message: str) -> None:
    """Raise ``message`` with the key and the class of the first entry that is refused.

    The formats have no type for such an entry: it would load as a plain tensor.
    """
    if any(map(is_special_class, {*map(type, _rust.leaves(td))})):
        for key, value in td.items(True, True):
            kind = kind_of(value)
            if kind is not None and kind.in_files == "refused":
                raise NotImplementedError(message.format(key, type(value).__name__))


@contextmanager
def naming_the_entry(td: CollectionProtocol) -> Iterator[None]:
    """Add the key of the entry that cannot be saved to the error of a save."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        for key, value in td.items(True, True):
            if type(error) in (NotImplementedError, RuntimeError) and _has_no_file(
                value
            ):
                raise type(error)(f"{error} (the entry {key!r})") from error
        raise


def naming_the_target(error: OSError, target: str) -> OSError:
    """Return the error of a save with the path that the caller has passed.

    The path in the original error is a parent directory, or a work directory beside the target.
    """
    failed = error.filename
    if error.errno is None or not isinstance(failed, str) or failed == target:
        return error
    is_above = os.path.commonpath([failed, target]) == failed
    if not is_above and not failed.endswith(".tdtmp"):
        return error
    text = f"{error.strerror}: the save cannot be written"
    return type(error)(error.errno, text, target)


def _has_no_file(value: Any) -> bool:
    """Return whether a tensor has no values, or cannot be saved as a file."""
    is_dense = value.is_nested or value.layout == torch.strided
    if value.is_meta or value.is_quantized or not is_dense:
        return True
    if not has_file_dtype(value):
        return True
    return _is_cut(value)


def _is_cut(value: Any) -> bool:
    """Return whether the storage of a tensor, or the file that it maps, is too short."""
    if value.is_nested or value.device.type != "cpu" or value.numel() == 0:
        return False
    reach = sum(
        stride * (size - 1)
        for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    end = (value.storage_offset() + reach + 1) * value.element_size()
    if end > value.untyped_storage().nbytes():
        return True
    mapping = _rust.mapping_of(value.data_ptr())
    if mapping is None:
        return False
    file, offset, _, _ = mapping
    return os.stat(file).st_size < offset + (reach + 1) * value.element_size()


def detach(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the memory of ``tensor`` that a later ``.data`` does not change."""
    with torch._C.DisableTorchFunction():
        return tensor.detach()


def with_batch_dims(td: CollectionProtocol) -> Any:
    """Return ``td``, or a copy in which unbatched tensors are ordinary tensors.

    Raises:
        RuntimeError: the shape of an unbatched tensor does not begin with the batch size.
    """
    if not _has_shared(td):
        return td
    result = td.clone(False)
    for key, value in list(td.items(True, True)):
        kind = kind_of(value)
        if kind is not None and kind.is_shared:
            result.set(key, kind.plain(value))
    return result


def _has_shared(td: CollectionProtocol) -> bool:
    return any(map(is_shared_class, {*map(type, _rust.leaves(td))}))


def prepare(
    tensor: torch.Tensor,
) -> tuple[torch.Tensor, str, list[int], str, bytes | None]:
    """Return the values of any tensor as a contiguous CPU tensor, with its metadata.

    See :func:`prepare_to_write`. Here, tensors of other devices are copied to the CPU.
    """
    plain, device, shape, dtype, table = _described(tensor)
    return _on_cpu(plain), device, shape, dtype, table


def prepare_to_write(
    tensor: torch.Tensor,
) -> tuple[torch.Tensor | DeviceReader, str, list[int], str, bytes | None]:
    """Return the values of any tensor as a contiguous CPU tensor or as a reader.

    Transposed and expanded tensors become contiguous, conjugated and negated views are
    resolved, and a ``DTensor`` is gathered from all ranks. A tensor on another device stays
    there: a reader copies its bytes while they are written.

    Returns:
        The tensor or reader, the name of the tensor's device, its shape, its dtype, and for
        a nested tensor its table of sizes (int64, row by row), else None. The items of a
        nested tensor are flat, component after component, and the shape is the shape of
        its table.

    Raises:
        NotImplementedError: the tensor is jagged, quantized or on the meta device, or files
            cannot hold its dtype.
        RuntimeError: the tensor is sparse.
    """
    plain, device, shape, dtype, table = _described(tensor)
    values = DeviceReader([plain]) if is_elsewhere(plain) else _on_cpu(plain)
    return values, device, shape, dtype, table


def _described(
    tensor: torch.Tensor,
) -> tuple[torch.Tensor, str, list[int], str, bytes | None]:
    """Return the values of a tensor to copy, and its metadata."""
    tensor = tensor.detach()
    gather = getattr(tensor, "full_tensor", None)
    if gather is not None:
        # A DTensor. All ranks save it, so all of them gather it here.
        tensor = gather()
    device, dtype = str(tensor.device), str(tensor.dtype)
    if not (tensor.is_quantized or has_file_dtype(tensor)):
        raise NotImplementedError(MSG_DTYPE.format(dtype))
    if gather is not None:
        # Move it to the CPU at once: the device may not hold all gathered tensors.
        tensor = tensor.cpu()
    if tensor.is_nested:
        table = nested_table(tensor)
        shape, table_bytes = list(table.shape), table.numpy().tobytes()
        return flat_components(tensor), device, shape, dtype, table_bytes
    if tensor.layout != torch.strided:
        raise RuntimeError(
            f"tensors of the layout {tensor.layout} cannot be saved as files: copy_() "
            "between dense and sparse Tensors is not implemented. Save them dense "
            "(to_dense), or their indices and values."
        )
    if tensor.is_quantized:
        raise NotImplementedError(
            f"tensors of {dtype} cannot be saved as files, which have no room for scale "
            "and zero point: save dequantize() or int_repr()."
        )
    return tensor, device, list(tensor.shape), dtype, None


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as a contiguous CPU tensor with a dtype that DLPack supports."""
    plain = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    # Dtypes that DLPack lacks become bytes.
    if not _has_known_dtype(plain):
        plain = plain.view(torch.uint8) if plain.ndim else plain[None].view(torch.uint8)
    return plain


def describe(
    tensor: torch.Tensor,
) -> tuple[str, list[int], str, int, bytes | None]:
    """Return the metadata of a tensor, without reading its values.

    Returns:
        The device, the shape, the dtype and the number of items; and for a nested tensor its
        table of sizes as bytes, else None. The shape of a nested tensor is the shape of its
        table.
    """
    device, dtype = str(tensor.device), str(tensor.dtype)
    if not tensor.is_nested:
        return device, list(tensor.shape), dtype, tensor.numel(), None
    table = nested_table(tensor)
    num_items = int(table.prod(1).sum())
    return device, list(table.shape), dtype, num_items, table.numpy().tobytes()


def nested_table(tensor: torch.Tensor) -> torch.Tensor:
    """Return the table of sizes of a strided nested tensor: int64 ``[N, dims]``."""
    if tensor.layout != torch.strided:
        raise NotImplementedError(
            "nested tensors of the jagged layout cannot be saved as files: convert them "
            "to the strided layout, or save their values and offsets."
        )
    table: torch.Tensor = tensor._nested_tensor_size()
    return table.contiguous()


def flat_components(tensor: torch.Tensor) -> torch.Tensor:
    """Return the items of a strided nested tensor, component after component: ``[N]``.

    The result is a view if the tensor is contiguous, and a copy otherwise.
    """
    parts = tensor.unbind()
    if not parts:
        return torch.zeros(0, dtype=tensor.dtype)
    first = parts[0]
    if tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj()):
        return first.as_strided((tensor.numel(),), (1,), first.storage_offset())
    return torch.cat([part.reshape(-1) for part in parts])


def nested_from_flat(flat: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return a strided nested tensor that shares flat memory."""
    sizes = table.clone()
    num_items = sizes.prod(1)
    strides = torch.ones_like(sizes)
    for dim in range(sizes.shape[1] - 2, -1, -1):
        strides[:, dim] = strides[:, dim + 1] * sizes[:, dim + 1]
    offsets = torch.zeros_like(num_items)
    offsets[1:] = num_items.cumsum(0)[:-1]
    plain = flat.as_subclass(torch.Tensor)
    return torch._nested_view_from_buffer(plain, sizes, strides, offsets)


def _has_known_dtype(tensor: torch.Tensor) -> bool:
    """Return whether DLPack knows the dtype as the engine does."""
    return not str(tensor.dtype).startswith(("torch.float8", "torch.float4"))
