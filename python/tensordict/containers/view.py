"""An indexed part of another collection: writes go through to that collection."""

from __future__ import annotations

import contextlib
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsIndex

import torch

from tensordict import _rust
from tensordict.containers.elsewhere import (
    MSG_INPLACE,
    MSG_ONLY_VIEW,
    MSG_SHAPE,
    KeptElsewhere,
    Refusal,
    refused,
)
from tensordict.containers.source_view import SourceView
from tensordict.ops.access import MSG_ONE_DEFAULT
from tensordict.ops.merging import restricted
from tensordict.primitives import classes
from tensordict.primitives import options as options_primitives
from tensordict.primitives.arrays import as_tensor
from tensordict.primitives.checks import holds_values, is_branch, is_tensorclass
from tensordict.primitives.common import check_number, not_a_value, value_of
from tensordict.primitives.copy import check_copy, leaf_paths
from tensordict.primitives.dims import remember
from tensordict.primitives.errors import locked_error, missing_key
from tensordict.primitives.index_items import _WHOLE, fills
from tensordict.primitives.index_writes import fit_source, preallocated
from tensordict.primitives.protocol import (
    NO_DEFAULT,
    NONE_IF_MISSING,
    CollectionProtocol,
    PartsProtocol,
)
from tensordict.primitives.special import is_shared
from tensordict.storage.parts import load_part, plan_part, saved_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tensordict._rust import SavedTensors
    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike
    from tensordict.storage.paths import SavedPath

__all__ = ["_SubTensorDict"]

MSG_LOCK = "Cannot lock a _SubTensorDict. Lock the parent tensordict instead."
MSG_UNLOCK = "Cannot unlock a _SubTensorDict. Unlock the parent tensordict instead."
MSG_NOT_NESTED = "Expected source to be a subclass of TensorDictBase, got {}"
MSG_REPLACED = (
    "Tried to replace a tensordict with an incompatible object of type {}: its entries "
    "are those of the source collection. Write a tensordict or a mapping to it."
)

MSG_SET = (
    "Calling `_SubTensorDict.set(key, value, inplace=False)` is prohibited for existing "
    "tensors. Consider calling _SubTensorDict.set_(...) or cloning your tensordict first."
)


MSG_NAMES = (
    "Names of a subtensordict cannot be modified. Instantiate it as a TensorDict first."
)

MSG_MEMMAP = "Converting a sub-tensordict values to memmap cannot be done."

MSG_SHARE = "Casting a sub-tensordict values to shared memory cannot be done."

MSG_DETACH = "Detaching a sub-tensordict in-place cannot be done."

MSG_TO_INPLACE = "Cannot send a _SubTensorDict instance to device/dtype inplace"


