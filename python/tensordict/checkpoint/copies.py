"""Compare copies of ``DTensor`` shards that ranks hold on several meshes.

Copies on one mesh are equal by construction. If ranks have a ``DTensor`` of the same
name on different meshes, the tensors may belong to models that are trained separately:
a save that would keep the values of one of them is an error.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias

from tensordict import _rust
from tensordict.checkpoint.ranges import intersection
from tensordict.storage.sharded import regions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch

    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.items import Described
    from tensordict.storage.sharded import Box, Layout

__all__ = ["Copies", "apart_message", "compare_copies"]

_Place: TypeAlias = "tuple[str, str, Box]"
"""The item and name of a tensor, and the box of a shard."""

MSG_APART = (
    "Rank {own} saves its values of {count} of {item!r} that differ on {others}; the values "
    "of these ranks are lost. The first tensor is {name!r}. If the ranks train separate "
    "models, give each its own process_group= and folder, or pass per_rank=[{item!r}] to the "
    "checkpointer."
)
MSG_MESHES = (
    "Cannot save {item!r}: {count} differ between the rank {own} and {others}, which hold them "
    "on separate meshes. The first tensor is {name!r}. If the ranks train separate models, "
    "give each its own process_group= and folder, or pass per_rank=[{item!r}] to the "
    "checkpointer. If they train parts of one model, give the tensors different names. "
    "Nothing was saved."
)


class Copies:
    """The tensors that ranks hold on several meshes.

    Args:
        descriptions: the descriptions of items, each under the first rank that has it.
    """

    def __init__(self, descriptions: Mapping[int, Mapping[str, Any]]) -> None:
        layouts: dict[tuple[str, str], dict[Layout, None]] = {}
        for described in descriptions.values():
            for item, description in described.items():
                if description.get("is_per_rank"):
                    continue
                for name, (layout, _) in description["sharded"].items():
                    layouts.setdefault((item, name), {})[layout] = None
        # Tensors with equal placements form a kind: a rank that has copies of one of
        # them has copies of all.
        alike: dict[frozenset[Any], int] = {}
        self._kinds: dict[tuple[str, str], int] = {
            name: alike.setdefault(
                frozenset(
                    (layout.ranks, layout.mesh, layout.placements)
                    for layout in layouts_of_name
                ),
                len(alike),
            )
            for name, layouts_of_name in layouts.items()
            if len({layout.ranks for layout in layouts_of_name}) > 1
            # Other shapes are an error of the plan, which names them.
            and len({layout.shape for layout in layouts_of_name}) == 1
        }
        # Meshes that divide a tensor differently are compared piece by piece.
        self._divided: dict[tuple[str, str], tuple[Layout, ...]] = {
            name: tuple(layouts[name])
            for name in self._kinds
            if len({(layout.mesh, layout.placements) for layout in layouts[name]}) > 1
        }
        self._pieces: dict[tuple[tuple[Layout, ...], Box], list[Box]] = {}
        self._groups: list[tuple[int, list[int]]] | None = None

    @property
    def names(self) -> list[tuple[str, str]]:
        """Return the item and name of each of these tensors."""
        return list(self._kinds)

    def digests(self, items: Iterable[Described]) -> dict[_Place, int]:
        """Return the checksums of the shards of these tensors on this rank."""
        sharded = {item.name: item.sharded for item in items}
        regions = [
            ((item, name, box), region)
            for item, name in self._kinds
            if name in sharded.get(item, ())
            for shard in regions_of(sharded[item][name][1], name)
            for box, region in self._cut((item, name), *shard)
        ]
        checksums = _rust.tensor_digests([region for _, region in regions], 0)
        return dict(zip((place for place, _ in regions), checksums, strict=True))

    def _cut(
        self, name: tuple[str, str], box: Box, region: torch.Tensor
    ) -> Iterator[tuple[Box, torch.Tensor]]:
        """Yield the pieces of a shard that lie in one shard of each mesh."""
        layouts = self._divided.get(name)
        if layouts is None:
            yield box, region
            return
        if (layouts, box) not in self._pieces:
            pieces = [box]
            for layout in layouts:
                shards = layout.boxes()
                found = (
                    intersection(piece, shard) for piece in pieces for shard in shards
                )
                pieces = [piece for piece in found if piece is not None]
            self._pieces[layouts, box] = pieces
        for piece in self._pieces[layouts, box]:
            part = region
            for dim, (start, size) in enumerate(zip(*piece, strict=True)):
                part = part.narrow(dim, start - box[0][dim], size)
            yield piece, part

    def compare(
        self, checksums: Sequence[Mapping[_Place, int]]
    ) -> dict[tuple[str, str], list[int]]:
        """Return the tensors that differ, each with its ranks: the lowest one first.

        Args:
            checksums: the checksums of all ranks.
        """
        first: dict[_Place, tuple[int, int]] = {}
        differing: dict[tuple[str, str], list[int]] = {}
        groups: dict[tuple[int, tuple[_Place, ...]], list[int]] = {}
        for rank, digests in enumerate(checksums):
            for kind, places in self._by_kind(digests).items():
                groups.setdefault((kind, tuple(places)), []).append(rank)
            for place, digest in digests.items():
                lowest, lowest_digest = first.setdefault(place, (rank, digest))
                if lowest_digest != digest:
                    ranks = differing.setdefault(place[:2], [lowest])
                    if rank not in ranks:
                        ranks.append(rank)
        is_divided = sum(len(places) for _, places in groups) == len(first)
        if is_divided and not differing:
            self._groups = [(kind, ranks) for (kind, _), ranks in groups.items()]
        return differing

    def _by_kind(self, digests: Mapping[_Place, int]) -> dict[int, list[_Place]]:
        places_by_kind: dict[int, list[_Place]] = {}
        for place in digests:
            places_by_kind.setdefault(self._kinds[place[:2]], []).append(place)
        return places_by_kind

    @property
    def are_known(self) -> bool:
        """Whether :meth:`are_equal` can compare the next save."""
        return not self._kinds or self._groups is not None

    def summary(self, items: Iterable[Described]) -> dict[int, str]:
        """Return a digest of this rank's shards for each kind of tensor."""
        if not self._kinds:
            return {}
        digests = self.digests(items)
        return {
            kind: hashlib.sha256(
                repr([digests[place] for place in places]).encode()
            ).hexdigest()
            for kind, places in self._by_kind(digests).items()
        }

    def are_equal(self, summaries: Sequence[Mapping[int, str]]) -> bool:
        """Return whether the copies on all ranks are equal, judged by their summaries."""
        groups = self._groups or ()
        return all(
            len({summaries[rank].get(kind) for rank in ranks}) == 1
            for kind, ranks in groups
        )


