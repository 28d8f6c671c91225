"""Read some rows in a worker, before the main process needs them.

A row whose stream has ended waits for its next stream, which the main process assigns.
Meanwhile the worker continues to read the other rows, as far as there are free slots.
"""

from __future__ import annotations

import pickle
import random
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.data.streams.reading import (
    END,
    MISSING,
    RowReader,
    StreamError,
    text_of,
)
from tensordict.data.streams.slots import SlotWriter
from tensordict.parallel.descriptors import send_descriptor
from tensordict.parallel.parent import end_with_parent
from tensordict.parallel.transport import dumps

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tensordict.data.streams.dataset import StreamDataset

FOREVER = 2**62
IDLE = -1


class Portable:
    """A wrapper that pickles a dataset as :meth:`TensorDict.map` pickles functions.

    Definitions of a notebook or a prompt are pickled by value, since a worker cannot
    import them.
    """

    def __init__(self, dataset: StreamDataset) -> None:
        self.dataset = dataset

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            data = dumps(self.dataset)
        except Exception as error:  # noqa: BLE001 - pickle raises many kinds
            try:
                import cloudpickle  # type: ignore[import-untyped]
            except ImportError:
                raise ImportError(
                    f"Pickle cannot send the streams to a worker ({error}). Install cloudpickle, "
                    "which may succeed, or use the start method 'fork'."
                ) from error
            data = cloudpickle.dumps(self.dataset)
        return _portable_from, (data,)


def _portable_from(data: bytes) -> Portable:
    return Portable(pickle.loads(data))  # noqa: S301 - from our own parent


@dataclass(frozen=True)
class Counters:
    """The indices of numbers in the memory that all processes share.

    The numbers say how far each row was read, how many steps each worker has written to
    its slots, and how many messages were sent, so that no process reads from an empty
    pipe.
    """

    num_rows: int
    num_workers: int
    num_headers: int

    CONSUMED = 0
    STOP = 1

    def known_until(self, row: int) -> int:
        """Return the index of the step up to which the row is known."""
        return 2 + row

    def reading(self, row: int) -> int:
        """Return the index of the row's stream plus one, or ``IDLE``."""
        return 2 + self.num_rows + row

    def progress(self, worker: int) -> int:
        """Return the index of the step up to which slots are written."""
        return 2 + 2 * self.num_rows + worker

    def reported(self, worker: int) -> int:
        """Return the index of the number of messages from the worker."""
        return 2 + 2 * self.num_rows + self.num_workers + worker

    def told(self, worker: int) -> int:
        """Return the index of the number of messages to the worker."""
        return 2 + 2 * self.num_rows + 2 * self.num_workers + worker

    def is_awaited(self, worker: int) -> int:
        """Return the index of a flag: the main process sleeps until a further step."""
        return 2 + 2 * self.num_rows + 3 * self.num_workers + worker

    def wake_at(self, worker: int) -> int:
        """Return the index of the consumed steps at which a sleeping worker wakes."""
        return 2 + 2 * self.num_rows + 4 * self.num_workers + worker

    def header(self, worker: int, step: int) -> int:
        """Return the index of the size of a step's header; then its segment's number."""
        start = 2 + 2 * self.num_rows + 5 * self.num_workers
        return start + 2 * (worker * self.num_headers + step % self.num_headers)

    def count(self) -> int:
        """Return how many numbers there are."""
        return self.header(self.num_workers, 0)


@dataclass
class Shared:
    """The memory and channels that a worker and the main process share."""

    layout: Counters
    num_slots: int | None
    block: Any
    doorbell: Any
    bell: Any
    connection: Connection

    def counters(self) -> _rust.SharedCounters:
        """Return the numbers of the block."""
        return _rust.SharedCounters(memoryview(self.block).cast("B").cast("q"))


