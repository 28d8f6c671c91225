"""Translate between collections and files of arrays."""

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
    """Read what a file notes of a collection."""
    metadata: dict[str, Any] = {"batch_size": list(size), "version": 1}
    if names is not None and any(name is not None for name in names):
        metadata["names"] = list(names)
    return metadata


def metadata_to_write(source: CollectionProtocol) -> dict[str, Any]:
    """Give the notes of a collection that is written to a file."""
    return noted(source.batch_size, source.names if source._has_names() else None)


def metadata_of(group: Group) -> tuple[torch.Size, list[str | None] | None] | None:
    """The batch size and the names that a file notes; None where it does not."""
    found = group.metadata()
    if not isinstance(found, dict):
        return None
    size, names = found.get("batch_size"), found.get("names")
    if not isinstance(size, (list, tuple)) or not all(
        isinstance(length, int) and length >= 0 for length in size
    ):
        return None
    if not isinstance(names, (list, tuple)) or len(names) != len(size):
        return torch.Size(size), None
    return torch.Size(size), list(names)


def names_of(
    known: tuple[torch.Size, list[str | None] | None] | None, size: torch.Size
) -> list[str | None] | None:
    """The names of the dims of a batch size, of which a file notes some, or more."""
    if known is None or known[1] is None:
        return None
    common = min(len(size), len(known[0]))
    if known[0][:common] != size[:common]:
        return None
    names = [*known[1][:common], *[None] * (len(size) - common)]
    return names if any(name is not None for name in names) else None


def own_size(
    group: Group, size: torch.Size, names: list[str | None] | None
) -> tuple[torch.Size, list[str | None] | None]:
    """The batch size and the names of a nested group, whose parent has these."""
    known = metadata_of(group)
    if known is None or known[0][: len(size)] != size:
        return size, None if names is None else list(names)
    own = names_of(known, known[0])
    if names is not None:
        own = [*names, *(own or [None] * len(known[0]))[len(names) :]]
    return known[0], own


def common_sizes(
    td: CollectionProtocol, limit: int | None, keep_noted: bool
) -> list[tuple[Any, torch.Size]]:
    """Each collection of a file with the leading dims that its arrays share.

    Values do not count, unless there is one for each row. With ``keep_noted`` what the
    file notes of a nested group goes before.
    """
    found: list[tuple[Any, torch.Size]] = []
    _common(td, limit, keep_noted, found)
    sizes = {id(held): size for held, size in found}
    _cap(td, sizes, ())
    return [(held, sizes[id(held)]) for held, _ in found]


def _common(
    td: Any,
    limit: int | None,
    keep: bool,
    found: list[tuple[Any, torch.Size]],
) -> Sequence[int] | None:
    shared: Sequence[int] | None = None
    for key in td._group.names():
        array = td._group.array(key)
        shape: Sequence[int] | None
        if array is None:
            child = td._child(key)
            shape = None if child is None else _common(child, limit, keep, found)
        elif array.kind is not None and array.kind.is_shared:
            continue
        elif STACK in array.attributes:
            shape = tuple(int(size) for size in array.attributes[STACK])
        else:
            shape = None if array.is_value else array.shape
        if shape is not None:
            shared = shape if shared is None else _shared(shared, shape)
    known = metadata_of(td._group) if keep else None
    size = tuple(shared or ()) if known is None else tuple(known[0])
    if limit is not None:
        size = size[:limit]
    found.append((td, torch.Size(size)))
    return shared if known is None else known[0]


def _cap(
    td: CollectionProtocol, sizes: dict[int, torch.Size], least: Sequence[int]
) -> None:
    """Give collections without arrays the batch size of what they are in."""
    own = sizes[id(td)]
    if own[: len(least)] != torch.Size(least):
        own = sizes[id(td)] = torch.Size(least)
    for child in td._children():
        _cap(child, sizes, own)


def _shared(first: Sequence[int], second: Sequence[int]) -> Sequence[int]:
    for at, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return first[:at]
    return first[: min(len(first), len(second))]


def content_of(file: ArrayFile, key: Any, value: object) -> Content:
    """Give the content of the array of an entry.

    Raises:
        TypeError: the format does not have it; the error names the key.
    """
    if isinstance(value, CollectionProtocol):
        held: Any = value
        if held._is_one:
            return file.encode(key, held.data)
        return file.encode(key, Stack(list(held._flat()), tuple(held.batch_size)))
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
    """Write a collection to a group that is new and empty.

    Raises:
        RuntimeError: a tensor requires grad.
        TypeError: the format does not have an entry.
        ValueError: a key cannot be a name.
    """
    for key, value in list(source._entries().items()):
        whole = (*path, key)
        if is_branch(value):
            made = group.create_group(key, metadata_to_write(value))
            fill_group(made, value, options, whole)
        else:
            label = whole if path else key
            group.create(key, content_of(group.file, label, value), options)
