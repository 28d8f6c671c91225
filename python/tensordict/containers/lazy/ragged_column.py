"""A column of rows that differ in shape: their elements, and a shape table."""

from __future__ import annotations

import functools
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.storage.growing.rows import Ragged
from tensordict.storage.growing.text import decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["RaggedColumn", "covered_dims", "jagged", "jagged_alike", "padded"]

MSG_JAGGED = (
    "The rows of the entry {!r} differ in no dim or in several dims, so they are no "
    "jagged tensor. Pass ragged='padded' or ragged='stack'."
)
MSG_CUT = (
    "{} has {} bytes, but the loaded rows need {}: somebody cut the file while it was "
    "in use. Save again: a save creates a new file."
)


class ColumnFile:
    """The file of a column. Ranges are requested from the kernel before they are read.

    Reading mapped pages that are not in memory loads them one by one, each with the
    device's read-ahead. Requested ranges are loaded exactly and all at once.
    """

    def __init__(self, path: str, num_bytes: int) -> None:
        self.path = path
        self.num_bytes = num_bytes
        status = Path(path).stat()
        self._identity = status.st_dev, status.st_ino
        self._descriptor: int | None = None
        self._is_gone = not hasattr(os, "posix_fadvise")

    @classmethod
    def of(cls, values: torch.Tensor) -> ColumnFile | None:
        """Return the file of a memory-mapped tensor; None for others and empty ones."""
        path = getattr(values, "_filename", None)
        if path is None or not values.numel():
            return None
        try:
            return cls(os.fspath(path), values.numel() * values.element_size())
        except OSError:
            return None

    def ask_for(
        self, starts: np.ndarray[Any, Any], stops: np.ndarray[Any, Any]
    ) -> None:
        """Request ranges of bytes from the kernel.

        Raises:
            RuntimeError: the file was truncated. Reading the mapped pages would end the
                process.
        """
        self.check()
        if self._descriptor is None:
            return
        for start, length in zip(
            starts.tolist(), (stops - starts).tolist(), strict=True
        ):
            # A length of 0 would request all following bytes.
            if length:
                os.posix_fadvise(
                    self._descriptor, start, length, os.POSIX_FADV_WILLNEED
                )

    def check(self) -> None:
        """Check that the file still has all bytes of the rows.

        Raises:
            RuntimeError: the file was truncated.
        """
        if self._descriptor is None and not self._is_gone:
            self._open()
        if self._descriptor is None:
            return
        # `lseek` takes a third of the time of `fstat`; the position is not used.
        size = os.lseek(self._descriptor, 0, os.SEEK_END)
        if size < self.num_bytes:
            raise RuntimeError(MSG_CUT.format(self.path, size, self.num_bytes))

    def _open(self) -> None:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._is_gone = True
            return
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != self._identity:
            # Another save replaced the file: the mapping belongs to the old file.
            os.close(descriptor)
            self._is_gone = True
            return
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)


