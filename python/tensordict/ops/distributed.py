"""Sending and receiving collections."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["DistributedOps"]


class DistributedOps(CollectionProtocol):
    """Sending and receiving collections."""
