"""Conversion of collections to entries on the server, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.containers.plain_walks import PlainWalks
from tensordict.containers.store.encoding import Encoded, encode
from tensordict.containers.store.tree import KEY_SEPARATOR
from tensordict.primitives.checks import is_branch, is_tensorclass
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Snapshot", "build", "collect"]


def collect(
    path: str,
    value: Any,
    above: tuple[torch.Size, list[str | None] | None],
    entries: dict[str, Any],
    extra: dict[str, Any],
) -> None:
    """Add the leaves of a value by path, and the records of its nested collections.

    Args:
        path: the path of the value; empty for an entire store.
        value: an entry or a collection.
        above: batch size and names of the collection that holds the value.
        entries: receives the leaves.
        extra: receives a record of each nested collection whose batch size or names
            differ from its parent's, or that is empty.
    """
    if not is_branch(value):
        entries[path] = value
        return
    if isinstance(value, PlainWalks):
        value = value._shown()
    if is_tensorclass(value):
        value = value._tensordict
    size = value.batch_size
    names = list(value.names) if value._has_names() else None
    items = list(value._entries().items())
    if path:
        parent_names = above[1]
        inherited = (
            None
            if parent_names is None
            else [*parent_names, *[None] * len(size)][: len(size)]
        )
        record: dict[str, Any] = {}
        if size != above[0]:
            record["batch_size"] = list(size)
        if names != inherited:
            record["names"] = names
        if record or not items:
            extra[path] = record
    for key, item in items:
        below = f"{path}{KEY_SEPARATOR}{key}" if path else key
        collect(below, item, (size, names), entries, extra)


def build(
    leaves: dict[tuple[str, ...], Any],
    extra: dict[tuple[str, ...], Any],
    state: tuple[torch.Size, torch.device | None, list[str | None] | None],
) -> Any:
    """Make a plain collection from leaves by path and records of nested collections."""
    size, device, names = state
    entries: dict[str, Any] = {}
    below: dict[str, dict[tuple[str, ...], Any]] = {}
    for path, value in leaves.items():
        if len(path) == 1:
            entries[path[0]] = value
        else:
            entries.setdefault(path[0], None)
            below.setdefault(path[0], {})[path[1:]] = value
    records: dict[str, dict[tuple[str, ...], Any]] = {}
    for path, record in extra.items():
        if path:
            records.setdefault(path[0], {})[path[1:]] = record
    for key in records:
        # A nested collection without leaves.
        if key not in entries:
            entries[key] = None
            below[key] = {}
    for key, inner in below.items():
        child_records = records.get(key, {})
        record = child_records.get((), {})
        child_size = torch.Size(record.get("batch_size", size))
        child_names = nested_names(record, names, len(child_size))
        entries[key] = build(inner, child_records, (child_size, device, child_names))
    ordered = dict(sorted(entries.items()))
    return _rust.new(TensorDict, ordered, size, device, names)


def nested_names(
    record: dict[str, Any], names: list[str | None] | None, ndim: int
) -> list[str | None] | None:
    """Return the dim names of a nested collection: its own, or its parent's."""
    if "names" in record:
        return record["names"]
    if names is None:
        return None
    return [*names, *[None] * ndim][:ndim]


class Snapshot:
    """A plain collection of a store's entries that can find its later changes.

    Args:
        plain: the collection, which the caller may write to.
    """

    def __init__(self, plain: CollectionProtocol) -> None:
        self.plain: Any = plain
        self._size = plain.batch_size
        self._names = list(plain.names) if plain._has_names() else None
        self._before, self._extra = self._collected()
        self._versions = {
            path: value._version
            for path, value in self._before.items()
            if type(value) is torch.Tensor
        }
        self._written = {
            path: encode(path, value)
            for path, value in self._before.items()
            if isinstance(value, CollectionProtocol)
        }

    def _collected(self) -> tuple[dict[str, Any], dict[str, Any]]:
        entries: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        collect("", self.plain, (self._size, self._names), entries, extra)
        return entries, extra

    def changes(self) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
        """Find the changes since the snapshot was made.

        Returns:
            The leaves that are new, written or replaced; the paths that were removed;
            and the changed records of nested collections, None for a removed record.
        """
        after, extra = self._collected()
        changed = {
            path: value for path, value in after.items() if self._is_new(path, value)
        }
        gone = [path for path in self._before if path not in after]
        changed_records = {p: r for p, r in extra.items() if self._extra.get(p) != r}
        changed_records.update(
            {path: None for path in self._extra if path not in extra}
        )
        return changed, gone, changed_records

    def _is_new(self, path: str, value: object) -> bool:
        before: Any = self._before.get(path)
        if isinstance(value, CollectionProtocol) and path in self._written:
            return _differ(encode(path, value), self._written[path])
        if value is not before:
            return True
        version = self._versions.get(path)
        return version is None or version != value._version


def _differ(first: Encoded, second: Encoded) -> bool:
    return first.fields != second.fields or bytes(first.data) != bytes(second.data)


def encoded(
    entries: dict[str, Any], write: Callable[[str, Any], Encoded]
) -> dict[str, Encoded]:
    """Encode each entry with ``write``."""
    return {path: write(path, value) for path, value in entries.items()}


def split(path: str) -> tuple[str, ...]:
    """Split a path into the parts of its nested key."""
    return tuple(path.split(KEY_SEPARATOR))


def keys_below(prefix: str, paths: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Return the nested keys below a prefix, for paths that begin with it."""
    start = len(prefix) + 1 if prefix else 0
    keys = {split(path[start:]): path for path in paths}
    return dict(sorted(keys.items()))
