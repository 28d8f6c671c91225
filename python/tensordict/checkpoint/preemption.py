"""The request to end that a cluster sends: SIGTERM."""

from __future__ import annotations

import signal
import threading
from typing import Any

__all__ = ["Preemption"]


class Preemption:
    """Notes that the process was asked to end by SIGTERM, which does not end it.

    Args:
        is_handled: whether the signal is handled at all.
    """

    def __init__(self, is_handled: bool) -> None:
        self.event: threading.Event = threading.Event()
        """The event that the signal came."""
        self._old_handler: Any = None
        self._handler: Any = None
        if is_handled:
            self._handle()

    def _handle(self) -> None:
        self._old_handler = signal.getsignal(signal.SIGTERM)
        old, event = self._old_handler, self.event

        def handle(number: int, frame: object) -> None:
            event.set()
            if callable(old):
                old(number, frame)

        self._handler = handle
        signal.signal(signal.SIGTERM, handle)

    def close(self) -> None:
        """Give the handler of before back, unless somebody has put another one there."""
        if self._handler is not None:
            if signal.getsignal(signal.SIGTERM) is self._handler:
                signal.signal(signal.SIGTERM, self._old_handler)
            self._handler = None
