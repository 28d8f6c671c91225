"""Ragged stacks of values: rows of different lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.containers.lazy.construct import merged_batch_size
from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.containers.nontensor.convert import stack_of
from tensordict.containers.nontensor.positions import (
    leaf_call,
    moves_elements,
    on_real_tensors,
    out_of_bounds,
    taken,
)
from tensordict.containers.nontensor.stack import NonTensorStack
from tensordict.containers.nontensor.write_through import LinkedList
from tensordict.primitives.operations import (
    COPIES,
    MOVES_DIMS,
    REGROUPS,
    SPREADS,
    name_of,
    rows_moved,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RaggedStack", "cat_rows", "stack_rows"]

MSG_SHAPE = (
    "{} needs rows of one length, but the rows of this NonTensorStack differ: its batch "
    "size is {}. Split the rows with unbind({}) first."
)
MSG_VALUES = (
    "The values to write have the batch size {}, but the lengths of the target's rows "
    "differ: its batch size is {}."
)


class RaggedStack(NonTensorStack):
    """A :class:`NonTensorStack` of rows that differ in length: -1 in its batch size.

    The rows are kept separate, like the members of a lazy stack. Operations that move
    elements run on a lazy stack of the rows. The rows are parts of the same cells.
    """

    _rows: list[Any]
    """The rows along the stack dim, of which only the layouts are used."""

    @classmethod
    def _of_rows(cls, rows: list[Any], dim: int) -> Self:
        """Make the stack of rows that are parts of the same cells."""
        stack = cls.__new__(cls)
        stack._rows = rows
        stack._cells, stack._layout = rows[0]._cells, None
        stack._batch_size = merged_batch_size(rows, dim)
        devices = {row._device for row in rows}
        stack._device = devices.pop() if len(devices) == 1 else None
        stack._td_dim_names = None
        stack._member_class = rows[0]._member_class
        stack.stack_dim = dim
        return stack

    # The rows of a stack made from cells have the same length.
    _of_cells = NonTensorStack._of_cells  # type: ignore[assignment]

    def _row(self, at: int) -> Any:
        """Return the row at a position, as a view."""
        row = self._rows[at]._over(self._cells)
        row._device = self._device
        return self._part(row)

    def _apart(self) -> LazyStackedTensorDict:
        """Return a lazy stack of the rows."""
        rows = [self._row(at) for at in range(len(self._rows))]
        return LazyStackedTensorDict._of(rows, self.stack_dim)

    def _together(self, made: Any) -> Any:
        """Turn the result of the lazy stack of rows into a stack of values.

        Raises:
            RuntimeError: the operation needs rows of one length.
        """
        if not isinstance(made, NonTensorOps):
            if 0 in made.batch_size:
                size = [max(length, 0) for length in made.batch_size]
                return self._of_cells([], torch.Size(size), self._device)
            if not isinstance(made, LazyStackedTensorDict):
                raise self._refused("this operation")
            rows = [self._together(row) for row in made.tensordicts]
            made = rows[0]._stack_lazily(rows, made.stack_dim, None)
        return self._part(made)

    @property
    def tensordicts(self) -> list[Any]:  # type: ignore[override]
        """The rows, as new views."""
        return [self._row(at) for at in range(len(self._rows))]

    def _numbers(self) -> list[int]:
        return [number for row in self._rows for number in row._numbers()]

    def _flat(self) -> list[Any]:
        return taken(self._cells, self._numbers())

    def _over(self, cells: list[Any]) -> Self:
        return self._of_rows([row._over(cells) for row in self._rows], self.stack_dim)

    def _moved_into(self, cells: list[Any]) -> Self:
        rows = [row._moved_into(cells) for row in self.tensordicts]
        return self._of_rows(rows, self.stack_dim)

    def _take(self, other: Any) -> None:
        super()._take(other)
        self._rows = other._rows

    def _value(self) -> LinkedList:
        return LinkedList([row._value() for row in self._in_order()], td=self)

    def tolist(
        self, *, as_linked_list: bool = False, **kwargs: object
    ) -> LinkedList | list[Any]:
        """Return the values in nested lists: see :meth:`NonTensorStack.tolist`."""
        if as_linked_list:
            return self._value()
        return [row.tolist() for row in self._in_order()]

    def _in_order(self) -> Sequence[Any]:
        """Return the parts along the first dim, or the rows if it is ragged."""
        return self.unbind(self.stack_dim if self._batch_size[0] < 0 else 0)

    def maybe_to_stack(self) -> Any:
        """Return a stack of the same elements."""
        return self._index(...)

    # Moving elements ------------------------------------------------------------------

    def _map_leaves(
        self,
        op: Any,
        args: Any,
        prefix: Any,
        names: Any,
        tail: int,
        lock: bool,
        k: int,
    ) -> Any:
        if moves_elements(op):
            result = self._rearranged(op, args, prefix, names, tail, k)
        elif prefix is None or (name_of(op) == "_pad_leaf" and not any(args[0])):
            result = self._deep_twin() if op in COPIES else self._twin()
        else:
            raise self._refused(name_of(op))
        if lock and self._is_locked:
            _rust.lock_tree(result)
        return result

    @on_real_tensors
    def _rearranged(
        self, op: Any, args: Any, prefix: Any, names: Any, tail: int, k: int
    ) -> Any:
        size = self._batch_size
        k = len(size) if k < 0 else k
        if op in SPREADS and prefix[len(prefix) - k :] == size[:k]:
            result = self
            for length in reversed(prefix[: len(prefix) - k]):
                result = stack_rows([result] * length, 0)
            return result
        rows = None
        if not self.stack_dim and op not in MOVES_DIMS | REGROUPS:
            # Apply the operation to the row numbers, then select these rows.
            numbers = torch.arange(size[0])
            rows = (
                leaf_call(op, args, tail, k)(numbers)
                if k == 1
                else rows_moved(op, args, size[0])
            )
        if rows is not None:
            return self._index(rows)
        try:
            result = self._apart()._map_leaves(op, args, prefix, names, tail, False, k)
        except RuntimeError:
            raise self._refused("this operation") from None
        return self._together(result)

    def _split_leaves(
        self, op: Any, args: Any, prefixes: Any, names: Any, lock: bool, k: int
    ) -> list[Any]:
        parts = self._apart()._split_leaves(op, args, prefixes, names, lock, k)
        return [self._together(part) for part in parts]

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Return the parts along a dim: the stack dim, or a dim that is not ragged."""
        return tuple(self._together(part) for part in self._apart().unbind(dim))

    def reshape(self, *shape: Any, **kwargs: object) -> Any:
        """Copy all values into one dim; only the shape ``-1`` is supported."""
        if shape not in ((-1,), ([-1],), ((-1,),)):
            raise self._refused("reshape")
        flat = self._flat()
        return self._of_cells(flat, torch.Size([len(flat)]), self._device)

    def flatten(
        self, start_dim: int | None = None, end_dim: int | None = None, **kwargs: object
    ) -> Self:
        """Return all values in one dim."""
        ndim = len(self._batch_size)
        if (start_dim or 0) % ndim or (end_dim or -1) % ndim != ndim - 1:
            raise self._refused("flatten")
        return self.reshape(-1)

    def _index(self, index: Any) -> Any:
        count = len(self._rows)
        if type(index) is int and not self.stack_dim:
            if not -count <= index < count:
                raise out_of_bounds([index], count)
            return self._row(index)
        return self._together(self._apart()._index(index))

    # Writing --------------------------------------------------------------------------

    def _check_item(self, size: torch.Size, value: object, at: object = ...) -> None:
        self._check_source(value)
        if not isinstance(value, NonTensorOps) or not value._is_one:
            self._content_at(at, value)

    def _content_at(self, index: object, value: object) -> tuple[list[int], list[Any]]:
        """Return the cells that an index selects, and the value for each of them."""
        # A stack of the same layout whose values are the cell indices.
        places: Any = self._over(list(range(len(self._cells))))
        part = places if index == () else places._index(index)
        flat = part._flat()
        if isinstance(value, list):
            value = NonTensorStack.from_list(value)
        if not isinstance(value, NonTensorOps):
            return flat, [value] * len(flat)
        if value._is_one:
            return flat, [value.data] * len(flat)
        if _lengths(value) == _lengths(part):
            return flat, value._flat()
        if part.batch_size[1:] and value.batch_size == part.batch_size[:1]:
            # There is one value for each row.
            pairs = zip(value._flat(), part.unbind(0), strict=True)
            return flat, [row_value for row_value, row in pairs for _ in row._flat()]
        raise RuntimeError(MSG_VALUES.format(value.batch_size, part.batch_size))

    @on_real_tensors
    def _write(self, index: object, value: object) -> None:
        self._check_source(value)
        self._put_cells(*self._content_at(index, value))

    def _copied(self, value: object) -> Any:
        if isinstance(value, list) or (
            isinstance(value, NonTensorOps) and not value._is_one
        ):
            self._content_at((), value)
            return value
        return super()._copied(value)

    def _chosen(self, condition: torch.Tensor, other: object) -> Self | RaggedStack:
        apart = self._apart()
        parts = apart._parts_of(other) if isinstance(other, NonTensorOps) else None
        if parts is None:
            return self._twin()
        masks = apart._tensor_parts(condition)
        rows = [
            row._chosen(mask, part) if mask.dim() else (row if mask else part)
            for row, mask, part in zip(apart.tensordicts, masks, parts, strict=True)
        ]
        return stack_rows(rows, self.stack_dim)

    def _check_row_size(self, found: torch.Size) -> None:
        if len(found) != len(self._batch_size) - 1:
            super()._check_row_size(found)

    # The stack as a whole -------------------------------------------------------------

    def _take_state(self, fields: dict[str, Any], is_one: bool) -> None:
        if is_one:
            super()._take_state(fields, is_one)
            return
        for row, values in zip(self.tensordicts, fields["data"], strict=True):
            row._take_state({"data": values}, is_one)

    def _fitted(self, size: torch.Size) -> Self | None:
        size = torch.Size(size)
        return self._twin() if self._batch_size[: len(size)] == size else None

    def _twin(self) -> Self:
        twin = self._moved_into([])
        names = self._td_dim_names
        return twin._named(None if names is None else list(names))

    def _refused(self, what: str) -> RuntimeError:
        text = MSG_SHAPE.format(what, self._batch_size, self.stack_dim)
        return RuntimeError(text)


