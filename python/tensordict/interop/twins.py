"""The primitives in plain Python: what Dynamo traces, and the oracle of the native ones.

Each function here has a native namesake in ``tensordict._rust`` with the same
parameters, all positional. :mod:`tensordict.interop.compile` registers the pairs
with :func:`torch.compiler.substitute_in_graph`, and a property test holds them equal.
So the code must be simple enough for Dynamo: plain loops over plain dictionaries. What
it costs to compile is the instructions traced, and what a compiled call costs beside the
torch calls is mostly the guards. Hence conditions that do not change stand before loops,
and no function is called where its result is known. What costs, in calls of Python: a
function that is entered 1,000, and 250 each further time, with two for each of its
instructions; a call of a built-in function 200, and 300 more the first time; an
attribute of a container 120 to 600; a global 20 to 60; any other instruction 15 to 70.

A loop that only calls something with each leaf is :func:`.leaf_loops.on_plain`, which
the compiler does not interpret.

:func:`.leaf_loops.special_keys` tells in one step what there is besides plain tensors:
what holds others, or is no ordinary tensor, takes part in torch's functions. Of a plain
tensor that is only passed on nothing else may be asked: it then costs next to nothing.

In all of them ``k`` is the number of batch dims of the root of the walk (-1: this
container is the root). A nested container has at least the dims of its parent, so a
walk that turns the root's batch size into ``prefix`` turns a nested one into
``prefix + nested.batch_size[k:]``; one that was given fewer dims than the root keeps as
many where the others stay in their places. Names follow the same rule.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.overrides import has_torch_function_variadic as any_special

from tensordict._unbatched import UnbatchedTensor
from tensordict.common import (
    MSG_LOCKED_GRAPH,
    NO_TAIL,
    _call,
    _spliced_names,
    _spliced_size,
    more_refs,
)
from tensordict.interop.leaf_loops import on_plain, special_keys
from tensordict.protocol import CollectionProtocol

if TYPE_CHECKING:
    import torch

MSG_KEY = "key should be a Sequence<NestedKey>"

# Keys ------------------------------------------------------------------------


def unravel_key_to_tuple(key: Any) -> tuple[str, ...]:
    """Flatten a nested key into a tuple of strings; an empty tuple where it is no key."""
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


def unravel_key(key: Any) -> str | tuple[str, ...]:
    """The simplest form of a nested key: a string, or a tuple of two or more.

    A tuple that is no nested key gives an empty one, as in tensordict 0.15.

    Raises:
        RuntimeError: the key is neither a string nor a tuple.
    """
    if not isinstance(key, (str, tuple)):
        raise RuntimeError(MSG_KEY)
    flat = unravel_key_to_tuple(key)
    return flat[0] if len(flat) == 1 else flat


def unravel_key_list(keys: Any) -> list[str | tuple[str, ...]]:
    """:func:`unravel_key` of each key of a list or tuple, all of which are nested keys."""
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


# Making ------------------------------------------------------------------------


def new(
    cls: Any,
    entries: dict[str, Any],
    batch_size: torch.Size,
    device: torch.device | None,
    names: list[str | None] | None,
) -> Any:
    """A dense container of type ``cls`` around ``entries``, unchecked, not copied."""
    td = object.__new__(cls)
    # Compiled code sets each attribute by a call of a function, but this by none. See
    # `construction` for the rule that stands for it there.
    td.__dict__ = {
        "_tensordict": entries,
        "_batch_size": batch_size,
        "_device": device,
        "_td_dim_names": names,
    }
    return td


def map_leaves(
    td: Any,
    op: Any,
    args: tuple[Any, ...] = (),
    prefix: torch.Size | None = None,
    names: Any = True,
    tail: int = NO_TAIL,
    lock: bool = False,
    k: int = -1,
) -> Any:
    """A container of the same structure with ``op`` called on every leaf.

    ``op`` is the name of a method of the leaves, called as ``leaf.op(*args)``, or a
    callable, called as ``op(leaf, *args)``. With ``tail`` 1 the first argument is a
    shape to which the leaf's dims from ``k`` on are appended, with ``tail`` 2 a
    permutation to which the dim numbers from ``k`` on are, with ``tail`` 3 one to which
    a 1 is for each of those.

    ``prefix`` is the root's new batch size (None: all keep theirs). ``names`` is True
    (all keep theirs), None (nobody has any), a list (the root's new ones; nested ones
    append theirs from dim ``k`` on), or a tuple that gives for each dim of ``prefix``
    the old dim whose name it takes, -1 for none: every container applies it to its own
    names. With ``lock`` the result of a locked container is locked;
    where there is a ``prefix``, so is that of a nested one which is locked on its own.
    """
    if not td._is_dense:
        return td._map_leaves(op, args, prefix, names, tail, lock, k)
    size, old_names = td._batch_size, td._td_dim_names
    if k >= 0:
        if prefix is not None:
            size = prefix if len(size) == k else _spliced_size(size, prefix, k, names)
    elif tail or prefix is not None or names is not True:
        k = len(size)
        size = size if prefix is None else prefix
    locked = lock and td._is_locked
    held = td._tensordict.copy()
    entries, others = on_plain(held, op, args, tail, k)
    if others:
        alone = lock and not locked and prefix is not None
        below = (op, args, prefix, names, tail, alone, k)
        for key in others:
            value = held[key]
            if isinstance(value, CollectionProtocol):
                entries[key] = map_leaves(value, *below)
            else:
                entries[key] = _map_unusual(value, size, *below)
    # Where there were no names, there are some only if a list gives them, and of names
    # nothing but a list is equal to one.
    if old_names is not None or (
        names is not True and names is not None and names == [*names]
    ):
        old_names = _spliced_names(old_names, names, k, size)
    result = new(td.__class__, entries, size, td._device, old_names)
    if locked:
        lock_tree(result)
    return result


def _map_unusual(
    value: Any,
    size: torch.Size,
    op: Any,
    args: tuple[Any, ...],
    prefix: torch.Size | None,
    names: Any,  # noqa: ARG001
    tail: int,
    lock: bool,  # noqa: ARG001
    k: int,
) -> Any:
    """:func:`map_leaves` of a leaf that is no plain tensor."""
    if prefix is not None and isinstance(value, UnbatchedTensor):
        return value._with_batch_size(size)
    return _call(value, op, args, tail, k)


def split_leaves(
    td: Any,
    op: Any,
    args: tuple[Any, ...],
    prefixes: list[torch.Size],
    names: Any = True,
    lock: bool = False,
    k: int = -1,
) -> list[Any]:
    """As :func:`map_leaves` for an ``op`` that gives a sequence: one container per item.

    ``prefixes`` has the batch size of each item; its length is the number of items.
    """
    if not td._is_dense:
        return td._split_leaves(op, args, prefixes, names, lock, k)
    old_size, old_names, device = td._batch_size, td._td_dim_names, td._device
    if k < 0:
        k = len(old_size)
    sizes = prefixes
    if len(old_size) != k:
        sizes = [_spliced_size(old_size, prefix, k, names) for prefix in prefixes]
    locked = lock and td._is_locked
    held = td._tensordict.copy()
    columns, others = on_plain(held, op, args, NO_TAIL, k)
    for key in others:
        value = held[key]
        if isinstance(value, CollectionProtocol):
            alone = lock and not locked
            parts: Any = split_leaves(value, op, args, prefixes, names, alone, k)
        elif isinstance(value, UnbatchedTensor):
            parts = [value._with_batch_size(size) for size in sizes]
        else:
            parts = _call(value, op, args, NO_TAIL, k)
        columns[key] = parts
    rows: Any = [()] * len(sizes)
    if columns:
        rows = zip(*columns.values(), strict=True)
    is_named = old_names is not None or (
        names is not True and names is not None and names == [*names]
    )
    results = []
    for size, row in zip(sizes, rows, strict=True):
        entries: dict[str, Any] = {}
        # The cheapest way to fill a dictionary, to compile.
        entries.update(zip(columns, row, strict=False))
        new_names = _spliced_names(old_names, names, k, size) if is_named else None
        results.append(new(td.__class__, entries, size, device, new_names))
    if locked:
        for result in results:
            lock_tree(result)
    return results


def leaves(td: Any, out: list[Any] | None = None) -> list[Any]:
    """Every leaf, depth first, in key order."""
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


def attributes(td: Any) -> dict[str, Any]:
    """A copy of the instance dictionary."""
    return td.__dict__.copy()


def is_empty(td: Any) -> bool:
    """Whether there is no leaf, here or in what is nested."""
    entries = td._tensordict if td._is_dense else td._entries()
    for value in entries.values():
        if not isinstance(value, CollectionProtocol):
            return False
    for value in [*entries.values()]:
        if value._is_non_tensor or not value.is_empty():
            return False
    return True


def is_filled(td: Any) -> bool:
    """Whether every container, here and in what is nested, is a dense one with entries."""
    return all([each._is_dense and each._tensordict for each in containers(td)])


def on_host(leaves: list[Any]) -> bool:
    """Whether all ``leaves`` are on the CPU, or have no memory."""
    return all([leaf.is_cpu or leaf.is_meta for leaf in leaves])


def truth(td: Any, op: str) -> bool:
    """Whether all leaves, or any (``op``), are true, as their method ``op`` says.

    All leaves are asked, and the answer is read once: the compiler knows it only then.
    """
    answer: Any = None
    both = "logical_or" if op == "any" else "logical_and"
    for leaf in leaves(td):
        found = getattr(leaf, op)()
        answer = found if answer is None else getattr(answer, both)(found)
    return op == "all" if answer is None else bool(answer)


def rebuild(
    td: Any,
    values: Any,
    names: Any = True,
    lock: bool = False,
    drop_empty: bool = False,
) -> Any:
    """A container of the structure of ``td`` with the leaves that ``values`` yields.

    ``values`` is a list in the order of :func:`leaves`. ``names`` True keeps the names,
    None drops them. With ``lock`` the result of a locked container is locked, with
    ``drop_empty`` it is without the nested containers that hold nothing.
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


