"""Leaves of a lazy stack on the server, which stores all members together."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from tensordict.containers.store.encoding import (
    Encoded,
    Meta,
    bytes_of,
    encode,
    fields_of,
    tensor_fields,
    tensor_of_bytes,
)
from tensordict.containers.store.ranges import Rows
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Leaf", "_HeterogeneousKeyError", "encode_members", "encode_whole"]

MSG_DIFFER = (
    "Failed to stack the elements of the entry {!r}: they differ in shape or dtype. Read "
    "or write each member instead, for example store[i][key]."
)
MSG_DTYPES = (
    "The members of the stack have the dtypes {1} for the entry {0!r}, but a store "
    "holds one dtype for all. Convert them first, for example by stack.to(dtype)."
)
MSG_MIXED = (
    "The members of the stack have values of different kinds for the entry {!r}. Set "
    "tensors in all members, or non-tensor data in all members."
)


class _HeterogeneousKeyError(RuntimeError):
    """An entry of a stack was read as one tensor, but its members differ in shape."""


class Leaf:
    """A stacked entry, as its description on the server defines it.

    Args:
        path: the path of the entry, for errors.
        meta: the description.
        count: the number of members of the stack.
        dim: the stack dim.
    """

    def __init__(self, path: str, meta: Meta, count: int, dim: int) -> None:
        self.path: str = path
        self.meta: Meta = meta
        self.count: int = count
        self.dim: int = dim
        fields = meta.fields
        self.is_even: bool = fields.get("homogeneous", "1") == "1"
        # "batch": stored in the order of the batch dims. Else the stack dim comes
        # first.
        self.is_batch: bool = fields.get("layout") == "batch"
        self.shapes: list[list[int]] = []
        if not self.is_even:
            self.shapes = json.loads(fields["shapes"])

    @property
    def _stored(self) -> Any:
        return self.meta.shape

    def shape_of(self, number: int) -> torch.Size:
        """Return the shape of one member's tensor."""
        if not self.is_even:
            return torch.Size(self.shapes[number])
        shape = list(self._stored)
        del shape[self.dim if self.is_batch else 0]
        return torch.Size(shape)

    def piece(self, number: int) -> tuple[int, int] | None:
        """Return first byte and count of a member's bytes; None if scattered."""
        dtype: Any = self.meta.dtype
        size = dtype.itemsize
        if not self.is_even:
            counts = [torch.Size(shape).numel() * size for shape in self.shapes]
            return sum(counts[:number]), counts[number]
        if self.is_batch and self.dim:
            return None
        count = self.shape_of(number).numel() * size
        return number * count, count

    def rows_of(self, number: int) -> Rows:
        """Return a member's rows among the batch dims up to the stack dim."""
        leading = torch.Size(self._stored[: self.dim + 1])
        return Rows(leading, (slice(None),) * self.dim + (number,))

    def members(
        self, data: bytes | None, device: torch.device | None
    ) -> list[torch.Tensor]:
        """Return the tensor of each member."""
        dtype: Any = self.meta.dtype
        if self.is_even:
            return list(self.whole(data, device).unbind(self.dim))
        tensors = []
        counts = [torch.Size(shape).numel() * dtype.itemsize for shape in self.shapes]
        flat = tensor_of_bytes(
            self.path, data, [sum(counts) // dtype.itemsize], dtype, device
        )
        parts = flat.split([count // dtype.itemsize for count in counts])
        for part, shape in zip(parts, self.shapes, strict=True):
            tensors.append(part.reshape(shape))
        return tensors

    def whole(self, data: bytes | None, device: torch.device | None) -> torch.Tensor:
        """Return the tensors of all members as one stacked tensor.

        Raises:
            _HeterogeneousKeyError: the members differ in shape.
        """
        if not self.is_even:
            raise _HeterogeneousKeyError(MSG_DIFFER.format(self.path))
        dtype: Any = self.meta.dtype
        tensor = tensor_of_bytes(self.path, data, self._stored, dtype, device)
        if self.is_batch:
            return tensor
        return tensor.movedim(0, self.dim).contiguous()


def encode_whole(path: str, value: object) -> Encoded:
    """Encode a tensor with the batch dims of the stack, or non-tensor data."""
    written = encode(path, value)
    if written.fields.get("is_non_tensor") == "1":
        return written
    fields = {**written.fields, "homogeneous": "1", "layout": "batch"}
    return Encoded(fields, written.data)


def encode_members(path: str, values: list[Any]) -> Encoded:
    """Encode one value for each member of the stack.

    Raises:
        TypeError: the values differ in dtype or kind.
    """
    if not all(type(value) is torch.Tensor for value in values):
        if all(isinstance(value, CollectionProtocol) for value in values):
            rows: Any = values[0]
            return encode(path, rows._non_tensor_stack_type(*values))
        raise TypeError(MSG_MIXED.format(path))
    dtypes = {value.dtype for value in values}
    if len(dtypes) > 1:
        raise TypeError(MSG_DTYPES.format(path, sorted(map(str, dtypes))))
    first = values[0]
    shapes = [list(value.shape) for value in values]
    tensor_fields(path, first)
    fields = fields_of([len(values), *first.shape], first.dtype)
    fields["layout"] = "stack"
    if all(shape == shapes[0] for shape in shapes):
        fields["homogeneous"] = "1"
        return Encoded(
            fields, bytes_of(torch.stack([v.detach().cpu() for v in values]))
        )
    fields["homogeneous"] = "0"
    fields["shapes"] = json.dumps(shapes)
    parts = [value.detach().cpu().reshape(-1) for value in values]
    lengths = [part.numel() * first.dtype.itemsize for part in parts]
    offsets = np.cumsum([0, *lengths], dtype="<i8").tobytes()
    return Encoded(fields, bytes_of(torch.cat(parts)), offsets)
