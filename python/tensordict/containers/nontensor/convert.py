"""Conversion of Python objects to entries, and of lists to stacks of values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.containers.lazy.construct import MSG_NEGATIVE_DIM, checked_dim
from tensordict.containers.nontensor.base import MSG_NO_NON_TENSOR, NonTensorOps
from tensordict.containers.nontensor.data import NonTensorData
from tensordict.primitives import options as options_primitives
from tensordict.primitives.arrays import refuse_masked
from tensordict.primitives.convert import MSG_CONVERSION, tensor_of_sequence
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.containers.nontensor.stack import NonTensorStack

__all__ = [
    "non_tensor_of",
    "stack_of",
    "stack_of_array",
    "stack_of_list",
    "stack_of_lists",
]

MSG_STACK_DIM = "Stack dim {} is too big for batch size {}."

_COLUMN_KINDS = "USOMmVT"
"""The dtype kinds of non-tensor arrays: text, bytes, objects, dates and raw bytes."""


def non_tensor_of(
    value: object, size: Sequence[int] = ()
) -> NonTensorData | NonTensorStack | torch.Tensor:
    """Convert an object to an entry, whose batch size is not set yet.

    A list becomes a stack, with a batch dim for each level at which all items are
    lists. After ``set_list_to_stack(False)``, a list becomes one array, as a tuple
    always does. An array whose shape begins with ``size``, the batch size of the
    collection, becomes a stack.

    Raises:
        RuntimeError: the items of a list are stacks with different numbers of dims.
        ValueError: numpy cannot make an array of the list or tuple.
    """
    if isinstance(value, list) and options_primitives.list_to_stack():
        return stack_of_list(value)
    if isinstance(value, (list, tuple)):
        refuse_masked(value)
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ValueError(MSG_CONVERSION.format(type(value))) from error
        if array.dtype.kind in "biufc":
            return torch.as_tensor(array)
        return NonTensorData(array)
    stack = stack_of_array(value, size)
    return NonTensorData(value) if stack is None else stack


def stack_of_array(value: object, size: Sequence[int]) -> NonTensorStack | None:
    """Make a stack with a value for each row of an array of texts, dates or objects.

    Args:
        value: the array, whose leading dims are the rows. Texts become Python strings.
            If further dims remain, each value is an array.
        size: the batch size ``[*B]`` of the rows.

    Returns:
        The stack, or None if ``value`` is not such an array with these rows.
    """
    if not (
        isinstance(value, np.ndarray) and size and options_primitives.list_to_stack()
    ):
        return None
    dims = len(size)
    if value.dtype.kind not in _COLUMN_KINDS or value.dtype.names is not None:
        return None
    if value.shape[:dims] != tuple(size) or 0 in size:
        return None
    rows = value.reshape(-1, *value.shape[dims:])
    as_python = rows.ndim == 1 and value.dtype.kind in "USTO"
    cells = rows.tolist() if as_python else list(rows)
    stack: NonTensorStack = CollectionProtocol._non_tensor_stack_type._of_cells(
        cells, torch.Size(size)
    )
    return stack


def stack_of_list(items: list[Any]) -> NonTensorStack:
    """Make a stack of the items of a list, with lists of numbers as tensors."""
    if not all(isinstance(item, list) for item in items):
        return stack_of(items, 0)
    members = []
    for item in items:
        tensor = tensor_of_sequence(item)
        member = stack_of_list(item) if tensor is None else NonTensorData(tensor)
        members.append(member)
    return stack_of(members, 0)


def stack_of(items: Sequence[Any], dim: int) -> NonTensorStack:
    """Stack values, and collections of values, along a new dim."""
    # Many values have few types, so only the types are checked.
    if not any(issubclass(kind, CollectionProtocol) for kind in set(map(type, items))):
        size = torch.Size([len(items)])
        if dim not in (0, -1):
            message = MSG_NEGATIVE_DIM.format(dim) if dim < 0 else MSG_STACK_DIM
            raise RuntimeError(message.format(dim, size))
        stack: NonTensorStack = CollectionProtocol._non_tensor_stack_type._of_cells(
            list(items), size
        )
        return stack
    members: list[Any] = []
    for item in items:
        if not isinstance(item, NonTensorOps):
            if isinstance(item, CollectionProtocol):
                raise RuntimeError(MSG_NO_NON_TENSOR)
            item = NonTensorData(item)
        members.append(item)
    from tensordict.containers.nontensor.joining import stacked

    joined: NonTensorStack = stacked(members, checked_dim(members, dim))
    return joined


def stack_of_lists(items: list[Any]) -> NonTensorStack:
    """Make a stack of nested lists."""
    if not any(isinstance(item, (list, CollectionProtocol)) for item in items):
        return stack_of(items, 0)
    members = [
        stack_of_lists(item)
        if isinstance(item, list)
        else item
        if isinstance(item, NonTensorOps)
        else NonTensorData(item)
        for item in items
    ]
    return stack_of(members, 0)
