"""A table of the operations on leaves, and their effect on the batch dims.

A dense tensordict calls a method on each leaf and does not need to know its effect. A
lazy stack, a view, a nested tensor and non-tensor data do: they use the sets made from
the table. To add an operation, add a line to the table.
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
    """A method of leaves, or a function that is called on leaves.

    Attributes:
        name: the name of the method or function.
        dims: the effect on the batch dims: they are *kept*; *moved* (reordered, added,
            removed); *regrouped* (joined or split); *spread* to a larger size;
            *selected* (some elements, or repeated ones); *reduced*; *split* into parts;
            or *unbound* into parts without the dim.
        computes: True if values are computed. If False, elements only change places,
            and non-tensor data can follow them.
        copies: True if every level of the result is new.
        along: True if the shape is kept, but elements move or mix along a dim.
        one_block: True if the result lies in one block of memory.
        only_views: True if the operation never copies.
        restacks: True if a lazy stack is stacked along its first dim afterwards.
        adds_dims: True if the elements along a new dim are separate values.
        rows: maps ``(args, rows)`` to the moved row numbers along the first dim; it
            returns None if the arguments concern other dims.
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
        # Operations that change the order, number or grouping of dims.
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
        # Operations that select or repeat elements.
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
        # Operations that split into parts.
        Operation("chunk", "split"),
        Operation("split", "split"),
        Operation("split_with_sizes", "split"),
        Operation("tensor_split", "split"),
        Operation("unbind", "unbound"),
        # Reductions.
        *(
            Operation(name, "reduced", computes=True)
            for name in (
                *("amax", "amin", "cummax", "cummin", "max", "mean", "min", "nanmean"),
                *("nansum", "prod", "quantile", "std", "sum", "var"),
            )
        ),
    )
}
"""Every operation that some class of tensordict must know by name."""


def _names(test: Callable[[Operation], bool]) -> frozenset[str]:
    return frozenset(
        operation.name for operation in OPERATIONS.values() if test(operation)
    )


COMPUTES = _names(lambda operation: operation.computes)
"""The operations that compute values."""

MOVES_ELEMENTS = _names(
    lambda operation: not operation.computes and not operation.copies
)
"""The operations that only move elements and compute nothing."""

ALONG_DIMS = _names(lambda operation: operation.along)
"""The operations that keep the shape, but work along a dim."""

MOVES_DIMS = _names(lambda operation: operation.dims == "moved")
"""The operations that reorder, add or remove dims."""

REGROUPS = _names(lambda operation: operation.dims == "regrouped")
"""The operations that give the same elements another shape."""

ONE_BLOCK = _names(lambda operation: operation.one_block)
"""The operations whose results lie in one block of memory."""

ONLY_VIEWS = _names(lambda operation: operation.only_views)
"""The operations that never copy."""

REFUSED_BY_VIEWS = MOVES_DIMS | ONLY_VIEWS
"""The operations that a view of another tensordict refuses.

Writes into their results could not reach the parent.
"""

SPREADS = _names(lambda operation: operation.dims == "spread")
"""The operations that expand dims of size 1."""

ADDS_DIMS = _names(lambda operation: operation.adds_dims)
"""The operations that make the elements along a new dim separate values."""

NEW_ELEMENTS = SPREADS & ADDS_DIMS
"""The operations whose results have new elements, which are unlocked."""

RESTACKS = _names(lambda operation: operation.restacks)
"""The operations whose results are stacked along their first dim."""

DROPS_DIM = _names(lambda operation: operation.dims == "unbound")
"""The operations whose parts lack the dim of the split."""

REDUCES = _names(lambda operation: operation.dims == "reduced")
"""The operations that reduce several values to one."""

SUMS = REDUCES - {"amax", "amin", "cummax", "cummin", "max", "min"}
"""The reductions whose result is not one of the values."""

COPIES = _names(lambda operation: operation.copies)
"""The operations whose results share nothing with their source."""


def name_of(op: object) -> str:
    """Return the name of an operation: a string, a function or a partial function."""
    op = getattr(op, "func", op)
    return op if isinstance(op, str) else getattr(op, "__name__", str(op))


def rows_moved(op: object, args: tuple[Any, ...], count: int) -> torch.Tensor | None:
    """Return the number of the row that stands at each place after ``op``.

    Args:
        op: the name of a method, or a function, that moves or repeats rows.
        args: its arguments.
        count: the number of rows.

    Returns:
        The row numbers, or None if ``op`` concerns other dims.
    """
    operation = OPERATIONS.get(name_of(op))
    if operation is None or operation.rows is None:
        return None
    return operation.rows(args, torch.arange(count))


def bounds_of_parts(
    op: str, args: tuple[Any, ...], count: int
) -> list[tuple[int, int]] | None:
    """Return the bounds of the parts into which ``op`` splits ``count`` rows.

    Args:
        op: ``"unbind"``, ``"split_with_sizes"`` or ``"tensor_split"``.
        args: its arguments, without the tensor.
        count: the number of rows.

    Returns:
        The bounds, or None if ``op`` does not split.
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
