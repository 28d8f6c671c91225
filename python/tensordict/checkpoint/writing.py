"""The files of a step: safetensors, their index, and what is linked from the step before."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.checkpoint.distributed import rank_file
from tensordict.checkpoint.headers import TEXTS, header_digest
from tensordict.checkpoint.steps import META, VERSION, Step, meta_bytes, step_name
from tensordict.storage.layouts.safetensors import balanced, planned
from tensordict.storage.safetensors_levels import count_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tensordict.checkpoint.shares import Shared
    from tensordict.checkpoint.turns import Part
    from tensordict.storage.safetensors_levels import Leaf

__all__ = ["Plan", "num_threads", "plan_step"]

SHARDED_FROM = 16 << 20
"""An item of fewer bytes is one file: threads would gain nothing from several."""

OWN_FILE_FROM = 16 << 10
"""With ``dedupe`` a tensor of so many bytes is a file of its own."""


@dataclass
class Plan:
    """A step, or the part of a rank, as the native writer takes it."""

    folder: Path
    """The place of the steps."""
    target: Path
    """The directory that it becomes."""
    files: list[Any]
    """Names, tensors and texts of the files of tensors."""
    known: list[tuple[str, bytes]]
    """Names and bytes of further files."""
    linked: list[tuple[str, str]]
    """Names, and files of an older step that get them."""
    retired: list[Path]
    """Steps that are deleted once this one is there."""
    gathered: tuple[list[Part], float]
    """Parts of other ranks, and how many seconds they are waited for."""
    meta: dict[str, Any]
    """The description."""
    writers: Sequence[int] = ()
    """The ranks that write the parts of others, as errors name them. Default: from 1 on."""

    def arguments(self) -> Any:
        """Return the arguments of ``_rust.save_step``."""
        retired = [str(path) for path in self.retired]
        parts, seconds = self.gathered
        writers = self.writers or range(1, len(parts) + 1)
        named = [(*part, rank) for part, rank in zip(parts, writers, strict=True)]
        return (
            *(str(self.folder), str(self.target), self.files, self.known, self.linked),
            *(retired, (named, seconds)),
        )

    @property
    def description(self) -> bytes:
        """The bytes of the file that describes the step."""
        return dict(self.known)[META]


def plan_step(
    folder: Path,
    number: int,
    shared: Shared,
    fields: dict[str, Any],
    *,
    shards: int | None,
    retired: list[Step],
    before: tuple[Path, dict[str, Any]] | None = None,
    dedupe: bool = False,
    digest_threads: int = 0,
    rank: int = 0,
    target: Path | None = None,
    gathered: tuple[list[Part], float] = ([], 0.0),
    writers: Sequence[int] = (),
) -> Plan:
    """Plan the files of a step.

    Args:
        folder: where the steps are.
        number: the number of the step.
        shared: its items, and what this rank writes of them.
        fields: what else its description says.
        shards: how many files an item has. Default: by its size.
        retired: the steps that are deleted once this one is there.
        before: the step to whose files unchanged tensors are linked, and its description.
        dedupe: whether tensors are files that the next step can link to.
        digest_threads: the most threads that take checksums.
        rank: whose part it is.
        target: where it is written, if not at the place of the step.
        gathered: parts of other ranks, and how many seconds they are waited for.
        writers: the ranks that write these parts, as errors name them.
    """
    files: list[Any] = []
    known: list[tuple[str, bytes]] = []
    linked: list[tuple[str, str]] = []
    items: dict[str, Any] = {}
    digests = _digests(
        [one.tensors for one in shared.items], digest_threads if dedupe else None
    )
    for one, found in zip(shared.items, digests, strict=True):
        about = dict(one.about)
        if one.is_shared:
            about = one.kind.part_of_rank(about, rank)
        groups = _grouped(one.tensors, shards, dedupe=dedupe)
        names = _names(_stem(one.name, rank), len(groups))
        about["files"] = names
        about["headers"] = [_digest_of(group) for group in groups]
        if dedupe:
            about["digests"] = found
            about["grouped"] = [list(group) for group in groups]
        unchanged = _unchanged(one.name, about, before) if dedupe else {}
        for name, group in zip(names, groups, strict=True):
            old = unchanged.get(tuple(group))
            if old is not None:
                linked.append((name, old))
            else:
                files.append((name, planned(group), TEXTS))
        if not rank:
            others = shared.whole.get(one.name, {})
            placed = list(zip(names, groups, strict=True))
            is_readable = about.get("parts", {}).keys() <= {
                name for each in others.values() for name in each
            }
            for other in range(1, len(shared.threads)) if is_readable else ():
                placed += _written_by(
                    one.name, other, others, shared, shards, dedupe=dedupe
                )
            if len(placed) > 1:
                index = f"{one.name}.safetensors.index.json"
                known.append((index, _index(placed)))
            known += one.files
        items[one.name] = about
    meta = {
        "format": "tensordict.checkpoint",
        "version": VERSION,
        "step": number,
        **fields,
        "items": items,
    }
    if shared.grids and not rank:
        meta["grids"] = shared.grids
    known.append((rank_file(rank) if rank else META, meta_bytes(meta)))
    place = target or folder / step_name(number)
    paths = [step.path for step in retired]
    return Plan(folder, place, files, known, linked, paths, gathered, meta, writers)


def _digest_of(tensors: dict[str, Leaf]) -> str:
    """Return the digest of the header of a file of some tensors."""
    return header_digest(
        (name, str(leaf.dtype).removeprefix("torch."), leaf.shape, count_bytes(leaf))
        for name, leaf in tensors.items()
    )


def _stem(item: str, rank: int) -> str:
    return f"{item}-rank-{rank:05}" if rank else item


def _grouped(
    tensors: dict[str, Leaf], shards: int | None, *, dedupe: bool, threads: int = 0
) -> list[dict[str, Leaf]]:
    """The tensors of each file of an item."""
    return _groups(tensors) if dedupe else _shards(tensors, shards, threads)


def _written_by(
    item: str,
    rank: int,
    whole: Mapping[int, Mapping[str, int]],
    shared: Shared,
    shards: int | None,
    *,
    dedupe: bool,
) -> list[tuple[str, dict[str, Leaf]]]:
    """The files in which another rank has whole tensors, which it writes alone."""
    tensors: dict[str, Leaf] = {
        name: torch.empty(num_bytes, dtype=torch.uint8, device="meta")
        for name, num_bytes in whole.get(rank, {}).items()
    }
    threads = shared.threads[rank]
    groups = _grouped(tensors, shards, dedupe=dedupe, threads=threads)
    return list(zip(_names(_stem(item, rank), len(groups)), groups, strict=True))


def _names(item: str, count: int) -> list[str]:
    if count <= 1:
        return [f"{item}.safetensors"][:count]
    return [
        f"{item}-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)
    ]


def _index(placed: list[tuple[str, dict[str, Leaf]]]) -> bytes:
    total = sum(count_bytes(leaf) for _, group in placed for leaf in group.values())
    weights = {tensor: name for name, group in placed for tensor in group}
    index = {"metadata": {"total_size": total}, "weight_map": weights}
    return (json.dumps(index, indent=2) + "\n").encode()


def _shards(
    tensors: dict[str, Leaf], count: int | None, threads: int
) -> list[dict[str, Leaf]]:
    """The tensors of each file."""
    if not tensors:
        return []
    if count is None:
        size = sum(map(count_bytes, tensors.values()))
        count = 1 if size < SHARDED_FROM else threads or num_threads()
    return [group for group in balanced(tensors, min(count, len(tensors))) if group]


def num_threads() -> int:
    """The number of threads that write the files of this process."""
    return min(8, len(os.sched_getaffinity(0)))


# Unchanged tensors --------------------------------------------------------------------


def _digests(
    items: list[dict[str, Leaf]], num_threads: int | None
) -> list[dict[str, str]]:
    """Return the digest that tells whether a tensor changed: checksum, dtype, shape.

    One call takes those of all items. None are taken where there are no threads for it.
    """
    found: list[dict[str, str]] = [{} for _ in items]
    if num_threads is None:
        return found
    plain = [
        (place, name, leaf)
        for place, tensors in zip(found, items, strict=True)
        for name, leaf in tensors.items()
        if isinstance(leaf, torch.Tensor)
    ]
    digests = _rust.tensor_digests([leaf for *_, leaf in plain], num_threads)
    for (place, name, leaf), digest in zip(plain, digests, strict=True):
        place[name] = f"{digest:016x} {str(leaf.dtype)[6:]} {list(leaf.shape)}"
    return found


def _groups(tensors: dict[str, Leaf]) -> list[dict[str, Leaf]]:
    """A file for each tensor that is not small, and one for those that are."""
    small: dict[str, Leaf] = {}
    groups: list[dict[str, Leaf]] = []
    for name, leaf in tensors.items():
        if count_bytes(leaf) < OWN_FILE_FROM:
            small[name] = leaf
        else:
            groups.append({name: leaf})
    return [small, *groups] if small else groups


def _unchanged(
    item: str, about: dict[str, Any], before: tuple[Path, dict[str, Any]] | None
) -> dict[tuple[str, ...], str]:
    """The files of the step before whose tensors are all as they were."""
    if before is None:
        return {}
    path, meta = before
    old = meta["items"].get(item, {})
    old_digests, digests = old.get("digests", {}), about["digests"]
    found = {}
    for name, group in zip(old.get("files", ()), old.get("grouped", ()), strict=False):
        if all(
            tensor in digests and digests[tensor] == old_digests.get(tensor)
            for tensor in group
        ):
            found[tuple(group)] = str(path / name)
    return found
