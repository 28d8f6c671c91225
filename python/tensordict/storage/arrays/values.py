"""Conversion of non-tensor data to the content of arrays."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np

from tensordict.primitives.deprecation import warn_caller

__all__ = ["Stack", "as_json", "as_pickle", "of_json", "of_pickle", "uniform_type"]

MSG_NO_PICKLE = (
    "Refusing to load pickled non-tensor data: the entry {!r} of {} is a pickle, which may "
    "run code of the author of the file, and allow_pickle is False. Pass allow_pickle=True "
    "if you trust the file."
)
MSG_PICKLE_READ = (
    "The entry {!r} of {} is a pickle. It is read, because allow_pickle was not passed. Pass "
    "allow_pickle=True if you trust the file, or False to refuse pickles; False is the "
    "default from version 0.17 on."
)


class Stack:
    """The values of a stack of non-tensor data: a flat list, and the shape of the stack."""

    def __init__(self, values: list[Any], shape: tuple[int, ...]) -> None:
        self.values = values
        self.shape = shape

    def nested(self) -> Any:
        """Return the values as nested lists."""
        found = self.values
        for size in reversed(self.shape[1:]):
            found = [found[at : at + size] for at in range(0, len(found), size or 1)]
        return found


def as_json(value: object) -> str | None:
    """Return the JSON of a value, or None if JSON does not restore the value exactly."""
    return json.dumps(value) if _is_json(value, 0) else None


def _is_json(value: Any, depth: int) -> bool:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return True
    if kind is float:
        return True
    if depth > 100:
        return False
    if kind is list:
        return all(_is_json(item, depth + 1) for item in value)
    if kind is dict:
        return all(
            type(key) is str and _is_json(item, depth + 1)
            for key, item in value.items()
        )
    return False


def of_json(data: bytes | str) -> Any:
    """Return the value of a JSON text."""
    return json.loads(data)


def as_pickle(value: object) -> bytes:
    """Pickle a value. Readers of the file decide whether they unpickle it."""
    return pickle.dumps(value)


def of_pickle(data: bytes, key: str, where: str, allow: bool | None) -> Any:
    """Unpickle a value in a file.

    Raises:
        RuntimeError: ``allow`` is false.
    """
    if allow is False:
        raise RuntimeError(MSG_NO_PICKLE.format(key, where))
    if allow is None:
        warn_caller(MSG_PICKLE_READ.format(key, where))
    return pickle.loads(data)  # noqa: S301 (the caller trusts the file)


def uniform_type(values: list[Any]) -> type | None:
    """Return the type that all values have; None if the types differ or there are no values."""
    kinds = set(map(type, values))
    return kinds.pop() if len(kinds) == 1 else None


def object_array(values: list[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return a NumPy array of Python objects."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)
