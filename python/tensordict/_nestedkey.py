"""The type of keys: a string, or a non-empty tuple of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["KEY_SEPARATOR", "NestedKey"]

KEY_SEPARATOR = "."
"""Joins the parts of a nested key in :meth:`flatten_keys`, by default."""


class _NestedKeyMeta(type):
    """A metaclass for which ``isinstance(key, NestedKey)`` inspects the value."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, str) or (
            isinstance(instance, tuple)
            and bool(instance)
            and all(isinstance(part, cls) for part in instance)
        )


if TYPE_CHECKING:
    # For type checkers, `NestedKey` is the type of the keys.
    NestedKey = str | tuple[Any, ...]
else:

    class NestedKey(metaclass=_NestedKeyMeta):
        """A key of an entry: a string, or a tuple of keys that leads to a nested entry.

        Examples:
            >>> isinstance(("obs", "pixels"), NestedKey), isinstance(("obs", 3), NestedKey)
            (True, False)
        """
