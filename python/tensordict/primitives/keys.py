"""Selection, renaming and regrouping of entries by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.primitives.common import MSG_NO_KEYS
from tensordict.primitives.errors import (
    KeyMessageError,
    locked_error,
    missing_key,
    through_leaf,
)
from tensordict.primitives.leaf_loops import picked, special_keys
from tensordict.primitives.nested_key import unravel_key_to_tuple
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.set import validate
from tensordict.primitives.tree import clone_structure, new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tensordict.primitives.protocol import NestedKeyLike

MSG_COLLIDE = "Flattening keys in tensordict causes keys {} to collide."


MSG_OVERRIDE = (
    "Unflattening key(s) in tensordict will override an existing for unflattened key "
    "{}."
)


def _grouped(keys: Iterable[NestedKeyLike]) -> dict[str, list[tuple[str, ...]]]:
    """Group nested keys by their first part; return the other parts, in order."""
    plan: dict[str, list[tuple[str, ...]]] = {}
    for key in keys:
        path = unravel_key_to_tuple(key)
        if not path:
            raise RuntimeError(MSG_NO_KEYS)
        rests = plan.setdefault(path[0], [])
        rests.append(path[1:])
    return plan


def replace_entries(td: CollectionProtocol, entries: dict[str, Any]) -> None:
    """Make ``entries``, values of ``td``, its only entries, in their order."""
    if td._is_dense:
        held = td._tensordict
        held.clear()
        held.update(entries)
        return
    for key in list(td._entries()):
        if key not in entries:
            td._del_entry(key)


def select(
    td: CollectionProtocol, keys: tuple[Any, ...], inplace: bool, strict: bool
) -> Any:
    """Return a tensordict of the entries at ``keys``, in order; ``td`` itself in place.

    If only parts of a nested tensordict are selected, a new one contains them. If a key
    leads below another one of ``keys``, only the deeper entry is kept.
    """
    if td._is_dense and not inplace:
        entries = picked(td._tensordict, keys)
        if entries is not None:
            # `_like` inline, since the compiler would enter the function.
            names = td._td_dim_names
            return new(
                td.__class__,
                entries,
                td._batch_size,
                td._device,
                None if names is None else list(names),
            )
    changes: list[Any] = []
    result = _select(td, keys, inplace, strict, changes)
    for collection, entries in changes:
        replace_entries(collection, entries)
    return result


def _select(
    td: CollectionProtocol,
    keys: Iterable[NestedKeyLike],
    inplace: bool,
    strict: bool,
    changes: list[Any],
    path: tuple[str, ...] = (),
) -> Any:
    stack = None if td._is_dense else td._lazy_stack()
    if stack is not None:
        kept = [
            _select(each, keys, inplace, strict, changes, path)
            for each in stack.tensordicts
        ]
        return td if inplace else td._like(kept)
    if inplace and td.is_locked:
        raise locked_error(td)
    entries: dict[str, Any] = {}
    for key, rests in _grouped(keys).items():
        value = td._get_entry(key, NO_DEFAULT)
        if value is NO_DEFAULT:
            if strict:
                full_path = (*path, key, *rests[0])
                raise missing_key(td, key, full_path, len(path))
            continue
        below = [rest for rest in rests if rest]
        if below:
            if not isinstance(value, CollectionProtocol):
                if strict:
                    full_path = (*path, key, *below[0])
                    raise through_leaf(full_path, len(path) + 1, value)
                continue
            inner = (*path, key)
            value = _select(value, below, inplace, strict, changes, inner)
        entries[key] = value
    if inplace:
        changes.append((td, entries))
        return td
    return _like(td, entries)


def _like(td: CollectionProtocol, entries: dict[str, Any]) -> Any:
    """Make a tensordict like ``td`` (size, device, names) around ``entries``."""
    if not td._is_dense:
        return td._with_entries(entries)
    names = td._td_dim_names
    return new(
        td.__class__,
        entries,
        td._batch_size,
        td._device,
        None if names is None else list(names),
    )


def exclude(td: CollectionProtocol, keys: tuple[Any, ...], inplace: bool) -> Any:
    """Return a tensordict without the entries at ``keys``; ``td`` itself if in place.

    Missing keys are ignored. Without keys, the result has new nested tensordicts.
    """
    if not keys:
        return td if inplace else clone_structure(td)
    changes: list[Any] = []
    result = _exclude(td, keys, inplace, changes)
    for collection, entries in changes:
        replace_entries(collection, entries)
    return result


def _exclude(
    td: CollectionProtocol,
    keys: Iterable[NestedKeyLike],
    inplace: bool,
    changes: list[Any],
) -> Any:
    stack = None if td._is_dense else td._lazy_stack()
    if stack is not None:
        kept = [_exclude(each, keys, inplace, changes) for each in stack.tensordicts]
        return td if inplace else td._like(kept)
    plan = _grouped(keys)
    entries: dict[str, Any] = {}
    dropped = False
    for key, value in list(td._entries().items()):
        rests = plan.get(key)
        if rests is not None:
            if () in rests:
                dropped = True
                continue
            if isinstance(value, CollectionProtocol):
                value = _exclude(value, rests, inplace, changes)
        entries[key] = value
    if not inplace:
        return _like(td, entries)
    if dropped:
        if td.is_locked:
            raise locked_error(td)
        changes.append((td, entries))
    return td


def flatten_keys(
    td: CollectionProtocol, separator: str, inplace: bool, is_leaf: Any = None
) -> Any:
    """Return all leaves in one tensordict, under their paths joined by ``separator``.

    ``is_leaf`` is called with the type of every value. Nested tensordicts that it
    accepts are leaves; other values that it refuses are left out. In place, the direct
    leaves come first.
    """
    if inplace and td.is_locked:
        raise locked_error(td)
    direct: dict[str, Any] = {}
    if td._is_dense and not inplace and is_leaf is None:
        held = td._tensordict.copy()
        if not special_keys(held):
            # `_like` inline, since the compiler would enter the function.
            names = td._td_dim_names
            return new(
                td.__class__,
                held,
                td._batch_size,
                td._device,
                None if names is None else list(names),
            )
    entries: dict[str, Any] = direct if not inplace else {}
    _flatten(td, separator, is_leaf, (), direct, entries, inplace)
    if not inplace:
        return _like(td, entries)
    for key, value in entries.items():
        if key in direct:
            raise KeyMessageError(MSG_COLLIDE.format([key]))
        direct[key] = value
    if td._is_dense:
        replace_entries(td, direct)
    else:
        for key, value in direct.items():
            td._set_entry(key, value)
        replace_entries(td, direct)
    return td


def _flatten(
    td: CollectionProtocol,
    separator: str,
    is_leaf: Callable[[Any], bool] | None,
    prefix: tuple[str, ...],
    direct: dict[str, Any],
    nested: dict[str, Any],
    inplace: bool,
) -> None:
    out = nested if prefix else direct
    # A separator that is no string is an error only if something is joined.
    joined = None if prefix else ""
    held = (td._tensordict if td._is_dense else td._entries()).copy()
    special = special_keys(held)
    if is_leaf is None and not special:
        if not prefix:
            out.update(held)
            return
        if inplace and held and td.is_locked:
            raise locked_error(td)
        joined = separator.join((*prefix, "")) if held else ""
        for key, value in held.items():
            name = joined + key
            if name in out:
                raise KeyMessageError(MSG_COLLIDE.format([name]))
            out[name] = value
        return
    for key, value in held.items():
        collection = key in special and isinstance(value, CollectionProtocol)
        if is_leaf is None:
            leaf = not collection or value._is_non_tensor
        else:
            leaf = is_leaf(type(value))
        if leaf:
            if joined is None:
                if inplace and td.is_locked:
                    raise locked_error(td)
                joined = separator.join((*prefix, ""))
            name = joined + key
            if name in out:
                raise KeyMessageError(MSG_COLLIDE.format([name]))
            if collection and not inplace and value.is_locked:
                value = clone_structure(value)
            out[name] = value
        elif collection:
            path = (*prefix, key)
            _flatten(value, separator, is_leaf, path, direct, nested, inplace)


def unflatten_keys(td: CollectionProtocol, separator: str, inplace: bool) -> Any:
    """Regroup the entries of ``td``: split each key at ``separator`` into a path.

    Entries without the separator come first. New nested tensordicts have the batch size
    of ``td``. Existing ones take the new entries, in place themselves, else as copies.
    """
    entries: dict[str, Any] = {}
    paths: list[tuple[tuple[str, ...], Any]] = []
    for key, value in list(td._entries().items()):
        if separator in key:
            paths.append((tuple(key.split(separator)), value))
        elif not inplace and isinstance(value, CollectionProtocol):
            entries[key] = clone_structure(value)
        else:
            entries[key] = value
    if not paths:
        return td if inplace else _like(td, entries)
    if inplace and td.is_locked:
        raise locked_error(td)
    # Existing tensordicts get new entries only after all keys were checked.
    branches: dict[tuple[str, ...], Any] = {}
    waiting: dict[tuple[str, ...], dict[str, Any]] = {}
    for path, value in paths:
        parent: Any = None
        parent_path: tuple[str, ...] = ()
        for part in path[:-1]:
            parent_path = (*parent_path, part)
            branch = branches.get(parent_path)
            if branch is None:
                branch = _unflattened_branch(td, entries, waiting, parent, parent_path)
                if branch is None:
                    raise KeyMessageError(MSG_OVERRIDE.format(path))
                branches[parent_path] = branch
                waiting.setdefault(parent_path, {})
            parent = branch
        added = waiting[parent_path]
        key = path[-1]
        if key in added or parent._get_entry(key, NO_DEFAULT) is not NO_DEFAULT:
            raise KeyMessageError(MSG_OVERRIDE.format(path))
        if parent.batch_size != td.batch_size:
            value = validate(parent, key, value)
        added[key] = value
    for path, added in waiting.items():
        branch = branches[path]
        for key, value in added.items():
            branch._set_entry(key, value)
    if not inplace:
        return _like(td, entries)
    if not td._is_dense:
        for key, value in entries.items():
            if td._get_entry(key, NO_DEFAULT) is NO_DEFAULT:
                td._set_entry(key, value)
    replace_entries(td, entries)
    return td


def _unflattened_branch(
    td: CollectionProtocol,
    entries: dict[str, Any],
    waiting: dict[tuple[str, ...], dict[str, Any]],
    parent: CollectionProtocol,
    path: tuple[str, ...],
) -> Any:
    """Return the tensordict at ``path``, creating it if needed; None at a leaf."""
    key = path[-1]
    if parent is None:
        branch = entries.get(key, NO_DEFAULT)
        added = entries
    else:
        added = waiting[path[:-1]]
        branch = added.get(key, NO_DEFAULT)
        if branch is NO_DEFAULT:
            branch = parent._get_entry(key, NO_DEFAULT)
    if branch is NO_DEFAULT:
        branch = (td if parent is None else parent)._make_child()
        added[key] = branch
    elif not isinstance(branch, CollectionProtocol):
        return None
    elif branch.is_locked:
        raise locked_error(branch)
    return branch
