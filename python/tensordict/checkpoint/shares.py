"""Divide a step over the ranks, so that each part of a tensor is written once."""

from __future__ import annotations

import hashlib
import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.checkpoint.copies import apart_message, compare_copies
from tensordict.checkpoint.descriptions import (
    describe_for_others,
    digest_of,
    have_equal_names,
    merge,
    tensor_of,
)
from tensordict.checkpoint.files import part_name
from tensordict.checkpoint.writing import num_threads
from tensordict.storage.encoding import in_format
from tensordict.storage.sharded import regions_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensordict.checkpoint.copies import Copies
    from tensordict.checkpoint.descriptions import Description, Plain
    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.items import Described
    from tensordict.storage.safetensors_levels import Leaf
    from tensordict.storage.sharded import Box, Layout, Sharded

__all__ = ["Shared", "Sharer"]

DIVIDED_FROM = 1 << 20
"""A part of fewer bytes is written by one rank, even if several ranks hold it."""

MSG_OTHER = (
    "Cannot save {item!r}: the ranks {one} and {other} have different tensors named {name!r}, "
    "{why}. Give them different names, such as the names in the whole model, or make the "
    "checkpointer with per_rank=[{item!r}]. Nothing was saved."
)


MSG_ALONE = (
    "Cannot save {!r}: {} ranks have parts of the DTensor {!r}, but this process saves alone. "
    "All ranks must save together, outside of a signal handler that interrupts a save: use "
    "reached_preemption. Nothing was saved."
)


MSG_OUTSIDE = (
    "Cannot save {item!r}: the DTensor {name!r} has parts on the ranks {others}, which are "
    "not in the process_group of the checkpointer, the ranks {members}. Pass a process_group of all "
    "ranks that have parts. Nothing was saved."
)


class Shared(NamedTuple):
    """The part of a step that this rank writes."""

    items: list[Described]
    grids: list[list[Any]]
    """The boxes of the parts of tensors, each with the rank that writes it."""
    whole: dict[str, dict[int, dict[str, int]]]
    """The undivided tensors by item and rank, each with its number of bytes."""
    threads: list[int]
    """The number of threads that write, by rank."""
    warning: str | None = None
    """A warning about values of other ranks that are lost."""


class _Known(NamedTuple):
    """The division of the last step, reused while nothing changes."""

    layouts: list[str]
    plan: _Plan
    copies: Copies


class Sharer:
    """The division of steps over the ranks that hold their tensors.

    Args:
        ranks: the ranks; None if there is one process.
    """

    def __init__(self, ranks: Ranks | None) -> None:
        self.ranks = ranks
        self._known: _Known | None = None

    def share_all(self, items: list[Described]) -> Shared:
        """Do the same as :meth:`share`, but raise an error of any rank on all ranks.

        Raises:
            RuntimeError: two ranks have different tensors of one name.
        """
        if self.ranks is None or not self.ranks.here:
            return self.share(items)
        error: Exception | None = None
        shared: Any = None
        try:
            shared = self.share(items)
        except Exception as caught:  # noqa: BLE001 (all ranks raise it)
            error = caught
        # Each folder has its own plan, so a plan may fail on some ranks only.
        self.ranks.raise_together(error)
        result: Shared = shared
        return result

    def share(self, items: list[Described]) -> Shared:
        """Agree with the other ranks on what each rank writes.

        Raises:
            RuntimeError: two ranks have different tensors of one name.
        """
        own_descriptions = {item.name: describe_for_others(item) for item in items}
        plain = [
            (item.name, name, leaf)
            for item in items
            if item.is_shared
            for name, leaf in item.tensors.items()
        ]
        if self.ranks is None:
            return _alone(items, own_descriptions)
        rank = self.ranks.rank
        digests, summary = self._checksums(plain, items)
        layout = digest_of(own_descriptions)
        values = hashlib.sha256(repr(digests).encode()).hexdigest()
        answers = self.ranks.gather((layout, values, num_threads(), summary))
        layouts, threads = (
            [answer for answer, *_ in answers],
            [answer[2] for answer in answers],
        )
        has_equal_values = len({answer for _, answer, *_ in answers}) == 1
        if (
            has_equal_values
            and self._known is not None
            and self._known.layouts == layouts
            and self._known.copies.are_equal([answer[3] for answer in answers])
        ):
            return self._known.plan.part_of(rank, items, threads)
        members, here = self.ranks.members, self.ranks.here
        descriptions = {0: own_descriptions}
        by_name: dict[tuple[str, str], dict[int, int]] = {}
        metadata_by_rank: dict[int, Any] = {}
        if not has_equal_values or len(set(layouts)) > 1:
            is_first = layouts.index(layout) == rank
            shared = {item.name: item.metadata for item in items if item.is_shared}
            names = [(item, name) for item, name, _ in plain]
            details = self.ranks.gather(
                ((own_descriptions, shared, names) if is_first else None, digests)
            )
            descriptions = {}
            for number, (first, numbers) in enumerate(details):
                lowest = layouts.index(layouts[number])
                if first is not None and lowest == number:
                    descriptions[number] = first[0]
                    metadata_by_rank[members[number]] = first[1]
                for name, digest in zip(details[lowest][0][2], numbers, strict=True):
                    by_name.setdefault(name, {})[number] = digest
        copies, differing = compare_copies(self.ranks, descriptions, items)
        plan = _Plan(
            descriptions, by_name, len(members), layouts, members, here, differing
        )
        is_kept = (
            has_equal_values and copies.are_known and have_equal_names(descriptions)
        )
        self._known = _Known(layouts, plan, copies) if is_kept else None
        merge(items, metadata_by_rank)
        return plan.part_of(rank, items, threads)

    def _checksums(
        self, plain: list[tuple[str, str, Leaf]], items: list[Described]
    ) -> tuple[list[int], dict[int, str]]:
        """Return the checksums of plain tensors, and a summary of known copies."""
        ranks: Any = self.ranks
        digests: list[int] = []
        summary: dict[int, str] = {}
        error: Exception | None = None
        try:
            digests = _rust.tensor_digests([tensor_of(leaf) for *_, leaf in plain], 0)
            if self._known is not None:
                summary = self._known.copies.summary(items)
        except Exception as caught:  # noqa: BLE001 (all ranks raise it)
            error = caught
        ranks.raise_together(error)
        return digests, summary


