"""The files of a step: safetensors, their index, and what is linked from the step before."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tensordict import _rust
from tensordict.checkpoint.distributed import rank_file
from tensordict.checkpoint.steps import META, VERSION, Step, meta_bytes, step_name
from tensordict.storage.layouts.safetensors import balanced, planned
from tensordict.storage.safetensors_levels import count_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict.checkpoint.items import Described
    from tensordict.storage.safetensors_levels import Leaf

__all__ = ["Plan", "plan_step"]

SHARDED_FROM = 16 << 20
"""An item of fewer bytes is one file: threads would gain nothing from several."""

OWN_FILE_FROM = 16 << 10
"""With ``dedupe`` a tensor of so many bytes is a file of its own."""

Plan: TypeAlias = "tuple[str, str, list[Any], list[Any], list[tuple[str, str]], list[str], tuple[Any, float]]"
"""The arguments of ``_rust.save_step``."""

_TEXTS = [("format", "pt")]


def plan_step(
    folder: Path,
    number: int,
    described: list[Described],
    fields: dict[str, Any],
    *,
    shards: int | None,
    retired: list[Step],
    before: tuple[Path, dict[str, Any]] | None = None,
    dedupe: bool = False,
    num_threads: int = 0,
    rank: int = 0,
    target: Path | None = None,
    gathered: tuple[list[tuple[str, str]], float] = ([], 0.0),
) -> tuple[Plan, dict[str, Any]]:
    """Plan the files of a step.

    Args:
        folder: where the steps are.
        number: the number of the step.
        described: its items.
        fields: what else its description says.
        shards: how many files an item has. Default: by its size.
        retired: the steps that are deleted once this one is there.
        before: the step to whose files unchanged tensors are linked, and its description.
        dedupe: whether tensors are files that the next step can link to.
        num_threads: the most threads that take checksums.
        rank: whose part it is.
        target: where it is written, if not at the place of the step.
        gathered: parts of other ranks with the names of their processes, and how many
            seconds they are waited for.

    Returns:
        The plan, and the description of the step.
    """
    files: list[Any] = []
    known: list[tuple[str, bytes]] = []
    linked: list[tuple[str, str]] = []
    items: dict[str, Any] = {}
    parts = [(one, *_part_of(one, rank)) for one in described]
    digests = _digests(
        [tensors for *_, tensors in parts], num_threads if dedupe else None
    )
    for (one, about, tensors), found in zip(parts, digests, strict=True):
        stem = f"{one.name}-rank-{rank:05}" if rank else one.name
        if dedupe:
            about["digests"] = found
            groups = _groups(tensors)
        else:
            groups = _shards(tensors, shards)
        names = _names(stem, len(groups))
        about["files"] = names
        if dedupe:
            about["grouped"] = [list(group) for group in groups]
        unchanged = _unchanged(one.name, about, before) if dedupe else {}
        for name, group in zip(names, groups, strict=True):
            old = unchanged.get(tuple(group))
            if old is not None:
                linked.append((name, old))
            else:
                files.append((name, planned(group), _TEXTS))
        if len(groups) > 1 and not rank:
            known.append((f"{one.name}.safetensors.index.json", _index(names, groups)))
        known += [] if rank else one.files
        items[one.name] = about
    meta = {
        "format": "tensordict.checkpoint",
        "version": VERSION,
        "step": number,
        **fields,
        "items": items,
    }
    known.append((rank_file(rank) if rank else META, meta_bytes(meta)))
    place = str(target or folder / step_name(number))
    paths = [str(step.path) for step in retired]
    return (str(folder), place, files, known, linked, paths, gathered), meta


def _part_of(one: Described, rank: int) -> tuple[dict[str, Any], dict[str, Leaf]]:
    """Return a rank's description of an item, and the tensors that it writes."""
    about, tensors = dict(one.about), one.tensors
    if rank and about["kind"] in ("module", "optimizer"):
        # Rank 0 writes what all have; here is what this one alone has.
        about = {"kind": about["kind"], "shards": about.get("shards", {})}
        own = {shard["name"] for shard in about["shards"].values()}
        tensors = {name: leaf for name, leaf in tensors.items() if name in own}
    return about, tensors


def _names(item: str, count: int) -> list[str]:
    if count <= 1:
        return [f"{item}.safetensors"][:count]
    return [
        f"{item}-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)
    ]


def _index(names: list[str], groups: list[dict[str, Leaf]]) -> bytes:
    total = sum(count_bytes(leaf) for group in groups for leaf in group.values())
    weights = {
        tensor: name
        for name, group in zip(names, groups, strict=True)
        for tensor in group
    }
    index = {"metadata": {"total_size": total}, "weight_map": weights}
    return (json.dumps(index, indent=2) + "\n").encode()


def _shards(tensors: dict[str, Leaf], count: int | None) -> list[dict[str, Leaf]]:
    """The tensors of each file."""
    if not tensors:
        return []
    if count is None:
        size = sum(map(count_bytes, tensors.values()))
        count = 1 if size < SHARDED_FROM else _num_threads()
    return [group for group in balanced(tensors, min(count, len(tensors))) if group]


def _num_threads() -> int:
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
