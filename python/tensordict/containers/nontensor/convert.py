"""What a value that is neither tensor nor collection becomes as an entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensordict import _options
from tensordict.containers.nontensor.data import NonTensorData
from tensordict.containers.nontensor.joining import stacked
from tensordict.containers.nontensor.stack import NonTensorStack
from tensordict.interop.convert import MSG_CONVERSION, tensor_of_sequence

__all__ = ["non_tensor_of", "stack_of_list"]


def non_tensor_of(value: Any) -> NonTensorData | NonTensorStack | torch.Tensor:
    """The non-tensor entry that a value becomes; its batch size is still open.

    A list becomes a stack, with a batch dim for each depth at which all items are
    lists; with ``set_list_to_stack(False)``, and a tuple always, one array.

    Raises:
        RuntimeError: the items of a list are stacks of different numbers of dims.
        ValueError: a tuple is no array.
    """
    if isinstance(value, list) and _options.list_to_stack():
        return stack_of_list(value)
    if isinstance(value, (list, tuple)):
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise ValueError(MSG_CONVERSION.format(type(value))) from error
        if value.dtype.kind in "biufc":
            return torch.as_tensor(value)
    return NonTensorData(value)


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
