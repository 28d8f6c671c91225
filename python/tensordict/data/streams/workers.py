"""Collect the steps that workers read, in the main process.

The main process assigns the next stream to each row, from the reports of the workers,
and takes the steps in order from the workers' slots.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from tensordict.data.streams.batches import Columns
from tensordict.data.streams.dataset import rows_of_worker
from tensordict.data.streams.reading import StreamError
from tensordict.data.streams.serial import warn_of_skipped
from tensordict.data.streams.slots import (
    MAX_SLOTS,
    Lent,
    SlotReader,
    joined,
    joined_steps,
    side_by_side,
)
from tensordict.data.streams.worker import (
    FOREVER,
    IDLE,
    Counters,
    Portable,
    Shared,
    run,
)
from tensordict.parallel.descriptors import receive_descriptor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import BaseContext

    from tensordict.data.streams.dataset import StreamDataset
    from tensordict.data.streams.loader import Progress

# The pause before a worker is asked to ring: fast workers have several steps by then,
# and one switch of processes serves them all.
_GATHER_S = 2e-4
# The most steps that are copied together.
_MOST_TOGETHER = 16
# The seconds of waiting before a check that the workers are alive.
_CHECK_S = 0.1


class WorkerSteps:
    """An iterator over the steps that workers read."""

    def __init__(
        self,
        dataset: StreamDataset,
        progress: Progress,
        num_workers: int,
        num_slots: int | None,
        context: str | BaseContext | None,
    ) -> None:
        self._dataset = dataset
        self._lanes = progress.lanes
        self._step = progress.step
        self._num_workers = num_workers
        self._num_slots = num_slots
        self._rows = [
            rows_of_worker(number, num_workers, dataset.batch_size)
            for number in range(num_workers)
        ]
        self._worker_of_row = [
            number for number, rows in enumerate(self._rows) for _ in rows
        ]
        knows_lengths = dataset.lengths is not None and dataset.on_error == "raise"
        self._horizon = 4 * (num_slots or MAX_SLOTS) if knows_lengths else FOREVER
        self._readers = [SlotReader() for _ in range(num_workers)]
        self._num_heard = [0] * num_workers
        self._num_told = [0] * num_workers
        # The rows whose stream has ended, with the step, until they get the next
        # stream.
        self._ended: dict[int, int] = {}
        self._is_closed = False
        # Whether steps are returned as views of slots, which are valid until
        # `take_back`.
        self.lends: bool = False
        # Whether small steps that are available are copied together.
        self.joins_steps: bool = False
        self._copied: deque[Columns] = deque()
        self._has_paused = False
        self._failures: dict[tuple[int, int], StreamError] = {}
        self._start(context, progress.epoch)

    def _start(self, context: str | BaseContext | None, epoch: int) -> None:
        chosen: Any = (
            multiprocessing.get_context(context)
            if context is None or isinstance(context, str)
            else context
        )
        dataset = self._dataset
        self._layout = Counters(
            dataset.batch_size, self._num_workers, self._num_slots or MAX_SLOTS
        )
        block = chosen.RawArray("q", self._layout.count())
        self._doorbell = chosen.Semaphore(0)
        self._bells = [chosen.Semaphore(0) for _ in range(self._num_workers)]
        pipes = [chosen.Pipe(duplex=True) for _ in range(self._num_workers)]
        self._connections = [pipe[0] for pipe in pipes]
        shared = [
            Shared(self._layout, self._num_slots, block, self._doorbell, bell, pipe[1])
            for bell, pipe in zip(self._bells, pipes, strict=True)
        ]
        self._counters = shared[0].counters()
        self._counters.set(Counters.CONSUMED, self._step)
        for row in range(dataset.batch_size):
            self._counters.set(self._layout.known_until(row), self._step)
        for number in range(self._num_workers):
            self._counters.set(self._layout.progress(number), self._step)
            self._counters.set(self._layout.wake_at(number), FOREVER)
        self._processes: list[Any] = []
        self._finalizer = weakref.finalize(
            self,
            _stop,
            os.getpid(),
            self._counters,
            self._bells,
            self._processes,
            self._connections,
        )
        # The first turns are sent before the workers start.
        self._decide()
        for number in range(self._num_workers):
            seed = (dataset.seed + 1000003 * epoch + number) % 2**63
            process = chosen.Process(
                target=run,
                args=(
                    Portable(dataset),
                    number,
                    self._rows[number],
                    self._step,
                    seed,
                    shared[number],
                ),
                daemon=True,
            )
            process.start()
            self._processes.append(process)
        for _, other_end in pipes:
            other_end.close()

    def __iter__(self) -> WorkerSteps:
        return self

    def __next__(self) -> list[Any] | Columns | Lent:
        if self._copied:
            self._attend()
            return self._copied.popleft()
        if self._is_closed:
            raise StopIteration
        step = self._step
        self._has_paused = False
        while True:
            # Check first: the messages about the step have then arrived as well.
            is_there = self._is_there(step)
            self._attend()
            if is_there or self._is_over(step):
                break
            self._raise_failure(step)
            self._sleep(step)
        if self._is_over(step):
            self.close()
            raise StopIteration
        parts = [self._read(number, step) for number in range(self._num_workers)]
        self._step = step + 1
        if self.lends and (lent := side_by_side(parts, self._dataset.batch_size)):
            return lent
        part = joined(parts, self._dataset.batch_size)
        if self.joins_steps and isinstance(part, Columns):
            self._copy_alike(part)
        self.take_back()
        return part

    def _copy_alike(self, part: Columns) -> None:
        """Copy further steps of the workers, as long as their layout is unchanged."""
        step, get = self._step, self._counters.get
        layout, workers = self._layout, range(self._num_workers)
        limit = min([get(layout.progress(number)) for number in workers])
        limit = min(limit, step + _MOST_TOGETHER)
        if limit - step < 2 or any(part.others):
            return
        segments = [get(layout.header(number, step - 1) + 1) for number in workers]
        for number, segment in enumerate(segments):
            size = self._readers[number].num_alike(step, segment)
            limit = min(limit, step + size)
            for at in range(step, limit):
                header = layout.header(number, at)
                if get(header) or get(header + 1) != segment:
                    limit = at
                    break
        count = limit - step
        if count >= 2:
            read_steps = [
                self._readers[number].read_alike(step, count, segment)
                for number, segment in enumerate(segments)
            ]
            self._copied.extend(joined_steps(read_steps, count))
            self._step = limit

    def take_back(self) -> None:
        """Let the workers overwrite the slots of the step that was returned last."""
        step = self._step - 1
        self._counters.set(Counters.CONSUMED, step + 1)
        first = self._layout.wake_at(0)
        for number, bell in enumerate(self._bells):
            if self._counters.get(first + number) <= step + 1:
                self._counters.set(first + number, FOREVER)
                bell.release()

    def _sleep(self, step: int) -> None:
        """Wait until a worker has news."""
        doorbell, counters, layout = self._doorbell, self._counters, self._layout
        while doorbell.acquire(False):
            pass
        if not self._has_paused:
            self._has_paused = True
            doorbell.acquire(True, _GATHER_S)
            return
        has_news = False
        for number in range(self._num_workers):
            if counters.get(layout.progress(number)) <= step:
                counters.set(layout.is_awaited(number), 1)
                has_news |= counters.get(layout.progress(number)) > step
            heard = self._num_heard[number]
            has_news |= counters.get(layout.reported(number)) > heard
        if not has_news and not doorbell.acquire(True, _CHECK_S):
            self._check_alive()

    def _read(self, number: int, step: int) -> Any:
        header = self._layout.header(number, step)
        size = self._counters.get(header)
        return self._readers[number].read(step, self._counters.get(header + 1), size)

    def _is_over(self, step: int) -> bool:
        num_steps = self._lanes.num_steps
        return num_steps is not None and step >= num_steps

    def _is_there(self, step: int) -> bool:
        """Return whether all workers have the step."""
        get = self._counters.get
        first = self._layout.progress(0)
        return all([get(first + number) > step for number in range(self._num_workers)])

    def _raise_failure(self, step: int) -> None:
        if self._failures:
            failed = min(self._failures)
            if failed[0] <= step and self._has_reached(step):
                raise self._failures[failed]

    def _has_reached(self, step: int) -> bool:
        """Return whether each row was read for the step, or has failed there."""
        failed = {row for _, row in self._failures}
        get = self._counters.get
        return all(
            row in failed
            or self._ended.get(row) == step
            or self._known_until(row) > step
            or get(self._layout.reading(row)) == IDLE
            for row in range(self._dataset.batch_size)
        )

    def _attend(self) -> None:
        """Receive the reports of workers, and act on them."""
        get = self._counters.get
        first = self._layout.reported(0)
        for number in range(self._num_workers):
            while get(first + number) > self._num_heard[number]:
                self._hear(number)
        if self._ended or self._step >= self._decide_at:
            self._decide()

    def _hear(self, number: int) -> None:
        connection = self._connections[number]
        message = connection.recv()
        self._num_heard[number] += 1
        kind = message[0]
        if kind == "segment":
            descriptor = receive_descriptor(connection)
            self._readers[number].add_segment(descriptor, *message[1:])
        elif kind == "ended":
            _, row, step = message
            self._lanes.end(row, step, is_fit=True)
            self._ended[row] = step
        elif kind == "failed":
            _, row, step, text, cause = message
            error = self._failure(row, text, cause)
            if self._dataset.on_error == "skip":
                warn_of_skipped(error)
                self._lanes.end(row, step, is_fit=False)
                self._ended[row] = step
            else:
                self._failures[step, row] = error
        else:
            raise RuntimeError(f"A worker of the loader failed.\n{message[1]}")

    def _failure(
        self, row: int, text: str, cause: tuple[bytes | None, str]
    ) -> StreamError:
        data, trace = cause
        error = StreamError.about(text, self._streams_read([row]))
        if data is not None:
            error.__cause__ = pickle.loads(data)  # noqa: S301 - from our own worker
        if trace:
            error.add_note(f"In the worker:\n{trace}")
        return error

    def _decide(self) -> None:
        """Assign streams to rows as far as known, and send the turns to the workers."""
        lanes = self._lanes
        for row in range(self._dataset.batch_size):
            lanes.advance(row, self._known_until(row))
        # With known lengths, turns are planned long before they are needed.
        self._decide_at = self._step + self._horizon // 4
        limit = min(FOREVER, self._step + self._horizon)
        turns = lanes.settle(limit)
        if lanes.num_steps is not None:
            self._ended.clear()
        if not turns:
            return
        of_workers: list[list[Any]] = [[] for _ in range(self._num_workers)]
        for turn in turns:
            self._ended.pop(turn[0], None)
            of_workers[self._worker_of_row[turn[0]]].append(turn)
        for number, some in enumerate(of_workers):
            if some:
                self._connections[number].send(some)
                self._num_told[number] += 1
                told = self._layout.told(number)
                self._counters.set(told, self._num_told[number])
                self._bells[number].release()

    def _check_alive(self) -> None:
        """Raise an error if a worker is dead."""
        for number, process in enumerate(self._processes):
            if process.is_alive():
                continue
            self._attend()  # receive its last reports
            rows = self._rows[number]
            streams = self._streams_read(rows)
            names = ", ".join(
                self._dataset.name_of(stream) for stream in self._numbers_read(rows)
            )
            code = process.exitcode
            raise StreamError.about(
                f"A worker of the loader died with exit code {code} while it read "
                f"{names or 'no stream'} (rows {rows.start} to {rows.stop - 1}). A "
                "negative code is a signal: -9 is often a lack of memory.",
                streams,
            )

    def _known_until(self, row: int) -> int:
        """The row was read for all steps before this one."""
        layout, get = self._layout, self._counters.get
        worker = self._worker_of_row[row]
        return max(get(layout.known_until(row)), get(layout.progress(worker)))

    def _numbers_read(self, rows: Sequence[int]) -> list[int]:
        numbers = [self._counters.get(self._layout.reading(row)) - 1 for row in rows]
        return [number for number in numbers if number >= 0]

    def _streams_read(self, rows: Sequence[int]) -> tuple[Any, ...]:
        stream_list = self._dataset.stream_list
        return tuple(stream_list[number] for number in self._numbers_read(rows))

    def close(self) -> None:
        """End the workers."""
        self._is_closed = True
        self._finalizer()


def _stop(
    owner: int,
    counters: Any,
    bells: list[Any],
    processes: list[Any],
    connections: list[Any],
) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that the workers belong to
    counters.set(Counters.STOP, 1)
    for bell in bells:
        bell.release()
    for process in processes:
        process.join(0.5)
        if process.is_alive():
            process.terminate()
            process.join()
    for connection in connections:
        connection.close()
