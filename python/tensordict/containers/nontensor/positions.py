"""Computing with the positions of values.

The positions of a stack in its cells are plain Python, so that the compiler knows them:
a :data:`Layout`, as a view of a tensor has one. Those of what an operation makes are
found by doing the same to a tensor of positions: while a program is compiled, then,
and not in the program.
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
"""The position of the first element, and how far it is to the next one in each dim."""

Found = tuple[Layout | None, list[int] | None]
"""A layout in the same cells, or the positions of what has cells of its own, row by row."""

KEPT = 1 << 16
"""The number of positions that are kept, for all stacks that have no more cells."""

MSG_INDEX = "index {} is out of bounds for the stack dim of size {}"


def moves_elements(op: Any) -> bool:
    """Tell whether an operation on leaves moves elements, rather than compute with them."""
    return name_of(op) in MOVES_ELEMENTS


def leaf_call(
    op: Any, args: tuple[Any, ...], tail: int, k: int, part: int | None = None
) -> Any:
    """An operation on leaves as a function of the positions of values alone."""

    def call(positions: torch.Tensor) -> Any:
        result = _call(positions, op, args, tail, k)
        return result if part is None else result[part]

    return call


def on_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have ``function``, which computes with positions, do so under any dispatch mode.

    Values are where they are: under a ``FakeTensorMode`` positions must not be fake.
    """

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> Any:
        if not _has_modes():
            return function(*args, **kwargs)
        with _disable_current_modes():
            return function(*args, **kwargs)

    return wrapper


def _has_modes() -> bool:
    """Tell whether a dispatch mode is on."""
    return bool(torch._C._len_torch_dispatch_stack())


def taken(cells: list[Any], places: list[int]) -> list[Any]:
    """The values at some positions."""
    return [cells[place] for place in places]


_kept: list[torch.Tensor] = []


def _positions(count: int) -> torch.Tensor:
    """The numbers from 0 to ``count``, which are made once if they are not many."""
    if count > KEPT:
        return torch.arange(count, device="cpu")
    if not _kept:
        _kept.append(torch.arange(KEPT, device="cpu"))
    return _kept[0].narrow(0, 0, count)


def places_of(count: int, layout: Layout | None, size: torch.Size) -> torch.Tensor:
    """The position of each element of a stack of ``size`` in ``count`` cells.

    Not to be changed. Without a layout the elements are in order.
    """
    places = _positions(count)
    if layout is None:
        return places.view(size)
    return places.as_strided(size, layout[1], layout[0])


@on_real_tensors
def places_listed(count: int, layout: Layout | None, size: torch.Size) -> list[int]:
    """The position of each element, row by row."""
    found: list[int] = places_of(count, layout, size).flatten().tolist()
    return found


@on_real_tensors
def places_at(
    count: int, layout: Layout | None, size: torch.Size, index: Any
) -> tuple[list[int], torch.Size]:
    """The positions of the elements at an index, row by row, and their shape."""
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
    """Tell where the elements of a stack are after an operation on leaves."""
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
    """The same for an operation that makes several."""
    places = places_of(count, layout, size)
    parts = leaf_call(op, args, 0, k)(places)
    return [_found(part, places) for part in parts]


def selected(positions: torch.Tensor, at: Any) -> torch.Tensor:
    """The operation that an index is."""
    return positions[at]


def _found(moved: torch.Tensor, places: torch.Tensor) -> Found:
    if is_view(moved, places):
        return (int(moved.storage_offset()), moved.stride()), None
    return None, moved.flatten().tolist()


def dims_taken(item: Any) -> int:
    """Count the dims that an item of an index selects along."""
    if item is None or isinstance(item, bool):
        return 0
    is_mask = isinstance(item, torch.Tensor) and item.dtype is torch.bool
    return item.dim() if is_mask else 1


def selects_one(at: object, dim: int) -> bool:
    """Tell whether an index, as a plan has it, has a number for a dim."""
    taken = 0
    for item in at if isinstance(at, tuple) else (at,):
        if taken == dim and dims_taken(item):
            return isinstance(item, int)
        taken += dims_taken(item)
    return False


def out_of_bounds(places: list[int], length: int) -> IndexError:
    """The error of a position that is none among ``length`` of them."""
    at = next(at for at in places if not -length <= at < length)
    return IndexError(MSG_INDEX.format(at, length))


def strides_of(size: torch.Size) -> tuple[int, ...]:
    """The strides of elements of ``size`` that lie row by row."""
    steps, step = [], 1
    for length in reversed(size):
        steps.append(step)
        step *= length
    return tuple(reversed(steps))


def is_view(moved: torch.Tensor, places: torch.Tensor) -> bool:
    """Tell whether ``moved`` shows each element of ``places`` once at most, in its memory."""
    if moved.untyped_storage()._cdata != places.untyped_storage()._cdata:
        return False
    return all(
        stride or length < 2
        for stride, length in zip(moved.stride(), moved.shape, strict=True)
    )
