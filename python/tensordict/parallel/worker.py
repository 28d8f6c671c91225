"""The body of a worker process."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

import torch

from tensordict._rust import Schedule
from tensordict.parallel import transport
from tensordict.parallel.descriptors import receive_descriptor
from tensordict.parallel.errors import describe
from tensordict.parallel.parent import end_with_parent
from tensordict.parallel.results import Target
from tensordict.parallel.seeding import seed_worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from tensordict.parallel.jobs import Job

__all__ = [
    "EMPTY",
    "FAILED",
    "SENT",
    "WRITTEN",
    "Assignment",
    "fork_main",
    "serve_main",
]

EMPTY, WRITTEN, SENT, FAILED = 1, 2, 3, 4
"""The states of a finished task: no result, a result in the shared block, a result that was
sent, an error that was sent."""


class Assignment(NamedTuple):
    """The part of a job that one worker does.

    Args:
        slot: the worker's place in the schedule.
        number: the number of workers that the call has started before.
        first: a task to do before any other.
        is_fed: whether the caller sends each task. Otherwise the worker takes tasks from the
            schedule.
    """

    slot: int
    number: int
    first: int | None
    is_fed: bool


def fork_main(
    job: Job,
    assignment: Assignment,
    schedule: Schedule,
    block: int,
    connection: Connection,
) -> None:
    """Do one job in a process that was forked for it and inherited it in memory."""
    _settle()
    _work(job, assignment, schedule, block, connection)


def serve_main(connection: Connection, preload: tuple[str, ...]) -> None:
    """Do one job after the other, until an empty message arrives or the caller is gone."""
    import importlib

    _settle()
    for name in preload:
        importlib.import_module(name)
    with contextlib.suppress(EOFError, OSError):
        while content := connection.recv_bytes():
            assignment, num_descriptors = transport.loads(content)
            described = connection.recv_bytes()
            descriptor = receive_descriptor(connection)
            schedule = Schedule.from_descriptor(descriptor)
            block = receive_descriptor(connection)
            found = [receive_descriptor(connection) for _ in range(num_descriptors)]
            try:
                job = transport.shared(described, found)
            except Exception as error:  # noqa: BLE001 # the caller raises it
                connection.send_bytes(transport.dumps(("lost", describe(error))))
                if assignment.is_fed:
                    # The pipe may hold tasks of this job, which the next job would read.
                    return
            else:
                _work(job, assignment, schedule, block, connection)
                del job
            for fd in (block, *found):
                os.close(fd)


def _settle() -> None:
    end_with_parent()
    # An interrupt reaches the caller as well, and the caller ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Without `gc.freeze`, the garbage collector writes to every inherited object, which
    # copies the memory that the process shares with its parent.
    gc.freeze()


def _work(
    job: Job,
    assignment: Assignment,
    schedule: Schedule,
    block: int,
    connection: Connection,
) -> None:
    torch.set_num_threads(job.num_threads)
    seed_worker(job.seed, assignment.number)
    slot = assignment.slot
    target: Target | None = None
    next_task = _tasks(assignment, schedule, connection)
    count = 0
    is_worn = False
    while (task := next_task()) is not None:
        chunk = job.todo[task]
        try:
            result = job.run(chunk)
            if target is None and (length := schedule.ready()):
                target = Target.read(block, length, job.plan)
            if target is not None and target.write(result, chunk):
                state = WRITTEN
            elif result is None and not assignment.is_fed:
                state = EMPTY
            else:
                connection.send_bytes(
                    transport.dumps(("result", task, result), is_result=True)
                )
                state = SENT
        except BaseException as error:  # noqa: BLE001 # SystemExit is an error of the chunk
            connection.send_bytes(transport.dumps(("error", task, describe(error))))
            state = FAILED
        result = None
        schedule.finish(slot, task, state)
        count += 1
        if count == job.max_chunks:
            is_worn = True
            break
    connection.send_bytes(transport.dumps(("end", is_worn)))


def _tasks(
    assignment: Assignment, schedule: Schedule, connection: Connection
) -> Callable[[], int | None]:
    first = assignment.first

    def receive_task() -> int | None:
        content = connection.recv_bytes()
        return int.from_bytes(content, "little") if content else None

    def take_task() -> int | None:
        nonlocal first
        if first is not None:
            task, first = first, None
            return task
        return schedule.next(assignment.slot)

    return receive_task if assignment.is_fed else take_task
