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
"""The states in which a task ends: without a result, with one in the shared block, with
one that was sent, or with an error, which was sent."""


class Assignment(NamedTuple):
    """The part of a job that one worker has.

    Args:
        slot: its place in the schedule.
        number: how many workers the call has had before.
        first: a task that it does before any other one.
        is_fed: whether it is told each task, instead of taking tasks from the schedule.
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
    """Do one job in a process that was forked for it, and has all of it in its memory."""
    _settle()
    _work(job, assignment, schedule, block, connection)


def serve_main(connection: Connection, preload: tuple[str, ...]) -> None:
    """Do one job after the other, until there is an empty message or nobody is left."""
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
                    # Its tasks may be on their way: the next job would begin with them.
                    return
            else:
                _work(job, assignment, schedule, block, connection)
                del job
            for fd in (block, *found):
                os.close(fd)


def _settle() -> None:
    end_with_parent()
    # The caller is interrupted as well, and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A full collection would touch, and so copy, every object that the process began with.
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
        except BaseException as error:  # noqa: BLE001 # also what would end the process
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

    def fed() -> int | None:
        content = connection.recv_bytes()
        return int.from_bytes(content, "little") if content else None

    def taken() -> int | None:
        nonlocal first
        if first is not None:
            task, first = first, None
            return task
        return schedule.next(assignment.slot)

    return fed if assignment.is_fed else taken
