"""Run many requests at once, in a thread that this process keeps for them."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["check_process", "run"]

_T = TypeVar("_T")

MSG_FORKED: Final = (
    "This process was forked after object stores had been used, and the threads that make "
    "their requests were not: start it with the method 'spawn' or 'forkserver' "
    "(DataLoader(multiprocessing_context='spawn'), td.map(mp_start_method='spawn'))."
)

_owner: int | None = None
_loop: asyncio.AbstractEventLoop | None = None
_lock = threading.Lock()


def _forked() -> None:
    global _lock, _loop  # noqa: PLW0603 - the one loop of a process
    _lock = threading.Lock()
    _loop = None


os.register_at_fork(after_in_child=_forked)


def check_process() -> None:
    """Refuse requests of the child of a fork whose parent has made some.

    Raises:
        RuntimeError: this is one, where they would wait forever.
    """
    global _owner  # noqa: PLW0603 - the process that made the first request
    if _owner is None:
        _owner = os.getpid()
    elif _owner != os.getpid():
        raise RuntimeError(MSG_FORKED)


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Wait for a coroutine that makes requests, with the interpreter released.

    Raises:
        RuntimeError: this process is the child of one that made requests.
    """
    global _loop  # noqa: PLW0603 - the one loop of a process
    try:
        check_process()
    except RuntimeError:
        work.close()
        raise
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(
                target=_loop.run_forever, name="tensordict-remote", daemon=True
            ).start()
        loop = _loop
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
