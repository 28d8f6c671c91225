"""Matching of leaves by key, and rebuilding of a tensordict from new leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.primitives.items import containers
from tensordict.primitives.leaf_loops import special_keys
from tensordict.primitives.lock import lock_tree
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.tree import _align, new

if TYPE_CHECKING:
    from collections.abc import Sequence


def rebuild_as(
    td: Any,
    values: Sequence[Any],
    cls: Any = None,
    size: Any = None,
    lock: bool = False,
) -> Any:
    """Rebuild without names, for comparisons and reductions: see :func:`rebuild`.

    ``cls`` is the class of all dense tensordicts in the result, and ``size`` their
    batch size. None keeps the present ones.
    """
    result = _rebuild_as(td, iter(values), cls, size)
    if lock and td._is_locked:
        lock_tree(result)
    return result


def _rebuild_as(td: CollectionProtocol, iterator: Any, cls: type, size: Any) -> Any:
    if not td._is_dense:
        return td._rebuild_as(iterator, cls, size)
    entries: dict[str, Any] = {}
    held = td._tensordict.copy()
    special = special_keys(held)
    if special:
        for key, value in held.items():
            if key in special and isinstance(value, CollectionProtocol):
                entries[key] = _rebuild_as(value, iterator, cls, size)
            else:
                entries[key] = next(iterator)
    else:
        entries.update(zip(held, iterator, strict=False))
        if len(entries) < len(held):
            next(iterator)  # raises StopIteration: there are too few values
    return new(
        type(td) if cls is None else cls,
        entries,
        td._batch_size if size is None else size,
        td._device,
        None,
    )


def align(
    td: object, other: CollectionProtocol, is_complete: bool = False
) -> list[Any] | None:
    """Return the leaves of ``other`` in the order of the leaves of ``td``.

    Return None if the keys differ or an entry is a leaf in one and nested in the other;
    with ``is_complete`` also if there is non-tensor data, which has no leaf.
    """
    out: list[Any] = []
    return out if _align(td, other, is_complete, out) else None


def leaf_batch_dims(td: CollectionProtocol, out: list[int] | None = None) -> list[int]:
    """Return for each leaf of ``td`` the number of its tensordict's batch dims."""
    if out is None:
        out = []
    if not td._is_dense:
        td._leaf_batch_dims(out)
        return out
    return _entry_batch_dims(td, out)


def _entry_batch_dims(td: CollectionProtocol, out: list[int]) -> list[int]:
    dims = len(td.batch_size)
    for value in list(td._entries().values()):
        if isinstance(value, CollectionProtocol):
            leaf_batch_dims(value, out)
        else:
            out.append(dims)
    return out


def holds_any(td: CollectionProtocol, others: list[Any]) -> bool:
    """Return whether one of ``others`` is ``td`` or nested in it."""
    return any(collection is other for collection in containers(td) for other in others)
