"""Translation between collections and files of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives.checks import is_branch
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import kind_of
from tensordict.storage.arrays.interface import (
    KIND,
    STACK,
    Content,
    numpy_of,
)
from tensordict.storage.arrays.values import Stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.storage.arrays.interface import ArrayFile, Group

__all__ = [
    "common_sizes",
    "content_of",
    "fill_group",
    "metadata_of",
    "metadata_to_write",
    "names_of",
    "noted",
    "own_size",
]


def noted(size: torch.Size, names: Sequence[str | None] | None) -> dict[str, Any]:
    """Return the metadata of a collection in the form that a file stores."""
    metadata: dict[str, Any] = {"batch_size": list(size), "version": 1}
    if names is not None and any(name is not None for name in names):
        metadata["names"] = list(names)
    return metadata


def metadata_to_write(source: CollectionProtocol) -> dict[str, Any]:
    """Return the metadata to write for a collection."""
    return noted(source.batch_size, source.names if source._has_names() else None)


def metadata_of(group: Group) -> tuple[torch.Size, list[str | None] | None] | None:
    """Return the batch size and names that a group records, or None."""
    metadata = group.metadata()
    if not isinstance(metadata, dict):
        return None
    size, names = metadata.get("batch_size"), metadata.get("names")
    if not isinstance(size, (list, tuple)) or not all(
        isinstance(length, int) and length >= 0 for length in size
    ):
        return None
    if not isinstance(names, (list, tuple)) or len(names) != len(size):
        return torch.Size(size), None
    return torch.Size(size), list(names)


def names_of(
    recorded: tuple[torch.Size, list[str | None] | None] | None, size: torch.Size
) -> list[str | None] | None:
    """Return the recorded dim names for a batch size, if the recorded sizes agree."""
    if recorded is None or recorded[1] is None:
        return None
    common = min(len(size), len(recorded[0]))
    if recorded[0][:common] != size[:common]:
        return None
    names = [*recorded[1][:common], *[None] * (len(size) - common)]
    return names if any(name is not None for name in names) else None


def own_size(
    group: Group, size: torch.Size, names: list[str | None] | None
) -> tuple[torch.Size, list[str | None] | None]:
    """Return the batch size and names of a nested group, given its parent's."""
    recorded = metadata_of(group)
    if recorded is None or recorded[0][: len(size)] != size:
        return size, None if names is None else list(names)
    own_names = names_of(recorded, recorded[0])
    if names is not None:
        own_names = [*names, *(own_names or [None] * len(recorded[0]))[len(names) :]]
    return recorded[0], own_names


def common_sizes(
    td: CollectionProtocol, limit: int | None, keep_noted: bool
) -> list[tuple[Any, torch.Size]]:
    """Return each collection of a file with the leading dims that its arrays share.

    Non-tensor data does not count, unless it is one value for each row. If
    ``keep_noted`` is true, the recorded batch size of a nested group takes precedence.
    """
    sizes_of: list[tuple[Any, torch.Size]] = []
    _common(td, limit, keep_noted, sizes_of)
    sizes = {id(nested): size for nested, size in sizes_of}
    _cap(td, sizes, ())
    return [(nested, sizes[id(nested)]) for nested, _ in sizes_of]


def _common(
    td: Any,
    limit: int | None,
    keep: bool,
    sizes_of: list[tuple[Any, torch.Size]],
) -> Sequence[int] | None:
    shared: Sequence[int] | None = None
    for key in td._group.names():
        array = td._group.array(key)
        shape: Sequence[int] | None
        if array is None:
            child = td._child(key)
            shape = None if child is None else _common(child, limit, keep, sizes_of)
        elif array.kind is not None and array.kind.is_shared:
            continue
        elif STACK in array.attributes:
            shape = tuple(int(size) for size in array.attributes[STACK])
        else:
            shape = None if array.is_value else array.shape
        if shape is not None:
            shared = shape if shared is None else _shared(shared, shape)
    recorded = metadata_of(td._group) if keep else None
    size = tuple(shared or ()) if recorded is None else tuple(recorded[0])
    if limit is not None:
        size = size[:limit]
    sizes_of.append((td, torch.Size(size)))
    return shared if recorded is None else recorded[0]


def _cap(
    td: CollectionProtocol, sizes: dict[int, torch.Size], least: Sequence[int]
) -> None:
    """Give a collection the batch size of its parent, unless its own begins with it."""
    size = sizes[id(td)]
    if size[: len(least)] != torch.Size(least):
        size = sizes[id(td)] = torch.Size(least)
    for child in td._children():
        _cap(child, sizes, size)


def _shared(first: Sequence[int], second: Sequence[int]) -> Sequence[int]:
    for at, (size, other_size) in enumerate(zip(first, second, strict=False)):
        if size != other_size:
            return first[:at]
    return first[: min(len(first), len(second))]


def content_of(file: ArrayFile, key: Any, value: object) -> Content:
    """Return the content of an entry's array.

    Raises:
        TypeError: the format cannot hold the entry. The message names the key.
    """
    if isinstance(value, CollectionProtocol):
        data: Any = value
        if data._is_one:
            return file.encode(key, data.data)
        return file.encode(key, Stack(list(data._flat()), tuple(data.batch_size)))
    if not isinstance(value, torch.Tensor):
        return file.encode(key, value)
    content = numpy_of(key, value, file.kind)
    kind = kind_of(value)
    if kind is not None:
        content.attributes[KIND.format(kind.name)] = True
    return content


def fill_group(
    group: Group,
    source: CollectionProtocol,
    options: dict[str, Any],
    path: tuple[str, ...] = (),
) -> None:
    """Write a collection to a new, empty group.

    Raises:
        RuntimeError: a tensor requires grad.
        TypeError: the format cannot hold an entry.
        ValueError: a key is not a valid name in the file.
    """
    for key, value in list(source._entries().items()):
        full_key = (*path, key)
        if is_branch(value):
            nested = group.create_group(key, metadata_to_write(value))
            fill_group(nested, value, options, full_key)
        else:
            label = full_key if path else key
            group.create(key, content_of(group.file, label, value), options)
