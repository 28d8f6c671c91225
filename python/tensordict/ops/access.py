"""Reading and writing entries."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["AccessOps"]


class AccessOps(CollectionProtocol):
    """Reading and writing entries."""
