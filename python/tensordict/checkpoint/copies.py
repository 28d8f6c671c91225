"""Compare copies of ``DTensor`` shards that ranks hold on several meshes.

Copies on one mesh are equal by construction. If ranks have a ``DTensor`` of the same
name on different meshes, the tensors may belong to models that are trained separately.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias

from tensordict import _rust
from tensordict.storage.sharded import regions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tensordict.checkpoint.items import Described
    from tensordict.storage.sharded import Box

__all__ = ["Copies", "apart_message"]

_Place: TypeAlias = "tuple[str, str, Box]"
"""The item and name of a tensor, and the box of a shard."""

MSG_APART = (
    "Rank {own} saves its values of {count} of {item!r} that differ on {others}; the values "
    "of these ranks are lost. The first tensor is {name!r}. If the ranks train separate "
    "models, give each its own process_group= and folder."
)


class Copies:
    """The tensors that ranks hold on several meshes.

    Args:
        descriptions: the descriptions of items, each under the first rank that has it.
    """

    def __init__(self, descriptions: Mapping[int, Mapping[str, Any]]) -> None:
        layouts: dict[tuple[str, str], set[Any]] = {}
        for described in descriptions.values():
            for item, description in described.items():
                for name, (layout, _) in description["sharded"].items():
                    placement = layout.ranks, layout.mesh, layout.placements
                    layouts.setdefault((item, name), set()).add(placement)
        # Tensors with equal placements form a kind: a rank that has copies of one of
        # them has copies of all.
        alike: dict[frozenset[Any], int] = {}
        self._kinds: dict[tuple[str, str], int] = {
            name: alike.setdefault(frozenset(placements), len(alike))
            for name, placements in layouts.items()
            if len({ranks for ranks, *_ in placements}) > 1
        }
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
            for box, region in regions_of(sharded[item][name][1], name)
        ]
        checksums = _rust.tensor_digests([region for _, region in regions], 0)
        return dict(zip((place for place, _ in regions), checksums, strict=True))

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


def apart_message(
    differing: Mapping[tuple[str, str], Sequence[int]],
    own: int,
    members: Sequence[int],
    buffers: Mapping[str, frozenset[str]],
) -> str | None:
    """Return a warning about values of other ranks that are lost; None if there are none.

    Buffers may differ between replicas of a model, so they are ignored.

    Args:
        differing: the ranks whose values differ, by item and name, the saving rank
            first.
        own: the index of this rank.
        members: the global numbers of the ranks.
        buffers: the names of the buffers of each item.
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
    return MSG_APART.format(
        own=members[own],
        count=f"{count} tensor{'s' if count > 1 else ''}",
        item=item,
        name=name,
        others=f"the rank{'s' if len(others) > 1 else ''} {ranks}{more}",
    )
