"""The descriptions of all entries of a store, by path."""

from __future__ import annotations

import json
from typing import Any

from tensordict.containers.store.encoding import Meta

__all__ = ["KEY_SEPARATOR", "Tree"]

KEY_SEPARATOR = "."
"""The text between the parts of a nested key on the server."""


class Tree:
    """The descriptions of all entries of a store.

    Attributes:
        text: the descriptions as one JSON text of the server.
        metas: the description of each leaf, sorted by path.
        extra: the records of nested collections by path: batch sizes and names.
    """

    __slots__ = ("extra", "metas", "text")

    def __init__(self, text: bytes, entries: list[Any], extra: list[str]) -> None:
        self.text: bytes = text
        pairs = zip(entries[::2], entries[1::2], strict=True)
        self.metas: dict[str, Meta] = {
            path: Meta(path, _fields(flat)) for path, flat in sorted(pairs, key=_first)
        }
        records = _fields(extra)
        self.extra: dict[str, Any] = {
            path: json.loads(value) for path, value in records.items()
        }

    @classmethod
    def parse(cls, text: bytes) -> Tree:
        """Parse the JSON text of the server."""
        # Lua encodes an empty table as an empty JSON object.
        entries, extra = json.loads(text)
        return cls(text, list(entries), list(extra))

    def below(self, prefix: str) -> dict[str, Meta]:
        """Return the leaves below a nested key, or all leaves for an empty key."""
        if not prefix:
            return self.metas
        start = prefix + KEY_SEPARATOR
        return {
            path: meta for path, meta in self.metas.items() if path.startswith(start)
        }

    def records_below(self, prefix: str) -> list[str]:
        """Return the paths of the recorded collections below a nested key."""
        start = prefix + KEY_SEPARATOR if prefix else ""
        return [path for path in self.extra if path and path.startswith(start)]

    def has_below(self, prefix: str) -> bool:
        """Return whether there is a collection at a nested key."""
        start = prefix + KEY_SEPARATOR
        return prefix in self.extra or any(
            path.startswith(start) for path in (*self.metas, *self.extra)
        )


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _fields(flat: list[Any]) -> dict[str, str]:
    flat = list(flat)
    return dict(zip(flat[::2], flat[1::2], strict=True))
