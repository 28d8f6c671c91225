"""Moves the tensors of a collection to one block of shared memory.

torch shares each storage by its own descriptor, and by default a process may open 1,024 of them.
Here all storages of a collection become ranges of one storage, so a collection needs one descriptor
in a process and in each message, for any number of leaves.

The tensors stay the same objects: their data is replaced, as an assignment to ``data`` does. This is
correct only if nothing else refers to the old memory. If other tensors or arrays use a storage,
torch shares it, which moves it for all of them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives import special

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["max_descriptors", "share"]

resource: Any = None
with contextlib.suppress(ImportError):  # Windows lacks the module
    import resource

_ALIGNMENT = 64

_LARGE = 1 << 28
"""The size in bytes from which a storage is shared by itself. While storages move to the arena, the
old and the new memory exist side by side: for large storages that is too much."""

_MOVED = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""The classes of tensors that hold no state besides the view of their storage."""


class _Group:
    """The tensors of a collection that are views of one storage."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.tensors: dict[int, torch.Tensor] = {}
        self.first: int = storage.nbytes()
        self.end = 0

    def add(self, tensor: torch.Tensor) -> None:
        self.tensors[id(tensor)] = tensor
        if tensor.numel() == 0:
            return
        size = tensor.element_size()
        first = int(tensor.storage_offset()) * size
        spans = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((count - 1) * stride for count, stride in spans)
        # Round down, so that each tensor keeps its alignment in the arena.
        self.first = min(self.first, first - first % _ALIGNMENT)
        self.end = max(self.end, first + (last + 1) * size)

    def is_alone(self) -> bool:
        """Return whether the storage is small and no other tensor or array uses it."""
        if self.end - self.first >= _LARGE:
            return False
        # `self.storage` itself is one use.
        num_uses: int = torch._C._storage_Use_Count(self.storage._cdata)
        return num_uses == 1 + len(self.tensors) and self.storage.resizable()

    def move(self, arena: torch.UntypedStorage, offset: int) -> None:
        """Copy the bytes of the tensors into the arena, and point the tensors at the copy."""
        count = max(0, self.end - self.first)
        if count:
            source = _bytes_of(self.storage, self.first, count)
            _bytes_of(arena, offset, count).copy_(source)
        for tensor in self.tensors.values():
            size = tensor.element_size()
            start = offset // size
            if tensor.numel():
                start += int(tensor.storage_offset()) - self.first // size
            view = torch.empty(0, dtype=tensor.dtype)
            tensor.data = view.set_(arena, start, tensor.shape, tensor.stride())


def share(tensors: Iterable[torch.Tensor], max_descriptors: int | None = None) -> bool:
    """Move CPU tensors to shared memory, in place.

    Tensors that are shared or memory-mapped already stay where they are.

    Args:
        tensors: the leaves of a collection.
        max_descriptors: the most storages that other tensors use as well to share. Each
            takes a descriptor. If there are more, none of them is shared.

    Returns:
        bool: whether all tensors are shared now.

    Raises:
        RuntimeError: the system has no shared memory or no descriptors left.
    """
    groups: dict[int, _Group] = {}
    others: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.is_shared():
            continue
        if not _is_view(tensor):
            others[id(tensor)] = tensor
            continue
        storage = tensor.untyped_storage()
        if tensor.numel() and _rust.mapping_of(storage.data_ptr()) is not None:
            continue
        group = groups.get(storage._cdata)
        if group is None:
            group = groups[storage._cdata] = _Group(storage)
        group.add(tensor)
    alone = [group for group in groups.values() if group.is_alone()]
    if len(alone) == 1:
        # torch shares a single storage with one descriptor as well.
        alone = []
    alone_ids = {id(group) for group in alone}
    used = [group for group in groups.values() if id(group) not in alone_ids]
    groups.clear()
    if alone:
        _share_alone(alone)
    for tensor in others.values():
        tensor.share_memory_()
    if max_descriptors is not None and len(used) > max_descriptors:
        return False
    for group in used:
        next(iter(group.tensors.values())).share_memory_()
    return True


def max_descriptors() -> int:
    """Return the number of descriptors for one message: an eighth of the limit."""
    if resource is None:
        return 64
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8


def _share_alone(groups: list[_Group]) -> None:
    offsets = []
    end = 0
    for group in groups:
        offsets.append(end)
        end += -(-max(0, group.end - group.first) // _ALIGNMENT) * _ALIGNMENT
    arena = torch.UntypedStorage._new_shared(max(end, 1))
    # Popping frees the old memory of each group before the next group is copied.
    groups.reverse()
    for offset in offsets:
        groups.pop().move(arena, offset)


def _is_view(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds no state besides the view of its storage."""
    return (
        type(tensor) in _MOVED
        and special.is_strided(tensor)
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _bytes_of(storage: torch.UntypedStorage, start: int, count: int) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage, start, (count,), (1,))