def run(
    portable: Portable, worker: int, rows: range, step: int, seed: int, shared: Shared
) -> None:
    """Read rows until the main process stops this worker."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends us
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    random.seed(seed)
    job = Worker(portable.dataset, worker, rows, step, shared)
    try:
        job.work()
    except Exception as error:  # noqa: BLE001 - the main process raises it
        job.report(("crash", text_of(error)))
    except KeyboardInterrupt:
        pass


class Worker:
    """A worker: the rows that it reads, and its progress."""

    def __init__(
        self,
        dataset: StreamDataset,
        worker: int,
        rows: range,
        step: int,
        shared: Shared,
    ) -> None:
        self._reader = RowReader(dataset)
        self._skips = dataset.on_error == "skip"
        self._worker = worker
        self._rows = rows
        self._shared = shared
        self._layout = shared.layout
        self._counters = shared.counters()
        self._writer = SlotWriter(shared.num_slots, self._announce)
        self._num_segments = 0
        self._num_reported = 0
        self._num_heard = 0
        # The step that is written next, and the items of rows from it on.
        self._step = step
        self._prefetched: list[list[Any]] = []
        # The step for which each row is read next.
        self._next = dict.fromkeys(rows, step)
        # Rows that read a stream. The other rows wait for a turn, or are permanently
        # idle.
        self._active: list[int] = []
        self._idle: set[int] = set()
        self._turns: dict[int, list[Any]] = {row: [] for row in rows}
        self._num_turns = 0

    def work(self) -> None:
        """Read as far as possible, then wait, until stopped."""
        while not self._counters.get(Counters.STOP):
            if not self._advance():
                self._wait()

    def _advance(self) -> bool:
        """Read rows for the lowest incomplete step; return False if none can be read."""
        consumed = self._counters.get(Counters.CONSUMED)
        limit = consumed + self._writer.num_slots
        self._hear()
        following = self._next
        has_read = False
        if self._active:
            step = min([following[row] for row in self._active])
            if step < limit:
                has_read = True
                self._read_step(step)
        while self._step < limit and self._is_complete():
            self._write(consumed)
            limit = consumed + self._writer.num_slots
            has_read = True
        if len(self._active) + len(self._idle) < len(self._rows):
            self._tell_how_far()
        return has_read

    def _read_step(self, step: int) -> None:
        following, first = self._next, self._rows.start
        while len(self._prefetched) <= step - self._step:
            self._prefetched.append([MISSING] * len(self._rows))
        items = self._prefetched[step - self._step]
        read = self._reader.read
        ended = []
        for row in self._active:
            if following[row] != step:
                continue
            if self._num_turns and not self._turn_is_taken(row, step):
                ended.append(row)
                continue
            try:
                item = read(row, step)
            except StreamError as error:
                self._fail(row, step, error)
                ended.append(row)
                continue
            if item is END:
                ended.append(row)
                self._reader.close(row, step)
                self._counters.set(self._layout.known_until(row), step)
                self.report(("ended", row, step))
                continue
            items[row - first] = item
            following[row] = step + 1
        if ended:
            self._active = [row for row in self._active if row not in ended]

    def _turn_is_taken(self, row: int, step: int) -> bool:
        """Take the row's turn if one is due; return False if nothing is left to read."""
        turns = self._turns[row]
        return not turns or turns[0][2] > step or self._take_turn(row, step)

    def _take_turn(self, row: int, step: int) -> bool:
        """Open the stream of the last due turn; return False if the row becomes idle."""
        turns = self._turns[row]
        due = [turn for turn in turns if turn[2] <= step]
        self._turns[row] = turns[len(due) :]
        self._num_turns -= len(due)
        _, stream, _, num_read, length = due[-1]
        reading = self._layout.reading(row)
        try:
            if stream is None:
                self._reader.close(row, step)
                self._idle.add(row)
                self._counters.set(reading, IDLE)
                return False
            self._reader.open(row, stream, step, num_read, length)
        except StreamError as error:
            self._fail(row, step, error)
            return False
        self._counters.set(reading, stream + 1)
        return True

    def _fail(self, row: int, step: int, error: StreamError) -> None:
        self._counters.set(self._layout.known_until(row), step)
        if not self._skips:  # no item follows an error
            self._num_turns -= len(self._turns[row])
            self._turns[row] = []
        else:
            self._reader.close(row, step)
        self.report(("failed", row, step, str(error), _described(error)))

    def _is_complete(self) -> bool:
        step, following = self._step, self._next
        for row in self._rows:
            if following[row] <= step and row not in self._idle:
                return False
        return True

    def _write(self, consumed: int) -> None:
        items = (
            self._prefetched.pop(0) if self._prefetched else [MISSING] * len(self._rows)
        )
        counters, layout, step = self._counters, self._layout, self._step
        size = self._writer.write(step, consumed, self._rows, items)
        header = layout.header(self._worker, step)
        counters.set(header, size)
        counters.set(header + 1, self._num_segments - 1)
        self._step = step + 1
        counters.set(layout.progress(self._worker), step + 1)
        is_awaited = layout.is_awaited(self._worker)
        if counters.get(is_awaited):
            counters.set(is_awaited, 0)
            self._shared.doorbell.release()

    def _tell_how_far(self) -> None:
        """Publish how far each row is read; the streams of waiting rows depend on it."""
        for row in self._active:
            self._counters.set(self._layout.known_until(row), self._next[row])
        self._shared.doorbell.release()

    def _hear(self) -> None:
        """Take the turns that the main process sent."""
        told = self._layout.told(self._worker)
        while self._counters.get(told) > self._num_heard:
            for turn in self._shared.connection.recv():
                row = turn[0]
                self._turns[row].append(turn)
                self._num_turns += 1
                if (
                    row not in self._active
                    and turn[2] <= self._next[row]
                    and self._take_turn(row, self._next[row])
                ):
                    self._active = sorted([*self._active, row])
            self._num_heard += 1

    def _wait(self) -> None:
        bell, counters = self._shared.bell, self._counters
        while bell.acquire(False):
            pass
        consumed = counters.get(Counters.CONSUMED)
        num_slots = self._writer.num_slots
        wake_at = self._layout.wake_at(self._worker)
        counters.set(wake_at, consumed + max(1, num_slots // 4))
        if not (
            counters.get(self._layout.told(self._worker)) > self._num_heard
            or counters.get(Counters.STOP)
            or counters.get(Counters.CONSUMED) > consumed
        ):
            bell.acquire(True, 1.0)
        counters.set(wake_at, FOREVER)

    def report(self, message: object) -> None:
        """Send a message to the main process."""
        self._shared.connection.send(message)
        self._count_report()

    def _count_report(self) -> None:
        self._num_reported += 1
        self._counters.set(self._layout.reported(self._worker), self._num_reported)
        self._shared.doorbell.release()

    def _announce(self, descriptor: int, slot_bytes: int, num_slots: int) -> None:
        connection = self._shared.connection
        connection.send(("segment", slot_bytes, num_slots))
        send_descriptor(connection, descriptor)
        self._num_segments += 1
        self._count_report()


def _described(error: StreamError) -> tuple[bytes | None, str]:
    """Return the cause of an error, pickled if possible, and its traceback as text."""
    cause = error.__cause__
    if cause is None:
        return None, ""
    try:
        data = pickle.dumps(cause)
        pickle.loads(data)  # noqa: S301 - our own data; some exceptions pickle but do not unpickle
    except Exception:  # noqa: BLE001 - its class may raise anything
        data = None
    return data, text_of(cause)
