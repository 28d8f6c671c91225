"""Locks, and writing back at the end of a with block."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["LockingOps"]


class LockingOps(CollectionProtocol):
    """Locks, and writing back at the end of a with block."""
