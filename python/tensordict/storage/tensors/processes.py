"""Storages of memory-mapped tensors, sent to other processes.

A plain view of a mapped tensor is an ordinary tensor. To send it, torch moves its storage to shared
memory: torch copies the bytes, and the storage becomes the copy. A storage over a file would lose
its file: later writes to any tensor over it would silently miss the file. So the functions here
send a storage over a file as the name of the file.

A storage that torch receives keeps a descriptor open. A program that keeps the batches of a
``DataLoader`` would run out of descriptors. So leaves that its workers send are received as a
mapping without a descriptor. torch treats such a mapping as ordinary memory, and moves it to
shared memory before it sends it on.
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
"""The storages that map memory from a worker, by the identity of the memory."""


def install() -> None:
    """Register the functions that send storages. Calling it again changes nothing."""
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
    """Let the receiver of leaves from a ``DataLoader`` worker keep no descriptors.

    In other processes the function does nothing: a tensor that is sent on keeps its memory.
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
        # A storage that is shared by now has been moved to other memory, to be sent on.
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
    except RuntimeError:  # /proc is missing, or belongs to another user
        make: Any = torch.UntypedStorage
        return make._new_shared_fd_cpu(fd, num_bytes)
    # torch treats a storage that it has mapped as shared, and would send a closed descriptor.
    # It treats the memory of an array as ordinary, and moves it.
    array = torch.empty(0, dtype=torch.uint8).set_(mapped).numpy()
    storage: Any = torch.from_numpy(array).untyped_storage()
    # The array keeps the mapping valid for a user's arrays after torch has moved the storage.
    storage._mapping = array
    return storage