def stack_rows(members: Sequence[Any], dim: int) -> RaggedStack:
    """Stack values along a new dim, of the same number of dims but other lengths."""
    cells: list[Any] = []
    stacks = [member._to_stack() if member._is_one else member for member in members]
    return RaggedStack._of_rows([member._moved_into(cells) for member in stacks], dim)


def cat_rows(members: Sequence[Any], dim: int) -> NonTensorStack:
    """Concatenate values that differ in shape along ``dim``."""
    at = next(
        (member.stack_dim for member in members if isinstance(member, RaggedStack)), 0
    )
    rows = [member.unbind(at) for member in members]
    if dim == at:
        return stack_of([row for member_rows in rows for row in member_rows], at)
    inner = dim - (dim > at)
    joined = [parts[0]._cat_all(parts, inner) for parts in zip(*rows, strict=True)]
    return stack_of(joined, at)


def _lengths(stack: Any) -> Any:
    """Return the batch size, or a list of the rows' batch sizes if it is ragged."""
    if -1 not in stack.batch_size:
        return stack.batch_size
    return [_lengths(row) for row in stack.tensordicts]


RaggedStack.__name__ = RaggedStack.__qualname__ = "NonTensorStack"
RaggedStack.__module__ = "tensordict.tensorclass"
RaggedStack._public_class_text = NonTensorStack._public_class_text  # type: ignore[attr-defined]
