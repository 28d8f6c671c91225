"""Merging of many entries, and filling of all leaves with a number."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict._rust import update
from tensordict.primitives.checks import inside, is_branch
from tensordict.primitives.common import (
    MSG_NO_KEYS,
)
from tensordict.primitives.errors import MSG_BAD_KEY, locked_error
from tensordict.primitives.protocol import CollectionProtocol, as_stack
from tensordict.primitives.update import check_update_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.containers.collection import TensorCollection
    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["MergingOps"]

MSG_KEY_LIST = (
    "unravel_key_list(): incompatible function arguments. Expected a list or a tuple of "
    "keys, got {}."
)
MSG_BATCH_SIZE_KEYS = (
    "Some keys of the dest tensordict are not present in the source during update with "
    "mismatching batch-size. batch_size of source={}, batch_size of dest={}, keys in "
    "dest but not in source: {{{}}}."
)
MSG_INPLACE_SIZE = (
    "Source and destination tensor collection shapes mismatch, but update was called "
    "with inplace=True, which cannot be achieved."
)
MSG_SIZE_OF_SOME = (
    "Updating tensordicts of different batch-size with keys_to_update is currently not "
    "supported."
)
MSG_FILL = (
    "fill_ only supports 0-dimension value tensor but got tensor with {} dimensions. Write "
    "a tensor with set_ or update_."
)


def _selected(source: CollectionProtocol, keys: object) -> dict[Any, Any]:
    """Return the entries of ``source`` at ``keys``.

    If both a nested tensordict and keys inside it are named, only the latter count.
    """
    paths = key_paths(keys)
    wanted = [key for key in paths if not any(goes_on([key], p) for p in paths)]
    return restricted(source, wanted)


def _update_with_batch_size(
    td: CollectionProtocol, source: CollectionProtocol, options: tuple[Any, ...]
) -> None:
    """Update ``td`` and give it the batch sizes of ``source``, or change nothing.

    Raises:
        RuntimeError: batch sizes differ, and values are written in place.
    """
    held: list[Any] = []
    _snapshot(td, held)
    try:
        _take_batch_sizes(td, source, options[1])
        update(td, source, *options)
    except BaseException:
        for collection, entries, batch_size, names in held:
            collection._batch_size = batch_size
            if isinstance(entries, list):
                collection.tensordicts[:] = entries
                collection._td_dim_name = names
                continue
            if collection._td_dim_names != names:
                collection._td_dim_names = names
            for key in list(collection._entries()):
                collection._del_entry(key)
            for key, value in entries.items():
                collection._set_entry(key, value)
        raise


def _snapshot(td: Any, held: list[Any]) -> None:
    """Append ``td`` and nested ones with their entries or members, sizes, names."""
    td = inside(td)
    stack: Any = as_stack(td)
    if stack is not None:
        members = list(stack.tensordicts)
        held.append((td, members, td.batch_size, td._td_dim_name))
        children: Any = members
    else:
        entries = dict(td._entries())
        held.append((td, entries, td.batch_size, td._td_dim_names))
        children = entries.values()
    for child in children:
        if isinstance(child, CollectionProtocol):
            _snapshot(child, held)


class MergingOps(CollectionProtocol):
    """Merging of many entries, and filling of all leaves with a number."""

    # Many entries ----------------------------------------------------------------

    def update(
        self,
        input_dict_or_td: Mapping[Any, Any] | CollectionProtocol | None = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKeyLike] | None = None,
        is_leaf: object = None,
        update_batch_size: bool = False,
        ignore_lock: bool = False,
        **kwargs: object,
    ) -> Self:
        """Merge the entries of another tensordict or mapping into this one.

        Nested tensordicts are merged; all other entries are replaced. If an entry does
        not fit, nothing is stored.

        Args:
            input_dict_or_td: the entries; keys may be nested.
            clone: store copies.
            inplace: write into the memory of existing entries.
            non_blocking: passed to torch if entries move to this tensordict's device.
            keys_to_update: the keys to take. Default: all. The key of a nested
                tensordict takes all its entries, unless longer keys choose some.
            is_leaf: called with the type of a nested tensordict; True to replace the
                present entry instead of merging.
            update_batch_size: take the batch size of the other tensordict, also in
                nested tensordicts. It must contain all leaves of this one. A lazy stack
                takes the number of members, too.
            ignore_lock: also write to a locked tensordict.
            **kwargs: more entries by name.

        Raises:
            RuntimeError: a value does not have the batch size as its leading
                dimensions, the batch sizes differ, or the tensordict is locked.

        Examples:
            >>> td = TensorDict({"n": {"a": torch.zeros(3)}}, [3])
            >>> td.update({"n": {"b": torch.ones(3)}}, c=torch.ones(3))["n"].keys()
            dict_keys(['a', 'b'])
        """
        if self._is_locked and not inplace and not ignore_lock:
            raise locked_error(self)
        if input_dict_or_td is self:
            return self
        source: Any = kwargs
        if input_dict_or_td is not None:
            source = input_dict_or_td
            if kwargs:
                source = {**dict(source.items()), **kwargs}
        if keys_to_update is not None:
            chosen = _selected(source, keys_to_update)
            is_sized = self._is_dense and isinstance(source, CollectionProtocol)
            if keys_to_update and update_batch_size:
                check_size_of_some(self, source)
            if keys_to_update and is_sized and not update_batch_size:
                # Check the size of the whole source, even if only a part is taken.
                check_update_size(self, source)
            source = chosen
        if update_batch_size:
            options = (clone, inplace, non_blocking, is_leaf, ignore_lock)
            _update_with_batch_size(self, source, options)
        else:
            update(self, source, clone, inplace, non_blocking, is_leaf, ignore_lock)
        return self

    def update_(
        self,
        input_dict_or_td: Mapping[Any, Any] | CollectionProtocol | None = None,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKeyLike] | None = None,
        **kwargs: object,
    ) -> Self:
        """Copy the values of a tensordict or mapping into the entries of this one.

        Values broadcast to the shape of the entry. Values without an entry here are
        ignored, unless no tensor is left or ``keys_to_update`` names them. If a value
        does not fit, nothing is copied.

        Args:
            input_dict_or_td: the values; keys may be nested.
            clone: has no effect: values are always copied.
            non_blocking: allow asynchronous copies between devices.
            keys_to_update: the key or keys to copy. Default: all. The key of a nested
                tensordict copies all its entries.
            **kwargs: more values by name.

        Raises:
            KeyError: all tensors among the values lack an entry here; or
                ``keys_to_update`` names a value that lacks one.
            RuntimeError: a value does not fit its entry.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).lock_()
            >>> td.update_({"a": torch.ones(3)})["a"]
            tensor([1., 1., 1.])
        """
        source = kwargs if input_dict_or_td is None else input_dict_or_td
        if source is self:
            return self
        if not isinstance(source, (CollectionProtocol, Mapping)):
            try:
                source = dict(source)
            except (TypeError, ValueError) as error:
                msg = f"{error}: update_() takes a tensordict or a mapping."
                raise type(error)(msg) from None
        if kwargs and source is not kwargs:
            source = {**dict(source.items()), **kwargs}
        keys = None
        if keys_to_update is not None:
            if isinstance(keys_to_update, str):
                keys_to_update = [keys_to_update]
            elif isinstance(keys_to_update, AbstractSet):
                keys_to_update = list(keys_to_update)
            keys = key_paths(keys_to_update)
        _rust.copy_into(self, source, keys, non_blocking)
        return self

    def copy_(self, tensordict: CollectionProtocol, non_blocking: bool = False) -> Self:
        """Copy the values of another tensordict into this one, as :meth:`update_`."""
        return self.update_(tensordict, non_blocking=non_blocking)

    # Filling ---------------------------------------------------------------------

    def fill_(self, key: NestedKeyLike, value: float | bool) -> Self:
        """Fill the entry at a nested key, or all leaves of a nested tensordict.

        Raises:
            IndexError: ``key`` is no nested key.
            KeyError: the entry is missing.
            RuntimeError: ``value`` is a tensor with dimensions.
        """
        path = entry_path(key)
        target = _rust.get(self, path)
        if isinstance(value, torch.Tensor) and value.dim():
            raise RuntimeError(MSG_FILL.format(value.dim()))
        if isinstance(target, CollectionProtocol):
            _rust.fill(target, value)
            return self
        parent: Any = self if len(path) == 1 else _rust.get(self, path[:-1])
        parent._write_at(path[-1], target, ..., value)
        return self


def _has_other_size(td: CollectionProtocol, source: CollectionProtocol) -> bool:
    """Return whether the batch sizes differ in the dims that both have."""
    common = min(len(td.batch_size), len(source.batch_size))
    return bool(td.batch_size[:common] != source.batch_size[:common])


def check_size_of_some(td: CollectionProtocol, source: object) -> None:
    """Raise an error if some entries of ``source`` would need another batch size."""
    if isinstance(source, CollectionProtocol) and _has_other_size(td, source):
        raise RuntimeError(MSG_SIZE_OF_SOME)


def _take_batch_sizes(td: Any, source: Any, inplace: bool) -> None:
    """Take the batch sizes of ``source`` where they differ; drop the leaves there."""
    if isinstance(source, CollectionProtocol):
        source = inside(source)
        if _has_other_size(td, source):
            check_resizable(td, source, inplace)
            _follow_batch_sizes(td, source)
            return
        stack = td._lazy_stack()
        parts = None if stack is None else stack._parts_to_resize(source)
        if parts is not None:
            for member, part in zip(stack.tensordicts, parts, strict=True):
                _take_batch_sizes(member, part, inplace)
            return
        source = source._entries()
    for key, value in list(source.items()):
        if isinstance(value, Mapping) or is_branch(value):
            present = _rust.get(td, key, None)
            if is_branch(present):
                _take_batch_sizes(present, value, inplace)


def check_resizable(td: TensorCollection, source: Any, inplace: bool = False) -> None:
    """Raise an error if ``td`` cannot take the batch size and entries of ``source``."""
    if inplace:
        raise RuntimeError(MSG_INPLACE_SIZE)
    size = td.batch_size
    absent = set(td.keys(True)) - set(source.keys(True))
    if absent:
        raise RuntimeError(MSG_BATCH_SIZE_KEYS.format(source.batch_size, size, absent))
    if td.is_locked:
        raise locked_error(td)


def _follow_batch_sizes(td: CollectionProtocol, source: CollectionProtocol) -> None:
    """Take the batch sizes of ``source``, which has all leaves; drop the old ones."""
    stack = td._lazy_stack()
    if stack is not None:
        stack._resize_members(source)
        return
    # Drop the leaves first: without leaves, any batch size fits.
    for key, present in list(td._entries().items()):
        value = source._get_entry(key, None)
        if is_branch(present) and is_branch(value):
            _follow_batch_sizes(present, value)
        elif is_branch(present) or not isinstance(present, CollectionProtocol):
            td._del_entry(key)
        elif value is not None and not getattr(present, "_is_one", True):
            # A non-tensor stack has one object for each row, so drop it, too.
            td._del_entry(key)
    td.batch_size = source.batch_size
    td.names = None


def entry_path(key: object) -> tuple[str, ...]:
    """Return the flat path of a key.

    Raises:
        IndexError: ``key`` is no nested key.
    """
    path = _rust.unravel_key_to_tuple(key)
    if not path:
        raise IndexError(MSG_BAD_KEY.format(key))
    return path


def key_paths(keys: object) -> list[tuple[str, ...]]:
    """Return the flat paths of a list or tuple of nested keys."""
    if not isinstance(keys, (list, tuple)):
        raise TypeError(MSG_KEY_LIST.format(type(keys)))
    paths = [_rust.unravel_key_to_tuple(key) for key in keys]
    if not all(paths):
        raise RuntimeError(MSG_NO_KEYS)
    return paths


def goes_on(paths: list[tuple[str, ...]], key: tuple[str, ...]) -> bool:
    """Return whether ``key`` is longer than one of ``paths`` and starts with it."""
    return any(key != path and key[: len(path)] == path for path in paths)


def restricted(source: Any, keys: list[tuple[str, ...]]) -> dict[Any, Any]:
    """Return the part of a tensordict or mapping at the flat paths ``keys``."""
    if isinstance(source, CollectionProtocol) and source._is_dense:
        wanted = {path[0] for path in keys if len(path) == 1}
        if len(wanted) == len(keys):
            entries = source._entries()
            if len(wanted) > 1:
                return {k: v for k, v in list(entries.items()) if k in wanted}
            return {key: entries[key] for key in wanted if key in entries}
    kept: dict[Any, Any] = {}
    if isinstance(source, CollectionProtocol):
        # `_as_source`, since a tensorclass field may be named like the method `items`.
        source = source._as_source()
    for key, value in source.items():
        path = _rust.unravel_key_to_tuple(key)
        if any(path[: len(wanted)] == wanted for wanted in keys):
            kept[key] = value
            continue
        below = [wanted[len(path) :] for wanted in keys if wanted[: len(path)] == path]
        if below and isinstance(value, CollectionProtocol):
            kept[key] = value.select(*_in_order_of(value, below), strict=False)
        elif below and isinstance(value, Mapping):
            kept[key] = restricted(value, below)
    return kept


def _in_order_of(
    td: CollectionProtocol, paths: list[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Sort the paths by the order of their first keys in ``td``."""
    place = {key: at for at, key in enumerate(td.keys())}
    return sorted(paths, key=lambda path: place.get(path[0], len(place)))
