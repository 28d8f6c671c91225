"""Computing the cell indices of values, the *positions*, after an operation.

The positions of a stack are stored as a :data:`Layout`, similar to the strides of a
tensor view, so that the compiler can see them. The positions after an operation are
found by applying the operation to a tensor of positions. Compiled programs do this
during compilation only.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tensordict import _rust
from tensordict.primitives.common import _call
from tensordict.primitives.operations import MOVES_ELEMENTS, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MSG_INDEX",
    "Found",
    "Layout",
    "dims_taken",
    "is_view",
    "leaf_call",
    "moves_elements",
    "on_real_tensors",
    "out_of_bounds",
    "places_at",
    "places_listed",
    "places_moved",
    "places_of",
    "places_split",
    "selected",
    "selects_one",
    "strides_of",
    "taken",
]

Layout = tuple[int, tuple[int, ...]]
"""The position of the first element, and the step to the next one in each dim."""

Found = tuple[Layout | None, list[int] | None]
"""A layout in the same cells, or the positions to copy to new cells, row by row."""

KEPT = 1 << 16
"""The length of the cached tensor of positions, which all smaller stacks share."""

MSG_INDEX = "index {} is out of bounds for the stack dim of size {}"


def moves_elements(op: Any) -> bool:
    """Return whether an operation on leaves only moves elements."""
    return name_of(op) in MOVES_ELEMENTS


def leaf_call(
    op: Any, args: tuple[Any, ...], tail: int, k: int, part: int | None = None
) -> Any:
    """Return an operation on leaves as a function of a tensor of positions."""

    def call(positions: torch.Tensor) -> Any:
        result = _call(positions, op, args, tail, k)
        return result if part is None else result[part]

    return call


def on_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``function`` to compute with real tensors under any dispatch mode.

    Positions are needed as real numbers even under a ``FakeTensorMode``.
    """

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> Any:
        if not _has_modes():
            return function(*args, **kwargs)
        with _disable_current_modes():
            return function(*args, **kwargs)

    return wrapper


def _has_modes() -> bool:
    """Return whether a dispatch mode is on."""
    return bool(torch._C._len_torch_dispatch_stack())


def taken(cells: list[Any], places: list[int]) -> list[Any]:
    """Return the values at some positions."""
    return [cells[place] for place in places]


_kept: list[torch.Tensor] = []


def _positions(count: int) -> torch.Tensor:
    """Return the numbers from 0 to ``count``, from a cached tensor if they are few."""
    if count > KEPT:
        return torch.arange(count, device="cpu")
    if not _kept:
        _kept.append(torch.arange(KEPT, device="cpu"))
    return _kept[0].narrow(0, 0, count)


def places_of(count: int, layout: Layout | None, size: torch.Size) -> torch.Tensor:
    """Return the positions of a stack of ``size`` in ``count`` cells.

    Do not change the tensor. Without a layout, the elements are in order.
    """
    places = _positions(count)
    if layout is None:
        return places.view(size)
    return places.as_strided(size, layout[1], layout[0])


@on_real_tensors
def places_listed(count: int, layout: Layout | None, size: torch.Size) -> list[int]:
    """Return the position of each element, row by row."""
    places: list[int] = places_of(count, layout, size).flatten().tolist()
    return places


@on_real_tensors
def places_at(
    count: int, layout: Layout | None, size: torch.Size, index: Any
) -> tuple[list[int], torch.Size]:
    """Return the positions of the elements at an index, row by row, and their shape."""
    places = places_of(count, layout, size)
    plan = _rust.index_plan(size, index)
    if plan is not None:
        places, size = places[plan[0]], plan[1]
    return places.flatten().tolist(), size


@on_real_tensors
def places_moved(
    count: int,
    layout: Layout | None,
    size: torch.Size,
    op: object,
    args: tuple[Any, ...],
    tail: int,
    k: int,
) -> Found:
    """Return the positions of a stack's elements after an operation on leaves."""
    places = places_of(count, layout, size)
    return _found(leaf_call(op, args, tail, k)(places), places)


@on_real_tensors
def places_split(
    count: int,
    layout: Layout | None,
    size: torch.Size,
    op: object,
    args: tuple[Any, ...],
    k: int,
) -> list[Found]:
    """Return the positions for each result of an operation that splits leaves."""
    places = places_of(count, layout, size)
    parts = leaf_call(op, args, 0, k)(places)
    return [_found(part, places) for part in parts]


def selected(positions: torch.Tensor, at: Any) -> torch.Tensor:
    """Index a tensor of positions: the operation of an index."""
    return positions[at]


def _found(moved: torch.Tensor, places: torch.Tensor) -> Found:
    if is_view(moved, places):
        return (int(moved.storage_offset()), moved.stride()), None
    return None, moved.flatten().tolist()


def dims_taken(item: Any) -> int:
    """Return the number of dims that an item of an index selects along."""
    if item is None or isinstance(item, bool):
        return 0
    is_mask = isinstance(item, torch.Tensor) and item.dtype is torch.bool
    return item.dim() if is_mask else 1


def selects_one(at: object, dim: int) -> bool:
    """Return whether a resolved index has an integer for a dim."""
    num_dims = 0
    for item in at if isinstance(at, tuple) else (at,):
        if num_dims == dim and dims_taken(item):
            return isinstance(item, int)
        num_dims += dims_taken(item)
    return False


def out_of_bounds(places: list[int], length: int) -> IndexError:
    """Return the error for the first position that is out of range."""
    at = next(at for at in places if not -length <= at < length)
    return IndexError(MSG_INDEX.format(at, length))


def strides_of(size: torch.Size) -> tuple[int, ...]:
    """Return the strides of elements of ``size`` that lie row by row."""
    steps, step = [], 1
    for length in reversed(size):
        steps.append(step)
        step *= length
    return tuple(reversed(steps))


def is_view(moved: torch.Tensor, places: torch.Tensor) -> bool:
    """Return whether ``moved`` is a view of ``places`` that repeats no element."""
    if moved.untyped_storage()._cdata != places.untyped_storage()._cdata:
        return False
    return all(
        stride or length < 2
        for stride, length in zip(moved.stride(), moved.shape, strict=True)
    )
