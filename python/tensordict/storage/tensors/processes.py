"""Sending mapped memory to other processes.

A plain view of a mapped tensor is an ordinary tensor. To send one, torch moves its
storage to shared memory: it copies the bytes and puts the copy in the storage's place.
For a storage over a file that would cut every tensor that uses it off from the file,
silently, stores included. So storages over files are sent as the name of the file.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage

from tensordict import _rust
from tensordict.storage.tensors.mapped import MemoryMappedTensor, reduce_shared

__all__ = ["install"]


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
    return reduce_storage(storage)


def _rebuild_storage(path: str, num_bytes: int) -> torch.UntypedStorage:
    mapped: torch.Tensor = _rust.map_file(path, "uint8", [num_bytes], None)
    return mapped.untyped_storage()
