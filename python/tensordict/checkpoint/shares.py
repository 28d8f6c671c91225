"""The share of each rank in a step: each part of a tensor once, divided over who has it."""

from __future__ import annotations

import hashlib
import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.checkpoint.copies import Copies, apart_message
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

    from tensordict.checkpoint.descriptions import Description, Plain
    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.items import Described
    from tensordict.storage.safetensors_levels import Leaf
    from tensordict.storage.sharded import Box, Sharded

__all__ = ["Shared", "Sharer"]

DIVIDED_FROM = 1 << 20
"""A part of fewer bytes is written by one of the ranks that have it."""

MSG_OTHER = (
    "Cannot save {item!r}: the ranks {one} and {other} have the name {name!r} for different "
    "things, {why}. Give them names of their own, as those of the whole model, or make the "
    "checkpointer with per_rank=[{item!r}]. Nothing was saved."
)


MSG_ALONE = (
    "Cannot save {!r}: {} ranks have parts of the DTensor {!r}, and this process saves alone. "
    "All ranks save together, and not in the handler of a signal that comes upon a save: "
    "use reached_preemption. Nothing was saved."
)


MSG_OUTSIDE = (
    "Cannot save {item!r}: the DTensor {name!r} has parts on the ranks {others}, which are not "
    "in the process_group of the checkpointer, the ranks {members}. Give it a group of all "
    "ranks that have parts. Nothing was saved."
)


class Shared(NamedTuple):
    """The part of a step that this rank writes."""

    items: list[Described]
    grids: list[list[Any]]
    """The places of the parts of tensors, and the rank that has written each."""
    whole: dict[str, dict[int, dict[str, int]]]
    """By item and rank the tensors that are not divided, with their bytes."""
    threads: list[int]
    """The number of threads that write, by rank."""
    warning: str | None = None
    """The text that tells of values of other ranks that are lost."""


class _Known(NamedTuple):
    """The division of the last step, which holds while nothing changes."""

    layouts: list[str]
    plan: _Plan
    copies: Copies


