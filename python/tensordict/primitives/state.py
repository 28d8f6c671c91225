"""Read the four attributes of a collection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict.primitives.protocol import CollectionProtocol


def attributes(td: CollectionProtocol) -> dict[str, Any]:
    """A copy of the instance dictionary."""
    return td.__dict__.copy()
