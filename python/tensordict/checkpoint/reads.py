"""Read tensors of a step into memory, after a check of their checksums."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.checkpoint.comparing import (
    BLOCK_BYTES,
    Comparing,
    Order,
    Wanted,
    inner,
)
from tensordict.checkpoint.ranges import Part, intersection
from tensordict.storage.sharded import is_sharded, layout_of, regions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensordict.checkpoint.comparing import Needing
    from tensordict.checkpoint.ranges import Bytes, Range, Source, Stored
    from tensordict.storage.sharded import Box, Layout

__all__ = ["Reads"]

CHUNK_BYTES = 16 << 20
"""The bytes that are converted or copied to a device at a time; at least one row."""

_Copy = tuple[str, str, list[int], list[int], torch.Tensor]
"""An argument of ``_rust.copy_safetensors_into``: name, dtype and shape of a tensor of a
file, the first index of a part of it, and the tensor that receives the part."""

_INTEGERS = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
    16: torch.complex128,
}
"""Dtypes with the same size, for copies of bits."""


class _Wish(NamedTuple):
    """A part of a file's tensor, and the memory that receives it."""

    wanted: Wanted
    box: Box
    """The box in the complete tensor."""
    part: Part
    target: torch.Tensor
    is_direct: bool
    """Whether bytes are read into ``target`` itself, without conversion."""
    is_new: bool

    @property
    def source(self) -> Source:
        return self.wanted.source

    @property
    def dtype(self) -> torch.dtype:
        return self.wanted.stored.dtype

    @property
    def is_kept_as_bytes(self) -> bool:
        return self.source.dtype != str(self.dtype)


