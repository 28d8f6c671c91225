"""Processes that are the ranks of a group, each of which calls what it is told."""

from __future__ import annotations

import os
import pickle
import traceback
from datetime import timedelta
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple

from separate_process import SERVER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TIMEOUT = 60.0
"""Seconds for which a rank waits for others, and a test for ranks."""


class Raised(NamedTuple):
    """An exception that a rank raised."""

    name: str
    text: str
    trace: str


def _serve(rank: int, world: int, path: str, seconds: float, connection: Any) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=seconds),
    )
    while True:
        task = connection.recv()
        if task is None:
            break
        call, arguments = task
        try:
            answer: Any = call(rank, *arguments)
            pickle.dumps(answer)
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            name, text = type(error).__name__, str(error)
            answer = Raised(name, text, traceback.format_exc())
        connection.send(answer)
    # Without goodbyes to partners that may be gone.
    os._exit(0)


class Ranks:
    """The ranks of a group over gloo.

    Args:
        world: how many there are.
        folder: for the file by which they find each other.
        seconds: the timeout of the group.
    """

    def __init__(self, world: int, folder: Path, seconds: float = TIMEOUT) -> None:
        self.world = world
        self.connections = []
        self.processes: list[Any] = []
        path = str(folder / "rendezvous")
        for rank in range(world):
            here, there = SERVER.Pipe()
            process = SERVER.Process(
                target=_serve, args=(rank, world, path, seconds, there), daemon=True
            )
            process.start()
            there.close()
            self.connections.append(here)
            self.processes.append(process)

    def try_all(self, call: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Let all ranks call: what each returned or raised; None where one has ended."""
        for connection in self.connections:
            connection.send((call, arguments))
        answers: list[Any] = [None] * self.world
        waiting = dict(enumerate(self.connections))
        while waiting:
            ready = wait(list(waiting.values()), 2 * TIMEOUT)
            assert ready, f"no answer of the ranks {list(waiting)}"
            for rank, connection in list(waiting.items()):
                if connection not in ready:
                    continue
                del waiting[rank]
                try:
                    answers[rank] = connection.recv()
                except (EOFError, ConnectionResetError):
                    answers[rank] = None
        return answers

    def all(self, call: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Let all ranks call: what each returned. What one raised fails the test."""
        answers = self.try_all(call, *arguments)
        for rank, answer in enumerate(answers):
            if isinstance(answer, Raised):
                message = f"rank {rank} raised:\n{answer.trace}"
                raise AssertionError(message)
        return answers

    def close(self) -> None:
        """End the processes."""
        for connection in self.connections:
            try:
                connection.send(None)
            except OSError:
                continue
        for process in self.processes:
            process.join(TIMEOUT)
            process.kill()
