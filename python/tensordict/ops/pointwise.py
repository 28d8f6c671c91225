"""Elementwise arithmetic and comparison."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["PointwiseOps"]


class PointwiseOps(CollectionProtocol):
    """Elementwise arithmetic and comparison."""
