"""Convert a value that is neither tensor nor collection to an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.containers.nontensor.data import NonTensorData
from tensordict.containers.nontensor.joining import stacked
from tensordict.containers.nontensor.stack import NonTensorStack
from tensordict.primitives import options as options_primitives
from tensordict.primitives.convert import MSG_CONVERSION, tensor_of_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["non_tensor_of", "stack_of_array", "stack_of_list"]

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
    return NonTensorStack._of_cells(cells, torch.Size(size))


def stack_of_list(items: list[Any]) -> Any:
    """The stack of the items of a list, in which lists of numbers are tensors."""
    if not all(isinstance(item, list) for item in items):
        return NonTensorStack(*items)
    members = []
    for item in items:
        tensor = tensor_of_sequence(item)
        member = stack_of_list(item) if tensor is None else NonTensorData(tensor)
        members.append(member)
    return stacked(members, 0)
