"""Ranges of the bytes of tensors in files, which are read into memory and checked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from tensordict import _rust
from tensordict.storage.sharded import is_sharded, regions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.storage.sharded import Box

__all__ = ["Range", "Reads", "Source", "Stored", "whole_range"]

Range: TypeAlias = "tuple[str, str, list[int], int, int, torch.Tensor | None]"
"""An argument of ``_rust.read_safetensors_into``: name, dtype and shape of a tensor of a
file, the first byte and the number of bytes, and a tensor of bytes that takes them."""


def whole_range(name: str, target: torch.Tensor) -> Range:
    """All bytes of a tensor of a file, read into one of its dtype and shape without gaps."""
    content = target.reshape(-1).view(torch.uint8)
    shape = list(target.shape)
    return name, str(target.dtype), shape, 0, content.numel(), content


class Source(NamedTuple):
    """A tensor of a file, which is a part of a tensor or all of it."""

    path: str
    name: str
    dtype: str
    """The dtype in the file: bytes, where the format lacks that of the tensor."""
    shape: list[int]
    """The shape in the file."""
    box: Box
    """The place of the part in the tensor."""


class Stored(NamedTuple):
    """A dense tensor as a step has it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    sources: list[Source]

    @property
    def is_one_file(self) -> bool:
        """Return whether all of it is one tensor of a file."""
        return len(self.sources) == 1 and self.sources[0].box[1] == self.shape


class _Copy(NamedTuple):
    """A range that is read into memory of its own, and copied from there."""

    path: str
    range: Range
    rows: tuple[int, ...]
    """The shape of what is read."""
    start: tuple[int, ...]
    """The place in it of what is wanted."""
    target: torch.Tensor


