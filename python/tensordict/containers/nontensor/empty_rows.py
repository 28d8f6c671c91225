"""Stacks of values that have no elements, of rows that have a value nevertheless."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.containers.nontensor.data import NonTensorData, NonTensorDataBase
from tensordict.containers.nontensor.operations import has_tensors
from tensordict.containers.nontensor.positions import dims_taken
from tensordict.containers.nontensor.stack import NonTensorStack
from tensordict.storage import safe_pickle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["HollowStack", "as_hollow", "rows_of", "with_noted_rows"]


class Nothing:
    """The placeholder for the value of a row that has none."""

    def __reduce__(self) -> str:
        """Pickle as the one instance that there is."""
        return "NOTHING"


NOTHING = Nothing()


class HollowStack(NonTensorStack):
    """A :class:`NonTensorStack` without elements, whose rows have values.

    One value of batch size ``[0]`` is a value without elements; a stack of some of
    them has batch size ``[N, 0]``, and gives each of them back. They are the elements
    of another stack, which has a dim of length 1 for each of length 0. What is done to
    this one is done to that one.
    """

    _rows: NonTensorStack

    # Operations on the batch dims ------------------------------------------------------

    def _map_leaves(
        self, op: Any, args: Any, prefix: Any, names: Any, tail: int, lock: bool, k: int
    ) -> Any:
        result = super()._map_leaves(op, args, prefix, names, tail, lock, k)
        size = None if prefix is None else solid(prefix)
        solid_args = tuple(
            solid(value) if isinstance(value, torch.Size) else value for value in args
        )
        return self._with_rows(
            result,
            lambda: self._rows._map_leaves(op, solid_args, size, names, tail, lock, k),
        )

    def _split_leaves(
        self,
        op: Any,
        args: tuple[Any, ...],
        prefixes: list[torch.Size],
        names: Any,
        lock: bool,
        k: int,
    ) -> list[Any]:
        results = super()._split_leaves(op, args, prefixes, names, lock, k)
        sizes = [solid(prefix) for prefix in prefixes]
        if all(size == self._rows._batch_size for size in sizes):
            # Parts along a dim without elements are all of it.
            return [self._with_rows(part, self._rows._twin) for part in results]
        try:
            rows = self._rows._split_leaves(op, args, sizes, names, lock, k)
        except (IndexError, RuntimeError):
            return results
        return [
            self._with_rows(part, functools.partial(element_of, row, part._batch_size))
            for part, row in zip(results, rows, strict=True)
        ]

    def _emptied(self, result: Any, index: Any) -> Any:
        at = solid_index(self._batch_size, index)
        rows = self._rows
        if has_tensors(at):
            return self._with_rows(result, lambda: rows._index(at))
        size = result._batch_size
        return self._with_rows(result, lambda: element_of(rows._index(at), size))

    def _with_rows(self, result: Any, rows: Callable[[], Any]) -> Any:
        """``result`` with the rows that the same operation makes of those of this.

        An operation that rows of one element cannot take part in leaves their values.
        """
        if not isinstance(result, NonTensorStack) or result._batch_size.numel():
            return result
        try:
            made = rows()
        except (IndexError, RuntimeError):
            return result
        hollow = as_hollow(result, made)
        if self._is_locked and isinstance(hollow, NonTensorDataBase):
            hollow._lock_tree()
        return self._part(hollow)

    def maybe_to_stack(self) -> Any:
        """A stack of the same rows."""
        return self._index(...)

    def _sized(self, size: torch.Size, cells: list[Any]) -> Any:
        made = NonTensorStack._of_cells(cells, size, self._device)
        made._member_class = self._member_class
        return made

    def _chosen(self, condition: torch.Tensor, other: Any) -> Any:
        result = super()._chosen(condition, other)
        if not condition.numel() or not isinstance(other, NonTensorOps):
            return self._with_rows(result, self._rows._twin)
        theirs = rows_of(other)
        return self._with_rows(result, lambda: self._rows._chosen(condition, theirs))

    def _twin(self) -> Any:
        return as_hollow(super()._twin(), self._rows._twin())

    def _deep_twin(self) -> Any:
        return as_hollow(super()._deep_twin(), self._rows._deep_twin())

    def _take(self, other: Any) -> None:
        super()._take(other)
        rows = getattr(other, "_rows", None)
        if rows is None:
            self.__class__ = NonTensorStack  # type: ignore[assignment]
            del self._rows
        else:
            self._rows = rows

    # As a whole --------------------------------------------------------------------------

    def _noted_rows(self) -> list[list[Any]]:
        return [[] if value is NOTHING else [value] for value in self._rows._flat()]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a call of the class, and the state with the rows."""
        return NonTensorStack, (), self.__getstate__()

    # Writing ---------------------------------------------------------------------------

    def _write(self, index: Any, value: Any) -> None:
        super()._write(index, value)
        at = solid_index(self._batch_size, index)
        plan = _rust.index_plan(self._rows._batch_size, at)
        places = self._rows._index_tensor()
        if plan is not None:
            places = places[plan[0]]
        flat = places.flatten().tolist()
        if isinstance(value, HollowStack):
            new = list(value._rows._flat())
        elif isinstance(value, (list, NonTensorStack)):
            # One whose rows have no values.
            return
        else:
            value = value.data if isinstance(value, NonTensorDataBase) else value
            new = [value] * len(flat)
        if len(new) == len(flat):
            self._check_cells(*new)
            self._rows._put_cells(flat, new)
            if self._has_files():
                safe_pickle.rewrite(self, (), ())


