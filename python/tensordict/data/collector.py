"""Windows of time over several streams of values."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import TensorDict, TensorDictBase, unravel_key
from tensordict.data.buckets import BucketStack, Column, dense_columns
from tensordict.data.buffers import StreamBuffer, WhenFull
from tensordict.primitives.errors import KeyMessageError

if TYPE_CHECKING:
    from types import TracebackType

    from tensordict._nestedkey import NestedKey

Producer = (
    Callable[[StreamBuffer], Coroutine[Any, Any, Any]] | AsyncIterable[Any] | None
)

DEFAULT_CAPACITY = 1_000_000
POLICIES = ("block", "drop_oldest", "drop_newest")

MSG_WINDOW = "window_s must be a positive number of seconds, got {window_s!r}"
MSG_CAPACITY = "capacity must be a positive number of values, got {capacity!r}"
MSG_WHEN_FULL = "when_full must be one of {policies}, got {when_full!r}"
MSG_NO_STREAM = (
    "a collector needs at least one stream, such as streams={'name': producer}"
)
MSG_NO_SUCH = "there is no stream {stream!r}; the streams are {streams}"
MSG_PRODUCER = (
    "the producer of stream {stream!r} is {kind}: pass a coroutine function that takes the "
    "queue to write to, an async iterable, or None for a stream that is pushed to"
)
MSG_FAILED = "the producer of stream {stream!r} failed"
MSG_CLOSED = "this collector is closed: make a new one"
MSG_BUSY = "another task already waits for the windows of this collector: use one task"


class StreamCollector:
    """A collector that gathers the values of several streams into windows of equal length.

    Windows follow an absolute clock: window ``k`` ends ``(k + 1) * window_s`` seconds
    after the start, so windows do not drift. A value belongs to the window in which it
    arrives, no matter when the window is taken. A window without values of a stream has
    an empty tensor of the stream's dtype and feature shape.

    Iterate over the collector for one tensordict a window, or call :meth:`collect` for
    several windows. The end of the ``async with`` block cancels the producers and waits
    for their end.

    Args:
        streams: the producer of each key: a coroutine function that takes the queue (a
            :class:`StreamBuffer`) and calls ``await queue.put(value)``, an async
            iterable, or None for a stream to which other code pushes.
        window_s: the length of a window in seconds of the event loop's clock.
        capacity: the most values of a stream that wait to be taken.
        when_full: what a full stream does with another value: ``"block"`` its producer
            until windows are taken, ``"drop_oldest"`` or ``"drop_newest"``.
            :attr:`num_dropped` counts dropped values.
        dtypes: the dtypes of streams whose first values do not determine it.

    The values of a stream are numbers, or tensors or arrays of one shape ``[*F]``. The
    leaf of a window has the shape ``[n, *F]`` for ``n`` values, and the dtype of the
    values. If floats follow integers, the dtype becomes ``float32``.

    Raises:
        RuntimeError: iteration and :meth:`collect` raise it after a producer failed.
            The message names the stream; the cause is the producer's error.

    Examples:
        >>> import asyncio
        >>> async def count(queue):
        ...     for i in range(5):
        ...         await queue.put(i)
        >>> async def main():
        ...     async with StreamCollector({"number": count}, window_s=60) as streams:
        ...         return [bucket["number"].tolist() async for bucket in streams]
        >>> asyncio.run(main())
        [[0, 1, 2, 3, 4]]
    """

    def __init__(
        self,
        streams: Mapping[Any, Producer],
        window_s: float,
        *,
        capacity: int = DEFAULT_CAPACITY,
        when_full: WhenFull = "block",
        dtypes: Mapping[Any, torch.dtype] | None = None,
    ) -> None:
        if not (isinstance(window_s, int | float) and 0 < window_s < math.inf):
            raise ValueError(MSG_WINDOW.format(window_s=window_s))
        if not (isinstance(capacity, int) and capacity > 0):
            raise ValueError(MSG_CAPACITY.format(capacity=capacity))
        if when_full not in POLICIES:
            message = MSG_WHEN_FULL.format(policies=POLICIES, when_full=when_full)
            raise ValueError(message)
        if not streams:
            raise ValueError(MSG_NO_STREAM)
        self.window_s = window_s
        self._producers = {
            unravel_key(key): producer for key, producer in streams.items()
        }
        for stream, producer in self._producers.items():
            if not (
                producer is None or callable(producer) or hasattr(producer, "__aiter__")
            ):
                kind = type(producer).__name__
                raise TypeError(MSG_PRODUCER.format(stream=stream, kind=kind))
        dtype_of_stream = {
            unravel_key(key): dtype for key, dtype in (dtypes or {}).items()
        }
        for stream in dtype_of_stream:
            self._check_stream(stream)
        self._buffers = {
            stream: StreamBuffer(
                stream,
                capacity,
                when_full,
                dtype_of_stream.get(stream),
                self._window_now,
                self._make_room,
            )
            for stream in self._producers
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start_s = 0.0
        self._next_window = 0
        self._tasks: dict[NestedKey, asyncio.Task[Any]] = {}
        self._finished: set[NestedKey] = set()
        self._closed = False
        self._wanted: int | None = None  # the window for which a consumer waits
        self._alarm: asyncio.Future[None] | None = None
        self._is_crowded = False  # whether a producer waits for room
        self._ended = self._nothing_ended()
        self._ending = threading.Lock()

    # --- Writing ----------------------------------------------------------------------

    def push(
        self, stream: NestedKey, value: object, timeout_s: float | None = None
    ) -> None:
        """Add a value to a stream from any thread; see :meth:`StreamBuffer.push`.

        Values that are pushed before the start belong to the first window.

        Raises:
            KeyError: there is no such stream.
            TimeoutError: the stream is full, ``when_full="block"``, and there was no
                room in time.
        """
        self._buffers[self._check_stream(stream)].push(value, timeout_s)

    @property
    def num_dropped(self) -> dict[NestedKey, int]:
        """The number of dropped values of each stream."""
        return {stream: buffer.num_dropped for stream, buffer in self._buffers.items()}

    # --- Reading ----------------------------------------------------------------------

    def start(self) -> None:
        """Start the clock and the producers; ``async with`` and iteration call this."""
        if self._closed:
            raise RuntimeError(MSG_CLOSED)
        if self._loop is not None:
            return
        loop = asyncio.get_running_loop()
        self._start_s = loop.time()
        self._loop = loop
        for stream, buffer in self._buffers.items():
            buffer.note_loop_thread()
            producer = self._producers[stream]
            if producer is not None:
                task = loop.create_task(_produce(producer, buffer))
                task.add_done_callback(functools.partial(self._note_end, stream))
                self._tasks[stream] = task

    def __aiter__(self) -> AsyncIterator[TensorDict]:
        return self

    async def __anext__(self) -> TensorDict:
        """Return the next window, after it has ended.

        If every stream has a producer and all of them have finished, iteration ends
        after the last value.
        """
        windows = await self._take(1)
        if windows is None:
            raise StopAsyncIteration
        return TensorDict(
            {
                stream: self._buffers[stream].to_tensor(values)
                for stream, (values, _) in windows.items()
            }
        )

    async def collect(
        self,
        num_windows: int,
        *,
        densify: bool = True,
        layout: torch.layout = torch.strided,
    ) -> TensorDictBase:
        """Return the next windows together, with batch size ``[num_windows]``.

        Args:
            num_windows: the number of windows; fewer are returned if all producers
                finish earlier.
            densify: whether to return one nested tensor for each stream. If false, the
                result is a :class:`BucketStack` with one member for each window.
            layout: the layout of nested tensors: ``torch.strided`` or ``torch.jagged``.
        """
        windows = await self._take(num_windows)
        if windows is None:
            windows = self._nothing_ended()
        columns = [
            (stream, Column(self._buffers[stream].to_tensor(values), sizes))
            for stream, (values, sizes) in windows.items()
        ]
        if densify:
            return dense_columns(columns, layout)
        return BucketStack.from_columns(columns)

    async def aclose(self) -> None:
        """Cancel the producers, wait for their end, and refuse further values.

        Raises:
            RuntimeError: a producer failed, and no earlier call has raised its error.
        """
        self._closed = True
        for buffer in self._buffers.values():
            buffer.close()
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        for stream, task in tasks.items():
            _raise_failure(stream, task)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except RuntimeError:
            if error is None:
                raise

    # --- Windows ----------------------------------------------------------------------

    async def _take(
        self, num_windows: int
    ) -> dict[NestedKey, tuple[list[Any], list[int]]] | None:
        """Return values and sizes of the next windows; None if the streams have ended.

        The buffers assign values to windows, so one look after the last window has
        ended is enough. If a buffer fills up earlier, its ended windows are moved to
        ``_ended``: the capacity limits one window, not all windows of the call.
        """
        self.start()
        if self._wanted is not None:
            raise RuntimeError(MSG_BUSY)
        first = self._next_window
        self._wanted = first + num_windows
        try:
            end = await self._wait_for(self._wanted)
        finally:
            self._wanted = None
        if end <= first:
            return None
        self._end_windows_before(end)
        self._wake_producers()
        self._next_window = end
        return {
            stream: _cut(values, sizes, end - first)
            for stream, (values, sizes) in self._ended.items()
        }

    async def _wait_for(self, wanted: int) -> int:
        """Wait until all windows before ``wanted`` have ended.

        Returns:
            ``wanted``, or less if the streams end earlier.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._raise_failures()
            if self._window_now() >= wanted:
                return wanted
            if self._have_all_finished():
                last = max(buffer.num_windows() for buffer in self._buffers.values())
                return min(wanted, last)
            next_look = self._window_now() + 1 if self._is_crowded else wanted
            self._alarm = loop.create_future()
            handle = loop.call_at(self._start_s + next_look * self.window_s, self._ring)
            try:
                await self._alarm
            finally:
                handle.cancel()
                self._alarm = None
            if self._is_crowded:
                self._end_windows_before(min(self._window_now(), wanted))
                self._is_crowded = any(
                    buffer.full() for buffer in self._buffers.values()
                )
                self._wake_producers()

    def _wake_producers(self) -> None:
        for buffer in self._buffers.values():
            if not buffer.full():
                buffer.wake()

    def _ring(self) -> None:
        """Wake the waiting consumer; call it on the loop's thread."""
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)

    def _make_room(self, buffer: StreamBuffer) -> None:
        """Free room in a full buffer; its producer calls this on any thread."""
        wanted, loop = self._wanted, self._loop
        if wanted is None or loop is None:
            return
        self._end_windows_before(min(self._window_now(), wanted))
        if buffer.full() and buffer.when_full == "block":
            loop.call_soon_threadsafe(self._note_crowd)

    def _note_crowd(self) -> None:
        if not self._is_crowded:
            self._is_crowded = True
            self._ring()

    def _end_windows_before(self, window: int) -> None:
        with self._ending:
            for stream, buffer in self._buffers.items():
                values, sizes = buffer.take_before(window)
                self._ended[stream][0].extend(values)
                self._ended[stream][1].extend(sizes)

    def _nothing_ended(self) -> dict[NestedKey, tuple[list[Any], list[int]]]:
        return {stream: ([], []) for stream in self._buffers}

    def _window_now(self) -> int:
        if self._loop is None:
            return 0
        now_s = self._loop.time() - self._start_s
        window = int(now_s / self.window_s)
        # Division and multiplication round differently, and timers use the product.
        if now_s >= (window + 1) * self.window_s:
            window += 1
        elif now_s < window * self.window_s:
            window -= 1
        return window

    # --- Producers --------------------------------------------------------------------

    def _have_all_finished(self) -> bool:
        return len(self._finished) == len(self._buffers)

    def _note_end(self, stream: NestedKey, _: asyncio.Task[Any]) -> None:
        self._finished.add(stream)
        self._ring()

    def _raise_failures(self) -> None:
        # Each error is raised once; the values of other streams can be taken after
        # that.
        for stream in [name for name in self._finished if name in self._tasks]:
            _raise_failure(stream, self._tasks.pop(stream))

    def _check_stream(self, stream: NestedKey) -> NestedKey:
        stream = unravel_key(stream)
        if stream not in self._producers:
            message = MSG_NO_SUCH.format(stream=stream, streams=[*self._producers])
            raise KeyMessageError(message)
        return stream


def _raise_failure(stream: NestedKey, task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        raise RuntimeError(MSG_FAILED.format(stream=stream)) from task.exception()


def _cut(
    values: list[Any], sizes: list[int], num_windows: int
) -> tuple[list[Any], list[int]]:
    """Remove and return the first windows of the two lists."""
    num_values = sum(sizes[:num_windows])
    taken = values[:num_values], sizes[:num_windows]
    del values[:num_values]
    del sizes[:num_windows]
    return taken


async def _produce(producer: Any, buffer: StreamBuffer) -> None:
    if hasattr(producer, "__aiter__"):
        async for value in producer:
            await buffer.put(value)
    else:
        await producer(buffer)