class Sharer:
    """Divides the parts of steps over the ranks that have them.

    Args:
        ranks: the ranks; None for a process alone.
    """

    def __init__(self, ranks: Ranks | None) -> None:
        self.ranks = ranks
        self._known: _Known | None = None

    def share_all(self, items: list[Described]) -> Shared:
        """Agree as :meth:`share` does; what one rank meets is raised on all.

        Raises:
            RuntimeError: two ranks have the same name for different things.
        """
        if self.ranks is None or not self.ranks.here:
            return self.share(items)
        error: Exception | None = None
        shared: Any = None
        try:
            shared = self.share(items)
        except Exception as found:  # noqa: BLE001 (it is raised on all ranks)
            error = found
        # Each folder has a plan of its own.
        self.ranks.raise_together(error)
        made: Shared = shared
        return made

    def share(self, items: list[Described]) -> Shared:
        """Agree with the other ranks on what each of them writes.

        Raises:
            RuntimeError: two ranks have the same name for different things.
        """
        rank = 0 if self.ranks is None else self.ranks.rank
        own = {item.name: describe_for_others(item) for item in items}
        plain = [
            (item.name, name, leaf)
            for item in items
            if item.is_shared
            for name, leaf in item.tensors.items()
        ]
        if self.ranks is None:
            if not any(item.sharded for item in items):
                return Shared(items, [], {}, [0])
            here = _own_rank()
            _refuse_others(items, here)
            return _Plan({0: own}, {}, 1, members=[here]).part_of(rank, items, [0])
        digests, summary = self._checksums(plain, items)
        layout = digest_of(own)
        values = hashlib.sha256(repr(digests).encode()).hexdigest()
        told = self.ranks.gather((layout, values, num_threads(), summary))
        layouts, threads = [each for each, *_ in told], [each[2] for each in told]
        has_equal_values = len({each for _, each, *_ in told}) == 1
        if (
            has_equal_values
            and self._known is not None
            and self._known.layouts == layouts
            and self._known.copies.are_equal([each[3] for each in told])
        ):
            return self._known.plan.part_of(rank, items, threads)
        descriptions = {0: own}
        by_name: dict[tuple[str, str], dict[int, int]] = {}
        abouts: dict[int, Any] = {}
        if not has_equal_values or len(set(layouts)) > 1:
            is_first = layouts.index(layout) == rank
            shared = {item.name: item.about for item in items if item.is_shared}
            names = [(item, name) for item, name, _ in plain]
            found = self.ranks.gather(
                ((own, shared, names) if is_first else None, digests)
            )
            descriptions = {}
            for number, (first, numbers) in enumerate(found):
                lowest = layouts.index(layouts[number])
                if first is not None and lowest == number:
                    descriptions[number], abouts[number] = first[0], first[1]
                for name, digest in zip(found[lowest][0][2], numbers, strict=True):
                    by_name.setdefault(name, {})[number] = digest
        copies, apart = self._compare_copies(descriptions, items)
        members, here = self.ranks.members, self.ranks.here
        plan = _Plan(descriptions, by_name, len(members), layouts, members, here, apart)
        is_kept = (
            has_equal_values and copies.are_known and have_equal_names(descriptions)
        )
        self._known = _Known(layouts, plan, copies) if is_kept else None
        merge(items, {members[place]: about for place, about in abouts.items()})
        return plan.part_of(rank, items, threads)

    def _checksums(
        self, plain: list[tuple[str, str, Leaf]], items: list[Described]
    ) -> tuple[list[int], dict[int, str]]:
        """Return the checksums of plain tensors, and a summary of those of known copies."""
        ranks: Any = self.ranks
        digests: list[int] = []
        summary: dict[int, str] = {}
        error: Exception | None = None
        try:
            digests = _rust.tensor_digests([tensor_of(leaf) for *_, leaf in plain], 0)
            if self._known is not None:
                summary = self._known.copies.summary(items)
        except Exception as failed:  # noqa: BLE001 (it is raised on all ranks)
            error = failed
        ranks.raise_together(error)
        return digests, summary

    def _compare_copies(
        self,
        descriptions: Mapping[int, Mapping[str, Description]],
        items: list[Described],
    ) -> tuple[Copies, dict[tuple[str, str], list[int]]]:
        """Compare what several meshes have; return the ranks that have other values, by name."""
        ranks: Any = self.ranks
        copies = Copies(descriptions)
        if not copies.names:
            return copies, {}
        own: Any = {}
        error: Exception | None = None
        try:
            own = copies.digests(items)
        except Exception as failed:  # noqa: BLE001 (it is raised on all ranks)
            error = failed
        ranks.raise_together(error)
        return copies, copies.compare(ranks.gather(own))


def _own_rank() -> int:
    is_there = torch.distributed.is_initialized()
    return torch.distributed.get_rank() if is_there else 0


def _refuse_others(items: list[Described], own: int) -> None:
    """Refuse tensors of which other ranks have parts, where this process saves alone."""
    for item in items:
        for name, (layout, _) in item.sharded.items():
            count = sum(math.prod(sizes) for _, sizes in layout.boxes({own: 0}))
            if count < math.prod(layout.shape):
                raise RuntimeError(MSG_ALONE.format(item.name, len(layout.ranks), name))


