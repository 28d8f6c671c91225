"""The Ray backend: workers on this machine, or on the machines of a cluster.

A call puts its job into Ray's object store once. Each worker is a Ray actor, and holds at most
two chunks: the current chunk and the next. Ray decides on which machine an actor runs.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from typing import TYPE_CHECKING, Any

import torch

from tensordict.parallel.errors import DeadWorkerError, describe, note, rebuild
from tensordict.parallel.jobs import Job, Outcome, store_result
from tensordict.parallel.seeding import seed_worker
from tensordict.primitives.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import ModuleType

__all__ = ["RayBackend", "RayPool"]

MSG_NOT_BEGUN = "the worker could not unpickle the tensordict or the function"
MSG_MISSING = "backend='ray' needs Ray: pip install tensordict-rs[ray]"

_DEPTH = 2
"""The number of chunks that a worker holds at once: the current chunk and the next."""

_numbers = itertools.count()
"""The numbers of jobs: an actor knows by them for which job a chunk is."""

_GRACE_S = 0.1
_LISTEN_S = 1.0
_LOOK_EVERY_S = 0.1


def _ray() -> ModuleType:
    """Return the ``ray`` module; start Ray unless the process is connected already."""
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
        """Receive a job, and seed the worker by ``place``. Each chunk names the number of its job."""
        torch.set_num_threads(job.num_threads)
        seed_worker(job.seed, place)
        self._job = job
        self._number = number

    def run(self, chunk: int, number: int) -> tuple[bool, Any]:
        """Call the function; return True and the result, or False and the error."""
        if number != self._number:
            # `begin` has failed. The caller raises the error of `begin` instead.
            raise RuntimeError(MSG_NOT_BEGUN)
        try:
            return True, self._job.run(chunk)
        except BaseException as error:  # noqa: BLE001 # SystemExit is an error of the chunk
            return False, describe(error)


class _Worker:
    """An actor and its chunks, in the order in which it works on them."""

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
    """Ray workers that stay alive between calls of :meth:`~tensordict.TensorDict.map`.

    Each chunk is a copy, unless the tensordict is memory-mapped: writes of the function into a
    chunk do not reach the tensordict. The calling process writes the results and the journal.
    The files of a memory-mapped tensordict have to exist on every machine.

    If Ray is not connected, the pool connects it to the cluster that ``RAY_ADDRESS`` names, or
    starts Ray on this machine.

    Args:
        num_workers: the number of workers. The default is one for each CPU of the cluster.

    Raises:
        ImportError: Ray is not installed.
        ValueError: ``num_workers`` is less than 1.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        if num_workers is not None and num_workers < 1:
            msg = "Number of processes must be at least 1"
            raise ValueError(msg)
        self.ray: Any = _ray()
        if num_workers is None:
            num_workers = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        self.num_workers: int = num_workers
        # The actors reserve no CPU: an actor that does might wait for a CPU forever.
        self._actor = self.ray.remote(_Actor).options(scheduling_strategy="SPREAD")
        self._idle: list[Any] = []

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Run the chunks of a job and yield each outcome as soon as it arrives."""
        call = _Call(self, job, min(self.num_workers, len(job.todo)), num_taken)
        try:
            yield from call.outcomes()
        finally:
            call.close()

    def hire(self) -> tuple[Any, bool]:
        """Return an idle or a new worker, and whether it is new."""
        if self._idle:
            return self._idle.pop(), False
        return self._actor.remote(), True

    def leave(self, actor: object, is_idle: bool) -> None:
        """Keep an idle worker for the next call; kill a busy worker."""
        if is_idle:
            self._idle.append(actor)
        else:
            self.ray.kill(actor)

    def close(self) -> None:
        """Kill the workers. Ray stays connected."""
        while self._idle:
            self.ray.kill(self._idle.pop())


class RayBackend(RayPool):
    """A Ray pool that serves one call."""

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Run the chunks of a job, then kill the workers."""
        try:
            yield from super().run(job, num_taken)
        finally:
            self.close()


