"""Entries in the form of the server: bytes, and a hash that describes them."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import (
    EntryKind,
    is_strided,
    kind_marked,
    kind_of,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Encoded", "Meta", "decode", "encode", "tensor_of_bytes"]

MSG_DTYPE = "The server holds the entry {!r} with the dtype {!r}, which torch lacks."
MSG_META = (
    "The server holds the entry {!r} with the metadata {}, which describes neither a "
    "tensor nor non-tensor data."
)
MSG_LENGTH = (
    "The server holds {} bytes for the entry {!r} of shape {} and dtype {}, which needs "
    "{} bytes. Another process may be replacing it, or has written only a part of it."
)
MSG_PICKLE = (
    "The entry {!r} is stored as a pickle, and the store was opened with "
    "allow_pickle=False."
)
MSG_PICKLING = (
    "The value of the entry {!r} can be stored neither as JSON nor as a pickle: {}"
)
MSG_LAYOUT = (
    "The entry {!r} is a tensor of layout {}, but a store holds dense tensors only. "
    "Convert it with to_dense() or to_padded_tensor()."
)


class Meta:
    """The description of one entry: the fields of its hash on the server."""

    __slots__ = ("dtype", "fields", "shape")

    def __init__(self, path: str, fields: dict[str, str]) -> None:
        self.fields: dict[str, str] = fields
        self.shape: tuple[int, ...] | None = None
        self.dtype: torch.dtype | None = None
        if fields.get("is_non_tensor") == "1":
            return
        if "shape" not in fields or "dtype" not in fields:
            raise ValueError(MSG_META.format(path, fields))
        self.shape = tuple(json.loads(fields["shape"]))
        dtype = getattr(torch, fields["dtype"].removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(MSG_DTYPE.format(path, fields["dtype"]))
        self.dtype = dtype

    @property
    def is_tensor(self) -> bool:
        """True if the entry is a tensor, not non-tensor data."""
        return self.shape is not None

    @property
    def kind(self) -> EntryKind | None:
        """The kind of a special entry; None for a plain tensor or non-tensor data."""
        return kind_marked({name for name, mark in self.fields.items() if mark == "1"})

    @property
    def has_rows(self) -> bool:
        """True for a plain tensor, whose rows can be read and written separately."""
        return self.shape is not None and self.kind is None


class Encoded(NamedTuple):
    """An entry to write: its description and its bytes."""

    fields: dict[str, str]
    data: bytes | memoryview
    offsets: bytes | None = None
    """The start of each member's tensor, if the members of a stack differ in shape."""


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor as a view, or as a view of a contiguous CPU copy."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if not flat.numel():
        return memoryview(b"")
    array: Any = flat.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array).cast("B")


def encode(path: str, value: Any) -> Encoded:
    """Encode a tensor or non-tensor data as bytes and a description.

    Raises:
        TypeError: neither JSON nor pickle can encode the value, or the tensor's layout
            is not strided.
    """
    kind = kind_of(value)
    if kind is not None:
        tensor = kind.plain(value)
        fields = tensor_fields(path, tensor)
        return Encoded({**fields, kind.name: "1"}, bytes_of(tensor))
    if isinstance(value, torch.Tensor):
        return Encoded(tensor_fields(path, value), bytes_of(value))
    fields = {"is_non_tensor": "1"}
    plain = value
    if isinstance(value, CollectionProtocol):
        cells: Any = value
        if _is_stack(value):
            plain = cells.tolist()
            fields["batch_size"] = json.dumps(list(value.batch_size))
        else:
            plain = cells.data
    is_stack = "batch_size" in fields
    if is_json(plain):
        text = json.dumps(plain)
        return Encoded(
            {**fields, "encoding": "json_array" if is_stack else "json"}, text.encode()
        )
    try:
        data = pickle.dumps(plain, protocol=4)
    except Exception as error:
        raise TypeError(MSG_PICKLING.format(path, error)) from error
    return Encoded({**fields, "encoding": "pickle"}, data)


