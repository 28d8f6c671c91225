"""Compare the bytes of files with their checksums, each block on one rank.

A block has one checksum, so it is compared as a whole. If several ranks need bytes of
one block, one of them compares it.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from tensordict.checkpoint.ranges import Part, intersection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensordict.checkpoint.ranges import Range, Source, Stored
    from tensordict.storage.sharded import Layout

__all__ = ["BLOCK_BYTES", "Comparing", "Needing", "Order", "Wanted", "inner"]

BLOCK_BYTES = 1 << 20
"""The number of bytes under one checksum; the last block of a tensor may be shorter."""


MSG_MIXED = (
    "The ranks {} and {} would fill their parts of one DTensor, on the mesh of the ranks {}, "
    "with values that per_rank= saved apart. Restore on the meshes that saved the step. "
    "Nothing was changed."
)

_GOLDEN = (5**0.5 - 1) / 2


class Order(NamedTuple):
    """The position of a tensor among the tensors that the ranks of a mesh read."""

    number: int = 0
    """The number of tensors before it."""
    turn: int = 0
    """A counter for each layout and grid, which decides the rank whose turn it is."""


class Wanted(NamedTuple):
    """A tensor of a file, of which ranks need parts."""

    stored: Stored
    number: int
    """The index of ``source`` among the sources of the stored tensor."""
    source: Source
    layout: Layout | None
    """The ranks that need parts; None if only this process reads."""
    order: Order
    """The position among the tensors that these ranks read, the same on all of them."""

    @property
    def num_bytes(self) -> int:
        """The number of bytes of the tensor in the file."""
        return math.prod(self.source.box[1]) * self.stored.dtype.itemsize


class Needing:
    """The tensors that the restoring ranks read, of which they tell each other digests.

    Args:
        rank: the global rank of this process.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._digests: dict[tuple[int, ...], Any] = {}
        self._writers: dict[tuple[int, ...], Any] = {}
        """By mesh, the digest of the ranks that wrote the parts of the tensors."""
        self._alike: set[tuple[int, ...]] = set()
        self._counts: dict[tuple[int, ...], int] = {}
        self._turns: dict[tuple[int, ...], dict[Any, int]] = {}

    def add(self, stored: Stored, layout: Layout) -> Order:
        """Note a tensor that the ranks of a mesh read; return its position among them."""
        count = self._counts.get(layout.ranks, 0)
        self._counts[layout.ranks] = count + 1
        turns = self._turns.setdefault(layout.ranks, {})
        kind = layout, stored.grid.digest()
        turn = turns.setdefault(kind, len(turns))
        turns[kind] = turn + 1
        if layout.ranks not in self._digests:
            begun = hashlib.sha256(repr(layout.ranks).encode())
            self._digests[layout.ranks] = begun
            self._writers[layout.ranks] = hashlib.sha256()
        digest = self._digests[layout.ranks]
        announced = stored.name, layout.shape, layout.mesh, layout.placements
        digest.update(repr(announced).encode())
        self._writers[layout.ranks].update(stored.grid.writers().encode())
        return Order(count, turn)

    def told(self) -> tuple[int, dict[str, str]]:
        """Return what this rank announces: its number, and the digests of each mesh."""
        return self.rank, {
            digest.hexdigest(): self._writers[ranks].hexdigest()
            for ranks, digest in self._digests.items()
        }

    def agree(self, announcements: Iterable[tuple[int, dict[str, str]]]) -> None:
        """Take all announcements: ranks with equal digests share the comparing.

        Raises:
            RuntimeError: the ranks of a mesh read one tensor from different saves.
        """
        digests_by_rank = dict(announcements)
        self._alike = set()
        for ranks, digest in self._digests.items():
            own_digest, own_writers = (
                digest.hexdigest(),
                self._writers[ranks].hexdigest(),
            )
            writers = [digests_by_rank.get(rank, {}).get(own_digest) for rank in ranks]
            for rank, others in zip(ranks, writers, strict=True):
                if others not in (None, own_writers):
                    text = MSG_MIXED.format(self.rank, rank, list(ranks))
                    raise RuntimeError(text)
            if None not in writers:
                self._alike.add(ranks)

    def share(self, layout: Layout | None) -> bool:
        """Return whether the ranks of a layout's mesh share the comparing."""
        return layout is not None and layout.ranks in self._alike


