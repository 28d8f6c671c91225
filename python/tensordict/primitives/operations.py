"""One table of the methods of leaves, and what each does to the batch dims.

A dense collection calls a method on each of its leaves and need not know what it does. A
lazy stack, a view, a nested tensor and non-tensor data must: they ask the sets that are
made of the table. A new operation is a new line here.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "ADDS_DIMS",
    "ALONG_DIMS",
    "COMPUTES",
    "COPIES",
    "DROPS_DIM",
    "MOVES_DIMS",
    "MOVES_ELEMENTS",
    "NEW_ELEMENTS",
    "ONE_BLOCK",
    "ONLY_VIEWS",
    "OPERATIONS",
    "REDUCES",
    "REFUSED_BY_VIEWS",
    "REGROUPS",
    "RESTACKS",
    "SPREADS",
    "SUMS",
    "Operation",
    "bounds_of_parts",
    "name_of",
    "rows_moved",
]

Dims = Literal[
    "kept", "moved", "regrouped", "spread", "selected", "reduced", "split", "unbound"
]


def _repeated(args: tuple[Any, ...], rows: torch.Tensor) -> torch.Tensor | None:
    first, *others = args[0]
    return rows.repeat(first) if all(times == 1 for times in others) else None


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """A method of the leaves of a collection, or a function that is called on them.

    Attributes:
        name: that of the method or of the function.
        dims: what becomes of the batch dims: they are *kept*; *moved* (reordered, added,
            removed); *regrouped* (joined or split); *spread* to a larger size; some of
            their elements are *selected* or repeated; *reduced*; *split* into parts; *unbound* into
            parts that lack the dim.
        computes: whether values are computed. Otherwise elements only change places,
            and non-tensor data can follow them.
        copies: whether every level of the result is new.
        along: whether a shape that is kept hides work along one of its dims.
        one_block: whether the result has all elements in one block of memory.
        only_views: whether it never copies.
        restacks: whether what was stacked is stacked along its first dim afterwards.
        adds_dims: whether each element along a new dim has a value of its own.
        rows: what ``(args, rows)`` makes of the numbers of the rows along the first
            dim; None where the arguments are about other dims.
    """

    name: str
    dims: Dims = "kept"
    computes: bool = False
    copies: bool = False
    along: bool = False
    one_block: bool = False
    only_views: bool = False
    restacks: bool = False
    adds_dims: bool = False
    rows: Callable[[tuple[Any, ...], torch.Tensor], torch.Tensor | None] | None = None


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("clone", copies=True),
        Operation("contiguous", one_block=True),
        Operation("softmax", computes=True, along=True),
        Operation(
            "flip",
            along=True,
            restacks=True,
            rows=lambda args, rows: rows.flip(0) if args[0] in (0, (0,)) else None,
        ),
        Operation(
            "roll",
            along=True,
            restacks=True,
            rows=lambda args, rows: (
                rows.roll(args[0], 0) if args[1] in (0, (0,)) else None
            ),
        ),
        Operation(
            "_roll_flat",
            restacks=True,
            rows=lambda args, rows: rows.roll(args[0], 0) if args[1] == 1 else None,
        ),
        Operation("rot90", restacks=True),
        Operation("_pad_leaf", computes=True, restacks=True),
        # The order, number and grouping of dims.
        Operation("movedim", "moved"),
        Operation("permute", "moved"),
        Operation("squeeze", "moved"),
        Operation("transpose", "moved"),
        Operation("unsqueeze", "moved", adds_dims=True),
        Operation("flatten", "regrouped"),
        Operation("reshape", "regrouped", adds_dims=True),
        Operation("unflatten", "regrouped"),
        Operation("view", "regrouped", only_views=True),
        Operation("broadcast_to", "spread"),
        Operation("expand", "spread", adds_dims=True),
        # Some elements, or some of them several times.
        Operation("diagonal", "selected"),
        Operation("gather", "selected", restacks=True),
        Operation(
            "_gather",
            "selected",
            restacks=True,
            rows=lambda args, rows: rows[args[2]] if args[2].dim() == 1 else None,
        ),
        Operation("index_select", "selected"),
        Operation("masked_select", "selected"),
        Operation("narrow", "selected"),
        Operation("repeat", "selected", rows=_repeated),
        Operation(
            "repeat_interleave",
            "selected",
            rows=lambda args, rows: (
                rows.repeat_interleave(args[0]) if args[1] == 0 else None
            ),
        ),
        Operation(
            "_interleave_leaf",
            "selected",
            rows=lambda args, rows: (
                rows.repeat_interleave(args[0]) if args[1] == 0 else None
            ),
        ),
        Operation("tile", "selected"),
        # Parts.
        Operation("chunk", "split"),
        Operation("split", "split"),
        Operation("split_with_sizes", "split"),
        Operation("tensor_split", "split"),
        Operation("unbind", "unbound"),
        # One value of several.
        *(
            Operation(name, "reduced", computes=True)
            for name in (
                *("amax", "amin", "cummax", "cummin", "max", "mean", "min", "nanmean"),
                *("nansum", "prod", "quantile", "std", "sum", "var"),
            )
        ),
    )
}
"""Every operation that some collection has to know by name."""


def _names(test: Callable[[Operation], bool]) -> frozenset[str]:
    return frozenset(each.name for each in OPERATIONS.values() if test(each))


COMPUTES = _names(lambda each: each.computes)
"""The operations that compute values."""

MOVES_ELEMENTS = _names(lambda each: not each.computes and not each.copies)
"""The operations by which elements change places, and nothing is computed."""

ALONG_DIMS = _names(lambda each: each.along)
"""The operations that keep the shape, but work along a dim of it."""

MOVES_DIMS = _names(lambda each: each.dims == "moved")
"""The operations that reorder, add or remove dims."""

REGROUPS = _names(lambda each: each.dims == "regrouped")
"""The operations that give the same elements another shape."""

ONE_BLOCK = _names(lambda each: each.one_block)
"""The operations whose results have all elements in one block of memory."""

ONLY_VIEWS = _names(lambda each: each.only_views)
"""The operations that never copy."""

REFUSED_BY_VIEWS = MOVES_DIMS | ONLY_VIEWS
"""The operations that a collection refuses which shows what is elsewhere.

