"""Selecting, renaming and regrouping of entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self
from weakref import ref

import torch

from tensordict import _rust
from tensordict._rust import flatten_keys, select
from tensordict.primitives.checks import holds_values, is_branch
from tensordict.primitives.common import MSG_NO_KEYS
from tensordict.primitives.errors import (
    KeyMessageError,
    bad_key,
    locked_error,
    missing_of_all,
)
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.update import replace_all

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Iterable,
        Mapping,
    )

    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["KeysOps", "set_default"]

MSG_KEY_TYPE = "Expected {} to be a string or a tuple of strings but found {}"
MSG_TAKEN = "key {} already present in TensorDict."
MSG_DESTINATION_TAKEN = "The destination {} is already present and is not renamed away."
MSG_DESTINATION_THROUGH = (
    "The destination {} runs through the entry {}, which is not a tensordict."
)
MSG_DESTINATION_TWICE = "The key {} is a destination more than once."
MSG_SOURCES_NESTED = (
    "The sources {} and {} lie inside one another, so the result would depend on the "
    "order of the mapping."
)


class KeysOps(CollectionProtocol):
    """Selecting, renaming and regrouping of entries."""

    def entry_class(self, key: NestedKeyLike) -> type:
        """Return the type of the entry at a nested key; ``NoneType`` if it is missing.

        Raises:
            ValueError: the key leads below a leaf.

        Examples:
            >>> TensorDict({"a": torch.zeros(3)}, [3]).entry_class("a")
            <class 'torch.Tensor'>
        """
        return type(self.get(key))

    def is_non_tensor(self, key: NestedKeyLike) -> bool:
        """Return whether the entry at a nested key is non-tensor data.

        Raises:
            KeyError: the entry is missing.
            RuntimeError: ``key`` is no nested key.
        """
        if not _rust.unravel_key_to_tuple(key):
            raise RuntimeError(MSG_NO_KEYS)
        value = _rust.get(self, key)
        return holds_values(value)

    def non_tensor_items(self, include_nested: bool = False) -> tuple[Any, ...]:
        """Return the pairs of key and value of the non-tensor entries."""
        return tuple(
            (key, value)
            for key, value in _rust.walk(self, 2, include_nested, False, None)
            if holds_values(value)
        )

    # Choosing --------------------------------------------------------------------

    def select(
        self,
        *keys: NestedKeyLike,
        inplace: bool = False,
        strict: bool = True,
        as_tensordict: bool = False,
    ) -> Self:
        """Keep only the entries at ``keys``, in that order.

        The result shares its leaves with this tensordict, and also the nested
        tensordicts that are kept whole. If one of ``keys`` leads below another one,
        only the deeper entry is kept.

        Args:
            *keys: nested keys of leaves or tensordicts.
            inplace: drop the other entries from this tensordict and return it.
            strict: raise an error for a missing key. If False, it is ignored.
            as_tensordict: for a tensorclass, return the tensordict of its fields.

        Raises:
            KeyError: a key is missing and ``strict`` is True.
            RuntimeError: ``inplace`` is True and the tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.ones(3)}}, [3])
            >>> list(td.select(("n", "b"), "a").keys(True, True))
            [('n', 'b'), 'a']
            >>> td.select("a")["a"] is td["a"]
            True
        """
        return select(self, keys, inplace, strict)

    def exclude(self, *keys: NestedKeyLike, inplace: bool = False) -> Self:
        """Drop the entries at ``keys``. Missing keys are ignored.

        The result shares its leaves with this tensordict, and also the nested
        tensordicts that are kept whole.

        Args:
            *keys: nested keys of leaves or tensordicts.
            inplace: drop the entries from this tensordict and return it.

        Raises:
            RuntimeError: ``inplace`` is True, and a tensordict that contains one of the
                entries is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.ones(3)}}, [3])
            >>> list(td.exclude("a", ("n", "b")).keys(True))
            ['n']
        """
        return _rust.exclude(self, keys, inplace)

    def filter_non_tensor_data(self) -> Self:
        """Return a tensordict with the tensors only; all nested tensordicts are new."""
        result = _dense_copy(self)
        _drop_values(result)
        return result

    def filter_empty_(self) -> Self:
        """Drop the nested tensordicts that contain no leaf.

        Raises:
            RuntimeError: a tensordict that contains one of them is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3), "n": {"m": {}}}, [3])
            >>> list(td.filter_empty_().keys())
            ['a']
        """
        drops: list[tuple[CollectionProtocol, str]] = []
        _collect_empty(self, drops)
        for collection, _ in drops:
            if collection.is_locked:
                raise locked_error(collection)
        for collection, key in drops:
            collection._del_entry(key)
        return self

    # Regrouping ------------------------------------------------------------------

    def flatten_keys(
        self,
        separator: str = ".",
        inplace: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> Self:
        """Flatten the tensordict: join the parts of each leaf's key by ``separator``.

        Used in a ``with`` statement, changes are written back to this tensordict.

        Args:
            separator: the string between the parts of a key.
            inplace: change this tensordict and return it. Its direct leaves come first.
            is_leaf: called with a type; True for types that stay whole. Default: all
                types but tensordicts.

        Raises:
            KeyError: two leaves would get the same key.
            RuntimeError: ``inplace`` is True and the tensordict is locked.

        Examples:
            >>> td = TensorDict({"n": {"a": torch.ones(3)}, "b": torch.zeros(3)}, [3])
            >>> list(td.flatten_keys().keys())
            ['n.a', 'b']
            >>> with td.flatten_keys() as flat:
            ...     flat["n.c"] = torch.zeros(3)
            >>> td["n", "c"]
            tensor([0., 0., 0.])
        """
        result = flatten_keys(self, separator, inplace, is_leaf)
        result._last_op = ("flatten_keys", (separator,), {}, ref(self))
        return result

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Split keys at ``separator`` into nested keys.

        Entries without the separator come first. New nested tensordicts have the batch
        size of this one. Used in a ``with`` statement, changes are written back to this
        tensordict.

        Args:
            separator: the string at which keys are split.
            inplace: change this tensordict and return it.

        Raises:
            KeyError: a new key, or a level above it, is already an entry.
            RuntimeError: ``inplace`` is True and the tensordict is locked.

        Examples:
            >>> td = TensorDict({"n.a": torch.ones(3), "b": torch.zeros(3)}, [3])
            >>> list(td.unflatten_keys().keys(True))
            ['b', ('n', 'a'), 'n']
        """
        result = _rust.unflatten_keys(self, separator, inplace)
        result._last_op = ("unflatten_keys", (separator,), {}, ref(self))
        return result

    def split_keys(
        self,
        *key_sets: Iterable[NestedKeyLike],
        inplace: bool = False,
        default: object = NO_DEFAULT,
        strict: bool = True,
        reproduce_struct: bool = False,
    ) -> tuple[Self, ...]:
        """Split the entries: a tensordict for each set of keys, and one for the rest.

        Args:
            *key_sets: the nested keys of each tensordict. New nested tensordicts have
                the batch size of this one.
            inplace: keep the rest in this tensordict.
            default: stored for a missing entry if ``strict`` is False; None stores
                nothing.
            strict: raise an error for a missing key. If False, it is ignored.
            reproduce_struct: give every result all nested tensordicts, also empty ones.

        Raises:
            KeyError: ``strict`` is True, and a key is missing or in two sets.
            RuntimeError: ``inplace`` is True and the tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3), "b": torch.ones(3)}, [3])
            >>> [list(part.keys()) for part in td.split_keys(["a"])]
            [['a'], ['b']]
        """
        sets = [dict.fromkeys(_path_of(key) for key in keys) for keys in key_sets]
        rest = _dense_copy(self)
        parts: list[Any] = []
        moved_paths: list[tuple[str, ...]] = []
        for paths in sets:
            part = self.empty(recurse=reproduce_struct)
            _drop_values(part)
            for path in paths:
                value = rest.pop(path, NO_DEFAULT if strict else ...)
                if value is not ...:
                    moved_paths.append(path)
                elif default is NO_DEFAULT or default is None:
                    continue
                else:
                    value = default
                part.set(path, value)
            parts.append(part)
        if not reproduce_struct:
            rest.filter_empty_()
        if inplace:
            _check_open(self, rest, moved_paths)
            replace_all(self, rest)
            rest = self
        return (*parts, rest)

    def separates(
        self,
        *keys: NestedKeyLike,
        default: object = NO_DEFAULT,
        strict: bool = True,
        filter_empty: bool = True,
    ) -> Self:
        """Move the entries at ``keys`` out of this tensordict into a new one.

        Args:
            *keys: nested keys.
            default: stored in the new tensordict for a missing entry. If it is no
                tensor of the batch size, it is stored as non-tensor data.
            strict: raise an error for a missing entry without default.
            filter_empty: drop the nested tensordicts that are left without leaves.

        Raises:
            KeyError: an entry is missing; then nothing is moved.
            RuntimeError: the tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3), "b": torch.ones(3)}, [3])
            >>> list(td.separates("a").keys()), list(td.keys())
            (['a'], ['b'])
        """
        paths = [_path_of(key) for key in keys]
        if not strict and default is NO_DEFAULT:
            default = None
        rest = _dense_copy(self)
        result = self.empty(recurse=True)
        moved_paths: list[tuple[str, ...]] = []
        for path in paths:
            value = rest.pop(path, ... if default is not NO_DEFAULT else NO_DEFAULT)
            if value is ...:
                set_default(result, path, default)
                continue
            if isinstance(value, CollectionProtocol) and not any(
                other[: len(path)] == path for other in moved_paths
            ):
                # No entry was moved out of it, so the original moves, not the copy.
                value = _rust.get(self, path, value)
            moved_paths.append(path)
            result.set(path, value)
        result.filter_empty_()
        if filter_empty:
            rest.filter_empty_()
        _check_open(self, rest, moved_paths)
        if self.is_locked or not self._is_dense:
            replace_all(self, rest)
            return result
        for path in moved_paths:
            # Keep nested tensordicts the same objects: other code may refer to them.
            holder = self if len(path) == 1 else _rust.get(self, path[:-1])
            holder._del_entry(path[-1])
        if filter_empty:
            self.filter_empty_()
        return result

    # Renaming --------------------------------------------------------------------

    def rename_key_(
        self, old_key: NestedKeyLike, new_key: NestedKeyLike, safe: bool = False
    ) -> Self:
        """Move an entry to another nested key, as the last entry there.

        Args:
            old_key: the present key.
            new_key: the new key. An entry there is replaced.
            safe: raise an error if there is an entry at ``new_key``.

        Raises:
            KeyError: no entry is at ``old_key``; or one is at ``new_key``, and ``safe``
                is True.
            RuntimeError: the tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3), "b": torch.ones(3)}, [3])
            >>> list(td.rename_key_("a", ("n", "c")).keys(True, True))
            ['b', ('n', 'c')]
        """
        if self.is_locked:
            raise locked_error(self)
        old = _key_path(old_key, "old_name")
        new = _key_path(new_key, "new_name")
        value = _rust.get(self, old)
        if old == new:
            return self
        if safe and _rust.contains(self, new):
            raise KeyMessageError(MSG_TAKEN.format(new_key))
        parent = _rust.get(self, old[:-1]) if len(old) > 1 else self
        if parent.is_locked:
            raise locked_error(parent)
        if new[: len(old)] != old:
            _move_entry(parent, self, new, value)
            if old[: len(new)] != new:
                parent._del_entry(old[-1])
            return self
        # The new key lies below the old one, so the entry must be removed first.
        before = dict(parent._entries())
        parent._del_entry(old[-1])
        try:
            _move_entry(parent, self, new, value)
        except BaseException:
            _restore(parent, before)
            raise
        return self

    def rename_keys(
        self, mapping: Mapping[Any, NestedKeyLike], *, strict: bool = True
    ) -> Self:
        """Move entries to other nested keys, all at once, in a new tensordict.

        The result shares its leaves with this tensordict; all nested tensordicts are
        new. Moved entries come last. Keys may be swapped.

        Args:
            mapping: from old nested keys to new ones.
            strict: raise an error for a missing key. If False, it is ignored.

        Raises:
            KeyError: a key is missing and ``strict`` is True.
            ValueError: two entries would get the same key, or an entry would be moved
                out of another one that is moved, too.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3), "b": torch.ones(3)}, [3])
            >>> td.rename_keys({"a": "b", "b": "a"})["a"]
            tensor([1., 1., 1.])
        """
        moves = {_key_path(old): _key_path(new) for old, new in mapping.items()}
        _check_sources(moves)
        _check_once(moves.values())
        present = {}
        for old, new in moves.items():
            if _rust.contains(self, old):
                present[old] = new
            elif strict:
                raise missing_of_all(self, old, every=True)
        _check_destinations(self, present)
        result = _dense_copy(self)
        _share_values(self, result)
        present = {old: new for old, new in present.items() if old != new}
        values = {old: result.pop(old) for old in present}
        _drop_emptied(result, {old[:-1] for old in present})
        for old, new in present.items():
            source = _rust.get(self, old[:-1]) if len(old) > 1 else self
            _move_entry(source, result, new, values[old])
        return result


