"""Check the arguments of a loader, and name ours for those of ``DataLoader``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec

import torch

from tensordict.data.loader.meshes import share_of_mesh
from tensordict.data.loader.order import Dealing, checked_number
from tensordict.primitives.deprecation import warn_caller

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh

    from tensordict.data.loader.iterated import Shares
    from tensordict.data.loader.order import Uneven

__all__ = [
    "NAMES_OF_DATA_LOADER",
    "checked_block_size",
    "checked_options",
    "dealing_of",
    "names_ours",
    "pins",
]

P = ParamSpec("P")

_BLOCK_SIZE = 64

MSG_SHARES = (
    "The loader is asked for the part of rank={} of world_size={}, and its sampler gives "
    "that of rank={} of {}: leave rank= and world_size= out, or the parts of the sampler."
)

MSG_MESH = (
    "The loader is asked for the part of this rank of a mesh, and {}: leave mesh= out, or "
    "the other."
)

NAMES_OF_DATA_LOADER = {
    "dataset": "the collection is the first argument",
    "num_workers": "the name here is `workers=`; rows are copied without any, and workers "
    "call `transform=`",
    "collate_fn": "rows need no collating; `transform=` is called with each batch",
    "batch_sampler": "`sampler=` gives the rows, and `batch_size` says how many are a batch",
    "prefetch_factor": "the name here is `prefetch=`, in batches of the loader",
    "multiprocessing_context": "the name here is `mp_start_method=`, with "
    '`backend="processes"`',
    "pin_memory_device": "`device=` says where batches go",
    "persistent_workers": "leave it out: processes that are not forked stay anyway",
    "worker_init_fn": "leave it out: each batch has a seed of its own in processes",
    "timeout": "leave it out: an error ends the wait for a worker",
    "in_order": "leave it out: batches come in order",
}
"""The names that ``torch.utils.data.DataLoader`` has, and what is said here instead."""


def names_ours(init: Callable[P, None]) -> Callable[P, None]:
    """Let a constructor say what is said here instead of an argument of ``DataLoader``."""

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs:
            if name in NAMES_OF_DATA_LOADER:
                msg = (
                    f"{name}= is an argument of DataLoader, and not of BatchLoader: "
                    f"{NAMES_OF_DATA_LOADER[name]}."
                )
                raise TypeError(msg)
        init(*args, **kwargs)

    return checked


def checked_options(transform: object, backend: object) -> None:
    """Check arguments that have no other place.

    Raises:
        TypeError, ValueError: one is none that is described.
    """
    if transform is not None and not callable(transform):
        msg = f"transform must be callable, got {type(transform).__name__}."
        raise TypeError(msg)
    if backend not in ("threads", "processes"):
        msg = f"backend must be 'threads' or 'processes', got {backend!r}."
        raise ValueError(msg)


def pins(pin_memory: bool | None, device: torch.device | None) -> bool:
    """Return whether batches are pinned."""
    if pin_memory is None:
        return device is not None and device.type == "cuda"
    if pin_memory and not torch.cuda.is_available():
        warn_caller(
            "pin_memory=True needs CUDA, which is not available here: batches are not "
            "pinned.",
            UserWarning,
        )
        return False
    return pin_memory


def dealing_of(
    batch_size: int,
    rank: int | None,
    world_size: int | None,
    drop_last: bool,
    uneven: Uneven,
    shares: Shares | None,
    mesh: DeviceMesh | None = None,
) -> Dealing:
    """Return who has which rows of a step.

    Raises:
        TypeError, ValueError: the arguments contradict themselves, or the sampler.
    """
    if uneven not in ("pad", "drop"):
        msg = f"uneven must be 'pad' or 'drop', got {uneven!r}."
        raise ValueError(msg)
    if (rank is None) != (world_size is None):
        msg = f"rank and world_size belong together, got {rank} and {world_size}."
        raise ValueError(msg)
    if mesh is not None:
        if rank is not None:
            said = f"for that of rank={rank} of world_size={world_size}"
            raise ValueError(MSG_MESH.format(said))
        if shares is not None:
            said = f"its sampler gives that of rank={shares[1]} of {shares[0]}"
            raise ValueError(MSG_MESH.format(said))
        rank, world_size = share_of_mesh(mesh)
    if shares is not None:
        if rank is not None and (world_size, rank) != shares:
            msg = MSG_SHARES.format(rank, world_size, shares.rank, shares.num_replicas)
            raise ValueError(msg)
        world_size, rank = shares
    if rank is None or world_size is None:
        rank, world_size = 0, 1
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
    world_size = checked_number("world_size", world_size, 1)
    rank = checked_number("rank", rank, 0)
    if rank >= world_size:
        msg = f"rank must be below world_size, got {rank} of {world_size}."
        raise ValueError(msg)
    return Dealing(batch_size, rank, world_size, drop_last, uneven)


def checked_block_size(
    shuffle: object, block_size: int | None, sampler: object
) -> int | None:
    """Return how many neighbours a shuffle keeps together.

    Raises:
        TypeError, ValueError: the arguments contradict themselves.
    """
    if shuffle not in (True, False, "blocks"):
        msg = f"shuffle must be True, False or 'blocks', got {shuffle!r}."
        raise ValueError(msg)
    if sampler is not None and shuffle:
        msg = "A sampler decides the order: it excludes shuffle."
        raise ValueError(msg)
    if block_size is None:
        return _BLOCK_SIZE if shuffle == "blocks" else None
    if not shuffle:
        msg = "block_size= is of a shuffled epoch: it needs shuffle='blocks'."
        raise ValueError(msg)
    return checked_number("block_size", block_size, 1)
