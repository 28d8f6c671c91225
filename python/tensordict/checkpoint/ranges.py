"""The places of the parts of a tensor in the files of a step."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.storage.sharded import Box

__all__ = [
    "Bytes",
    "ElsewhereError",
    "Grid",
    "Part",
    "Range",
    "Source",
    "Stored",
    "intersection",
    "whole_range",
]

Range: TypeAlias = "tuple[str, str, list[int], int, int, torch.Tensor | None]"
"""An argument of ``_rust.read_safetensors_into``: name, dtype and shape of a tensor of a
file, the first byte and the number of bytes, and a tensor of bytes that takes them."""


Bytes: TypeAlias = "tuple[str, int, int]"
"""The name of a tensor of a file, its first byte that is wanted, and the one behind the last."""


def whole_range(name: str, target: torch.Tensor) -> Range:
    """All bytes of a tensor of a file, read into one of its dtype and shape without gaps."""
    content = target.reshape(-1).view(torch.uint8)
    shape = list(target.shape)
    return name, str(target.dtype), shape, 0, content.numel(), content


class ElsewhereError(RuntimeError):
    """A part of a tensor is in the folder of another node."""


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


class Grid:
    """The places of the parts of tensors that are divided alike.

    Args:
        boxes: the places.
        ranks: who has written each.
    """

    def __init__(self, boxes: Sequence[Box], ranks: Sequence[int] = ()) -> None:
        self.boxes = boxes
        self.ranks = ranks
        self.of_rank: dict[int, list[int]] = {}
        """The numbers of the parts that each rank has written."""
        for number, rank in enumerate(ranks):
            self.of_rank.setdefault(rank, []).append(number)
        self.count: int = sum(math.prod(sizes) for _, sizes in boxes)
        # Results for places, which many tensors share.
        self._overlaps: dict[Box, list[int]] = {}
        self.known: dict[Any, Any] = {}

    def overlapping(self, box: Box) -> list[int]:
        """Return the numbers of the parts that have something of a place."""
        if box not in self._overlaps:
            self._overlaps[box] = [
                number
                for number, each in enumerate(self.boxes)
                if intersection(box, each) is not None
            ]
        return self._overlaps[box]

    def digest(self) -> str:
        """Return a digest of the places, which the same places have elsewhere."""
        if "digest" not in self.known:
            text = repr([(tuple(first), tuple(sizes)) for first, sizes in self.boxes])
            self.known["digest"] = hashlib.sha256(text.encode()).hexdigest()
        found: str = self.known["digest"]
        return found

    def shape(self) -> list[int]:
        """Return the shape of what the parts cover."""
        if "shape" not in self.known:
            self.known["shape"] = [
                max(offsets[dim] + sizes[dim] for offsets, sizes in self.boxes)
                for dim in range(len(self.boxes[0][0]))
            ]
        found: list[int] = self.known["shape"]
        return found


class Stored(NamedTuple):
    """A dense tensor as a step has it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    grid: Grid
    find: Callable[[int], Source]
    """Looks for the file of a part, by its number in the grid: only of those that are read."""

    @staticmethod
    def of(
        name: str, dtype: torch.dtype, shape: tuple[int, ...], sources: list[Source]
    ) -> Stored:
        """Make one of parts whose files are known."""
        grid = Grid([source.box for source in sources])
        return Stored(name, dtype, shape, grid, sources.__getitem__)

    @property
    def is_one_file(self) -> bool:
        """Return whether all of it is one tensor of a file."""
        boxes = self.grid.boxes
        return len(boxes) == 1 and boxes[0][1] == self.shape


def intersection(one: Box, other: Box) -> Box | None:
    """Return what two places have in common; None where that is nothing."""
    starts, sizes = [], []
    for first, length, begin, count in zip(*one, *other, strict=True):
        low, high = max(first, begin), min(first + length, begin + count)
        if low >= high:
            return None
        starts.append(low)
        sizes.append(high - low)
    return tuple(starts), tuple(sizes)


class Part(NamedTuple):
    """The bytes of a tensor of a file that have a part of it: what is in between, too."""

    start: int
    stop: int
    is_run: bool
    """True if there is nothing in between."""

    @staticmethod
    def of(box: Box, whole: Box, item: int) -> Part:
        """Find the bytes of a place in a tensor without gaps that is another place.

        Args:
            box: the place.
            whole: that of all of the tensor of the file.
            item: the bytes of an element.
        """
        first = last = 0
        is_cut, is_run = False, True
        for start, size, begin, length in zip(*box, *whole, strict=True):
            first = first * length + start - begin
            last = last * length + start - begin + size - 1
        for size, length in zip(reversed(box[1]), reversed(whole[1]), strict=True):
            is_run &= not is_cut or size == 1
            is_cut |= size != length
        return Part(first * item, (last + 1) * item, is_run)
