"""What a worker does: it reads some rows ahead of the main process.

Rows whose stream ended wait for their turn, which the main process decides; meanwhile the
others are read on, as far as there are slots.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
from dataclasses import dataclass
from multiprocessing import reduction
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

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tensordict.data.streams.dataset import StreamDataset

FOREVER = 2**62
IDLE = -1


class Portable:
    """A dataset on its way to another process, by cloudpickle where pickle fails."""

    def __init__(self, dataset: StreamDataset) -> None:
        self.dataset = dataset

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            data = pickle.dumps(self.dataset)
        except Exception as error:  # noqa: BLE001 - pickle raises many kinds
            try:
                import cloudpickle  # type: ignore[import-untyped]
            except ImportError:
                raise ImportError(
                    f"Pickle cannot send the streams to a worker ({error}). Install "
                    "cloudpickle, which can, or use the start method 'fork'."
                ) from error
            data = cloudpickle.dumps(self.dataset)
        return _portable_from, (data,)


def _portable_from(data: bytes) -> Portable:
    return Portable(pickle.loads(data))  # noqa: S301 - from our own parent


@dataclass(frozen=True)
class Counters:
    """Where each number lies in the memory that all processes share.

    A row has how far it was read and a worker how many steps are in its slots; the other
    numbers say how many messages were sent, so that nobody asks a pipe in vain.
    """

    num_rows: int
    num_workers: int
    num_slots: int

    CONSUMED = 0
    STOP = 1

    def known_until(self, row: int) -> int:
        """The row is read for all steps before this one."""
        return 2 + row

    def reading(self, row: int) -> int:
        """One more than the stream that the row reads, or ``IDLE`` for good."""
        return 2 + self.num_rows + row

    def progress(self, worker: int) -> int:
        """The steps before this one are in slots."""
        return 2 + 2 * self.num_rows + worker

    def reported(self, worker: int) -> int:
        """How many messages the worker sent."""
        return 2 + 2 * self.num_rows + self.num_workers + worker

    def told(self, worker: int) -> int:
        """How many messages the worker was sent."""
        return 2 + 2 * self.num_rows + 2 * self.num_workers + worker

    def header(self, worker: int, slot: int) -> int:
        """The size of a slot's header; the number of its segment is next to it."""
        start = 2 + 2 * self.num_rows + 3 * self.num_workers
        return start + 2 * (worker * self.num_slots + slot)

    def count(self) -> int:
        """How many numbers there are."""
        return self.header(self.num_workers, 0)


@dataclass
class Shared:
    """What a worker and the main process share."""

    layout: Counters
    block: Any
    doorbell: Any
    bell: Any
    connection: Connection

    def counters(self) -> _rust.SharedCounters:
        """The numbers of the block."""
        return _rust.SharedCounters(memoryview(self.block).cast("B").cast("q"))


