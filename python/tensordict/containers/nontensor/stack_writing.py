"""Writing to a stack of values: at an index, all values, and new rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict.containers.nontensor.base import (
    NonTensorOps,
    expands_to,
)
from tensordict.containers.nontensor.data import NonTensorData, NonTensorDataBase
from tensordict.containers.nontensor.equality import is_nothing
from tensordict.containers.nontensor.metadata import MetaData
from tensordict.containers.nontensor.positions import Layout, places_at
from tensordict.ops.copying import replacements
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.index_items import refuse_fractions
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["StackWriting"]

MSG_ONLY_DATA = "only 'data' keys are supported for NonTensorData."
MSG_NEW_TYPE = (
    "Expected new value to be TensorDictBase instance but got {} instead: only a "
    "NonTensorStack can become rows of another one."
)
MSG_NEW_SIZE = (
    "Batch sizes in tensordicts differs: a row of the stack has batch_size={}, new_value "
    "has batch_size={}."
)
MSG_COPIED_SIZE = (
    "the values have the batch size {}, and the stack that they are copied into has {}."
)
MSG_RESIZED = (
    "Received a new batch size {} with an existing batch_size {} in a lazy TD. "
    "Modifying the batch size of a lazy representation of a tensordict is not "
    "permitted. Consider instantiating the tensordict first by calling `td = "
    "td.to_tensordict()` before resetting the batch size."
)
MSG_NOT_SUPPORTED = "The data type {} is not supported within NonTensorStack.update"


class StackWriting(NonTensorOps):
    """The writing methods of :class:`NonTensorStack`."""

    if TYPE_CHECKING:
        stack_dim: int
        _layout: Layout | None

        def _sized(self, size: torch.Size, cells: list[Any]) -> Self: ...

    # Members --------------------------------------------------------------------------

    def insert(self, index: int, tensordict: CollectionProtocol) -> None:
        """Insert a row, which is a stack of values, before the row at ``index``.

        Raises:
            RuntimeError: the stack is locked.
            TypeError: ``tensordict`` is not a stack of values.
            ValueError: ``tensordict`` does not have the batch size of a row.
        """
        self._insert_rows(index, [tensordict])

    def append(self, tensordict: Any) -> None:
        """Add a row at the end. See :meth:`insert`."""
        self._insert_rows(self._batch_size[self.stack_dim], [tensordict])

    def extend(self, tensordict: Any) -> None:
        """Add rows of a list or a stack at the end. See :meth:`insert`."""
        rows = tensordict
        if isinstance(tensordict, CollectionProtocol):
            rows = tensordict.unbind(self.stack_dim)
        self._insert_rows(self._batch_size[self.stack_dim], list(rows))

    def _insert_rows(self, index: int, rows: list[Any]) -> None:
        self._check_unlocked()
        for row in rows:
            if not isinstance(row, StackWriting):
                raise TypeError(MSG_NEW_TYPE.format(type(row)))
            self._check_row_size(row.batch_size)
        dim = self.stack_dim
        members: list[Any] = [*self.unbind(dim)]
        members[index:index] = rows
        self._take(self._non_tensor_stack_type(*members, stack_dim=dim))

    def _check_row_size(self, row_size: torch.Size) -> None:
        size, dim = self._batch_size, self.stack_dim
        row = torch.Size([*size[:dim], *size[dim + 1 :]])
        if row_size != row:
            raise ValueError(MSG_NEW_SIZE.format(row, row_size))

    def _take(self, other: Any) -> None:
        """Take over the values and batch size of another stack."""
        self._cells, self._layout = other._cells, other._layout
        self._batch_size = other._batch_size

    # Writing --------------------------------------------------------------------------

    def __setitem__(self, index: object, value: object) -> None:
        """Write a value, or a list or collection of values, at an index.

        Raises:
            IndexError: the index does not fit.
            RuntimeError: the values do not have the shape of the indexed part, or the
                part is empty.
            ValueError: a row that is one value would get different values.
        """
        if isinstance(index, str) or (
            isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
        ):
            self.set(index, value)
            return
        refuse_fractions(index)
        self._write(index, value)

    def set(self, key: object, item: object, *args: object, **kwargs: object) -> Self:
        """Set the values, under the key ``"data"``.

        A list or a stack has a value for each element. Any other object is one value
        for all elements.

        Raises:
            KeyError: the key is another one.
            RuntimeError: the stack is locked, or the number of values is wrong.
        """
        if key not in ("data", ("data",)):
            raise KeyMessageError(MSG_ONLY_DATA)
        self._check_unlocked()
        self._write((), item)
        return self

    def set_at_(
        self, key: object, value: object, index: Any, *, non_blocking: bool = False
    ) -> Self:
        """Write a value, or a list of values, at an index, under the key ``"data"``.

        Raises:
            IndexError: the index does not fit.
            KeyError: the key is another one.
        """
        refuse_fractions(index)
        _rust.index_shape(self._batch_size, index)
        if key not in ("data", ("data",)):
            raise KeyMessageError(MSG_ONLY_DATA)
        self._write(index, value)
        return self

    def _write(self, index: object, value: Any) -> None:
        count = len(self._cells)
        flat, size = places_at(count, self._layout, self._batch_size, index)
        if isinstance(value, list):
            value = self._column_of(value, size)
        elif is_nothing(value) and expands_to(value.batch_size, size):
            return
        if isinstance(value, StackWriting) and -1 not in value._batch_size:
            value = value._spread_to(size)
        self._check_item(size, value, index)
        if isinstance(value, StackWriting):
            self._put_cells(flat, list(value._flat()))
            return
        if isinstance(value, NonTensorDataBase):
            value = value.data
        self._put_cells(flat, [value] * len(flat))

    def _column_of(self, values: list[Any], size: torch.Size) -> Any:
        """Make a stack of a list; nested lists are rows if they fit ``size``."""
        if len(size) > 1:
            stack = self._non_tensor_stack_type._from_nested(values, None)
            if stack._batch_size == size:
                return stack
        return self._non_tensor_stack_type._of_cells(values, torch.Size([len(values)]))

    def _spread_to(self, size: torch.Size) -> Any:
        """Broadcast to ``size`` like a tensor; return this stack if it does not fit."""
        own_size = self._batch_size
        if own_size == size or not expands_to(own_size, size):
            return self
        return self._moved("expand", (size,), size)

    def _written_at(self, at: object, value: object) -> Self:
        self._write(at, value)
        return self

    def _preallocated(self, at: object, size: torch.Size) -> Self:
        stack = self._sized(size, [None] * size.numel())
        stack._write(at, self)
        return stack

    def _takes(self, value: object) -> bool:
        if isinstance(value, StackWriting):
            return value._batch_size == self._batch_size
        return isinstance(value, NonTensorData)

    def _along(self, size: torch.Size) -> Any:
        """Repeat each value along the dims that ``size`` has behind this batch size."""
        own_size = self._batch_size
        extra = len(size) - len(own_size)
        if extra <= 0 or own_size != size[: len(own_size)]:
            return self
        return self._moved(_spread_behind, (extra, size), size)

    def _copied(self, value: Any) -> Any:
        if isinstance(value, list):
            value = self._non_tensor_stack_type.from_list(value)
        elif isinstance(value, np.ndarray):
            value = self._non_tensor_type._rows_of(value, self._batch_size)
        if isinstance(value, (int, float)):
            value = torch.as_tensor(value)
        if isinstance(value, StackWriting):
            value = value._along(self._batch_size)
            if value._batch_size != self._batch_size:
                raise ValueError(
                    MSG_COPIED_SIZE.format(value._batch_size, self._batch_size)
                )
        elif isinstance(value, (torch.Tensor, MetaData)):
            raise NotImplementedError(MSG_NOT_SUPPORTED.format(type(value)))
        elif not isinstance(value, NonTensorData):
            value = NonTensorData(value)
        self._check_source(value)
        return value

    def update(
        self, input_dict_or_td: object = None, *args: object, **kwargs: object
    ) -> Self:
        """Take over the values of other non-tensor data.

        Args:
            input_dict_or_td: a stack of as many values, or one value for all elements.
                None changes nothing.
            *args: ignored.
            **kwargs: ``inplace=True`` calls :meth:`update_`.

        Raises:
            NotImplementedError: the argument is not non-tensor data.
            RuntimeError: this stack is locked.
            ValueError: the argument is a stack of another batch size.
        """
        if input_dict_or_td is None:
            return self
        if not kwargs.get("inplace"):
            self._check_unlocked()
        return self.update_(input_dict_or_td)

    def update_(
        self, input_dict_or_td: object = None, *args: object, **kwargs: object
    ) -> Self:
        """Take over other values, also if this stack is locked. See :meth:`update`."""
        if input_dict_or_td is None:
            return self
        if not isinstance(input_dict_or_td, NonTensorOps):
            raise NotImplementedError(MSG_NOT_SUPPORTED.format(type(input_dict_or_td)))
        self._write((), self._copied(input_dict_or_td))
        return self

    def update_at_(
        self, input_dict_or_td: object, idx: object, *args: object, **kwargs: object
    ) -> Self:
        """Write a value, or a stack of values, at an index.

        Raises:
            NotImplementedError: the argument is not non-tensor data.
            RuntimeError: the argument is a stack of another shape.
        """
        value = input_dict_or_td
        refuse_fractions(idx)
        _rust.index_shape(self._batch_size, idx)
        if not isinstance(value, NonTensorOps):
            raise NotImplementedError(MSG_NOT_SUPPORTED.format(type(value)))
        self._write(idx, value)
        return self

    def replace(self, *args: object, **kwargs: object) -> Any:
        """Return a copy with the values of another stack. See :meth:`update`."""
        changes = replacements(args, kwargs)
        is_values = isinstance(changes, NonTensorOps)
        if not is_values and not changes:
            return self
        return self._twin().update(changes)


def _spread_behind(places: torch.Tensor, extra: int, size: torch.Size) -> torch.Tensor:
    """Repeat each element along the dims behind its own in ``size``."""
    return places[(..., *[None] * extra)].expand(size)
