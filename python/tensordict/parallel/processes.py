"""The backend of worker processes: forked for one call, or kept alive in a pool."""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from multiprocessing import connection as connections
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tensordict._rust import Schedule
from tensordict.parallel import transport
from tensordict.parallel.errors import died, note, rebuild
from tensordict.parallel.jobs import Job, Outcome
from tensordict.parallel.results import Layout, Target, Written
from tensordict.parallel.worker import (
    EMPTY,
    FAILED,
    SENT,
    WRITTEN,
    Assignment,
    fork_main,
)
from tensordict.primitives import classes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["ForkBackend", "Hired", "ProcessesBackend"]

_ALONE_S = 0.01
_LOOK_EVERY_S = 0.1
_LISTEN_S = 1.0


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Delay an interrupt, so that every process that starts is registered.

    An exception would also be lost in the functions that run when a process forks.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(before):
        yield
        return
    interrupts: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda *arguments: interrupts.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        before(*interrupts[0])


class Hired:
    """A worker process and the connection to it.

    When this process ends, it kills the worker: a call may be unfinished then, and the worker
    may ignore SIGTERM, the signal that multiprocessing sends, by a handler that it inherited.
    """

    _known: ClassVar[weakref.WeakSet[Hired]] = weakref.WeakSet()

    def __init__(self, context: Any, main: Callable[..., None], *args: Any) -> None:
        self._owner = os.getpid()
        self.connection: connections.Connection
        self.connection, worker_end = multiprocessing.Pipe()
        self.process: Any = context.Process(
            target=main, args=(*args, worker_end), daemon=True
        )
        self._start(worker_end)

    def _start(self, worker_end: Any) -> None:
        try:
            self.process.start()
        finally:
            worker_end.close()
        self._known.add(self)

    @classmethod
    def kill_all(cls) -> None:
        """Kill all worker processes that this process has started and not dismissed."""
        for hired in list(cls._known):
            if hired._owner == os.getpid():
                hired.process.kill()

    def dismiss(self, at_once: bool = True) -> None:
        """Wait until the process ends; kill it first if ``at_once``."""
        if at_once:
            # SIGKILL: the user's function may have installed a handler for other signals.
            self.process.kill()
        self._known.discard(self)
        self.process.join()
        self.connection.close()
        self.process.close()


# Exit functions run in reverse order: registered later, this one runs before
# multiprocessing's, which would wait for the workers.
atexit.register(Hired.kill_all)


class _Worker:
    """A process that works on a job."""

    def __init__(self, hired: Hired, assignment: Assignment) -> None:
        self.hired = hired
        self.slot = assignment.slot
        self.fed: collections.deque[int] = collections.deque()
        self.is_told_to_end = False
        self.since = time.monotonic()


class ProcessesBackend:
    """Runs chunks in processes. Subclasses define how a process is started.

    Args:
        num_workers: the number of processes at once.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Yield errors as soon as they happen, and results in the shared block at the end."""
        if not job.todo:
            return
        call = _Call(self, job, num_taken)
        try:
            yield from call.outcomes()
        finally:
            call.close()

    def hire(self, call: _Call, assignment: Assignment) -> Hired:
        """Start a process, or take an idle one, and give it its part of the job."""
        raise NotImplementedError

    def leave(self, hired: Hired, is_idle: bool) -> None:
        """Take back a process that is idle or in the middle of its work."""
        raise NotImplementedError


class ForkBackend(ProcessesBackend):
    """Forks processes for one call. They inherit the collection and the function."""

    def hire(self, call: _Call, assignment: Assignment) -> Hired:
        """Fork a process that works on the job."""
        _warm_up()
        context = multiprocessing.get_context("fork")
        return Hired(
            context, fork_main, call.job, assignment, call.schedule, call.block
        )

    def leave(self, hired: Hired, is_idle: bool) -> None:
        """End the process."""
        hired.dismiss(at_once=not is_idle)


@functools.cache
def _warm_up() -> None:
    """Load what pickling a first result needs, so that the children inherit it loaded."""
    transport.dumps(classes.TensorDict(result=torch.zeros(1)))


