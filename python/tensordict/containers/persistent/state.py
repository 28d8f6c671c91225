"""The state of a collection in a file, and its nested collections."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

from tensordict import _rust
from tensordict.containers.elsewhere import KeptOutside
from tensordict.containers.persistent.files import noted, own_size
from tensordict.primitives.common import more_refs
from tensordict.primitives.protocol import PartsProtocol

if TYPE_CHECKING:
    import torch

    from tensordict.storage.arrays.interface import ArrayFile, Group

__all__ = ["PersistentState"]


class PersistentState(KeptOutside, PartsProtocol):  # type: ignore[misc]
    """The state of a collection in a file, and its nested collections."""

    filename: Any
    """The path of the file, or the store that was passed."""
    mode: str
    """The mode with which the file was opened."""
    backend: str
    """``"h5"`` or ``"zarr"``."""

    _file: ArrayFile
    _group: Group
    _options: dict[str, Any]
    _non_tensor_as_stack: bool
    _nested: dict[str, Any]

    if TYPE_CHECKING:

        def _sampled(self) -> Any: ...
        def _index(self, index: object) -> Any: ...

    def _take(
        self,
        file: ArrayFile,
        group: Group,
        size: torch.Size,
        device: torch.device | None,
        names: list[str | None] | None,
        options: dict[str, Any],
        as_stack: bool,
    ) -> None:
        self._file = file
        self._group = group
        self._batch_size = size
        self._device = device
        self._td_dim_names = names
        self._options = options
        self._non_tensor_as_stack = as_stack
        self._nested = {}
        self.filename = file.filename
        self.mode = file.mode
        self.backend = file.backend

    @classmethod
    def _of_group(
        cls,
        file: ArrayFile,
        group: Group,
        like: Any,
        size: torch.Size,
        names: list[str | None] | None,
    ) -> Self:
        """Make another collection of a file, with the settings of ``like``."""
        persistent = cls.__new__(cls)
        options, as_stack = like._options, like._non_tensor_as_stack
        persistent._take(file, group, size, like._device, names, options, as_stack)
        return persistent

    @property
    def file(self) -> Any:
        """The open file, or the group in it, as an object of ``h5py`` or ``zarr``."""
        return self._group.handle

    @property
    def kwargs(self) -> dict[str, Any]:
        """The options of new arrays, as they were passed."""
        return self._options

    def close(self) -> None:
        """Close the file. Later reads and writes raise an error.

        A file or group that was passed as ``group`` stays open.
        """
        if self._file.is_own:
            self._file.close()

    def _note(self) -> None:
        if self._file.is_writable:
            self._group.note(noted(self._batch_size, self._td_dim_names))

    def _child(self, key: str) -> Any:
        """Return the nested collection of a group; None if the group is missing."""
        group = self._group.group(key)
        if group is None:
            self._nested.pop(key, None)
            return None
        child = self._nested.get(key)
        if child is None:
            size, names = own_size(group, self._batch_size, self._td_dim_names)
            child = self._of_group(self._file, group, self, size, names)
            if self._is_locked:
                parents = [*self._lock_parents_weakrefs, weakref.ref(self)]
                _rust.lock_tree(child, tuple(parents))
            self._nested[key] = child
        return child

    def _holder_of(self, path: tuple[str, ...]) -> Any:
        """Return the collection that holds the last key of a path, or None."""
        holder: Any = self if path else None
        for name in path[:-1]:
            holder = holder._child(name)
            if holder is None:
                return None
        return holder

    def _children(self) -> list[Any]:
        children = [self._child(key) for key in self._group.names()]
        return [child for child in children if child is not None]

    def _held_keys(self) -> dict[str, Any]:
        return dict.fromkeys(self._group.names())

    def _again(self, device: torch.device | None) -> Self:
        """Make another collection of the same group that reads to ``device``."""
        names = self._td_dim_names
        names = None if names is None else list(names)
        persistent = self._of_group(
            self._file, self._group, self, self._batch_size, names
        )
        persistent._device = device
        for key, child in self._nested.items():
            persistent._nested[key] = child._again(device)
        return persistent

    def _clone_structure(self) -> Self:
        return self._again(self._device)

    def _lock_tree(self, parents: tuple[Any, ...] = ()) -> None:
        self._is_locked = True
        if parents:
            self._lock_parents_weakrefs = more_refs(
                self._lock_parents_weakrefs, parents
            )
        inner = (*parents, weakref.ref(self))
        for child in self._children():
            _rust.lock_tree(child, inner)
