"""Stacking and concatenating non-tensor data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from tensordict.containers.lazy.construct import merged_batch_size
from tensordict.containers.nontensor.base import (
    MSG_NO_NON_TENSOR,
    MSG_NO_SIZE,
    NonTensorOps,
)
from tensordict.containers.nontensor.cells import LinkedCells
from tensordict.containers.nontensor.data import NonTensorData, NonTensorDataBase
from tensordict.containers.nontensor.equality import is_interchangeable
from tensordict.containers.nontensor.mapped import MappedStack, joined_with_mapped
from tensordict.containers.nontensor.metadata import MetaData
from tensordict.containers.nontensor.positions import on_real_tensors
from tensordict.containers.nontensor.ragged import RaggedStack, cat_rows, stack_rows
from tensordict.containers.nontensor.stack import (
    MSG_DIFFERENT_SIZES,
    NonTensorStack,
)
from tensordict.primitives import options as options_primitives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["cat_values", "stack_values", "stacked"]


def stack_values(members: Sequence[Any], dim: int) -> Any:
    """Stack non-tensor data; equal data may become one value.

    Equal metadata becomes one value. Other equal data becomes one value only with
    ``set_capture_non_tensor_stack``, or if it has no elements: a stack of no elements
    has no value.
    """
    first = members[0]
    if any(not isinstance(member, NonTensorOps) for member in members):
        if any(isinstance(member, NonTensorDataBase) for member in members):
            raise AttributeError(MSG_NO_SIZE)
        raise RuntimeError(MSG_NO_NON_TENSOR)
    captures = options_primitives.capture_non_tensor_stack() or 0 in first.batch_size
    collapses = all(isinstance(member, MetaData) for member in members) or (
        captures and all(isinstance(member, NonTensorDataBase) for member in members)
    )
    same = is_interchangeable if captures else _same_metadata
    if collapses and all(
        member.data is first.data or same(first.data, member.data) for member in members
    ):
        joined = first._sized(merged_batch_size(list(members), dim))
        return joined._named(_names_with(first, dim))
    return stacked(members, dim)


def _same_metadata(first: CollectionProtocol, second: object) -> bool:
    """Return whether metadata is the same: identical, or equal and hashable."""
    if first is second:
        return True
    try:
        hash(first), hash(second)
    except TypeError:
        return False
    return not isinstance(first, torch.Tensor) and is_interchangeable(first, second)


@on_real_tensors
def shown_together(members: Sequence[Any], dim: int, of_rows: bool) -> Any:
    """Show values as one stack, which writes to their owners.

    A member with one value for many elements cannot hold different values. If
    ``of_rows`` is true, such a write raises an error; otherwise the stack is not
    linked.
    """
    if _show_rows(members):
        return RaggedStack._of_rows(list(members), dim)
    if _are_single(members) and not options_primitives.capture_non_tensor_stack():
        return _single_values(members)
    stack = stack_values(members, dim)
    if not isinstance(stack, NonTensorStack) or isinstance(stack, RaggedStack):
        return stack
    starts = [0]
    for member in members:
        starts.append(starts[-1] + len(member._flat()))
    order: Sequence[int] = range(starts[-1])
    if dim and starts[-1]:
        numbers = [
            torch.arange(start, stop).view(member.batch_size)
            for member, start, stop in zip(members, starts, starts[1:], strict=False)
        ]
        order = torch.stack(numbers, dim).flatten().tolist()
    # All elements of a member with one value have the same home.
    is_of_rows = any(
        member.batch_size.numel() != 1 and not isinstance(member, NonTensorStack)
        for member in members
    )
    if is_of_rows and not of_rows:
        return stack
    homes = [home for member in members for home in member._homes()]
    stack._cells = LinkedCells(
        stack._cells, [homes[number] for number in order], is_of_rows
    )
    return stack


def _show_rows(members: Sequence[Any]) -> bool:
    """Return whether these are rows of one stack that differ in length."""
    first = members[0]
    return all(
        isinstance(member, NonTensorStack) and member._cells is first._cells
        for member in members
    ) and (
        -1 in first.batch_size
        or any(member.batch_size != first.batch_size for member in members)
    )


def _are_single(members: Sequence[Any]) -> bool:
    """Return whether each member is one value without batch dims."""
    return {type(member) for member in members} == {NonTensorData} and {
        len(member._batch_size) for member in members
    } == {0}


def _single_values(members: Sequence[Any]) -> NonTensorStack:
    """Stack members of one value each: see :func:`shown_together`."""
    cells = LinkedCells(
        [member.data for member in members],
        [(member, member._at) for member in members],
    )
    devices = {member._device for member in members}
    device = devices.pop() if len(devices) == 1 else None
    stack = NonTensorStack._of_cells(cells, torch.Size([len(members)]), device)
    _lock_as(stack, members)
    return stack._named(_names_with(members[0], 0))


def stacked(members: Sequence[Any], dim: int) -> Any:
    """Stack collections of values along a new dim."""
    size = members[0].batch_size
    for member in members:
        if len(member.batch_size) != len(size):
            raise RuntimeError(MSG_DIFFERENT_SIZES.format(size, member.batch_size))
    if any(isinstance(member, MappedStack) for member in members):
        shape = _with_dim(size, dim, len(members))
        return joined_with_mapped(members, torch.stack, dim, shape)
    if -1 in size or any(member.batch_size != size for member in members):
        return stack_rows(members, dim)._named(_names_with(members[0], dim))
    stack = _joined(members, _with_dim(size, dim, len(members)), dim, dim)
    if size and all(isinstance(member, NonTensorDataBase) for member in members):
        stack._has_one_a_row = True
    _lock_as(stack, members)
    return stack._named(_names_with(members[0], dim))


MSG_CAT_SIZES = (
    "Sizes of tensors must match except in dimension {}. Expected size {} but got size {} "
    "for tensor number {} in the list."
)


def cat_values(members: Sequence[Any], dim: int) -> Any:
    """Concatenate non-tensor data; the result of equal values is one value."""
    if any(not isinstance(member, NonTensorOps) for member in members):
        raise RuntimeError(MSG_NO_NON_TENSOR)
    first = members[0]
    is_empty = not first.batch_size.numel() and not any(map(_is_ragged, members))
    if is_empty and not any(member.batch_size[dim] for member in members):
        # The data has no elements, so the first one stands for all.
        return first._twin()
    if all(isinstance(member, NonTensorDataBase) for member in members) and all(
        member.data is first.data or is_interchangeable(first.data, member.data)
        for member in members
    ):
        length = sum(member.batch_size[dim] for member in members)
        size = first.batch_size
        joined = first._sized(torch.Size([*size[:dim], length, *size[dim + 1 :]]))
        names = first._td_dim_names
        return joined._named(None if names is None else list(names))
    if any(map(_is_ragged, members)):
        return cat_rows(members, dim)
    before, after = first.batch_size[:dim], first.batch_size[dim + 1 :]
    length = 0
    for position, member in enumerate(members):
        member_size = member.batch_size
        if member_size[:dim] != before or member_size[dim + 1 :] != after:
            if len(member_size) == len(first.batch_size) and all(
                map(_is_stack, members)
            ):
                return cat_rows(members, dim)
            raise RuntimeError(
                MSG_CAT_SIZES.format(dim, first.batch_size, member_size, position)
            )
        length += member_size[dim]
    dims = {member.stack_dim if _is_stack(member) else dim for member in members}
    stack_dim = dims.pop() if len(dims) == 1 else dim
    size = torch.Size([*before, length, *after])
    if any(isinstance(member, MappedStack) for member in members):
        return joined_with_mapped(members, torch.cat, dim, size)
    stack = _joined(members, size, dim, stack_dim)
    _lock_as(stack, members)
    if dim == stack_dim and first._td_dim_names is not None:
        names = list(first._td_dim_names)
        names[dim] = None
        stack._named(names)
    if len(size) > 1 and not any(
        _is_stack(member) and not member._has_one_a_row for member in members
    ):
        stack._has_one_a_row = True
    return stack


def _lock_as(stack: Any, members: Sequence[Any]) -> None:
    """Lock ``stack`` if all of its members are locked."""
    if all(member._is_locked for member in members):
        stack._lock_tree()


def _is_ragged(member: CollectionProtocol) -> bool:
    return isinstance(member, RaggedStack)


def _is_stack(member: CollectionProtocol) -> bool:
    return isinstance(member, NonTensorStack)


@on_real_tensors
def _joined(
    members: Sequence[Any], size: torch.Size, dim: int, stack_dim: int
) -> NonTensorStack:
    """Concatenate the values of members along ``dim``, in a stack of ``size``."""
    outer = math.prod(size[:dim])
    rows = []
    for member in members:
        if isinstance(member, NonTensorDataBase):
            cells = [member.data] * math.prod(member.batch_size)
        else:
            cells = member._flat()
        rows.append((cells, len(cells) // outer if outer else 0))
    flat: list[Any] = []
    for part in range(outer):
        for cells, count in rows:
            flat += cells[part * count : (part + 1) * count]
    devices = {member.device for member in members}
    device = devices.pop() if len(devices) == 1 else None
    stack = NonTensorStack._of_cells(flat, size, device)
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


def _names_with(member: CollectionProtocol, dim: int) -> list[str | None] | None:
    """Return the names of a stack of collections like ``member`` along a new dim."""
    names = member._td_dim_names
    return None if names is None else [*names[:dim], None, *names[dim:]]


def _with_dim(size: torch.Size, dim: int, length: int) -> torch.Size:
    return torch.Size([*size[:dim], length, *size[dim:]])
