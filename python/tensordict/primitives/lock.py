"""Locking and unlocking of a tensordict with all nested ones."""

from __future__ import annotations

import weakref
from typing import Any

from tensordict.primitives.common import more_refs
from tensordict.primitives.errors import graph_error
from tensordict.primitives.items import containers
from tensordict.primitives.leaf_loops import special_keys
from tensordict.primitives.protocol import CollectionProtocol


def lock_tree(td: Any, parents: tuple[Any, ...] = ()) -> None:
    """Lock ``td`` and all nested tensordicts, with weak references to the parents."""
    if not td._is_dense:
        td._lock_tree(parents)
        return
    td._is_locked = True
    if parents:
        td._lock_parents_weakrefs = more_refs(td._lock_parents_weakrefs, parents)
    inner: tuple[Any, ...] | None = None
    entries = td._tensordict.copy()
    for key in special_keys(entries):
        value = entries[key]
        if isinstance(value, CollectionProtocol):
            if inner is None:
                inner = (*parents, weakref.ref(td))
            lock_tree(value, inner)


LOCK_STATE = ("_is_locked", "_lock_parents_weakrefs", "_is_shared", "_is_memmap")
"""The attributes that the instance dictionary of an unlocked tensordict does not
have."""


def unlock_tree(td: CollectionProtocol) -> None:
    """Unlock ``td`` and all nested tensordicts, or none of them.

    Raises:
        RuntimeError: one of them belongs to another locked tensordict that still
            exists.
    """
    members = containers(td)
    for member in members:
        for ref in member._lock_parents_weakrefs:
            parent = ref()
            # No `id`: the compiler would guard it.
            is_outside = not any([parent is each for each in members])
            if parent is not None and is_outside and parent.is_locked:
                raise graph_error(member, parent)
    for member in members:
        _forget_lock(member)
    for member in members:
        if not member._is_dense:
            member._after_unlock()


def _forget_lock(td: CollectionProtocol) -> None:
    """Remove the attributes of a locked tensordict from its instance dictionary."""
    state = td.__dict__
    for name in LOCK_STATE:
        if name in state:
            del state[name]


def keep_storage(td: CollectionProtocol, result: CollectionProtocol) -> None:
    """Mark a result over mapped or shared memory as such, and lock it."""
    for collection in containers(result):
        if td._is_memmap:
            collection._is_memmap = True
        if td._is_shared:
            collection._is_shared = True
    if not result.is_locked:
        lock_tree(result)
