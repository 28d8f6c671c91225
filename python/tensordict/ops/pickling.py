"""Pickles of tensordicts, without state that belongs to one process."""

from __future__ import annotations

from typing import Any

from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import pickles

__all__ = ["PicklingOps"]


class PicklingOps(CollectionProtocol):
    """Pickles of tensordicts."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the instance dictionary without state that belongs to this process.

        Examples:
            >>> sorted(TensorDict(a=torch.zeros(3)).__getstate__())
            ['_batch_size', '_device', '_td_dim_names', '_tensordict']
        """
        return pickles.state_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, also one of tensordict 0.15, and lock it again."""
        pickles.restore(self, state)
