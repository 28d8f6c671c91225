"""The end of a worker process whose parent process has ended.

The end of a connection does not tell a worker that its parent has ended: processes that were
forked later hold the other end as well, so a worker in the middle of a large message would wait
forever. A thread waits for the end of the parent instead, during all work of the process.
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
"""The time between two looks at the parent, if the system has no ``pidfd_open``."""


def end_with_parent() -> None:
    """End this process, which ``multiprocessing`` has started, as soon as its parent ends."""
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
    # The system may have given the parent's process id to another process meanwhile.
    is_gone = not parent.is_alive()
    if descriptor is not None and not is_gone:
        # `select.select` takes no descriptor above 1023, which a process may have.
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        is_gone = bool(poll.poll())
    while not is_gone:
        time.sleep(_LOOK_EVERY_S)
        is_gone = os.getppid() != first or not parent.is_alive()
    # The parent is gone, so nobody reads an exit code or a message.
    os._exit(1)
