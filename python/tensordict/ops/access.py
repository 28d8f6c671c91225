"""Reading and writing entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict.protocol import NO_DEFAULT, NONE_IF_MISSING, CollectionProtocol

if TYPE_CHECKING:
    from tensordict.protocol import NestedKeyLike

__all__ = ["AccessOps"]

MSG_LOCKED = (
    "Cannot modify locked TensorDict. For in-place modification, consider using the "
    "`set_()` method and make sure the key is present."
)
MSG_NO_KEY = "key must be a NestedKey (a str or a possibly tuple of str)."
MSG_ITERATION = (
    "iteration over a 0-d tensordict. Use keys(), values() or items() to iterate over "
    "its entries."
)


class AccessOps(CollectionProtocol):
    """Reading and writing entries."""

    # Reading -------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """The entry at a nested key, or the container of the entries indexed."""
        return _rust.getitem(self, index)

    def __contains__(self, key: Any) -> bool:
        """Whether there is an entry at a nested key."""
        if not _rust.unravel_key_to_tuple(key):
            raise RuntimeError(MSG_NO_KEY)
        return _rust.contains(self, key)

    def __len__(self) -> int:
        """The first dim of the batch size; 0 where there is none."""
        batch_size = self.batch_size
        return batch_size[0] if batch_size else 0

    def __iter__(self) -> Iterator[Any]:
        """The containers along the first batch dim."""
        if not self.batch_size:
            raise TypeError(MSG_ITERATION)
        return iter(self.unbind(0))

    def is_empty(self) -> bool:
        """Whether there is no leaf."""
        return not _rust.leaves(self)

    def get(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any:
        """The entry at ``key``, or a default (None unless given) where it is missing."""
        default = args[0] if args else kwargs.get("default", NONE_IF_MISSING)
        return _rust.get(self, key, default)

    def _get_str(self, key: str, default: Any, **kwargs: Any) -> Any:
        return _rust.get(self, key, default)

    # Writing -------------------------------------------------------------------

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store a value at a nested key, or write into the entries at an index."""
        if isinstance(index, str) or (
            isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
        ):
            _rust.set_entry(self, index, value)
        else:
            self._set_index(index, value)

    def __delitem__(self, key: NestedKeyLike) -> None:
        """Remove the entry at a nested key."""
        self.del_(key)

    def del_(self, key: NestedKeyLike) -> Self:
        """Remove the entry at a nested key."""
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise KeyError(_rust.MSG_BAD_KEY.format(key))
        parent = self if len(path) == 1 else _rust.get(self, path[:-1])
        if parent.is_locked:
            raise RuntimeError(MSG_LOCKED)
        if not isinstance(parent, CollectionProtocol) or not _rust.contains(
            parent, path[-1]
        ):
            raise _missing(parent, path[-1])
        parent._del_entry(path[-1])
        return self

    def set(
        self,
        key: NestedKeyLike,
        item: Any,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Store ``item`` under ``key``, making the nested collections on the way."""
        _rust.set_entry(self, key, item, inplace, non_blocking)
        return self

    def set_(
        self, key: NestedKeyLike, item: Any, *, non_blocking: bool = False
    ) -> Self:
        """Write ``item`` into the storage of the entry at ``key``."""
        _rust.set_entry(self, key, item, None, non_blocking)
        return self

    def _set_str(
        self,
        key: str,
        value: Any,
        *,
        inplace: bool | None,
        validated: bool,
        ignore_lock: bool = False,
        non_blocking: bool = False,
    ) -> Self:
        _rust.set_entry(self, key, value, inplace, non_blocking, validated, ignore_lock)
        return self

    def _set_path(
        self,
        path: tuple[str, ...],
        value: Any,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        """Store a value at a flat path: the slow, general form of ``set_entry``."""
        if len(path) > 1:
            head, rest = path[0], path[1:]
            child = self._get_entry(head, NO_DEFAULT)
            if child is NO_DEFAULT:
                if inplace is None:
                    raise _missing(self, head)
                if self._is_locked and not ignore_lock:
                    raise RuntimeError(MSG_LOCKED)
                # The new branch is filled before it is hung in: a value that does
                # not fit leaves this container as it was.
                child = self._make_child()
                child._set_path(rest, value, False, non_blocking, validated, True)
                self._set_entry(head, child)
                return
            if not isinstance(child, CollectionProtocol):
                raise KeyError(
                    f"The entry {head!r} is a leaf: no entry {rest!r} can be set in it."
                )
            child._set_path(rest, value, inplace, non_blocking, validated, ignore_lock)
            return
        key = path[0]
        present = self._get_entry(key, NO_DEFAULT)
        if inplace is None and present is NO_DEFAULT:
            raise _missing(self, key)
        if inplace is not False and present is not NO_DEFAULT:
            self._write_into(key, present, value, non_blocking)
            return
        if self._is_locked and not ignore_lock:
            raise RuntimeError(MSG_LOCKED)
        if not validated:
            value = _rust.validate(self, key, value, non_blocking)
        self._set_entry(key, value)

    def _write_into(
        self, key: str, present: Any, value: Any, non_blocking: bool
    ) -> None:
        """Copy ``value`` into the storage of an entry that exists."""
        if isinstance(present, CollectionProtocol):
            present.update(value, inplace=True, non_blocking=non_blocking)
            return
        value = _rust.validate(self, key, value, non_blocking)
        present.copy_(value, non_blocking=non_blocking)

    def _make_child(self) -> Any:
        """An empty nested container that fits in this one."""
        from tensordict.containers.dense import TensorDict

        names = self._td_dim_names
        return _rust.new(
            TensorDict,
            {},
            self.batch_size,
            self.device,
            None if names is None else list(names),
        )

    def _convert_value(self, key: Any, value: Any, non_blocking: bool) -> Any:
        """A tensor or a container made of a value that is neither."""
        if isinstance(value, Mapping):
            child = self._make_child()
            for name, item in value.items():
                _rust.set_entry(child, name, item, False, non_blocking)
            return child
        if isinstance(value, (bool, int, float, complex, np.generic)):
            tensor = torch.as_tensor(value, device=self.device)
            if self.batch_size:
                raise RuntimeError(
                    f"batch dimension mismatch, got self.batch_size={self.batch_size} "
                    f"and value.shape={tensor.shape} for key {key!r}."
                )
            return tensor
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value)
        if isinstance(value, (list, tuple)):
            return torch.as_tensor(value)
        raise TypeError(
            f"Cannot store a {type(value).__name__} under key {key!r}: only tensors, "
            "arrays, numbers, mappings and collections can be entries."
        )

    def _fit_collection(
        self, key: Any, value: Any, non_blocking: bool
    ) -> CollectionProtocol:
        """A nested container made to fit: batch size, device and names."""
        batch_size = self.batch_size
        if value.batch_size[: len(batch_size)] != batch_size:
            value = value.clone(False)
            value.batch_size = batch_size
        if self.device is not None and value.device != self.device:
            value = value.to(self.device, non_blocking=non_blocking)
        if self._has_names():
            names = self.names
            if value.names[: len(names)] != names:
                value = value.clone(False)
                value.names = names + value.names[len(names) :]
        return value


def _missing(td: Any, key: str) -> KeyError:
    keys = sorted(td.keys())
    return KeyError(f'key "{key}" not found in {type(td).__name__} with keys {keys}')
