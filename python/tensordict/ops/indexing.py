"""Reading and writing by index and by mask."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["IndexingOps"]


class IndexingOps(CollectionProtocol):
    """Reading and writing by index and by mask."""
