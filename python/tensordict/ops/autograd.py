"""Gradients of the leaves."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["AutogradOps"]


class AutogradOps(CollectionProtocol):
    """Gradients of the leaves."""
