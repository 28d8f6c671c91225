"""Items of a checkpoint, with the descriptions and tensors that are saved."""

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
    """An item in the form in which it is saved."""

    name: str
    """The name of the item, and the start of its file names."""
    kind: Kind
    metadata: dict[str, Any]
    """The JSON that describes the item."""
    tensors: dict[str, Leaf]
    """The tensors by name."""
    files: list[tuple[str, bytes]] = field(default_factory=list)
    """Names and contents of further files, such as the ``config.json`` of transformers."""
    sharded: dict[str, tuple[Layout, Any]] = field(default_factory=dict)
    """The ``DTensor`` values by name."""
    buffers: frozenset[str] = frozenset()
    """The names of a module's buffers."""
    is_shared: bool = False
    """Whether all ranks own the item together. If false, each rank saves its own."""
    is_per_rank: bool = False
    """Whether ``per_rank=`` names the item, so that each mesh saves its own ``DTensor``s."""


def describe(name: str, item: object, **options: Any) -> Described:
    """Describe an item, and collect its tensors without a copy.

    Args:
        name: the name of the item.
        item: the item.
        **options: the arguments of :class:`Saving`.

    Raises:
        TypeError: the item contains an object that a checkpoint cannot store.
    """
    item = unwrapped(item)
    kind, saving = kind_of(item), Saving(name, **options)
    metadata = {**kind.describe(item, saving), "kind": kind.name}
    encoder = saving.encoder
    return Described(
        name,
        kind,
        metadata,
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
        per_rank: the names of items that each rank saves for itself.
        **options: further arguments of :class:`Saving`.
    """
    parameters = parameter_names(items)
    described = [
        describe(name, item, parameters=parameters, **options)
        for name, item in items.items()
    ]
    for item_described in described:
        if item_described.name in per_rank:
            item_described.is_shared = False
            item_described.is_per_rank = True
    return described
