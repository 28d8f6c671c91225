"""Converting to plain Python, NumPy and other containers."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["ConvertOps"]


class ConvertOps(CollectionProtocol):
    """Converting to plain Python, NumPy and other containers."""
