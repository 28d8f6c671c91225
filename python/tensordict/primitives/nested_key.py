"""Nested keys: a string, or a tuple of strings and tuples."""

from __future__ import annotations

MSG_KEY = "key should be a Sequence<NestedKey>"


def unravel_key_to_tuple(key: object) -> tuple[str, ...]:
    """Flatten a nested key to a tuple of strings; an empty tuple if it is no key."""
    if isinstance(key, str):
        return (key,)
    if not isinstance(key, tuple):
        return ()
    out: tuple[str, ...] = ()
    for part in key:
        flat = unravel_key_to_tuple(part)
        if not flat:
            return ()
        out += flat
    return out


def unravel_key(key: object) -> str | tuple[str, ...]:
    """Return the simplest form of a nested key: a string, or a tuple of two or more.

    A tuple that is no nested key gives an empty tuple, as in tensordict 0.15.

    Raises:
        RuntimeError: the key is neither a string nor a tuple.
    """
    if not isinstance(key, (str, tuple)):
        raise RuntimeError(MSG_KEY)
    flat = unravel_key_to_tuple(key)
    return flat[0] if len(flat) == 1 else flat


def unravel_key_list(keys: object) -> list[str | tuple[str, ...]]:
    """Call :func:`unravel_key` on each key of a list or tuple of nested keys."""
    if not isinstance(keys, (list, tuple)):
        msg = (
            "unravel_key_list(): incompatible function arguments. Expected a list or a "
            f"tuple of keys, got {type(keys)}."
        )
        raise TypeError(msg)
    flat = [unravel_key(key) for key in keys]
    if () in flat:
        raise RuntimeError(MSG_KEY)
    return flat
