"""Find the parts of a ``DTensor`` that ranks have, without importing that class."""

from __future__ import annotations

import itertools
import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Box", "Layout", "Sharded", "is_sharded", "layout_of", "regions_of"]

MSG_PARTIAL = (
    "a DTensor with a partial placement has no values yet: redistribute {} before it is "
    "saved"
)
MSG_PLACEMENT = "the placement {!r} of the DTensor {} is not known here"

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""The first index of a part of a tensor in each dim, and its length."""

Sharded: TypeAlias = Any
"""A ``DTensor``, whose class nothing here imports."""

_Run = tuple[int, int]
"""The first of some indices that follow each other, and their number."""


def is_sharded(value: object) -> bool:
    """Return whether a tensor is a ``DTensor``, without importing what defines it."""
    return hasattr(value, "placements") and hasattr(value, "device_mesh")


class Layout(NamedTuple):
    """The ranks that have parts of a tensor, and which: plain data, the same on all."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    """The ranks of the mesh, the last dim of the mesh first."""
    mesh: tuple[int, ...]
    """The shape of the mesh."""
    placements: tuple[str, ...]
    """For each dim of the mesh ``R``, ``S<dim>`` or ``S<dim>/<split factor>``."""

    def boxes(self, places: Mapping[int, int] | None = None) -> dict[Box, list[int]]:
        """Return the parts that are not empty, each with the ranks that have it.

        Args:
            places: the numbers of ranks, by their numbers in the mesh. Those that are not
                in it do not count.
        """
        found: dict[Box, list[int]] = {}
        coordinates = itertools.product(*map(range, self.mesh))
        known: dict[Any, list[_Run]] = {}
        for rank, coordinate in zip(self.ranks, coordinates, strict=True):
            if places is not None and rank not in places:
                continue
            number = rank if places is None else places[rank]
            for box in _boxes(
                [self._runs(dim, coordinate, known) for dim in self._dims]
            ):
                if math.prod(box[1]):
                    found.setdefault(box, []).append(number)
        return found

    @property
    def _dims(self) -> range:
        return range(len(self.shape))

    def runs(self, coordinate: tuple[int, ...]) -> list[list[_Run]]:
        """Return the indices of each dim that the rank at a place of the mesh has."""
        return [self._runs(dim, coordinate, {}) for dim in self._dims]

    def _runs(
        self, dim: int, coordinate: tuple[int, ...], known: dict[Any, list[_Run]]
    ) -> list[_Run]:
        cuts = tuple(
            (placement, place, size)
            for placement, place, size in zip(
                self.placements, coordinate, self.mesh, strict=True
            )
            if placement.partition("/")[0] == f"S{dim}"
        )
        if (dim, cuts) not in known:
            runs = [(0, self.shape[dim])]
            for placement, place, size in cuts:
                factor = placement.partition("/")[2]
                runs = _cut(runs, place, size, int(factor) if factor else 0)
            known[dim, cuts] = runs
        return known[dim, cuts]


def _cut(runs: list[_Run], place: int, size: int, factor: int) -> list[_Run]:
    """The share of one of ``size`` ranks, as :func:`torch.chunk` divides."""
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
    """The indices from one place to another, where runs lie one behind the other."""
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
        (tuple(first for first, _ in each), tuple(count for _, count in each))
        for each in itertools.product(*runs)
    ]


def layout_of(value: Sharded, name: str) -> Layout:
    """Return the layout of a ``DTensor``.

    Those of one mesh that are equal are one object.

    Args:
        value: the tensor.
        name: its name, for errors.

    Raises:
        TypeError: it has a partial placement, or one that is not known.
    """
    return _laid_out(value, name)[0]


_MESHES: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Layout, list[list[_Run]]]]] = (
    weakref.WeakKeyDictionary()
)
"""By mesh, shape and placements the layout, and the indices that this rank has."""

_RANKS: weakref.WeakKeyDictionary[Any, tuple[tuple[int, ...], tuple[int, ...]]] = (
    weakref.WeakKeyDictionary()
)
"""The ranks of a mesh, which take a while to list, and its shape."""


def _laid_out(value: Sharded, name: str) -> tuple[Layout, list[list[_Run]]]:
    """Return the layout of a ``DTensor``, and the indices of each dim that this rank has."""
    placements = []
    for placement in value.placements:
        if placement.is_partial():
            raise TypeError(MSG_PARTIAL.format(name))
        dim, factor = (
            getattr(placement, each, None) for each in ("dim", "split_factor")
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
    known = _MESHES.setdefault(mesh, {})
    key = shape, tuple(placements)
    if key not in known:
        if mesh not in _RANKS:
            numbers = mesh.mesh
            _RANKS[mesh] = tuple(numbers.reshape(-1).tolist()), tuple(numbers.shape)
        ranks, sizes = _RANKS[mesh]
        layout = Layout(shape, ranks, sizes, tuple(placements))
        coordinate = mesh.get_coordinate()
        runs = [] if coordinate is None else layout.runs(tuple(coordinate))
        known[key] = layout, runs
    return known[key]


def regions_of(value: Sharded, name: str) -> list[tuple[Box, torch.Tensor]]:
    """Return the parts that this rank has of a ``DTensor``: views of its local tensor.

    Raises:
        TypeError: as :func:`layout_of`.
        RuntimeError: its local tensor is not as its placements say.
    """
    layout, runs = _laid_out(value, name)
    local = value.to_local().detach()
    if value.device_mesh.get_coordinate() is None or not math.prod(layout.shape):
        return []
    expected = [sum(count for _, count in each) for each in runs]
    if not math.prod(expected):
        return []
    if expected != list(local.shape):
        raise RuntimeError(
            f"the part of this rank of {name} has the shape {list(local.shape)}, and "
            f"{expected} by its placements"
        )
    found = []
    places = [
        list(itertools.accumulate((n for _, n in each), initial=0)) for each in runs
    ]
    for numbers in itertools.product(*(range(len(each)) for each in runs)):
        region = local
        for dim, number in enumerate(numbers):
            region = region.narrow(dim, places[dim][number], runs[dim][number][1])
        offsets = tuple(runs[dim][number][0] for dim, number in enumerate(numbers))
        found.append(((offsets, tuple(region.shape)), region))
    return found
