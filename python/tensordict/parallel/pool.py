"""Worker processes that stay: warm from one call to the next."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import TYPE_CHECKING, Any

from tensordict.parallel import transport
from tensordict.parallel.cpus import num_cpus
from tensordict.parallel.descriptors import send_descriptor
from tensordict.parallel.jobs import Job, Outcome
from tensordict.parallel.processes import Hired, ProcessesBackend
from tensordict.parallel.worker import Assignment, serve_main
from tensordict.primitives.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["WorkerPool"]


class WorkerPool(Closing, ProcessesBackend):
    """Processes that do one :meth:`~tensordict.TensorDict.map` after the other.

    They start when they are needed first and keep what they have imported. The collection
    is put into shared memory once per call, and named by its files where it has some.

    Args:
        num_workers: how many processes there are, by default as many as this process may
            use processors.
        start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        preload: names of modules that each process imports when it starts.

    Examples:
        >>> from tensordict.parallel import WorkerPool
        >>> td = TensorDict(a=torch.arange(4), batch_size=[4])
        >>> with WorkerPool(2) as pool:
        ...     for _ in range(2):
        ...         td = td.map(lambda chunk: chunk + 1, pool=pool)
        >>> td["a"].tolist()
        [2, 3, 4, 5]
    """

    def __init__(
        self,
        num_workers: int | None = None,
        start_method: str | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(num_cpus() if num_workers is None else num_workers)
        if self.num_workers < 1:
            msg = "Number of processes must be at least 1"
            raise ValueError(msg)
        self._context = multiprocessing.get_context(start_method)
        self._preload = tuple(preload)
        if self._context.get_start_method() == "forkserver":
            # Its children then begin with torch imported, if no server runs yet.
            modules = ["__main__", "tensordict.parallel.worker", *preload]
            self._context.set_forkserver_preload(modules)
        self._idle: list[Hired] = []
        self._owner = os.getpid()
        self._in_use = threading.Lock()
        self._is_closed = False

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Run the job as every backend does, after the calls of other threads."""
        if self._is_closed or self._owner != os.getpid():
            msg = "the pool is closed, or belongs to another process"
            raise RuntimeError(msg)
        with self._in_use:
            yield from super().run(job, num_taken)

    def hire(self, call: Any, assignment: Assignment) -> Hired:
        """Send the job to an idle process, or to a new one."""
        while self._idle:
            hired = self._idle.pop()
            if hired.process.is_alive():
                break
            hired.dismiss()
        else:
            hired = Hired(self._context, _serve, self._preload)
        if call.shared is None:
            call.shared = transport.share(_Travelling(call.job))
        content, descriptors = call.shared
        head = transport.dumps((assignment, len(descriptors)))
        hired.connection.send_bytes(head)
        hired.connection.send_bytes(content)
        for descriptor in (call.schedule.fileno(), call.block, *descriptors):
            send_descriptor(hired.connection, descriptor)
        return hired

    def leave(self, hired: Hired, is_idle: bool) -> None:
        """Keep a process that has done its work, end one that has not."""
        if is_idle and not self._is_closed:
            self._idle.append(hired)
        else:
            hired.dismiss()

    def close(self) -> None:
        """End the processes."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().dismiss()


class PassingPool(WorkerPool):
    """A pool for one call: processes that were not forked for it."""

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Run the job as every backend does; the processes end with the call."""
        try:
            yield from super().run(job, num_taken)
        finally:
            self.close()


def _serve(preload: tuple[str, ...], connection: Any) -> None:
    serve_main(connection, preload)


class _Travelling:
    """A job as something that pickle takes, whatever its function is."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __reduce__(self) -> tuple[Any, ...]:
        fields = dict(vars(self._job), on_progress=None, folder=None)
        function = transport.dumps(fields.pop("function"))
        return _arrived, (function, fields)


def _arrived(function: bytes, fields: dict[str, Any]) -> Job:
    return Job(function=transport.loads(function), **fields)
