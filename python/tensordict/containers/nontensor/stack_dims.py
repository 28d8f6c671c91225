"""The dim along which values are stacked, kept where dims of the result are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.containers.nontensor.cells import RowCells
from tensordict.containers.nontensor.positions import selects_one

if TYPE_CHECKING:
    from tensordict.containers.nontensor.data import NonTensorDataBase

__all__ = ["StackDims"]


class StackDims(NonTensorOps):
    """The dim along which a :class:`NonTensorStack` is a stack.

    It is 0 wherever an operation regroups dims.
    """

    if TYPE_CHECKING:
        stack_dim: int
        _has_one_a_row: bool
        _member_class: type[NonTensorDataBase]

        def _numbers(self) -> list[int]: ...

    def _follow(self, source: Any, dims: tuple[int, ...] | None) -> None:
        if dims is None:
            dims = tuple(range(len(source.batch_size)))
        dim = getattr(source, "stack_dim", 0)
        if dim not in dims:
            # The rows that a tensor selects, if there is one.
            dim = -1
        if dim in dims and len(dims) == len(self._batch_size):
            self.stack_dim = dims.index(dim)
            self._has_one_a_row = getattr(source, "_has_one_a_row", False)

    def _as_row(self, result: object, dims: tuple[int, ...]) -> Any:
        return result if self.stack_dim in dims else self._row_of(result)

    def _part_of_row(self, result: object, at: object) -> Any:
        if not selects_one(at, self.stack_dim):
            return result
        # One element with new dims is one value, too.
        dims = range(len(self._batch_size))
        return self._row_of(result, all(selects_one(at, dim) for dim in dims))

    def _row_of(self, result: Any, is_element: bool = False) -> Any:
        """``result``, elements of one row, as one value if a row has one."""
        if not (self._has_one_a_row or is_element):
            return result
        flat = result._flat() if isinstance(result, StackDims) else ()
        if not flat or any(value is not flat[0] for value in flat):
            return result
        cells: Any = RowCells(flat[0], result, result._numbers())
        row = self._member_class._of(cells, 0, result._batch_size, self._device)
        if self._is_locked:
            row._lock_tree()
        names = result._td_dim_names
        return row._named(None if names is None else list(names))
