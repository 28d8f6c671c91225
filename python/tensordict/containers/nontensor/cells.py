"""Cells that are no plain list: linked to other cells, or decoded when they are read.

The cells of a column are a sequence of values. Views of a column share its cells, and what
is written to them reaches every view. Cells in shared memory are in ``shared.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from tensordict.containers.nontensor.stack import NonTensorStack

__all__ = ["EncodedCells", "LinkedCells", "RowCells"]

MSG_PART_OF_MEMBER = (
    "A member of this lazy stack has one value for all of its elements, and some of them "
    "were given another one. Write to the lazy stack at an index: stack[i] = ..."
)


class _Linked(list[Any]):
    """Cells that write to others. A pickle or copy of them is a plain list."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


class RowCells(_Linked):
    """The one cell of a row of a stack, whose elements take what is written to it."""

    def __init__(self, value: Any, row: NonTensorStack, places: list[int]) -> None:
        super().__init__([value])
        self._row = row
        self._row_places = places

    def __setitem__(self, at: Any, value: Any) -> None:
        """Set the value here and in the stack that the row is of."""
        self._row._put_cells(self._row_places, [value] * len(self._row_places))
        super().__setitem__(at, value)


class LinkedCells(_Linked):
    """Cells whose values are those of other collections, which take what is written.

    Args:
        values: the values.
        homes: for each of them the collection that has it, and its place there.
        is_of_rows: whether several can have one home, as elements of a member with one
            value do. These are written together, or not at all.
    """

    def __init__(
        self, values: list[Any], homes: list[tuple[Any, int]], is_of_rows: bool = False
    ) -> None:
        super().__init__(values)
        self._homes = homes
        self.is_of_rows = is_of_rows

    def put(self, places: Sequence[int], new: Sequence[Any]) -> None:
        """Set values here and where they are from.

        Raises:
            ValueError: a member that has one value would have several.
        """
        pairs = list(zip(places, new, strict=True))
        if self.is_of_rows:
            pairs = [pair for pair in pairs if pair[1] is not self[pair[0]]]
            self._check_whole(pairs)
        given = {_home_key(self._homes[pair[0]]): pair for pair in pairs}
        for place, value in given.values():
            member, at = self._homes[place]
            member._put_cells([at], [value])
        for place, value in pairs:
            super().__setitem__(place, value)

    def _check_whole(self, pairs: list[tuple[int, Any]]) -> None:
        counts = Counter(map(_home_key, self._homes))
        given: dict[tuple[int, int], list[Any]] = {}
        for place, value in pairs:
            given.setdefault(_home_key(self._homes[place]), []).append(value)
        for key, values in given.items():
            is_one = all(value is values[0] for value in values)
            if not is_one or len(values) != counts[key]:
                raise ValueError(MSG_PART_OF_MEMBER)

    def __setitem__(self, place: Any, value: Any) -> None:
        """Set the value here and where it is from."""
        self.put([place], [value])


def _home_key(home: tuple[Any, int]) -> tuple[int, int]:
    return id(home[0]), home[1]


class EncodedCells(Sequence[Any]):
    """Cells in a column of bytes, decoded when somebody looks at them.

    An index decodes what it takes. Whoever goes through all of them, or writes one, has
    all decoded and kept.

    Args:
        column: the :class:`RaggedColumn` of the bytes.
        rows: which of its rows these are.
    """

    is_elsewhere: ClassVar[bool] = False
    """True if the bytes are not on this machine: a pickle tells where they are."""

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

    def __iter__(self) -> Any:
        return iter(self._all())

    def __setitem__(self, place: int, value: Any) -> None:
        self._all()[place] = value

    def _all(self) -> list[Any]:
        if self._values is None:
            self._values = self.column.rows(self.rows)
        return self._values

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a plain list: a copy has no file."""
        return list, (self._all(),)
