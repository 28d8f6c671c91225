"""Find the members of a lazy stack that an index selects, and the index into each.

An index is split into the item for the stack dim, which selects members, and the rest,
which is applied to each selected member. A :class:`Plan` describes the result by
*picks*, one for each selected member, in the order of the result.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict.primitives.index_items import (
    MSG_NO_BATCH_DIMS,
    MSG_NOT_ENOUGH,
    MSG_OUT_OF_BOUNDS,
    _is_whole,
    refuse_text,
    sorted_out,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Pick", "Plan", "plan_index", "without_new_dims"]

_WHOLE = slice(None)
MSG_TOO_MANY = "too many indices for a tensordict with batch size {}"
_MASKS = (torch.bool, torch.uint8)


class Pick(NamedTuple):
    """A member, and the index into it; None selects the entire member."""

    member: int
    index: Any


class Plan(NamedTuple):
    """The plan of reading a stack at an index.

    Attributes:
        picks: the selected members, and the index into each.
        dim: the dim along which the results of the picks are stacked. None: there is
            one pick, and its result is the result.
        shape: the dims into which the picks are stacked. There is one dim, unless an
            index tensor has more.
        to_front: in each member, the first dim and the number of dims, made by an index
            of tensors, that have to be moved to the front. None: no dim.
        keeps_name: whether the result has the name of the stack dim.
        copies: whether the picks must be copied: tensors index other dims, too, so the
            elements are copies although each pick is a view.
    """

    picks: list[Pick]
    dim: int | None
    shape: tuple[int, ...]
    to_front: tuple[int, int] | None
    keeps_name: bool
    copies: bool = False


def normalized(index: object, size: Sequence[int]) -> list[Any] | None:
    """Return the items of an index without ellipsis; None if it selects everything.

    Raises:
        IndexError: there are too many items, or an item is not an index.
        RuntimeError: there are two ellipses.
        TypeError: an item is a string.
    """
    items, used, ellipsis_at = sorted_out(index)
    ndim = len(size)
    items = [operator.index(item) if _is_position(item) else item for item in items]
    if used > ndim:
        if ellipsis_at >= 0:
            raise RuntimeError(MSG_NOT_ENOUGH)
        if not ndim:
            raise RuntimeError(MSG_NO_BATCH_DIMS.format(index))
        raise IndexError(MSG_TOO_MANY.format(torch.Size(size)))
    refuse_text(items)
    if ellipsis_at >= 0:
        items[ellipsis_at : ellipsis_at + 1] = [_WHOLE] * (ndim - used)
    while items and isinstance(items[-1], slice) and _is_whole(items[-1]):
        items.pop()
    return items or None


def without_ellipsis(index: object, ndim: int) -> Any:
    """Expand the ellipsis of an index of ``ndim`` dims, as entries have more dims."""
    items, used, ellipsis_at = sorted_out(index)
    if ellipsis_at < 0:
        return index
    items[ellipsis_at : ellipsis_at + 1] = [_WHOLE] * (ndim - used)
    return tuple(items)


def _is_position(item: object) -> bool:
    if isinstance(item, torch.Tensor):
        return not item.dim()
    return isinstance(item, (int, torch.SymInt)) and not isinstance(item, bool)


def _are_numbers(items: list[Any]) -> bool:
    """Return whether a list is not empty and contains only integers."""
    return bool(items) and all([type(item) is int for item in items])


def without_new_dims(
    index: object, size: Sequence[int]
) -> tuple[Any, list[int]] | None:
    """Split an index into one without new dims, and the positions of the new dims.

    Return None if the index makes no new dims, or if the order of dims depends on
    tensors.
    """
    rest: list[Any] = []
    places: list[int] = []
    num_dims = num_tensors = 0
    for item in normalized(index, size) or ():
        if item is None or item is True:
            places.append(num_dims)
            num_dims += 1
            continue
        rest.append(item)
        if isinstance(item, torch.Tensor):
            num_tensors += 1
            num_dims += 1 if item.dtype in _MASKS else item.dim()
        elif not isinstance(item, int):
            num_dims += 1
    if not places or num_tensors > 1 or any(item is False for item in rest):
        return None
    return tuple(rest), places


def _with_masks_spread(items: list[Any], size: Sequence[int]) -> list[Any]:
    """Replace masks by index tensors of their true elements.

    Raises:
        IndexError: a mask does not have the shape of the dims that it indexes.
    """
    out: list[Any] = []
    dim = 0
    for item in items:
        if isinstance(item, torch.Tensor) and item.dtype in _MASKS:
            shape = tuple(size[dim : dim + item.dim()])
            for at, (found, wanted) in enumerate(zip(item.shape, shape, strict=True)):
                if wanted not in (-1, found):
                    msg = (
                        f"The shape of the mask {list(item.shape)} at index {at} does not "
                        f"match the shape of the indexed tensor {list(size)} at index "
                        f"{dim + at}"
                    )
                    raise IndexError(msg)
            out += item.nonzero(as_tuple=True)
            dim += item.dim()
            continue
        out.append(item)
        if item is not None and not isinstance(item, bool):
            dim += 1
    return out


def _bounded(item: int, dim: int, length: int) -> int:
    if not -length <= item < length:
        raise IndexError(MSG_OUT_OF_BOUNDS.format(item, dim, length))
    return item + length if item < 0 else item


def _as_index(items: list[Any]) -> Any:
    """Return the index with the given items; None if it selects everything."""
    while items and isinstance(items[-1], slice) and _is_whole(items[-1]):
        items = items[:-1]
    if not items:
        return None
    return items[0] if len(items) == 1 and items[0] is not None else tuple(items)


def plan_index(
    size: Sequence[int], stack_dim: int, count: int, index: object
) -> Plan | None:
    """Plan reading a stack at ``index``; return None if the index selects everything.

    Args:
        size: the batch size of the stack, -1 in ragged dims.
        stack_dim: the stack dim.
        count: the number of members.
        index: any index of the batch dims.

    Raises:
        IndexError: the index does not fit.
    """
    if not stack_dim and type(index) is list and _are_numbers(index):
        # A list is used without a tensor, whose elements the compiler would not know.
        picks = [Pick(_bounded(member, 0, count), None) for member in index]
        return Plan(picks, 0, (len(picks),), None, True)
    items = normalized(index, size)
    if items is None:
        return None
    if any(isinstance(item, torch.Tensor) and item.dtype in _MASKS for item in items):
        items = _with_masks_spread(items, size)
    # Find the position of the item for the stack dim, and the number of dims before it.
    dim, at, before = 0, len(items), 0
    for position, item in enumerate(items):
        if item is None or isinstance(item, bool):
            before += item is None
            continue
        if dim == stack_dim:
            at = position
            break
        before += isinstance(item, slice)
        dim += 1
    else:
        before += stack_dim - dim
    _check_bounds(items, size, stack_dim)
    item = items[at] if at < len(items) else _WHOLE
    rest = items[:at] + items[at + 1 :]
    tensors = [
        position
        for position, element in enumerate(items)
        if isinstance(element, (torch.Tensor, bool))
    ]
    if isinstance(item, int):
        member = _bounded(item, stack_dim, count)
        return Plan([Pick(member, _as_index(rest))], None, (), None, False)
    if isinstance(item, slice):
        chosen = range(count)[item]
        new_dim, to_front = _place_of_slice(items, tensors, at, before)
        picked = _as_index(rest)
        picks = [Pick(member, picked) for member in chosen]
        return Plan(picks, new_dim, (len(picks),), to_front, True)
    return _plan_tensor(items, tensors, at, count)


def _check_bounds(items: list[Any], size: Sequence[int], stack_dim: int) -> None:
    """Raise an error if an integer is out of range for a dim that is not ragged."""
    dim = 0
    for item in items:
        if item is None or isinstance(item, bool):
            continue
        if isinstance(item, int) and dim != stack_dim and size[dim] >= 0:
            _bounded(item, dim, size[dim])
        dim += 1


def _block_dims(items: list[Any], tensors: list[int]) -> int:
    """Return the number of dims of the broadcast index tensors."""
    return max(
        (items[at].dim() if isinstance(items[at], torch.Tensor) else 1)
        for at in tensors
    )


def _is_adjacent(items: list[Any], tensors: list[int]) -> bool:
    """Return whether there are only integers, which make no dims, between tensors."""
    return all(
        isinstance(items[at], (int, torch.Tensor, bool))
        for at in range(tensors[0], tensors[-1])
    )


def _place_of_slice(
    items: list[Any], tensors: list[int], at: int, before: int
) -> tuple[int, tuple[int, int] | None]:
    """Return the new position of the stack dim, if a slice indexes it."""
    if not tensors:
        return before, None
    block = _block_dims(items, tensors)
    if not _is_adjacent(items, tensors):
        # The tensors' dims lead the result. In a member, the tensors may be adjacent.
        rest = items[:at] + items[at + 1 :]
        moved = [place - (place > at) for place in tensors]
        to_front = None
        if _is_adjacent(rest, moved):
            start = sum(
                1
                for each in rest[: moved[0]]
                if each is None or isinstance(each, slice)
            )
            to_front = (start, block) if start else None
        return block + before, to_front
    return before + (block if tensors[0] < at else 0), None


def _broadcast(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Broadcast index tensors to one shape.

    Raises:
        RuntimeError: the shapes cannot be broadcast.
    """
    return parts if len(parts) < 2 else list(torch.broadcast_tensors(*parts))


