"""Recycle the memory of batches that nobody has any more."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

__all__ = ["Buffer", "Buffers"]

_NUM_KEPT = 2
"""So many batches are waited for; memory that is held longer is given away."""

_use_count = torch._C._storage_Use_Count


class Buffer:
    """The memory of a batch.

    A consumer never sees its tensors, but others over the same memory: while one of them,
    a view of one, or a graph that needs one is alive, the storage counts more users.
    """

    def __init__(self, td: Any) -> None:
        self.td = td
        self.copied: Any = None
        """An event that a copy to another device has read it, or None."""
        self._uses: list[tuple[torch.Tensor, int, int, int]] = []
        for leaf in td.values(include_nested=True, leaves_only=True):
            storage = leaf.untyped_storage()._cdata
            place = leaf.data_ptr()
            self._uses.append((leaf, place, storage, _use_count(storage)))

    def is_free(self) -> bool:
        """Tell whether nobody but this buffer has its memory."""
        # Tensors that were sent to another process have moved to memory that both see.
        return all(
            leaf.data_ptr() == place and _use_count(storage) <= count
            for leaf, place, storage, count in self._uses
        )

    def wait(self) -> None:
        """Wait until a copy to another device has read it."""
        if self.copied is not None:
            self.copied.synchronize()
            self.copied = None

    def place(self, count: int) -> Any:
        """Return the memory of its first rows, to be written to."""
        return self.td if count == self.td.batch_size[0] else self.td[:count]

    def part(self, count: int) -> Any:
        """Return its first rows, as a collection of tensors of its own."""
        size = self.td.batch_size[0]
        return self.td.detach() if count == size else self.td[:count]


class Buffers:
    """Make buffers, and find those that can be used again.

    Args:
        row: a collection with one row, of which the buffers have many.
        batch_size: how many.
        is_recycled: whether buffers are used again.
        is_pinned: whether they lie in memory from which devices copy without waiting.
    """

    def __init__(
        self, row: Any, batch_size: int, is_recycled: bool, is_pinned: bool
    ) -> None:
        self._row = row
        self._batch_size = batch_size
        self._is_recycled = is_recycled
        self._is_pinned = is_pinned
        self._given: deque[Buffer] = deque()

    def take(self) -> Buffer:
        """Return a buffer that nobody uses."""
        for buffer in self._given:
            if buffer.is_free():
                self._given.remove(buffer)
                buffer.wait()
                return buffer
        if len(self._given) > _NUM_KEPT:
            self._given.popleft()
        return self._made()

    def give(self, buffer: Buffer) -> None:
        """Note that a consumer has the memory of a buffer, and may let it go."""
        if self._is_recycled:
            self._given.append(buffer)

    def _made(self) -> Buffer:
        size = self._batch_size
        pin = self._is_pinned

        def enlarged(leaf: torch.Tensor) -> torch.Tensor:
            return torch.empty(
                (size, *leaf.shape[1:]), dtype=leaf.dtype, pin_memory=pin
            )

        row = self._row
        sizes = [size, *row.batch_size[1:]]
        return Buffer(row.apply(enlarged, batch_size=sizes, names=row.names))