class Reads:
    """Tensors that several threads read together.

    :meth:`fetch` compares all tensors with their checksums, and fills the new ones.
    :meth:`run` then fills the existing tensors, whose values must not change before all
    checks have passed. It does not read from the disk again: the pages are in the page
    cache by then.

    Args:
        num_threads: the most threads.
        needing: the ranks that compare together; None if there is one process.
        bring: the function that downloads bytes of tensors, by the paths of files; None
            if the files are local.
    """

    def __init__(
        self,
        num_threads: int,
        needing: Needing | None = None,
        bring: Callable[[dict[str, list[Bytes]]], None] | None = None,
    ) -> None:
        self.num_threads = num_threads
        self.needing = needing
        self._bring = bring
        self._wishes: list[_Wish] = []
        self._memory: set[int] = set()

    def add(self, stored: Stored, tensor: torch.Tensor, *, is_new: bool) -> None:
        """Register a read of a tensor, or of this rank's shard of a ``DTensor``.

        Args:
            stored: the tensor to read.
            tensor: the tensor of the same shape that receives the values, on any device.
                If it shares memory with an earlier one, it is filled later.
            is_new: whether its present values do not matter.
        """
        layout: Layout | None = None
        order = Order()
        regions: list[tuple[Any, torch.Tensor]]
        if is_sharded(tensor):
            layout = layout_of(tensor, stored.name)
            regions = regions_of(tensor, stored.name)
            if self.needing is not None:
                order = self.needing.add(stored, layout)
        else:
            tensor = tensor.detach()
            regions = [(((0,) * tensor.dim(), tuple(tensor.shape)), tensor)]
        for box, region in regions:
            if not region.numel():
                continue
            is_direct = _takes_bytes(region, stored.dtype)
            if not is_new and region.device.type == "cpu":
                is_direct &= region.data_ptr() not in self._memory
                self._memory.add(region.data_ptr())
            for number in stored.grid.overlapping(box):
                source = stored.find(number)
                common = intersection(box, source.box)
                if common is None:
                    continue
                target = region
                for dim, (start, size) in enumerate(zip(*common, strict=True)):
                    if size != target.shape[dim]:
                        target = target.narrow(dim, start - box[0][dim], size)
                wanted = Wanted(stored, number, source, layout, order)
                part = Part.of(common, source.box, stored.dtype.itemsize)
                wish = _Wish(wanted, common, part, target, is_direct, is_new)
                self._wishes.append(wish)

    def fetch(self) -> None:
        """Compare all registered bytes with their checksums, and fill the new tensors.

        Raises:
            RuntimeError: a file is damaged. Only new tensors are changed.
        """
        comparing = Comparing(self.needing)
        read: dict[str, list[Range]] = {}
        copies: list[_Wish] = []
        edges: dict[str, list[_Copy]] = {}
        for wish in self._wishes:
            shares = comparing.is_shared(wish.wanted.layout)
            if not (wish.is_new and _is_run(wish)):
                comparing.add(wish.wanted, wish.part)
                if wish.is_new:
                    copies.append(wish)
            elif not shares:
                ranges = read.setdefault(wish.source.path, [])
                ranges.append(_range(wish, wish.part.start, wish.part.stop))
            else:
                _add_blocks(wish, comparing, read, edges)
        for path, ranges in comparing.ranges().items():
            read.setdefault(path, []).extend(ranges)
        if self._bring is not None:
            self._bring(_needed(self._wishes, read))
        if read:
            self._read(read)
        self._copy_from(edges)
        self._copy(copies)

    def run(self) -> None:
        """Fill the existing tensors.

        Raises:
            RuntimeError: a file cannot be read. Some tensors may be filled by then.
        """
        self._copy([wish for wish in self._wishes if not wish.is_new])

    def targets(self) -> list[torch.Tensor]:
        """Return the existing tensors into whose memory bytes are read directly."""
        return [
            wish.target
            for wish in self._wishes
            if wish.is_direct and not wish.is_new and not wish.target.is_inference()
        ]

    def _read(self, files: dict[str, list[Range]]) -> None:
        progress = _rust.SaveProgress()
        _rust.read_safetensors_into(
            list(files.items()), self.num_threads, True, progress
        )

    def _copy(self, wishes: list[_Wish]) -> None:
        files: dict[str, list[_Copy]] = {}
        converted = []
        for wish in wishes:
            if wish.is_direct and (not wish.is_kept_as_bytes or _is_run(wish)):
                copies = files.setdefault(wish.source.path, [])
                copies.append(_copy(wish, wish.target))
            else:
                converted.append(wish)
        self._copy_from(files)
        for wish in converted:
            for target, (path, copy), values in _chunks(wish):
                self._copy_from({path: [copy]})
                target.copy_(values())

    def _copy_from(self, files: dict[str, list[_Copy]]) -> None:
        if files:
            progress = _rust.SaveProgress()
            _rust.copy_safetensors_into(list(files.items()), self.num_threads, progress)


