"""Recycle the memory of batches that are no longer used."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

__all__ = ["Buffer", "Buffers"]

_NUM_KEPT = 2
"""The most batches in use that are remembered; memory held longer is not recycled."""

_use_count = torch._C._storage_Use_Count


class Buffer:
    """The memory of a batch.

    A consumer never gets these tensors, but other tensors over the same memory. While
    one of them, a view of one, or a graph that needs one is alive, the use count of the
    storage is higher.
    """

    def __init__(self, td: Any) -> None:
        self.td = td
        self.copied: Any = None
        """The CUDA event after which a copy to a device has read the buffer, or None."""
        self._uses: list[tuple[torch.Tensor, int, int, int]] = []
        for leaf in td.values(include_nested=True, leaves_only=True):
            storage = leaf.untyped_storage()._cdata
            place = leaf.data_ptr()
            self._uses.append((leaf, place, storage, _use_count(storage)))

    def is_free(self) -> bool:
        """Return whether no tensor outside of this buffer uses its memory."""
        # A tensor that was sent to another process has moved to shared memory.
        return all(
            leaf.data_ptr() == place and _use_count(storage) <= count
            for leaf, place, storage, count in self._uses
        )

    def wait(self) -> None:
        """Wait until a copy to a device has read the memory."""
        if self.copied is not None:
            self.copied.synchronize()
            self.copied = None

    def place(self, count: int) -> Any:
        """Return the first ``count`` rows, to write to."""
        return self.td if count == self.td.batch_size[0] else self.td[:count]

    def part(self, count: int) -> Any:
        """Return the first ``count`` rows as new tensors over the same memory."""
        size = self.td.batch_size[0]
        return self.td.detach() if count == size else self.td[:count]


class Buffers:
    """The buffers of an epoch: creates them, and finds unused ones.

    Args:
        row: a tensordict of one row, as a template.
        batch_size: the number of rows of a buffer.
        is_recycled: whether to reuse buffers.
        is_pinned: whether to allocate pinned memory.
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
        """Return an unused buffer."""
        for buffer in self._given:
            if buffer.is_free():
                self._given.remove(buffer)
                buffer.wait()
                return buffer
        if len(self._given) > _NUM_KEPT:
            self._given.popleft()
        return self._made()

    def give(self, buffer: Buffer) -> None:
        """Remember a buffer that a consumer uses now, to reuse it later."""
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
