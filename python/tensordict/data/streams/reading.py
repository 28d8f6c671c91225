"""Read the streams of some rows, one item of each at a time."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.data.streams.dataset import StreamDataset

END: Final = object()
"""The item of a row whose stream has ended."""

MISSING: Final = object()
"""The item of a row that reads no stream."""


class StreamError(RuntimeError):
    """An error of a stream, or of the worker that read it.

    Attributes:
        streams: the affected entries of the list of streams.
    """

    streams: tuple[Any, ...] = ()

    @classmethod
    def about(cls, text: str, streams: tuple[Any, ...]) -> StreamError:
        """Return an error with a text and its streams."""
        error = cls(text)
        error.streams = streams
        return error


class RowReader:
    """A reader of the streams of some rows: opens, reads and closes them.

    If a stream raises an exception, :meth:`read` raises a :class:`StreamError` with the
    exception as its cause.
    """

    def __init__(self, dataset: StreamDataset) -> None:
        self._dataset = dataset
        self._iterators: dict[int, Iterator[Any]] = {}
        self._streams: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._unopened: dict[int, int] = {}

    def open(
        self, row: int, stream: int, step: int, num_read: int, length: int | None
    ) -> None:
        """Assign ``stream`` to ``row`` from ``step`` on, after its ``num_read`` items."""
        self.close(row, step)
        self._streams[row] = stream
        self._starts[row] = step - num_read
        self._unopened[row] = num_read
        if length is not None:
            self._left[row] = length - num_read

    def close(self, row: int, step: int) -> None:
        """Close the row's stream, and check that it had the length in ``lengths=``."""
        iterator = self._iterators.pop(row, None)
        left = self._left.pop(row, None)
        if left == 0 and iterator is not None:
            try:
                rest = next(iterator, END)
            except Exception as error:
                raise self._failure(row, step, error) from error
            if rest is not END:
                raise self._wrong_length(row, "more")
        self._unopened.pop(row, None)
        self._streams.pop(row, None)

    def is_reading(self, row: int) -> bool:
        """Return whether the row has a stream."""
        return row in self._streams

    def read(self, row: int, step: int) -> Any:
        """Return the next item of the row's stream, for ``step``, or :data:`END`."""
        try:
            if self._unopened and row in self._unopened:
                self._iterators[row] = self._opened(row)
            item = next(self._iterators[row], END)
        except Exception as error:
            raise self._failure(row, step, error) from error
        left = self._left
        if left and row in left:
            left[row] -= 1
            if item is END:
                raise self._wrong_length(row, "fewer")
        return item

    def _opened(self, row: int) -> Iterator[Any]:
        num_read = self._unopened.pop(row)
        dataset = self._dataset
        iterable = dataset.streamer(dataset.stream_list[self._streams[row]])
        if num_read and hasattr(iterable, "skip"):
            iterable.skip(num_read)
            return iter(iterable)
        iterator = iter(iterable)
        for _ in range(num_read):
            next(iterator, END)
        return iterator

    def _wrong_length(self, row: int, comparison: str) -> StreamError:
        number = self._streams[row]
        lengths = self._dataset.lengths
        stated_length = lengths[number] if lengths is not None else None
        return StreamError.about(
            f"The stream {self._dataset.name_of(number)} has {comparison} items than the "
            f"{stated_length} in lengths=. Correct the number, or leave out lengths=: the "
            "loader then finds the end of a stream by reading.",
            (self._dataset.stream_list[number],),
        )

    def _failure(self, row: int, step: int, error: Exception) -> StreamError:
        number = self._streams[row]
        return StreamError.about(
            f"The stream {self._dataset.name_of(number)} in row {row} raised "
            f"{type(error).__name__} for its item {step - self._starts[row]}: {error}",
            (self._dataset.stream_list[number],),
        )


def text_of(error: BaseException) -> str:
    """Return the traceback of an error as text, for another process."""
    return "".join(traceback.format_exception(error))
