"""The backend of Ray: workers on this machine, or on those of a cluster.

The job of a call is put into Ray's object store once. Each worker is an actor, which has
a chunk and the next one. Which machines they are on is decided by Ray.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from typing import TYPE_CHECKING, Any

import torch

from tensordict.parallel.errors import DeadWorkerError, describe, note, rebuild
from tensordict.parallel.jobs import Job, Outcome, kept
from tensordict.parallel.seeding import seed_worker
from tensordict.primitives.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

__all__ = ["RayBackend", "RayPool"]

MSG_NOT_BEGUN = "the worker could not read the collection, or the function"
MSG_MISSING = "backend='ray' needs Ray: pip install tensordict-rs[ray]"

_DEPTH = 2
"""The chunks that a worker has at once: the one that it is at, and the next."""

_numbers = itertools.count()
"""Tell the jobs of the workers apart."""

_GRACE_S = 0.1
_LISTEN_S = 1.0
_LOOK_EVERY_S = 0.1


def _ray() -> Any:
    """Ray, connected to a cluster: the one that is in use, or a new one here."""
    try:
        import ray
    except ImportError:
        raise ImportError(MSG_MISSING) from None
    if not ray.is_initialized():
        ray.init()
    return ray


class _Actor:
    """The actor that runs in a worker."""

    def __init__(self) -> None:
        self._job: Any = None
        self._number = -1

    def begin(self, job: Job, place: int, number: int) -> None:
        """Take another job: which worker of it this is, and how the caller calls it."""
        torch.set_num_threads(job.num_threads)
        seed_worker(job.seed, place)
        self._job = job
        self._number = number

    def run(self, chunk: int, number: int) -> tuple[bool, Any]:
        """Call the function; return True and the result, or False and the error."""
        if number != self._number:
            # The error of `begin` says why.
            raise RuntimeError(MSG_NOT_BEGUN)
        try:
            return True, self._job.run(chunk)
        except BaseException as error:  # noqa: BLE001 # also what would end the process
            return False, describe(error)


class _Worker:
    """An actor and the chunks that it has, in their order."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.actor: Any = None
        self.beginning: Any = None
        self.job_number = -1
        self.chunks: collections.deque[tuple[int, Any]] = collections.deque()
        self.count = 0
        self.is_new = True
        self.is_lost = False
        self.since = time.monotonic()


class RayPool(Closing):
    """Workers of Ray that do one :meth:`~tensordict.TensorDict.map` after the other.

    Each chunk is a copy, unless it is memory-mapped: what a function writes to it in place
    is not written to the collection. Results, and what a journal keeps, are written by
    this process. Files of memory-mapped collections have to be there on every machine.

    Ray is connected to its cluster when it is not connected yet: to the one that
    ``RAY_ADDRESS`` names, or to a new one on this machine.

    Args:
        num_workers: how many workers there are, by default one for each processor of the
            cluster.

    Raises:
        ImportError: Ray is not installed.
        ValueError: there would be no worker.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        if num_workers is not None and num_workers < 1:
            msg = "Number of processes must be at least 1"
            raise ValueError(msg)
        self.ray: Any = _ray()
        if num_workers is None:
            num_workers = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        self.num_workers: int = num_workers
        # Without a processor of its own, no worker waits for one forever.
        self._actor = self.ray.remote(_Actor).options(scheduling_strategy="SPREAD")
        self._idle: list[Any] = []

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Give outcomes as they come."""
        call = _Call(self, job, min(self.num_workers, len(job.todo)), num_taken)
        try:
            yield from call.outcomes()
        finally:
            call.close()

    def hire(self) -> tuple[Any, bool]:
        """Give an idle worker, or a new one, and whether it is new."""
        if self._idle:
            return self._idle.pop(), False
        return self._actor.remote(), True

    def leave(self, actor: object, is_idle: bool) -> None:
        """Keep a worker that has done its work, end one that has not."""
        if is_idle:
            self._idle.append(actor)
        else:
            self.ray.kill(actor)

    def close(self) -> None:
        """End the workers. The cluster stays."""
        while self._idle:
            self.ray.kill(self._idle.pop())