class _Plan:
    """The division of a step over ranks.

    Args:
        descriptions: those of ranks; of ranks that are described alike only the lowest's.
        digests: checksums of tensors by item and name, and by rank, where they differ.
        world: the number of ranks.
        layouts: what tells the descriptions of ranks apart, by rank.
        members: the numbers that meshes have for the ranks. Default: the same.
        here: the number of ranks, the first ones, that write to one folder, which is to
            have all that they have. Default: all.
        apart: the ranks that have values of their own of a ``DTensor``, by item and name.
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
        """The ranks with other values than the lowest one, which is the first."""
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
        # Bytes of plain tensors by rank, and of small parts by the place of who writes.
        self._loads = [0] * world
        self._turns: dict[int, list[int]] = {}
        self._total = 0
        # By item: the number of the grid of each name, and the ranks of whole tensors.
        self.parts: dict[str, dict[str, int]] = {}
        self.whole: dict[str, dict[int, dict[str, int]]] = {}
        self._divide()

    def _divide(self) -> None:
        # Item, name, parts with who has them, bytes of an element, how it may be cut.
        wanted: list[tuple[str, str, dict[Box, list[int]], int, str]] = []
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
                boxes, size = self._sharded(item, name)
                wanted.append((item, name, boxes, size, "sharded"))
            for name in names["plain"]:
                boxes, size, is_whole = self._plain(item, name, names["sharded"])
                wanted.append((item, name, boxes, size, "whole" if is_whole else ""))
        self._total = sum(
            math.prod(box[1]) * size
            for *_, boxes, size, how in wanted
            if how != "sharded"
            for box in boxes
        )
        # Tensors that may be divided go last, and even out those that may not.
        wanted.sort(key=lambda each: each[4] != "whole")
        for item, name, boxes, size, how in wanted:
            self._assign(item, name, boxes, size, how)

    def _having(self, item: str, kind: str, name: str) -> dict[int, Any]:
        return {
            first: described[item][kind][name]
            for first, described in self.descriptions.items()
            if name in described.get(item, {}).get(kind, ())
        }

    def _sharded(self, item: str, name: str) -> tuple[dict[Box, list[int]], int]:
        """The parts of a ``DTensor``, with the ranks that have each."""
        having = self._having(item, "sharded", name)
        first, (layout, dtype) = next(iter(having.items()))
        for other, (found, other_dtype) in having.items():
            if found.shape != layout.shape or dtype != other_dtype:
                why = f"{dtype} {list(layout.shape)} and {other_dtype} {list(found.shape)}"
                raise RuntimeError(self._other(item, name, first, other, why))
        layouts = tuple(dict.fromkeys(found for found, _ in having.values()))
        if (item, name) in self._apart:
            # Each mesh has all of it, and the one of the lowest rank counts.
            layouts = layouts[:1]
        if layouts not in self._boxes:
            boxes = layout.boxes(self._places)
            for found in layouts[1:]:
                for box, ranks in found.boxes(self._places).items():
                    boxes[box] = sorted({*boxes.get(box, ()), *ranks})
            count = sum(math.prod(box[1]) for box in boxes)
            if count > math.prod(layout.shape):
                # Meshes that cut it in other ways have it all, each.
                boxes = layout.boxes(self._places)
            elif count < math.prod(layout.shape):
                meshes = {rank for each in layouts for rank in each.ranks}
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
        """All of a tensor, with the ranks that have it with the same values."""
        having: dict[int, Plain] = self._having(item, "plain", name)
        first, plain = next(iter(having.items()))
        if name in sharded:
            other = next(iter(self._having(item, "sharded", name)))
            raise RuntimeError(
                self._other(item, name, first, other, "a tensor and a DTensor")
            )
        digests = self.digests.get((item, name), {})
        holders = self._of_here(
            sorted(rank for each in having for rank in self.members[each])
        )
        for other, found in having.items():
            why = ""
            if found[:2] != plain[:2]:
                why = f"{plain.dtype} {list(plain.shape)} and {found.dtype} {list(found.shape)}"
            elif digests.get(first) != digests.get(other) and self._differ(
                item, first, other
            ):
                why = "with other values"
            if why:
                raise RuntimeError(self._other(item, name, first, other, why))
        differing = [
            rank for rank in holders if digests.get(rank) != digests.get(holders[0])
        ]
        if differing:
            # The values of the lowest rank are saved where replicas differ, throughout.
            holders = holders[:1]
            self.differing[item, name] = [*holders, *differing]
        size = plain.num_bytes // max(1, math.prod(plain.shape))
        box: Box = ((0,) * len(plain.shape), plain.shape)
        return {box: holders}, size, plain.is_whole

    def _other(self, item: str, name: str, one: int, other: int, why: str) -> str:
        one, other = self._members[one], self._members[other]
        return MSG_OTHER.format(item=item, name=name, one=one, other=other, why=why)

    def _of_here(self, holders: list[int]) -> list[int]:
        """Return those of this folder; if it has none, one by which errors say where it is."""
        return [rank for rank in holders if rank < self.here] or holders[:1]

    def _differ(self, item: str, first: int, other: int) -> bool:
        """Return whether two ranks have other names in an item: they are no replicas."""
        one, two = (self.descriptions[rank][item] for rank in (first, other))
        return any(one[key] != two[key] for key in ("names", "parameters"))

    def _assign(
        self, item: str, name: str, boxes: Mapping[Box, list[int]], size: int, how: str
    ) -> None:
        """Choose the ranks that write the parts of a tensor."""
        key: Any
        if how == "sharded":
            # Tensors that lie alike are written alike, but for who writes small ones.
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
        """Tell the division of a tensor: the place of those who write, or None for all."""
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
        """Divide a tensor over the ranks that have it, by its first dim."""
        offsets, sizes = box
        num_bytes = math.prod(sizes) * size
        count = min(len(holders), num_bytes // DIVIDED_FROM, *sizes[:1])
        if is_whole or not sizes or count < 2:
            rank = min(holders, key=lambda each: (self._loads[each], each))
            self._loads[rank] += num_bytes
            return [[list(offsets), list(sizes), rank]]
        # Those that have least to write get what they lack of an equal share.
        holders = sorted(holders, key=lambda each: self._loads[each])[:count]
        target = self._total / self.here
        wants = [max(0.0, target - self._loads[rank]) for rank in holders]
        if not sum(wants):
            wants = [1.0] * count
        ends = [round(sizes[0] * each / sum(wants)) for each in accumulate(wants)]
        found = []
        for rank, start, stop in zip(holders, [0, *ends], ends, strict=False):
            if start < stop:
                found.append([[start, *offsets[1:]], [stop - start, *sizes[1:]], rank])
                self._loads[rank] += num_bytes * (stop - start) // sizes[0]
        return found

    def _own(self, number: int, rank: int) -> tuple[list[Box], bool]:
        """The parts of a grid that a rank writes, and whether the grid has one part alone."""
        if (number, rank) not in self._owned:
            grid = self.grids[number]
            own = [
                (tuple(offsets), tuple(sizes))
                for offsets, sizes, owner in grid
                if owner == rank
            ]
            self._owned[number, rank] = own, len(grid) == 1
        return self._owned[number, rank]

    def part_of(self, rank: int, items: list[Described], threads: list[int]) -> Shared:
        """Return what a rank writes of its items."""
        for item in items:
            parts = self.parts.get(item.name, {})
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
                own, is_one = self._own(parts[name], rank)
                tensors |= _parts_of(name, value, own, is_one=is_one)
            item.tensors = tensors
            if parts:
                item.about["parts"] = parts
        buffers = {item.name: item.buffers for item in items}
        warning = apart_message(self.differing, rank, self._members, buffers)
        return Shared(items, self.grids, self.whole, threads[: self.here], warning)


def _spread(boxes: Mapping[Box, list[int]], place: int | None) -> list[list[Any]]:
    """Divide the parts of a ``DTensor`` over the ranks that have each.

    Args:
        boxes: the parts, with the ranks that have each.
        place: which of these ranks writes a part. Default: each writes some rows of it.
    """
    if place is not None:
        return [
            [list(offsets), list(sizes), ranks[place % len(ranks)]]
            for (offsets, sizes), ranks in boxes.items()
        ]
    found = []
    for (offsets, sizes), ranks in boxes.items():
        ends = [sizes[0] * (number + 1) // len(ranks) for number in range(len(ranks))]
        for rank, start, stop in zip(ranks, [0, *ends], ends, strict=False):
            if start < stop:
                begin = [offsets[0] + start, *offsets[1:]]
                found.append([begin, [stop - start, *sizes[1:]], rank])
    return found


def _parts_of(
    name: str, value: Sharded, own: list[Box], *, is_one: bool
) -> dict[str, torch.Tensor]:
    """The parts of a ``DTensor`` that this rank writes, of those that it has."""
    found: dict[str, torch.Tensor] = {}
    if not own:
        return found
    for (begin, _), region in regions_of(value, name):
        for offsets, sizes in own:
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
            found[name if is_one else part_name(name, offsets)] = in_format(part)
    return found