def _plan_tensor(items: list[Any], tensors: list[int], at: int, count: int) -> Plan:
    """Plan an index with a tensor for the stack dim."""
    flags = [place for place in tensors if isinstance(items[place], bool)]
    parts = [items[place] for place in tensors if place not in flags]
    parts = _broadcast(parts)
    shape = tuple(parts[0].shape)
    if any(not items[place] for place in flags):
        shape = (*shape[:-1], 0)
        parts = [part[..., :0] for part in parts]
    columns = [part.reshape(-1).tolist() for part in parts]
    adjacent = _is_adjacent(items, tensors)
    first = tensors[0] if adjacent else 0
    new_dim = sum(
        1 for item in items[:first] if item is None or isinstance(item, slice)
    )
    places = [place for place in tensors if place not in flags]
    member_column = places.index(at)
    fixed = [
        item
        for position, item in enumerate(items)
        if position != at and position not in flags
    ]
    others = [
        (place - (place > at) - sum(flag < place for flag in flags), column)
        for place, column in zip(places, columns, strict=True)
        if place != at
    ]
    picks = []
    alone = None if others else _as_index(fixed)
    for row, member in enumerate(columns[member_column]):
        picked = alone
        if others:
            filled = list(fixed)
            for place, column in others:
                filled[place] = column[row]
            picked = _as_index(filled)
        picks.append(Pick(_bounded(member, 0, count), picked))
    keeps_name = len(tensors) == 1 and len(shape) == 1
    return Plan(picks, new_dim, shape, None, keeps_name, bool(others))