class Comparing:
    """The bytes that this rank compares.

    Args:
        needing: the ranks that share the comparing; None if there is one process.
    """

    def __init__(self, needing: Needing | None) -> None:
        self.needing = needing
        self._found: dict[tuple[str, str], tuple[Source, list[tuple[int, int]]]] = {}

    def is_shared(self, layout: Layout | None) -> bool:
        """Return whether one rank compares a block for all ranks that need parts of it."""
        return self.needing is not None and self.needing.share(layout)

    def add(self, wanted: Wanted, part: Part) -> None:
        """Register the bytes that this rank needs; one of the ranks will compare them.

        Args:
            wanted: the tensor of a file.
            part: the bytes of it that this rank needs.
        """
        ranges = [(part.start, part.stop)]
        if self.needing is not None and self.needing.share(wanted.layout):
            ranges = _own(wanted, part, self.needing.rank)
        if ranges:
            source = wanted.source
            _, found = self._found.setdefault((source.path, source.name), (source, []))
            found += ranges

    def ranges(self) -> dict[str, list[Range]]:
        """Return the ranges that this rank compares, by file, each block once."""
        found: dict[str, list[Range]] = {}
        for source, ranges in self._found.values():
            for start, stop in _merged(ranges):
                wanted = source.name, source.dtype, source.shape, start, stop - start
                found.setdefault(source.path, []).append((*wanted, None))
        return found


def _own(wanted: Wanted, part: Part, own_rank: int) -> list[tuple[int, int]]:
    """Return the bytes that a rank compares, among the bytes that it needs."""
    size = wanted.num_bytes
    low, high = inner(part, size)
    ranges = [(low, high)] if low < high else []
    needing = _needing(wanted)
    for block in range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES)):
        start = block * BLOCK_BYTES
        stop = min(size, start + BLOCK_BYTES)
        if low <= start and stop <= high:
            continue
        shares = sorted(
            (rank, min(needed.stop, stop) - max(needed.start, start))
            for needed, ranks in needing
            if needed.start < stop and needed.stop > start
            for rank in ranks
        )
        if _chosen(shares, wanted, block) == own_rank:
            ranges.append((start, stop))
    return ranges


def _chosen(shares: list[tuple[int, int]], wanted: Wanted, block: int) -> int:
    """Choose the rank that compares a block, among the ranks that need bytes of it.

    Args:
        shares: the ranks, each with the number of bytes that it needs of the block.
        wanted: the tensor of a file.
        block: the index of the block in the tensor.
    """
    order = wanted.order
    if len({share for _, share in shares}) == 1:
        # The ranks take turns, over blocks and over tensors of the same layout.
        return shares[(order.turn + wanted.number + block) % len(shares)][0]
    # Each rank is chosen in proportion to its bytes; multiples of the golden ratio
    # spread evenly over the interval.
    number = order.number * len(wanted.stored.grid.boxes) + wanted.number + block
    left = number * _GOLDEN % 1.0 * sum(share for _, share in shares)
    for rank, share in shares:
        left -= share
        if left < 0:
            return rank
    return shares[-1][0]


def inner(part: Part, size: int) -> tuple[int, int]:
    """Return start and stop of the whole blocks in a part of a ``size``-byte tensor."""
    if not part.is_run:
        return 0, 0
    stop = part.stop if part.stop == size else part.stop - part.stop % BLOCK_BYTES
    return -(-part.start // BLOCK_BYTES) * BLOCK_BYTES, stop


def _needing(wanted: Wanted) -> list[tuple[Part, list[int]]]:
    """Return the parts of a file's tensor that ranks need, each with its ranks."""
    stored, layout = wanted.stored, wanted.layout
    key = layout, wanted.number, stored.dtype.itemsize
    cache = stored.grid.known
    if key not in cache:
        tensor_box = stored.grid.boxes[wanted.number]
        places = cache.setdefault(layout, layout.boxes()) if layout else {}
        cache[key] = [
            (Part.of(box, tensor_box, stored.dtype.itemsize), ranks)
            for box, ranks in (
                (intersection(place, tensor_box), ranks)
                for place, ranks in places.items()
            )
            if box is not None
        ]
    found: list[tuple[Part, list[int]]] = cache[key]
    return found


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort and merge ranges, so that each block is in one range."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= -(-found[-1][1] // BLOCK_BYTES) * BLOCK_BYTES:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found