def _alone(items: list[Described], descriptions: Mapping[str, Description]) -> Shared:
    """Return what the only saving process writes: all of its items."""
    if not any(item.sharded for item in items):
        return Shared(items, [], {}, [0])
    here = _own_rank()
    _refuse_others(items, here)
    return _Plan({0: descriptions}, {}, 1, members=[here]).part_of(0, items, [0])


def _own_rank() -> int:
    is_there = torch.distributed.is_initialized()
    return torch.distributed.get_rank() if is_there else 0


def _refuse_others(items: list[Described], own_rank: int) -> None:
    """Refuse tensors with parts on other ranks if this process saves alone."""
    for item in items:
        for name, (layout, _) in item.sharded.items():
            count = sum(math.prod(sizes) for _, sizes in layout.boxes({own_rank: 0}))
            if count < math.prod(layout.shape):
                raise RuntimeError(MSG_ALONE.format(item.name, len(layout.ranks), name))


class _Plan:
    """The division of a step over ranks.

    Args:
        descriptions: the descriptions by rank; for ranks with equal descriptions, only
            the lowest rank's.
        digests: the checksums of tensors by item and name, then by rank, if ranks
            differ.
        world: the number of ranks.
        layouts: the digest of each rank's description. Default: all are equal.
        members: the global numbers of the ranks. Default: 0 to ``world``.
        here: the number of ranks, from the first on, that write into this folder.
            Everything that they hold must be in it. Default: all.
        apart: the ranks whose values of a ``DTensor`` differ, by item and name.
    """

    def __init__(
        self,
        descriptions: Mapping[int, Mapping[str, Description]],
        digests: Mapping[tuple[str, str], Mapping[int, int]],
        world: int,
        layouts: list[str] | None = None,
        members: Sequence[int] | None = None,
        here: int = 0,
        apart: Mapping[tuple[str, str], list[int]] | None = None,
    ) -> None:
        self.here: int = here or world
        self._apart = apart or {}
        self.differing: dict[tuple[str, str], list[int]] = {**self._apart}
        """The ranks whose values differ, by item and name; the saving rank is first."""
        self.descriptions = descriptions
        self.digests = digests
        self.world = world
        self._members: Sequence[int] = range(world) if members is None else members
        self._places: dict[int, int] = {
            member: place for place, member in enumerate(self._members)
        }
        layouts = layouts or [""] * world
        self.members: dict[int, list[int]] = {
            first: [rank for rank in range(world) if layouts[rank] == layouts[first]]
            for first in descriptions
        }
        if len(descriptions) == 1:
            self.members = {next(iter(descriptions)): list(range(world))}
        self.grids: list[list[Any]] = []
        self._owned: dict[tuple[int, int], tuple[list[Box], bool]] = {}
        self._numbers: dict[Any, int] = {}
        self._boxes: dict[Any, dict[Box, list[int]]] = {}
        self._copies: dict[int, tuple[int, tuple[int, ...]]] = {}
        # The bytes of plain tensors by rank, and of small parts by position among the
        # copies.
        self._loads = [0] * world
        self._turns: dict[int, list[int]] = {}
        self._total = 0
        # By item: the grid index of each name, and the undivided tensors by rank.
        # Of an item with `per_rank=`, the key is the name with the ranks of its mesh.
        self.parts: dict[str, dict[Any, int]] = {}
        self.whole: dict[str, dict[int, dict[str, int]]] = {}
        self._divide()

    def _divide(self) -> None:
        # Item, name, parts with their ranks, bytes of an element, and how it may be
        # divided.
        wanted: list[tuple[str, Any, dict[Box, list[int]], int, str]] = []
        items = dict.fromkeys(
            item for described in self.descriptions.values() for item in described
        )
        for item in items:
            names = {
                kind: dict.fromkeys(
                    name
                    for described in self.descriptions.values()
                    for name in described.get(item, {}).get(kind, ())
                )
                for kind in ("plain", "sharded")
            }
            for name in names["sharded"]:
                for key, layouts in self._by_mesh(item, name).items():
                    boxes, size = self._sharded(item, name, layouts)
                    wanted.append((item, key, boxes, size, "sharded"))
            for name in names["plain"]:
                boxes, size, is_whole = self._plain(item, name, names["sharded"])
                wanted.append((item, name, boxes, size, "whole" if is_whole else ""))
        self._total = sum(
            math.prod(box[1]) * size
            for *_, boxes, size, how in wanted
            if how != "sharded"
            for box in boxes
        )
        # Divisible tensors are assigned last, so that they even out the undivided ones.
        wanted.sort(key=lambda each: each[4] != "whole")
        for item, name, boxes, size, how in wanted:
            self._assign(item, name, boxes, size, how)

    def _described_by(self, item: str, kind: str, name: str) -> dict[int, Any]:
        return {
            first: described[item][kind][name]
            for first, described in self.descriptions.items()
            if name in described.get(item, {}).get(kind, ())
        }

    def _by_mesh(
        self, item: str, name: str
    ) -> dict[Any, dict[int, tuple[Layout, str]]]:
        """Return the layouts and dtypes of a ``DTensor`` by rank, for each saved tensor."""
        found: dict[int, tuple[Layout, str]] = self._described_by(item, "sharded", name)
        if not self.descriptions[next(iter(found))][item].get("is_per_rank"):
            return {name: found}
        by_mesh: dict[Any, dict[int, tuple[Layout, str]]] = {}
        for first, (layout, dtype) in found.items():
            by_mesh.setdefault((name, layout.ranks), {})[first] = layout, dtype
        return by_mesh

    def _sharded(
        self, item: str, name: str, layouts_by_rank: Mapping[int, tuple[Layout, str]]
    ) -> tuple[dict[Box, list[int]], int]:
        """Return the boxes of a ``DTensor`` with their ranks, and the element size."""
        first, (layout, dtype) = next(iter(layouts_by_rank.items()))
        for other, (other_layout, other_dtype) in layouts_by_rank.items():
            if other_layout.shape != layout.shape or dtype != other_dtype:
                why = f"{dtype} {list(layout.shape)} and {other_dtype} {list(other_layout.shape)}"
                raise RuntimeError(self._conflict(item, name, first, other, why))
        layouts = tuple(
            dict.fromkeys(other_layout for other_layout, _ in layouts_by_rank.values())
        )
        if (item, name) in self._apart:
            # Each mesh has the whole tensor; the mesh of the lowest rank is saved.
            layouts = layouts[:1]
        if layouts not in self._boxes:
            boxes = layout.boxes(self._places)
            for other_layout in layouts[1:]:
                for box, ranks in other_layout.boxes(self._places).items():
                    boxes[box] = sorted({*boxes.get(box, ()), *ranks})
            count = sum(math.prod(box[1]) for box in boxes)
            if count > math.prod(layout.shape):
                # The meshes divide it differently, and each has the whole tensor.
                boxes = layout.boxes(self._places)
            elif count < math.prod(layout.shape):
                meshes = {rank for mesh_layout in layouts for rank in mesh_layout.ranks}
                raise RuntimeError(
                    MSG_OUTSIDE.format(
                        item=item,
                        name=name,
                        others=sorted(meshes.difference(self._members)),
                        members=list(self._members),
                    )
                )
            self._boxes[layouts] = {
                box: self._of_here(ranks) for box, ranks in boxes.items()
            }
        size = getattr(torch, dtype.removeprefix("torch.")).itemsize
        return self._boxes[layouts], size

    def _plain(
        self, item: str, name: str, sharded: Mapping[str, Any]
    ) -> tuple[dict[Box, list[int]], int, bool]:
        """Return the box of a whole tensor with the ranks that hold equal values of it."""
        plain_by_rank: dict[int, Plain] = self._described_by(item, "plain", name)
        first, plain = next(iter(plain_by_rank.items()))
        if name in sharded:
            other = next(iter(self._described_by(item, "sharded", name)))
            raise RuntimeError(
                self._conflict(item, name, first, other, "a tensor and a DTensor")
            )
        digests = self.digests.get((item, name), {})
        holders = self._of_here(
            sorted(
                rank
                for first_of_kind in plain_by_rank
                for rank in self.members[first_of_kind]
            )
        )
        for other, other_plain in plain_by_rank.items():
            why = ""
            if other_plain[:2] != plain[:2]:
                why = f"{plain.dtype} {list(plain.shape)} and {other_plain.dtype} {list(other_plain.shape)}"
            elif digests.get(first) != digests.get(other) and self._differ(
                item, first, other
            ):
                why = "with other values"
            if why:
                raise RuntimeError(self._conflict(item, name, first, other, why))
        differing = [
            rank for rank in holders if digests.get(rank) != digests.get(holders[0])
        ]
        if differing:
            # If replicas differ, the values of the lowest rank are saved for the whole
            # tensor.
            holders = holders[:1]
            self.differing[item, name] = [*holders, *differing]
        size = plain.num_bytes // max(1, math.prod(plain.shape))
        box: Box = ((0,) * len(plain.shape), plain.shape)
        return {box: holders}, size, plain.is_whole

    def _conflict(self, item: str, name: str, one: int, other: int, why: str) -> str:
        one, other = self._members[one], self._members[other]
        return MSG_OTHER.format(item=item, name=name, one=one, other=other, why=why)

    def _of_here(self, holders: list[int]) -> list[int]:
        """Return the ranks of this folder, or one other rank for error messages."""
        return [rank for rank in holders if rank < self.here] or holders[:1]

    def _differ(self, item: str, first: int, other: int) -> bool:
        """Return whether two ranks have different names in an item, so are no replicas."""
        first_names, other_names = (
            self.descriptions[rank][item] for rank in (first, other)
        )
        return any(
            first_names[key] != other_names[key] for key in ("names", "parameters")
        )

    def _assign(
        self, item: str, name: Any, boxes: Mapping[Box, list[int]], size: int, how: str
    ) -> None:
        """Choose the ranks that write the parts of a tensor."""
        key: Any
        if how == "sharded":
            # Tensors of equal layout share a grid, except for the ranks that write
            # small parts.
            key = self._key(boxes, size)
            if key not in self._numbers:
                self._add_grid(key, _spread(boxes, key[1]))
        else:
            ((box, holders),) = boxes.items()
            grid = self._written(box, holders, size, is_whole=how == "whole")
            if len(grid) == 1:
                _, sizes, rank = grid[0]
                whole = self.whole.setdefault(item, {}).setdefault(rank, {})
                whole[name] = math.prod(sizes) * size
                if rank == 0:
                    return
            key = repr(grid)
            if key not in self._numbers:
                self._add_grid(key, grid)
        self.parts.setdefault(item, {})[name] = self._numbers[key]

    def _add_grid(self, key: object, grid: list[Any]) -> None:
        self._numbers[key] = len(self.grids)
        self.grids.append(grid)

    def _key(self, boxes: Mapping[Box, list[int]], size: int) -> tuple[int, int | None]:
        """Return a division's key: the boxes, and the writer's position or None."""
        if id(boxes) not in self._copies:
            of_here = [ranks for ranks in boxes.values() if ranks[0] < self.here]
            copies = min(map(len, of_here), default=1)
            (_, sizes), _ = next(iter(boxes.items()), (((), ()), None))
            self._copies[id(boxes)] = copies, tuple(sizes)
        copies, sizes = self._copies[id(boxes)]
        num_bytes = math.prod(sizes) * size
        if copies == 1:
            return id(boxes), 0
        if num_bytes >= DIVIDED_FROM and sizes and sizes[0] >= copies:
            return id(boxes), None
        loads = self._turns.setdefault(copies, [0] * copies)
        place = loads.index(min(loads))
        loads[place] += num_bytes
        return id(boxes), place

    def _written(
        self, box: Box, holders: list[int], size: int, *, is_whole: bool
    ) -> list[list[Any]]:
        """Divide a tensor by its first dimension over the ranks that hold it."""
        offsets, sizes = box
        num_bytes = math.prod(sizes) * size
        count = min(len(holders), num_bytes // DIVIDED_FROM, *sizes[:1])
        if is_whole or not sizes or count < 2:
            rank = min(holders, key=lambda holder: (self._loads[holder], holder))
            self._loads[rank] += num_bytes
            return [[list(offsets), list(sizes), rank]]
        # Ranks with the least bytes so far are filled up to an equal total.
        holders = sorted(holders, key=lambda holder: self._loads[holder])[:count]
        target = self._total / self.here
        wants = [max(0.0, target - self._loads[rank]) for rank in holders]
        if not sum(wants):
            wants = [1.0] * count
        ends = [round(sizes[0] * total / sum(wants)) for total in accumulate(wants)]
        parts = []
        for rank, start, stop in zip(holders, [0, *ends], ends, strict=False):
            if start < stop:
                parts.append([[start, *offsets[1:]], [stop - start, *sizes[1:]], rank])
                self._loads[rank] += num_bytes * (stop - start) // sizes[0]
        return parts

    def _own(self, number: int, rank: int) -> tuple[list[Box], bool]:
        """Return a rank's boxes of a grid, and whether the grid has one box."""
        if (number, rank) not in self._owned:
            grid = self.grids[number]
            own_boxes = [
                (tuple(offsets), tuple(sizes))
                for offsets, sizes, owner in grid
                if owner == rank
            ]
            self._owned[number, rank] = own_boxes, len(grid) == 1
        return self._owned[number, rank]

    def part_of(self, rank: int, items: list[Described], threads: list[int]) -> Shared:
        """Return what a rank writes of its items."""
        for item in items:
            parts = self.parts.get(item.name, {})
            if item.is_per_rank:
                parts = {
                    name: parts[name, layout.ranks]
                    for name, (layout, _) in item.sharded.items()
                }
            tensors: dict[str, Leaf] = {}
            for name, leaf in item.tensors.items():
                grid = self.grids[parts[name]] if name in parts else None
                if not item.is_shared or (grid is None and rank == 0):
                    tensors[name] = leaf
                for offsets, sizes, owner in grid or ():
                    if owner != rank:
                        continue
                    if len(grid or ()) == 1:
                        tensors[name] = leaf
                    elif isinstance(leaf, torch.Tensor):
                        tensors[part_name(name, offsets)] = leaf.narrow(
                            0, offsets[0], sizes[0]
                        )
            for name, (_, value) in item.sharded.items():
                own_boxes, is_one = self._own(parts[name], rank)
                tensors |= _parts_of(name, value, own_boxes, is_one=is_one)
            item.tensors = tensors
            if parts:
                item.metadata["parts"] = parts
        buffers = {item.name: item.buffers for item in items}
        warning = apart_message(self.differing, rank, self._members, buffers)
        return Shared(items, self.grids, self.whole, threads[: self.here], warning)


def _spread(boxes: Mapping[Box, list[int]], place: int | None) -> list[list[Any]]:
    """Divide the parts of a ``DTensor`` over the ranks that hold each part.

    Args:
        boxes: the parts, each with the ranks that hold it.
        place: the position of the one rank that writes. Default: each rank writes some
            rows.
    """
    if place is not None:
        return [
            [list(offsets), list(sizes), ranks[place % len(ranks)]]
            for (offsets, sizes), ranks in boxes.items()
        ]
    parts = []
    for (offsets, sizes), ranks in boxes.items():
        ends = [sizes[0] * (number + 1) // len(ranks) for number in range(len(ranks))]
        for rank, start, stop in zip(ranks, [0, *ends], ends, strict=False):
            if start < stop:
                begin = [offsets[0] + start, *offsets[1:]]
                parts.append([begin, [stop - start, *sizes[1:]], rank])
    return parts


def _parts_of(
    name: str, value: Sharded, boxes: list[Box], *, is_one: bool
) -> dict[str, torch.Tensor]:
    """Return the parts of a ``DTensor`` that this rank holds and writes."""
    parts: dict[str, torch.Tensor] = {}
    if not boxes:
        return parts
    for (begin, _), region in regions_of(value, name):
        for offsets, sizes in boxes:
            starts = [
                first - start for first, start in zip(offsets, begin, strict=True)
            ]
            if not all(
                start >= 0 and start + size <= length
                for start, size, length in zip(starts, sizes, region.shape, strict=True)
            ):
                continue
            part = region
            for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
                part = part.narrow(dim, start, size)
            parts[name if is_one else part_name(name, offsets)] = in_format(part)
    return parts
