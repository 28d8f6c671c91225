"""Reducing over batch dims, features, or everything."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["ReductionsOps"]


class ReductionsOps(CollectionProtocol):
    """Reducing over batch dims, features, or everything."""
