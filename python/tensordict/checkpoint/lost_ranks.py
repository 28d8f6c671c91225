"""Waiting for other ranks in a collective call when one of them may have ended."""

from __future__ import annotations

import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tensordict import _rust

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["note_processes", "tell_process", "wait_for"]

ENDED_WITHIN = 2.0
"""The seconds that a process with closed connections may take to end."""

FIRST_LOOK, LOOK_EVERY = 0.2, 0.5
"""The seconds of waiting before the first check for ended processes, and between checks."""

LAST_WORDS = 3.0
"""The seconds that a message of an ended process may still be on its way."""

_KEY = "tensordict/process/{}"

_KEY_ENDED = "tensordict/ended"

MSG_ENDED = "The process of rank {} has ended. Nothing was changed on this rank."

# The names of processes, by torch's default group: after a restart of the group, other
# processes may have the same ranks.
_PROCESSES: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()


def _process_names() -> dict[int, str]:
    from torch.distributed import distributed_c10d as c10d

    return _PROCESSES.setdefault(c10d._get_default_group(), {})


def _store() -> Any:
    from torch.distributed import distributed_c10d as c10d

    return c10d._get_default_store()


def note_processes(members: Sequence[int], names: Sequence[str]) -> None:
    """Store the process names of ranks, so that ended processes are recognized."""
    _process_names().update(zip(members, names, strict=True))


def tell_process(rank: int) -> None:
    """Publish the name of this process, in case it ends before ranks exchange names."""
    names = _process_names()
    if rank not in names:
        names[rank] = _rust.process_name()
        with suppress(Exception):
            _store().set(_KEY.format(rank), names[rank])


def wait_for(work: Any, members: Sequence[int], own_rank: int) -> None:
    """Wait for a collective call; raise an error if a participating process has ended.

    A backend notices an ended process only through an open connection, and not all
    ranks are connected with each other. So this process checks the processes of its own
    machine. A rank that finds an ended process tells the others through the store of
    the group.

    Args:
        work: the result of the call with ``async_op=True``.
        members: the participating ranks.
        own_rank: the rank of this process.

    Raises:
        RuntimeError: a process has ended, or the backend failed.
    """
    others = [rank for rank in members if rank != own_rank]
    began = time.monotonic()
    next_check, pause = began + FIRST_LOOK, 0.0
    while not work.is_completed():
        time.sleep(pause)
        now = time.monotonic()
        pause = min((now - began) / 20, 0.01)
        if now > next_check:
            next_check = now + LOOK_EVERY
            ended = _ended(others)
            if ended and not _completes(work):
                raise RuntimeError(_shown(ended))
    try:
        work.wait()
    except RuntimeError as connection_error:
        limit = time.monotonic() + ENDED_WITHIN
        while time.monotonic() < limit:
            ended = _ended(others)
            if ended:
                raise RuntimeError(_shown(ended)) from connection_error
            time.sleep(0.02)
        raise


def _shown(ended: Iterable[int]) -> str:
    return MSG_ENDED.format(", ".join(map(str, ended)))


def _completes(work: Any) -> bool:
    """Return whether a call still completes: all its messages may have been sent."""
    limit = time.monotonic() + LAST_WORDS
    while not work.is_completed():
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True


def _ended(ranks: Sequence[int]) -> list[int]:
    """Return the ranks whose processes have ended, as far as this process can know."""
    names = _process_names()
    store: Any = None
    with suppress(Exception):
        # The store is gone if the process that hosts it has ended.
        store = _store()
        for rank in ranks:
            if rank not in names and store.check([_KEY.format(rank)]):
                names[rank] = store.get(_KEY.format(rank)).decode()
    ended = [
        rank for rank in ranks if rank in names and _rust.process_has_ended(names[rank])
    ]
    with suppress(Exception):
        if ended:
            store.set(_KEY_ENDED, ",".join(map(str, ended)))
        elif store.check([_KEY_ENDED]):
            announced = store.get(_KEY_ENDED).decode().split(",")
            ended = [rank for rank in ranks if str(rank) in announced]
    return ended
