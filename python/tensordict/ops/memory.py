"""Shared and pinned memory, sizes in bytes."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["MemoryOps"]


class MemoryOps(CollectionProtocol):
    """Shared and pinned memory, sizes in bytes."""
