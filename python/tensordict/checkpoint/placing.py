"""Placements for restored tensors that have no existing ``DTensor`` as a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.storage.sharded import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.tensor import DTensor

    from tensordict.storage.sharded import Sharded

__all__ = ["placed_like"]


def placed_like(
    parameter: Sharded, shape: Sequence[int], placements: Sequence[str]
) -> DTensor:
    """Return a ``DTensor`` on ``meta`` over the mesh of a parameter.

    Args:
        parameter: the parameter, a ``DTensor``.
        shape: the shape of the result.
        placements: the saved placements. If the mesh has another number of dimensions,
            the result is replicated.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = parameter.device_mesh
    if len(placements) != mesh.ndim:
        placements = ["R"] * mesh.ndim
    torch_placements: list[Any] = []
    for placement in placements:
        dim, _, factor = placement.removeprefix("S").partition("/")
        if placement == "R":
            torch_placements.append(Replicate())
        elif factor:
            torch_placements.append(_StridedShard(int(dim), split_factor=int(factor)))
        else:
            torch_placements.append(Shard(int(dim)))
    ranks = tuple(mesh.mesh.reshape(-1).tolist())
    layout = Layout(tuple(shape), ranks, tuple(mesh.mesh.shape), tuple(placements))
    runs = layout.runs(tuple(mesh.get_coordinate()))
    local = [sum(count for _, count in dim_runs) for dim_runs in runs]
    meta_tensor = torch.empty(tuple(shape), device="meta")
    return DTensor.from_local(
        torch.empty(local, device="meta"),
        mesh,
        torch_placements,
        run_check=False,
        shape=meta_tensor.shape,
        stride=meta_tensor.stride(),
    )
