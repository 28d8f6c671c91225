"""Call a function for several arguments at once, for requests that wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["in_threads"]

_A = TypeVar("_A")
_R = TypeVar("_R")


def in_threads(fn: Callable[[_A], _R], values: Sequence[_A]) -> list[_R]:
    """Call ``fn`` with each value, at most 32 at a time, and return what it returns.

    Examples:
        >>> in_threads(len, ["a", "bcd"])
        [1, 3]
    """
    if len(values) < 2:
        return [fn(value) for value in values]
    with ThreadPoolExecutor(min(32, len(values))) as pool:
        return list(pool.map(fn, values))
