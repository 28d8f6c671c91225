"""Descriptions of items that ranks exchange before they save."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict.checkpoint.items import Described
from tensordict.checkpoint.kinds import kind_named
from tensordict.storage.safetensors_levels import count_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.storage.safetensors_levels import Leaf

__all__ = [
    "Description",
    "Plain",
    "describe_for_others",
    "digest_of",
    "have_equal_names",
    "merge",
    "tensor_of",
]

Description = dict[str, Any]
"""The names, shapes and layouts of an item on one rank."""


class Plain(NamedTuple):
    """A tensor that is not a ``DTensor``, as other ranks know it."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    is_whole: bool
    """Whether the tensor must be written by one rank."""


def tensor_of(leaf: Leaf) -> torch.Tensor:
    """Return a leaf as one tensor; members of a lazy stack are stacked."""
    return leaf if isinstance(leaf, torch.Tensor) else torch.stack(leaf.parts, leaf.dim)


def describe_for_others(item: Described) -> Description:
    """Describe an item by facts that stay equal between steps and within a mesh."""
    plain = {}
    if item.is_shared:
        # Other programs look for the weights of a module under their own names,
        # undivided.
        is_module = item.kind.name == "module"
        plain = {
            name: Plain(
                str(leaf.dtype),
                tuple(leaf.shape),
                count_bytes(leaf),
                is_module or not isinstance(leaf, torch.Tensor),
            )
            for name, leaf in item.tensors.items()
        }
    return {
        "is_shared": item.is_shared,
        "is_per_rank": item.is_per_rank,
        "names": item.metadata.get("names"),
        "parameters": item.metadata.get("parameters"),
        "plain": plain,
        "sharded": {
            name: (layout, str(value.dtype))
            for name, (layout, value) in item.sharded.items()
        },
    }


def have_equal_names(descriptions: Mapping[int, Mapping[str, Description]]) -> bool:
    """Return whether descriptions differ at most in layouts, as between pipeline stages."""
    comparable = [
        {
            item: (
                *(metadata[key] for key in ("is_shared", "names", "parameters")),
                sorted(metadata["plain"]),
                sorted(metadata["sharded"]),
            )
            for item, metadata in descriptions_of_rank.items()
        }
        for descriptions_of_rank in descriptions.values()
    ]
    return all(
        descriptions_of_rank == comparable[0] for descriptions_of_rank in comparable
    )


def digest_of(descriptions: dict[str, Description]) -> str:
    """Return a digest of descriptions; each layout is included once, since it is long."""
    layouts: dict[int, tuple[int, Any]] = {}
    described = {}
    for item, metadata in descriptions.items():
        sharded = []
        for name, (layout, dtype) in metadata["sharded"].items():
            place, _ = layouts.setdefault(id(layout), (len(layouts), layout))
            sharded.append((name, place, dtype))
        described[item] = {**metadata, "sharded": sharded}
    unique_layouts = [layout for _, layout in layouts.values()]
    return hashlib.sha256(repr((described, unique_layouts)).encode()).hexdigest()


def merge(items: list[Described], metadata_by_rank: Mapping[int, Any]) -> None:
    """Merge the descriptions of all ranks into the items of rank 0.

    Items that rank 0 lacks are added without tensors.
    """
    present = {item.name for item in items}
    for descriptions in metadata_by_rank.values():
        for name, metadata in descriptions.items():
            if name not in present:
                present.add(name)
                kind = kind_named(metadata["kind"], name)
                items.append(Described(name, kind, metadata, {}, is_shared=True))
    for item in items:
        by_rank = {
            rank: descriptions_of_rank[item.name]
            for rank, descriptions_of_rank in metadata_by_rank.items()
            if item.name in descriptions_of_rank
        }
        if item.is_shared and len(by_rank) > 1:
            merged = item.kind.merged(item.name, by_rank)
            item.metadata = {**merged, "kind": item.kind.name}