def _drop_empty(td: Any) -> None:
    """Take the nested containers that hold nothing out of a result just made."""
    if not td._is_dense:
        td._drop_empty()
        return
    held = td._tensordict.copy()
    for key in special_keys(held):
        value = held[key]
        if isinstance(value, CollectionProtocol) and not value._is_non_tensor:
            _drop_empty(value)
            if value.is_empty():
                td._del_entry(key)


def _rebuild(td: Any, iterator: Any, names: Any) -> Any:
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
            next(iterator)  # raises, as there is no more
    old_names = td._td_dim_names
    if old_names is not None:
        old_names = list(old_names) if names is True else None
    return new(td.__class__, entries, td._batch_size, td._device, old_names)


def rebuild_as(
    td: Any, values: Any, cls: Any = None, size: Any = None, lock: bool = False
) -> Any:
    """As :func:`rebuild` without names: a comparison, or a reduction of whole leaves.

    ``cls`` is the class of all dense containers of the result (None: each keeps its
    own), ``size`` the batch size of all of them (None: each keeps its own).
    """
    result = _rebuild_as(td, iter(values), cls, size)
    if lock and td._is_locked:
        lock_tree(result)
    return result


def _rebuild_as(td: Any, iterator: Any, cls: Any, size: Any) -> Any:
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
            next(iterator)  # raises, as there is no more
    return new(
        type(td) if cls is None else cls,
        entries,
        td._batch_size if size is None else size,
        td._device,
        None,
    )


