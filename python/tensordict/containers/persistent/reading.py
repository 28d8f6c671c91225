"""Reading entries of a file: entire entries, parts of them, or only their shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.containers.persistent.state import PersistentState
from tensordict.containers.view import _SubTensorDict
from tensordict.primitives import special
from tensordict.primitives.protocol import NO_DEFAULT
from tensordict.storage.arrays.interface import (
    ENCODING,
    NUMBER,
    STACK,
    TEXT,
)
from tensordict.storage.arrays.selection import read_part
from tensordict.storage.arrays.values import Stack

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.primitives.protocol import CollectionProtocol, NestedKeyLike
    from tensordict.storage.arrays.interface import Array

__all__ = ["Reading"]

MSG_SIZE = "batch size and array size mismatch: array.shape={}, batch_size={}{}."
MSG_KEYS = (
    "Cannot call {} in place on a PersistentTensorDict: it would remove entries from the "
    "file. Remove them with del_(), or call {}() without inplace to read the entries."
)


class _Unread:
    """A stand-in for a value that was not read from the file."""

    def __repr__(self) -> str:
        return "<in the file>"


UNREAD = _Unread()


def _rows_of_stack(array: Array, index: object) -> slice | None:
    """Return the rows of stacked non-tensor data to read, or None to read all.

    Data that the file stores as one JSON text, or as one pickle, has no separate rows.
    """
    items = index if isinstance(index, tuple) else (index,)
    attributes = array.attributes
    if len(items) != 1 or STACK not in attributes or ENCODING in attributes:
        return None
    rows = items[0]
    has_rows = tuple(attributes[STACK]) == tuple(array.shape) != ()
    return rows if has_rows and isinstance(rows, slice) else None


class Reading(PersistentState):
    """The part of a persistent collection that reads entries."""

    def _check_sizes(self, path: tuple[str, ...]) -> None:
        """Check that the shape of each array begins with the batch size.

        Raises:
            ValueError: the shape of an array does not.
        """
        size = self._batch_size
        if not size:
            return
        for key in self._group.names():
            array = self._group.array(key)
            if array is None:
                child = self._child(key)
                if child is not None:
                    child._check_sizes((*path, key))
            elif (
                not array.is_value
                and not (array.kind is not None and array.kind.is_shared)
                and torch.Size(array.shape[: len(size)]) != size
            ):
                where = f" for the entry {(*path, key)} of {self._file.name}"
                raise ValueError(MSG_SIZE.format(array.shape, size, where))

    def _entries(self) -> dict[str, Any]:
        keys = self._group.names()
        entries = {key: self._get_entry(key, NO_DEFAULT) for key in keys}
        return {key: value for key, value in entries.items() if value is not NO_DEFAULT}

    def _get_entry(self, key: str, default: object) -> Any:
        array = self._group.array(key)
        if array is not None:
            return self._read_array(key, array, ())
        child = self._child(key)
        return default if child is None else child

    def _read_array(self, key: str, array: Array, index: object) -> Any:
        if array.is_value:
            return self._value_of(key, array)
        leaf = read_part(array, index)
        if leaf.dtype is not array.dtype:
            leaf = leaf.to(array.dtype)
        if self._device is not None:
            leaf = leaf.to(self._device)
        return self._entry_of(array, leaf)

    def _entry_of(self, array: Array, leaf: torch.Tensor) -> Any:
        """Make the entry from the tensor of an array, with the class of its kind."""
        kind = array.kind
        return leaf if kind is None else kind.of_plain(leaf, self._batch_size)

    def _value_of(self, key: str, array: Array, rows: slice | None = None) -> Any:
        """Read the non-tensor data of an array, or only ``rows`` of it."""
        value = self._file.decode(key, array, rows)
        size = self._batch_size
        if not isinstance(value, Stack) and self._non_tensor_as_stack:
            shape = getattr(value, "shape", ())
            is_foreign = not {STACK, TEXT, NUMBER} & array.attributes.keys()
            if size and is_foreign and torch.Size(shape[: len(size)]) == size:
                value = Stack(
                    list(value.reshape(size.numel(), *shape[len(size) :])), size
                )
        if isinstance(value, Stack):
            kind = self._non_tensor_stack_type
            entry = kind._of_cells(list(value.values), torch.Size(value.shape))
            if self._device is not None:
                entry = entry.to(self._device)
        else:
            entry = self._non_tensor_type._of([value], 0, size, self._device)
        names = self._td_dim_names
        return entry if names is None else entry._refined(list(names), True)

    def _unread_value(self, array: Array) -> Any:
        """Make a stand-in for non-tensor data, with its type, size and names."""
        size = self._batch_size
        if STACK in array.attributes:
            shape = torch.Size(array.attributes[STACK])
            stand_in = self._non_tensor_stack_type._of_cells(
                [UNREAD] * shape.numel(), shape
            )
        else:
            stand_in = self._non_tensor_type._of([UNREAD], 0, size, self._device)
        names = self._td_dim_names
        return stand_in if names is None else stand_in._refined(list(names), True)

    def _part_at(self, key: str, index: object) -> Any:
        array = self._group.array(key)
        if array is None:
            return NO_DEFAULT
        if array.is_value:
            rows = _rows_of_stack(array, index)
            return NO_DEFAULT if rows is None else self._value_of(key, array, rows)
        if array.kind is not None:
            entry = self._read_array(key, array, ())
            return special.at(entry, index, _rust.index_shape(self._batch_size, index))
        return self._read_array(key, array, index)

    def _sample_entries(self) -> dict[str, Any]:
        samples = {key: self._sample_entry(key) for key in self._group.names()}
        return {key: value for key, value in samples.items() if value is not NO_DEFAULT}

    def _sample_entry(self, key: str) -> Any:
        # An expanded empty tensor has the array's shape and dtype, and almost no
        # memory.
        array = self._group.array(key)
        if array is None:
            child = self._child(key)
            return NO_DEFAULT if child is None else child
        if array.is_value:
            return self._unread_value(array)
        stand_in = torch.empty((), dtype=array.dtype, device=self._device)
        stand_in = stand_in.expand(array.shape)
        return self._entry_of(array, stand_in)

    def _index(self, index: object) -> _SubTensorDict:
        return _SubTensorDict(self, (index,) if isinstance(index, list) else index)

    def _get_index(self, index: object) -> Any:
        return self._index(index)

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Read the entire file to an ordinary collection."""
        return self._shown()

    def _sampled(self) -> CollectionProtocol:
        """Return an ordinary tensordict of stand-ins, without reading values."""
        return self._with_entries(
            {
                key: value._sampled() if isinstance(value, PersistentState) else value
                for key, value in self._sample_entries().items()
            }
        )

    def _chosen(self, choose: Callable[[Any], Any]) -> Any:
        """Read the entries that ``choose`` keeps from a tensordict of stand-ins."""
        return self._filled(choose(self._sampled()))

    def _filled(self, chosen: CollectionProtocol) -> CollectionProtocol:
        for key, value in list(chosen._entries().items()):
            child = self._child(key)
            if child is not None:
                child._filled(value)
            else:
                chosen._set_entry(key, self._get_entry(key, value))
        return chosen

    def select(
        self,
        *keys: NestedKeyLike,
        inplace: bool = False,
        strict: bool = True,
        as_tensordict: bool = False,
    ) -> Any:
        """Read only the entries at ``keys``, to an ordinary collection."""
        if inplace:
            raise NotImplementedError(MSG_KEYS.format("select", "select"))
        return self._chosen(lambda td: td.select(*keys, strict=strict))

    def exclude(self, *keys: NestedKeyLike, inplace: bool = False) -> Any:
        """Read all entries except those at ``keys``, to an ordinary collection."""
        if inplace:
            raise NotImplementedError(MSG_KEYS.format("exclude", "exclude"))
        return self._chosen(lambda td: td.exclude(*keys))

    def is_empty(self) -> bool:
        """Return whether the file contains no tensor."""
        return self._sampled().is_empty()

    def _repr_entries(self) -> list[tuple[str, Any]]:
        # Printing does not read values.
        return sorted(self._sample_entries().items())
