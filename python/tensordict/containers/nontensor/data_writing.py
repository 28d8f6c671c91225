"""Writing to one value: all of it, or at an index."""

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
    "value does not match the previous. Elements that take values of their own need a "
    "NonTensorStack: call maybe_to_stack() before sharing or saving."
)
MSG_UPDATE_BY_STACK = (
    "Cannot update a NonTensorDataBase object with a NonTensorStack. Call "
    "`non_tensor_data.maybe_to_stack()` before calling update()."
)
MSG_UPDATE_TYPE = "Unexpected type {}: it has entries, and a value has none."
MSG_NO_COLLECTION = (
    "A {} takes the value of another one. {!r} is none: it has no attribute 'is_empty'."
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
    """The writes to a :class:`NonTensorDataBase`."""

    if TYPE_CHECKING:

        def _to_stack(self) -> Any: ...
        def _put(self, value: object) -> None: ...
        @classmethod
        def _check_index(cls, index: object) -> None: ...
        def _sized(self, size: torch.Size) -> Self: ...

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write a value at an index, which must be a collection of the one there.

        Raises:
            IndexError: the index does not fit.
            ValueError: it is another one, or no collection.
        """
        self._check_index(index)
        kinds = (CollectionProtocol, torch.Tensor, int, float)
        is_same = is_nothing(value) or self._is_value_of(value)
        if not is_same or not isinstance(value, kinds):
            raise ValueError(MSG_ONE_VALUE.format(type(self).__name__))
        _rust.index_plan(self._batch_size, index)

    def _is_value_of(self, value: object) -> bool:
        """Tell whether this is all that ``value`` has."""
        if isinstance(value, NonTensorOps) and not value._is_one:
            return all(is_interchangeable(each, self.data) for each in value._flat())
        return is_interchangeable(bare(value), self.data)

    def _check_item(self, size: torch.Size, value: object, at: object = ...) -> None:
        super()._check_item(size, value, at)
        if not self._is_memmap and not self._is_shared:
            return
        if not is_nothing(value) and not self._stays_for(bare(value)):
            raise RuntimeError(MSG_ONE_SHARED)

    def _stays_for(self, made: object) -> bool:
        """Tell whether this is left as it is where ``made`` is written to some elements."""
        return made is self.data or is_interchangeable(made, self.data)

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
        if is_stack and all(self._stays_for(each) for each in value._flat()):
            return self
        # An index that selects nothing writes nothing.
        return stack if size.numel() else self

    def _written_whole(self, at: object, value: object) -> Any:
        """This, whose one element is written, or one with another value.

        Raises:
            RuntimeError: the index is one of batch dims.
        """
        try:
            size = _rust.index_shape(self._batch_size, at)
        except IndexError:
            raise RuntimeError(MSG_NO_BATCH_DIMS.format(at)) from None
        self._check_item(size, value, at)
        made: Any = bare(value)
        if is_nothing(value) or not size.numel() or is_interchangeable(made, self.data):
            return self
        result = self._sized(self._batch_size)
        result._put(made)
        return result

    def _preallocated(self, at: object, size: torch.Size) -> Any:
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
        made: Any = type(self)
        return made(value)

    def update(
        self, input_dict_or_td: object = None, *args: object, **kwargs: object
    ) -> Self:
        """Take the value of another one.

        Args:
            input_dict_or_td: the other one. None, or an empty collection, changes
                nothing.
            *args: have no effect.
            **kwargs: with ``inplace=True`` this is :meth:`update_`.

        Raises:
            RuntimeError: this one is locked, or the other one has entries.
            ValueError: the other one has a value for each element.
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
        """Take the value of another one, which a lock allows.

        Raises:
            RuntimeError: the other one has a value for each element, or is none.
        """
        other = input_dict_or_td
        if not isinstance(other, NonTensorOps):
            raise RuntimeError(MSG_COPY_OF_OTHER)
        if not other._is_one:
            raise RuntimeError(MSG_COPY_OF_STACK)
        self._put(other)
        return self

    def _write_back(self, result: object) -> None:
        """Take the value of ``result``, which can be a stack that has it everywhere."""
        flat = result._flat() if isinstance(result, NonTensorOps) else ()
        if flat and all(value is flat[0] for value in flat):
            self._put(flat[0])
        else:
            super()._write_back(result)  # type: ignore[misc]

    def update_at_(
        self, input_dict_or_td: object, idx: object, *args: object, **kwargs: object
    ) -> Self:
        """Take the value of another one, if the index is ``:`` or ``()``.

        Raises:
            RuntimeError: it is another index: all elements have one value. Or the other
                one has a value for each element, or is none.
        """
        if not isinstance(idx, (tuple, slice)) or idx not in ((), slice(None)):
            raise RuntimeError(MSG_PART)
        return self.update_(input_dict_or_td)

    def replace(self, *args: object, **kwargs: object) -> Any:
        """One like this with another value, given as ``data=``.

        Raises:
            ValueError: there is another name.
        """
        changes = replacements(args, kwargs)
        if isinstance(changes, NonTensorOps):
            # Its keys are those of an empty collection.
            return self._twin()
        if not changes:
            return self
        others = sorted(set(changes) - {"data"})
        if others:
            raise ValueError(MSG_NAMES.format(others, ["data"]))
        made = self._twin()
        made._put(changes["data"])
        return made