def align(td: Any, other: Any, is_complete: bool = False) -> list[Any] | None:
    """The leaves of ``other`` in the order in which :func:`leaves` gives those of ``td``.

    None where the two do not have the same keys, and leaves at the same places; with
    ``is_complete`` also where there is a non-tensor entry, which has no leaf.
    """
    out: list[Any] = []
    return out if _align(td, other, is_complete, out) else None


def _align(td: Any, other: Any, is_complete: bool, out: list[Any]) -> bool:
    if not td._is_dense:
        return td._align_leaves(other, out, is_complete)
    if other._is_dense:
        mine, theirs = td._tensordict, other._tensordict
        matches = [*theirs.values()]
        if [*mine] == [*theirs] and not any_special(*mine.values(), *matches):
            out += matches
            return True
    return _align_entries(td, other, is_complete, out)


def _align_entries(td: Any, other: Any, is_complete: bool, out: list[Any]) -> bool:
    mine, theirs = td._entries(), other._entries()
    if len(mine) != len(theirs):
        return False
    order = [*mine]
    if order == [*theirs]:
        matches = [*theirs.values()]
    else:
        matches = [theirs.get(key) for key in order]
    for value, match in zip([*mine.values()], matches, strict=True):
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


def leaf_batch_dims(td: Any, out: list[int] | None = None) -> list[int]:
    """For each leaf, in the order of :func:`leaves`, how many batch dims its container has."""
    if out is None:
        out = []
    if not td._is_dense:
        td._leaf_batch_dims(out)
        return out
    return _entry_batch_dims(td, out)


