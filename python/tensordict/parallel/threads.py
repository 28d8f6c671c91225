"""The backend for functions that release the interpreter: threads of this process."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from tensordict._rust import Schedule
from tensordict.parallel.serial import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tensordict.parallel.jobs import Job, Outcome

__all__ = ["ThreadsBackend"]


class ThreadsBackend:
    """Runs chunks in threads, which see the collection itself.

    Args:
        num_workers: how many threads there are.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Give outcomes as threads come by them."""
        in_order = job.window is not None
        schedule = Schedule(len(job.todo), self._num_workers)
        outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        credit = threading.Semaphore(job.window or 0)
        is_left = threading.Event()

        def work(worker: int) -> None:
            while True:
                if in_order:
                    credit.acquire()
                if is_left.is_set():
                    return
                at = schedule.next(worker)
                if at is None:
                    return
                outcomes.put(attempt(job, job.todo[at], f"in thread {worker}"))

        # The threads are no daemons: an interpreter that ends waits for the chunk that each
        # of them is at, instead of taking its memory away.
        threads = [
            threading.Thread(
                target=work, args=(worker,), name=f"tensordict-map-{worker}"
            )
            for worker in range(min(self._num_workers, len(job.todo)))
        ]
        for thread in threads:
            thread.start()
        given = 0
        try:
            for _ in job.todo:
                while in_order and given < num_taken():
                    credit.release()
                    given += 1
                yield outcomes.get()
        finally:
            is_left.set()
            schedule.cancel()
            for _ in threads:
                credit.release()
            for thread in threads:
                thread.join()
