"""Builds collections from a description and a buffer. Each leaf is checked first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives import registry
from tensordict.primitives.special import kind_named
from tensordict.storage import extra_metadata
from tensordict.storage.buffer import (
    LENGTHS,
    OFFSETS,
    VALUES,
    Places,
    jagged,
    problem_of_row,
    split_name,
)
from tensordict.storage.describing import RESERVED, key_of, problem_of, shown

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "Source",
    "column_of",
    "dense_from_description",
    "locked_as",
    "members_of",
]


class Source:
    """The source of a description's leaves. Each is checked before it is created.

    Args:
        storage: the buffer.
        notes: remarks with the data that the description itself cannot hold.
        filename: the file, for messages.
        requested: the class whose method the caller called.
    """

    def __init__(
        self,
        storage: torch.Tensor,
        notes: extra_metadata.Remarks | None = None,
        filename: Path | str | None = None,
        requested: type | None = None,
    ) -> None:
        self.storage = storage
        self.notes: extra_metadata.Remarks = notes or extra_metadata.Remarks()
        self.filename = filename
        self.requested = requested
        self._places = Places(storage)
        self._is_aligned = storage.storage_offset() % 16 == 0

    def collection(self, level: Any, path: tuple[str, ...]) -> Any:
        """Return the collection of a level."""
        problem = problem_of(level)
        if problem:
            raise self._damaged(path, problem)
        cls = level["cls"]
        if isinstance(cls, str):
            cls = self.notes.find_class(path, cls, self.requested, self.filename)
        try:
            return cls._from_description(level, self, path)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(path, f"its level is invalid ({error!r})") from error

    def inner(self, level: dict[str, Any], path: tuple[str, ...]) -> Any:
        """Return the collection that a tensorclass wraps, from the level of the tensorclass."""
        name = "LazyStackedTensorDict" if "stack_dim" in level["cls_metadata"] else None
        cls: Any = registry.dense_root()
        if name is not None:
            cls = registry.find_class(None, f"tensordict:{name}", None, "")
        return cls._from_description(level, self, path)

    def leaves(self, level: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Return the leaves of a level."""
        found: dict[str, torch.Tensor] = {}
        states: dict[str, dict[str, torch.Tensor]] = {}
        rows = iter(level["leaves"].items())
        for key, row in rows:
            kind, part, name = split_name(key)
            if kind:
                entry = key_of(name)
                # A placeholder that keeps the order of the entries until all parts are read.
                value = found[entry] = self.leaf(row, (*path, entry))
                states.setdefault(entry, {"": kind})[part] = value  # type: ignore[dict-item]
                continue
            name = key.removeprefix(VALUES)
            value = self.leaf(row, (*path, key_of(name)))
            if name == key:
                found[key_of(name)] = value
                continue
            # The parts of a jagged tensor follow one another.
            key = key_of(name)
            parts: dict[str, Any] = {}
            while OFFSETS not in parts:
                part, row = next(rows, ("", None))
                prefix = part.removesuffix(name)
                if prefix not in (LENGTHS, OFFSETS):
                    raise self._damaged(
                        (*path, key), "its jagged tensor has no offsets"
                    )
                parts[prefix] = self.leaf(row, (*path, key))
            ragged_dim = row[5] if len(row) > 5 else 1
            found[key] = jagged(value, parts[OFFSETS], parts.get(LENGTHS), ragged_dim)
        size = torch.Size(level["cls_metadata"].get("batch_size") or [])
        for key, state in states.items():
            place = f"{self.filename}: {shown((*path, key))}"
            found[key] = kind_named(state.pop(""), place).of_state(state, size)
        return found

    def value(self, row: Any, path: tuple[str, ...]) -> Any:
        """Return the non-tensor collection of a row: value, batch size and device."""
        data, batch_size, device = row
        data = self.notes.noted_value(data, path)
        text = f"tensordict:{self.notes.noted_kind(path)}"
        cls = registry.find_class(None, text, None, self.filename or "")
        device = None if device is None else torch.device(device)
        return cls._of([data], 0, torch.Size(batch_size), device)

    def leaf(self, row: Any, path: tuple[str, ...]) -> torch.Tensor:
        """Check a row and return its tensor."""
        problem = problem_of_row(row, len(self.storage))
        if problem:
            raise self._damaged(path, problem)
        dtype, shape, start, stop, pad = row[:5]
        item_size = getattr(torch, dtype.removeprefix("torch.")).itemsize
        if start % item_size:
            # Another program wrote the bytes at a start that a view cannot have.
            flat = self.storage[start : stop - pad].clone()
            return flat.view(getattr(torch, dtype.removeprefix("torch."))).view(shape)
        return self._places.view_of(row)

    def _damaged(self, path: tuple[str, ...], reason: str) -> RuntimeError:
        of = f"'{self.filename}'" if self.filename is not None else "the metadata"
        entry = f"the entry {shown(path)}: " if path else ""
        return RuntimeError(f"{of} is damaged: {entry}{reason}.")


def dense_from_description(
    cls: Any, level: dict[str, Any], source: Source, path: tuple[str, ...]
) -> CollectionProtocol:
    """Return the dense collection of a level."""
    fields = level["cls_metadata"]
    # Without a note of the order, keys are in the order of the published package.
    entries: dict[str, Any] = {
        key: source.value(found, (*path, key))
        for key, found in level["non_tensors"].items()
    }
    entries |= source.leaves(level, path)
    for name, child in level.items():
        if name not in RESERVED:
            entries[key_of(name)] = source.collection(child, (*path, key_of(name)))
    names = fields["names"]
    if names is not None and all(name is None for name in names):
        names = None
    device = fields["device"]
    size = torch.Size(fields["batch_size"])
    for key, value in entries.items():
        if value.shape[: len(size)] != size:
            raise source._damaged(
                (*path, key), f"its shape {value.shape} does not begin with {size}"
            )
    device = None if device is None else torch.device(device)
    entries = source.notes.ordered(entries, path)
    td = _rust.new(cls, entries, size, device, names and list(names))
    return locked_as(td, fields)


def locked_as(td: CollectionProtocol, fields: dict[str, Any]) -> CollectionProtocol:
    """Lock a collection if its level says so."""
    if fields.get("is_locked"):
        td.lock_()
    return td


def column_of(level: dict[str, Any], source: Source) -> list[Any] | None:
    """Return the values in the level of a stack of plain non-tensor values.

    Returns:
        None if a member is something else, or if remarks may change a value.
    """
    found = level["non_tensors"]
    if source.notes.fields or len(level) > len(RESERVED) or not found:
        return None
    if level["cls_metadata"]["stack_dim"] or level["leaves"]:
        return None
    values = []
    for number, row in enumerate(found.values()):
        if str(number) not in found or len(row) != 3 or row[1] or row[2] is not None:
            return None
        values.append(found[str(number)][0])
    return values


def members_of(
    level: dict[str, Any], source: Source, path: tuple[str, ...]
) -> list[Any]:
    """Return the members in the level of a stack, in their order."""
    found = {
        key: source.value(value, (*path, key))
        for key, value in level["non_tensors"].items()
    }
    for name, child in level.items():
        if name not in RESERVED:
            found[key_of(name)] = source.collection(child, (*path, key_of(name)))
    return [found[str(number)] for number in range(len(found))]