def _move_entry(
    source: CollectionProtocol,
    td: CollectionProtocol,
    path: tuple[str, ...],
    value: object,
) -> None:
    """Store an entry of ``source``, unchecked if batch size and device are the same."""
    holder = td
    for key in path[:-1]:
        below = holder._get_entry(key, None)
        if not isinstance(below, CollectionProtocol):
            break
        holder = below
    size = holder.batch_size
    fits = source.batch_size[: len(size)] == size and source.device == holder.device
    _rust.set_entry(td, path, value, validated=holder._is_dense and fits)


def _drop_values(td: CollectionProtocol) -> None:
    """Remove all non-tensor entries, in place."""
    for collection in _rust.containers(td):
        # A sample is enough: members of a lazy stack may not fit together.
        for key, value in list(collection._sample_entries().items()):
            if holds_values(value):
                collection._del_entry(key)


def _dense_copy(td: CollectionProtocol) -> Any:
    """Return new tensordicts around the same leaves; changes do not reach ``td``."""
    return _rust.clone_structure(td) if td._is_dense else td._as_plain()


def _share_values(td: CollectionProtocol, result: CollectionProtocol) -> None:
    """Put the non-tensor entries of ``td`` itself into its copy ``result``."""
    if not td._is_dense:
        return
    for key, value in list(td._entries().items()):
        if holds_values(value):
            result._set_entry(key, value)
        elif is_branch(value):
            _share_values(value, result._get_entry(key, None))


