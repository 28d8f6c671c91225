"""Copy rows out of mapped blocks of a cache by native code, without a thread of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tensordict.storage.remote.mapped_blocks import blocks_between
from tensordict.storage.remote.objects import PiecedObject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict import _rust
    from tensordict.storage.remote.cache import BlockCache
    from tensordict.storage.remote.mapped_blocks import MappedBlocks
    from tensordict.storage.remote.tensor import RemoteTensor

__all__ = ["MappedRows", "RowCopy"]

_NOTED_TOGETHER: Final = 32
"""The use of blocks is noted once for so many batches: it takes longer than a small batch."""


class RowCopy:
    """A batch that native code copies out of mapped blocks.

    Args:
        ticket: the native copy.
        is_current: whether no block has changed since the copy began.
        read_again: reads the rows another way.
    """

    def __init__(
        self,
        ticket: _rust.GatherTicket,
        is_current: Callable[[], bool],
        read_again: Callable[[], None],
    ) -> None:
        self._ticket = ticket
        self._is_current = is_current
        self._read_again = read_again

    def done(self) -> bool:
        """Return True: no batch of a cache waits for a network."""
        return True

    def result(self) -> None:
        """Wait for the rows; read them again if a block has changed meanwhile."""
        is_copied = self._ticket.wait()
        if not (is_copied and self._is_current()):
            self._read_again()


class _Leaf:
    """A remote tensor, and a tensor over the mapped blocks of its object."""

    def __init__(self, leaf: RemoteTensor, blocks: MappedBlocks) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            shape, dtype = leaf.shape, leaf.dtype
        self.blocks = blocks
        self.offset = leaf._offset
        self.row_bytes = leaf.num_bytes // max(1, shape[0])
        memory = torch.from_numpy(blocks.window(leaf._offset, leaf.num_bytes))
        self.tensor: torch.Tensor = memory.view(dtype).view(shape)

    def blocks_of(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the numbers of the blocks that have some rows, in their order."""
        return blocks_between(self.offset + rows * self.row_bytes, self.row_bytes)


class MappedRows:
    """Tensors over the mapped blocks of a cache.

    A tensor has the bytes of a row if :meth:`versions` finds the blocks of the row.

    Args:
        cache: the cache of all objects.
        leaves: remote tensors, each in one object, with bytes, and with a row at least.
    """

    def __init__(self, cache: BlockCache, leaves: Sequence[RemoteTensor]) -> None:
        self._cache = cache
        self._sources = list(leaves)
        self._leaves: list[_Leaf] = []
        self._blocks: list[MappedBlocks] = []
        self._generation: object = None
        self._unnoted: list[np.ndarray[Any, Any]] = []

    @classmethod
    def of(cls, leaves: Sequence[RemoteTensor]) -> MappedRows | None:
        """Make them of remote tensors; return None if one of them is in no cache."""
        caches = {id(leaf._object.cache): leaf._object.cache for leaf in leaves}
        cache = next(iter(caches.values()), None)
        are_plain = all(
            leaf.num_bytes and not isinstance(leaf._object, PiecedObject)
            for leaf in leaves
        )
        return cls(cache, leaves) if cache and len(caches) == 1 and are_plain else None

    def tensors(self) -> list[torch.Tensor] | None:
        """Return the tensors; None if this process has not mapped every object yet."""
        generation = self._cache.refreshed()
        if self._generation is generation:
            return [leaf.tensor for leaf in self._leaves]
        found = [self._cache.mapped_now(leaf._object) for leaf in self._sources]
        blocks = [each for each in found if each is not None]
        if len(blocks) < len(found):
            return None
        pairs = zip(self._sources, blocks, strict=True)
        self._leaves = [_Leaf(*pair) for pair in pairs]
        self._blocks = list(dict.fromkeys(blocks))
        self._generation, self._unnoted = generation, []
        return [leaf.tensor for leaf in self._leaves]

    def versions(self, rows: np.ndarray[Any, Any]) -> list[int] | None:
        """Return the versions of the blocks; None if one that has a row is missing.

        Args:
            rows: the numbers of the rows, not negative.
        """
        versions = []
        partial = set()
        for each in self._blocks:
            # A thread that maps blocks marks them before it has looked at them.
            if not each.lock.acquire(blocking=False):
                return None
            try:
                versions.append(each.version)
                if not each.is_complete():
                    partial.add(each)
            finally:
                each.lock.release()
        for leaf in self._leaves if partial else ():
            is_there = leaf.blocks not in partial or leaf.blocks.has(
                leaf.blocks_of(rows)
            )
            if not is_there:
                return None
        self._note_use(rows)
        return versions

    def is_current(self, generation: object, versions: list[int]) -> bool:
        """Return whether no block has changed since a call of :meth:`versions`."""
        return self._cache.refreshed() is generation and versions == [
            each.version for each in self._blocks
        ]

    @property
    def generation(self) -> object:
        """The mapping of the cache that the tensors are over."""
        return self._generation

    def _note_use(self, rows: np.ndarray[Any, Any]) -> None:
        self._unnoted.append(rows)
        if len(self._unnoted) < _NOTED_TOGETHER:
            return
        some, self._unnoted = np.concatenate(self._unnoted), []
        for leaf in self._leaves:
            blocks = leaf.blocks_of(some)
            with leaf.blocks.lock:
                leaf.blocks.note_use(blocks)
            self._cache.hits += len(blocks)
