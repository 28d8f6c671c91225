"""Values in a column of bytes, decoded when somebody looks at them."""

from __future__ import annotations

from typing import Any, Self

import torch

from tensordict.containers.nontensor.data import NonTensorData
from tensordict.containers.nontensor.stack import NonTensorStack

__all__ = ["TextColumn"]


class _Decoded:
    """The cells of a column, decoded when they are read for the first time."""

    def __get__(self, column: Any, cls: Any = None) -> Any:
        if column is None:
            return self
        made = column._column.rows(column._rows)
        column.__dict__["_cells"] = made
        return made


class TextColumn(NonTensorStack):
    """A :class:`NonTensorStack` whose values are decoded when they are read.

    An index decodes the values that it takes, everything else all of them.
    """

    _cells: Any = _Decoded()
    _column: Any
    _rows: range

    @classmethod
    def of_column(cls, column: Any, rows: range) -> Self:
        """The values of some rows of a column."""
        made = cls.__new__(cls)
        made._column = column
        made._rows = rows
        made._layout = None
        made._batch_size = torch.Size([len(rows)])
        made._device = torch.device("cpu")
        made._td_dim_names = None
        return made

    @classmethod
    def _of_cells(
        cls, cells: list[Any], batch_size: torch.Size, device: Any = None
    ) -> Any:
        # What is made of it has values of its own.
        return NonTensorStack._of_cells(cells, batch_size, device)

    @property
    def _is_encoded(self) -> bool:
        return "_cells" not in self.__dict__

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = NonTensorStack._of_cells(
            list(self._cells), self._batch_size, self._device
        )
        return plain.__reduce_ex__(protocol)

    def _index(self, index: Any) -> Any:
        if not self._is_encoded or self._is_locked:
            return super()._index(index)
        count = len(self._rows)
        if type(index) is int and -count <= index < count:
            value = self._column.row(self._rows[index])
            return NonTensorData(value, device=self._device)
        if isinstance(index, slice):
            return TextColumn.of_column(self._column, self._rows[index])
        if isinstance(index, torch.Tensor) and index.ndim == 1:
            if index.dtype is torch.bool and len(index) == count:
                index = index.nonzero()[:, 0]
            if index.dtype in (torch.int64, torch.int32):
                index = index.tolist()
        if isinstance(index, (list, range)) and all(
            type(at) is int and -count <= at < count for at in index
        ):
            values = [self._column.row(self._rows[at]) for at in index]
            size = torch.Size([len(values)])
            return NonTensorStack._of_cells(values, size, self._device)
        return super()._index(index)


# It is the same to whoever prints or saves it.
TextColumn.__name__ = TextColumn.__qualname__ = NonTensorStack.__qualname__
TextColumn.__module__ = NonTensorStack.__module__
TextColumn._public_class_text = NonTensorStack.__dict__["_public_class_text"]  # type: ignore[attr-defined]
