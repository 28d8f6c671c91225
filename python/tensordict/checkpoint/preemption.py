"""The handler of SIGTERM, with which a cluster asks a process to end."""

from __future__ import annotations

import signal
import threading
from typing import Any

__all__ = ["Preemption"]


class Preemption:
    """A handler that records SIGTERM; the signal then does not end the process.

    Args:
        is_handled: whether to install the handler.
    """

    def __init__(self, is_handled: bool) -> None:
        self.event: threading.Event = threading.Event()
        """The event that the signal sets."""
        self._old_handler: Any = None
        self._handler: Any = None
        if is_handled:
            self._handle()

    def _handle(self) -> None:
        self._old_handler = signal.getsignal(signal.SIGTERM)
        old_handler, event = self._old_handler, self.event

        def handle(number: int, frame: object) -> None:
            event.set()
            if callable(old_handler):
                old_handler(number, frame)

        self._handler = handle
        signal.signal(signal.SIGTERM, handle)

    def close(self) -> None:
        """Restore the previous handler, unless another handler was installed meanwhile."""
        if self._handler is not None:
            if signal.getsignal(signal.SIGTERM) is self._handler:
                signal.signal(signal.SIGTERM, self._old_handler)
            self._handler = None