class Reads:
    """Ranges that are read together, by several threads.

    Args:
        num_threads: the most threads.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._direct: dict[str, list[Range]] = {}
        self._copies: list[tuple[_Copy, torch.dtype]] = []
        self._fetched: list[torch.Tensor] = []

    def add(self, stored: Stored, own: torch.Tensor, memory: set[int]) -> None:
        """Have a tensor read into another: of a ``DTensor`` the part of this rank.

        Args:
            stored: what is read.
            own: a tensor of its shape, on any device.
            memory: the addresses of tensors that are read into. One that is tied to such
                a tensor is filled after it.
        """
        regions: list[tuple[Any, torch.Tensor]]
        if is_sharded(own):
            regions = regions_of(own, stored.name)
        else:
            own = own.detach()
            regions = [(((0,) * own.dim(), tuple(own.shape)), own)]
        for box, region in regions:
            if not region.numel():
                continue
            is_first = region.device.type != "cpu" or region.data_ptr() not in memory
            memory.add(region.data_ptr())
            if is_first and self._add_whole(stored, box, region):
                continue
            for source in stored.sources:
                self._add(stored, source, box, region, is_first=is_first)

    def _add_whole(self, stored: Stored, box: Box, region: torch.Tensor) -> bool:
        """Have all of a tensor read, where that is simple; return whether it is."""
        source = stored.sources[0]
        is_all = len(stored.sources) == 1 and source.box == box
        if not is_all or not _takes_bytes(region, stored.dtype):
            return False
        content = region.reshape(-1).view(torch.uint8)
        made = (source.name, source.dtype, source.shape, 0, content.numel(), content)
        self._direct.setdefault(source.path, []).append(made)
        return True

    def _add(
        self,
        stored: Stored,
        source: Source,
        box: Box,
        region: torch.Tensor,
        *,
        is_first: bool,
    ) -> None:
        """Have what a source has of a box read into the region of it."""
        starts, sizes = [], []
        for first, length, begin, count in zip(*box, *source.box, strict=True):
            low, high = max(first, begin), min(first + length, begin + count)
            if low >= high:
                return
            starts.append(low)
            sizes.append(high - low)
        target = region
        in_source = []
        for dim, (low, size) in enumerate(zip(starts, sizes, strict=True)):
            target = target.narrow(dim, low - box[0][dim], size)
            in_source.append(low - source.box[0][dim])
        item = stored.dtype.itemsize
        if _is_contiguous(sizes, source.box[1]):
            first = _offset(in_source, source.box[1]) * item
            length = math.prod(sizes) * item
            if is_first and _takes_bytes(target, stored.dtype):
                content = target.reshape(-1).view(torch.uint8)
                wanted = (source.name, source.dtype, source.shape, first, length)
                self._direct.setdefault(source.path, []).append((*wanted, content))
                return
            rows, start = tuple(sizes), (0,) * len(sizes)
        else:
            # Whole rows of the first dim are read, of which a part is wanted.
            rows = (sizes[0], *source.box[1][1:])
            start = (0, *in_source[1:])
            row = math.prod(source.box[1][1:]) * item
            first, length = in_source[0] * row, sizes[0] * row
        made = (source.name, source.dtype, source.shape, first, length, None)
        copied = _Copy(source.path, made, rows, start, target)
        self._copies.append((copied, stored.dtype))

    def check(self) -> None:
        """Compare everything with its checksums, and change nothing.

        Raises:
            RuntimeError: a file is damaged.
        """
        wanted: dict[str, list[Range]] = {
            path: [(*each[:5], None) for each in ranges]
            for path, ranges in self._direct.items()
        }
        for copied, _ in self._copies:
            wanted.setdefault(copied.path, []).append(copied.range)
        self._read(wanted)

    def fetch(self) -> None:
        """Read into memory beside the tensors, from which :meth:`run` copies.

        Each byte is read once then, where :meth:`check` and :meth:`run` read it twice.

        Raises:
            RuntimeError: a file is damaged. Nothing is changed.
        """
        wanted: dict[str, list[Range]] = {}
        for path, ranges in self._direct.items():
            for each in ranges:
                content = torch.empty(each[4], dtype=torch.uint8)
                wanted.setdefault(path, []).append((*each[:5], content))
                self._fetched.append(content)
        for copied, _ in self._copies:
            content = torch.empty(copied.range[4], dtype=torch.uint8)
            wanted.setdefault(copied.path, []).append((*copied.range[:5], content))
            self._fetched.append(content)
        self._read(wanted)

    def run(self) -> None:
        """Read, or copy what was fetched.

        Raises:
            RuntimeError: a file is damaged. What was read is in the tensors by then.
        """
        fetched = iter(self._fetched)
        if self._fetched:
            for ranges in self._direct.values():
                for each in ranges:
                    if each[5] is not None:
                        each[5].copy_(next(fetched))
        elif self._direct:
            self._read(self._direct)
        for (path, wanted, rows, start, target), dtype in self._copies:
            content = next(fetched, None)
            if content is None:
                content = torch.empty(wanted[4], dtype=torch.uint8)
                self._read({path: [(*wanted[:5], content)]})
            # Bytes begin where torch allocates, so any dtype can be over them.
            found = content.view(dtype).reshape(rows)
            for dim, (first, size) in enumerate(zip(start, target.shape, strict=True)):
                found = found.narrow(dim, first, size)
            target.copy_(found)

    def targets(self) -> list[torch.Tensor]:
        """Return the tensors of bytes that are read into directly."""
        return [
            each[5]
            for ranges in self._direct.values()
            for each in ranges
            if each[5] is not None
        ]

    def _read(self, files: dict[str, list[Range]]) -> None:
        progress = _rust.SaveProgress()
        _rust.read_safetensors_into(
            list(files.items()), self.num_threads, True, progress
        )


def _is_contiguous(sizes: Sequence[int], whole: Sequence[int]) -> bool:
    """Return whether a part of a tensor without gaps lies in one piece."""
    is_cut = False
    for size, length in zip(reversed(sizes), reversed(whole), strict=True):
        if is_cut and size != 1:
            return False
        is_cut |= size != length
    return True


def _offset(place: Sequence[int], shape: Sequence[int]) -> int:
    """The number of elements before a place of a tensor without gaps."""
    found = 0
    for index, length in zip(place, shape, strict=True):
        found = found * length + index
    return found


def _takes_bytes(target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether bytes of a file can be read into a tensor itself."""
    return (
        target.device.type == "cpu"
        and type(target) in (torch.Tensor, torch.nn.Parameter)
        and target.dtype == dtype
        and target.is_contiguous()
        and not (target.is_conj() or target.is_neg())
    )
