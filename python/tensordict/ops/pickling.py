"""What of a collection goes into a pickle."""

from __future__ import annotations

from typing import Any

from tensordict.interop import pickling
from tensordict.protocol import CollectionProtocol

__all__ = ["PicklingOps"]


class PicklingOps(CollectionProtocol):
    """What of a collection goes into a pickle."""

    def __getstate__(self) -> dict[str, Any]:
        """The instance dictionary, less what belongs to this process.

        Examples:
            >>> list(TensorDict(a=torch.zeros(3)).__getstate__())
            ['_tensordict', '_device', '_batch_size', '_td_dim_names']
        """
        return pickling.state_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a pickle, ours or the published release's; lock it again."""
        pickling.restore(self, state)
