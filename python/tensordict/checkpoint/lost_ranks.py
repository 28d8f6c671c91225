"""Waiting for other ranks in a collective call, of which one may have ended."""

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
"""The seconds for which a process may end whose connections are closed."""

FIRST_LOOK, LOOK_EVERY = 0.2, 0.5
"""The seconds of waiting after which it is asked who has ended, first and then again."""

LAST_WORDS = 3.0
"""The seconds for which what a process has sent before it ended may be on its way."""

_KEY = "tensordict/process/{}"

_KEY_ENDED = "tensordict/ended"

MSG_ENDED = "The process of rank {} has ended: nothing was changed here."

# By the default group of torch: after another start other processes have the ranks.
_PROCESSES: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()


def _known() -> dict[int, str]:
    from torch.distributed import distributed_c10d as c10d

    return _PROCESSES.setdefault(c10d._get_default_group(), {})


def _store() -> Any:
    from torch.distributed import distributed_c10d as c10d

    return c10d._get_default_store()


def note_processes(members: Sequence[int], names: Sequence[str]) -> None:
    """Note the names of the processes of ranks, by which it is known who has ended."""
    _known().update(zip(members, names, strict=True))


def tell_process(rank: int) -> None:
    """Tell the name of this process to ranks that have none of it, should it end early."""
    known = _known()
    if rank not in known:
        known[rank] = _rust.process_name()
        with suppress(Exception):
            _store().set(_KEY.format(rank), known[rank])


def wait_for(work: Any, members: Sequence[int], own: int) -> None:
    """Wait for a collective call, and for no rank that has ended.

    A backend notices an end at the connections that it has, and not everybody has one to
    each other. Processes of this machine are asked about, and who knows of one that has
    ended tells the others through the store of the group.

    Args:
        work: what the call with ``async_op=True`` returned.
        members: the ranks that take part.
        own: the rank of this process.

    Raises:
        RuntimeError: a process has ended, or the backend has an error.
    """
    others = [rank for rank in members if rank != own]
    began = time.monotonic()
    look, pause = began + FIRST_LOOK, 0.0
    while not work.is_completed():
        time.sleep(pause)
        now = time.monotonic()
        pause = min((now - began) / 20, 0.01)
        if now > look:
            look = now + LOOK_EVERY
            ended = _ended(others)
            if ended and not _completes(work):
                raise RuntimeError(_shown(ended))
    try:
        work.wait()
    except RuntimeError as lost:
        limit = time.monotonic() + ENDED_WITHIN
        while time.monotonic() < limit:
            ended = _ended(others)
            if ended:
                raise RuntimeError(_shown(ended)) from lost
            time.sleep(0.02)
        raise


def _shown(ended: Iterable[int]) -> str:
    return MSG_ENDED.format(", ".join(map(str, ended)))


def _completes(work: Any) -> bool:
    """Return whether a call ends that has all it needs, perhaps."""
    limit = time.monotonic() + LAST_WORDS
    while not work.is_completed():
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True


def _ended(ranks: Sequence[int]) -> list[int]:
    """Return which of some ranks are known to have ended."""
    known = _known()
    store: Any = None
    with suppress(Exception):
        # It is gone where the process that has it is.
        store = _store()
        for rank in ranks:
            if rank not in known and store.check([_KEY.format(rank)]):
                known[rank] = store.get(_KEY.format(rank)).decode()
    found = [
        rank for rank in ranks if rank in known and _rust.process_has_ended(known[rank])
    ]
    with suppress(Exception):
        if found:
            store.set(_KEY_ENDED, ",".join(map(str, found)))
        elif store.check([_KEY_ENDED]):
            told = store.get(_KEY_ENDED).decode().split(",")
            found = [rank for rank in ranks if str(rank) in told]
    return found
