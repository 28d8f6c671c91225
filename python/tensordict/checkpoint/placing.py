"""Placements of tensors over ranks that are restored without one to be like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.storage.sharded import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.storage.sharded import Sharded

__all__ = ["placed_like"]


def placed_like(
    parameter: Sharded, shape: Sequence[int], placements: Sequence[str]
) -> Any:
    """Return a ``DTensor`` on ``meta`` over the mesh of a parameter.

    Args:
        parameter: the parameter, a ``DTensor``.
        shape: the shape of the result.
        placements: where it was, as a step names placements. It is replicated where the
            mesh has another number of dims.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = parameter.device_mesh
    if len(placements) != mesh.ndim:
        placements = ["R"] * mesh.ndim
    made: list[Any] = []
    for each in placements:
        dim, _, factor = each.removeprefix("S").partition("/")
        if each == "R":
            made.append(Replicate())
        elif factor:
            made.append(_StridedShard(int(dim), split_factor=int(factor)))
        else:
            made.append(Shard(int(dim)))
    ranks = tuple(mesh.mesh.reshape(-1).tolist())
    layout = Layout(tuple(shape), ranks, tuple(mesh.mesh.shape), tuple(placements))
    runs = layout.runs(tuple(mesh.get_coordinate()))
    local = [sum(count for _, count in each) for each in runs]
    whole = torch.empty(tuple(shape), device="meta")
    return DTensor.from_local(
        torch.empty(local, device="meta"),
        mesh,
        made,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
