"""Parameters of modules as collections, and back."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["ModulesOps"]


class ModulesOps(CollectionProtocol):
    """Parameters of modules as collections, and back."""
