"""Copy rows out of mapped blocks of a cache by native code, without a thread of Python."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import torch

from tensordict.storage.remote.mapped_blocks import blocks_between
from tensordict.storage.remote.objects import PiecedObject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict import _rust
    from tensordict.storage.remote.cache import BlockCache
    from tensordict.storage.remote.mapped_blocks import MappedBlocks
    from tensordict.storage.remote.objects import RemoteObject
    from tensordict.storage.remote.tensor import RemoteTensor

__all__ = ["MappedRows", "RowCopy"]

_NOTED_TOGETHER: Final = 32
"""The use of blocks is noted once for so many batches: it takes longer than a small batch."""

_MOST_PARTS: Final = 1024
"""The most objects of a leaf: each batch makes a native call for each object."""


class RowCopy:
    """A batch that native code copies out of mapped blocks.

    Args:
        tickets: the native copies.
        is_current: whether no block has changed since the copy began.
        read_again: reads the rows another way.
    """

    def __init__(
        self,
        tickets: list[_rust.GatherTicket],
        is_current: Callable[[], bool],
        read_again: Callable[[], None],
    ) -> None:
        self._tickets = tickets
        self._is_current = is_current
        self._read_again = read_again

    def done(self) -> bool:
        """Return True: no batch of a cache waits for a network."""
        return True

    def result(self) -> None:
        """Wait for the rows; read them again if a block has changed meanwhile."""
        is_copied = all([ticket.wait() for ticket in self._tickets])
        if not (is_copied and self._is_current()):
            self._read_again()


class _Part(NamedTuple):
    """Rows of a leaf that follow each other in one object."""

    source: RemoteObject
    offset: int
    """The position of the first row in the object."""
    start: int
    """The number of the first row."""
    stop: int


class _Leaf:
    """Rows of a remote tensor, as a tensor over the mapped blocks of their object."""

    def __init__(self, leaf: RemoteTensor, part: _Part, blocks: MappedBlocks) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            shape, dtype = leaf.shape, leaf.dtype
        self.blocks = blocks
        self.start, self.stop = part.start, part.stop
        count = part.stop - part.start
        self.row_bytes = _row_bytes(leaf)
        # The position that row 0 of the leaf would have.
        self.offset = part.offset - part.start * self.row_bytes
        memory = torch.from_numpy(blocks.window(part.offset, count * self.row_bytes))
        # The memory has no alignment if the bytes of other leaves are before it.
        self.tensor: torch.Tensor = memory.view(dtype).view(count, *shape[1:])

    def blocks_of(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the numbers of the blocks that have some of the rows, in their order."""
        own = rows[(rows >= self.start) & (rows < self.stop)]
        if not len(own):
            return own
        return blocks_between(self.offset + own * self.row_bytes, self.row_bytes)


class MappedRows:
    """Tensors over the mapped blocks of a cache.

    A tensor has the bytes of a row if :meth:`versions` finds the blocks of the row.

    Args:
        cache: the cache of all objects.
        leaves: remote tensors, with bytes, and with a row at least.
        parts: for each leaf, its rows in each object.
    """

    def __init__(
        self,
        cache: BlockCache,
        leaves: Sequence[RemoteTensor],
        parts: Sequence[Sequence[_Part]],
    ) -> None:
        self._cache = cache
        self._sources = list(leaves)
        borders = {each.start for some in parts for each in some}
        starts = sorted(borders)
        self.stops: list[int] = [*starts[1:], _num_rows(leaves[0])]
        """The row at which each part of :meth:`tensors` ends."""
        spans = list(zip(starts, self.stops, strict=True))
        self._parts = [
            [
                _cut(some, start, stop, _row_bytes(leaf))
                for leaf, some in zip(leaves, parts, strict=True)
            ]
            for start, stop in spans
        ]
        self._tensors: list[list[torch.Tensor]] = []
        self._leaves: list[_Leaf] = []
        self._blocks: list[MappedBlocks] = []
        self._generation: object = None
        self._unnoted: list[np.ndarray[Any, Any]] = []

    @classmethod
    def of(cls, leaves: Sequence[RemoteTensor]) -> MappedRows | None:
        """Make them of remote tensors.

        Returns:
            None if a leaf is in no cache, or a row is in more than one object.
        """
        if not leaves or not all(leaf.num_bytes for leaf in leaves):
            return None
        parts = [_parts_of(leaf) for leaf in leaves]
        found = [each.source.cache for some in parts for each in some]
        caches = {id(cache): cache for cache in found}
        cache = next(iter(caches.values()), None)
        is_split = not all(parts) or len(found) > _MOST_PARTS * len(leaves)
        if cache is None or len(caches) > 1 or is_split:
            return None
        return cls(cache, leaves, parts)

    def tensors(self) -> list[list[torch.Tensor]] | None:
        """Return the tensors of each part of the rows.

        Returns:
            None if this process has not mapped every object yet.
        """
        generation = self._cache.refreshed()
        if self._generation is generation:
            return self._tensors
        sources = {
            id(each.source): each.source for some in self._parts for each in some
        }
        mapped = {key: self._cache.mapped_now(each) for key, each in sources.items()}
        blocks = [each for each in mapped.values() if each is not None]
        if len(blocks) < len(mapped):
            return None
        self._leaves, self._tensors = [], []
        for some in self._parts:
            pairs = zip(self._sources, some, strict=True)
            made = [
                _Leaf(leaf, each, cast("Any", mapped[id(each.source)]))
                for leaf, each in pairs
            ]
            self._leaves += made
            self._tensors.append([each.tensor for each in made])
        self._blocks = list(dict.fromkeys(blocks))
        self._generation, self._unnoted = generation, []
        return self._tensors

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
            if leaf.blocks not in partial:
                continue
            blocks = leaf.blocks_of(rows)
            if len(blocks) and not leaf.blocks.has(blocks):
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
            if not len(blocks):
                continue
            with leaf.blocks.lock:
                leaf.blocks.note_use(blocks)
            self._cache.hits += len(blocks)


def _parts_of(leaf: RemoteTensor) -> list[_Part]:
    """Return the rows of a leaf in each object; an empty list if an object ends inside a row."""
    num_rows = _num_rows(leaf)
    source, size = leaf._object, _row_bytes(leaf)
    if not isinstance(source, PiecedObject):
        return [_Part(source, leaf._offset, 0, num_rows)]
    parts = []
    at, end = 0, leaf._offset + leaf.num_bytes
    for piece, start, count in source.pieces:
        begin, stop = max(at, leaf._offset), min(at + count, end)
        if begin < stop:
            first, rest = divmod(begin - leaf._offset, size)
            last, more = divmod(stop - leaf._offset, size)
            if rest or more:
                return []
            parts.append(_Part(piece, start + begin - at, first, last))
        at += count
    return parts


def _num_rows(leaf: RemoteTensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return leaf.shape[0]


def _row_bytes(leaf: RemoteTensor) -> int:
    return leaf.num_bytes // _num_rows(leaf)


def _cut(parts: Sequence[_Part], start: int, stop: int, size: int) -> _Part:
    """Return the rows of a leaf between two borders, which are in one object."""
    at = bisect.bisect_right(parts, start, key=lambda each: each.start) - 1
    found = parts[at]
    shift = (start - found.start) * size
    return _Part(found.source, found.offset + shift, start, stop)
