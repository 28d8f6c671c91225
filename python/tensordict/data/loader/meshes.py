"""Find the part of a rank by the data-parallel dims of a device mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["DATA_DIMS", "MODEL_DIMS", "share_of_mesh"]

DATA_DIMS = frozenset(
    {
        "batch",
        "data",
        "data_parallel",
        "ddp",
        "dp",
        "dp_replicate",
        "dp_shard",
        "dp_shard_in_ep",
        "dp_shard_mod_ep",
        "fsdp",
        "hsdp",
        "replicate",
        "shard",
    }
)
"""The names of dims whose ranks have different rows, as training libraries give them."""

MODEL_DIMS = frozenset(
    {
        "context",
        "context_parallel",
        "cp",
        "model",
        "model_parallel",
        "mp",
        "pipe",
        "pipeline",
        "pipeline_parallel",
        "pp",
        "sequence",
        "sequence_parallel",
        "sp",
        "stage",
        "tensor",
        "tensor_parallel",
        "tp",
    }
)
"""The names of dims whose ranks work on the same rows."""

MSG_NO_MESH = "mesh must be a DeviceMesh of torch, got {}{}."

MSG_DIMS = (
    "The mesh has the dims {}, and the names do not say whether ranks along {} get "
    "different rows or the same ones. Pass the data-parallel part, as in "
    'mesh=mesh["dp"]: over a mesh of one dim rows are dealt whatever its name is.'
)

MSG_UNNAMED = (
    "The mesh has {} dims without names, which do not say along which of them ranks get "
    "different rows. Make it with mesh_dim_names=, as in init_device_mesh(..., "
    'mesh_dim_names=("dp", "tp")), or pass rank= and world_size=.'
)

MSG_OUTSIDE = (
    "This rank is none of the mesh {}, so it has no part of its rows. Make the loader on "
    "the ranks of the mesh alone, or pass rank= and world_size=."
)

MSG_NO_DATA = (
    "No dim of the mesh {} is data-parallel, and it has {} of {} ranks: the others would "
    'get the same rows. Pass the data-parallel part, as in mesh=mesh["dp"], or the mesh '
    "of all ranks."
)


def share_of_mesh(mesh: DeviceMesh) -> tuple[int, int]:
    """Return which part of each step this rank has, and how many parts there are.

    Raises:
        TypeError: it is no mesh.
        ValueError: it does not say which of its dims are data-parallel, or has no place
            for this rank.
    """
    _check(mesh)
    shape, place = tuple(mesh.shape), mesh.get_coordinate()
    if place is None:
        raise ValueError(MSG_OUTSIDE.format(_told(mesh)))
    dims = _data_dims(mesh)
    world = torch.distributed.get_world_size()
    if not dims and mesh.size() < world:
        raise ValueError(MSG_NO_DATA.format(_told(mesh), mesh.size(), world))
    rank, world_size = 0, 1
    for dim in dims:
        rank, world_size = rank * shape[dim] + place[dim], world_size * shape[dim]
    return rank, world_size


def _check(mesh: object) -> None:
    found = None
    if torch.distributed.is_available():
        from torch.distributed.device_mesh import DeviceMesh

        if isinstance(mesh, DeviceMesh):
            return
        if isinstance(mesh, str):
            found = f' ({mesh!r}: pass the part of that name, as in mesh["dp"])'
    raise TypeError(MSG_NO_MESH.format(type(mesh).__name__, found or ""))


def _data_dims(mesh: DeviceMesh) -> list[int]:
    """Return the dims along which ranks have different rows."""
    names = mesh.mesh_dim_names
    if names is None:
        if mesh.ndim > 1:
            raise ValueError(MSG_UNNAMED.format(mesh.ndim))
        return [0]
    unknown = [name for name in names if name not in DATA_DIMS | MODEL_DIMS]
    if unknown and len(names) > 1:
        raise ValueError(MSG_DIMS.format(list(names), unknown))
    return [dim for dim, name in enumerate(names) if name not in MODEL_DIMS]


def _told(mesh: DeviceMesh) -> str:
    """Return names and sizes of the dims, for messages."""
    names = mesh.mesh_dim_names or range(mesh.ndim)
    sizes = zip(names, mesh.shape, strict=True)
    return f"({', '.join(f'{name}={size}' for name, size in sizes)})"
