"""The untaken values of one stream, and the end of each window among them."""

from __future__ import annotations

import asyncio
import collections
import itertools
import threading
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from tensordict.primitives.arrays import as_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS = {bool, int, float, complex}
_SCALARS = bool | int | float | complex
_ARRAYS = Tensor | np.ndarray | np.generic

WhenFull = Literal["block", "drop_oldest", "drop_newest"]

MSG_VALUE = (
    "stream {stream!r} got a value of type {kind}: push a number, a tensor or a NumPy "
    "array"
)
MSG_SHAPE = (
    "the values of stream {stream!r} have different shapes, {first} and {other}: give "
    "each length its own stream, or pad the values before they are pushed"
)
MSG_FULL = (
    "stream {stream!r} already holds {capacity} values, and none was taken within "
    "{timeout_s} s"
)
MSG_CLOSED = "stream {stream!r} is closed: its collector takes no more values"
MSG_BLOCKED_LOOP = (
    "push() to the full stream {stream!r} would block the event loop that takes its "
    "values: use `await put()` on the event loop"
)


class StreamBuffer:
    """The queue to which a stream's producer writes, like an ``asyncio.Queue``.

    A value belongs to the window in which it arrives, by the clock, no matter when the
    window is taken.

    A producer on the event loop awaits :meth:`put`; a producer in another thread calls
    :meth:`push`. The collector creates the buffers.
    """

    def __init__(
        self,
        stream: object,
        capacity: int,
        when_full: WhenFull,
        dtype: torch.dtype | None,
        window_now: Callable[[], int],
        make_room: Callable[[StreamBuffer], None],
    ) -> None:
        self.stream = stream
        self.capacity = capacity
        self.when_full = when_full
        self.num_dropped: int = 0
        self._window_now = window_now
        self._make_room = make_room
        self._column = _Column(stream, dtype)
        self._values: collections.deque[Any] = collections.deque()
        self._num_put = 0  # the number of values ever kept, including taken ones
        self._num_gone = 0  # the number of values that were taken or dropped
        self._window = 0  # the first window that was not taken
        self._ends: collections.deque[int] = collections.deque()
        self._room = threading.Condition(threading.Lock())
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._loop_thread: int | None = None
        self._closed = False

    # --- For producers ----------------------------------------------------------------

    def qsize(self) -> int:
        """Return the number of values that wait to be taken."""
        return len(self._values)

    def empty(self) -> bool:
        """Return whether no value waits to be taken."""
        return not self._values

    def full(self) -> bool:
        """Return whether the buffer holds as many values as it may."""
        return len(self._values) >= self.capacity

    async def put(self, value: object) -> None:
        """Add a value; if the buffer is full and ``when_full="block"``, wait for room."""
        while not self._try_put(value):
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                if future in self._waiting:
                    self._waiting.remove(future)

    def put_nowait(self, value: object) -> None:
        """Add a value without waiting.

        Raises:
            asyncio.QueueFull: the buffer is full and ``when_full="block"``.
        """
        if not self._try_put(value):
            raise asyncio.QueueFull

    def push(self, value: object, timeout_s: float | None = None) -> None:
        """Add a value from any thread; if full and ``when_full="block"``, wait for room.

        Args:
            value: a number, a tensor or an array.
            timeout_s: the most seconds to wait for room; None waits without a limit.

        Raises:
            TimeoutError: there was no room in time.
            RuntimeError: the collector is closed, or this is the thread of the event
                loop, which would have to take values to make room.
        """
        while not self._try_put(value):
            if threading.get_ident() == self._loop_thread:
                raise RuntimeError(MSG_BLOCKED_LOOP.format(stream=self.stream))
            with self._room:
                came = self._room.wait_for(
                    lambda: self._closed or not self.full(), timeout_s
                )
            if not came:
                message = MSG_FULL.format(
                    stream=self.stream, capacity=self.capacity, timeout_s=timeout_s
                )
                raise TimeoutError(message)

    def _try_put(self, value: object) -> bool:
        if not isinstance(value, _SCALARS | _ARRAYS):
            kind = type(value).__name__
            raise TypeError(MSG_VALUE.format(stream=self.stream, kind=kind))
        if self.full():
            self._make_room(self)
        with self._room:
            if self._closed:
                raise RuntimeError(MSG_CLOSED.format(stream=self.stream))
            self._close_windows_before(self._window_now())
            if self.full():
                if self.when_full == "block":
                    return False
                self.num_dropped += 1
                if self.when_full == "drop_newest":
                    return True
                self._values.popleft()
                self._num_gone += 1
            self._values.append(value)
            self._num_put += 1
        return True

    # --- For the collector --------------------------------------------------------------

    def num_windows(self) -> int:
        """Return the number of windows up to the last value."""
        with self._room:
            return self._window + len(self._ends) + bool(self._num_in_last_window())

    def take_before(self, window: int) -> tuple[list[Any], list[int]]:
        """Return the values of the windows before ``window``, and each window's count."""
        with self._room:
            self._close_windows_before(window)
            num_windows = max(0, window - self._window)
            # Values of a window may have been dropped after the window ended.
            ends = np.maximum(_popleft_many(self._ends, num_windows), self._num_gone)
            end = int(ends[-1]) if num_windows else self._num_gone
            sizes = np.diff(ends, prepend=self._num_gone).tolist()
            values = _popleft_many(self._values, end - self._num_gone)
            self._num_gone = end
            self._window = max(self._window, window)
            self._room.notify_all()
        return values, sizes

    def note_loop_thread(self) -> None:
        """Record the calling thread as the taker of values, which must not block."""
        self._loop_thread = threading.get_ident()

    def wake(self) -> None:
        """Let waiting producers on the event loop retry; call it on the loop's thread."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Refuse further values, and wake all waiting producers."""
        with self._room:
            self._closed = True
            self._room.notify_all()
        self.wake()

    def to_tensor(self, values: list[Any]) -> Tensor:
        """Return the values as one tensor of the stream's dtype, ``[len(values), *F]``."""
        return self._column.to_tensor(values)

    def _num_in_last_window(self) -> int:
        return self._num_put - (self._ends[-1] if self._ends else self._num_gone)

    def _close_windows_before(self, window: int) -> None:
        missing = window - self._window - len(self._ends)
        if missing > 0:
            self._ends.extend(itertools.repeat(self._num_put, missing))


