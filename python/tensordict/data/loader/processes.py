"""Make batches in processes, with the workers of :meth:`TensorDict.map`."""

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
"""A number of batches larger than any epoch of unknown length."""


def backend_for(loader: BatchLoader) -> ProcessesBackend:
    """Return a backend: forked processes for each epoch, or a pool for the loader's life."""
    method = multiprocessing.get_context(loader.mp_start_method).get_start_method()
    if method == "fork":
        return ForkBackend(loader.workers)
    pool = WorkerPool(loader.workers, method)
    # The pool's processes are daemons, which end with this process.
    weakref.finalize(loader, _close, pool, os.getpid()).atexit = False
    return pool


def _close(pool: WorkerPool, owner: int) -> None:
    if os.getpid() == owner:
        pool.close()


class _RowsInMemory:
    """A job's plan whose chunks are batches, with the row indices in shared memory.

    Each batch has a slot; after the batch has arrived, a later batch reuses the slot.
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
    """A pipeline of worker processes.

    Args:
        backend: the worker processes.
        source: the source of the rows.
        transform: the function that is called with each batch.
        num_prefetched: the most batches that are begun ahead.
        batch_size: the most rows of a batch.
        numbers: the number of the first batch, and the number after the last, or None.
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
        # A task is handed out only after its rows are written.
        self._outcomes: Generator[Outcome, None, None] = backend.run(
            job, lambda: self._next_put - self._first - num_slots
        )
        self._waiting: dict[int, Outcome] = {}

    def put(self, rows: torch.Tensor) -> None:
        """Begin a batch."""
        self._plan.write(self._next_put, rows)
        self._next_put += 1

    def get(self) -> Any:
        """Wait for the oldest batch."""
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
        """End the work; idle processes of a pool stay alive."""
        if self._next_get == self._stop:
            for _ in self._outcomes:
                pass
        self._outcomes.close()

    abandon = close