def run(
    portable: Portable, worker: int, rows: range, step: int, seed: int, shared: Shared
) -> None:
    """Read rows until the main process says stop."""
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
    """The state of one worker."""

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
        self._num_slots = shared.layout.num_slots
        self._writer = SlotWriter(self._num_slots, self._announce)
        self._num_segments = 0
        self._num_reported = 0
        self._num_heard = 0
        # The step that is written next, and what the rows have from it on.
        self._step = step
        self._ahead: list[list[Any]] = []
        # For each row the step that it is read for next; rows without a turn wait.
        self._next = dict.fromkeys(rows, step)
        self._waiting = set(rows)
        self._idle: set[int] = set()
        self._turns: dict[int, list[Any]] = {row: [] for row in rows}

    def work(self) -> None:
        """Read what can be read, and wait where nothing can be."""
        while not self._counters.get(Counters.STOP):
            if not self._advance():
                self._wait()

    def _advance(self) -> bool:
        """Read each row for the lowest step that lacks something. False if none can be."""
        counters = self._counters
        limit = counters.get(Counters.CONSUMED) + self._num_slots
        self._hear()
        rows = [
            row
            for row in self._rows
            if row not in self._waiting
            and row not in self._idle
            and self._next[row] < limit
        ]
        if rows:
            step = min(self._next[row] for row in rows)
            for row in rows:
                if self._next[row] == step:
                    self._read(row, step)
            if self._waiting:
                self._shared.doorbell.release()
        has_written = False
        while self._step < limit and self._is_complete(self._step):
            self._write()
            has_written = True
        return bool(rows) or has_written

    def _is_complete(self, step: int) -> bool:
        return all([row in self._idle or self._next[row] > step for row in self._rows])

    def _read(self, row: int, step: int) -> None:
        layout, reader = self._layout, self._reader
        turns = self._turns[row]
        if turns and turns[0][2] <= step:
            self._take_turn(row, step)
            if row in self._idle or row in self._waiting:
                return
        try:
            item = reader.read(row)
        except StreamError as error:
            self._waiting.add(row)
            reader.close(row)
            self.report(("failed", row, step, str(error), _described(error)))
            if not self._skips:
                self._turns[row] = []  # nothing comes behind an error
            return
        if item is END:
            self._waiting.add(row)
            reader.close(row)
            self._counters.set(layout.known_until(row), step)
            self.report(("ended", row, step))
            return
        while len(self._ahead) <= step - self._step:
            self._ahead.append([MISSING] * len(self._rows))
        self._ahead[step - self._step][row - self._rows.start] = item
        self._next[row] = step + 1
        self._counters.set(layout.known_until(row), step + 1)

    def _take_turn(self, row: int, step: int) -> None:
        """Open the stream of the last turn that is due."""
        turns = self._turns[row]
        due = [turn for turn in turns if turn[2] <= step]
        self._turns[row] = turns[len(due) :]
        _, stream, _, num_read, length = due[-1]
        self._waiting.discard(row)
        reading = self._layout.reading(row)
        try:
            if stream is None:
                self._reader.close(row)
                self._idle.add(row)
                self._counters.set(reading, IDLE)
            else:
                self._reader.open(row, stream, num_read, length)
                self._counters.set(reading, stream + 1)
        except StreamError as error:
            self._waiting.add(row)
            self._turns[row] = []
            self.report(("failed", row, step, str(error), _described(error)))

    def _write(self) -> None:
        items = self._ahead.pop(0) if self._ahead else [MISSING] * len(self._rows)
        slot = self._step % self._num_slots
        size = self._writer.write(slot, self._rows, items)
        header = self._layout.header(self._worker, slot)
        self._counters.set(header, size)
        self._counters.set(header + 1, self._num_segments - 1)
        self._step += 1
        self._counters.set(self._layout.progress(self._worker), self._step)
        self._shared.doorbell.release()

    def _hear(self) -> None:
        """Take the turns that the main process sent."""
        told = self._layout.told(self._worker)
        while self._counters.get(told) > self._num_heard:
            for turn in self._shared.connection.recv():
                row = turn[0]
                self._turns[row].append(turn)
                if row in self._waiting and self._turns[row][0][2] <= self._next[row]:
                    self._take_turn(row, self._next[row])
            self._num_heard += 1

    def _wait(self) -> None:
        bell = self._shared.bell
        while bell.acquire(False):
            pass
        counters = self._counters
        if (
            counters.get(self._layout.told(self._worker)) > self._num_heard
            or counters.get(Counters.STOP)
            or self._can_go_on(counters.get(Counters.CONSUMED) + self._num_slots)
        ):
            return
        if not bell.acquire(True, 1.0):
            parent = multiprocessing.parent_process()
            if parent is not None and not parent.is_alive():
                os._exit(1)  # nobody is there to hear of it

    def _can_go_on(self, limit: int) -> bool:
        return any(
            row not in self._waiting
            and row not in self._idle
            and self._next[row] < limit
            for row in self._rows
        ) or (self._step < limit and self._is_complete(self._step))

    def report(self, message: Any) -> None:
        """Send a message to the main process."""
        self._shared.connection.send(message)
        self._count_report()

    def _count_report(self) -> None:
        self._num_reported += 1
        self._counters.set(self._layout.reported(self._worker), self._num_reported)
        self._shared.doorbell.release()

    def _announce(self, descriptor: int, slot_bytes: int) -> None:
        connection = self._shared.connection
        parent = multiprocessing.parent_process()
        connection.send(("segment", slot_bytes))
        reduction.send_handle(connection, descriptor, parent.pid if parent else 0)
        self._num_segments += 1
        self._count_report()


def _described(error: StreamError) -> tuple[bytes | None, str]:
    """The cause of an error: pickled, if it can be, and as text."""
    cause = error.__cause__
    if cause is None:
        return None, ""
    try:
        data = pickle.dumps(cause)
        pickle.loads(data)  # noqa: S301 - our own; some exceptions only seem to work
    except Exception:  # noqa: BLE001 - whatever its class does
        data = None
    return data, text_of(cause)
