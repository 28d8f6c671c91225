"""Find the part of a ``DTensor`` that a rank has, without importing that class."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["is_sharded", "local_part", "place_of"]

MSG_PARTIAL = "A DTensor with a partial placement has no values yet: redistribute it."


def is_sharded(value: object) -> bool:
    """Return whether a tensor is a ``DTensor``, without importing what defines it."""
    return hasattr(value, "placements") and hasattr(value, "device_mesh")


def local_part(value: Any) -> tuple[torch.Tensor, list[int], bool]:
    """Return the part of this rank, its offset, and whether this rank writes it."""
    if any(placement.is_partial() for placement in value.placements):
        raise TypeError(MSG_PARTIAL)
    coordinate = value.device_mesh.get_coordinate()
    if coordinate is None:
        return torch.empty(0, dtype=value.dtype), [0] * value.dim(), False
    is_first = all(
        place == 0 or not placement.is_replicate()
        for place, placement in zip(coordinate, value.placements, strict=True)
    )
    _, offsets = place_of(value)
    return value.to_local().detach(), list(offsets), is_first


def place_of(value: Any) -> tuple[Any, Any]:
    """The shape of what this rank has of a ``DTensor``, and where it begins."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(
        value.shape, value.device_mesh, value.placements
    )
