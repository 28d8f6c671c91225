"""Comparing the bytes of files with their checksums, each block by one of the ranks.

A block has one checksum and is compared as a whole. Where a rank needs a part of it alone,
another one needs the rest, and one of them compares it.
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
"""The bytes that have a checksum together, but for the last ones of a tensor."""


_GOLDEN = (5**0.5 - 1) / 2


class Order(NamedTuple):
    """The place of a tensor among those that some ranks read."""

    number: int = 0
    """The number of tensors before."""
    turn: int = 0
    """The number of tensors before that lie alike, and of other ways to lie before."""


class Wanted(NamedTuple):
    """A tensor of a file of which ranks need parts."""

    stored: Stored
    number: int
    """That of the part of the stored tensor which it is."""
    source: Source
    layout: Layout | None
    """The ranks that need parts; None where nobody else counts."""
    order: Order
    """The place among the tensors that these ranks read, the same on all of them."""

    @property
    def num_bytes(self) -> int:
        """The bytes of the tensor of the file."""
        return math.prod(self.source.box[1]) * self.stored.dtype.itemsize


class Needing:
    """The ranks that restore, and what they told each other of the tensors that they read.

    Args:
        rank: the number of this process among all.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._digests: dict[tuple[int, ...], Any] = {}
        self._alike: set[tuple[int, ...]] = set()
        self._counts: dict[tuple[int, ...], int] = {}
        self._turns: dict[tuple[int, ...], dict[Any, int]] = {}

    def add(self, stored: Stored, layout: Layout) -> Order:
        """Note a tensor that the ranks of a mesh read; return its place among theirs."""
        count = self._counts.get(layout.ranks, 0)
        self._counts[layout.ranks] = count + 1
        turns = self._turns.setdefault(layout.ranks, {})
        kind = layout, stored.grid.digest()
        turn = turns.setdefault(kind, len(turns))
        turns[kind] = turn + 1
        if layout.ranks not in self._digests:
            begun = hashlib.sha256(repr(layout.ranks).encode())
            self._digests[layout.ranks] = begun
        digest = self._digests[layout.ranks]
        told = stored.name, layout.shape, layout.mesh, layout.placements
        digest.update(repr(told).encode())
        return Order(count, turn)

    def told(self) -> tuple[int, set[str]]:
        """Return what this rank says: its number, and a digest for each mesh."""
        return self.rank, {each.hexdigest() for each in self._digests.values()}

    def agree(self, told: Iterable[tuple[int, set[str]]]) -> None:
        """Take what all ranks said. Those of a mesh that read alike share the comparing."""
        known = dict(told)
        self._alike = {
            ranks
            for ranks, each in self._digests.items()
            if all(each.hexdigest() in known.get(rank, ()) for rank in ranks)
        }

    def share(self, layout: Layout | None) -> bool:
        """Return whether the ranks of a mesh share the comparing."""
        return layout is not None and layout.ranks in self._alike


class Comparing:
    """The bytes that this rank compares.

    Args:
        needing: the ranks that share it; None for a process alone.
    """

    def __init__(self, needing: Needing | None) -> None:
        self.needing = needing
        self._found: dict[tuple[str, str], tuple[Source, list[tuple[int, int]]]] = {}

    def is_shared(self, layout: Layout | None) -> bool:
        """Return whether blocks of which ranks need parts are compared by one of them."""
        return self.needing is not None and self.needing.share(layout)

    def add(self, wanted: Wanted, part: Part) -> None:
        """Have bytes compared, by this rank or another one.

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
        """Return what is read and compared, by file: each block once."""
        found: dict[str, list[Range]] = {}
        for source, ranges in self._found.values():
            for start, stop in _merged(ranges):
                wanted = source.name, source.dtype, source.shape, start, stop - start
                found.setdefault(source.path, []).append((*wanted, None))
        return found


def _own(wanted: Wanted, part: Part, own: int) -> list[tuple[int, int]]:
    """The bytes that a rank compares of those that it needs."""
    size = wanted.num_bytes
    low, high = inner(part, size)
    found = [(low, high)] if low < high else []
    needing = _needing(wanted)
    for block in range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES)):
        start = block * BLOCK_BYTES
        stop = min(size, start + BLOCK_BYTES)
        if low <= start and stop <= high:
            continue
        shares = sorted(
            (rank, min(each.stop, stop) - max(each.start, start))
            for each, ranks in needing
            if each.start < stop and each.stop > start
            for rank in ranks
        )
        if _chosen(shares, wanted, block) == own:
            found.append((start, stop))
    return found


def _chosen(shares: list[tuple[int, int]], wanted: Wanted, block: int) -> int:
    """Choose the rank that compares a block, of those that need bytes of it.

    Args:
        shares: the ranks, each with the bytes that it needs of the block.
        wanted: the tensor of a file.
        block: the number of the block in it.
    """
    order = wanted.order
    if len({share for _, share in shares}) == 1:
        # The ranks take turns, with each block and with each tensor that lies alike.
        return shares[(order.turn + wanted.number + block) % len(shares)][0]
    # Each is chosen as often as it has bytes: multiples of the golden ratio are spread evenly.
    number = order.number * len(wanted.stored.grid.boxes) + wanted.number + block
    left = number * _GOLDEN % 1.0 * sum(share for _, share in shares)
    for rank, share in shares:
        left -= share
        if left < 0:
            return rank
    return shares[-1][0]


def inner(part: Part, size: int) -> tuple[int, int]:
    """Return from where to where a part has whole blocks of a tensor of so many bytes."""
    if not part.is_run:
        return 0, 0
    stop = part.stop if part.stop == size else part.stop - part.stop % BLOCK_BYTES
    return -(-part.start // BLOCK_BYTES) * BLOCK_BYTES, stop


def _needing(wanted: Wanted) -> list[tuple[Part, list[int]]]:
    """The bytes of a tensor of a file that ranks need, with those that need each."""
    stored, layout = wanted.stored, wanted.layout
    key = layout, wanted.number, stored.dtype.itemsize
    known = stored.grid.known
    if key not in known:
        whole = stored.grid.boxes[wanted.number]
        places = known.setdefault(layout, layout.boxes()) if layout else {}
        known[key] = [
            (Part.of(box, whole, stored.dtype.itemsize), ranks)
            for box, ranks in (
                (intersection(place, whole), ranks) for place, ranks in places.items()
            )
            if box is not None
        ]
    found: list[tuple[Part, list[int]]] = known[key]
    return found


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in their order, each block in one of them."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= -(-found[-1][1] // BLOCK_BYTES) * BLOCK_BYTES:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found
