"""Stacking and concatenating non-tensor values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _options
from tensordict.containers.nontensor.base import NonTensorOps, same_value
from tensordict.containers.nontensor.data import (
    MetaData,
    NonTensorData,
    NonTensorDataBase,
)
from tensordict.containers.nontensor.ragged import RaggedStack
from tensordict.containers.nontensor.stack import (
    MSG_DIFFERENT_SIZES,
    MSG_NO_NON_TENSOR,
    NonTensorStack,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["cat_values", "stack_values", "stacked"]


def stack_values(members: Sequence[Any], dim: int) -> Any:
    """What stacking non-tensor entries gives: one value where that is all there is.

    Equal metadata become one, equal data only with ``set_capture_non_tensor_stack``.
    """
    if any(not isinstance(member, NonTensorOps) for member in members):
        raise RuntimeError(MSG_NO_NON_TENSOR)
    first = members[0]
    collapses = all(isinstance(member, MetaData) for member in members) or (
        _options.capture_non_tensor_stack()
        and all(isinstance(member, NonTensorDataBase) for member in members)
    )
    if collapses and all(same_value(first.data, member.data) for member in members):
        return first._sized(_with_dim(first.batch_size, dim, len(members)))
    return stacked(members, dim)


def stacked(members: Sequence[Any], dim: int) -> Any:
    """The stack of collections of values along a new dim."""
    size = members[0].batch_size
    for member in members:
        if len(member.batch_size) != len(size):
            raise RuntimeError(MSG_DIFFERENT_SIZES.format(size, member.batch_size))
    if -1 in size or any(member.batch_size != size for member in members):
        return RaggedStack._of_rows(members, dim)
    return _joined(members, lambda places: torch.stack(places, dim), dim)


def cat_values(members: Sequence[Any], dim: int) -> Any:
    """What concatenating non-tensor entries gives: one value where all have that."""
    first = members[0]
    if all(isinstance(member, NonTensorDataBase) for member in members) and all(
        same_value(first.data, member.data) for member in members
    ):
        length = sum(member.batch_size[dim] for member in members)
        size = first.batch_size
        return first._sized(torch.Size([*size[:dim], length, *size[dim + 1 :]]))
    return _joined(members, lambda places: torch.cat(places, dim), 0)


def _joined(members: Sequence[Any], join: Any, stack_dim: int) -> NonTensorStack:
    cells: list[Any] = []
    places = []
    for member in members:
        size = member.batch_size
        start = len(cells)
        if isinstance(member, NonTensorDataBase):
            cells.append(member.data)
            places.append(torch.full(size, start))
        else:
            cells += member._flat()
            stop = len(cells)
            places.append(torch.arange(start, stop).view(size))
    at = join(places)
    flat = list(map(cells.__getitem__, at.flatten().tolist()))
    devices = {member.device for member in members}
    device = devices.pop() if len(devices) == 1 else None
    stack = NonTensorStack._of_cells(flat, at.shape, device)
    if stack_dim:
        stack.stack_dim = stack_dim
    classes = {_member_class(member) for member in members}
    if len(classes) == 1:
        cls = classes.pop()
        if cls is not NonTensorData:
            stack._member_class = cls
    return stack


def _member_class(member: Any) -> type[NonTensorDataBase]:
    if isinstance(member, NonTensorStack):
        return member._member_class
    return type(member)


def _with_dim(size: torch.Size, dim: int, length: int) -> torch.Size:
    return torch.Size([*size[:dim], length, *size[dim:]])