@classes.provided
class _SubTensorDict(SourceView, KeptElsewhere):  # type: ignore[misc]
    """The part of ``source`` at ``idx``. Nothing is copied until an entry is read.

    Reading an entry returns ``source[key][idx]``; writing does ``source[key][idx] =
    value``. A new entry is created in the source, with zeros outside the index.
    Operations that compute a new collection return an ordinary ``TensorDict``.

    ``td._get_sub_tensordict(idx)`` returns this class.

    Args:
        source: the collection that holds the entries.
        idx: the index, as in ``source[idx]``. A list means the same as a tuple.
        batch_size: the expected batch size of the part, checked if given.

    Raises:
        IndexError: the index does not fit the batch size of ``source``. If a tensor in
            the index is out of range, reading or writing an entry raises the error.
        RuntimeError: ``batch_size`` is not the batch size of the part.

    Examples:
        >>> td = TensorDict({"a": torch.zeros(3, 2)}, batch_size=[3])
        >>> part = td._get_sub_tensordict(0)
        >>> part["a"] = torch.ones(2)
        >>> td["a"].tolist()
        [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    """

    _is_dense: ClassVar[bool] = False
    _printed_nested_as = "TensorDict"
    _msg_names = MSG_NAMES

    def __init__(
        self,
        source: CollectionProtocol,
        idx: Any,
        batch_size: Sequence[int] | None = None,
    ) -> None:
        if isinstance(idx, list):
            idx = tuple(idx)
        source_size = source.batch_size
        plan = _rust.index_plan(source_size, idx)
        if plan is None:
            # The index selects everything. `()` also fits entries without batch dims.
            is_bare = isinstance(idx, tuple) and not idx
            resolved_idx: Any = () if is_bare else (_WHOLE,) * len(source_size)
            size = source_size
            dims = tuple(range(len(source_size)))
        else:
            resolved_idx, size, dims = plan
        if batch_size is not None and torch.Size(batch_size) != size:
            msg = "batch_size does not match self.batch_size."
            raise RuntimeError(msg)
        self._source = source
        self._source_ndim = len(source_size)
        # For each dim, the source's dim whose name it takes, or -1.
        self._source_dims = dims
        # The index as it was passed, with masks, which `idx` holds as positions: torch
        # casts differently for a write at a mask.
        self._asked = idx
        self._batch_size = size
        self.idx = resolved_idx if isinstance(resolved_idx, tuple) else (resolved_idx,)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, also one of the published tensordict 0.15."""
        if "_asked" not in state:
            part = type(self)(state["_source"], state["idx"], state["_batch_size"])
            state = {**vars(part), **state}
        super().__setstate__(state)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle a part of a file as a copy of its entries, any other with its source.

        The file may change or disappear before the pickle is read. A process that is
        started with a part of a file as argument receives the part, and reads the file.
        """
        data = self._data_to_send()
        if data is None:
            return super().__reduce_ex__(protocol)
        return data.__reduce_ex__(protocol)

    def _data_to_send(self) -> CollectionProtocol | None:
        source: Any = self._source
        while isinstance(source, _SubTensorDict):
            source = source._source
        if not isinstance(source, PartsProtocol) or get_spawning_popen() is not None:
            return None
        return self.to_tensordict()

    @classmethod
    def _of_child(
        cls, child: CollectionProtocol, parent: _SubTensorDict
    ) -> _SubTensorDict:
        """Make the part of a nested collection that belongs to a part of its parent."""
        view = cls.__new__(cls)
        view._source = child
        ndim = len(child.batch_size)
        view._source_ndim = ndim
        view._source_dims = (*parent._source_dims, *range(parent._source_ndim, ndim))
        rest = child.batch_size[parent._source_ndim :]
        view._batch_size = torch.Size([*parent._batch_size, *rest])
        view._asked = parent._asked
        view.idx = parent.idx
        return view

    def get_parent_tensordict(self) -> Any:
        """Return the source, the collection that holds the entries."""
        return self._source

    # State, which the source holds --------------------------------------------------

    @property
    def _device(self) -> torch.device | None:
        return self._source.device

    @_device.setter
    def _device(self, value: object) -> None:
        if value != self._source.device:
            msg = "the device of a part is that of its source, and cannot be changed."
            raise RuntimeError(msg)

    @property
    def _td_dim_names(self) -> list[str | None] | None:
        if not self._source._has_names():
            return None
        source_names = self._source.names
        names = [
            source_names[dim] if 0 <= dim < len(source_names) else None
            for dim in self._source_dims
        ]
        return names if any(name is not None for name in names) else None

    @_td_dim_names.setter
    def _td_dim_names(self, value: list[str | None] | None) -> None:
        self._check_names([None] * len(self._batch_size) if value is None else value)

    def _check_names(self, names: list[str | None]) -> None:
        if names != self.names:
            raise RuntimeError(MSG_NAMES)

    @property
    def _is_locked(self) -> bool:  # type: ignore[override]
        return self._source.is_locked

    @property
    def is_locked(self) -> bool:
        """Return whether the source is locked."""
        return self._source.is_locked

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        if bool(value) == self.is_locked:
            return
        raise RuntimeError(MSG_LOCK if value else MSG_UNLOCK)

    def lock_(self) -> Self:
        """Return this part if it is locked, else raise an error."""
        if self.is_locked:
            return self
        raise RuntimeError(MSG_LOCK)

    def unlock_(self) -> Self:
        """Return this part if it is unlocked, else raise an error."""
        if not self.is_locked:
            return self
        raise RuntimeError(MSG_UNLOCK)

    def _lock_tree(self, parents: object = ()) -> None:
        raise RuntimeError(MSG_LOCK)

    def _clear_device(self) -> None:
        """Do nothing: the parent holds the device."""

    # Reading -----------------------------------------------------------------------

    def _view_of(self, value: CollectionProtocol | torch.Tensor) -> Any:
        """Return the part of one entry of the source."""
        if is_branch(value):
            return _SubTensorDict._of_child(value, self)
        if isinstance(value, CollectionProtocol):
            # The index may be (), which `values[()]` would not accept.
            values: Any = value
            part = values._index(self.idx)
            is_everything = _rust.index_plan(values.batch_size, self.idx) is None
            if is_everything and values.is_locked:
                part._lock_tree()
            return part
        return value[self.idx]

    def _entries(self) -> dict[str, Any]:
        if isinstance(self._source, PartsProtocol):
            return {
                key: self._get_entry(key, NO_DEFAULT)
                for key in list(self._source._sample_entries())
            }
        return {
            key: self._view_of(value)
            for key, value in list(self._source._entries().items())
        }

    def _get_entry(self, key: str, default: object) -> Any:
        source = self._source
        if isinstance(source, PartsProtocol):
            part = source._part_at(key, self.idx)
            if part is not NO_DEFAULT:
                return part
        value = source._get_entry(key, NO_DEFAULT)
        return default if value is NO_DEFAULT else self._view_of(value)

    def _sample_entries(self) -> dict[str, Any]:
        # No leaf is read, so the keys are available even if the index is out of range.
        return {
            key: self._sample_of(value)
            for key, value in list(self._source._sample_entries().items())
        }

    def _sample_entry(self, key: str) -> Any:
        value = self._source._sample_entry(key)
        return value if value is NO_DEFAULT else self._sample_of(value)

    def _seen_entry(self, key: str) -> Any:
        value = self._sample_entry(key)
        if value is NO_DEFAULT or isinstance(value, CollectionProtocol):
            return value
        return self._get_entry(key, NO_DEFAULT)

    def _sample_of(self, value: object) -> Any:
        if is_branch(value):
            return _SubTensorDict._of_child(value, self)
        return value

    def _get_path(self, key: NestedKeyLike) -> Any:
        """Return the entire entry of the source at a nested key, or None if missing."""
        return _rust.get(self._source, key, ...)

    def _read(self, key: NestedKeyLike, default: object) -> Any:
        """Read an entry by key, nested collections as ordinary ones."""
        if isinstance(self._source, PartsProtocol):
            part = self._read_alone(key)
            if part is not NO_DEFAULT:
                return value_of(part)
        value = _rust.get(self._source, key, default)
        if value is default or value is None:
            return value
        if isinstance(value, CollectionProtocol):
            if isinstance(value, _SubTensorDict):
                # The source of a part of a part is read with its own rules: an
                # unbatched tensor in a nested collection is not indexed.
                source = self._source
                source_is_part = isinstance(source, _SubTensorDict)
                value = source._read(key, default) if source_is_part else value._shown()
            return value_of(value._get_index(self.idx))
        return value[self.idx]

    def _read_alone(self, key: object) -> Any:
        """Read only the part of a leaf; return NO_DEFAULT if that is impossible."""
        path = _rust.unravel_key_to_tuple(key)
        holder: Any = self._source
        for name in path[:-1]:
            holder = holder._sample_entry(name)
            if not is_branch(holder):
                return NO_DEFAULT
        return holder._part_at(path[-1], self.idx) if path else NO_DEFAULT

    def __getitem__(self, index: Any) -> Any:
        """Return the part of the entry at a key, or a part of this part at an index."""
        if isinstance(index, str) or (
            isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
        ):
            return self._read(index, NO_DEFAULT)
        return self._index(index)

    def get(self, key: NestedKeyLike, *args: object, **kwargs: object) -> Any:
        """Return the part of the entry at ``key``, or a default if it is missing."""
        if len(args) > 1:
            raise TypeError(MSG_ONE_DEFAULT)
        default = args[0] if args else kwargs.get("default", NONE_IF_MISSING)
        if isinstance(self._source, PartsProtocol):
            entry = self._read_alone(key)
            if entry is not NO_DEFAULT:
                return entry
        entry = self._get_path(key)
        if holds_values(entry):
            return self._view_of(entry)
        value = self._read(key, default)
        return None if value is NONE_IF_MISSING else value

    def _get_str(self, key: str, default: object = NO_DEFAULT, **kwargs: object) -> Any:
        found = self._read(key, default)
        return self._get_entry(key, default) if is_branch(found) else found

    def get_item_shape(self, key: NestedKeyLike) -> torch.Size:
        """Return the shape of the part of the entry at ``key``."""
        entry = _rust.get(self._source, key)
        is_value = holds_values(entry)
        return (
            entry._get_index(self.idx) if is_value else self._read(key, NO_DEFAULT)
        ).shape

    def _index(self, index: BatchIndex) -> Any:
        if _rust.index_plan(self._batch_size, index) is None:
            return self
        return _SubTensorDict(self, (index,) if isinstance(index, list) else index)

    def _get_index(self, index: Any) -> Self:
        return self._index(index)

    def _as_dense(self) -> CollectionProtocol:
        """Return an ordinary tensordict of the same parts; nested ones stay views."""
        return self._with_entries(self._entries())

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Return a copy as an ordinary collection. See ``TensorDict.to_tensordict``."""
        if isinstance(self._source, PartsProtocol):
            # Reading from a file or a server made a copy already.
            return self._shown()
        return super().to_tensordict(retain_none=retain_none)

    # Writing -----------------------------------------------------------------------

    def set(
        self,
        key: NestedKeyLike,
        item: object,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        **kwargs: object,
    ) -> Self:
        """Store a new entry: ``item`` in this part, zeros in the rest of the source.

        Raises:
            RuntimeError: the entry exists and ``inplace`` is false. Part of an entry
                can be written into, but not replaced.
        """
        path = _rust.unravel_key_to_tuple(key)
        if not inplace and path and _rust.contains(self._source, path):
            raise RuntimeError(MSG_SET)
        return super().set(key, item, inplace, non_blocking=non_blocking, **kwargs)

    def set_non_tensor(self, key: NestedKeyLike, value: object) -> Self:
        """Store a new entry of any type. See :meth:`set` about existing entries."""
        if isinstance(key, (str, tuple)) and not self.is_locked:
            path = _rust.unravel_key_to_tuple(key)
            if path and _rust.contains(self._source, path):
                raise RuntimeError(MSG_SET)
        return super().set_non_tensor(key, value)

    def _set_entry(self, key: str, value: Any) -> None:
        source = self._source
        if isinstance(source, PartsProtocol) and isinstance(
            source._sample_entry(key), torch.Tensor
        ):
            if isinstance(value, CollectionProtocol):
                raise not_a_value(key, source._sample_entry(key), value)
            source._write_part(key, self.idx, value)
            return
        present = source._get_entry(key, NO_DEFAULT)
        if present is NO_DEFAULT:
            ndim = len(source.batch_size)
            size = self._batch_size
            entry = preallocated(source, self.idx, size, ndim, value)
            source._set_entry(key, entry)
        elif holds_values(present):
            source._set_entry(key, present._written_at(self.idx, value))
        elif isinstance(present, CollectionProtocol):
            is_own_part = isinstance(value, _SubTensorDict) and value._source is present
            # `update` merged into this very part of the entry: nothing is left to
            # write.
            if not (is_own_part and value.idx is self.idx):
                _rust.set_index(present, self.idx, value)
        elif isinstance(value, CollectionProtocol):
            raise not_a_value(key, present, value)
        else:
            if (
                isinstance(value, torch.Tensor)
                and value.dtype != present.dtype
                and fills(self._asked, value)
            ):
                value = value.to(present.dtype)
            if not source._is_dense and source._lazy_stack() is not None:
                # A stack may hold one member several times. Its `set_at_` leaves the
                # rows outside of the index unchanged.
                source.set_at_(key, value, self.idx)
                return
            present[... if _is_whole(present, value) else self.idx] = value
            if not source._is_dense:
                # The source may itself be a part, whose entry may be a copy.
                source._set_entry(key, present)

    def _check_entry(self, key: str, value: object) -> None:
        # Called before any entry is written, so that an error leaves all unchanged.
        if is_branch(self._sample_entry(key)) and not is_branch(value):
            raise ValueError(MSG_REPLACED.format(type(value)))
        self._check_write(key, value)

    def _check_write(self, key: str, value: object) -> None:
        part = self._get_entry(key, None)
        if isinstance(value, (int, float)):
            is_leaf = isinstance(part, torch.Tensor)
            check_number([part] if is_leaf else _rust.leaves(part), value, True)
        if isinstance(value, torch.Tensor) and type(part) is torch.Tensor:
            while value.dim() > part.dim() and value.shape[0] == 1:
                value = value[0]
            value.expand(part.shape)

    def _write_index(self, index: BatchIndex, value: Any) -> None:
        """Write into a part of this part, entry by entry: entries may be copies."""
        if not isinstance(value, (CollectionProtocol, torch.Tensor, int, float, str)):
            with contextlib.suppress(RuntimeError, TypeError, ValueError):
                value = as_tensor(value)
        try:
            size = _rust.index_shape(self._batch_size, index)
        except IndexError:
            if isinstance(value, CollectionProtocol):
                raise
            # The index has more dims than the batch size, or is wrong: write to copies
            # first, so that an error leaves the entries unchanged.
            plain = self._shown().clone()
            _rust.set_index(plain, index, value)
            self._store_tree(plain)
            return
        part = _SubTensorDict(self, (index,) if isinstance(index, list) else index)
        if isinstance(value, CollectionProtocol):
            value = fit_source(self._batch_size, index, size, value)
            items = list(value._entries().items())
            if self.is_locked and any(
                self._get_entry(key, NO_DEFAULT) is NO_DEFAULT for key, _ in items
            ):
                raise locked_error(self)
        else:
            items = []
            source = self._source
            is_read = not isinstance(source, PartsProtocol)
            entries = source._entries() if is_read else source._sample_entries()
            for key, entry in list(entries.items()):
                item = value
                if holds_values(entry):
                    is_number = isinstance(value, (int, float, complex))
                    item = torch.as_tensor(value) if is_number else value
                items.append((key, item))
        for key, item in items:
            part._check_write(key, item)
        for key, item in items:
            part._set_entry(key, item)

    def _del_entry(self, key: str) -> None:
        self._source._del_entry(key)

    def clear(self) -> Self:  # type: ignore[override]
        """Remove all entries of the source."""
        self._source.clear()
        return self

    def _set_path(
        self,
        path: tuple[str, ...],
        value: object,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        present = self._source._get_entry(path[0], NO_DEFAULT)
        if len(path) == 1:
            # An existing entry is written in place, which a lock allows.
            if inplace is False and present is not NO_DEFAULT:
                ignore_lock = True
        elif present is NO_DEFAULT and inplace is None:
            if self.is_locked:
                raise locked_error(self)
            raise missing_key(self, path[0])
        elif isinstance(present, torch.Tensor):
            raise TypeError(MSG_NOT_NESTED.format(type(present)))
        super()._set_path(path, value, inplace, non_blocking, validated, ignore_lock)

    def _write_into(
        self, key: str, present: object, value: object, non_blocking: bool
    ) -> None:
        value = _rust.validate(self, key, value, non_blocking)
        self._set_entry(key, value)

    def _copy_into(self, source: Any, keys: Any, non_blocking: bool) -> None:
        target = self._source
        is_stack = not target._is_dense and target._lazy_stack() is not None
        if is_stack and keys is None and isinstance(source, CollectionProtocol):
            # The members at the index may have entries that the stack does not show.
            target.update_at_(source, self.idx)
            return
        if keys is not None:
            source = restricted(source, keys)
        values = self._fitted(source, ())
        plain = self._shown()
        self._show_whole(plain, values)
        _rust.copy_into(plain, values, None, non_blocking)
        self._store_from(iter(_rust.leaves(plain)))

    def _show_whole(self, plain: CollectionProtocol, values: dict[Any, Any]) -> None:
        """Put copies of entire entries into ``plain`` where ``values`` write them."""
        for key, value in values.items():
            path = _rust.unravel_key_to_tuple(key)
            entry = self._entry_to_fit(path)
            if isinstance(value, dict):
                part = _SubTensorDict._of_child(entry, self)
                part._show_whole(_rust.get(plain, path), value)
            elif _is_whole(entry, value):
                holder = plain if len(path) == 1 else _rust.get(plain, path[:-1])
                holder._set_entry(path[-1], entry.clone())

    def _fitted(
        self, source: CollectionProtocol, prefix: tuple[str, ...]
    ) -> dict[Any, Any]:
        """Return the entries of ``source`` without superfluous leading dims of size 1.

        The entries of this part are not read, because the index may be out of range.

        Raises:
            KeyError: this part has no entry for a value.
            RuntimeError: a value does not fit its entry.
        """
        fitted = {}
        # A tensorclass may have a field with the name of a method such as `items`.
        plain = source._tensordict if is_tensorclass(source) else source
        for key, value in list(plain.items()):
            path = _rust.unravel_key_to_tuple(key)
            if isinstance(value, dict) and not leaf_paths(value, path):
                continue
            entry = _rust.get(self._source, path)
            full_key = (*prefix, *path)
            if isinstance(entry, torch.Tensor) and isinstance(value, torch.Tensor):
                if _is_whole(entry, value):
                    fitted[key] = value
                    continue
                shape = self._batch_size + entry.shape[self._source_ndim :]
                spare = value.dim() - len(shape)
                if spare > 0 and set(value.shape[:spare]) == {1}:
                    value = value.reshape(value.shape[spare:])
                elif spare < 0 and set(shape[:-spare]) == {1}:
                    # Torch refuses to copy memory onto itself if the strides differ.
                    # Expanding a value sets other strides for dims of one element.
                    value = value[(None,) * -spare]
                check_copy(full_key, value, shape)
            elif is_branch(entry) and (is_branch(value) or isinstance(value, dict)):
                nested_source: Any = value
                value = _SubTensorDict._of_child(entry, self)._fitted(
                    nested_source, full_key
                )
            fitted[key] = value
        return fitted

    def _entry_to_fit(self, path: tuple[str, ...]) -> Any:
        """Return the entire entry of the source, or a stand-in with its shape."""
        holder: Any = self._source
        if isinstance(holder, PartsProtocol) and _rust.contains(holder, path):
            for name in path:
                holder = holder._sample_entry(name)
            return holder
        return _rust.get(holder, path)

    def update(  # type: ignore[override]
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        inplace: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Merge a collection or mapping into the part. See ``TensorDict.update``."""
        if not inplace or input_dict_or_td is self:
            return super().update(input_dict_or_td, clone, inplace, **kwargs)
        # Reading may return a copy. Write to the copy, then store it in the parent.
        plain = self._shown()
        if self.is_locked:
            plain.lock_()
        plain.update(input_dict_or_td, clone, True, **kwargs)
        self._store_tree(plain)
        return self

    def _store_tree(self, plain: CollectionProtocol) -> None:
        """Store all entries of a collection with the same structure or more entries."""
        for key, value in list(plain._entries().items()):
            present = self._get_entry(key, NO_DEFAULT)
            if isinstance(present, _SubTensorDict):
                present._store_tree(value)
            else:
                self._set_entry(key, value)

    def _store_from(self, values: Iterator[Any]) -> None:
        source = self._source
        is_read = not isinstance(source, PartsProtocol)
        entries = source._entries() if is_read else source._sample_entries()
        for key, value in list(entries.items()):
            if isinstance(value, CollectionProtocol):
                _SubTensorDict._of_child(value, self)._store_from(values)
            else:
                self._set_entry(key, next(values))

    # Walking -----------------------------------------------------------------------

    def _clone_structure(self) -> Self:
        # The new part has its own source, which shares the leaves. Entries can be added
        # to it and removed from it.
        copy = type(self).__new__(type(self))
        copy._source = _rust.clone_structure(self._source)
        copy._source_ndim = self._source_ndim
        copy._source_dims = self._source_dims
        copy._batch_size = self._batch_size
        copy._asked = self._asked
        copy.idx = self.idx
        return copy

    def entry_class(self, key: NestedKeyLike) -> type:
        """Return the type of an entry; for a nested collection, the class of parts."""
        value = _rust.get(self._source, key, None)
        nested = isinstance(value, CollectionProtocol)
        return _SubTensorDict if nested else type(value)

    # Methods that a part refuses or does differently ----------------------------------

    memmap_: Any = refused(MSG_MEMMAP)
    share_memory_: Any = refused(MSG_SHARE)
    detach_: Any = refused(MSG_DETACH)

    def to(self, *args: object, **kwargs: object) -> Any:
        """Copy the part, then move it. See ``TensorDict.to``.

        If the argument is a collection (whose device and dtype are taken), leaves that
        need no move are not copied.

        Raises:
            TypeError: ``inplace`` is true: a part does not own its leaves.
        """
        if kwargs.get("inplace"):
            raise TypeError(MSG_TO_INPLACE)
        if (
            len(args) == 1
            and isinstance(args[0], (str, torch.device))
            and torch.device(args[0]) == self.device
        ):
            return remember(self, self, "to", args, kwargs)
        if args and isinstance(args[0], CollectionProtocol):
            result = self._shown().to(*args, **kwargs)
            if self.is_locked:
                _rust.lock_tree(result)
        else:
            result = self.to_tensordict().to(*args, **kwargs)
        return remember(self, result, "to", args, kwargs)

    def view(self, *shape: Any, **kwargs: Any) -> Self:
        """View the part as another dtype; the only shape allowed is the present one.

        Raises:
            RuntimeError: the shape is not the batch size. Use :meth:`reshape`.
        """
        shape_given = (
            shape[0] if shape and isinstance(shape[0], (list, tuple)) else shape
        )
        is_lazy = options_primitives.lazy_legacy()
        if not is_lazy and -1 in (*shape_given, *kwargs.get("size", ())):
            raise Refusal(MSG_ONLY_VIEW).of(self, "view")
        return super().view(*shape, **kwargs)

    def unflatten(
        self, dim: int, unflattened_size: Sequence[int], *, inplace: bool = False
    ) -> Any:
        """Split one batch dim into several, in an ordinary collection."""
        if inplace:
            raise Refusal(MSG_INPLACE, NotImplementedError).of(self, "unflatten")
        result = self._shown().unflatten(dim, unflattened_size)
        if self.is_locked:
            _rust.lock_tree(result)
        return remember(self, result, "unflatten", (dim, unflattened_size), {})

    def permute(self, *args: object, **kwargs: object) -> Self:
        """Permute in lazy legacy mode; otherwise raise an error."""
        if not options_primitives.lazy_legacy():
            raise Refusal(MSG_SHAPE).of(self, "permute")
        return super().permute(*args, **kwargs)

    def atleast_1d(self) -> Self:
        """Return this part if it has a batch dim, else raise an error."""
        return self._with_ndim(1)

    def atleast_2d(self) -> Self:
        """Return this part if it has two batch dims or more, else raise an error."""
        return self._with_ndim(2)

    def atleast_3d(self) -> Self:
        """Return this part if it has three batch dims or more, else raise an error."""
        return self._with_ndim(3)

    def _with_ndim(self, ndim: int) -> Self:
        if ndim > len(self._batch_size):
            raise Refusal(MSG_SHAPE).of(self, "unsqueeze")
        return remember(self, self, f"atleast_{ndim}d", (), {})

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Regroup the entries. See ``TensorDict.unflatten_keys``.

        The result is a part of a copy of the parent's structure, which shares the
        leaves. If ``inplace`` is true, the parent itself is changed.
        """
        result = self if inplace else self._clone_structure()
        result._source.unflatten_keys(separator, True)
        return remember(self, result, "unflatten_keys", (separator,), {})

    def split_keys(
        self,
        *key_sets: Iterable[NestedKeyLike],
        inplace: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Distribute the entries. See ``TensorDict.split_keys``.

        The last result, with the remaining entries, is a part of a copy of the parent's
        structure, which shares the leaves.
        """
        remaining = self if inplace else self._clone_structure()
        return super(_SubTensorDict, remaining).split_keys(
            *key_sets, inplace=True, **kwargs
        )

    def rename_(self, *names: str | None, **rename_map: str | None) -> Self:
        """Raise an error: the parent holds the names."""
        if names and names != (None,) and not rename_map:
            raise RuntimeError(MSG_NAMES)
        return super().rename_(*names, **rename_map)

    def rename_key_(
        self, old_key: NestedKeyLike, new_key: NestedKeyLike, safe: bool = False
    ) -> Self:
        """Rename an entry of the source."""
        self._source.rename_key_(old_key, new_key, safe=safe)
        return self

    # Files --------------------------------------------------------------------------

    def is_empty(self) -> bool:
        """Return whether the source has no leaf."""
        return self._source.is_empty()

    def auto_batch_size_(
        self, batch_dims: int | None = None, keep_compliant_size: bool = False
    ) -> Self:
        """Check that the shared leading dims of the entries equal the batch size.

        A nested collection counts with its batch size, which its source holds.

        Raises:
            RuntimeError: the shared dims, at most ``batch_dims`` of them, are not the
                batch size.
        """
        shapes = [value.shape for value in self._entries().values()]
        if shapes:
            dims = enumerate(zip(*shapes, strict=False))
            shortest = min(map(len, shapes))
            end = next((dim for dim, sizes in dims if len({*sizes}) > 1), shortest)
            if batch_dims is not None:
                end = max(min(end, batch_dims), 0)
            self.batch_size = list(shapes[0][:end])
        return self

    def _save_plan(self, plan: object, level: int) -> None:
        plan_part(self, plan, level)

    def _saved(self, leaves: SavedTensors, directory: object, inplace: bool) -> Self:
        return saved_part(self, leaves, directory)

    def _unlock_saved(self) -> Self:
        self._source._unlock_saved()
        self._is_memmap = False
        return self

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: object) -> Self:
        return load_part(cls, directory, options)

    def _take_loaded(self, loaded: CollectionProtocol) -> Self:
        # The source holds the entries and keeps its own tensors: copy the values.
        return self.update_(loaded)


_SubTensorDict.__module__ = "tensordict._td"


def _is_whole(entry: Any, value: Any) -> bool:
    """Return whether entry and value are unbatched tensors of one shape."""
    return is_shared(entry) and is_shared(value) and value.shape == entry.shape