def _is_stack(value: CollectionProtocol) -> bool:
    return isinstance(value, value._non_tensor_stack_type)


def tensor_fields(path: str, tensor: torch.Tensor) -> dict[str, str]:
    """Return the description of a tensor.

    Raises:
        TypeError: the tensor's layout is not strided.
    """
    if not is_strided(tensor):
        layout = "jagged" if rows(tensor) is not None else tensor.layout
        raise TypeError(MSG_LAYOUT.format(path, layout))
    return fields_of(tensor.shape, tensor.dtype)


def fields_of(shape: Sequence[int], dtype: torch.dtype) -> dict[str, str]:
    """Return the description of a tensor with a shape and dtype."""
    return {"shape": json.dumps(list(shape)), "dtype": str(dtype)}


def is_json(value: Any, depth: int = 32) -> bool:
    """Return whether JSON reproduces the same value, types included."""
    kind = type(value)
    if value is None or kind in (bool, int, float):
        return kind is not int or abs(value) < 1 << 63
    if kind is str:
        # UTF-8 cannot encode a lone surrogate.
        return value.isascii() or value.encode(errors="replace").decode() == value
    if not depth:
        return False
    if kind is list:
        return all(is_json(item, depth - 1) for item in value)
    return kind is dict and all(
        type(key) is str and is_json(item, depth - 1) for key, item in value.items()
    )


def tensor_of_bytes(
    path: str,
    data: bytes | None,
    shape: Any,
    dtype: torch.dtype,
    device: torch.device | None,
) -> torch.Tensor:
    """Make a tensor from bytes, in new memory.

    Raises:
        RuntimeError: the number of bytes does not fit the shape and dtype.
    """
    shape = torch.Size(shape)
    expected = shape.numel() * dtype.itemsize
    found = 0 if data is None else len(data)
    if found != expected:
        msg = MSG_LENGTH.format(found, path, tuple(shape), dtype, expected)
        raise RuntimeError(msg)
    if not data:
        return torch.empty(shape, dtype=dtype, device=device)
    tensor = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
    return tensor if device is None else tensor.to(device)


def decode(
    path: str,
    meta: Meta,
    data: bytes | None,
    owner: CollectionProtocol,
    allow_pickle: bool,
) -> Any:
    """Decode an entry: a tensor or non-tensor data.

    Args:
        path: the path of the entry, for errors.
        meta: the description.
        data: the bytes; None if the server has no such key.
        owner: the collection that holds the entry.
        allow_pickle: whether values may be unpickled.

    Raises:
        RuntimeError: the bytes do not fit the description.
    """
    device = owner.device
    if meta.dtype is not None:
        tensor = tensor_of_bytes(path, data, meta.shape, meta.dtype, device)
        kind = meta.kind
        return tensor if kind is None else kind.of_plain(tensor, owner.batch_size)
    encoding = meta.fields.get("encoding")
    if data is None or encoding not in ("json", "json_array", "pickle"):
        raise RuntimeError(MSG_META.format(path, meta.fields))
    if encoding == "pickle":
        if not allow_pickle:
            raise RuntimeError(MSG_PICKLE.format(path))
        plain = pickle.loads(data)  # noqa: S301 - the documentation says to trust the server
    else:
        plain = json.loads(data)
    return entry_of(plain, meta, owner)


def entry_of(plain: object, meta: Meta, owner: CollectionProtocol) -> Any:
    """Make non-tensor data of ``owner``, with one value, or one for each element."""
    size = owner.batch_size
    stacked = meta.fields.get("batch_size")
    if stacked is not None:
        # The recorded dims of the data may be more than the batch dims of the owner.
        entry = owner._non_tensor_stack_type._from_nested(plain, json.loads(stacked))
    elif meta.fields.get("encoding") == "json_array" and isinstance(plain, list):
        # The published package records no dims: the data has the owner's batch size.
        entry = owner._non_tensor_stack_type._from_nested(plain, list(size))
    else:
        entry = owner._non_tensor_type(plain, batch_size=size)
    device = owner.device
    return entry if device is None else entry.to(device)
