"""Casting between dtypes."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["DtypeOps"]


class DtypeOps(CollectionProtocol):
    """Casting between dtypes."""
