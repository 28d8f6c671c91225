"""Copies of the parts of a ``DTensor`` on several meshes, compared by their checksums.

Copies on one mesh are equal by construction. Where ranks have a ``DTensor`` of one name on
meshes of their own, they may also be models that train apart.
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
"""The item and name of a tensor, and the place of a part."""

MSG_APART = (
    "Rank {own} saves its values of {count} of {item!r} that differ on {others}, whose values "
    "are lost: {name!r} is the first. Ranks that train apart need a process_group= and a "
    "folder of their own."
)


class Copies:
    """The tensors that ranks have on several meshes.

    Args:
        descriptions: the descriptions of items, by the first rank that has each.
    """

    def __init__(self, descriptions: Mapping[int, Mapping[str, Any]]) -> None:
        layouts: dict[tuple[str, str], set[Any]] = {}
        for described in descriptions.values():
            for item, about in described.items():
                for name, (layout, _) in about["sharded"].items():
                    how = layout.ranks, layout.mesh, layout.placements
                    layouts.setdefault((item, name), set()).add(how)
        # Of tensors that lie alike, a rank has copies of all the parts of another or of none.
        alike: dict[frozenset[Any], int] = {}
        self._kinds: dict[tuple[str, str], int] = {
            name: alike.setdefault(frozenset(found), len(alike))
            for name, found in layouts.items()
            if len({ranks for ranks, *_ in found}) > 1
        }
        self._groups: list[tuple[int, list[int]]] | None = None

    @property
    def names(self) -> list[tuple[str, str]]:
        """The items and names of the tensors."""
        return list(self._kinds)

    def digests(self, items: Iterable[Described]) -> dict[_Place, int]:
        """Return the checksums of the parts that this rank has of these tensors."""
        sharded = {item.name: item.sharded for item in items}
        regions = [
            ((item, name, box), region)
            for item, name in self._kinds
            if name in sharded.get(item, ())
            for box, region in regions_of(sharded[item][name][1], name)
        ]
        found = _rust.tensor_digests([region for _, region in regions], 0)
        return dict(zip((place for place, _ in regions), found, strict=True))

    def compare(
        self, told: Sequence[Mapping[_Place, int]]
    ) -> dict[tuple[str, str], list[int]]:
        """Return the ranks that differ from the lowest one, which is the first, by item and name.

        Args:
            told: the checksums of all ranks.
        """
        first: dict[_Place, tuple[int, int]] = {}
        found: dict[tuple[str, str], list[int]] = {}
        groups: dict[tuple[int, tuple[_Place, ...]], list[int]] = {}
        for rank, digests in enumerate(told):
            for kind, places in self._by_kind(digests).items():
                groups.setdefault((kind, tuple(places)), []).append(rank)
            for place, digest in digests.items():
                lowest, known = first.setdefault(place, (rank, digest))
                if known != digest:
                    ranks = found.setdefault(place[:2], [lowest])
                    if rank not in ranks:
                        ranks.append(rank)
        is_divided = sum(len(places) for _, places in groups) == len(first)
        if is_divided and not found:
            self._groups = [(kind, ranks) for (kind, _), ranks in groups.items()]
        return found

    def _by_kind(self, digests: Mapping[_Place, int]) -> dict[int, list[_Place]]:
        found: dict[int, list[_Place]] = {}
        for place in digests:
            found.setdefault(self._kinds[place[:2]], []).append(place)
        return found

    @property
    def are_known(self) -> bool:
        """Return whether :meth:`are_equal` can tell the next time."""
        return not self._kinds or self._groups is not None

    def summary(self, items: Iterable[Described]) -> dict[int, str]:
        """Return a digest of the parts that this rank has, for each way in which they lie."""
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
        """Return whether the copies of all ranks are equal, by their summaries."""
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
    """Return what is lost of ranks that have other values than this one; None if nothing is.

    Buffers differ between replicas of a training, and nothing is lost of them.

    Args:
        differing: the ranks with other values than the lowest one, which is the first, by
            item and name.
        own: the place of this rank.
        members: the numbers of the ranks.
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
