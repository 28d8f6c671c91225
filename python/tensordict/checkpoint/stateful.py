"""A collection as a ``Stateful`` of ``torch.distributed.checkpoint``, with all its entries."""

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

MSG_VALUE = "A checkpoint of this collection cannot be saved. {}"
MSG_MISSING = "The checkpoint has no {!r}: was it saved from a CollectionState?"


class CollectionState:
    """Keeps what a collection holds in ``torch.distributed.checkpoint``.

    A collection itself is a ``Stateful``, too, but its state has the tensors alone. Here
    values that are no tensors are kept with them, as plain data without pickles. A load
    writes into the leaves and values that the collection has. Of a ``DTensor`` each rank
    saves and loads its part, with other placements and ranks as well.

    Args:
        td: the collection, of any kind.

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
            TypeError: a value can only be pickled.
        """
        walk = self._walk()
        state: dict[str, Any] = {LEAVES: walk.by_name()}
        try:
            state[VALUES] = describe_values(walk.values)
        except TypeError as error:
            raise TypeError(MSG_VALUE.format(error)) from error
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what was loaded, in place.

        Raises:
            KeyError: a leaf is missing, or the state is another one.
        """
        walk = self._walk()
        for name in (LEAVES, VALUES):
            if name not in state_dict:
                raise KeyMessageError(MSG_MISSING.format(name))
        loaded = state_dict[LEAVES]
        own = walk.by_name()
        missing = sorted(own.keys() - loaded.keys())
        if missing:
            raise KeyMessageError(MSG_MISSING.format(missing[0]))
        for name, leaf in own.items():
            # The loader has mostly written into the leaf itself.
            if loaded[name] is not leaf:
                leaf.detach().copy_(loaded[name])
        for place, td, key in walk.views:
            td.set_(key, walk.leaves[place])
        take_values(walk.values, bytes(state_dict[VALUES]))


class _StateWalk(Walk):
    """Collects leaves as they are, those that are sharded and those that are jagged."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def take(self, leaf: torch.Tensor, path: tuple[str, ...]) -> None:
        """Take a leaf, or the parts of a jagged one."""
        self.names.append(".".join(part.replace(".", "\\.") for part in path))
        self.leaves.append(leaf.values() if leaf.is_nested else leaf)

    def by_name(self) -> dict[str, torch.Tensor]:
        """The leaves by their names."""
        return dict(zip(self.names, self.leaves, strict=True))
