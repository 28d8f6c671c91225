"""The torch functions that collections take part in."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["TorchDispatchOps"]


class TorchDispatchOps(CollectionProtocol):
    """The torch functions that collections take part in."""
