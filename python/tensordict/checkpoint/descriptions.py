"""The facts that ranks tell each other of the items that they save."""

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
"""The names, shapes and layouts of an item."""


class Plain(NamedTuple):
    """A tensor that is not spread over ranks, as others know it."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    is_whole: bool
    """True if it may not be divided."""


def tensor_of(leaf: Leaf) -> torch.Tensor:
    """Return a tensor, which members of a stack are joined to."""
    return leaf if isinstance(leaf, torch.Tensor) else torch.stack(leaf.parts, leaf.dim)


def describe_for_others(item: Described) -> Description:
    """Describe an item by what does not change from step to step, nor within a mesh."""
    plain = {}
    if item.is_shared:
        # Others read the weights of a module by their names, whole.
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
        "names": item.about.get("names"),
        "parameters": item.about.get("parameters"),
        "plain": plain,
        "sharded": {
            name: (layout, str(value.dtype))
            for name, (layout, value) in item.sharded.items()
        },
    }


def have_equal_names(descriptions: Mapping[int, Mapping[str, Description]]) -> bool:
    """Return whether ranks differ in layouts alone, as those of parts of a mesh do."""
    found = [
        {
            item: (
                *(about[key] for key in ("is_shared", "names", "parameters")),
                sorted(about["plain"]),
                sorted(about["sharded"]),
            )
            for item, about in each.items()
        }
        for each in descriptions.values()
    ]
    return all(each == found[0] for each in found)


def digest_of(own: dict[str, Description]) -> str:
    """Tell descriptions apart. Layouts list all ranks, and each counts once."""
    layouts: dict[int, tuple[int, Any]] = {}
    described = {}
    for item, about in own.items():
        sharded = []
        for name, (layout, dtype) in about["sharded"].items():
            place, _ = layouts.setdefault(id(layout), (len(layouts), layout))
            sharded.append((name, place, dtype))
        described[item] = {**about, "sharded": sharded}
    known = [layout for _, layout in layouts.values()]
    return hashlib.sha256(repr((described, known)).encode()).hexdigest()


def merge(items: list[Described], abouts: Mapping[int, Any]) -> None:
    """Give the items of rank 0 the descriptions of all ranks, and those that it lacks."""
    present = {item.name for item in items}
    for found in abouts.values():
        for name, about in found.items():
            if name not in present:
                present.add(name)
                kind = kind_named(about["kind"], name)
                items.append(Described(name, kind, about, {}, is_shared=True))
    for item in items:
        known = {
            rank: each[item.name] for rank, each in abouts.items() if item.name in each
        }
        if item.is_shared and len(known) > 1:
            merged = item.kind.merged(item.name, known)
            item.about = {**merged, "kind": item.kind.name}
