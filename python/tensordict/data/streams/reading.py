"""Reading the streams of some rows, an item of each at a time."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.data.streams.dataset import StreamDataset

END: Final = object()
"""The item of a row whose stream has no further one."""

MISSING: Final = object()
"""The item of a row that reads no stream."""


class StreamError(RuntimeError):
    """A stream failed, or the worker that read it.

    Attributes:
        streams: the entries of the list of streams that it concerns.
    """

    streams: tuple[Any, ...] = ()

    @classmethod
    def about(cls, text: str, streams: tuple[Any, ...]) -> StreamError:
        """Make the error with its text and its streams."""
        error = cls(text)
        error.streams = streams
        return error


class RowReader:
    """The streams that rows read: opened, read and closed.

    An error of a stream comes out of :meth:`read` as :class:`StreamError`, whose cause is
    the exception that the stream raised.
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
        """Let ``row`` read ``stream`` from ``step`` on, behind its first ``num_read`` items."""
        self.close(row, step)
        self._streams[row] = stream
        self._starts[row] = step - num_read
        self._unopened[row] = num_read
        if length is not None:
            self._left[row] = length - num_read

    def close(self, row: int, step: int) -> None:
        """End what ``row`` reads, and check that it had the length it was said to have."""
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
        """Tell whether the row has a stream."""
        return row in self._streams

    def read(self, row: int, step: int) -> Any:
        """The next item of the row's stream, which is for ``step``, or :data:`END`."""
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
        said = lengths[number] if lengths is not None else None
        return StreamError.about(
            f"The stream {self._dataset.name_of(number)} has {comparison} items than the "
            f"{said} that lengths= says. Correct it, or leave lengths= out: the loader "
            "then finds them while it reads.",
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
    """The traceback of an error, for a process that does not have it."""
    return "".join(traceback.format_exception(error))
