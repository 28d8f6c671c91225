"""A row of a stack of values that is one value, and is written as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict.containers.nontensor.stack import NonTensorStack

__all__ = ["RowCells"]


class RowCells(list[Any]):
    """The one cell of a row of a stack, whose elements take what is written to it."""

    def __init__(self, value: Any, row: NonTensorStack, places: list[int]) -> None:
        super().__init__([value])
        self._row = row
        self._row_places = places

    def __setitem__(self, at: Any, value: Any) -> None:
        """Set the value here and in the stack that the row is of."""
        self._row._put_cells(self._row_places, [value] * len(self._row_places))
        super().__setitem__(at, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a plain list: a copy belongs to no stack."""
        return list, (list(self),)
