"""Save a tensordict with ``torch.distributed.checkpoint``, including non-tensor data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.distributed.plans import Walk
from tensordict.distributed.values import describe_values, take_values
from tensordict.primitives.errors import KeyMessageError

if TYPE_CHECKING:
    import torch

    from tensordict.containers.collection import TensorCollection

__all__ = ["CollectionState"]

VALUES = "values"
LEAVES = "leaves"

MSG_VALUE = "A checkpoint of this tensordict cannot be saved. {}"
MSG_MISSING = "The checkpoint has no {!r}: was it saved from a CollectionState?"


class CollectionState:
    """A wrapper that saves a tensordict with ``torch.distributed.checkpoint`` (DCP).

    A tensordict can be passed to DCP directly, but then its non-tensor data is left
    out. This wrapper stores that as plain data, without pickle. A load writes into the
    leaves and non-tensor data that the tensordict has. Each rank saves and loads its
    shard of a ``DTensor``, also with other placements and another number of ranks.

    Args:
        td: the tensordict, of any class.

    Examples:
        >>> from tensordict.checkpoint.dcp import CollectionState
        >>> td = TensorDict(x=torch.ones(2), note="epoch 3")
        >>> state = CollectionState(td).state_dict()  # as dcp.save does
        >>> other = TensorDict(x=torch.zeros(2), note="")
        >>> CollectionState(other).load_state_dict(state)  # as dcp.load does
        >>> other["x"], other["note"]
        (tensor([1., 1.]), 'epoch 3')
    """

    def __init__(self, td: TensorCollection) -> None:
        self.td: Any = td

    def _walk(self) -> _StateWalk:
        walk = _StateWalk()
        walk.enter(self.td, ())
        return walk

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save: the leaves by their keys, and the non-tensor data.

        Raises:
            TypeError: a value can be stored only as a pickle.
        """
        walk = self._walk()
        state: dict[str, Any] = {LEAVES: walk.by_name()}
        try:
            state[VALUES] = describe_values(walk.values)
        except TypeError as error:
            raise TypeError(MSG_VALUE.format(error)) from error
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Write a loaded state into the tensordict, in place.

        Raises:
            KeyError: a leaf is missing, or the state was not saved by this class.
        """
        walk = self._walk()
        for name in (LEAVES, VALUES):
            if name not in state_dict:
                raise KeyMessageError(MSG_MISSING.format(name))
        loaded = state_dict[LEAVES]
        own_leaves = walk.by_name()
        missing = sorted(own_leaves.keys() - loaded.keys())
        if missing:
            raise KeyMessageError(MSG_MISSING.format(missing[0]))
        for name, leaf in own_leaves.items():
            # DCP usually writes into the leaf itself.
            if loaded[name] is not leaf:
                leaf.detach().copy_(loaded[name])
        for place, td, key in walk.views:
            td.set_(key, walk.leaves[place])
        take_values(walk.values, bytes(state_dict[VALUES]))


class _StateWalk(Walk):
    """A walk that collects leaves as they are, sharded and jagged ones included."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def take(self, leaf: torch.Tensor, path: tuple[str, ...]) -> None:
        """Collect a leaf; for a jagged one, its values."""
        self.names.append(".".join(part.replace(".", "\\.") for part in path))
        self.leaves.append(leaf.values() if leaf.is_nested else leaf)

    def by_name(self) -> dict[str, torch.Tensor]:
        """Return the leaves by their names."""
        return dict(zip(self.names, self.leaves, strict=True))