def _popleft_many(queue: collections.deque[Any], count: int) -> list[Any]:
    """Remove and return the first ``count`` values of a queue."""
    if count < len(queue):
        return [queue.popleft() for _ in range(count)]
    values = list(queue)
    queue.clear()
    return values


class _Column:
    """A converter of values to tensors.

    It remembers their dtype and shape for windows without values.
    """

    def __init__(self, stream: object, dtype: torch.dtype | None) -> None:
        self.stream = stream
        self.declared = dtype
        self.empty = torch.empty(0, dtype=dtype)
        self.has_dtype = False

    def to_tensor(self, values: list[Any]) -> Tensor:
        if not values:
            return self.empty
        kinds = set(map(type, values))
        if kinds <= _NUMBERS:
            column = _numbers_to_tensor(values, kinds)
        else:
            tensors = [as_tensor(value) for value in values]
            for tensor in tensors:
                if tensor.shape != tensors[0].shape:
                    message = MSG_SHAPE.format(
                        stream=self.stream,
                        first=tuple(tensors[0].shape),
                        other=tuple(tensor.shape),
                    )
                    raise ValueError(message)
            column = torch.stack(tensors)
        column = column.to(self._dtype_with(column.dtype))
        self.empty = column.new_empty((0, *column.shape[1:]))
        self.has_dtype = True
        return column

    def _dtype_with(self, dtype: torch.dtype) -> torch.dtype:
        # If a stream of integers gets a float, it becomes a stream of floats: a cast to
        # the dtype of the first window would lose the fraction.
        if self.declared is not None:
            return self.declared
        return torch.promote_types(self.empty.dtype, dtype) if self.has_dtype else dtype


def _numbers_to_tensor(values: list[Any], kinds: set[type]) -> Tensor:
    """Return the tensor of ``torch.tensor(values)``, faster, through NumPy."""
    try:
        # With one type, NumPy need not search for a common type.
        kind = kinds.pop() if len(kinds) == 1 else None
        is_known = kind is int or kind is float
        array = np.fromiter(values, kind, len(values)) if is_known else np.array(values)
    except OverflowError:
        array = np.array(values)
    if array.dtype.kind not in "bifc":
        return torch.tensor(
            values
        )  # raises torch's error for integers that are too large
    column = torch.from_numpy(array)
    if array.dtype.kind == "f":
        return column.to(torch.get_default_dtype())
    if array.dtype.kind == "c":
        return column.to(torch.get_default_dtype().to_complex())
    return column
