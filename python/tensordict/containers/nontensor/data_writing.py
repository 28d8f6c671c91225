"""Writing to non-tensor data with one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.containers.nontensor.equality import (
    bare,
    is_interchangeable,
    is_nothing,
)
from tensordict.ops.copying import replacements
from tensordict.primitives.convert import tensor_of
from tensordict.primitives.index_items import MSG_NO_BATCH_DIMS
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["DataWriting"]

MSG_ONE_VALUE = (
    "A {0} holds one value for all its elements, so it cannot take another value at an "
    "index. Call maybe_to_stack() to get a NonTensorStack, which holds a value for each "
    "element."
)
MSG_ONE_SHARED = (
    "You're attempting to update a leaf in-place with a shared tensordict, but the new "
    "value does not match the previous. Elements with different values need a "
    "NonTensorStack: call maybe_to_stack() before sharing or saving."
)
MSG_UPDATE_BY_STACK = (
    "Cannot update a NonTensorDataBase object with a NonTensorStack. Call "
    "`non_tensor_data.maybe_to_stack()` before calling update()."
)
MSG_UPDATE_TYPE = (
    "Unexpected type {}: it has entries, which non-tensor data cannot hold."
)
MSG_NO_COLLECTION = (
    "A {} takes the value of other non-tensor data. {!r} has no attribute 'is_empty'."
)
MSG_COPY_OF_STACK = "Cannot update a NonTensorDataBase with a NonTensorStack object."
MSG_COPY_OF_OTHER = (
    "NonTensorDataBase.copy_ / update_ requires the source to be a NonTensorDataBase "
    "object."
)
MSG_PART = "Cannot update a part of a NonTensorDataBase."


MSG_NAMES = (
    "Keys from the tensordict ({}) must correspond to the class attributes ({})."
)


class DataWriting(NonTensorOps):
    """The writing methods of :class:`NonTensorDataBase`."""

    if TYPE_CHECKING:

        def _to_stack(self) -> Any: ...
        def _put(self, value: object) -> None: ...
        @classmethod
        def _check_index(cls, index: object) -> None: ...
        def _sized(self, size: torch.Size) -> Self: ...

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write at an index. Only the value that is already there is allowed.

        Raises:
            IndexError: the index does not fit.
            ValueError: the value is another one, or no collection, tensor or number.
        """
        self._check_index(index)
        kinds = (CollectionProtocol, torch.Tensor, int, float)
        is_same = is_nothing(value) or self._is_value_of(value)
        if not is_same or not isinstance(value, kinds):
            raise ValueError(MSG_ONE_VALUE.format(type(self).__name__))
        _rust.index_plan(self._batch_size, index)

    def _is_value_of(self, value: object) -> bool:
        """Return whether ``value`` contains this value only."""
        if isinstance(value, NonTensorOps) and not value._is_one:
            return all(
                is_interchangeable(element, self.data) for element in value._flat()
            )
        return is_interchangeable(bare(value), self.data)

    def _check_item(self, size: torch.Size, value: object, at: object = ...) -> None:
        super()._check_item(size, value, at)
        if not self._is_memmap and not self._is_shared:
            return
        if not is_nothing(value) and not self._stays_for(bare(value)):
            raise RuntimeError(MSG_ONE_SHARED)

    def _stays_for(self, value: object) -> bool:
        """Return whether writing ``made`` to some elements changes nothing."""
        return value is self.data or is_interchangeable(value, self.data)

    def _written_at(self, at: object, value: Any) -> Any:
        if not self._batch_size:
            return self._written_whole(at, value)
        stack = self._to_stack()
        stack._write(at, value)
        if self._stays_for(bare(value)):
            return self
        size = _rust.index_shape(self._batch_size, at)
        self._check_item(size, value, at)
        is_stack = isinstance(value, NonTensorOps) and not value._is_one
        if is_stack and all(self._stays_for(element) for element in value._flat()):
            return self
        # An index that selects nothing writes nothing.
        return stack if size.numel() else self

    def _written_whole(self, at: object, value: object) -> Self:
        """Write the only element; return this data, or new data with the other value.

        Raises:
            RuntimeError: the index needs batch dims.
        """
        try:
            size = _rust.index_shape(self._batch_size, at)
        except IndexError:
            raise RuntimeError(MSG_NO_BATCH_DIMS.format(at)) from None
        self._check_item(size, value, at)
        new_value: Any = bare(value)
        if (
            is_nothing(value)
            or not size.numel()
            or is_interchangeable(new_value, self.data)
        ):
            return self
        result = self._sized(self._batch_size)
        result._put(new_value)
        return result

    def _preallocated(self, at: object, size: torch.Size) -> Self:
        return self._sized(size)

    def _takes(self, value: object) -> bool:
        return isinstance(value, NonTensorOps) and value._is_one

    def _copied(self, value: object) -> Any:
        if isinstance(value, NonTensorOps) and value._is_one:
            self._check_source(value)
            return value
        if isinstance(value, (list, NonTensorOps)):
            raise RuntimeError(MSG_COPY_OF_STACK)
        is_text = isinstance(value, (str, bytes))
        if isinstance(value, torch.Tensor) or (
            not is_text and tensor_of(value) is not None
        ):
            raise RuntimeError(MSG_COPY_OF_OTHER)
        self._check_source(value)
        data_class: Any = type(self)
        return data_class(value)

    def update(
        self, input_dict_or_td: object = None, *args: object, **kwargs: object
    ) -> Self:
        """Take over the value of other non-tensor data.

        Args:
            input_dict_or_td: the other data. None, or an empty collection, changes
                nothing.
            *args: ignored.
            **kwargs: ``inplace=True`` calls :meth:`update_`.

        Raises:
            AttributeError: the other object is not a collection.
            RuntimeError: this data is locked, or the other collection has entries.
            ValueError: the other data has a value for each element.
        """
        other = input_dict_or_td
        if other is None:
            return self
        if not isinstance(other, CollectionProtocol):
            raise AttributeError(MSG_NO_COLLECTION.format(type(self).__name__, other))
        if isinstance(other, NonTensorOps):
            if not other._is_one:
                raise ValueError(MSG_UPDATE_BY_STACK)
            if kwargs.get("inplace"):
                return self.update_(other)
            self._check_unlocked()
            self._put(other)
        elif not other.is_empty():
            raise RuntimeError(MSG_UPDATE_TYPE.format(type(other)))
        return self

    def update_(
        self, input_dict_or_td: object = None, *args: object, **kwargs: object
    ) -> Self:
        """Take over the value of other non-tensor data, also if this data is locked.

        Raises:
            RuntimeError: the other data has a value for each element, or is no
                non-tensor data.
        """
        other = input_dict_or_td
        if not isinstance(other, NonTensorOps):
            raise RuntimeError(MSG_COPY_OF_OTHER)
        if not other._is_one:
            raise RuntimeError(MSG_COPY_OF_STACK)
        self._put(other)
        return self

    def _write_back(self, result: object) -> None:
        """Take over the value of ``result``, which may be a stack of one value."""
        flat = result._flat() if isinstance(result, NonTensorOps) else ()
        if flat and all(value is flat[0] for value in flat):
            self._put(flat[0])
        else:
            super()._write_back(result)  # type: ignore[misc]

    def update_at_(
        self, input_dict_or_td: object, idx: object, *args: object, **kwargs: object
    ) -> Self:
        """Take over the value of other data, if the index is ``:`` or ``()``.

        Raises:
            RuntimeError: the index is another one, which would give elements different
                values. Or the other data has a value for each element, or is no
                non-tensor data.
        """
        if not isinstance(idx, (tuple, slice)) or idx not in ((), slice(None)):
            raise RuntimeError(MSG_PART)
        return self.update_(input_dict_or_td)

    def replace(self, *args: object, **kwargs: object) -> Any:
        """Return a copy with another value, given as ``data=``.

        Raises:
            ValueError: another name is given.
        """
        changes = replacements(args, kwargs)
        if isinstance(changes, NonTensorOps):
            # Its keys are the keys of an empty collection.
            return self._twin()
        if not changes:
            return self
        others = sorted(set(changes) - {"data"})
        if others:
            raise ValueError(MSG_NAMES.format(others, ["data"]))
        twin = self._twin()
        twin._put(changes["data"])
        return twin
