"""Choosing, renaming and regrouping entries."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["KeysOps"]


class KeysOps(CollectionProtocol):
    """Choosing, renaming and regrouping entries."""
