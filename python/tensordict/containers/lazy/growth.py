"""Add members to a stack."""

from __future__ import annotations

from typing import Any

import torch

from tensordict.containers.lazy.construct import (
    MSG_NEW_SIZE,
    MSG_STACK_DIM,
    merged_batch_size,
)
from tensordict.containers.lazy.state import StackState
from tensordict.primitives.errors import locked_error
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["GrowthOps"]

MSG_NEW_TYPE = "Expected new value to be TensorDictBase instance but got {} instead."
MSG_NEW_DEVICE = "Devices differ: stack has device={}, new value has device={}."


class GrowthOps(StackState):
    """The methods that add members to a stack."""

    def append(self, tensordict: CollectionProtocol) -> None:
        """Add a member at the end.

        Raises:
            RuntimeError: the stack is locked.
            TypeError: ``tensordict`` is no collection.
            ValueError: its batch size is not that of the members.

        Examples:
            >>> stack = LazyStackedTensorDict(stack_dim=0)
            >>> stack.append(TensorDict(a=torch.zeros(3)))
            >>> stack.batch_size
            torch.Size([1])
        """
        self.insert(len(self.tensordicts), tensordict)

    def insert(self, index: int, tensordict: CollectionProtocol) -> None:
        """Add a member before the one at ``index``. See :meth:`append`."""
        self._refuse_locked()
        if not isinstance(tensordict, CollectionProtocol):
            raise TypeError(MSG_NEW_TYPE.format(type(tensordict)))
        self._add(index, [tensordict])

    def extend(self, tensordict: Any) -> None:
        """Add several members at the end: a list of them, or those of another stack."""
        self._refuse_locked()
        if isinstance(tensordict, GrowthOps) and (
            tensordict.stack_dim == self.stack_dim
        ):
            added = list(tensordict.tensordicts)
        elif isinstance(tensordict, CollectionProtocol):
            added = list(tensordict.unbind(self.stack_dim))
        else:
            added = list(tensordict)
        if not all(isinstance(each, CollectionProtocol) for each in added):
            raise TypeError(MSG_NEW_TYPE.format([type(each) for each in added]))
        self._add(len(self.tensordicts), added)

    def _refuse_locked(self) -> None:
        if self.is_locked and (self.tensordicts or self.__dict__.get("_is_locked")):
            raise locked_error(self)

    def _add(self, index: int, added: list[Any]) -> None:
        if not added:
            return
        # Nothing here looks at the members there are: a stack grows by many appends.
        known = self.tensordicts[0] if self.tensordicts else added[0]
        for each in added:
            if each.device != known.device:
                raise ValueError(MSG_NEW_DEVICE.format(known.device, each.device))
            if each.batch_size != known.batch_size and not self._takes(each):
                message = MSG_NEW_SIZE.format(known.batch_size, each.batch_size)
                raise ValueError(message)
        dim = self.stack_dim
        if self.tensordicts:
            size = list(self._batch_size)
            # Some may have been put into the list itself.
            size[dim] = len(self.tensordicts) + len(added)
            self._batch_size = torch.Size(size)
        elif dim > len(known.batch_size):
            raise RuntimeError(MSG_STACK_DIM.format(dim, known.batch_size))
        else:
            self._batch_size = merged_batch_size(added, dim)
        # In place: whoever holds the list sees the new members.
        self.tensordicts[index:index] = added

    def _takes(self, member: Any) -> bool:
        """Return whether a member differs from the others only where those differ."""
        size = list(self._batch_size)
        del size[self.stack_dim]
        own = member.batch_size
        return len(own) == len(size) and all(
            length in (-1, other) for length, other in zip(size, own, strict=True)
        )
