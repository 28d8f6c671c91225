"""Check the arguments of a loader, and suggest ours for arguments of ``DataLoader``."""

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
    "The loader got rank={} and world_size={}, but its sampler already yields the part of "
    "rank={} of {}: leave out rank= and world_size=, or the sampler's own division."
)

MSG_MESH = "mesh= selects this rank's part, and {}: leave out one of the two."

NAMES_OF_DATA_LOADER = {
    "dataset": "the collection is the first argument",
    "num_workers": "use `workers=`. It is only needed for `transform=`; threads copy "
    "the rows without it",
    "collate_fn": "rows need no collating; `transform=` is called with each batch",
    "batch_sampler": "pass `sampler=` for the rows, and `batch_size` for a batch's size",
    "prefetch_factor": "use `prefetch=`, the number of batches of the whole loader",
    "multiprocessing_context": 'use `mp_start_method=`, with `backend="processes"`',
    "pin_memory_device": "`device=` is the device of the batches",
    "persistent_workers": "leave it out: processes persist unless they are forked",
    "worker_init_fn": "leave it out: each batch has its own seed in processes",
    "timeout": "leave it out: if a worker ends, an error ends the wait",
    "in_order": "leave it out: batches come in order",
}
"""The arguments of ``torch.utils.data.DataLoader``, and what to use here instead."""


def names_ours(init: Callable[P, None]) -> Callable[P, None]:
    """Make a constructor suggest our argument for an argument of ``DataLoader``."""

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs:
            if name in NAMES_OF_DATA_LOADER:
                msg = (
                    f"{name}= is an argument of DataLoader, not of BatchLoader: "
                    f"{NAMES_OF_DATA_LOADER[name]}."
                )
                raise TypeError(msg)
        init(*args, **kwargs)

    return checked


def checked_options(transform: object, backend: object) -> None:
    """Check the ``transform`` and ``backend`` arguments.

    Raises:
        TypeError: ``transform`` cannot be called.
        ValueError: there is no such backend.
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
    """Return the division of rows over ranks.

    Raises:
        TypeError, ValueError: the arguments contradict each other, or the sampler.
    """
    if uneven not in ("pad", "drop"):
        msg = f"uneven must be 'pad' or 'drop', got {uneven!r}."
        raise ValueError(msg)
    if (rank is None) != (world_size is None):
        msg = f"rank and world_size belong together, got {rank} and {world_size}."
        raise ValueError(msg)
    if mesh is not None:
        if rank is not None:
            reason = f"rank={rank} with world_size={world_size} does so as well"
            raise ValueError(MSG_MESH.format(reason))
        if shares is not None:
            reason = f"the sampler yields the part of rank={shares[1]} of {shares[0]}"
            raise ValueError(MSG_MESH.format(reason))
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
    """Return the number of neighbouring rows that a shuffle keeps together.

    Raises:
        TypeError, ValueError: the arguments contradict each other.
    """
    if shuffle not in (True, False, "blocks"):
        msg = f"shuffle must be True, False or 'blocks', got {shuffle!r}."
        raise ValueError(msg)
    if sampler is not None and shuffle:
        msg = "A sampler decides the order: leave out shuffle= or sampler=."
        raise ValueError(msg)
    if block_size is None:
        return _BLOCK_SIZE if shuffle == "blocks" else None
    if not shuffle:
        msg = "block_size= needs shuffle='blocks'."
        raise ValueError(msg)
    return checked_number("block_size", block_size, 1)
