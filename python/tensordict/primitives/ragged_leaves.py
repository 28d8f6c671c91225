"""Operations that torch lacks for nested tensors, as leaves of a collection.

A jagged tensor ``[B, *, ...]`` has its rows side by side in one tensor of values. torch
takes a single row of it and works on all elements; it cannot take several rows, join
nested tensors along their first dim, or put them in a ``_foreach_`` call. The walks over
collections come here for a leaf that torch has refused.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives.arrays import as_tensor
from tensordict.primitives.operations import DROPS_DIM, bounds_of_parts, rows_moved

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.primitives.protocol import BatchIndex

__all__ = [
    "at_index",
    "cat_leaves",
    "check_rows",
    "fill_leaf",
    "foreach_leaves",
    "is_jagged",
    "map_leaf",
    "padded",
    "regular_shape",
    "rows_fit",
    "where_leaf",
    "with_rows_of",
    "write_rows",
]

MSG_ROWS = "cannot write {} rows into {} rows of a nested tensor."
MSG_ROW = "cannot write a row of shape {} into one of shape {} of a nested tensor."

MSG_STACK = (
    "Cannot stack the tensordicts: the entry {!r} is a jagged nested tensor, and stacking "
    "jagged nested tensors along their batch dim would need a second ragged dim, which "
    "torch does not have. Use lazy_stack to keep them apart."
)


def is_jagged(leaf: object) -> bool:
    """Return whether a leaf is a nested tensor of the jagged layout."""
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.jagged


def regular_shape(leaf: torch.Tensor) -> torch.Size:
    """The leading sizes of a nested tensor that all of its parts have in common."""
    if not is_jagged(leaf):
        # The sizes of a part are regular only where torch says so, one by one.
        return torch.Size([leaf.size(0)])
    ragged: int = leaf._ragged_idx  # type: ignore[attr-defined]
    return torch.Size(list(leaf.shape[:ragged]))


def rows_fit(value: torch.Tensor, batch_size: torch.Size) -> bool:
    """Return whether rows of a strided nested tensor have all later batch dims."""
    if value.dim() < len(batch_size):
        return False
    rows: Any = value._nested_tensor_size()[:, : len(batch_size) - 1]
    return all(
        length in (-1, size)
        for row in rows.tolist()
        for length, size in zip(batch_size[1:], row, strict=True)
    )


def at_index(leaf: torch.Tensor, index: BatchIndex) -> Any:
    """``leaf[index]``, of several rows of a nested tensor, too."""
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        rows = _indexed(leaf, index)
        if rows is not None:
            return rows
    return leaf[index]


def map_leaf(op: Any, leaf: torch.Tensor, args: tuple[Any, ...]) -> Any:
    """``op(leaf, *args)`` for what torch refuses; None where it is not done here either.

    Args:
        op: the name of a method, as of :func:`tensordict._rust.map_leaves`.
        leaf: a leaf of any kind.
        args: its arguments.
    """
    if not leaf.is_nested:
        return None
    work = _WORK.get(op) if isinstance(op, str) else None
    if work is not None:
        return work(leaf, *args)
    if op not in DROPS_DIM and args and args[-1] == 0:
        bounds = bounds_of_parts(op, args, leaf.size(0))
        if bounds is not None:
            return [_sliced(leaf, start, stop) for start, stop in bounds]
    positions = rows_moved(op, args, leaf.size(0))
    return None if positions is None else _rows(leaf, positions)


def _squeezed(leaf: Any, dims: object) -> Any:
    """A jagged leaf without some dims of size 1; None where one is none of these."""
    if not is_jagged(leaf):
        return None
    values, ragged = leaf.values(), leaf._ragged_idx
    gone = sorted(dims if isinstance(dims, tuple) else (dims,), reverse=True)
    for dim in gone:
        if dim in (0, ragged):
            return None
        if leaf.size(dim) == 1:
            values = values.squeeze(dim - 1)
            ragged -= dim < ragged
    return torch.nested.nested_tensor_from_jagged(
        values, offsets=leaf.offsets(), lengths=leaf.lengths(), jagged_dim=ragged
    )


def _rebuilt(leaf: Any, values: torch.Tensor, offsets: Any, lengths: Any) -> Any:
    return torch.nested.nested_tensor_from_jagged(
        values, offsets=offsets, lengths=lengths, jagged_dim=leaf._ragged_idx
    )


def _strided(leaf: torch.Tensor, positions: list[int]) -> Any:
    """Some rows of a nested tensor of the strided layout; None for no rows."""
    rows = leaf.unbind()
    chosen = [rows[at] for at in positions]
    return torch.nested.as_nested_tensor(chosen) if chosen else None


def _sliced(leaf: Any, start: int, stop: int) -> Any:
    """Some rows that follow one another: a view of them."""
    if not is_jagged(leaf):
        return _strided(leaf, list(range(start, stop)))
    offsets = leaf.offsets()[start : stop + 1]
    lengths = leaf.lengths()
    if lengths is not None:
        lengths = lengths[start:stop]
    first, last = offsets[0].item(), offsets[-1].item()
    values = leaf.values().narrow(leaf._ragged_idx - 1, first, last - first)
    return _rebuilt(leaf, values, offsets - first, lengths)


def _indexed(leaf: torch.Tensor, index: object) -> Any:
    """The rows at an index of the first dim; None for any other index."""
    items = list(index) if isinstance(index, tuple) else [index]
    while items and (
        items[-1] is Ellipsis
        or (isinstance(items[-1], slice) and items[-1] == slice(None))
    ):
        items.pop()
    if len(items) != 1:
        return leaf if not items else None
    item = items[0]
    count = leaf.size(0)
    if isinstance(item, slice):
        rows = range(count)[item]
        if rows.step == 1:
            return _sliced(leaf, rows.start, max(rows.start, rows.stop))
        item = torch.tensor(list(rows), dtype=torch.long)
    elif not isinstance(item, (torch.Tensor, list, range)) or item is None:
        return None
    positions = torch.arange(count, device=leaf.device)[item]
    return _rows(leaf, positions) if positions.dim() == 1 else None


def _rows(leaf: Any, positions: torch.Tensor) -> Any:
    """The rows at some positions, copied side by side."""
    if not is_jagged(leaf):
        return _strided(leaf, positions.tolist())
    offsets, lengths = leaf.offsets(), leaf.lengths()
    if lengths is None:
        lengths = offsets.diff()
    starts, taken = offsets[positions], lengths[positions]
    new_offsets = torch.cat([taken.new_zeros(1), taken.cumsum(0)])
    # For each element of the result its place among the values.
    shift = torch.repeat_interleave(starts - new_offsets[:-1], taken)
    places = torch.arange(len(shift), device=shift.device) + shift
    values = leaf.values().index_select(leaf._ragged_idx - 1, places)
    return _rebuilt(leaf, values, new_offsets, None)


def _narrowed(leaf: torch.Tensor, dim: int, start: int, length: int) -> Any:
    """``leaf.narrow`` along the first dim; None along another one."""
    return _sliced(leaf, start, start + length) if dim == 0 else None


_WORK: dict[str, Callable[..., Any]] = {
    "__getitem__": _indexed,
    "narrow": _narrowed,
    "squeeze": _squeezed,
}
"""The methods of tensors that are done here."""


def cat_leaves(leaves: list[Any], dim: int) -> Any:
    """``torch.cat``, of nested tensors along their first dim, too."""
    if dim != 0 or not all(leaf.is_nested for leaf in leaves):
        return torch.cat(leaves, dim)
    if not all(map(is_jagged, leaves)):
        return torch.nested.as_nested_tensor(
            [row for leaf in leaves for row in leaf.unbind()]
        )
    whole = [
        leaf if leaf.lengths() is None else _rows(leaf, torch.arange(leaf.size(0)))
        for leaf in leaves
    ]
    first = whole[0]
    values = torch.cat([leaf.values() for leaf in whole], first._ragged_idx - 1)
    lengths = torch.cat([leaf.offsets().diff() for leaf in whole])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return _rebuilt(first, values, offsets, None)


def with_rows_of(leaf: Any, operand: Any) -> Any:
    """Let a jagged operand have the offsets of ``leaf``, if it has rows of its lengths.

    torch takes two jagged tensors for different in shape unless they share their
    offsets, which tensors that come from a file, or from a copy of a buffer, do not.
    Anything else is given back as it is.
    """
    if operand is leaf or not (is_jagged(leaf) and is_jagged(operand)):
        return operand
    offsets, lengths = leaf.offsets(), leaf.lengths()
    if (
        operand.offsets() is offsets
        or leaf._ragged_idx != operand._ragged_idx
        or not torch.equal(offsets, operand.offsets())
    ):
        return operand
    others = operand.lengths()
    if (lengths is None) != (others is None):
        return operand
    if lengths is not None and not torch.equal(lengths, others):
        return operand
    return _rebuilt(leaf, operand.values(), offsets, lengths)


def foreach_leaves(op: str | Callable[..., Any], lists: list[Any]) -> list[Any] | None:
    """``op``, a ``torch._foreach_*`` function, leaf by leaf; None where none is nested.

    A function whose name ends with ``_`` writes into the first list.
    """
    leaves = lists[0]
    if not any(leaf.is_nested for leaf in leaves):
        return None
    name = getattr(op, "__name__", "").removeprefix("_foreach_")
    lists = [
        list(map(with_rows_of, leaves, each))
        if isinstance(each, (list, tuple))
        else each
        for each in lists
    ]
    rows = (
        [each[at] if isinstance(each, (list, tuple)) else each for each in lists]
        for at in range(len(leaves))
    )
    if name == "copy_":
        for leaf, value, *more in rows:
            if leaf.is_nested:
                write_rows(leaf, slice(None), value)
            else:
                leaf.copy_(value, *more)
        return leaves
    if name.endswith("_"):
        return [getattr(leaf, name)(*operands) for leaf, *operands in rows]
    function = name and (getattr(torch, name, None) or getattr(operator, name, None))
    if not function:
        return _by_values(op, lists)
    try:
        return [function(*row) for row in rows]
    except NotImplementedError:
        return _by_values(op, lists)


def _by_values(op: Any, lists: list[Any]) -> list[Any] | None:
    """``op`` on the values of jagged leaves; None where operands have other rows."""
    leaves = lists[0]
    flat = []
    for operands in lists:
        if not isinstance(operands, (list, tuple)):
            flat.append(operands)
            continue
        if any(
            is_jagged(leaf) and operand.shape != leaf.shape
            for leaf, operand in zip(leaves, operands, strict=True)
        ):
            return None
        flat.append([each.values() if is_jagged(each) else each for each in operands])
    results = op(*flat)
    return [
        _rebuilt(leaf, result, leaf.offsets(), leaf.lengths())
        if is_jagged(leaf)
        else result
        for leaf, result in zip(leaves, results, strict=True)
    ]


def where_leaf(condition: torch.Tensor, leaf: Any, other: Any) -> Any:
    """``torch.where``, of a nested leaf row by row."""
    if not leaf.is_nested:
        return torch.where(condition, leaf, other)
    rows = [
        torch.where(chosen, row, operand)
        for chosen, row, operand in zip(
            condition.expand(leaf.size(0), *condition.shape[1:]).unbind(),
            leaf.unbind(),
            other.unbind()
            if isinstance(other, torch.Tensor) and other.dim()
            else [other] * leaf.size(0),
            strict=True,
        )
    ]
    if not is_jagged(leaf) or leaf.lengths() is not None or not rows:
        return torch.nested.as_nested_tensor(rows, layout=leaf.layout)
    values = torch.cat(rows, leaf._ragged_idx - 1)
    return _rebuilt(leaf, values, leaf.offsets(), None)


def fill_leaf(leaf: torch.Tensor, mask: torch.Tensor, value: Any) -> None:
    """``leaf.masked_fill_(mask, value)``, of a nested leaf row by row."""
    if not leaf.is_nested:
        leaf.masked_fill_(mask, value)
        return
    masks = mask.expand(leaf.size(0), *mask.shape[1:]).unbind()
    for row, chosen in zip(leaf.unbind(), masks, strict=True):
        row.masked_fill_(chosen, value)


def _row_pairs(
    leaf: torch.Tensor, index: BatchIndex, value: Any
) -> list[tuple[Any, Any]]:
    """The rows of a nested leaf at an index, each with its part of a value."""
    positions = torch.arange(leaf.size(0))[index]
    rows = leaf.unbind()
    targets = [rows[at] for at in positions.reshape(-1).tolist()]
    values = [value] * len(targets)
    is_row_each = isinstance(value, torch.Tensor) and bool(positions.dim())
    if is_row_each and (
        value.is_nested or (value.dim() and len(value) == len(targets))
    ):
        values = list(value.unbind(0))
    if len(values) != len(targets):
        raise RuntimeError(MSG_ROWS.format(len(values), len(targets)))
    return list(zip(targets, values, strict=True))


def check_rows(leaf: torch.Tensor, index: BatchIndex, value: object) -> None:
    """Raise where a value does not fit the rows of a nested leaf at an index.

    Raises:
        RuntimeError: there are other rows, or one has another shape.
    """
    for row, each in _row_pairs(leaf, index, value):
        if isinstance(each, torch.Tensor) and each.dim() and each.shape != row.shape:
            raise RuntimeError(MSG_ROW.format(list(each.shape), list(row.shape)))


def write_rows(leaf: torch.Tensor, index: BatchIndex, value: object) -> None:
    """Write into the rows of a nested leaf at an index."""
    for row, each in _row_pairs(leaf, index, value):
        row.copy_(as_tensor(each))


def padded(leaf: torch.Tensor, padding: float) -> Any:
    """A nested leaf as an ordinary tensor, its rows filled up; any other one as it is."""
    if not leaf.is_nested:
        return leaf
    return torch.nested.to_padded_tensor(leaf, padding)
