"""Changing the shape of the batch."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["ShapeOps"]


class ShapeOps(CollectionProtocol):
    """Changing the shape of the batch."""
