"""The backend over somebody else's workers: pools and executors that were given."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from tensordict.parallel.errors import note
from tensordict.parallel.jobs import Job, Outcome, kept
from tensordict.parallel.seeding import seed_chunk
from tensordict.parallel.transport import Rows, dumps, loads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["ExecutorBackend"]


class ExecutorBackend:
    """Runs chunks in a :class:`multiprocessing.Pool` or :mod:`concurrent.futures` executor.

    Each chunk is sent, since nothing is known of the workers.

    Args:
        executor: has ``submit``, or ``apply_async`` as pools have.
    """

    def __init__(self, executor: Any) -> None:
        if hasattr(executor, "submit"):
            self._submit = executor.submit
            self._result: Callable[[Any], Any] = lambda future: future.result()
            self._cancel: Callable[[Any], Any] = lambda future: future.cancel()
        elif hasattr(executor, "apply_async"):
            self._submit = lambda function, *args: executor.apply_async(function, args)
            self._result = lambda future: future.get()
            self._cancel = lambda _: None
        else:
            msg = (
                "pool must be a multiprocessing.Pool, a concurrent.futures.Executor or a "
                f"tensordict.parallel.WorkerPool, got {type(executor).__name__}."
            )
            raise TypeError(msg)
        workers = getattr(executor, "_max_workers", None)
        found = (
            workers if isinstance(workers, int) else getattr(executor, "_processes", 1)
        )
        self.num_workers: int = found if isinstance(found, int) else 1

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Give outcomes in the order of the chunks, with few of them waiting."""
        del num_taken
        function = _Call(
            job.function, job.seed if job.seed_per_chunk else None, job.retries
        )
        window = job.window or 4 * self.num_workers
        waiting: collections.deque[tuple[int, Any]] = collections.deque()
        chunks = iter(job.todo)
        try:
            while True:
                while len(waiting) < window:
                    chunk = next(chunks, None)
                    if chunk is None:
                        break
                    rows = job.plan.take(job.source, chunk)
                    future = self._submit(function, Rows.of(rows), chunk)
                    waiting.append((chunk, future))
                if not waiting:
                    return
                chunk, future = waiting[0]
                try:
                    outcome = Outcome(chunk, kept(job, chunk, self._result(future)))
                except Exception as error:  # noqa: BLE001 # it is raised where results are taken
                    note(error, f"raised on {job.plan.named(chunk)} in the pool")
                    outcome = Outcome(chunk, error=error)
                waiting.popleft()
                yield outcome
        finally:
            for _, future in waiting:
                self._cancel(future)


class _Call:
    """The function of a job, which travels even where pickle refuses it."""

    def __init__(
        self, function: Callable[..., Any], seed: int | None, retries: int
    ) -> None:
        self._function = function
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
        return _call_of, (dumps(self._function), self._seed, self._retries)


def _call_of(function: bytes, seed: int | None, retries: int) -> _Call:
    return _Call(loads(function), seed, retries)
