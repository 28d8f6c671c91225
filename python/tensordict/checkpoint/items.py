"""The items of a checkpoint, described as they are saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.kinds import File, Kind, Saving, kind_of
from tensordict.checkpoint.names import parameter_names, unwrapped

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tensordict.storage.safetensors_levels import Leaf
    from tensordict.storage.sharded import Layout

__all__ = ["Described", "File", "describe", "describe_all"]


@dataclass
class Described:
    """An item as it is saved."""

    name: str
    """The name of the item, with which its files begin."""
    kind: Kind
    about: dict[str, Any]
    """The JSON that describes it."""
    tensors: dict[str, Leaf]
    """Its tensors by name."""
    files: list[tuple[str, bytes]] = field(default_factory=list)
    """Names and bytes of further files: the configuration without which ``transformers``
    opens no folder."""
    sharded: dict[str, tuple[Layout, Any]] = field(default_factory=dict)
    """The ``DTensor`` values by name."""
    buffers: frozenset[str] = frozenset()
    """The names of the buffers of a module."""
    is_shared: bool = False
    """True if all ranks have the item together. Otherwise each rank has its own."""


def describe(name: str, item: object, **options: Any) -> Described:
    """Describe an item, and take its tensors without copying them.

    Args:
        name: its name.
        item: the item.
        **options: the arguments of :class:`Saving`.

    Raises:
        TypeError: it holds something that a checkpoint cannot.
    """
    item = unwrapped(item)
    kind, saving = kind_of(item), Saving(name, **options)
    about = {**kind.describe(item, saving), "kind": kind.name}
    encoder = saving.encoder
    return Described(
        name,
        kind,
        about,
        encoder.tensors,
        saving.files,
        encoder.sharded,
        saving.buffers,
        kind.is_shared,
    )


def describe_all(
    items: Mapping[str, Any], per_rank: Collection[str] = (), **options: Any
) -> list[Described]:
    """Describe all items of a step.

    Args:
        items: the items by name.
        per_rank: the names of items of which each rank saves its own.
        **options: further arguments of :class:`Saving`.
    """
    parameters = parameter_names(items)
    found = [
        describe(name, item, parameters=parameters, **options)
        for name, item in items.items()
    ]
    for each in found:
        if each.name in per_rank:
            each.is_shared = False
    return found
