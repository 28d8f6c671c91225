"""Calling a function on every leaf."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["ApplyOps"]


class ApplyOps(CollectionProtocol):
    """Calling a function on every leaf."""