class RaggedColumn:
    """Rows of different shapes: all elements in sequence, and the shape of each row.

    Args:
        values: the elements of all rows: ``[N]``.
        table: the shape of each row: int64 ``[rows, dims]``.
        encoding: the encoding of non-tensor data in the elements; None for tensors.
    """

    def __init__(
        self, values: torch.Tensor, table: torch.Tensor, encoding: str | None = None
    ) -> None:
        # A view of a plain tensor takes a fifth of the time of a memory-mapped one's.
        self.file: ColumnFile | None = ColumnFile.of(values)
        self.table_file: ColumnFile | None = ColumnFile.of(table)
        self.values: torch.Tensor = values.as_subclass(torch.Tensor)
        self._table: torch.Tensor = table.as_subclass(torch.Tensor)
        self.encoding = encoding

    def __getstate__(self) -> dict[str, Any]:
        # Cached values that can be computed again are not pickled.
        left_out = ("starts", "_bytes")
        return {key: it for key, it in self.__dict__.items() if key not in left_out}

    @functools.cached_property
    def table(self) -> torch.Tensor:
        """The shape of each row."""
        # A writer does not know the later dims of an empty list of lists.
        return _with_sizes_of_full(self._table)

    @functools.cached_property
    def starts(self) -> np.ndarray[Any, Any]:
        """The offset of each row in the elements, and the end of the last row."""
        table = self.table.numpy()
        starts = np.zeros(len(table) + 1, np.int64)
        np.cumsum(table.prod(1), out=starts[1:])
        return starts

    @functools.cached_property
    def mask_dims(self) -> int:
        """The number of dims up to the last one in which rows differ, at least 1."""
        return max(covered_dims(self.table), min(1, self.table.shape[1]))

    @functools.cached_property
    def _bytes(self) -> np.ndarray[Any, Any]:
        return self.values.view(torch.uint8).numpy()

    def row(self, at: int) -> Any:
        """Return a row: a view of its elements, or the value that they encode."""
        start, stop = int(self.starts[at]), int(self.starts[at + 1])
        if self.encoding is not None:
            return decoded(self._bytes[start:stop].tobytes(), self.encoding)
        return self.values[start:stop].view(self.table[at].tolist())

    def rows(self, places: Iterable[int]) -> list[Any]:
        """Return several rows."""
        return [self.row(at) for at in places]

    def taken(self, places: Sequence[int]) -> Ragged:
        """Return a copy of some rows, in sequence."""
        size = self.values.element_size()
        at = np.asarray(places, np.int64)
        starts, stops = self.starts[at] * size, self.starts[at + 1] * size
        if self.file is not None:
            self.file.ask_for(starts, stops)
        data = self._bytes
        parts = [
            data[start:stop]
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        table = self.table[torch.from_numpy(at)]
        if not any(map(len, parts)):
            return Ragged(self.values.new_empty(0), table)
        joined = torch.from_numpy(np.concatenate(parts))
        return Ragged(joined.view(self.values.dtype), table)

    def span(self, start: int, stop: int) -> Ragged:
        """Return consecutive rows, as views."""
        first, last = int(self.starts[start]), int(self.starts[stop])
        return Ragged(self.values[first:last], self.table[start:stop])


def covered_dims(table: torch.Tensor) -> int:
    """Return the number of dims up to the last one in which row shapes differ."""
    if not len(table):
        return 0
    differs = (table != table[0]).any(0).nonzero()
    return int(differs[-1]) + 1 if len(differs) else 0


def padded(rows: Ragged, padding: float) -> torch.Tensor:
    """Stack the rows, each padded to the largest size of each dim."""
    count, num_dims = rows.table.shape
    if not count:
        return rows.values.new_empty(0, *[0] * num_dims)
    most = rows.table.amax(0).tolist()
    if rows.values.numel() == count * int(np.prod(most)):
        return rows.values.view(count, *most)
    out = rows.values.new_full((count, *most), padding)
    if not rows.values.numel():
        return out
    if bool((rows.table[:, 1:] == rows.table[0, 1:]).all()):
        _fill_beginnings(out, rows)
    else:
        _fill_corners(out, rows)
    return out


def _fill_beginnings(out: torch.Tensor, rows: Ragged) -> None:
    """Write rows that differ in their first dim only.

    Each row is the beginning of a row of ``out``. NumPy takes a tenth of torch's time
    for these copies; it copies bytes, whatever the dtype.
    """
    target = out.view(len(out), -1).view(torch.uint8).numpy()
    data = rows.values.view(torch.uint8).numpy()
    ends = (rows.table.prod(1) * rows.values.element_size()).cumsum(0).tolist()
    start = 0
    for row, stop in zip(target, ends, strict=True):
        row[: stop - start] = data[start:stop]
        start = stop


def _fill_corners(out: torch.Tensor, rows: Ragged) -> None:
    """Write rows that differ in any dim."""
    ends = rows.table.prod(1).cumsum(0).tolist()
    start = 0
    for row, shape, stop in zip(out.unbind(0), rows.table.tolist(), ends, strict=True):
        row[tuple(map(slice, shape))] = rows.values[start:stop].view(shape)
        start = stop


def jagged(rows: Ragged, key: object, dim: int) -> torch.Tensor:
    """Return the rows as a nested tensor with the jagged layout.

    Args:
        rows: the rows.
        key: the key of the entry, for errors.
        dim: the ragged dim of the result, from 1 on, if all rows have the same shape.
    """
    table = rows.table
    if not table.shape[1]:
        raise ValueError(MSG_JAGGED.format(key))
    if not len(table):
        values = rows.values.view(0, *[0] * (table.shape[1] - 1))
        offsets = torch.zeros(1, dtype=torch.int64)
        return torch.nested.nested_tensor_from_jagged(values, offsets)
    num_differing = int((table != table[0]).any(0).sum())
    if num_differing > 1:
        raise ValueError(MSG_JAGGED.format(key))
    if not num_differing and dim > 1:
        return jagged_alike(rows.values.view(len(table), *table[0].tolist()), dim)
    if num_differing and bool((table[:, 0] == table[0, 0]).all()):
        sizes = table.prod(1).tolist()
        parts = zip(rows.values.split(sizes), table.tolist(), strict=True)
        views = [part.view(shape) for part, shape in parts]
        return torch.nested.as_nested_tensor(views, layout=torch.jagged)
    offsets = torch.zeros(len(table) + 1, dtype=torch.int64)
    torch.cumsum(table[:, 0], 0, out=offsets[1:])
    values = rows.values.view(int(offsets[-1]), *table[0, 1:].tolist())
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def _with_sizes_of_full(table: torch.Tensor) -> torch.Tensor:
    """Give rows of size 0 in each dim the later sizes of the other rows."""
    is_empty = table.sum(1) == 0
    if table.shape[1] > 1 and bool(is_empty.any()) and not bool(is_empty.all()):
        table = table.clone()
        table[is_empty, 1:] = table[~is_empty][0, 1:]
    return table


def jagged_alike(stacked: torch.Tensor, dim: int) -> torch.Tensor:
    """Make a nested tensor of rows of one shape, with ``dim`` as the ragged dim."""
    count, size = len(stacked), stacked.shape[dim]
    values = stacked.movedim(0, dim - 1).flatten(dim - 1, dim)
    offsets = torch.arange(count + 1) * size
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=dim)
