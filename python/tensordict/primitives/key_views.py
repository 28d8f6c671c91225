"""The view of keys that ``td.keys()`` returns."""

from __future__ import annotations

from collections.abc import Iterator, KeysView
from typing import Any

from tensordict.primitives.common import (
    MSG_MEMBERSHIP,
)
from tensordict.primitives.nested_key import unravel_key_to_tuple


class _StringKeys(KeysView[str]):
    """The view that ``td.keys()`` returns in a compiled program."""

    __slots__ = ()

    def __init__(self, entries: Any) -> None:
        self._mapping = entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __contains__(self, key: Any) -> bool:
        if isinstance(key, str):
            return key in self._mapping
        path = unravel_key_to_tuple(key)
        if not path:
            raise TypeError(MSG_MEMBERSHIP)
        return len(path) == 1 and path[0] in self._mapping

    def __repr__(self) -> str:
        return f"dict_keys({list(self._mapping)})"


_StringKeys.__module__ = "tensordict.utils"


def string_keys(entries: object) -> _StringKeys:
    """Return the keys of a dictionary of entries as a live view."""
    return _StringKeys(entries)
