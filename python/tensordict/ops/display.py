"""How a collection prints."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["DisplayOps"]


class DisplayOps(CollectionProtocol):
    """How a collection prints."""
