"""The backend of threads, for functions that release the interpreter lock."""

from __future__ import annotations

import os
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
    """Runs chunks in threads of this process. They share memory with the collection.

    Args:
        num_workers: the number of threads.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Yield each outcome as soon as a thread has it."""
        in_order = job.window is not None
        schedule = Schedule(len(job.todo), self._num_workers)
        outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        credit = threading.Semaphore(job.window or 0)
        has_ended = threading.Event()
        owner = os.getpid()
        ended_workers: queue.SimpleQueue[int] = queue.SimpleQueue()

        def work(worker: int) -> None:
            try:
                take_chunks(worker)
            finally:
                ended_workers.put(worker)

        def take_chunks(worker: int) -> None:
            while True:
                if in_order:
                    credit.acquire()
                if has_ended.is_set():
                    return
                task = schedule.next(worker)
                if task is None:
                    return
                outcomes.put(attempt(job, job.todo[task], f"in thread {worker}"))

        # Not daemon threads: at its end the interpreter waits until each thread has finished
        # its chunk, and does not free the memory that the thread uses.
        threads = [
            threading.Thread(
                target=work, args=(worker,), name=f"tensordict-map-{worker}"
            )
            for worker in range(min(self._num_workers, len(job.todo)))
        ]
        for thread in threads:
            thread.start()
        num_released = 0
        try:
            for _ in job.todo:
                while in_order and num_released < num_taken():
                    credit.release()
                    num_released += 1
                yield outcomes.get()
        finally:
            # A forked child has this generator, and none of its threads.
            if os.getpid() == owner:
                has_ended.set()
                schedule.cancel()
                for _ in threads:
                    credit.release()
                # No `join`: the garbage collector may close this generator while this
                # thread holds a lock of `threading` that `join` needs.
                for _ in threads:
                    ended_workers.get()
