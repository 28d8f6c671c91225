"""Moving between devices."""

from __future__ import annotations

from tensordict.protocol import CollectionProtocol

__all__ = ["DeviceOps"]


class DeviceOps(CollectionProtocol):
    """Moving between devices."""
