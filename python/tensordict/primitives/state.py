"""Read the four attributes of a collection."""

from __future__ import annotations

from typing import Any


def attributes(td: Any) -> dict[str, Any]:
    """A copy of the instance dictionary."""
    return td.__dict__.copy()
