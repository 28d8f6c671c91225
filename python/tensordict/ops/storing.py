"""Storing of values as entries, which every way of writing an entry uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.primitives.checks import holds_values, is_branch
from tensordict.primitives.common import (
    MSG_BATCH_MISMATCH,
    MSG_INPLACE,
    MSG_PRESENT,
    _InplaceWriteError,
)
from tensordict.primitives.convert import tensor_of, tensor_of_sequence
from tensordict.primitives.errors import (
    KeyMessageError,
    at_key,
    below,
    locked_error,
    missing_key,
)
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol, PartsProtocol

if TYPE_CHECKING:
    import torch

__all__ = ["StoringOps"]

MSG_INSIDE_ITSELF = (
    "Cannot set a tensordict inside itself (key {!r}): tensordicts that contain "
    "themselves are not supported."
)


class StoringOps(CollectionProtocol):
    """Storing of values: conversion, nested tensordicts, writes in place."""

    def _set_path(
        self,
        path: tuple[str, ...],
        value: object,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        """Store a value at a flat path: the slow, general form of ``set_entry``."""
        key = path[0]
        if isinstance(self, PartsProtocol):
            # Reading a replaced entry would read all parts: a sample is enough.
            present = self._sample_entry(key)
        else:
            present = self._get_entry(key, NO_DEFAULT)
        if len(path) > 1:
            rest = path[1:]
            if present is NO_DEFAULT:
                if not ignore_lock:
                    self._check_takes_entries()
                # The new branch is filled before it is attached: if the value does not
                # fit, this tensordict stays as it was.
                child = self._make_child()
                child._set_path(rest, value, False, non_blocking, validated, True)
                if isinstance(value, (CollectionProtocol, dict)):
                    self._check_apart(path, child)
                self._hang(key, child)
            elif isinstance(present, CollectionProtocol):
                present._set_path(
                    rest, value, inplace, non_blocking, validated, ignore_lock
                )
            else:
                raise KeyMessageError(MSG_PRESENT.format(key, self))
            return
        if present is NO_DEFAULT:
            if inplace is None:
                raise missing_key(self, key)
        elif inplace is not False:
            if (
                inplace is None
                and isinstance(value, (CollectionProtocol, dict))
                and is_branch(present)
            ):
                # In place requires that all nested entries exist, too.
                value = _rust.validate(self, key, value, non_blocking)
                present.update_(value, non_blocking=non_blocking)
            else:
                self._write_into(key, present, value, non_blocking)
            return
        if not validated:
            value = _rust.validate(self, key, value, non_blocking)
        if not ignore_lock:
            self._check_takes_entries()
        if isinstance(value, CollectionProtocol):
            self._hang(key, value)
        else:
            self._set_entry(key, value)

    def _check_takes_entries(self) -> None:
        """Raise an error if this tensordict takes no new entries.

        Raises:
            RuntimeError: the tensordict is locked.
        """
        if self.is_locked:
            raise locked_error(self)

    def _hang(self, key: str, value: CollectionProtocol) -> None:
        """Store a nested tensordict that was checked to fit."""
        _rust.hang(self, key, value)

    def _write_into(
        self,
        key: str,
        present: CollectionProtocol | torch.Tensor,
        value: object,
        non_blocking: bool,
    ) -> None:
        """Copy ``value`` into the memory of an existing entry."""
        if not isinstance(present, CollectionProtocol):
            if isinstance(value, (CollectionProtocol, dict)):
                _rust.validate(self, key, value, non_blocking)
                raise _InplaceWriteError(MSG_INPLACE.format(key, self))
            value = _rust.fit_inplace(self, key, value, present)
            if not value.numel():
                # A value without elements fits any shape, but `copy_` refuses it.
                return
            try:
                present.copy_(value, non_blocking=non_blocking)
            except RuntimeError as error:
                # For example, the leaf requires grad.
                message = MSG_INPLACE.format(key, self)
                raise _InplaceWriteError(message) from error
            return
        if holds_values(present):
            value = _rust.validate(self, key, value, non_blocking)
            if not present._takes(value):
                raise _InplaceWriteError(MSG_INPLACE.format(key, self))
            present.update_(value)
            return
        if not isinstance(value, (CollectionProtocol, dict)):
            _rust.validate(self, key, value, non_blocking)
            raise _InplaceWriteError(MSG_INPLACE.format(key, self))
        try:
            _rust.update(present, value, False, True, non_blocking)
        except _InplaceWriteError:
            raise
        except RuntimeError as error:
            raise _InplaceWriteError(MSG_INPLACE.format(key, self)) from error

    def _make_child(self) -> Any:
        given = self._td_dim_names
        names = None if given is None else list(given)
        kind = self._child_type()
        return _rust.new(kind, {}, self.batch_size, self.device, names)

    def _child_type(self) -> type[Any]:
        return type(self) if self._is_dense else self._plain_type

    def _convert_value(self, key: object, value: object, non_blocking: bool) -> Any:
        """Convert a value that is no tensor and no tensordict to an entry."""
        if isinstance(value, dict):
            given = self._td_dim_names
            names = None if given is None else list(given)
            child = _rust.new(self._plain_type, {}, self.batch_size, self.device, names)
            try:
                for name, item in value.items():
                    _rust.set_entry(child, name, item, False, non_blocking)
            except RuntimeError as error:
                below(error, key)
                raise
            self._check_apart(key, child)
            return child
        if isinstance(value, (list, tuple)):
            converted = tensor_of_sequence(value, self.device)
        else:
            converted = tensor_of(value, self.device)
        if converted is None:
            converted = self._non_tensor_type._entry_of(value, self.batch_size)
        if isinstance(converted, CollectionProtocol):
            value_size, size = converted.batch_size, self.batch_size
            if value_size and value_size[: len(size)] != size:
                raise RuntimeError(MSG_BATCH_MISMATCH.format(size, value_size, key))
            return self._fit_collection(key, converted, non_blocking, is_fresh=True)
        return converted

    def _check_apart(self, key: object, value: CollectionProtocol) -> None:
        """Refuse a value that contains this tensordict: the tree would have no end.

        Raises:
            ValueError: ``value`` contains this tensordict.
        """
        if _rust.holds_any(value, self._holders()):
            raise ValueError(MSG_INSIDE_ITSELF.format(key))

    def _fit_collection(
        self, key: object, value: Any, non_blocking: bool, is_fresh: bool = False
    ) -> CollectionProtocol:
        """Return ``value`` with the batch size, device and names of this tensordict."""
        batch_size = self.batch_size
        if not value._is_non_tensor:
            self._check_apart(key, value)
        if value._is_non_tensor and not value.batch_size:
            if batch_size:
                value = value._fitted(batch_size)
        elif value.batch_size[: len(batch_size)] != batch_size:
            value = value.clone(False)
            try:
                value.batch_size = batch_size
            except RuntimeError as error:
                raise at_key(error, key) from None
        if self.device is not None and value.device != self.device:
            value = value.to(self.device, non_blocking=non_blocking)
        names = self._td_dim_names
        if names is not None:
            value = value._refined(list(names), is_fresh)
        return value
