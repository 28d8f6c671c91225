"""Stacking and concatenating non-tensor values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _options
from tensordict.containers.nontensor.base import (
    NonTensorOps,
    same_value,
)
from tensordict.containers.nontensor.data import (
    MetaData,
    NonTensorData,
    NonTensorDataBase,
)
from tensordict.containers.nontensor.positions import on_real_tensors
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
    same = same_value if _options.capture_non_tensor_stack() else _same_metadata
    if collapses and all(same(first.data, member.data) for member in members):
        made = first._sized(_with_dim(first.batch_size, dim, len(members)))
        return made._named(_names_with(first, dim))
    return stacked(members, dim)


def _same_metadata(first: Any, second: Any) -> bool:
    """Whether metadata is one: what can change is not shared because it is equal."""
    if first is second:
        return True
    try:
        hash(first), hash(second)
    except TypeError:
        return False
    return not isinstance(first, torch.Tensor) and same_value(first, second)


def shown_together(members: Sequence[Any], dim: int) -> Any:
    """The entries of the members of a lazy stack as one stack, which writes to them.

    One value for many elements of a member is copied: it cannot take a value for each.
    """
    stack = stack_values(members, dim)
    if isinstance(stack, NonTensorStack) and not isinstance(stack, RaggedStack):
        if all(member.batch_size.numel() == 1 for member in members):
            homes = [member._home(0) for member in members]
        elif not dim and all(isinstance(each, NonTensorStack) for each in members):
            counts = [member.batch_size.numel() for member in members]
            pairs = zip(members, counts, strict=True)
            homes = [each._home(at) for each, count in pairs for at in range(count)]
        else:
            return stack
        stack._cells = LinkedCells(stack._cells, homes)
    return stack


class LinkedCells(list[Any]):
    """Cells whose values are those of other cells, which take what is written to these."""

    def __init__(self, values: list[Any], homes: list[tuple[Any, int]]) -> None:
        super().__init__(values)
        self._homes = homes

    def __setitem__(self, place: Any, value: Any) -> None:
        """Set the value here and where it is from."""
        member, at = self._homes[place]
        member._put_cells([at], [value])
        super().__setitem__(place, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a plain list: what is copied is linked to nothing."""
        return list, (list(self),)


def stacked(members: Sequence[Any], dim: int) -> Any:
    """The stack of collections of values along a new dim."""
    size = members[0].batch_size
    for member in members:
        if len(member.batch_size) != len(size):
            raise RuntimeError(MSG_DIFFERENT_SIZES.format(size, member.batch_size))
    if -1 in size or any(member.batch_size != size for member in members):
        return RaggedStack._of_rows(members, dim)
    stack = _joined(members, lambda places: torch.stack(places, dim), dim)
    if size and all(isinstance(member, NonTensorDataBase) for member in members):
        stack._has_one_a_row = True
    return stack._named(_names_with(members[0], dim))


def cat_values(members: Sequence[Any], dim: int) -> Any:
    """What concatenating non-tensor entries gives: one value where all have that."""
    first = members[0]
    if all(isinstance(member, NonTensorDataBase) for member in members) and all(
        same_value(first.data, member.data) for member in members
    ):
        length = sum(member.batch_size[dim] for member in members)
        size = first.batch_size
        made = first._sized(torch.Size([*size[:dim], length, *size[dim + 1 :]]))
        names = first._td_dim_names
        return made._named(None if names is None else list(names))
    return _joined(members, lambda places: torch.cat(places, dim), 0)


@on_real_tensors
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


def _names_with(member: Any, dim: int) -> list[str | None] | None:
    """The names of a stack of collections like ``member`` along a new dim."""
    names = member._td_dim_names
    return None if names is None else [*names[:dim], None, *names[dim:]]


def _with_dim(size: torch.Size, dim: int, length: int) -> torch.Size:
    return torch.Size([*size[:dim], length, *size[dim:]])