def _check_open(
    td: CollectionProtocol,
    rest: CollectionProtocol,
    moved_paths: Iterable[tuple[str, ...]],
) -> None:
    """Raise an error if a locked tensordict keeps ``td`` from becoming ``rest``."""
    parents = [_rust.get(td, path[:-1], td) for path in moved_paths if len(path) > 1]
    if any(getattr(parent, "is_locked", False) for parent in parents) or (
        td.is_locked and {*td.keys(True)} != {*rest.keys(True)}
    ):
        raise locked_error(td)


def _path_of(key: NestedKeyLike) -> tuple[str, ...]:
    path = _rust.unravel_key_to_tuple(key)
    if not path:
        raise bad_key(key)
    return path


def _key_path(key: NestedKeyLike, name: str = "a key") -> tuple[str, ...]:
    if not isinstance(key, (str, tuple)):
        raise TypeError(MSG_KEY_TYPE.format(name, type(key)))
    return _path_of(key)


def _check_sources(moves: Iterable[tuple[str, ...]]) -> None:
    """Refuse to move an entry out of another entry that moves, too."""
    for outer in moves:
        for inner in moves:
            if inner != outer and inner[: len(outer)] == outer:
                raise ValueError(MSG_SOURCES_NESTED.format(outer, inner))


def _check_once(destinations: Iterable[tuple[str, ...]]) -> None:
    """Refuse to move two entries to one key."""
    seen = set()
    for new in destinations:
        if new in seen:
            raise ValueError(MSG_DESTINATION_TWICE.format(new))
        seen.add(new)


