"""Writing many entries at once, at an index, or one number into all of them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict._rust import update
from tensordict.primitives.checks import is_leaf_nontensor, is_tensorclass
from tensordict.primitives.common import (
    MSG_BAD_KEY,
    MSG_NO_KEYS,
    check_number,
    not_a_value,
    refused_first,
)
from tensordict.primitives.convert import tensor_of
from tensordict.primitives.deprecation import warn_of_cast
from tensordict.primitives.errors import locked_error
from tensordict.primitives.index import fit_source
from tensordict.primitives.index_items import fills, refuse_cast
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.unbatched import is_unbatched
from tensordict.primitives.update import check_update_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike

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
MSG_FAST_COPY = (
    "copy_at_(..., fast=True) requires the optimized tensor-only copy path, but the "
    "source, destination, or index is not compatible. Use fast=False or update_at_ for "
    "the general update semantics."
)


def _chosen(source: CollectionProtocol, keys: object) -> Any:
    """``source`` with the entries at ``keys`` alone.

    Of a collection and keys in it, only the keys count.
    """
    paths = _paths(keys)
    wanted = [key for key in paths if not any(_goes_on([key], p) for p in paths)]
    return restricted(source, wanted)


def _update_with_batch_size(td: Any, source: Any, options: tuple[Any, ...]) -> None:
    """Update ``td``, which takes the batch sizes of ``source``; or change nothing.

    Raises:
        RuntimeError: they differ where values are written in place.
    """
    held: list[Any] = []
    _hold(td, held)
    try:
        _take_batch_sizes(td, source, options[1])
        update(td, source, *options)
    except BaseException:
        for container, entries, batch_size, names in held:
            container._batch_size = batch_size
            if isinstance(entries, list):
                container.tensordicts[:] = entries
                container._td_dim_name = names
                continue
            if container._td_dim_names != names:
                container._td_dim_names = names
            for key in list(container._entries()):
                container._del_entry(key)
            for key, value in entries.items():
                container._set_entry(key, value)
        raise


def _hold(td: Any, held: list[Any]) -> None:
    """Add what ``td`` and the collections in it have: entries or members, size, names."""
    td = _without_class(td)
    members = None if td._is_non_tensor else getattr(td, "tensordicts", None)
    if members is not None:
        held.append((td, list(members), td.batch_size, td._td_dim_name))
        children: Any = members
    else:
        entries = dict(td._entries())
        held.append((td, entries, td.batch_size, td._td_dim_names))
        children = entries.values()
    for child in children:
        if isinstance(child, CollectionProtocol):
            _hold(child, held)


class MergingOps(CollectionProtocol):
    """Writing many entries at once, at an index, or one number into all of them."""

    # Many at once ----------------------------------------------------------------

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
        """Merge the entries of another collection or mapping into this one.

        Nested collections are merged, everything else is replaced. All entries are
        stored, or where one does not fit none.

        Args:
            input_dict_or_td: the entries, in which keys may be nested.
            clone: store copies.
            inplace: write into the entries that there are.
            non_blocking: how entries are moved to the device of this collection.
            keys_to_update: take only these. A key of a collection takes all in it,
                unless there are keys that go on in it.
            is_leaf: which types of nested collections replace what is there.
            update_batch_size: take the batch size of the other collection, which must
                then have all leaves of this one, and those of the collections in it. A
                lazy stack takes the number of its members.
            ignore_lock: write to a locked collection, too.
            **kwargs: more entries.

        Raises:
            RuntimeError: a value does not have the batch size as its leading dims, the
                batch sizes differ, or the collection is locked.

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
            chosen = _chosen(source, keys_to_update)
            is_sized = self._is_dense and isinstance(source, CollectionProtocol)
            if keys_to_update and update_batch_size:
                check_size_of_some(self, source)
            if keys_to_update and is_sized and not update_batch_size:
                # As a whole, of which less is taken.
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
        """Copy the values of a collection or mapping into the entries of this one.

        Values broadcast to the shape of the entry. Those that have no entry here are
        left out, unless no tensor is left or ``keys_to_update`` names them. Nothing is
        copied where one does not fit.

        Args:
            input_dict_or_td: the values, in which keys may be nested.
            clone: has no effect, since values are copied.
            non_blocking: whether copies between devices may be asynchronous.
            keys_to_update: copy only these, or this one. A key of a collection copies
                all in it.
            **kwargs: more values.

        Raises:
            KeyError: a value has no entry here, and no tensor has one or
                ``keys_to_update`` names it.
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
                msg = f"{error}: update_() takes a collection or a mapping."
                raise type(error)(msg) from None
        if kwargs and source is not kwargs:
            source = {**dict(source.items()), **kwargs}
        keys = None
        if keys_to_update is not None:
            if isinstance(keys_to_update, str):
                keys_to_update = [keys_to_update]
            elif isinstance(keys_to_update, AbstractSet):
                keys_to_update = list(keys_to_update)
            keys = _paths(keys_to_update)
        _rust.copy_into(self, source, keys, non_blocking)
        return self

    def copy_(self, tensordict: CollectionProtocol, non_blocking: bool = False) -> Self:
        """Copy the values of another collection into the entries of this one.

        As :meth:`update_`.
        """
        return self.update_(tensordict, non_blocking=non_blocking)

    # At an index -----------------------------------------------------------------

    def set_at_(
        self,
        key: NestedKeyLike,
        value: Any,
        index: BatchIndex,
        *,
        non_blocking: bool = False,
    ) -> Self:
        """Write ``value`` into the entry at a nested key, where ``index`` points.

        As ``self.get(key)[index] = value``, but that ``value`` may be a list or an array.

        Raises:
            IndexError: ``key`` is no nested key.
            KeyError: there is no such entry.
            RuntimeError: the value does not fit, in shape, or in dtype at an index tensor.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3])
            >>> td.set_at_("a", 1.0, slice(1, None))["a"]
            tensor([0., 1., 1.])
        """
        path = _entry_path(key)
        target = _rust.get(self, path)
        if isinstance(target, CollectionProtocol):
            if isinstance(value, dict):
                value = _rust.validate(self, key, value)
            if not target._is_non_tensor:
                target[index] = value
                return self
            warn_of_cast(value, path[-1])
            value = _as_entry(_rows_at(target, index, value))
            holder = self if len(path) == 1 else _rust.get(self, path[:-1])
            as_stack = not isinstance(value, torch.Tensor)
            held: Any = target
            held._write_held(holder, path[-1], index, value, as_stack)
            return self
        if isinstance(value, float):
            # An index of nothing does not ask torch whether the dtype has the number.
            check_number([target], value, True)
        elif not isinstance(value, (torch.Tensor, bool, int, complex)):
            # Where it is written is complained of first, then what is.
            _rust.index_plan(target.shape, index)
            value = _tensor_of(value, target, key)
        parent: Any = self if len(path) == 1 else _rust.get(self, path[:-1])
        at = _all_of(parent, target, index) if is_unbatched(target) else index
        parent._write_at(path[-1], target, at, value)
        return self

    def _set_at_str(
        self,
        key: str,
        value: Any,
        idx: BatchIndex,
        *,
        validated: bool,
        non_blocking: bool,
    ) -> Self:
        return self.set_at_(key, value, idx, non_blocking=non_blocking)

    def _set_at_tuple(
        self,
        key: tuple[str, ...],
        value: Any,
        idx: BatchIndex,
        *,
        validated: bool,
        non_blocking: bool,
    ) -> Self:
        return self.set_at_(key, value, idx, non_blocking=non_blocking)

    def update_at_(
        self,
        input_dict_or_td: Mapping[Any, Any] | CollectionProtocol,
        idx: BatchIndex,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKeyLike] | None = None,
    ) -> Self:
        """Write the values of another collection or mapping where ``idx`` points.

        Args:
            input_dict_or_td: the values, of the shape that indexing the entries gives.
            idx: an index of the batch dims.
            clone: has no effect, since values are copied.
            non_blocking: whether copies between devices may be asynchronous.
            keys_to_update: write only these.

        Raises:
            KeyError: there is no entry for a value. Below a nested collection it is
                made where the value comes in a collection.
            RuntimeError: a value does not fit what the index points at; then nothing
                is written.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 2)}, [3])
            >>> td.update_at_({"a": torch.ones(2)}, 1)["a"].sum(-1)
            tensor([0., 2., 0.])
        """
        source: Any = input_dict_or_td
        if keys_to_update is not None:
            paths = _paths(keys_to_update)
            wanted = [path for path in paths if not _goes_on(paths, path)]
            source = restricted(source, wanted)
        elif _rust.write_fitting(self, idx, source):
            return self
        writes: list[tuple[Any, str, torch.Tensor, Any, Any]] = []
        fresh: list[tuple[Any, str, Any]] = []
        _collect_writes(self, source, idx, idx, writes, fresh)
        for parent, name, target, at, value in refused_first(writes, 2):
            if isinstance(target, CollectionProtocol):
                value = _rows_at(target, at, value)
                held: Any = target
                held._write_held(parent, name, at, value)
                continue
            parent._write_at(name, target, at, value)
        for parent, name, made in fresh:
            if isinstance(made, CollectionProtocol):
                parent._hang(name, made)
            else:
                parent._set_entry(name, made)
        return self

    def copy_at_(
        self,
        tensordict: CollectionProtocol,
        idx: BatchIndex,
        non_blocking: bool = False,
        *,
        fast: bool = True,
    ) -> Self:
        """Copy all leaves of another collection to where ``idx`` points.

        Args:
            tensordict: a collection with the leaves of this one.
            idx: integers, slices, None and ``...``; any index if not ``fast``.
            non_blocking: whether copies between devices may be asynchronous.
            fast: refuse what is not a plain copy of tensors to tensors, between two
                collections that are no views, no stacks and of no other class.

        Raises:
            RuntimeError: ``fast`` is set, and the leaves or the index do not fit.
        """
        if fast:
            is_plain = type(self) is self._plain_type and _is_plain_index(idx)
            if is_plain and _rust.write_fitting(self, idx, tensordict):
                return self
            idx, pairs = _plain_copy(self, tensordict, idx)
            for target, value in refused_first(pairs, 0):
                target[idx] = value
            return self
        if self._is_non_tensor and _has_nothing(tensordict, True):
            return self
        return self.update_at_(tensordict, idx, non_blocking=non_blocking)

    # Filling ---------------------------------------------------------------------

    def fill_(self, key: NestedKeyLike, value: float | bool) -> Self:
        """Fill the entry at a nested key with one number; all leaves of a collection.

        Raises:
            IndexError: ``key`` is no nested key.
            KeyError: there is no such entry.
            RuntimeError: ``value`` is a tensor with dims.
        """
        path = _entry_path(key)
        target = _rust.get(self, path)
        if isinstance(value, torch.Tensor) and value.dim():
            raise RuntimeError(MSG_FILL.format(value.dim()))
        if isinstance(target, CollectionProtocol):
            _rust.fill(target, value)
            return self
        parent: Any = self if len(path) == 1 else _rust.get(self, path[:-1])
        parent._write_at(path[-1], target, ..., value)
        return self


def _without_class(td: CollectionProtocol) -> Any:
    """The collection inside a tensorclass; any other as it is."""
    return td._tensordict if is_tensorclass(td) and not td._is_non_tensor else td


def _has_other_size(td: Any, source: Any) -> bool:
    """Return whether the batch dims that both have differ."""
    common = min(len(td.batch_size), len(source.batch_size))
    return bool(td.batch_size[:common] != source.batch_size[:common])


def check_size_of_some(td: CollectionProtocol, source: object) -> None:
    """Raise where ``td`` would take another batch size with some entries of ``source``."""
    if isinstance(source, CollectionProtocol) and _has_other_size(td, source):
        raise RuntimeError(MSG_SIZE_OF_SOME)


def _take_batch_sizes(td: Any, source: Any, inplace: bool) -> None:
    """Take the batch sizes of ``source`` where they differ, and drop the leaves there."""
    if isinstance(source, CollectionProtocol):
        source = _without_class(source)
        if _has_other_size(td, source):
            check_resizable(td, source, inplace)
            _follow_batch_sizes(td, source)
            return
        parts = td._parts_to_resize(source)
        if parts is not None:
            for member, part in zip(td._children(), parts, strict=True):
                _take_batch_sizes(member, part, inplace)
            return
        source = source._entries()
    for key, value in list(source.items()):
        if isinstance(value, Mapping) or is_branch(value):
            present = _rust.get(td, key, None)
            if is_branch(present):
                _take_batch_sizes(present, value, inplace)


def check_resizable(td: Any, source: Any, inplace: bool = False) -> None:
    """Raise where ``td`` cannot take another batch size with the entries of ``source``."""
    if inplace:
        raise RuntimeError(MSG_INPLACE_SIZE)
    size = td.batch_size
    absent = set(td.keys(True)) - set(source.keys(True))
    if absent:
        raise RuntimeError(MSG_BATCH_SIZE_KEYS.format(source.batch_size, size, absent))
    if td.is_locked:
        raise locked_error(td)


def _follow_batch_sizes(td: Any, source: Any) -> None:
    """Take the batch sizes of ``source``, all leaves of which come; names are dropped."""
    if td._resize_members(source):
        return
    # Without leaves any batch size fits.
    for key, present in list(td._entries().items()):
        value = source._get_entry(key, None)
        if is_branch(present) and is_branch(value):
            _follow_batch_sizes(present, value)
        elif is_branch(present) or not isinstance(present, CollectionProtocol):
            td._del_entry(key)
    td.batch_size = source.batch_size
    td.names = None


def is_branch(value: object) -> bool:
    """Return whether ``value`` is a collection of entries."""
    return isinstance(value, CollectionProtocol) and not value._is_non_tensor


def _entry_path(key: object) -> tuple[str, ...]:
    """The flat path of a key.

    Raises:
        IndexError: it is no nested key.
    """
    path = _rust.unravel_key_to_tuple(key)
    if not path:
        raise IndexError(MSG_BAD_KEY.format(key))
    return path


def _paths(keys: object) -> list[tuple[str, ...]]:
    """The flat paths of a list or tuple of nested keys."""
    if not isinstance(keys, (list, tuple)):
        raise TypeError(MSG_KEY_LIST.format(type(keys)))
    paths = [_rust.unravel_key_to_tuple(key) for key in keys]
    if not all(paths):
        raise RuntimeError(MSG_NO_KEYS)
    return paths


def _goes_on(paths: list[tuple[str, ...]], key: tuple[str, ...]) -> bool:
    """Return whether ``key`` is longer than one of ``paths``, and begins with it."""
    return any(key != path and key[: len(path)] == path for path in paths)


def restricted(source: Any, keys: list[tuple[str, ...]]) -> Any:
    """The part of a collection or mapping at ``keys``, flat paths, as a mapping."""
    if isinstance(source, CollectionProtocol) and source._is_dense:
        wanted = {path[0] for path in keys if len(path) == 1}
        if len(wanted) == len(keys):
            entries = source._entries()
            if len(wanted) > 1:
                return {k: v for k, v in list(entries.items()) if k in wanted}
            return {key: entries[key] for key in wanted if key in entries}
    kept: dict[Any, Any] = {}
    if isinstance(source, CollectionProtocol):
        # A field may have the name of the method that lists the entries.
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
    """The paths in the order in which ``td`` has their first keys."""
    place = {key: at for at, key in enumerate(td.keys())}
    return sorted(paths, key=lambda path: place.get(path[0], len(place)))


def _collect_writes(
    td: Any,
    source: Any,
    index: Any,
    asked: Any,
    writes: list[tuple[Any, str, torch.Tensor, Any, Any]],
    fresh: list[tuple[Any, str, Any]],
    nested: bool = False,
) -> None:
    """The leaves of ``td`` and the values for them, checked against what is indexed.

    What a nested collection lacks is made, as by assignment at an index. ``asked`` is
    the index as it was given: torch writes other values at a mask than at positions.
    """
    # A field may have the name of the method that lists the entries.
    is_collection = isinstance(source, CollectionProtocol)
    mapping = source._as_source() if is_collection else source
    for key, value in list(mapping.items()):
        if nested and is_collection and td._get_entry(key, NO_DEFAULT) is NO_DEFAULT:
            fresh.append((td, key, _made_at(td, source, key, index)))
            continue
        if _has_nothing(value, nested):
            continue
        target = _rust.get(td, key)
        if not isinstance(target, CollectionProtocol) or target._is_non_tensor:
            path = _rust.unravel_key_to_tuple(key)
            parent = td if len(path) == 1 else _rust.get(td, path[:-1])
            at = _all_of(parent, target, index) if is_unbatched(target) else index
            if isinstance(target, CollectionProtocol):
                target._check_item(_rust.index_shape(target.batch_size, index), value)
                checked = value
            else:
                checked = _checked_write(parent, target, value, at, asked, key)
            writes.append((parent, path[-1], target, at, checked))
        elif isinstance(value, CollectionProtocol) and value._is_non_tensor:
            raise not_a_value(key, target, value)
        elif isinstance(value, CollectionProtocol):
            # The index means the batch dims of what is nested, not the dims of leaves.
            plan = _rust.index_plan(target.batch_size, index)
            at = ... if plan is None else plan[0]
            size = target.batch_size if plan is None else plan[1]
            fit_source(target.batch_size, index, size, value)
            _collect_writes(target, value, at, asked, writes, fresh, True)
        elif isinstance(value, Mapping):
            _collect_writes(target, value, index, asked, writes, fresh, True)
        else:
            keys = target.keys(True, True, is_leaf=is_leaf_nontensor)
            spread = dict.fromkeys(keys, value)
            _collect_writes(target, spread, index, asked, writes, fresh)


def _all_of(td: Any, shared: torch.Tensor, index: Any) -> Any:
    """The index of what all elements of ``td`` share, which is written whole.

    Raises:
        IndexError: ``index`` is none of the batch dims.
    """
    _ = torch.zeros((), device=shared.device).expand(td.batch_size)[index]
    return ...


def _made_at(
    td: CollectionProtocol, source: CollectionProtocol, key: str, index: BatchIndex
) -> Any:
    """An entry for ``td`` that is zero but for that of ``source`` at the index."""
    if td.is_locked:
        raise locked_error(td)
    made = td.empty()
    made[index] = source.select(key)
    return made._get_entry(key, None)


def _has_nothing(value: object, nested: bool) -> bool:
    """Return whether a nested value has nothing to write and needs no entry."""
    if isinstance(value, CollectionProtocol):
        return nested and not value._is_non_tensor and not _rust.leaves(value)
    if isinstance(value, Mapping):
        return all(_has_nothing(item, True) for item in value.values())
    return False


def _plain_copy(td: Any, source: Any, index: BatchIndex) -> tuple[Any, list[Any]]:
    """``index`` as one of leaves, and the leaves of ``td`` with those of ``source``.

    Raises:
        RuntimeError: it is not plain, or the leaves of ``source`` do not have the shapes
            that it gives.
    """
    plain = td._plain_type
    if type(source) is not plain or not (td._is_non_tensor or type(td) is plain):
        raise RuntimeError(MSG_FAST_COPY)
    for holder in (*_rust.containers(td), *_rust.containers(source)):
        if holder._is_non_tensor:
            # A value for all elements stays, and one for each would have to be written.
            is_plain = holder._is_one
        else:
            is_plain = holder._is_dense or not _rust.leaves(holder)
        if not is_plain:
            raise RuntimeError(MSG_FAST_COPY)
    if not td._is_non_tensor and not _are_plain(td, source):
        raise RuntimeError(MSG_FAST_COPY)
    leaves = list(source.items(True, leaves_only=True))
    if not leaves:
        return index, []
    if not _is_plain_index(index):
        raise RuntimeError(MSG_FAST_COPY)
    try:
        plan = _rust.index_plan(td.batch_size, index)
    except IndexError:
        raise RuntimeError(MSG_FAST_COPY) from None
    at = ... if plan is None else plan[0]
    pairs = []
    for key, value in leaves:
        target = _rust.get(td, key) if _rust.contains(td, key) else None
        if not isinstance(target, torch.Tensor) or value.shape != target[at].shape:
            raise RuntimeError(MSG_FAST_COPY)
        pairs.append((target, value))
    return at, pairs


def _are_plain(td: Any, source: Any) -> bool:
    """Return whether collections nested in ``source`` are plain in ``td``, or empty."""
    for key, value in list(source._entries().items()):
        held = td._get_entry(key, None) if is_branch(value) else None
        if not is_branch(held):
            continue
        if not (
            _are_plain(held, value)
            if type(held) is type(td)
            else not _rust.leaves(held)
        ):
            return False
    return True


def _is_plain_index(index: object) -> bool:
    """Return whether an index is made of numbers, slices, None and ellipses."""
    parts = index if isinstance(index, tuple) else (index,)
    return all([_is_plain_item(part) for part in parts])


def _is_plain_item(item: object) -> bool:
    if isinstance(item, torch.Tensor):
        return not item.shape and item.dtype is not torch.bool
    if isinstance(item, (int, slice, np.integer)):
        return not isinstance(item, bool)
    return item is None or item is ...


def _as_entry(value: object) -> Any:
    """``value`` as it is where it is an entry: a tensor or an array, if it becomes one."""
    if isinstance(value, (str, bytes, torch.Tensor, CollectionProtocol)):
        return value
    tensor = tensor_of(value)
    if tensor is None and isinstance(value, tuple):
        tensor = np.asarray(value)
    return value if tensor is None else tensor


def _rows_at(target: CollectionProtocol, index: BatchIndex, value: Any) -> Any:
    """An array of text that is written at an index of a non-tensor entry as a column."""
    if not isinstance(value, np.ndarray):
        return value
    size = _rust.index_shape(target.batch_size, index)
    return target._non_tensor_type._rows_of(value, size)


def _tensor_of(value: object, target: torch.Tensor, key: object) -> Any:
    """The tensor made of ``value`` that is written into the tensor at ``key``.

    Raises:
        AttributeError: it is neither number nor array.
    """
    made = value if isinstance(value, CollectionProtocol) else None
    if made is None:
        made = tensor_of(value, target.device)
    if not isinstance(made, torch.Tensor):
        raise not_a_value(key, target, made if made is not None else value)
    return made


def _checked_write(
    parent: CollectionProtocol,
    target: torch.Tensor,
    value: Any,
    index: BatchIndex,
    asked: object,
    key: object,
) -> Any:
    """The form of ``value`` that can be written at ``index``, or what the write raises."""
    if not isinstance(value, (torch.Tensor, bool, int, float, complex)):
        value = _tensor_of(value, target, key)
    if isinstance(value, torch.Tensor):
        try:
            shape = target[index].shape
        except IndexError:
            # torch may complain of the shape of what is written before the index.
            torch.empty(target.shape, dtype=target.dtype)[index] = value.cpu()
            raise
        if value.shape != shape and shape.numel():
            spare = value.dim() - len(shape)
            if spare > 0 and set(value.shape[:spare]) == {1}:
                value = value.reshape(value.shape[spare:])
            value.expand(shape)
        if value.dtype != target.dtype:
            if fills(asked, value):
                return value.to(target.dtype)
            if not parent._casts_at(index):
                refuse_cast(index, target, value)
    return value
