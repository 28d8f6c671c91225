"""End a worker process when the process that started it is gone.

The end of a connection does not tell a worker: processes that were forked later hold the
other end, too, so that one in the middle of a large message would wait for ever. A thread
waits for the end of the parent instead, whatever the worker is doing.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import threading
import time
from typing import Any

__all__ = ["end_with_parent"]

_LOOK_EVERY_S = 1.0
"""The time between two looks, where the system cannot tell by itself."""


def end_with_parent() -> None:
    """Let this process, which multiprocessing has started, end at once after its parent."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_watch, args=(parent,), name="tensordict-parent", daemon=True
        ).start()


def _watch(parent: Any) -> None:
    first = os.getppid()
    try:
        descriptor = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        descriptor = None
    # A number may have been given to another process meanwhile.
    is_gone = not parent.is_alive()
    if descriptor is not None and not is_gone:
        # Select does not take the large numbers of processes with many open files.
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        is_gone = bool(poll.poll())
    while not is_gone:
        time.sleep(_LOOK_EVERY_S)
        is_gone = os.getppid() != first or not parent.is_alive()
    # Nobody is left who wants to hear of it.
    os._exit(1)
