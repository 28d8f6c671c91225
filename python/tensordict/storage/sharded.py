"""The parts of a ``DTensor`` on each rank, found without importing that class."""

from __future__ import annotations

import itertools
import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Box", "Layout", "Sharded", "is_sharded", "layout_of", "regions_of"]

MSG_PARTIAL = "a DTensor with a partial placement has no final values: redistribute {} before saving"
MSG_PLACEMENT = "the placement {!r} of the DTensor {} is not supported"

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""The first index of a part of a tensor in each dimension, and its length in each dimension."""

Sharded: TypeAlias = Any
"""A ``DTensor``. This module does not import the class."""

_Run = tuple[int, int]
"""The first of some consecutive indices, and their number."""


def is_sharded(value: object) -> bool:
    """Return whether a tensor is a ``DTensor``, without importing that class."""
    return hasattr(value, "placements") and hasattr(value, "device_mesh")


class Layout(NamedTuple):
    """The shape, mesh and placements of a ``DTensor``: plain data, equal on all ranks."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    """The ranks of the mesh in row-major order."""
    mesh: tuple[int, ...]
    """The shape of the mesh."""
    placements: tuple[str, ...]
    """For each dimension of the mesh ``R``, ``S<dim>`` or ``S<dim>/<split factor>``."""

    def boxes(self, places: Mapping[int, int] | None = None) -> dict[Box, list[int]]:
        """Return the non-empty parts, each with the ranks that hold it.

        Args:
            places: the numbers to return for the ranks of the mesh. Ranks that it lacks
                are ignored. The default returns the ranks.
        """
        found: dict[Box, list[int]] = {}
        coordinates = itertools.product(*map(range, self.mesh))
        cache: dict[Any, list[_Run]] = {}
        for rank, coordinate in zip(self.ranks, coordinates, strict=True):
            if places is not None and rank not in places:
                continue
            number = rank if places is None else places[rank]
            for box in _boxes(
                [self._runs(dim, coordinate, cache) for dim in self._dims]
            ):
                if math.prod(box[1]):
                    found.setdefault(box, []).append(number)
        return found

    @property
    def _dims(self) -> range:
        return range(len(self.shape))

    def runs(self, coordinate: tuple[int, ...]) -> list[list[_Run]]:
        """Return the indices of each dimension that the rank at a mesh coordinate holds."""
        return [self._runs(dim, coordinate, {}) for dim in self._dims]

    def _runs(
        self, dim: int, coordinate: tuple[int, ...], cache: dict[Any, list[_Run]]
    ) -> list[_Run]:
        cuts = tuple(
            (placement, place, size)
            for placement, place, size in zip(
                self.placements, coordinate, self.mesh, strict=True
            )
            if placement.partition("/")[0] == f"S{dim}"
        )
        if (dim, cuts) not in cache:
            runs = [(0, self.shape[dim])]
            for placement, place, size in cuts:
                factor = placement.partition("/")[2]
                runs = _cut(runs, place, size, int(factor) if factor else 0)
            cache[dim, cuts] = runs
        return cache[dim, cuts]


def _cut(runs: list[_Run], place: int, size: int, factor: int) -> list[_Run]:
    """Return the part of the rank at ``place`` of ``size`` ranks, as :func:`torch.chunk` does."""
    length = sum(count for _, count in runs)
    if not factor:
        share = -(-length // size)
        return _between(
            runs, min(place * share, length), min((place + 1) * share, length)
        )
    from torch.distributed.tensor.placement_types import _StridedShard

    strided: Any = _StridedShard(0, split_factor=factor)
    pieces = strided._split_tensor(
        torch.arange(length), size, with_padding=False, contiguous=False
    )[0]
    found: list[_Run] = []
    for first, count in _consecutive(pieces[place].tolist()):
        found += _between(runs, first, first + count)
    return found


def _between(runs: list[_Run], start: int, stop: int) -> list[_Run]:
    """Return the indices at the positions from ``start`` to ``stop`` of concatenated runs."""
    found, at = [], 0
    for first, count in runs:
        low, high = max(start, at), min(stop, at + count)
        if low < high:
            found.append((first + low - at, high - low))
        at += count
    return found


def _consecutive(indices: list[int]) -> list[_Run]:
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][0] + runs[-1][1] == index:
            runs[-1][1] += 1
        else:
            runs.append([index, 1])
    return [(first, count) for first, count in runs]


def _boxes(runs: list[list[_Run]]) -> list[Box]:
    return [
        (tuple(first for first, _ in box_runs), tuple(count for _, count in box_runs))
        for box_runs in itertools.product(*runs)
    ]


def layout_of(value: Sharded, name: str) -> Layout:
    """Return the layout of a ``DTensor``. Equal layouts of one mesh are one object.

    Args:
        value: the tensor.
        name: its name, for errors.

    Raises:
        TypeError: it has a partial placement, or one that is not supported.
    """
    return _laid_out(value, name)[0]


_MESHES: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Layout, list[list[_Run]]]]] = (
    weakref.WeakKeyDictionary()
)
"""The layout and the indices of this rank, by mesh, shape and placements."""

_RANKS: weakref.WeakKeyDictionary[Any, tuple[tuple[int, ...], tuple[int, ...]]] = (
    weakref.WeakKeyDictionary()
)
"""The ranks of a mesh and its shape. Listing the ranks is slow."""


def _laid_out(value: Sharded, name: str) -> tuple[Layout, list[list[_Run]]]:
    """Return the layout of a ``DTensor``, and the indices that this rank holds."""
    placements = []
    for placement in value.placements:
        if placement.is_partial():
            raise TypeError(MSG_PARTIAL.format(name))
        dim, factor = (
            getattr(placement, attribute, None) for attribute in ("dim", "split_factor")
        )
        if placement.is_replicate():
            placements.append("R")
        elif isinstance(dim, int):
            dim %= max(1, value.dim())
            placements.append(f"S{dim}" if factor is None else f"S{dim}/{factor}")
        else:
            raise TypeError(MSG_PLACEMENT.format(placement, name))
    shape = tuple(value.shape)
    mesh = value.device_mesh
    layouts = _MESHES.setdefault(mesh, {})
    key = shape, tuple(placements)
    if key not in layouts:
        if mesh not in _RANKS:
            numbers = mesh.mesh
            _RANKS[mesh] = tuple(numbers.reshape(-1).tolist()), tuple(numbers.shape)
        ranks, sizes = _RANKS[mesh]
        layout = Layout(shape, ranks, sizes, tuple(placements))
        coordinate = mesh.get_coordinate()
        runs = [] if coordinate is None else layout.runs(tuple(coordinate))
        layouts[key] = layout, runs
    return layouts[key]


def regions_of(value: Sharded, name: str) -> list[tuple[Box, torch.Tensor]]:
    """Return the parts of a ``DTensor`` that this rank holds: views of its local tensor.

    Raises:
        TypeError: see :func:`layout_of`.
        RuntimeError: the shape of the local tensor does not fit the placements.
    """
    layout, runs = _laid_out(value, name)
    local = value.to_local().detach()
    if value.device_mesh.get_coordinate() is None or not math.prod(layout.shape):
        return []
    expected = [sum(count for _, count in dim_runs) for dim_runs in runs]
    if not math.prod(expected):
        return []
    if expected != list(local.shape):
        raise RuntimeError(
            f"the local tensor of {name} on this rank has the shape {list(local.shape)}, "
            f"but its placements need {expected}"
        )
    found = []
    places = [
        list(itertools.accumulate((n for _, n in dim_runs), initial=0))
        for dim_runs in runs
    ]
    for numbers in itertools.product(*(range(len(dim_runs)) for dim_runs in runs)):
        region = local
        for dim, number in enumerate(numbers):
            region = region.narrow(dim, places[dim][number], runs[dim][number][1])
        offsets = tuple(runs[dim][number][0] for dim, number in enumerate(numbers))
        found.append(((offsets, tuple(region.shape)), region))
    return found
