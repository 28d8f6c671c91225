"""The dim along which values are stacked, kept through operations on the batch dims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.containers.nontensor.cells import RowCells
from tensordict.containers.nontensor.positions import (
    dim_of_parts,
    dims_taken,
    joined_dim,
    selects_one,
)
from tensordict.primitives.operations import REGROUPS, RESTACKS

if TYPE_CHECKING:
    from tensordict.containers.nontensor.data import NonTensorDataBase

__all__ = ["StackDims"]


class StackDims(NonTensorOps):
    """The dim along which a :class:`NonTensorStack` is a stack."""

    if TYPE_CHECKING:
        stack_dim: int
        _has_one_a_row: bool
        _member_class: type[NonTensorDataBase]

        def _numbers(self) -> list[int]: ...

    def _follow(self, source: Any, dims: tuple[int, ...] | None) -> None:
        is_stack = isinstance(source, StackDims)
        dim = source.stack_dim if is_stack else 0
        if dims is None:
            if len(self._batch_size) != len(source.batch_size):
                return
            self.stack_dim = dim
        elif dim in dims:
            self.stack_dim = dims.index(dim)
        else:
            # One row of the source: it is stacked along the next of its dims.
            kept = [each for each in dims if each >= 0]
            if kept and self._batch_size:
                self.stack_dim = dims.index(min(kept))
            return
        if is_stack and source._has_one_a_row:
            self._has_one_a_row = True

    def _as_row(self, result: object, dims: tuple[int, ...]) -> Any:
        is_row = self.stack_dim not in dims and -1 not in dims
        return self._row(result) if is_row else result

    def _part_of_row(self, result: object, at: object) -> Any:
        return self._row(result) if selects_one(at, self.stack_dim) else result

    def _row(self, result: Any) -> Any:
        """``result``, elements of one row, as one value if a row has one."""
        if not self._has_one_a_row:
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

    def _follow_block(self, source: object, index: object) -> None:
        if not isinstance(source, StackDims) or not self._batch_size:
            return
        at = front = 0
        stack_dim = source.stack_dim
        if selects_one(index, stack_dim):
            # One row of the source, which is stacked along the next of its dims.
            dims = range(len(source.batch_size))
            stack_dim = next(dim for dim in dims if not selects_one(index, dim))
        for item in index if isinstance(index, tuple) else (index,):
            is_tensor = isinstance(item, torch.Tensor)
            if is_tensor and at <= stack_dim < at + dims_taken(item):
                # The first of the dims that the tensor makes, or that without elements.
                lead = item.shape.index(0) if 0 in item.shape else 0
                self.stack_dim = min(front + lead, len(self._batch_size) - 1)
                if source._has_one_a_row and len(self._batch_size) > 1:
                    self._has_one_a_row = True
                return
            at += dims_taken(item)
            front += item is None or isinstance(item, slice)

    def _with_new_dims(self, result: Any, dims: tuple[int, ...], at: object) -> Any:
        kept = [dim for dim in dims if dim >= 0]
        if not kept and isinstance(result, StackDims) and result._flat():
            # One element with new dims is one value for all that they count.
            one = self._member_class(
                result._flat()[0], batch_size=result._batch_size, device=self._device
            )
            names = result._td_dim_names
            one._named(None if names is None else list(names))
            if self._is_locked:
                one._lock_tree()
            return one
        if len(kept) == 1 and len(dims) > 1:
            result._has_one_a_row = True
        return self._part_of_row(result, at)

    def _settle(self, name: str, source: Any, keeps_dims: bool) -> None:
        own, size = self._batch_size, source.batch_size
        if 0 in own and name in REGROUPS:
            # Without elements there is nothing to stack anew.
            self.stack_dim = 0
        elif name == "broadcast_to" and isinstance(source, StackDims):
            self.stack_dim = source.stack_dim + len(own) - len(size)
        elif name in RESTACKS and len(own) == len(size):
            is_padded = name == "_pad_leaf"
            self.stack_dim = own.index(0) if 0 in own and not is_padded else 0
            # Rows of what was added are one value, and those of nothing else.
            was_of_rows = getattr(source, "_has_one_a_row", source._is_one)
            was_first = getattr(source, "stack_dim", 0) == 0
            self._has_one_a_row = (
                is_padded and was_of_rows and was_first and len(own) > 1
            )
        elif name == "tile" and 0 in own and len(own) == len(size):
            self.stack_dim = own.index(0)
        elif name == "reshape" and not keeps_dims:
            find = dim_of_parts if len(own) > len(size) else joined_dim
            self.stack_dim = find(size, own) or 0
            self._has_one_a_row = False
        elif name in ("unflatten", "view") and len(own) > len(size):
            at = dim_of_parts(size, own)
            self.stack_dim = self.stack_dim if at is None else at
        elif name in ("flatten", "view") and len(own) < len(size):
            joined = joined_dim(size, own)
            self.stack_dim = len(own) - 1 if joined is None else joined
