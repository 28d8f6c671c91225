"""Stacks of values made of values, of collections of values, and of nested lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.containers.lazy.construct import MSG_NEGATIVE_DIM, checked_dim
from tensordict.containers.nontensor.base import MSG_NO_NON_TENSOR, NonTensorOps
from tensordict.containers.nontensor.data import NonTensorData
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.containers.nontensor.stack import NonTensorStack

__all__ = ["stack_of", "stack_of_lists"]

MSG_STACK_DIM = "Stack dim {} is too big for batch size {}."


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
        stack_of_lists(item) if isinstance(item, list) else _member(item)
        for item in items
    ]
    return stack_of(members, 0)


def _member(item: object) -> Any:
    return item if isinstance(item, NonTensorOps) else NonTensorData(item)