def _check_destinations(
    td: CollectionProtocol, moves: dict[tuple[str, ...], tuple[str, ...]]
) -> None:
    """Refuse moves that would overwrite an entry."""
    for new in moves.values():
        if any(new[: len(old)] == old for old in moves):
            continue
        if _rust.contains(td, new) and not _is_emptied(td, new, moves):
            raise ValueError(MSG_DESTINATION_TAKEN.format(new))
        for end in range(1, len(new)):
            found = _rust.get(td, new[:end], None)
            if found is None:
                break
            if not isinstance(found, CollectionProtocol):
                raise ValueError(MSG_DESTINATION_THROUGH.format(new, new[:end]))


def _is_emptied(
    td: CollectionProtocol, path: tuple[str, ...], moves: Iterable[tuple[str, ...]]
) -> bool:
    """Return whether all leaves of the tensordict at ``path`` are moved away."""
    found = _rust.get(td, path)
    if not isinstance(found, CollectionProtocol):
        return False
    leaves = found.keys(True, True)
    return len(leaves) > 0 and all(
        (*path, *_rust.unravel_key_to_tuple(key)) in moves for key in leaves
    )


def _restore(td: CollectionProtocol, entries: dict[str, Any]) -> None:
    """Replace all entries of a tensordict by ``entries``, in their order."""
    for key in list(td._entries()):
        td._del_entry(key)
    for key, value in entries.items():
        td._set_entry(key, value)


def _collect_empty(
    td: CollectionProtocol, drops: list[tuple[CollectionProtocol, str]]
) -> bool:
    """Collect the outermost tensordicts without leaves; True if ``td`` is one."""
    is_empty = True
    inner_drops: list[tuple[CollectionProtocol, str]] = []
    for key, value in list(td._entries().items()):
        if not is_branch(value):
            is_empty = False
        elif _collect_empty(value, inner_drops):
            inner_drops.append((td, key))
        else:
            is_empty = False
    drops.extend(inner_drops)
    return is_empty


def _drop_emptied(td: CollectionProtocol, paths: set[tuple[str, ...]]) -> None:
    """Drop the tensordicts at ``paths`` that are empty, and their emptied parents."""
    for path in sorted(paths, key=len, reverse=True):
        while path:
            found = _rust.get(td, path, None)
            if not isinstance(found, CollectionProtocol) or found._entries():
                break
            td.del_(path)
            path = path[:-1]


def set_default(td: Any, path: tuple[str, ...], default: Any) -> None:
    """Store a default for a missing entry: as non-tensor data if it does not fit."""
    size = td.batch_size
    is_entry = isinstance(default, (torch.Tensor, CollectionProtocol))
    if is_entry and default.shape[: len(size)] == size:
        td.set(path, default)
    else:
        td.set_non_tensor(path, default)
