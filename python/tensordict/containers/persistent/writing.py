"""Writing entries to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.containers.persistent.files import (
    content_of,
    fill_group,
    metadata_to_write,
)
from tensordict.containers.persistent.state import PersistentState
from tensordict.primitives.arrays import as_tensor
from tensordict.primitives.checks import is_branch
from tensordict.primitives.errors import locked_error
from tensordict.primitives.index_writes import fit_source
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.special import is_shared
from tensordict.storage.arrays.selection import write_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict._rust import SavedTensors

__all__ = ["Writing"]


class Writing(PersistentState):
    """The part of a persistent collection that writes entries."""

    def _set_entry(self, key: str, value: object) -> None:
        group = self._group
        self._file.check_writable(key)
        array = group.array(key)
        if is_branch(value):
            if value is self._nested.get(key):
                return
            if isinstance(value, PersistentState):
                # The value may be the very group that is replaced, so read it first.
                value = value._shown()
            self._replace(key, lambda name: self._fill(name, value))
            return
        if (
            array is not None
            and not array.is_value
            and type(value) is torch.Tensor
            and tuple(value.shape) == tuple(array.shape)
            and value.dtype is array.dtype
        ):
            array.write(..., content_of(self._file, key, value).data)
            return
        content = content_of(self._file, key, value)
        self._replace(key, lambda name: group.create(name, content, self._options))

    def _fill(self, name: str, value: Any) -> None:
        nested = self._group.create_group(name, metadata_to_write(value))
        try:
            fill_group(nested, value, self._options)
        except BaseException:
            self._group.delete(name)
            raise

    def _replace(self, key: str, make: Callable[[str], Any]) -> None:
        """Write an entry; an old one is deleted only when the new one is complete."""
        group = self._group
        self._nested.pop(key, None)
        if group.group(key) is None and group.array(key) is None:
            make(key)
            return
        keys = set(group.names())
        work = next(
            name for at in range(len(keys) + 1) if (name := f"{key}~{at}") not in keys
        )
        make(work)
        group.delete(key)
        group.move(work, group, key)

    def _check_entry(self, key: str, value: object) -> None:
        self._file.check_writable(key)
        if not is_branch(value):
            content_of(self._file, key, value)

    def _del_entry(self, key: str) -> None:
        self._group.delete(key)
        self._nested.pop(key, None)

    def _write_part(self, key: str, index: object, value: object) -> None:
        self._file.check_writable(key)
        array: Any = self._group.array(key)
        if array.kind is not None:
            entry = self._get_entry(key, NO_DEFAULT)
            entry[... if is_shared(value) else index] = value
            self._set_entry(key, entry)
            return
        if not isinstance(value, torch.Tensor):
            value = as_tensor(value)
        if value.requires_grad:
            content_of(self._file, key, value)
        value = value.to(device="cpu", dtype=array.dtype)
        data = content_of(self._file, key, value).data
        write_part(array, index, torch.from_numpy(data))

    def _write_index(self, index: object, value: Any) -> None:
        part = self._index(index)
        if isinstance(value, CollectionProtocol):
            size = _rust.index_shape(self._batch_size, index)
            value = fit_source(self._batch_size, index, size, value)
            items = list(value._entries().items())
            if self.is_locked and any(
                self._sample_entry(key) is NO_DEFAULT for key, _ in items
            ):
                raise locked_error(self)
            for key, item in items:
                part._check_write(key, item)
            for key, item in items:
                part._set_entry(key, item)
            return
        # A number is written to tensors only, not to non-tensor data.
        for key, sample in self._sample_entries().items():
            if isinstance(sample, PersistentState):
                _rust.set_index(sample, index, value)
            elif not isinstance(sample, CollectionProtocol) or isinstance(value, str):
                part._set_entry(key, value)

    def _copy_into(self, source: object, keys: object, non_blocking: bool) -> None:
        plain = self._shown()
        _rust.copy_into(plain, source, keys, non_blocking)
        self._store_leaves(_rust.leaves(plain))

    def _store_from(self, values: Any) -> None:
        for key in self._group.names():
            child = self._child(key)
            if child is not None:
                child._store_from(values)
                continue
            array = self._group.array(key)
            if array is not None and not array.is_value:
                self._set_entry(key, next(values))

    # Saves elsewhere ------------------------------------------------------------------

    def memmap_like(self, *args: object, **kwargs: object) -> Any:
        """Create memory-mapped zeros with the shapes of the entries."""
        return self._sampled().memmap_like(*args, **kwargs)

    def _save_plan(self, plan: object, level: int) -> None:
        # Keep the entries that were planned, so that `_saved` uses the same ones.
        self._planned = self._shown()
        self._planned._save_plan(plan, level)

    def _saved(self, leaves: SavedTensors, directory: object, inplace: bool) -> Any:
        planned = self.__dict__.pop("_planned")
        return planned._saved(leaves, directory, False)
