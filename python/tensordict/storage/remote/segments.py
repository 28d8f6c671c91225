"""Plan the requests for the bytes of an object, and the memory that gets the bytes.

A *segment* is a run of bytes that a caller wants: a row, or several rows that follow each other.
A *span* is the range of one request: neighbouring segments, and the bytes between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.storage.remote.objects import RemoteObject

__all__ = ["GAP", "PART", "Segments", "Span", "spans_of"]

GAP: Final = 64 << 10
"""The largest gap between two segments of one request, in bytes."""

PART: Final = 8 << 20
"""The most bytes of one request, approximately."""

_FEW: Final = 16
_SHARE: Final = 16

_Array = np.ndarray[Any, Any]


@dataclass
class Segments:
    """Runs of bytes of an object, and the memory that they are copied to.

    Attributes:
        object: the object.
        starts: the first byte of each segment in the object: int64 ``[N]``.
        lengths: the number of bytes of each segment, at least 1: int64 ``[N]``.
        out: the memory: uint8, flat.
        places: the first byte of each segment in the memory: int64 ``[N]``.
        grid: the rows, if the segments are rows of one size: the offset of row 0 in the object,
            the bytes of a row, and the numbers of the rows in the order of the memory.
    """

    object: RemoteObject
    starts: _Array
    lengths: _Array
    out: _Array
    places: _Array
    grid: tuple[int, int, _Array] | None = None

    @classmethod
    def of_rows(
        cls, source: RemoteObject, offset: int, size: int, rows: _Array, out: _Array
    ) -> Segments:
        """Make the segments of rows of one size; rows that follow each other are one segment."""
        count = len(rows)
        if not count or not size:
            empty = np.zeros(0, np.int64)
            return cls(source, empty, empty, out, empty)
        is_first = np.ones(count, bool)
        np.not_equal(rows[1:], rows[:-1] + 1, out=is_first[1:])
        begins = np.flatnonzero(is_first)
        lengths = np.empty_like(begins)
        lengths[:-1] = begins[1:] - begins[:-1]
        lengths[-1] = count - begins[-1]
        lengths *= size
        grid = offset, size, rows
        starts = offset + rows[begins] * size
        return cls(source, starts, lengths, out, begins * size, grid)

    def in_parts(self) -> Segments:
        """Split segments that are longer than a request."""
        counts = -(-self.lengths // PART)
        if not len(counts) or counts.max() == 1:
            return self
        at = np.repeat(np.arange(len(counts)), counts)
        inside = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        shift = inside * PART
        lengths = np.minimum(self.lengths[at] - shift, PART)
        starts, places = self.starts[at] + shift, self.places[at] + shift
        return Segments(self.object, starts, lengths, self.out, places)

    def cut_at(self, block: int) -> Segments:
        """Split segments at the borders of blocks of ``block`` bytes."""
        first = self.starts // block
        counts = (self.starts + self.lengths - 1) // block - first + 1
        at = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = (first[at] + number) * block
        starts = np.maximum(self.starts[at], begins)
        stops = np.minimum(self.starts[at] + self.lengths[at], begins + block)
        places = self.places[at] + starts - self.starts[at]
        return Segments(self.object, starts, stops - starts, self.out, places)

    def where(self, chosen: _Array) -> Segments:
        """Keep the segments that a boolean mask chooses."""
        starts, lengths = self.starts[chosen], self.lengths[chosen]
        return Segments(self.object, starts, lengths, self.out, self.places[chosen])


@dataclass
class Span:
    """The range of one request, and the segments in the range."""

    segments: Segments
    start: int
    stop: int
    members: _Array
    """The positions of its segments in ``segments``."""

    @property
    def size(self) -> int:
        """The number of bytes of the range."""
        return self.stop - self.start

    def deliver(self, data: _Array) -> None:
        """Copy the segments from the answer to their memory."""
        given, members = self.segments, self.members
        if len(members) == 1:
            at, length = given.places[members[0]], given.lengths[members[0]]
            given.out[at : at + length] = data[:length]
            return
        starts = given.starts[members] - self.start
        lengths, places = given.lengths[members], given.places[members]
        length = int(lengths[0])
        is_grid = len(members) > 8 and not (
            (lengths != length).any() or (starts % length).any()
        )
        if is_grid and not (places % length).any() and not len(given.out) % length:
            rows = data[: len(data) // length * length].reshape(-1, length)
            given.out.reshape(-1, length)[places // length] = rows[starts // length]
            return
        for start, size, at in zip(
            starts.tolist(), lengths.tolist(), places.tolist(), strict=True
        ):
            given.out[at : at + size] = data[start : start + size]


def _read_through(gaps: _Array, wanted: int) -> _Array:
    """Return a mask of the gaps between segments that a request reads through.

    If most gaps are small, or there are few segments, all small gaps are read: each saves a
    request. Otherwise small gaps save few requests, and are read up to a sixteenth of the bytes
    of all segments.
    """
    small: _Array = gaps <= GAP
    if len(gaps) < _FEW or 2 * np.count_nonzero(small) >= len(gaps):
        return small
    order = np.argsort(gaps, kind="stable")
    costs = np.cumsum(np.maximum(gaps[order], 0))
    small[order[costs > wanted // _SHARE]] = False
    return small


def spans_of(wanted: Segments) -> Iterator[Span]:
    """Merge neighbouring segments to spans.

    Examples:
        >>> import numpy as np
        >>> rows = np.array([0, 90_000, 1, 3])
        >>> some = Segments.of_rows(None, 0, 8, rows, np.zeros(32, np.uint8))
        >>> [(span.start, span.stop) for span in spans_of(some)]
        [(0, 32), (720000, 720008)]
    """
    wanted = wanted.in_parts()
    if not len(wanted.starts):
        return
    order = np.argsort(wanted.starts, kind="stable")
    starts = wanted.starts[order]
    stops = starts + wanted.lengths[order]
    reached = np.maximum.accumulate(stops)
    is_first = np.ones(len(starts), bool)
    is_first[1:] = ~_read_through(starts[1:] - reached[:-1], int(wanted.lengths.sum()))
    # A span of many neighbours ends at about PART bytes.
    begins = np.repeat(
        starts[is_first], np.diff(np.flatnonzero(is_first), append=len(starts))
    )
    share = (starts - begins) // PART
    is_first[1:] |= share[1:] != share[:-1]
    first = np.flatnonzero(is_first)
    ends = np.maximum.reduceat(stops, first)
    last = np.append(first[1:], len(starts))
    for at, end, start, stop in zip(
        first.tolist(),
        last.tolist(),
        starts[first].tolist(),
        ends.tolist(),
        strict=True,
    ):
        yield Span(wanted, start, stop, order[at:end])
