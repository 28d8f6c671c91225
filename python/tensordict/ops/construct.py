"""Making new collections."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["ConstructOps"]


class ConstructOps(CollectionProtocol):
    """Making new collections."""
