"""The column of one entry: its values, and its table of shapes if those differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensordict.storage.growing.file import GrowingFile
from tensordict.storage.growing.rows import Ragged, Values, bytes_of
from tensordict.storage.growing.text import encoded, encoding_of

__all__ = ["Column"]

MSG_MISFIT = "Cannot append rows of dtype {} and shape {} to the entry {!r}, of dtype {} and shape {}."
MSG_RAGGED = "Cannot append rows of dtype {} and {} dims to the entry {!r}, of dtype {} and {} dims."
MSG_KIND = "Cannot append {} to the entry {!r}, which is {}."
MSG_DTYPE = "The entry {!r} is of dtype {}, which has no file that can be loaded."


class Column:
    """An entry whose rows are in a file.

    Args:
        key: its path, for messages.
        entry: what the metadata says of it. It is changed as the column grows.
        stem: the path of its file without ``.memmap``.
        num_rows: how many rows are published.
        stays_open: whether its files are kept open.
        has_room: whether room is set aside for rows to come.

    Raises:
        RuntimeError: its files are shorter than the metadata says.
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
        self.entry = entry
        self.stem = stem
        self.num_rows: int = num_rows
        self._how = stays_open, has_room
        self.dtype: torch.dtype = getattr(
            torch, str(entry["dtype"]).removeprefix("torch."), None
        )  # type: ignore[assignment]
        if self.dtype is None:
            raise ValueError(MSG_DTYPE.format(self.key, entry["dtype"]))
        self.encoding: str | None = entry.get("encoding")
        self.table: GrowingFile | None = None
        self.became_ragged: bool = False
        if entry.get("is_nested"):
            self.num_dims: int = entry["shape"][1]
            self.table = self._table_file(num_rows * 8 * self.num_dims)
            self.num_items: int = self._items_of_table(num_rows)
        else:
            self.num_dims = len(entry["shape"]) - 1
            self.num_items = num_rows * self._items_a_row()
        size = self.num_items * self.dtype.itemsize
        self.values: GrowingFile = GrowingFile(f"{stem}.memmap", size, *self._how)
        for file in self.files():
            file.check_size()

    @classmethod
    def entry_of(cls, data: Any) -> dict[str, Any]:
        """Describe a new column for such rows, for the metadata."""
        entry: dict[str, Any] = {"device": "cpu", "shape": [0]}
        if isinstance(data, Values):
            entry |= {"shape": [0, 1], "dtype": "torch.uint8", "is_nested": True}
            # Ours: the published reader passes over it.
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
        """Return whether its rows may differ in shape."""
        return self.table is not None

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of each row, where all have the same."""
        return tuple(self.entry["shape"][1:])

    def _items_a_row(self) -> int:
        count = 1
        for size in self.row_shape:
            count *= size
        return count

    # Checking ---------------------------------------------------------------------------

    def fitted(self, data: Any, is_strict: bool) -> Any:
        """The rows as they are added, without adding any yet.

        Args:
            data: a tensor ``[N, ...]``, :class:`Ragged` or :class:`Values`.
            is_strict: whether rows of another shape are refused, and do not make the
                column one of rows that differ.

        Raises:
            ValueError: they do not fit.
            TypeError: a value is none that the column can hold.
        """
        if self.encoding is not None:
            if not isinstance(data, Values):
                raise ValueError(
                    MSG_KIND.format("tensors", self.key, "a column of values")
                )
            texts = encoded(data.items, self.encoding, self.key)
            table = np.fromiter(map(len, texts), np.int64, len(texts))[:, None]
            return b"".join(texts), table
        if isinstance(data, Values):
            raise ValueError(
                MSG_KIND.format("values that are no tensors", self.key, "a tensor")
            )
        is_ragged = isinstance(data, Ragged)
        values = data.values if isinstance(data, Ragged) else data
        num_dims = data.table.shape[1] if isinstance(data, Ragged) else data.ndim - 1
        is_plain = not self.is_ragged and not is_ragged and values.dtype == self.dtype
        if is_plain and tuple(data.shape[1:]) == self.row_shape:
            return bytes_of(data), None
        if is_strict and not self.is_ragged and not is_ragged:
            raise self._misfit(data)
        if values.dtype != self.dtype or num_dims != self.num_dims:
            if not is_ragged and not self.is_ragged:
                raise self._misfit(data)
            raise ValueError(
                MSG_RAGGED.format(
                    values.dtype, num_dims, self.key, self.dtype, self.num_dims
                )
            )
        if isinstance(data, Ragged):
            table = data.table.cpu().contiguous().numpy()
        else:
            row = np.array(data.shape[1:], dtype=np.int64)
            table = np.broadcast_to(row, (data.shape[0], num_dims))
        return bytes_of(values), table

    def _misfit(self, data: torch.Tensor) -> ValueError:
        shape = (self.num_rows, *self.row_shape)
        return ValueError(
            MSG_MISFIT.format(
                data.dtype, tuple(data.shape), self.key, self.dtype, shape
            )
        )

    # Adding -----------------------------------------------------------------------------

    def add(self, fitted: tuple[Any, Any], num_rows: int) -> None:
        """Add rows that :meth:`fitted` gave."""
        data, table = fitted
        if table is not None and self.table is None:
            self._become_ragged()
        self.values.add(data)
        if self.table is not None:
            self.table.add(np.ascontiguousarray(table))
        self.num_rows += num_rows
        self.num_items = self.values.size // self.dtype.itemsize

    def _become_ragged(self) -> None:
        """Give the rows that there are, all of one shape, a table."""
        row = np.array(self.row_shape, dtype=np.int64)
        self.table = self._table_file(0)
        self.table.add(np.tile(row, (self.num_rows, 1)))
        self.became_ragged = True
        self.entry["is_nested"] = True
        self.entry["shape"] = [self.num_rows, self.num_dims]

    def cut_to(self, num_rows: int, num_items: int) -> None:
        """Forget rows behind those."""
        self.num_rows, self.num_items = num_rows, num_items
        self.values.cut_to(num_items * self.dtype.itemsize)
        if self.table is not None:
            self.table.cut_to(num_rows * 8 * self.num_dims)

    def reserve(self, num_rows: int) -> None:
        """Set room aside for so many rows in all, as far as their size is known."""
        if self.table is not None:
            self.table.reserve(num_rows * 8 * self.num_dims)
        else:
            self.values.reserve(num_rows * self._items_a_row() * self.dtype.itemsize)

    def files(self) -> list[GrowingFile]:
        """Its one or two files."""
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