HollowStack.__name__ = HollowStack.__qualname__ = "NonTensorStack"
HollowStack.__module__ = "tensordict.tensorclass"
HollowStack._public_class_text = NonTensorStack._public_class_text  # type: ignore[attr-defined]


def as_hollow(stack: Any, rows: Any) -> Any:
    """``stack``, which has no elements, with the values of ``rows``.

    One value, if that is what the rows are; ``stack`` itself where they are of another
    shape, or have no values.
    """
    size = stack._batch_size
    if rows._batch_size != solid(size) or len(rows._flat()) != rows._batch_size.numel():
        return stack
    if isinstance(rows, NonTensorDataBase):
        if rows.data is NOTHING:
            return stack
        one = type(rows)._of(rows._cells, rows._at, size, stack._device)
        names = stack._td_dim_names
        return one._named(None if names is None else list(names))
    if all(value is NOTHING for value in rows._flat()):
        return stack
    stack.__class__ = HollowStack
    stack._rows = rows
    stack._has_one_a_row = rows._has_one_a_row
    return stack


def element_of(part: Any, size: torch.Size) -> Any:
    """``part``, rows of a stack of ``size``, as one value where nothing else is left."""
    if any(size) or part._is_one:
        return part
    at = int(part._index_tensor())
    return part._member_class._of(part._cells, at, part._batch_size)


def rows_emptied(stack: NonTensorStack, result: Any, index: Any) -> Any:
    """``result``, rows of ``stack`` without elements, with the values that they had."""
    if 0 in stack._batch_size:
        return result
    plan = _rust.index_plan(stack._batch_size, index)
    if plan is None or -1 in plan[2]:
        return result
    dims = plan[2]
    if stack.stack_dim in dims and not result.batch_size[dims.index(stack.stack_dim)]:
        # There are no rows either.
        return result
    rows = stack._index(solid_index(stack._batch_size, index))
    return as_hollow(result, rows)


def with_noted_rows(stack: Any, noted: list[list[Any]]) -> Any:
    """``stack``, which has no elements, with the values that a save noted for its rows."""
    return _with_cells(stack, [each[0] if each else NOTHING for each in noted])


def with_value(stack: Any, value: Any) -> Any:
    """``stack``, which has no elements, with one value for all of its rows."""
    return _with_cells(stack, [value] * solid(stack._batch_size).numel())


def _with_cells(stack: Any, cells: list[Any]) -> Any:
    rows = NonTensorStack._of_cells(cells, solid(stack._batch_size))
    rows._member_class = stack._member_class
    rows.stack_dim = stack.stack_dim
    is_column = sum(map(bool, stack._batch_size)) == 1
    rows._has_one_a_row = stack._has_one_a_row or is_column
    return as_hollow(stack, rows)


def rows_of(member: Any) -> Any:
    """The values of a collection without elements, as one with dims of length 1."""
    size = solid(member.batch_size)
    if isinstance(member, HollowStack):
        return member._rows
    if isinstance(member, NonTensorDataBase):
        return member._of([member.data], 0, size)
    return NonTensorData(NOTHING, batch_size=size)


def solid(size: Sequence[int]) -> torch.Size:
    """``size`` with 1 for each dim without elements."""
    return torch.Size([max(length, 1) for length in size])


def solid_index(size: torch.Size, index: Any) -> Any:
    """The index into rows that selects what ``index`` does of a stack of ``size``.

    What selects nothing along a dim selects the one element of the rows there.
    """
    items = index if isinstance(index, tuple) else (index,)
    items = tuple(
        torch.as_tensor(item) if isinstance(item, list) else item for item in items
    )
    missing = len(size) - sum(
        dims_taken(item) for item in items if item is not Ellipsis
    )
    found: list[Any] = []
    dim = 0
    for item in items:
        if item is Ellipsis:
            found += [slice(None)] * missing
            dim += missing
            continue
        length = size[dim] if dim < len(size) else 0
        dim += dims_taken(item)
        if isinstance(item, slice) and not range(length)[item]:
            item = slice(0, 1)
        elif isinstance(item, torch.Tensor):
            if item.dtype is torch.bool and not item.any():
                item = torch.zeros(1, dtype=torch.long)
            elif not item.numel():
                item = torch.zeros(solid(item.shape), dtype=torch.long)
        found.append(item)
    return tuple(found)
