"""Sending mapped memory to other processes.

A plain view of a mapped tensor is an ordinary tensor. To send one, torch moves its
storage to shared memory: it copies the bytes and puts the copy in the storage's place.
For a storage over a file that would cut every tensor that uses it off from the file,
silently, stores included. So storages over files are sent as the name of the file.

What torch receives keeps the descriptor of its memory for as long as it lives. A program
that keeps the batches of a ``DataLoader`` would run out of descriptors, so leaves of
collections that its workers send are received as a mapping only. For torch that is
ordinary memory, which it moves to shared memory before it sends it on.
"""

from __future__ import annotations

import os
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import (
    SharedCache,
    StorageWeakRef,
    fd_id,
    rebuild_storage_fd,
    reduce_storage,
    storage_from_cache,
)
from torch.utils.data import get_worker_info

from tensordict import _rust
from tensordict.storage.tensors.mapped import MemoryMappedTensor, reduce_shared

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["install", "leave_descriptors"]

_RECEIVED = SharedCache()
"""The storages that are mappings of what a worker sent, by the identity of its memory."""


def install() -> None:
    """Register how storages are sent; calling it again changes nothing."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
    ForkingPickler.register(MemoryMappedTensor, reduce_shared)


def _reduce_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    if storage.device.type == "cpu":
        address = storage.data_ptr()
        found = _rust.mapping_of(address) if address else None
        if found is not None:
            path, offset, num_bytes, is_shared = found
            if is_shared and offset == 0 and num_bytes == storage.nbytes():
                return _rebuild_storage, (path, num_bytes)
    reduced: tuple[Any, ...] = reduce_storage(storage)
    if reduced[0] is rebuild_storage_fd and hasattr(storage, "_leaves_descriptor"):
        return _rebuild_mapping, reduced[1][1:]
    return reduced


def _rebuild_storage(path: str, num_bytes: int) -> torch.UntypedStorage:
    mapped: torch.Tensor = _rust.map_file(path, "uint8", [num_bytes], None)
    return mapped.untyped_storage()


def leave_descriptors(leaves: Iterable[Any]) -> None:
    """Let a process that receives leaves from a worker of a ``DataLoader`` keep no descriptor.

    In any other process nothing happens: what is sent on and on stays one memory.
    """
    if get_worker_info() is None:
        return
    for leaf in leaves:
        parts = [leaf]
        if leaf.is_nested and leaf.layout is torch.jagged:
            parts = [leaf.values(), leaf.offsets()]
        for part in parts:
            if part.device.type == "cpu" and part.layout is torch.strided:
                storage: Any = part.untyped_storage()
                storage._leaves_descriptor = True


def _rebuild_mapping(duplicate: Any, num_bytes: int) -> torch.UntypedStorage:
    fd = duplicate.detach()
    try:
        key = fd_id(fd)
        storage: Any = storage_from_cache(torch.UntypedStorage, key)
        if storage is not None:
            return storage
        cached = _RECEIVED.get(key)
        if cached is not None:
            storage = torch.UntypedStorage._new_with_weak_ptr(cached.cdata)
        # One that is shared was moved since, to be sent on: it is another memory.
        if storage is None or storage.is_shared():
            storage = _map_descriptor(fd, num_bytes)
            _RECEIVED[key] = StorageWeakRef(storage)
        return storage
    finally:
        os.close(fd)


def _map_descriptor(fd: int, num_bytes: int) -> torch.UntypedStorage:
    try:
        path = f"/proc/self/fd/{fd}"
        mapped: Any = torch.UntypedStorage.from_file(path, True, num_bytes)
    except RuntimeError:  # there is no such folder, or it belongs to another user
        make: Any = torch.UntypedStorage
        return make._new_shared_fd_cpu(fd, num_bytes)
    # torch takes a mapping of its own for shared, and would send the descriptor that it has
    # closed. An array is memory like any other, which it moves.
    array = torch.empty(0, dtype=torch.uint8).set_(mapped).numpy()
    storage: Any = torch.from_numpy(array).untyped_storage()
    # Arrays of a user stay valid when torch has moved the storage.
    storage._mapping = array
    return storage
