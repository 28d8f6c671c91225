"""Walks over nested tensordicts: listing of leaves, rebuilding, tests of content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.overrides import has_torch_function_variadic as any_special

from tensordict.primitives.checks import is_branch
from tensordict.primitives.items import containers
from tensordict.primitives.leaf_loops import special_keys
from tensordict.primitives.lock import lock_tree
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    import torch


def new(
    cls: Any,
    entries: dict[str, Any],
    batch_size: torch.Size,
    device: torch.device | None,
    names: list[str | None] | None,
) -> Any:
    """Make a dense tensordict of type ``cls`` around ``entries``, without a check."""
    td = object.__new__(cls)
    # Compiled code sets each attribute by a function call, but `__dict__` without one.
    # The compiler's rule for this assignment is in `construction`.
    td.__dict__ = {
        "_tensordict": entries,
        "_batch_size": batch_size,
        "_device": device,
        "_td_dim_names": names,
    }
    return td


def leaves(td: CollectionProtocol, out: list[Any] | None = None) -> list[Any]:
    """Return every leaf, depth first, in key order."""
    if out is None:
        out = []
    if not td._is_dense:
        td._leaves(out)
        return out
    held = td._tensordict.copy()
    special = special_keys(held, True)
    if not special:
        out += held.values()
        return out
    for key, value in held.items():
        if key in special and isinstance(value, CollectionProtocol):
            leaves(value, out)
        else:
            out.append(value)
    return out


def is_empty(td: CollectionProtocol) -> bool:
    """Return whether there is no leaf, nested tensordicts included."""
    entries = td._tensordict if td._is_dense else td._entries()
    for value in entries.values():
        if not isinstance(value, CollectionProtocol):
            return False
    return all(value.is_empty() for value in [*entries.values()])


def is_filled(td: CollectionProtocol) -> bool:
    """Return whether every tensordict, also nested, is dense and has entries."""
    return all([each._is_dense and each._tensordict for each in containers(td)])


def on_host(leaves: list[Any]) -> bool:
    """Return whether all ``leaves`` are on the CPU, or have no memory."""
    return all([leaf.is_cpu or leaf.is_meta for leaf in leaves])


def truth(td: CollectionProtocol, op: str) -> bool:
    """Return whether all leaves, or any (``op``), are true by their method ``op``.

    All results are combined, and the value is read once: it ends a compiled graph.
    """
    answer: Any = None
    both = "logical_or" if op == "any" else "logical_and"
    for leaf in leaves(td):
        found = getattr(leaf, op)()
        answer = found if answer is None else getattr(answer, both)(found)
    return op == "all" if answer is None else bool(answer)


def rebuild(
    td: CollectionProtocol,
    values: Any,
    names: object = True,
    lock: bool = False,
    drop_empty: bool = False,
) -> Any:
    """Return a tensordict of the structure of ``td`` with the leaves ``values``.

    ``values`` is a list in the order of :func:`leaves`. ``names`` True keeps the names,
    None drops them. With ``lock``, the result of a locked tensordict is locked. With
    ``drop_empty``, nested tensordicts without entries are dropped.
    """
    result = _rebuild(td, iter(values), names)
    if drop_empty:
        if result._is_dense:
            _drop_empty(result)
        else:
            result._drop_empty()
    if lock and td._is_locked:
        lock_tree(result)
    return result


def _drop_empty(td: CollectionProtocol) -> None:
    """Drop nested tensordicts without entries from a new result."""
    if not td._is_dense:
        td._drop_empty()
        return
    held = td._tensordict.copy()
    for key in special_keys(held):
        value = held[key]
        if is_branch(value):
            _drop_empty(value)
            if value.is_empty():
                td._del_entry(key)


def _rebuild(td: CollectionProtocol, iterator: Any, names: object) -> Any:
    if not td._is_dense:
        return td._rebuild(iterator, False)
    entries: dict[str, Any] = {}
    held = td._tensordict.copy()
    special = special_keys(held)
    if special:
        for key, value in held.items():
            if key in special and isinstance(value, CollectionProtocol):
                entries[key] = _rebuild(value, iterator, names)
            else:
                entries[key] = next(iterator)
    else:
        entries.update(zip(held, iterator, strict=False))
        if len(entries) < len(held):
            next(iterator)  # raises StopIteration: there are too few values
    old_names = td._td_dim_names
    if old_names is not None:
        old_names = list(old_names) if names is True else None
    return new(td.__class__, entries, td._batch_size, td._device, old_names)


def _align(
    td: Any, other: CollectionProtocol, is_complete: bool, out: list[Any]
) -> bool:
    if not td._is_dense:
        return td._align_leaves(other, out, is_complete)
    if other._is_dense:
        own_entries, other_entries = td._tensordict, other._tensordict
        matches = [*other_entries.values()]
        if [*own_entries] == [*other_entries] and not any_special(
            *own_entries.values(), *matches
        ):
            out += matches
            return True
    return _align_entries(td, other, is_complete, out)


def _align_entries(
    td: CollectionProtocol, other: CollectionProtocol, is_complete: bool, out: list[Any]
) -> bool:
    own_entries, other_entries = td._entries(), other._entries()
    if len(own_entries) != len(other_entries):
        return False
    order = [*own_entries]
    if order == [*other_entries]:
        matches = [*other_entries.values()]
    else:
        matches = [other_entries.get(key) for key in order]
    for value, match in zip([*own_entries.values()], matches, strict=True):
        if match is None:
            return False
        if not any_special(value, match):
            out.append(match)
        elif isinstance(match, CollectionProtocol):
            if not isinstance(value, CollectionProtocol):
                return False
            if is_complete and value._is_non_tensor:
                return False
            if not _align(value, match, is_complete, out):
                return False
        elif isinstance(value, CollectionProtocol):
            return False
        else:
            out.append(match)
    return True


def data(td: CollectionProtocol) -> Any:
    """Return a tensordict of ``leaf.data`` for each leaf, with names and the lock."""
    values = [leaf.data for leaf in leaves(td)]
    return rebuild(td, values, True, True)


def clone_structure(td: CollectionProtocol) -> Any:
    """Return a new tensordict, new at all levels, that shares the leaves; unlocked."""
    if not td._is_dense:
        return td._clone_structure()
    entries = td._tensordict.copy()
    for key in special_keys(entries):
        value = entries[key]
        if isinstance(value, CollectionProtocol):
            entries[key] = clone_structure(value)
    names = td._td_dim_names
    return new(
        td.__class__,
        entries,
        td._batch_size,
        td._device,
        None if names is None else list(names),
    )