def compare_copies(
    ranks: Ranks, descriptions: Mapping[int, Mapping[str, Any]], items: list[Described]
) -> tuple[Copies, dict[tuple[str, str], list[int]]]:
    """Compare copies on several meshes; return the buffers that differ, with their ranks.

    Args:
        ranks: the ranks; all of them call this.
        descriptions: the descriptions of items, each under the first rank that has it.
        items: the items of this rank.

    Raises:
        RuntimeError: parameters or states of optimizers differ.
    """
    copies = Copies(descriptions)
    if not copies.names:
        return copies, {}
    own_digests: Any = {}
    error: Exception | None = None
    try:
        own_digests = copies.digests(items)
    except Exception as caught:  # noqa: BLE001 (all ranks raise it)
        error = caught
    ranks.raise_together(error)
    differing = copies.compare(ranks.gather(own_digests))
    if differing:
        buffers = {item.name: item.buffers for item in items}
        text = apart_message(differing, ranks.rank, ranks.members, buffers, MSG_MESHES)
        for message in ranks.gather(text):
            if message is not None:
                raise RuntimeError(message)
    return copies, differing


def apart_message(
    differing: Mapping[tuple[str, str], Sequence[int]],
    own: int,
    members: Sequence[int],
    buffers: Mapping[str, frozenset[str]],
    template: str = MSG_APART,
) -> str | None:
    """Return a text about values of other ranks that are lost; None if there are none.

    Buffers may differ between replicas of a model, so they are ignored.

    Args:
        differing: the ranks whose values differ, by item and name, the saving rank
            first.
        own: the index of this rank.
        members: the global numbers of the ranks.
        buffers: the names of the buffers of each item.
        template: the text: a warning or an error.
    """
    lost = [
        (item, name, ranks)
        for (item, name), ranks in differing.items()
        if ranks[0] == own and name not in buffers.get(item, ())
    ]
    if not lost:
        return None
    item, name, (_, *others) = lost[0]
    count = sum(each == item for each, *_ in lost)
    ranks = ", ".join(str(members[rank]) for rank in others[:8])
    more = " and others" if len(others) > 8 else ""
    return template.format(
        own=members[own],
        count=f"{count} tensor{'s' if count > 1 else ''}",
        item=item,
        name=name,
        others=f"the rank{'s' if len(others) > 1 else ''} {ranks}{more}",
    )
