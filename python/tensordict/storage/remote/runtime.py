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
    "This process was forked after object stores had been used, the threads that make "
    "their requests were not, and others cannot be started here ({error}): start it with the method 'spawn' or 'forkserver' "
    "(DataLoader(multiprocessing_context='spawn'), td.map(mp_start_method='spawn'))."
)

_owner: int | None = None
_is_child = False
_loop: asyncio.AbstractEventLoop | None = None
_lock = threading.Lock()


def _forked() -> None:
    global _lock, _loop  # noqa: PLW0603 - the one loop of a process
    _lock = threading.Lock()
    _loop = None


os.register_at_fork(after_in_child=_forked)


def check_process() -> bool:
    """Prepare the child of a fork whose parent has made requests for its own.

    Returns:
        bool: whether this process is one.

    Raises:
        RuntimeError: it is, and its requests would wait forever.
    """
    global _is_child, _owner  # noqa: PLW0603 - the process that made the last request
    if _owner is None:
        _owner = os.getpid()
    elif _owner != os.getpid():
        from tensordict.storage.remote.reopening import load_again

        with _lock:
            if _owner != os.getpid():
                try:
                    load_again()
                except (AttributeError, ImportError, OSError) as error:
                    raise RuntimeError(MSG_FORKED.format(error=error)) from error
                _is_child, _owner = True, os.getpid()
    return _is_child


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Wait for a coroutine that makes requests, with the interpreter released.

    Raises:
        RuntimeError: this process is the child of a fork that cannot make any.
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
