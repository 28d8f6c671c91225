"""Plan the files of a step: safetensors files, their index, and links to older files."""

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

    from tensordict.checkpoint.items import Described
    from tensordict.checkpoint.shares import Shared
    from tensordict.checkpoint.turns import Part
    from tensordict.storage.safetensors_levels import Leaf

__all__ = ["Plan", "num_threads", "plan_step"]

SHARDED_FROM = 16 << 20
"""An item of fewer bytes is one file, since several threads would not be faster."""

OWN_FILE_FROM = 16 << 10
"""With ``dedupe``, a tensor of at least so many bytes gets its own file."""


@dataclass
class Plan:
    """A step, or the part of a rank, in the form for the native writer."""

    folder: Path
    """The folder of the steps."""
    target: Path
    """The directory that is written."""
    files: list[Any]
    """Names, tensors and texts of the safetensors files."""
    known: list[tuple[str, bytes]]
    """Names and contents of further files."""
    linked: list[tuple[str, str]]
    """File names, each with the older file that is hard-linked under this name."""
    retired: list[Path]
    """Steps to delete after this step is complete."""
    gathered: tuple[list[Part], float]
    """Parts of other ranks, and the seconds to wait for them."""
    meta: dict[str, Any]
    """The description of the step."""
    writers: Sequence[int] = ()
    """The ranks that write the other parts, for error messages. Default: from 1 on."""

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
        """The content of ``meta.json``."""
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
        folder: the folder of the steps.
        number: the number of the step.
        shared: the items, as far as this rank writes them.
        fields: further fields of the description.
        shards: the number of files of each item. Default: by its size.
        retired: the steps to delete after this one is complete.
        before: the step to whose files unchanged tensors are linked, and its
            description.
        dedupe: whether to write files that the next step can link to.
        digest_threads: the most threads that compute checksums.
        rank: the rank whose part is planned.
        target: the directory of the part. Default: the directory of the step.
        gathered: parts of other ranks, and the seconds to wait for them.
        writers: the ranks that write these parts, for error messages.
    """
    files: list[Any] = []
    other_files: list[tuple[str, bytes]] = []
    linked: list[tuple[str, str]] = []
    items: dict[str, Any] = {}
    # Of a step of several ranks, no file may be named as if it held a whole item.
    part = rank if "world" in fields else None
    digests = _digests(
        [item.tensors for item in shared.items], digest_threads if dedupe else None
    )
    for item, item_digests in zip(shared.items, digests, strict=True):
        metadata = dict(item.metadata)
        if item.is_shared:
            metadata = item.kind.part_of_rank(metadata, rank)
        groups = _grouped(item.tensors, shards, dedupe=dedupe)
        names = _names(_stem(item.name, part), len(groups))
        metadata["files"] = names
        metadata["headers"] = [_digest_of(group) for group in groups]
        if dedupe:
            metadata["digests"] = item_digests
            metadata["grouped"] = [list(group) for group in groups]
        unchanged = _unchanged(item.name, metadata, before) if dedupe else {}
        for name, group in zip(names, groups, strict=True):
            old_file = unchanged.get(tuple(group))
            if old_file is not None:
                linked.append((name, old_file))
            else:
                files.append((name, planned(group), TEXTS))
        if not rank:
            placed = list(zip(names, groups, strict=True))
            if part is not None:
                placed = _of_all_ranks(item, placed, shared, shards, dedupe=dedupe)
            if len(placed) > 1 or (placed and part is not None):
                index = f"{item.name}.safetensors.index.json"
                other_files.append((index, _index(placed)))
            other_files += item.files
        items[item.name] = metadata
    meta = {
        "format": "tensordict.checkpoint",
        "version": VERSION,
        "step": number,
        **fields,
        "items": items,
    }
    if shared.grids and not rank:
        meta["grids"] = shared.grids
    other_files.append((rank_file(rank) if rank else META, meta_bytes(meta)))
    place = target or folder / step_name(number)
    paths = [step.path for step in retired]
    return Plan(
        folder, place, files, other_files, linked, paths, gathered, meta, writers
    )


def _digest_of(tensors: dict[str, Leaf]) -> str:
    """Return the digest of the header of a file with these tensors."""
    return header_digest(
        (name, str(leaf.dtype).removeprefix("torch."), leaf.shape, count_bytes(leaf))
        for name, leaf in tensors.items()
    )


def _stem(item: str, rank: int | None) -> str:
    return item if rank is None else f"{item}-rank-{rank:05}"


def _grouped(
    tensors: dict[str, Leaf], shards: int | None, *, dedupe: bool, threads: int = 0
) -> list[dict[str, Leaf]]:
    """Group the tensors of an item into files."""
    return _groups(tensors) if dedupe else _shards(tensors, shards, threads)


def _of_all_ranks(
    item: Described,
    placed: list[tuple[str, dict[str, Leaf]]],
    shared: Shared,
    shards: int | None,
    *,
    dedupe: bool,
) -> list[tuple[str, dict[str, Leaf]]]:
    """Return the files of an item that several ranks write, with their tensors.

    The result is empty if some tensor is divided, or if each rank has its own item: an
    index that other libraries read would then lack values.

    Args:
        item: the item.
        placed: the files of rank 0, with their tensors.
        shared: the items, as far as rank 0 writes them.
        shards: the number of files of each item. Default: by its size.
        dedupe: whether tensors have their own files.
    """
    others = shared.whole.get(item.name, {})
    ranks = range(1, len(shared.threads))
    known = {name for rank in ranks for name in others.get(rank, {})}
    if not item.is_shared or not item.metadata.get("parts", {}).keys() <= known:
        return []
    for rank in ranks:
        placed = placed + _written_by(
            item.name, rank, others, shared, shards, dedupe=dedupe
        )
    return placed


def _written_by(
    item: str,
    rank: int,
    sizes: Mapping[int, Mapping[str, int]],
    shared: Shared,
    shards: int | None,
    *,
    dedupe: bool,
) -> list[tuple[str, dict[str, Leaf]]]:
    """Return the files into which another rank writes undivided tensors."""
    tensors: dict[str, Leaf] = {
        name: torch.empty(num_bytes, dtype=torch.uint8, device="meta")
        for name, num_bytes in sizes.get(rank, {}).items()
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
    """Group tensors into files of similar sizes."""
    if not tensors:
        return []
    if count is None:
        size = sum(map(count_bytes, tensors.values()))
        count = 1 if size < SHARDED_FROM else threads or num_threads()
    return [group for group in balanced(tensors, min(count, len(tensors))) if group]


def num_threads() -> int:
    """Return the number of threads that write the files of this process."""
    return min(8, len(os.sched_getaffinity(0)))


# Unchanged tensors --------------------------------------------------------------------


def _digests(
    items: list[dict[str, Leaf]], num_threads: int | None
) -> list[dict[str, str]]:
    """Return digests that show whether tensors changed: checksum, dtype and shape.

    One native call computes the checksums of all items. ``num_threads=None`` computes
    none.
    """
    digests_by_item: list[dict[str, str]] = [{} for _ in items]
    if num_threads is None:
        return digests_by_item
    plain = [
        (item_digests, name, leaf)
        for item_digests, tensors in zip(digests_by_item, items, strict=True)
        for name, leaf in tensors.items()
        if isinstance(leaf, torch.Tensor)
    ]
    digests = _rust.tensor_digests([leaf for *_, leaf in plain], num_threads)
    for (item_digests, name, leaf), digest in zip(plain, digests, strict=True):
        item_digests[name] = f"{digest:016x} {str(leaf.dtype)[6:]} {list(leaf.shape)}"
    return digests_by_item


def _groups(tensors: dict[str, Leaf]) -> list[dict[str, Leaf]]:
    """Group tensors into files: one for all small tensors, one for each other tensor."""
    small: dict[str, Leaf] = {}
    groups: list[dict[str, Leaf]] = []
    for name, leaf in tensors.items():
        if count_bytes(leaf) < OWN_FILE_FROM:
            small[name] = leaf
        else:
            groups.append({name: leaf})
    return [small, *groups] if small else groups


def _unchanged(
    item: str, metadata: dict[str, Any], before: tuple[Path, dict[str, Any]] | None
) -> dict[tuple[str, ...], str]:
    """Return the files of the previous step whose tensors are all unchanged."""
    if before is None:
        return {}
    path, meta = before
    old = meta["items"].get(item, {})
    old_digests, digests = old.get("digests", {}), metadata["digests"]
    unchanged_files = {}
    for name, group in zip(old.get("files", ()), old.get("grouped", ()), strict=False):
        if all(
            tensor in digests and digests[tensor] == old_digests.get(tensor)
            for tensor in group
        ):
            unchanged_files[tuple(group)] = str(path / name)
    return unchanged_files