class _Call:
    """The caller's side of one job in actors."""

    def __init__(
        self, pool: RayPool, job: Job, num_workers: int, num_taken: Callable[[], int]
    ) -> None:
        self._pool = pool
        self._ray = ray = pool.ray
        self._job = job
        self._num_workers = num_workers
        self._num_taken = num_taken
        # Tensors that Ray unpickles are views of its object store, which is read-only.
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
            # The cause is the error of pickle, without Ray's report around it.
            raise error.__cause__ or error from None
        self._workers: list[_Worker] = []
        self._num_hired = 0
        self._todo = collections.deque(job.todo)
        self._num_begun = 0
        self._attempts: collections.Counter[int] = collections.Counter()

    def close(self) -> None:
        """Take the workers back into the pool; kill busy workers."""
        unfinished = [
            reference for worker in self._workers for _, reference in worker.chunks
        ]
        if unfinished:
            # Waiting a moment is cheaper than starting a worker, which takes seconds.
            done, _ = self._ray.wait(
                unfinished, num_returns=len(unfinished), timeout=_GRACE_S
            )
            unfinished = [
                reference for reference in unfinished if reference not in done
            ]
        for worker in self._workers:
            if worker.actor is not None:
                is_worn = worker.count == self._job.max_chunks
                is_idle = not (is_worn or worker.is_lost) and not any(
                    reference in unfinished for _, reference in worker.chunks
                )
                self._pool.leave(worker.actor, is_idle)
        self._workers.clear()

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcome of each chunk."""
        for number in range(self._num_workers):
            worker = _Worker(number)
            self._workers.append(worker)
            self._hire(worker)
        for worker in self._workers:
            self._replace_if_dead(worker)
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

    def _replace_if_dead(self, worker: _Worker) -> None:
        """Replace a worker that died while it was idle, before it receives a chunk.

        After it has received a chunk, nobody can tell whether it began to work on it.
        """
        while not worker.is_new:
            try:
                self._ray.get(worker.beginning)
            except self._ray.exceptions.RayActorError:
                self._pool.leave(worker.actor, is_idle=False)
                self._hire(worker)
            except Exception:  # noqa: BLE001 # `_take` raises it with the first chunk
                return
            else:
                return

    def _feed(self) -> None:
        """Give each worker up to two chunks, within the window of the job."""
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
                # If the worker cannot unpickle the job, this error comes first.
                self._ray.get(worker.beginning)
            is_result, value = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            # The worker may have finished its first chunk: that result is lost as well.
            chunks = " or ".join(
                self._job.plan.named(held) for held, _ in worker.chunks
            )
            where = f"{chunks} in worker {worker.number}"
            died = DeadWorkerError(f"a Ray worker died while it worked on {where}")
            died.__cause__ = error
            yield from self._retry_or_fail(worker, died)
            return
        except Exception as error:  # noqa: BLE001 # the caller raises it
            # The function, the tensordict or the result could not be (un)pickled.
            note(error, f"raised on {where}")
            outcome = Outcome(chunk, error=error)
        else:
            if is_result:
                outcome = Outcome(chunk, store_result(self._job, chunk, value))
            else:
                outcome = Outcome(chunk, error=rebuild(value, where))
        worker.chunks.popleft()
        worker.since = time.monotonic()
        yield outcome

    def _retry_or_fail(
        self, worker: _Worker, error: BaseException
    ) -> Iterator[Outcome]:
        """Replace a worker that died or takes too long, and run its chunks again."""
        chunk, _ = worker.chunks[0]
        worker.is_lost = True
        self._attempts[chunk] += 1
        if self._attempts[chunk] > self._job.retries:
            worker.chunks.popleft()
            note(error, f"worker {worker.number}")
            yield Outcome(chunk, error=error)
        self._start_again(worker)

    def _start_again(self, worker: _Worker) -> None:
        chunks = [chunk for chunk, _ in worker.chunks]
        worker.chunks.clear()
        self._replace(worker)
        for chunk in chunks:
            self._begin(worker, chunk)

    def _replace(self, worker: _Worker) -> None:
        self._pool.leave(worker.actor, is_idle=False)
        self._hire(worker)
        self._replace_if_dead(worker)

    def _has_begun(self, worker: _Worker) -> bool:
        done, _ = self._ray.wait([worker.beginning], timeout=0)
        return bool(done)

    def _late(self) -> Iterator[Outcome]:
        limit = self._job.timeout_s
        if limit is None:
            return
        for worker in self._workers:
            if worker.beginning is not None:
                # The seconds in which the process starts do not count as its first chunk's.
                if self._has_begun(worker):
                    worker.beginning = None
                worker.since = time.monotonic()
            elif worker.chunks and time.monotonic() - worker.since > limit:
                chunk, _ = worker.chunks[0]
                where = f"{self._job.plan.named(chunk)} in worker {worker.number}"
                yield from self._retry_or_fail(
                    worker, TimeoutError(f"no result after {limit} s of {where}")
                )
