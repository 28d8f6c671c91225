"""The latency of stores: how long a request takes that waits for no other."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["latency_of", "note", "timed"]

_least: dict[int, float] = {}
"""By store, in seconds. Stores stay, and a number that is used again does no harm."""


def note(store: Any, seconds: float) -> None:
    """Note how long a request took: about the least of some hundreds is kept.

    Examples:
        >>> store = object()
        >>> latency_of(store, 1.0)
        1.0
        >>> note(store, 0.25)
        >>> note(store, 0.5)
        >>> round(latency_of(store, 1.0), 2)
        0.25
    """
    known = _least.get(id(store))
    _least[id(store)] = seconds if known is None else min(seconds, 1.003 * known)


def latency_of(store: Any, unknown: float) -> float:
    """Return the latency of a store in seconds, or what to take for it."""
    return _least.get(id(store), unknown)


@contextlib.contextmanager
def timed(store: Any) -> Iterator[None]:
    """Note how long a block takes, which makes a request."""
    begin = time.monotonic()
    yield
    note(store, time.monotonic() - begin)
