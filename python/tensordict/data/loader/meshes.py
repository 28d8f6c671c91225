"""Find a rank's part of the rows from the data-parallel dimensions of a device mesh."""

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
"""Names of mesh dimensions whose ranks get different rows, as in training libraries."""

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
"""Names of mesh dimensions whose ranks get the same rows."""

MSG_NO_MESH = "mesh must be a torch DeviceMesh, got {}{}."

MSG_DIMS = (
    "The mesh has the dims {}, and it is unknown whether ranks along {} get different rows "
    "or the same rows. Pass the data-parallel part, as in "
    'mesh=mesh["dp"]: along a mesh of one dim, ranks get different rows, unless the name '
    'means model parallelism, such as "tp".'
)

MSG_UNNAMED = (
    "The mesh has {} dims without names, so it is unknown along which dims ranks get "
    "different rows. Make it with mesh_dim_names=, as in init_device_mesh(..., "
    'mesh_dim_names=("dp", "tp")), or pass rank= and world_size=.'
)

MSG_OUTSIDE = (
    "This rank is not in the mesh {}, so it has no part of the rows. Make the loader only on "
    "the ranks of the mesh, or pass rank= and world_size=."
)

MSG_NO_DATA = (
    "No dim of the mesh {} is data-parallel, and it has {} of {} ranks: the others would "
    'get the same rows. Pass the data-parallel part, as in mesh=mesh["dp"], or the mesh '
    "of all ranks."
)


def share_of_mesh(mesh: DeviceMesh) -> tuple[int, int]:
    """Return this rank's part of each step, and the number of parts.

    Raises:
        TypeError: ``mesh`` is not a ``DeviceMesh``.
        ValueError: the data-parallel dimensions are unknown, or this rank is not in the
            mesh.
    """
    _check(mesh)
    shape, coordinate = tuple(mesh.shape), mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(MSG_OUTSIDE.format(_told(mesh)))
    dims = _data_dims(mesh)
    world = torch.distributed.get_world_size()
    if not dims and mesh.size() < world:
        raise ValueError(MSG_NO_DATA.format(_told(mesh), mesh.size(), world))
    rank, world_size = 0, 1
    for dim in dims:
        rank, world_size = rank * shape[dim] + coordinate[dim], world_size * shape[dim]
    return rank, world_size


def _check(mesh: object) -> None:
    hint = None
    if torch.distributed.is_available():
        from torch.distributed.device_mesh import DeviceMesh

        if isinstance(mesh, DeviceMesh):
            return
        if isinstance(mesh, str):
            hint = f' ({mesh!r}: pass the part of that name, as in mesh["dp"])'
    raise TypeError(MSG_NO_MESH.format(type(mesh).__name__, hint or ""))


def _data_dims(mesh: DeviceMesh) -> list[int]:
    """Return the dimensions along which ranks get different rows."""
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
    """Return names and sizes of the dimensions, for messages."""
    names = mesh.mesh_dim_names or range(mesh.ndim)
    sizes = zip(names, mesh.shape, strict=True)
    return f"({', '.join(f'{name}={size}' for name, size in sizes)})"
