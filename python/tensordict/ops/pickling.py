"""Separate what goes into a pickle from what belongs to this process."""

from __future__ import annotations

from typing import Any, Self

from tensordict import _rust
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import pickles

__all__ = ["PicklingOps"]


class PicklingOps(CollectionProtocol):
    """The pickles of a collection."""

    def __getstate__(self) -> dict[str, Any]:
        """The instance dictionary, less what belongs to this process.

        Examples:
            >>> sorted(TensorDict(a=torch.zeros(3)).__getstate__())
            ['_batch_size', '_device', '_td_dim_names', '_tensordict']
        """
        return pickles.state_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a pickle, ours or one of tensordict 0.15; lock it again."""
        pickles.restore(self, state)

    def clear_refs_for_compile_(self) -> Self:
        """Forget which operation this tensordict came from, for a ``with`` block.

        Compiled code can then return it without holding the source.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), batch_size=[3]).unsqueeze(0)
            >>> td.clear_refs_for_compile_() is td
            True
        """
        for collection in _rust.containers(self):
            collection.__dict__.pop("_last_op", None)
        return self
