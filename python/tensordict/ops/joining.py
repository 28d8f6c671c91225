"""Stacking and concatenating collections and entries."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["JoiningOps"]


class JoiningOps(CollectionProtocol):
    """Stacking and concatenating collections and entries."""
