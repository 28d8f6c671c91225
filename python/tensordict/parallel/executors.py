"""The backend for a pool or an executor that the caller passes."""

from __future__ import annotations

import collections
import queue
from typing import TYPE_CHECKING, Any

from tensordict.parallel.errors import note
from tensordict.parallel.jobs import Job, Outcome, store_result
from tensordict.parallel.seeding import seed_chunk
from tensordict.parallel.transport import Rows, dumps, loads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["ExecutorBackend"]


class ExecutorBackend:
    """Runs chunks in a :class:`multiprocessing.Pool` or :mod:`concurrent.futures` executor.

    Each task sends the function and the rows, because the workers may be any processes.

    Args:
        executor: an object with ``submit``, or with ``apply_async`` as pools have.
    """

    def __init__(self, executor: Any) -> None:
        if not hasattr(executor, "submit") and not hasattr(executor, "apply_async"):
            msg = (
                "pool must be a multiprocessing.Pool, a concurrent.futures.Executor or a "
                f"tensordict.parallel.WorkerPool, got {type(executor).__name__}."
            )
            raise TypeError(msg)
        self._executor = executor
        workers = getattr(executor, "_max_workers", None)
        if not isinstance(workers, int):
            workers = getattr(executor, "_processes", 1)
        self.num_workers: int = workers if isinstance(workers, int) else 1

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Yield each outcome as soon as it arrives, and submit only a few chunks ahead."""
        function = _Call(
            job.function, job.seed if job.seed_per_chunk else None, job.retries
        )
        waiting: dict[int, Callable[[], Any]] = {}
        done: queue.SimpleQueue[int] = queue.SimpleQueue()
        futures: dict[int, Any] = {}
        todo = collections.deque(job.todo)
        num_begun = 0
        try:
            while todo or waiting:
                # With a window, results that nobody has taken yet count against the limit.
                # Without a window only unfinished chunks count.
                limit = 4 * self.num_workers if job.window is None else job.window
                while todo and limit > (
                    len(waiting) if job.window is None else num_begun - num_taken()
                ):
                    chunk = todo.popleft()
                    rows = job.plan.take(job.source, chunk)
                    waiting[chunk] = self._begin(function, rows, chunk, done, futures)
                    num_begun += 1
                chunk = done.get()
                yield _outcome(job, chunk, waiting.pop(chunk))
                futures.pop(chunk, None)
        finally:
            for future in futures.values():
                future.cancel()

    def _begin(
        self,
        function: _Call,
        rows: object,
        chunk: int,
        done: queue.SimpleQueue[int],
        futures: dict[int, Any],
    ) -> Callable[[], Any]:
        """Submit a chunk, and return a function that gives its result.

        The executor puts the chunk into ``done`` as soon as the result is there.
        """

        def tell(_: object) -> None:
            done.put(chunk)

        get: Callable[[], Any]
        if hasattr(self._executor, "submit"):
            future = futures[chunk] = self._executor.submit(function, rows, chunk)
            future.add_done_callback(tell)
            get = future.result
        else:
            get = self._executor.apply_async(
                function, (rows, chunk), callback=tell, error_callback=tell
            ).get
        return get


def _outcome(job: Job, chunk: int, get: Callable[[], Any]) -> Outcome:
    """Return the outcome of a chunk: the result, or the error that was raised."""
    try:
        return Outcome(chunk, store_result(job, chunk, get()))
    except Exception as error:  # noqa: BLE001 # the caller raises it
        note(error, f"raised on {job.plan.named(chunk)} in the pool")
        return Outcome(chunk, error=error)


class _Call:
    """The function of a job. It is pickled by cloudpickle if pickle refuses it."""

    def __init__(
        self, function: Callable[..., Any], seed: int | None, retries: int
    ) -> None:
        self._function = function
        self._content: bytes | None = None
        self._seed = seed
        self._retries = retries

    def __call__(self, rows: object, chunk: int) -> Any:
        rows = rows.take() if isinstance(rows, Rows) else rows
        for _ in range(self._retries):
            try:
                return self._once(rows, chunk)
            except Exception:  # noqa: BLE001, S112 # the last attempt raises it
                continue
        return self._once(rows, chunk)

    def _once(self, rows: object, chunk: int) -> Any:
        if self._seed is not None:
            seed_chunk(self._seed, chunk)
        return self._function(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        # The function is pickled once for all chunks.
        if self._content is None:
            self._content = dumps(self._function)
        return _call_of, (self._content, self._seed, self._retries)


def _call_of(function: bytes, seed: int | None, retries: int) -> _Call:
    return _Call(loads(function), seed, retries)
