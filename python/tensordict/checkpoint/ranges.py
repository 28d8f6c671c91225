"""Positions of the parts of a tensor in the files of a step."""

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
"""An argument of ``_rust.read_safetensors_into``: name, dtype and shape of a tensor in a
file, the first byte, the number of bytes, and the uint8 tensor that receives them."""


Bytes: TypeAlias = "tuple[str, int, int]"
"""The name of a tensor in a file, its first needed byte, and the byte after the last."""


def whole_range(name: str, target: torch.Tensor) -> Range:
    """Return the range of all bytes of a file's tensor, with a contiguous ``target``."""
    content = target.reshape(-1).view(torch.uint8)
    shape = list(target.shape)
    return name, str(target.dtype), shape, 0, content.numel(), content


class ElsewhereError(RuntimeError):
    """An error about a part of a tensor that is in another node's folder."""


class Source(NamedTuple):
    """A tensor of a file, which contains a whole tensor or a part of one."""

    path: str
    name: str
    dtype: str
    """The dtype in the file: uint8 if safetensors has no such dtype."""
    shape: list[int]
    """The shape in the file."""
    box: Box
    """The box of the part in the tensor."""


class Grid:
    """The boxes of the parts of a tensor. Equally divided tensors share one grid.

    Args:
        boxes: the box of each part.
        ranks: the rank that wrote each part.
    """

    def __init__(self, boxes: Sequence[Box], ranks: Sequence[int] = ()) -> None:
        self.boxes = boxes
        self.ranks = ranks
        self.of_rank: dict[int, list[int]] = {}
        """The indices of the parts that each rank wrote."""
        for number, rank in enumerate(ranks):
            self.of_rank.setdefault(rank, []).append(number)
        self.count: int = sum(math.prod(sizes) for _, sizes in boxes)
        # Cached results for boxes, which many tensors share.
        self._overlaps: dict[Box, list[int]] = {}
        self.known: dict[Any, Any] = {}

    def overlapping(self, box: Box) -> list[int]:
        """Return the indices of the parts that overlap with a box."""
        if box not in self._overlaps:
            self._overlaps[box] = [
                number
                for number, grid_box in enumerate(self.boxes)
                if intersection(box, grid_box) is not None
            ]
        return self._overlaps[box]

    def digest(self) -> str:
        """Return a digest of the boxes, equal for equal boxes."""
        if "digest" not in self.known:
            text = repr([(tuple(first), tuple(sizes)) for first, sizes in self.boxes])
            self.known["digest"] = hashlib.sha256(text.encode()).hexdigest()
        found: str = self.known["digest"]
        return found

    def writers(self) -> str:
        """Return a digest of the ranks that wrote the parts."""
        if "writers" not in self.known:
            text = repr(list(self.ranks))
            self.known["writers"] = hashlib.sha256(text.encode()).hexdigest()
        found: str = self.known["writers"]
        return found

    def shape(self) -> list[int]:
        """Return the shape that the parts cover together."""
        if "shape" not in self.known:
            self.known["shape"] = [
                max(offsets[dim] + sizes[dim] for offsets, sizes in self.boxes)
                for dim in range(len(self.boxes[0][0]))
            ]
        found: list[int] = self.known["shape"]
        return found


class Stored(NamedTuple):
    """A dense tensor of a step."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    grid: Grid
    find: Callable[[int], Source]
    """The function that returns the source of a part, by its index in the grid."""

    @staticmethod
    def of(
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        sources: list[Source],
        ranks: Sequence[int] = (),
    ) -> Stored:
        """Return a stored tensor whose sources are already known.

        Args:
            name: its name.
            dtype: its dtype.
            shape: its shape.
            sources: its sources.
            ranks: the rank that wrote each source, if known.
        """
        grid = Grid([source.box for source in sources], ranks)
        return Stored(name, dtype, shape, grid, sources.__getitem__)

    @property
    def is_one_file(self) -> bool:
        """Whether one tensor of one file contains all of it."""
        boxes = self.grid.boxes
        return len(boxes) == 1 and boxes[0][1] == self.shape


def intersection(one: Box, other: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    starts, sizes = [], []
    for first, length, begin, count in zip(*one, *other, strict=True):
        low, high = max(first, begin), min(first + length, begin + count)
        if low >= high:
            return None
        starts.append(low)
        sizes.append(high - low)
    return tuple(starts), tuple(sizes)


class Part(NamedTuple):
    """A span of bytes of a file's tensor that contains a box; gaps are included."""

    start: int
    stop: int
    is_run: bool
    """Whether the span has no gaps."""

    @staticmethod
    def of(box: Box, outer: Box, item: int) -> Part:
        """Return the span of a box in the contiguous memory of a larger box.

        Args:
            box: the box.
            outer: the box of the file's tensor.
            item: the bytes of an element.
        """
        first = last = 0
        is_cut, is_run = False, True
        for start, size, begin, length in zip(*box, *outer, strict=True):
            first = first * length + start - begin
            last = last * length + start - begin + size - 1
        for size, length in zip(reversed(box[1]), reversed(outer[1]), strict=True):
            is_run &= not is_cut or size == 1
            is_cut |= size != length
        return Part(first * item, (last + 1) * item, is_run)
