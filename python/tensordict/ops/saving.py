"""Saving to files and loading from them."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["SavingOps"]


class SavingOps(CollectionProtocol):
    """Saving to files and loading from them."""
