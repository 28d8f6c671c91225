"""Special cells: linked to other cells, or decoded when they are read.

Cells are the sequence of values behind non-tensor data. Views share their cells, so a
write to one view reaches every view. Cells in shared memory are in ``shared.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.containers.nontensor.stack import NonTensorStack

__all__ = ["EncodedCells", "LinkedCells", "RowCells"]

MSG_PART_OF_MEMBER = (
    "A member of this lazy stack holds one value for all of its elements, and a write "
    "changed only some of them. Write to the lazy stack at an index: stack[i] = ..."
)


class _Linked(list[Any]):
    """Cells that write to other cells. A pickle or copy of them is a plain list."""

    def __reduce_ex__(self, protocol: Any) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (list(self),)


class RowCells(_Linked):
    """The single cell of a row of a stack; a write sets all elements of the row."""

    def __init__(self, value: Any, row: NonTensorStack, places: list[int]) -> None:
        super().__init__([value])
        self._row = row
        self._row_places = places

    def __setitem__(self, at: Any, value: Any) -> None:
        """Set the value here and in the stack that holds the row."""
        self._row._put_cells(self._row_places, [value] * len(self._row_places))
        super().__setitem__(at, value)


class LinkedCells(_Linked):
    """Cells that hold the values of other collections. A write changes these, too.

    Args:
        values: the values.
        homes: the collection that owns each value, and the index of its cell there.
        is_of_rows: whether several values can have the same home, such as the elements
            of a member with one value. They must be written together.
    """

    def __init__(
        self, values: list[Any], homes: list[tuple[Any, int]], is_of_rows: bool = False
    ) -> None:
        super().__init__(values)
        self._homes = homes
        self.is_of_rows = is_of_rows

    def put(self, places: Sequence[int], new: Sequence[Any]) -> None:
        """Set values here and in the collections that own them.

        Raises:
            ValueError: a member with one value would get different values.
        """
        pairs = list(zip(places, new, strict=True))
        if self.is_of_rows:
            pairs = [pair for pair in pairs if pair[1] is not self[pair[0]]]
            self._check_whole(pairs)
        pair_of_home = {_home_key(self._homes[pair[0]]): pair for pair in pairs}
        for place, value in pair_of_home.values():
            member, at = self._homes[place]
            member._put_cells([at], [value])
        for place, value in pairs:
            super().__setitem__(place, value)

    def _check_whole(self, pairs: list[tuple[int, Any]]) -> None:
        counts = Counter(map(_home_key, self._homes))
        new_values: dict[tuple[int, int], list[Any]] = {}
        for place, value in pairs:
            new_values.setdefault(_home_key(self._homes[place]), []).append(value)
        for key, values in new_values.items():
            is_one = all(value is values[0] for value in values)
            if not is_one or len(values) != counts[key]:
                raise ValueError(MSG_PART_OF_MEMBER)

    def __setitem__(self, place: Any, value: Any) -> None:
        """Set the value here and in the collection that owns it."""
        self.put([place], [value])


def _home_key(home: tuple[Any, int]) -> tuple[int, int]:
    return id(home[0]), home[1]


class EncodedCells(Sequence[Any]):
    """Cells in a column of bytes, which are decoded when they are read.

    An index decodes only the values that it selects. Iterating over the cells, or
    writing one of them, decodes all and keeps the values.

    Args:
        column: the :class:`RaggedColumn` of the bytes.
        rows: the rows of the column that hold these cells.
    """

    is_elsewhere: ClassVar[bool] = False
    """True if the bytes are on another machine: a pickle then holds their address."""

    def __init__(self, column: Any, rows: range) -> None:
        self.column: Any = column
        self.rows: range = rows
        self._values: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        if self._values is not None:
            return self._values[place]
        if isinstance(place, slice):
            return self.column.rows(self.rows[place])
        return self.column.row(self.rows[place])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all())

    def __setitem__(self, place: int, value: Any) -> None:
        self._all()[place] = value

    def _all(self) -> list[Any]:
        if self._values is None:
            self._values = self.column.rows(self.rows)
        return self._values

    def __reduce_ex__(self, protocol: Any) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """Pickle as a plain list, because a copy has no file."""
        return list, (self._all(),)
