"""Nested tensors: entries whose rows differ in shape.

A jagged tensor ``[B, *, ...]`` stores its rows side by side in one tensor of values.
torch can index one row of it and compute on all elements. torch cannot index several
rows, join nested tensors along their first dim, or pass them to a ``_foreach_``
function. A nested tensor of torch's strided layout has no class of its own, so its kind
is looked up only after torch has refused a call.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal

import torch

from tensordict.primitives.arrays import as_tensor
from tensordict.primitives.operations import DROPS_DIM, bounds_of_parts, rows_moved
from tensordict.primitives.special import EntryKind, num_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.primitives.protocol import BatchIndex

__all__ = ["Ragged"]

MSG_ROWS = "cannot write {} rows into {} rows of a nested tensor."
MSG_ROW = "cannot write a row of shape {} into one of shape {} of a nested tensor."

MSG_STACK = (
    "Cannot stack the tensordicts: the entry {!r} is a jagged nested tensor, and stacking "
    "jagged nested tensors along their batch dim would need a second ragged dim, which "
    "torch does not have. Use lazy_stack to keep them apart."
)


class Ragged(EntryKind):
    """The kind of nested tensors of both layouts; only their first dim is regular."""

    name = "ragged"
    late_class: tuple[str, str] | None = (
        "torch.nested._internal.nested_tensor",
        "NestedTensor",
    )
    msg_stack: str | None = MSG_STACK
    in_files: Literal["tensor", "state", "refused"] = "tensor"

    def holds(self, entry: object) -> bool:
        """Return whether an entry is a nested tensor; strided ones have no class."""
        return isinstance(entry, torch.Tensor) and entry.is_nested

    def leading_shape(self, entry: Any) -> torch.Size:
        """Return the sizes that all rows have in common."""
        if not _is_jagged(entry):
            # torch returns the regular sizes of the strided layout one dim at a time.
            return torch.Size([entry.size(0)])
        return torch.Size(list(entry.shape[: entry._ragged_idx]))

    def shown_shape(self, entry: Any) -> list[Any]:
        """Return the sizes, with -1 for a dim in which rows differ."""
        if _is_jagged(entry):
            return list(entry.shape)
        sizes = entry._nested_tensor_size()
        dims: list[Any] = [sizes.shape[0]]
        for column in sizes.unbind(-1):
            same = bool((column == column[0]).all()) if column.numel() else False
            dims.append(int(column[0]) if same else -1)
        return dims

    def num_bytes(self, entry: Any) -> int:
        """Return the bytes of all elements and, for a jagged tensor, of its offsets."""
        parts = (entry.offsets(), entry.lengths()) if _is_jagged(entry) else ()
        element_bytes = super().num_bytes(entry)
        return element_bytes + sum(
            num_bytes(part) for part in parts if part is not None
        )

    def fits(self, entry: Any, size: torch.Size) -> bool:
        """Return whether all rows have the batch dims of ``size``."""
        if _is_jagged(entry):
            return super().fits(entry, size)
        return not size or (entry.size(0) == size[0] and _rows_fit(entry, size))

    def is_like(self, entry: Any, value: Any) -> bool:
        """Return whether the rows of a value have the shapes of the entry's rows."""
        if not self.holds(value):
            return super().is_like(entry, value)
        try:
            _check_rows(entry, slice(None), value)
        except RuntimeError:
            return False
        return True

    def rows(self, entry: Any) -> list[Any]:
        """Return the rows, as views."""
        return list(entry.unbind(0))

    def at(self, entry: Any, index: Any, size: torch.Size) -> Any:
        """Return the rows at an index; torch itself can take a single row only."""
        _ = size
        rows = _indexed(entry, index)
        return entry[index] if rows is None else rows

    def check_write(
        self, entry: Any, value: Any, index: Any, size: torch.Size, k: int
    ) -> None:
        """Raise an error if a value does not fit the rows at an index."""
        _ = size, k
        _check_rows(entry, index, value)

    def write_at(self, entry: Any, index: Any, value: Any) -> None:
        """Write into the rows at an index, row by row."""
        for row, row_value in _row_pairs(entry, index, value):
            row.copy_(as_tensor(row_value))

    def mapped(
        self,
        entry: Any,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        size: torch.Size | None,
    ) -> Any:
        """Call torch, or work row by row if torch refuses."""
        return self._called(super().mapped, entry, op, args, size)

    def split(
        self,
        entry: Any,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        sizes: Sequence[torch.Size],
    ) -> Sequence[Any]:
        """Call torch, or work row by row if torch refuses."""
        parts: Sequence[Any] = self._called(super().split, entry, op, args, sizes)
        return parts

    def _called(
        self, call: Callable[..., Any], entry: Any, op: Any, args: Any, sizes: Any
    ) -> Any:
        if not isinstance(op, str):
            # torch would run a function of rows on the values of all rows at once.
            result = self.instead(entry, op, args)
            if result is not None:
                return result
        try:
            return call(entry, op, args, sizes)
        except (RuntimeError, ValueError):
            result = self.instead(entry, op, args)
            if result is None:
                raise
            return result

    def instead(
        self, entry: Any, op: str | Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """Do an operation that torch refuses; return None if there is no substitute."""
        work = _WORK.get(op) if isinstance(op, str) else None
        if work is not None:
            return work(entry, *args)
        if isinstance(op, str) and op not in DROPS_DIM and args and args[-1] == 0:
            bounds = bounds_of_parts(op, args, entry.size(0))
            if bounds is not None:
                return [_sliced(entry, start, stop) for start, stop in bounds]
        positions = rows_moved(op, args, entry.size(0))
        return None if positions is None else _rows(entry, positions)

    def joined(
        self,
        group: Sequence[Any],
        dim: int,
        size: torch.Size | None,
        join: Callable[..., Any],
    ) -> Any:
        """Join nested tensors; torch cannot join them along their first dim."""
        _ = size
        if join is torch.cat and dim == 0 and all(map(self.holds, group)):
            return _joined_rows(list(group))
        return join(list(group), dim)

    def in_line(self, entry: Any, operand: Any) -> Any:
        """Return a jagged operand with the entry's offsets, if its rows are as long."""
        return _in_line(entry, operand)

    def foreach(
        self, op: str | Callable[..., Any], lists: list[Any]
    ) -> list[Any] | None:
        """Call ``op`` leaf by leaf."""
        return _foreach(op, lists, self.holds)

    def where(self, entry: Any, condition: torch.Tensor, other: Any) -> torch.Tensor:
        """Select between entry and other, row by row."""
        count = entry.size(0)
        is_rows = isinstance(other, torch.Tensor) and bool(other.dim())
        rows = [
            torch.where(chosen, row, operand)
            for chosen, row, operand in zip(
                condition.expand(count, *condition.shape[1:]).unbind(),
                entry.unbind(),
                other.unbind() if is_rows else [other] * count,
                strict=True,
            )
        ]
        if not _is_jagged(entry) or entry.lengths() is not None or not rows:
            return torch.nested.as_nested_tensor(rows, layout=entry.layout)
        values = torch.cat(rows, entry._ragged_idx - 1)
        return _rebuilt(entry, values, entry.offsets(), None)

    def fill_where(self, entry: Any, mask: torch.Tensor, value: Any) -> None:
        """Fill the elements where ``mask`` is true, row by row."""
        masks = mask.expand(entry.size(0), *mask.shape[1:]).unbind()
        for row, chosen in zip(entry.unbind(), masks, strict=True):
            row.masked_fill_(chosen, value)

    def padded(self, entry: Any, padding: float) -> torch.Tensor:
        """Return an ordinary tensor, with shorter rows padded."""
        full: torch.Tensor = torch.nested.to_padded_tensor(entry, padding)
        return full


def _is_jagged(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.jagged


def _rows_fit(value: torch.Tensor, batch_size: torch.Size) -> bool:
    """Return whether the rows of a strided nested tensor fit the later batch dims."""
    if value.dim() < len(batch_size):
        return False
    rows: Any = value._nested_tensor_size()[:, : len(batch_size) - 1]
    return all(
        length in (-1, size)
        for row in rows.tolist()
        for length, size in zip(batch_size[1:], row, strict=True)
    )


def _squeezed(leaf: Any, dims: object) -> Any:
    """Squeeze dims of a jagged leaf; return None for another layout or a ragged dim."""
    if not _is_jagged(leaf):
        return None
    values, ragged = leaf.values(), leaf._ragged_idx
    descending_dims = sorted(dims if isinstance(dims, tuple) else (dims,), reverse=True)
    for dim in descending_dims:
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


def _strided(leaf: torch.Tensor, positions: list[int]) -> torch.Tensor | None:
    """Return some rows of a strided nested tensor; None for no rows."""
    rows = leaf.unbind()
    chosen = [rows[at] for at in positions]
    return torch.nested.as_nested_tensor(chosen) if chosen else None


def _sliced(leaf: Any, start: int, stop: int) -> torch.Tensor | None:
    """Return consecutive rows: a view if the leaf is jagged."""
    if not _is_jagged(leaf):
        return _strided(leaf, list(range(start, stop)))
    offsets = leaf.offsets()[start : stop + 1]
    lengths = leaf.lengths()
    if lengths is not None:
        lengths = lengths[start:stop]
    first, last = offsets[0].item(), offsets[-1].item()
    values = leaf.values().narrow(leaf._ragged_idx - 1, first, last - first)
    return _rebuilt(leaf, values, offsets - first, lengths)


def _indexed(leaf: torch.Tensor, index: object) -> torch.Tensor | None:
    """Return the rows at an index of the first dim; None for any other index."""
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
    """Return a copy of the rows at some positions."""
    if not _is_jagged(leaf):
        return _strided(leaf, positions.tolist())
    offsets, lengths = leaf.offsets(), leaf.lengths()
    if lengths is None:
        lengths = offsets.diff()
    starts, row_lengths = offsets[positions], lengths[positions]
    new_offsets = torch.cat([row_lengths.new_zeros(1), row_lengths.cumsum(0)])
    # The position among the values for each element of the result.
    shift = torch.repeat_interleave(starts - new_offsets[:-1], row_lengths)
    value_positions = torch.arange(len(shift), device=shift.device) + shift
    values = leaf.values().index_select(leaf._ragged_idx - 1, value_positions)
    return _rebuilt(leaf, values, new_offsets, None)


def _narrowed(
    leaf: torch.Tensor, dim: int, start: int, length: int
) -> torch.Tensor | None:
    """Do ``leaf.narrow`` along the first dim; return None for another dim."""
    return _sliced(leaf, start, start + length) if dim == 0 else None


_WORK: dict[str, Callable[..., Any]] = {
    "__getitem__": _indexed,
    "narrow": _narrowed,
    "squeeze": _squeezed,
}
"""The tensor methods that this module replaces for nested tensors."""


def _joined_rows(leaves: list[Any]) -> Any:
    """Do ``torch.cat`` of nested tensors along their first dim."""
    if not all(map(_is_jagged, leaves)):
        return torch.nested.as_nested_tensor(
            [row for leaf in leaves for row in leaf.unbind()]
        )
    gapless = [
        leaf if leaf.lengths() is None else _rows(leaf, torch.arange(leaf.size(0)))
        for leaf in leaves
    ]
    first = gapless[0]
    values = torch.cat([leaf.values() for leaf in gapless], first._ragged_idx - 1)
    lengths = torch.cat([leaf.offsets().diff() for leaf in gapless])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return _rebuilt(first, values, offsets, None)


def _in_line(leaf: Any, operand: Any) -> Any:
    """Return a jagged operand with the offsets of ``leaf``, if the rows are as long.

    torch treats two jagged tensors as different in shape unless they share one offsets
    tensor. Tensors from a file, or from a copied buffer, have their own offsets.
    """
    if operand is leaf or not (_is_jagged(leaf) and _is_jagged(operand)):
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


def _foreach(
    op: Any, lists: list[Any], is_ragged: Callable[[object], bool]
) -> list[Any] | None:
    """Call ``op``, a ``torch._foreach_*`` function, leaf by leaf.

    A function whose name ends with ``_`` writes into the first list.
    """
    leaves = lists[0]
    name = getattr(op, "__name__", "").removeprefix("_foreach_")
    lists = [
        list(map(_in_line, leaves, operands))
        if isinstance(operands, (list, tuple))
        else operands
        for operands in lists
    ]
    rows = (
        [
            operands[at] if isinstance(operands, (list, tuple)) else operands
            for operands in lists
        ]
        for at in range(len(leaves))
    )
    if name == "copy_":
        for leaf, value, *more in rows:
            if is_ragged(leaf):
                Ragged().write_at(leaf, slice(None), value)
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
    """Call ``op`` on the values of jagged leaves.

    Return None if the rows of an operand differ from the leaf's.
    """
    leaves = lists[0]
    flat = []
    for operands in lists:
        if not isinstance(operands, (list, tuple)):
            flat.append(operands)
            continue
        if any(
            _is_jagged(leaf) and operand.shape != leaf.shape
            for leaf, operand in zip(leaves, operands, strict=True)
        ):
            return None
        flat.append(
            [
                operand.values() if _is_jagged(operand) else operand
                for operand in operands
            ]
        )
    results = op(*flat)
    return [
        _rebuilt(leaf, result, leaf.offsets(), leaf.lengths())
        if _is_jagged(leaf)
        else result
        for leaf, result in zip(leaves, results, strict=True)
    ]


def _row_pairs(
    leaf: torch.Tensor, index: BatchIndex, value: Any
) -> list[tuple[Any, Any]]:
    """Pair the rows of a nested leaf at an index with their parts of a value."""
    positions = torch.arange(leaf.size(0))[index]
    rows = leaf.unbind()
    targets = [rows[at] for at in positions.reshape(-1).tolist()]
    values = [value] * len(targets)
    is_row_each = isinstance(value, torch.Tensor) and bool(positions.dim())
    if is_row_each and (
        Ragged().holds(value) or (value.dim() and len(value) == len(targets))
    ):
        values = list(value.unbind(0))
    if len(values) != len(targets):
        raise RuntimeError(MSG_ROWS.format(len(values), len(targets)))
    return list(zip(targets, values, strict=True))


def _check_rows(leaf: torch.Tensor, index: BatchIndex, value: object) -> None:
    """Raise an error if a value does not fit the rows of a nested leaf at an index.

    Raises:
        RuntimeError: the number of rows differs, or the shape of a row differs.
    """
    for row, row_value in _row_pairs(leaf, index, value):
        if (
            isinstance(row_value, torch.Tensor)
            and row_value.dim()
            and row_value.shape != row.shape
        ):
            raise RuntimeError(MSG_ROW.format(list(row_value.shape), list(row.shape)))
