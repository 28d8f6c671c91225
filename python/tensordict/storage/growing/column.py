"""The column of one entry: its values, and a table of shapes if the shapes differ."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch

from tensordict.storage.growing.file import GrowingFile
from tensordict.storage.growing.rows import Ragged, Values, bytes_of
from tensordict.storage.growing.text import (
    VALUES,
    empty_shape,
    encoded,
    encoding_of,
)

__all__ = ["Column", "Fitted"]

UNDECIDED: Final = "is_undecided"
"""The field of a column whose rows are all empty lists. Later rows decide the dtype, or that the
column holds non-tensor data."""

MSG_MISFIT = "Cannot append rows of dtype {} and shape {} to the entry {!r}, of dtype {} and shape {}."
MSG_DTYPE_OF_ROWS = (
    "Cannot append rows of dtype {0} and shape {1} to the entry {2!r}, whose rows have "
    "dtype {3} and {4}. Convert the rows with .to({3})."
)
MSG_DIMS_OF_ROWS = (
    "Cannot append rows of dtype {} and shape {} to the entry {!r}, whose rows have dtype "
    "{} and {}: rows may differ in their sizes, but not in the number of their dimensions."
)
MSG_KIND = "Cannot append {} to the entry {!r}, which is {}."
MSG_DTYPE = "The entry {!r} has dtype {}, which cannot be loaded from a file."


class Fitted(NamedTuple):
    """Rows in the form in which a column stores them."""

    data: Any
    """The bytes of the rows."""
    table: Any = None
    """The shapes of the rows, if the column has a table of shapes."""
    entry: dict[str, Any] | None = None
    """The new metadata of the column, if these rows decide its dtype or encoding."""


class Column:
    """An entry whose rows are in a file.

    Args:
        key: the key, for messages.
        entry: the metadata of the entry. The column changes it as it grows.
        stem: the path of its file without ``.memmap``.
        num_rows: the number of published rows.
        stays_open: whether to keep its files open.
        has_room: whether to reserve disk space for later rows.

    Raises:
        RuntimeError: its files are shorter than the metadata says.
        ValueError: the dtype in the metadata is unknown.
    """

    def __init__(
        self,
        key: tuple[str, ...],
        entry: dict[str, Any],
        stem: str,
        num_rows: int,
        stays_open: bool,
        has_room: bool = True,
    ) -> None:
        self.key: str | tuple[str, ...] = key[0] if len(key) == 1 else key
        self.stem = stem
        self.num_rows: int = num_rows
        self._how = stays_open, has_room
        self.table: GrowingFile | None = None
        self.became_ragged: bool = False
        self.entry = entry
        self._describe()
        if entry.get("is_nested"):
            self.table = self._table_file(num_rows * 8 * self.num_dims)
            self.num_items: int = self._items_of_table(num_rows)
        else:
            self.num_items = num_rows * self._items_a_row()
        size = self.num_items * self.dtype.itemsize
        self.values: GrowingFile = GrowingFile(f"{stem}.memmap", size, *self._how)
        for file in self.files():
            file.check_size()

    def _describe(self) -> None:
        """Read dtype, encoding and number of dimensions from the metadata of the entry."""
        entry = self.entry
        self.dtype: torch.dtype = getattr(
            torch, str(entry["dtype"]).removeprefix("torch."), None
        )  # type: ignore[assignment]
        if self.dtype is None:
            raise ValueError(MSG_DTYPE.format(self.key, entry["dtype"]))
        self.encoding: str | None = entry.get("encoding")
        self.is_undecided: bool = entry.get(UNDECIDED, False)
        shape = entry["shape"]
        self.num_dims: int = shape[1] if entry.get("is_nested") else len(shape) - 1

    @classmethod
    def entry_of(cls, data: Any) -> dict[str, Any]:
        """Return the metadata of a new column for such rows."""
        entry: dict[str, Any] = {"device": "cpu", "shape": [0]}
        if _are_empty(data):
            entry |= {"shape": [0, 1], "dtype": "torch.float32", "is_nested": True}
            return entry | {UNDECIDED: True}
        if isinstance(data, Values):
            entry |= {"shape": [0, 1], "dtype": "torch.uint8", "is_nested": True}
            # The published package ignores this field.
            entry["encoding"] = encoding_of(data.items)
            return entry
        if isinstance(data, Ragged):
            dtype = str(data.values.dtype)
            return entry | {
                "shape": [0, data.table.shape[1]],
                "dtype": dtype,
                "is_nested": True,
            }
        shape = [0, *data.shape[1:]]
        return entry | {"shape": shape, "dtype": str(data.dtype), "is_nested": False}

    @property
    def is_ragged(self) -> bool:
        """Whether the rows may differ in shape."""
        return self.table is not None

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of each row, if all rows have the same shape."""
        return tuple(self.entry["shape"][1:])

    def _items_a_row(self) -> int:
        count = 1
        for size in self.row_shape:
            count *= size
        return count

    # Checking ---------------------------------------------------------------------------

    def fitted(self, data: Any, is_strict: bool) -> Fitted:
        """Return rows in the form in which :meth:`add` stores them. Nothing is added yet.

        Args:
            data: a tensor ``[N, ...]``, :class:`Ragged` or :class:`Values`.
            is_strict: whether rows of another shape are an error. Otherwise they make the
                column ragged.

        Raises:
            ValueError: the rows do not fit.
            TypeError: the column cannot hold a value.
        """
        if self.is_undecided and not _are_empty(data):
            return self._deciding(data)
        if self.encoding is not None:
            if not isinstance(data, Values):
                raise ValueError(
                    MSG_KIND.format("tensors", self.key, "a column of values")
                )
            return _fitted_values(data, self.encoding, self.key)
        if isinstance(data, Values):
            if not self.num_dims or not _are_empty(data):
                raise ValueError(
                    MSG_KIND.format("non-tensor data", self.key, "a tensor")
                )
            data = self._without_items(len(data))
        is_ragged = isinstance(data, Ragged)
        values = data.values if isinstance(data, Ragged) else data
        num_dims = data.table.shape[1] if isinstance(data, Ragged) else data.ndim - 1
        is_plain = not self.is_ragged and not is_ragged and values.dtype == self.dtype
        if is_plain and tuple(data.shape[1:]) == self.row_shape:
            return Fitted(bytes_of(data))
        if is_strict and not self.is_ragged and not is_ragged:
            shape = (self.num_rows, *self.row_shape)
            found = data.dtype, tuple(data.shape)
            raise ValueError(MSG_MISFIT.format(*found, self.key, self.dtype, shape))
        if values.dtype != self.dtype or num_dims != self.num_dims:
            raise self._misfit(data)
        return Fitted(bytes_of(values), _table_of(data))

    def _deciding(self, data: Any) -> Fitted:
        """Return the first rows that are not empty lists, with the metadata that they decide."""
        if isinstance(data, Values):
            # The earlier rows, empty lists, have no bytes in the file.
            entry: dict[str, Any] = {"dtype": "torch.uint8", "encoding": VALUES}
            fitted, num_dims = _fitted_values(data, VALUES, self.key), 1
        else:
            is_ragged = isinstance(data, Ragged)
            values = data.values if is_ragged else data
            num_dims = data.table.shape[1] if is_ragged else data.ndim - 1
            if not num_dims:
                shown = "numbers", self.key, "a column of lists"
                raise ValueError(MSG_KIND.format(*shown))
            entry = {"dtype": str(values.dtype)}
            fitted = Fitted(bytes_of(values), _table_of(data))
        entry |= {"device": "cpu", "shape": [0, num_dims], "is_nested": True}
        return fitted._replace(entry=entry)

    def _without_items(self, count: int) -> Ragged:
        """Return empty lists as rows of this column."""
        shape = [0] * self.num_dims if self.is_ragged else [0, *self.row_shape[1:]]
        table = torch.tensor(shape, dtype=torch.int64).expand(count, -1)
        return Ragged(torch.empty(0, dtype=self.dtype), table)

    def _misfit(self, data: Any) -> ValueError:
        if isinstance(data, Ragged):
            shapes = data.table.unique(dim=0).tolist()
            dtype = data.values.dtype
            shape: Any = tuple(shapes[0]) if len(shapes) == 1 else shapes[:3]
        else:
            dtype, shape = data.dtype, tuple(data.shape[1:])
        expected = (
            f"{self.num_dims} dimensions"
            if self.is_ragged
            else f"shape {self.row_shape}"
        )
        message = MSG_DTYPE_OF_ROWS if dtype != self.dtype else MSG_DIMS_OF_ROWS
        return ValueError(message.format(dtype, shape, self.key, self.dtype, expected))

    # Adding -----------------------------------------------------------------------------

    def add(self, fitted: Fitted, num_rows: int) -> None:
        """Add rows in the form of :meth:`fitted`."""
        data, table, entry = fitted
        if entry is not None:
            self._decide(entry)
        if table is not None and self.table is None:
            self._become_ragged()
        self.values.add(data)
        if self.table is not None:
            self.table.add(np.ascontiguousarray(table))
        self.num_rows += num_rows
        self.num_items = self.values.size // self.dtype.itemsize

    # Taking rows over -------------------------------------------------------------------

    def holds_rows_of(self, other: Column) -> bool:
        """Return whether the bytes of another column could follow the bytes of this one."""
        is_same = self.dtype == other.dtype and self.encoding == other.encoding
        is_same &= self.num_dims == other.num_dims
        return is_same and not self.is_undecided and not other.is_undecided

    def make_room_for(self, other: Column) -> None:
        """Create a table of shapes, if the rows of another column have another shape."""
        is_same = not other.is_ragged and other.row_shape == self.row_shape
        if self.table is None and not is_same:
            self._become_ragged()

    def count_rows_of(self, other: Column) -> None:
        """Count the rows of another column, whose bytes now follow the bytes of this one."""
        if self.table is not None and other.table is None:
            row = np.array(other.row_shape, dtype=np.int64)
            self.table.add(np.tile(row, (other.num_rows, 1)))
        self.num_rows += other.num_rows
        self.num_items = self.values.size // self.dtype.itemsize

    def _decide(self, entry: dict[str, Any]) -> None:
        """Replace the metadata of a column of empty lists by the metadata that new rows decide."""
        num_dims = self.num_dims
        self.entry.clear()
        self.entry.update(entry)
        self._describe()
        if self.table is not None:
            # Every size of an empty row is 0, for any number of dimensions.
            self.table.add(bytes(self.num_rows * 8 * (self.num_dims - num_dims)))

    def _become_ragged(self) -> None:
        """Create a table of shapes for the rows so far, which all have one shape."""
        row = np.array(self.row_shape, dtype=np.int64)
        self.table = self._table_file(0)
        self.table.add(np.tile(row, (self.num_rows, 1)))
        self.became_ragged = True
        self.entry["is_nested"] = True
        self.entry["shape"] = [self.num_rows, self.num_dims]

    def undecided_entry(self) -> dict[str, Any] | None:
        """Return a copy of the metadata, if all rows are empty lists; else None."""
        return dict(self.entry) if self.is_undecided else None

    def cut_to(
        self, num_rows: int, num_items: int, entry: dict[str, Any] | None
    ) -> None:
        """Remove the rows behind ``num_rows``, and restore the metadata ``entry``."""
        if entry is not None:
            self.entry.clear()
            self.entry.update(entry)
            self._describe()
        self.num_rows, self.num_items = num_rows, num_items
        self.values.cut_to(num_items * self.dtype.itemsize)
        if self.table is not None:
            self.table.cut_to(num_rows * 8 * self.num_dims)

    def reserve(self, num_rows: int) -> None:
        """Reserve disk space for ``num_rows`` rows in all, as far as their size is known."""
        if self.table is not None:
            self.table.reserve(num_rows * 8 * self.num_dims)
        else:
            self.values.reserve(num_rows * self._items_a_row() * self.dtype.itemsize)

    def files(self) -> list[GrowingFile]:
        """Return the file of values, and the file of shapes if there is one."""
        return [self.values] if self.table is None else [self.values, self.table]

    def _table_file(self, size: int) -> GrowingFile:
        return GrowingFile(f"{self.stem}.shape.memmap", size, *self._how)

    def _items_of_table(self, num_rows: int) -> int:
        count = num_rows * self.num_dims
        if not num_rows:
            return 0
        if not self.num_dims:
            return num_rows
        table = np.fromfile(f"{self.stem}.shape.memmap", np.int64, count)
        if len(table) < count:
            msg = f"{self.stem}.shape.memmap is shorter than {num_rows} rows need."
            raise RuntimeError(msg)
        return int(table.reshape(num_rows, self.num_dims).prod(1).sum())


def _are_empty(data: object) -> bool:
    """Return whether all rows are empty lists, which have no dtype."""
    return isinstance(data, Values) and all(
        empty_shape(item) == [0] for item in data.items
    )


def _fitted_values(data: Values, encoding: str, key: object) -> Fitted:
    texts = encoded(data.items, encoding, key)
    table = np.fromiter(map(len, texts), np.int64, len(texts))[:, None]
    return Fitted(b"".join(texts), table)


def _table_of(data: Any) -> Any:
    """Return the shapes of rows: int64 ``[N, dims]``."""
    if isinstance(data, Ragged):
        return data.table.cpu().contiguous().numpy()
    row = np.array(data.shape[1:], dtype=np.int64)
    return np.broadcast_to(row, (data.shape[0], len(row)))
