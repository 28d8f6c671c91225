"""Make batches in processes, with the workers of ``map``."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from typing import TYPE_CHECKING, Any

import torch

from tensordict.parallel.jobs import Job
from tensordict.parallel.pool import WorkerPool
from tensordict.parallel.processes import ForkBackend, ProcessesBackend
from tensordict.parallel.transport import share_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tensordict.data.loader.loader import BatchLoader
    from tensordict.data.loader.source import Source
    from tensordict.parallel.jobs import Outcome

__all__ = ["ProcessesPipeline", "backend_for"]

_MANY = 2**20
"""More batches than an epoch has whose number is not known before."""


def backend_for(loader: BatchLoader) -> ProcessesBackend:
    """Choose processes forked for each epoch, or a pool that lives as long as a loader."""
    method = multiprocessing.get_context(loader.mp_start_method).get_start_method()
    if method == "fork":
        return ForkBackend(loader.workers)
    pool = WorkerPool(loader.workers, method)
    # At the end of this process its daemons end anyway.
    weakref.finalize(loader, _close, pool, os.getpid()).atexit = False
    return pool


def _close(pool: WorkerPool, owner: int) -> None:
    if os.getpid() == owner:
        pool.close()


class _RowsInMemory:
    """The plan of a job whose chunks are batches: their rows are in shared memory.

    A batch has a slot there, which the next one takes when this one has arrived.
    """

    drops_dim = False

    def __init__(self, num_slots: int, batch_size: int, num_rows: int) -> None:
        self.slots = torch.zeros(num_slots, batch_size + 1, dtype=torch.int64)
        self.slots.share_memory_()
        self.size = batch_size
        self.num_rows = num_rows

    def write(self, batch: int, rows: torch.Tensor) -> None:
        slot = self.slots[batch % len(self.slots)]
        slot[1 : 1 + len(rows)] = rows
        slot[0] = len(rows)

    def take(self, source: Source, chunk: int) -> Any:
        slot = self.slots[chunk % len(self.slots)]
        return source.take(slot[1 : 1 + int(slot[0])].clone())

    def named(self, chunk: int) -> str:
        slot = self.slots[chunk % len(self.slots)]
        rows = slot[1 : 1 + int(slot[0])].tolist()
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        return f"batch {chunk} (rows {shown})"


class ProcessesPipeline:
    """Makes batches in worker processes.

    Args:
        backend: has the processes.
        source: what rows are taken from.
        transform: is called with each batch.
        num_prefetched: how many batches are begun at most.
        batch_size: how many rows a batch has at most.
        numbers: those of the first batch and the one behind the last, if that is known.
        seed: batch ``i`` is made with the seed ``seed + i``.
    """

    def __init__(
        self,
        backend: ProcessesBackend,
        source: Source,
        transform: Callable[[Any], Any],
        num_prefetched: int,
        batch_size: int,
        numbers: tuple[int, int | None],
        seed: int,
    ) -> None:
        first, stop = numbers
        for td in source.collections():
            share_memory(td)
        num_slots = num_prefetched + 1
        self._plan = _RowsInMemory(num_slots, batch_size, source.num_rows)
        todo: Any = range(first, first + _MANY if stop is None else stop)
        job = Job(
            function=transform,
            source=source,
            plan=self._plan,  # type: ignore[arg-type]
            todo=todo,
            seed=seed,
            seed_per_chunk=True,
            window=num_slots,
        )
        self._next_put = self._next_get = self._first = first
        self._stop = stop
        # No task is handed out before its rows are written.
        self._outcomes: Generator[Outcome, None, None] = backend.run(
            job, lambda: self._next_put - self._first - num_slots
        )
        self._waiting: dict[int, Outcome] = {}

    def put(self, rows: torch.Tensor) -> None:
        """Begin a batch."""
        self._plan.write(self._next_put, rows)
        self._next_put += 1

    def get(self) -> Any:
        """Wait for the batch that was begun first."""
        wanted = self._next_get
        while wanted not in self._waiting:
            outcome = next(self._outcomes, None)
            if outcome is None:
                self._raise_any(wanted)
            else:
                self._waiting[outcome.chunk] = outcome
        self._next_get += 1
        outcome = self._waiting.pop(wanted)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def _raise_any(self, wanted: int) -> None:
        for batch in sorted(self._waiting):
            error = self._waiting[batch].error
            if error is not None:
                raise error
        msg = f"the workers ended before batch {wanted} was made"
        raise RuntimeError(msg)

    def close(self) -> None:
        """End the work. Processes that have nothing left to do stay."""
        if self._next_get == self._stop:
            for _ in self._outcomes:
                pass
        self._outcomes.close()

    abandon = close
