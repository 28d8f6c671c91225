"""Listing of entries, for ``keys``, ``values`` and ``items``."""

from __future__ import annotations

from typing import Any

from tensordict.primitives.leaf_loops import special_keys
from tensordict.primitives.protocol import CollectionProtocol


def walk(
    td: Any,
    kind: int,
    include_nested: bool,
    leaves_only: bool,
    is_leaf: Any = None,
    prefix: tuple[str, ...] = (),
    out: list[Any] | None = None,
) -> list[Any]:
    """List the keys (``kind`` 0), values (1) or pairs (2), also of nested tensordicts.

    Keys are strings, or tuples below the root. A nested tensordict comes after its
    entries in a list of keys, and before them in lists of values and pairs. With
    ``leaves_only``, only values whose type ``is_leaf`` accepts are listed (None: all
    but tensordicts). Nested tensordicts are entered even if they are leaves.
    """
    if out is None:
        out = []
    entries = (td._sample_entries() if kind == 0 else td._entries()).copy()
    special = special_keys(entries)
    for key, value in entries.items():
        name = (*prefix, key) if prefix else key
        item = name if kind == 0 else value if kind == 1 else (name, value)
        if key in special and isinstance(value, CollectionProtocol):
            listed = not leaves_only or (is_leaf is not None and is_leaf(type(value)))
            if listed and kind != 0:
                out.append(item)
            if include_nested:
                path = name if prefix else (key,)
                walk(value, kind, True, leaves_only, is_leaf, path, out)
            if listed and kind == 0:
                out.append(item)
        elif not leaves_only or is_leaf is None or is_leaf(type(value)):
            out.append(item)
    return out


def containers(td: CollectionProtocol, out: list[Any] | None = None) -> list[Any]:
    """Return ``td`` and every nested tensordict, parents first."""
    if out is None:
        out = []
    if not td._is_dense:
        td._containers(out)
        return out
    out.append(td)
    entries = td._tensordict.copy()
    for key in special_keys(entries):
        value = entries[key]
        if isinstance(value, CollectionProtocol):
            containers(value, out)
    return out
