"""Make entries of what is neither tensor nor collection, and stacks of values."""

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
"""The kinds of arrays that are no tensors: text, bytes, objects, dates and raw bytes."""


def non_tensor_of(
    value: object, size: Sequence[int] = ()
) -> NonTensorData | NonTensorStack | torch.Tensor:
    """The non-tensor entry that a value becomes; its batch size is still open.

    A list becomes a stack, with a batch dim for each depth at which all items are
    lists; with ``set_list_to_stack(False)``, and a tuple always, one array. An array
    whose shape begins with ``size``, the batch size where it is stored, becomes a stack.

    Raises:
        RuntimeError: the items of a list are stacks of different numbers of dims.
        ValueError: a tuple is no array.
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
    """Make a column with a value per row of an array of texts, dates or objects.

    Args:
        value: the array, whose leading dims are the rows. Texts become those of Python,
            and what dims are left is an array per row.
        size: the batch size ``[*B]`` of the rows.

    Returns:
        The stack, or None where ``value`` is no such array of these rows.
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


def stack_of_list(items: list[Any]) -> Any:
    """The stack of the items of a list, in which lists of numbers are tensors."""
    if not all(isinstance(item, list) for item in items):
        return stack_of(items, 0)
    members = []
    for item in items:
        tensor = tensor_of_sequence(item)
        member = stack_of_list(item) if tensor is None else NonTensorData(tensor)
        members.append(member)
    return stack_of(members, 0)


def stack_of(items: Sequence[Any], dim: int) -> NonTensorStack:
    """The stack of values, and of collections of values, along a new dim."""
    # Few types stand for many values.
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

    made: NonTensorStack = stacked(members, checked_dim(members, dim))
    return made


def stack_of_lists(items: list[Any]) -> Any:
    """The stack of nested lists."""
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