def _needed(
    wishes: list[_Wish], read: dict[str, list[Range]]
) -> dict[str, list[Bytes]]:
    """Return the bytes to read, by file: whole blocks if checksums are compared."""
    needed: dict[str, list[Bytes]] = {}
    for path, ranges in read.items():
        for name, _, _, start, length, _ in ranges:
            first = start - start % BLOCK_BYTES
            last = -(-(start + length) // BLOCK_BYTES) * BLOCK_BYTES
            needed.setdefault(path, []).append((name, first, last))
    for wish in wishes:
        start, stop = wish.part.start, wish.part.stop
        if wish.is_kept_as_bytes and wish.box[1]:
            # Whole rows are read.
            row = math.prod(wish.source.box[1][1:]) * wish.dtype.itemsize
            start, stop = start - start % row, -(-stop // row) * row
        needed.setdefault(wish.source.path, []).append((wish.source.name, start, stop))
    return needed


def _add_blocks(
    wish: _Wish,
    comparing: Comparing,
    read: dict[str, list[Range]],
    edges: dict[str, list[_Copy]],
) -> None:
    """Register a shared run: its whole blocks are read now, its edges are copied later."""
    part, size = wish.part, wish.wanted.num_bytes
    path, fields = wish.source.path, _header_fields(wish)
    low, high = inner(part, size)
    cuts = [(part.start, part.stop)]
    if low < high:
        read.setdefault(path, []).append(_range(wish, low, high))
        cuts = [(part.start, low), (high, part.stop)]
    for start, stop in cuts:
        if start < stop:
            edge = Part(start, stop, is_run=True)
            comparing.add(wish.wanted, edge)
            content = _content(wish, start, stop)
            edges.setdefault(path, []).append((*fields, [start], content))


def _is_run(wish: _Wish) -> bool:
    """Return whether the bytes are contiguous in the file and in memory."""
    return wish.is_direct and wish.target.is_contiguous() and wish.part.is_run


def _range(wish: _Wish, start: int, stop: int) -> Range:
    """Return a range of bytes of a run, with the memory that receives it."""
    return *_header_fields(wish), start, stop - start, _content(wish, start, stop)


def _content(wish: _Wish, start: int, stop: int) -> torch.Tensor:
    """Return the memory of some bytes of a run."""
    content = wish.target.reshape(-1).view(torch.uint8)
    return content[start - wish.part.start : stop - wish.part.start]


def _header_fields(wish: _Wish) -> tuple[str, str, list[int]]:
    """Return name, dtype and shape of a tensor in its file."""
    return wish.source.name, wish.source.dtype, wish.source.shape


def _copy(wish: _Wish, target: torch.Tensor) -> _Copy:
    """Return the copy of a part of a file's tensor to ``target``."""
    source, fields = wish.source, _header_fields(wish)
    if wish.is_kept_as_bytes:
        return (*fields, [wish.part.start], target.reshape(-1).view(torch.uint8))
    places = zip(wish.box[0], source.box[0], strict=True)
    first = [start - begin for start, begin in places]
    return (*fields, first, target.view(_INTEGERS[target.element_size()]))


def _chunks(
    wish: _Wish,
) -> Iterator[tuple[torch.Tensor, tuple[str, _Copy], Callable[[], torch.Tensor]]]:
    """Yield targets, copies and values of a converted tensor, some rows at a time."""
    path, fields, dtype = wish.source.path, _header_fields(wish), wish.dtype
    if not wish.box[1]:
        values = torch.empty((), dtype=dtype)
        content = values.reshape(1).view(torch.uint8)
        yield wish.target, (path, (*fields, [0], content)), lambda: values
        return
    # A tensor that is stored as bytes is read in whole rows of the file.
    inside = wish.source.box if wish.is_kept_as_bytes else wish.box
    row = math.prod(inside[1][1:]) * dtype.itemsize
    step = max(1, CHUNK_BYTES // row)
    for start in range(0, wish.box[1][0], step):
        count = min(step, wish.box[1][0] - start)
        yield _chunk(wish, inside, start, count)


def _chunk(
    wish: _Wish, inside: Box, start: int, count: int
) -> tuple[torch.Tensor, tuple[str, _Copy], Callable[[], torch.Tensor]]:
    path, fields = wish.source.path, _header_fields(wish)
    rows = torch.empty((count, *inside[1][1:]), dtype=wish.dtype)
    places = zip(wish.box[0], wish.source.box[0], strict=True)
    first = [begin - offset for begin, offset in places]
    first[0] += start
    target = wish.target.narrow(0, start, count)
    if not wish.is_kept_as_bytes:
        content = rows.view(_INTEGERS[rows.element_size()])
        return target, (path, (*fields, first, content)), lambda: rows
    content = rows.reshape(-1).view(torch.uint8)
    begin = first[0] * (content.numel() // count)

    def values() -> torch.Tensor:
        found = rows
        for dim in range(1, rows.dim()):
            found = found.narrow(dim, first[dim], wish.box[1][dim])
        return found

    return target, (path, (*fields, [begin], content)), values


def _takes_bytes(target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether bytes of a file can be read directly into a tensor."""
    return (
        target.device.type == "cpu"
        and type(target) in (torch.Tensor, torch.nn.Parameter)
        and target.dtype == dtype
        and not (target.is_conj() or target.is_neg())
    )