class RayBackend(RayPool):
    """A pool for one call."""

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Run the job as every backend does; the workers end with the call."""
        try:
            yield from super().run(job, num_taken)
        finally:
            self.close()


class _Call:
    """One job in actors, as its caller sees it."""

    def __init__(
        self, pool: RayPool, job: Job, num_workers: int, num_taken: Callable[[], int]
    ) -> None:
        self._pool = pool
        self._ray = ray = pool.ray
        self._job = job
        self._num_workers = num_workers
        self._num_taken = num_taken
        # Ray gives memory of its store, which nobody may write to.
        copies_rows = not job.source.is_memmap()
        sent = dataclasses.replace(
            job,
            target=None,
            folder=None,
            journal=None,
            on_progress=None,
            copies_rows=copies_rows,
        )
        try:
            self._packed = ray.put(sent)
        except TypeError as error:
            # That of the pickle says it without the report of Ray.
            raise error.__cause__ or error from None
        self._workers: list[_Worker] = []
        self._num_hired = 0
        self._todo = collections.deque(job.todo)
        self._num_begun = 0
        self._attempts: collections.Counter[int] = collections.Counter()

    def close(self) -> None:
        """End all work."""
        left = [reference for one in self._workers for _, reference in one.chunks]
        if left:
            # The start of another worker takes seconds, and most chunks are short.
            done, _ = self._ray.wait(left, num_returns=len(left), timeout=_GRACE_S)
            left = [reference for reference in left if reference not in done]
        for worker in self._workers:
            if worker.actor is not None:
                is_worn = worker.count == self._job.max_chunks
                is_idle = not (is_worn or worker.is_lost) and not any(
                    reference in left for _, reference in worker.chunks
                )
                self._pool.leave(worker.actor, is_idle)
        self._workers.clear()

    def outcomes(self) -> Iterator[Outcome]:
        """Give what becomes of each chunk."""
        for number in range(self._num_workers):
            worker = _Worker(number)
            self._workers.append(worker)
            self._hire(worker)
        for worker in self._workers:
            self._see_that_it_lives(worker)
        while True:
            self._feed()
            heads = {
                worker.chunks[0][1]: worker for worker in self._workers if worker.chunks
            }
            if not heads:
                return
            limit = self._job.timeout_s
            wait_s = _LISTEN_S if limit is None else min(_LOOK_EVERY_S, limit / 2)
            done, _ = self._ray.wait([*heads], num_returns=1, timeout=wait_s)
            for reference in done:
                yield from self._take(heads[reference], reference)
            yield from self._late()

    def _hire(self, worker: _Worker) -> None:
        worker.actor, worker.is_new = self._pool.hire()
        worker.is_lost = False
        worker.job_number = next(_numbers)
        worker.beginning = worker.actor.begin.remote(
            self._packed, self._num_hired, worker.job_number
        )
        self._num_hired += 1
        worker.count = 0

    def _see_that_it_lives(self, worker: _Worker) -> None:
        """Replace an idle worker that died since the last call, before it has a chunk.

        Later nobody could tell whether it had begun with one.
        """
        while not worker.is_new:
            try:
                self._ray.get(worker.beginning)
            except self._ray.exceptions.RayActorError:
                self._pool.leave(worker.actor, is_idle=False)
                self._hire(worker)
            except Exception:  # noqa: BLE001 # it is raised with the first chunk
                return
            else:
                return

    def _feed(self) -> None:
        """Give each worker chunks, no further than the window reaches."""
        window = self._job.window
        for _ in range(_DEPTH):
            for worker in self._workers:
                if not self._todo or len(worker.chunks) >= _DEPTH:
                    continue
                if window is not None and self._num_begun >= self._num_taken() + window:
                    return
                if worker.count == self._job.max_chunks:
                    if worker.chunks:
                        continue
                    self._replace(worker)
                self._begin(worker, self._todo.popleft())
                self._num_begun += 1

    def _begin(self, worker: _Worker, chunk: int) -> None:
        if not worker.chunks:
            worker.since = time.monotonic()
        worker.count += 1
        worker.chunks.append((chunk, worker.actor.run.remote(chunk, worker.job_number)))

    def _take(self, worker: _Worker, reference: object) -> Iterator[Outcome]:
        chunk, _ = worker.chunks[0]
        where = f"{self._job.plan.named(chunk)} in worker {worker.number}"
        try:
            if worker.beginning is not None:
                # That it cannot read the job is told first.
                self._ray.get(worker.beginning)
            is_result, value = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            # The answer to an earlier chunk may have been lost with it.
            given = " or ".join(self._job.plan.named(one) for one, _ in worker.chunks)
            where = f"{given} in worker {worker.number}"
            died = DeadWorkerError(f"a worker of Ray died while it worked on {where}")
            died.__cause__ = error
            yield from self._given_up(worker, died)
            return
        except Exception as error:  # noqa: BLE001 # it is raised where results are taken
            # The function, the collection or the result could not be pickled, or read.
            note(error, f"raised on {where}")
            outcome = Outcome(chunk, error=error)
        else:
            if is_result:
                outcome = Outcome(chunk, kept(self._job, chunk, value))
            else:
                outcome = Outcome(chunk, error=rebuild(value, where))
        worker.chunks.popleft()
        worker.since = time.monotonic()
        yield outcome

    def _given_up(self, worker: _Worker, error: BaseException) -> Iterator[Outcome]:
        """Let a new worker do the chunks of one that died or takes too long."""
        chunk, _ = worker.chunks[0]
        worker.is_lost = True
        self._attempts[chunk] += 1
        if self._attempts[chunk] > self._job.retries:
            worker.chunks.popleft()
            note(error, f"worker {worker.number}")
            yield Outcome(chunk, error=error)
        self._start_again(worker)

    def _start_again(self, worker: _Worker) -> None:
        left = [chunk for chunk, _ in worker.chunks]
        worker.chunks.clear()
        self._replace(worker)
        for chunk in left:
            self._begin(worker, chunk)

    def _replace(self, worker: _Worker) -> None:
        self._pool.leave(worker.actor, is_idle=False)
        self._hire(worker)
        self._see_that_it_lives(worker)

    def _has_begun(self, worker: _Worker) -> bool:
        done, _ = self._ray.wait([worker.beginning], timeout=0)
        return bool(done)

    def _late(self) -> Iterator[Outcome]:
        limit = self._job.timeout_s
        if limit is None:
            return
        for worker in self._workers:
            if worker.beginning is not None:
                # The start of a process takes seconds, which are not those of a chunk.
                if self._has_begun(worker):
                    worker.beginning = None
                worker.since = time.monotonic()
            elif worker.chunks and time.monotonic() - worker.since > limit:
                chunk, _ = worker.chunks[0]
                where = f"{self._job.plan.named(chunk)} in worker {worker.number}"
                yield from self._given_up(
                    worker, TimeoutError(f"no result after {limit} s of {where}")
                )