Their results would seem to write there, and could not.
"""

SPREADS = _names(lambda each: each.dims == "spread")
"""The operations that give a larger size to dims of size 1."""

ADDS_DIMS = _names(lambda each: each.adds_dims)
"""The operations along whose new dims each element has a value of its own."""

NEW_ELEMENTS = SPREADS & ADDS_DIMS
"""The operations whose results have elements of their own, which nothing has locked."""

RESTACKS = _names(lambda each: each.restacks)
"""The operations whose results are stacked along their first dim."""

DROPS_DIM = _names(lambda each: each.dims == "unbound")
"""The operations whose parts lack the dim along which they are taken."""

REDUCES = _names(lambda each: each.dims == "reduced")
"""The operations that make one value of several."""

SUMS = REDUCES - {"amax", "amin", "cummax", "cummin", "max", "min"}
"""The reductions whose result is none of the values."""

COPIES = _names(lambda each: each.copies)
"""The operations whose results share nothing with what they are made of."""


def name_of(op: object) -> str:
    """Return the name of an operation, which is a name, a function or a partial one."""
    op = getattr(op, "func", op)
    return op if isinstance(op, str) else getattr(op, "__name__", str(op))


def rows_moved(op: object, args: tuple[Any, ...], count: int) -> torch.Tensor | None:
    """Tell which of ``count`` rows stands where after ``op``.

    Args:
        op: what moves or repeats rows: a method by its name, or a function.
        args: its arguments.
        count: how many rows there are.

    Returns:
        The numbers of the rows, or None where ``op`` is about other dims.
    """
    operation = OPERATIONS.get(name_of(op))
    if operation is None or operation.rows is None:
        return None
    return operation.rows(args, torch.arange(count))


def bounds_of_parts(
    op: str, args: tuple[Any, ...], count: int
) -> list[tuple[int, int]] | None:
    """Tell where the parts begin and end into which ``op`` splits ``count`` rows.

    Args:
        op: ``"unbind"``, ``"split_with_sizes"`` or ``"tensor_split"``.
        args: its arguments, without the tensor.
        count: how many rows there are.

    Returns:
        The bounds, or None where ``op`` does not split.
    """
    finder = _BOUNDS.get(op) if isinstance(op, str) else None
    return None if finder is None else list(finder(args, count))


def _bounds_of_sizes(args: tuple[Any, ...], _: int) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(itertools.accumulate(args[0], initial=0))


def _bounds_of_stops(args: tuple[Any, ...], count: int) -> Iterator[tuple[int, int]]:
    for start, stop in zip([0, *args[0]], [*args[0], count], strict=True):
        rows = range(count)[start:stop]
        yield rows.start, max(rows.start, rows.stop)


_BOUNDS: dict[str, Callable[[tuple[Any, ...], int], Any]] = {
    "unbind": lambda _, count: ((at, at + 1) for at in range(count)),
    "split_with_sizes": _bounds_of_sizes,
    "tensor_split": _bounds_of_stops,
}
