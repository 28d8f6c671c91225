"""Batch size and dimension names."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["BatchOps"]


class BatchOps(CollectionProtocol):
    """Batch size and dimension names."""
