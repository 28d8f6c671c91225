"""Worker processes that stay alive from one call to the next."""

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
    """Worker processes that stay alive between calls of :meth:`~tensordict.TensorDict.map`.

    The processes start with the first call and keep the modules that they have imported. Each
    call puts the tensordict into shared memory once. Memory-mapped tensors stay in their files.

    Args:
        num_workers: the number of processes. The default is
            :func:`~tensordict.parallel.num_cpus`.
        start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        preload: the names of modules that each process imports when it starts.

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
            # The fork server imports these once, so that its children start quickly. A
            # server that runs already ignores this.
            modules = ["__main__", "tensordict.parallel.worker", *preload]
            self._context.set_forkserver_preload(modules)
        self._idle: list[Hired] = []
        self._owner = os.getpid()
        self._in_use = threading.Lock()
        self._is_closed = False

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Run the chunks of a job, after the calls of other threads have ended."""
        if self._is_closed or self._owner != os.getpid():
            msg = (
                "this WorkerPool is closed, or another process has created it. Create a "
                "WorkerPool in this process."
            )
            raise RuntimeError(msg)
        with self._in_use:
            yield from super().run(job, num_taken)

    def hire(self, call: Any, assignment: Assignment) -> Hired:
        """Send the job to an idle process, or to a new process."""
        while self._idle:
            hired = self._idle.pop()
            if hired.process.is_alive():
                break
            hired.dismiss()
        else:
            hired = Hired(self._context, _serve, self._preload)
        if call.shared is None:
            call.shared = transport.share(_PickledJob(call.job))
        content, descriptors = call.shared
        head = transport.dumps((assignment, len(descriptors)))
        hired.connection.send_bytes(head)
        hired.connection.send_bytes(content)
        for descriptor in (call.schedule.fileno(), call.block, *descriptors):
            send_descriptor(hired.connection, descriptor)
        return hired

    def leave(self, hired: Hired, is_idle: bool) -> None:
        """Keep an idle process for the next call; end a busy process."""
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
    """A pool that serves one call, for start methods other than ``"fork"``."""

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Run the chunks of a job, then end the processes."""
        try:
            yield from super().run(job, num_taken)
        finally:
            self.close()


def _serve(preload: tuple[str, ...], connection: Any) -> None:
    serve_main(connection, preload)


class _PickledJob:
    """A job that can be pickled even if pickle refuses its function."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __reduce__(self) -> tuple[Any, ...]:
        fields = dict(vars(self._job), on_progress=None, folder=None)
        function = transport.dumps(fields.pop("function"))
        return _unpickled_job, (function, fields)


def _unpickled_job(function: bytes, fields: dict[str, Any]) -> Job:
    return Job(function=transport.loads(function), **fields)