class _Call:
    """The caller's side of one job in processes."""

    def __init__(
        self, backend: ProcessesBackend, job: Job, num_taken: Callable[[], int]
    ) -> None:
        self.job = job
        self._backend = backend
        self._num_taken = num_taken
        self.is_fed: bool = job.window is not None
        self.num_workers: int = min(backend.num_workers, len(job.todo))
        # The schedule gives chunks in order, so a heavy chunk in the middle does not start
        # last.
        self.schedule: Schedule = Schedule(len(job.todo), self.num_workers)
        self.block: int = transport.memory_file("tensordict-results")
        self.shared: transport.Shared | None = None
        self._workers: dict[int, _Worker] = {}
        self._num_hired = 0
        self._target: Target | None = None
        self._has_seen_result = False
        self._attempts: collections.Counter[int] = collections.Counter()
        self._next_fed = 0
        self._given = 0
        self._shown = 0
        self._alone_until = 0.0

    def close(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """End all workers, and free the shared memory. Do nothing while the interpreter ends."""
        if _is_finalizing():
            return
        self.schedule.cancel()
        for worker in list(self._workers.values()):
            self._backend.leave(worker.hired, is_idle=False)
        self._workers.clear()
        os.close(self.block)
        if self.shared is not None:
            self.shared.close()

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcome of each chunk."""
        self._hire(0)
        # The other workers start only if the first has not done all chunks after a moment:
        # a fork costs more than many small calls.
        others: Iterable[int] = range(1, self.num_workers)
        self._alone_until = time.monotonic() + _ALONE_S
        while self._workers:
            if others and time.monotonic() >= self._alone_until:
                for slot in others:
                    if self._has_unassigned():
                        self._hire(slot)
                others = ()
            for outcome in self._wait():
                self._given += 1
                yield outcome
        if not self.is_fed:
            yield from self._unsent_outcomes()

    def _hire(self, slot: int, first: int | None = None) -> None:
        assignment = Assignment(slot, self._num_hired, first, self.is_fed)
        self._num_hired += 1
        with _no_interrupt():
            hired = self._backend.hire(self, assignment)
            self._workers[slot] = _Worker(hired, assignment)

    def _wait(self) -> list[Outcome]:
        """Wait for messages or ends of workers; return the new outcomes."""
        outcomes: list[Outcome] = []
        if self.is_fed:
            self._feed()
        by_handle: dict[Any, _Worker] = {}
        for worker in self._workers.values():
            by_handle[worker.hired.connection] = worker
            by_handle[worker.hired.process.sentinel] = worker
        # The wait has a limit: an interrupt that another thread received, or that came just
        # before the wait, does not end it.
        timeout = _LISTEN_S
        now = time.monotonic()
        if now < self._alone_until:
            timeout = self._alone_until - now
        elif self.job.timeout_s is not None:
            timeout = min(_LOOK_EVERY_S, self.job.timeout_s / 2)
        elif self.job.on_progress is not None:
            timeout = _LOOK_EVERY_S
        found = connections.wait(list(by_handle), timeout)
        ready = [by_handle[handle] for handle in found]
        for worker in {id(worker): worker for worker in ready}.values():
            self._listen(worker, outcomes)
        self._check_timeouts(outcomes)
        self._show()
        return outcomes

    def _listen(self, worker: _Worker, outcomes: list[Outcome]) -> None:
        is_alive = worker.hired.process.is_alive()
        try:
            # Read all messages of a dead worker, but one of a live worker, so that each
            # worker has its turn.
            while worker.hired.connection.poll():
                message = transport.loads(worker.hired.connection.recv_bytes())
                if self._take(worker, message, outcomes):
                    return
                if is_alive:
                    return
        except (EOFError, OSError):
            is_alive = False
        if not is_alive:
            self._bury(worker, outcomes)

    def _take(
        self, worker: _Worker, message: tuple[Any, ...], outcomes: list[Outcome]
    ) -> bool:
        """Handle a message; return whether it was the worker's last one."""
        kind, *content = message
        if kind == "end":
            (is_worn,) = content
            del self._workers[worker.slot]
            self._backend.leave(worker.hired, is_idle=not is_worn)
            if is_worn and self._has_work_for(worker):
                self._hire(worker.slot)
                self._feed_again(worker)
            return True
        if kind == "lost":
            error = rebuild(content[0], "the tensordict or the function in the worker")
            outcomes.append(Outcome(self.job.todo[0], error=error))
            del self._workers[worker.slot]
            self._backend.leave(worker.hired, is_idle=not self.is_fed)
            return True
        task, value = content
        chunk = self.job.todo[task]
        if worker.fed:
            worker.fed.popleft()
            worker.since = time.monotonic()
        if kind == "error":
            where = f"{self.job.plan.named(chunk)} in worker {worker.slot}"
            outcomes.append(Outcome(chunk, error=rebuild(value, where)))
        else:
            outcomes.append(Outcome(chunk, self._write_to_block(value, chunk)))
        return False

    def _write_to_block(
        self, result: CollectionProtocol, chunk: int
    ) -> CollectionProtocol | Written:
        """Write a result that was sent into the shared block, if it fits.

        Returns:
            A reference to the rows of the block, or the result.
        """
        if self.is_fed:
            return result
        if not self._has_seen_result:
            self._has_seen_result = True
            layout = Layout.of(result, self.job.plan, chunk)
            if layout is not None:
                if self.job.folder is not None:
                    self.job.folder.prepare(result)
                    files = self.job.folder.files(layout.signature)
                    layout = layout._replace(files=files)
                layout, length = layout.publish(self.block)
                self._target = Target(layout, self.block, self.job.plan)
                self.schedule.set_ready(length)
        if self._target is not None and self._target.write(result, chunk):
            return Written(self._target, chunk)
        return result

    def _bury(self, worker: _Worker, outcomes: list[Outcome]) -> None:
        """Report or retry the task of a worker that has died."""
        del self._workers[worker.slot]
        worker.hired.process.join()
        code = worker.hired.process.exitcode
        self._backend.leave(worker.hired, is_idle=False)
        self._replace(worker, outcomes, lambda where: died(code, where))

    def _replace(
        self,
        worker: _Worker,
        outcomes: list[Outcome],
        error_of: Callable[[str], BaseException],
    ) -> None:
        """Retry the task of a lost worker in a new worker, or report it as failed."""
        task: int | None
        if self.is_fed:
            task = worker.fed[0] if worker.fed else None
        else:
            running = self.schedule.running(worker.slot)
            task = None if running is None else running[0]
        if task is not None:
            self._attempts[task] += 1
            if self._attempts[task] > self.job.retries:
                chunk = self.job.todo[task]
                self.schedule.finish(worker.slot, task, FAILED)
                where = f"{self.job.plan.named(chunk)} in worker {worker.slot}"
                error = error_of(where)
                note(error, f"worker {worker.slot}")
                outcomes.append(Outcome(chunk, error=error))
                if worker.fed:
                    worker.fed.popleft()
                task = None
                if self.job.fails_fast:
                    return
        elif self._attempts[-1 - worker.slot] > self.job.retries:
            # The worker failed before its first task, and so would the next.
            error = error_of("its start, before the first chunk")
            outcomes.append(Outcome(self.job.todo[0], error=error))
            return
        else:
            self._attempts[-1 - worker.slot] += 1
        if task is not None or self._has_work_for(worker):
            self._hire(worker.slot, None if self.is_fed else task)
            self._feed_again(worker)

    def _has_work_for(self, worker: _Worker) -> bool:
        """Return whether a new worker in the place of this one would have work."""
        return bool(worker.fed) or self._has_unassigned()

    def _has_unassigned(self) -> bool:
        """Return whether some chunk is neither begun nor assigned to a worker."""
        if self.is_fed:
            return self._next_fed < len(self.job.todo)
        return 0 in self.schedule.states()

    # The next methods serve results that are taken in order: the caller assigns each task,
    # so that no more results wait than the window allows.

    def _feed(self) -> None:
        limit = self._num_taken() + (self.job.window or 0)
        depth = max(1, (self.job.window or 0) // self.num_workers)
        while self._next_fed < min(limit, len(self.job.todo)):
            worker = min(
                self._workers.values(),
                key=lambda candidate: len(candidate.fed),
                default=None,
            )
            if worker is None or len(worker.fed) >= depth:
                return
            self._feed_one(worker, self._next_fed)
            self._next_fed += 1
        if self._next_fed == len(self.job.todo):
            for worker in self._workers.values():
                # One empty message ends the job. A second one would end the process.
                if not worker.fed and not worker.is_told_to_end:
                    worker.is_told_to_end = True
                    self._send(worker, b"")

    def _feed_one(self, worker: _Worker, task: int) -> None:
        if not worker.fed:
            worker.since = time.monotonic()
        worker.fed.append(task)
        self._send(worker, task.to_bytes(8, "little"))

    def _feed_again(self, worker: _Worker) -> None:
        for task in worker.fed:
            self._feed_one(self._workers[worker.slot], task)

    def _send(self, worker: _Worker, content: bytes) -> None:
        # The next `_wait` finds and handles a dead worker.
        with contextlib.suppress(OSError):
            worker.hired.connection.send_bytes(content)

    def _check_timeouts(self, outcomes: list[Outcome]) -> None:
        limit = self.job.timeout_s
        if limit is None:
            return
        for worker in list(self._workers.values()):
            if self.is_fed:
                elapsed = time.monotonic() - worker.since if worker.fed else 0.0
            else:
                running = self.schedule.running(worker.slot)
                elapsed = 0.0 if running is None else running[1]
            if elapsed > limit:
                del self._workers[worker.slot]
                self._backend.leave(worker.hired, is_idle=False)
                self._replace(
                    worker,
                    outcomes,
                    lambda where: TimeoutError(f"no result after {limit} s of {where}"),
                )

    def _show(self) -> None:
        if self.job.on_progress is None or self.is_fed:
            return
        states = self.schedule.states()
        done = len(states) - states.count(0)
        self.job.on_progress((done - self._shown) * self.job.plan.size)
        self._shown = done

    def _unsent_outcomes(self) -> Iterator[Outcome]:
        """Yield the outcomes of chunks whose workers sent no message."""
        self._show()
        for task, state in enumerate(self.schedule.states()):
            chunk = self.job.todo[task]
            if state == WRITTEN:
                if self._target is None:  # pragma: no cover # nobody writes before
                    msg = "a result was written to no block"
                    raise RuntimeError(msg)
                yield Outcome(chunk, Written(self._target, chunk))
            elif state == EMPTY:
                yield Outcome(chunk)
            elif state not in (SENT, FAILED):
                yield Outcome(chunk, error=died(None, self.job.plan.named(chunk)))