def _entry_batch_dims(td: Any, out: list[int]) -> list[int]:
    dims = len(td.batch_size)
    for value in list(td._entries().values()):
        if isinstance(value, CollectionProtocol):
            leaf_batch_dims(value, out)
        else:
            out.append(dims)
    return out


def data(td: Any) -> Any:
    """A container of ``leaf.data`` for each leaf, with names and the lock."""
    values = [leaf.data for leaf in leaves(td)]
    return rebuild(td, values, True, True)


def clone_structure(td: Any) -> Any:
    """New containers all the way down that share the leaves; unlocked."""
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


def walk(
    td: Any,
    kind: int,
    include_nested: bool,
    leaves_only: bool,
    is_leaf: Any = None,
    prefix: tuple[str, ...] = (),
    out: list[Any] | None = None,
) -> list[Any]:
    """The keys (``kind`` 0), values (1) or pairs (2) of a container, nested ones too.

    Keys are strings, or tuples below the root. A nested container comes after its own
    entries in a list of keys, and before them in the other two. With ``leaves_only``
    only what ``is_leaf`` accepts is listed: it is asked about the type of every value
    (None: containers are no leaves). A container is entered whether it is a leaf or not.
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
            if include_nested and not value._is_non_tensor:
                path = name if prefix else (key,)
                walk(value, kind, True, leaves_only, is_leaf, path, out)
            if listed and kind == 0:
                out.append(item)
        elif not leaves_only or is_leaf is None or is_leaf(type(value)):
            out.append(item)
    return out


# Locks -------------------------------------------------------------------------


def lock_tree(td: Any, parents: tuple[Any, ...] = ()) -> None:
    """Lock ``td`` and all that it holds; each nested one knows all its parents weakly."""
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
"""What an unlocked container does not have in its instance dictionary."""


def unlock_tree(td: Any) -> None:
    """Unlock ``td`` and all that it holds, or nothing.

    Raises:
        RuntimeError: one of them is part of another locked container that is alive.
    """
    members = containers(td)
    for member in members:
        for ref in member._lock_parents_weakrefs:
            parent = ref()
            # No identity is asked for: the compiler would guard it.
            is_outside = not any([parent is each for each in members])
            if parent is not None and is_outside and parent.is_locked:
                raise RuntimeError(MSG_LOCKED_GRAPH.format(member, parent))
    for member in members:
        _forget_lock(member)
    for member in members:
        if not member._is_dense:
            member._after_unlock()


def _forget_lock(td: Any) -> None:
    """Take what only a locked container has out of its instance dictionary."""
    state = td.__dict__
    for name in LOCK_STATE:
        if name in state:
            del state[name]


def containers(td: Any, out: list[Any] | None = None) -> list[Any]:
    """``td`` and every container below it, parents first."""
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


def holds_any(td: Any, others: list[Any]) -> bool:
    """Whether one of ``others`` is ``td``, or a container below it."""
    return any(each is other for each in containers(td) for other in others)
