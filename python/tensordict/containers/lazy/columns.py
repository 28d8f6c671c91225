"""The columns of a level of a save, and copies of some of their rows."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy.ragged_column import (
    ColumnFile,
    RaggedColumn,
    jagged,
    padded,
)
from tensordict.containers.nontensor import NonTensorData, NonTensorStack
from tensordict.storage.growing.rows import Level, Values, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["CPU", "Columns", "copied", "described", "gathered", "value_of"]

CPU = torch.device("cpu")


@dataclass
class Columns:
    """The columns of a level of a save: the storage of its rows."""

    entries: dict[str, Any]
    """Columns by key: a tensor, a :class:`RaggedColumn`, columns, or a collection."""
    num_rows: int
    num_dims: int
    """The number of batch dims of a row."""
    tail: torch.Size | None
    """The batch size of a row, if all rows have the same."""
    names: list[str | None] | None = None
    wrapper: type | None = None
    """The tensorclass of a row, if the entries belong to a tensorclass."""

    def wrapped(self, rows: CollectionProtocol) -> Any:
        """Wrap rows in their tensorclass, if they have one."""
        cls: Any = self.wrapper
        return rows if cls is None else cls._from_tensordict(rows)

    @functools.cached_property
    def _plain(self) -> dict[str, Any]:
        """The entries, with plain tensors, whose views are faster than mapped ones'."""
        return {
            key: column.as_subclass(torch.Tensor)
            if isinstance(column, torch.Tensor)
            else column
            for key, column in self.entries.items()
        }

    @functools.cached_property
    def _files(self) -> list[ColumnFile]:
        """The files of all columns, nested ones included."""
        files: list[ColumnFile | None] = []
        for column in self.entries.values():
            if isinstance(column, Columns):
                files += column._files
            elif isinstance(column, RaggedColumn):
                files += [column.file, column.table_file]
            elif isinstance(column, torch.Tensor):
                files.append(ColumnFile.of(column))
        return [file for file in files if file is not None]

    def check_files(self) -> None:
        """Check that no file is too short: reading missing pages would end the process.

        Raises:
            RuntimeError: a file was truncated.
        """
        for file in self._files:
            file.check()

    def row(self, at: int) -> Any:
        """Return a row as a locked collection of views."""
        entries: dict[str, Any] = {}
        for key, column in self._plain.items():
            if isinstance(column, RaggedColumn):
                value = column.row(at)
                if column.encoding is not None:
                    value = value_of(value, self.row_size(at))
            elif isinstance(column, Columns):
                value = column.row(at)
            else:
                value = column[at]
            entries[key] = value
        names = None if self.names is None else self.names[1:]
        row = _rust.new(TensorDict, entries, self.row_size(at), CPU, names)
        row._is_locked = True
        return self.wrapped(row)

    def ragged_entries(
        self, path: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield each ragged entry's path below ``path``, and the ndim of its mask."""
        for key, column in self.entries.items():
            if isinstance(column, Columns):
                yield from column.ragged_entries((*path, key))
            elif isinstance(column, RaggedColumn) and column.encoding is None:
                yield (*path, key), column.mask_dims

    def row_shapes(
        self, key: str, rows: range, places: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the shapes of rows of a tensor entry: int64 ``[rows, dims]``."""
        numbers = torch.arange(rows.start, rows.stop, rows.step)
        if places is not None:
            numbers = numbers[places]
        column = self.entries[key]
        if isinstance(column, RaggedColumn):
            return column.table[numbers]
        sizes = torch.tensor(column.shape[1:], dtype=torch.int64)
        return sizes.expand(len(numbers), -1)

    def dense_rows(self, index: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copy some rows of the entries whose rows all have one shape."""
        if self._dense is None:
            return {}
        rows: Any = _rust.index(self._dense, index)
        return rows._tensordict

    @functools.cached_property
    def _dense(self) -> TensorDict | None:
        """The entries with rows of one shape, for a single gather; None without any."""
        entries = {
            key: column
            for key, column in self.entries.items()
            if isinstance(column, torch.Tensor) and not column.is_nested
        }
        size = torch.Size([self.num_rows])
        return _rust.new(TensorDict, entries, size, CPU, None) if entries else None

    def chosen(self, keys: Iterable[Any]) -> Columns | None:
        """Return the columns at ``keys``; None if a key is missing."""
        below: dict[str, list[Any] | None] = {}
        for key in keys:
            path = _rust.unravel_key_to_tuple(key)
            if not path or path[0] not in self.entries:
                return None
            inner = below.setdefault(path[0], [])
            if len(path) == 1:
                below[path[0]] = None
            elif inner is not None:
                inner.append(path[1:])
        entries = {}
        for key, column in self.entries.items():
            if key not in below:
                continue
            part, inner = column, below[key]
            if inner is not None:
                part = column.chosen(inner) if isinstance(column, Columns) else None
            if part is None:
                return None
            entries[key] = part
        chosen = dataclasses.replace(self, entries=entries)
        # If batch sizes differ, a ragged column must be left to give them.
        has_size = self.tail is not None or not self.num_dims
        return chosen if has_size or any(chosen._sized_columns()) else None

    def row_size(self, at: int) -> torch.Size:
        """Return the batch size of a row."""
        if self.tail is not None:
            return self.tail
        if not self.num_dims:
            return torch.Size(())
        column = next(self._sized_columns())
        return torch.Size(column.table[at, : self.num_dims].tolist())

    def size(self, rows: range) -> torch.Size:
        """Return the batch size of a stack of rows, with -1 where rows differ."""
        if self.tail is not None or not rows or not self.num_dims:
            tail = self.tail if self.tail is not None else [-1] * self.num_dims
            return torch.Size([len(rows), *tail])
        column = next(self._sized_columns())
        table = column.table[rows.start : rows.stop : rows.step, : self.num_dims]
        low, high = table.amin(0).tolist(), table.amax(0).tolist()
        dims = [a if a == b else -1 for a, b in zip(low, high, strict=True)]
        return torch.Size([len(rows), *dims])

    def _sized_columns(self) -> Iterator[RaggedColumn]:
        """Yield the ragged columns of tensors, which record each row's batch size."""
        for column in self.entries.values():
            if isinstance(column, Columns):
                yield from column._sized_columns()
            elif isinstance(column, RaggedColumn) and column.encoding is None:
                yield column

    def level(self, start: int, stop: int) -> Level:
        """Return consecutive rows in the form of a writer, without a copy."""
        cls = self.wrapper or TensorDict
        level = Level(cls, self.tail, self.num_dims, {}, self.names)
        for key, column in self.entries.items():
            if isinstance(column, Columns):
                level.entries[key] = column.level(start, stop)
            elif not isinstance(column, RaggedColumn):
                level.entries[key] = rows_of(column[start:stop])
            elif column.encoding is None:
                level.entries[key] = column.span(start, stop)
            else:
                level.entries[key] = Values(column.rows(range(start, stop)))
        return level


def value_of(data: object, size: torch.Size) -> NonTensorData:
    """Make non-tensor data of a value in a row."""
    return NonTensorData(data, batch_size=size)


def copied(columns: Columns, places: Any) -> Columns:
    """Copy some rows to new columns."""
    index = torch.from_numpy(places)
    dense = columns.dense_rows(index)
    entries: dict[str, Any] = {}
    for key, column in columns.entries.items():
        if isinstance(column, Columns):
            entries[key] = copied(column, places)
        elif isinstance(column, RaggedColumn):
            rows = column.taken(places)
            entries[key] = RaggedColumn(rows.values, rows.table, column.encoding)
        else:
            entries[key] = dense[key] if key in dense else column[index]
    return dataclasses.replace(columns, entries=entries, num_rows=len(places))


def gathered(columns: Columns, places: Any, ragged: str, padding: float) -> Any:
    """Return a collection of some rows; ragged entries are padded or jagged."""
    index = torch.from_numpy(places)
    dense = columns.dense_rows(index)
    entries: dict[str, Any] = {}
    for key, column in columns.entries.items():
        if isinstance(column, Columns):
            entries[key] = gathered(column, places, ragged, padding)
        elif not isinstance(column, RaggedColumn):
            entries[key] = dense[key] if key in dense else column[index]
        elif column.encoding is not None:
            values = column.rows(places.tolist())
            size = torch.Size([len(values)])
            entries[key] = NonTensorStack._of_cells(values, size)
        elif ragged == "padded":
            entries[key] = padded(column.taken(places), padding)
        else:
            entries[key] = jagged(column.taken(places), key, column.mask_dims)
    collection = _rust.new(TensorDict, entries, torch.Size([len(places)]), CPU, None)
    return columns.wrapped(collection)


def described(columns: Columns, indent: str) -> list[str]:
    """Return a line for each column, for the text of a stack."""
    lines = []
    for key, column in columns.entries.items():
        if isinstance(column, Columns):
            lines += [
                f"{indent}{key}:",
                *described(column, indent + "    "),
            ]
        elif isinstance(column, RaggedColumn):
            dims = ", ".join(["-1"] * column.table.shape[1])
            kind = {"utf-8": "text", "bytes": "bytes"}.get(
                str(column.encoding), "values"
            )
            if column.encoding is None:
                kind = f"{column.values.dtype} rows of shape [{dims}]"
            lines.append(f"{indent}{key}: {kind}")
        else:
            shape = list(column.shape[1:])
            lines.append(f"{indent}{key}: {column.dtype} rows of shape {shape}")
    return lines
