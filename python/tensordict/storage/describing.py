"""The description of a consolidated collection: the place of each leaf, level by level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from tensordict.primitives import registry
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.buffer import LENGTHS, OFFSETS, VALUES, split_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.containers.collection import TensorCollection
    from tensordict.storage import extra_metadata
    from tensordict.storage.buffer import Row

__all__ = [
    "RESERVED",
    "Value",
    "as_plain",
    "describe_dense",
    "describe_stack",
    "is_same",
    "key_of",
    "keyed_rows",
    "note_locks",
    "problem_of",
    "refresh",
    "root_level",
    "shown",
    "with_modules",
    "without_modules",
]

RESERVED = frozenset({"cls", "non_tensors", "leaves", "cls_metadata"})

MAX_LEVELS = 250
"""The depth to which collections may be nested. Loading takes three calls for each level, and
Python's stack has room for a thousand."""

MSG_LEVELS = (
    f"The tensordict is nested more than {MAX_LEVELS} times, which cannot be consolidated "
    "in a file. Save it to a directory instead."
)

MSG_JSON = (
    "Failed to convert the metadata to json: the entry {key} holds a value of type "
    "{type} that JSON cannot hold. Remove it, or save to a directory."
)


# Names --------------------------------------------------------------------------------

# The JSON object of a level holds nested collections beside the fields of the level, and the
# parts of jagged tensors beside other leaves. A key that equals the name of a field or begins
# like the name of a part gets a NUL in front.


def _child_name(key: str) -> str:
    return f"\0{key}" if key in RESERVED or key.startswith("\0") else key


def _leaf_name(key: str) -> str:
    is_marked = key.startswith(("\0", VALUES, LENGTHS, OFFSETS)) or split_name(key)[0]
    return f"\0{key}" if is_marked else key


def key_of(name: str) -> str:
    """Return the key of a name in the description."""
    return name.removeprefix("\0")


def shown(path: tuple[str, ...]) -> str:
    """Return a nested key as messages show it."""
    return repr(path[0] if len(path) == 1 else path)


# Levels -------------------------------------------------------------------------------


class Value(tuple[Any, list[int], "str | None"]):
    """The description of non-tensor data in a level: value, batch size and device."""

    __slots__ = ()


def as_pickled(level: dict[str, Any]) -> dict[str, Any]:
    """Return a level with plain tuples for its values, which every unpickler knows."""
    return {
        name: as_pickled(field) if name not in RESERVED else field
        for name, field in level.items()
    } | {"non_tensors": {key: tuple(row) for key, row in level["non_tensors"].items()}}


def is_special(cls: type) -> bool:
    """Return whether a class is a user's subclass of ``TensorDict``."""
    return cls is not registry.dense_root() and registry.is_dense_class(cls)


def describe_dense(
    td: CollectionProtocol, rows: Iterator[list[tuple[str, Row]]]
) -> dict[str, Any]:
    """Return the level of a dense collection."""
    leaves: dict[str, Row] = {}
    children: dict[str, Any] = {}
    non_tensors: dict[str, Any] = {}
    for key, value in td._entries().items():
        if not isinstance(value, CollectionProtocol):
            for prefix, row in next(rows):
                leaves[prefix + _leaf_name(key)] = row
            continue
        level = cast("Any", value)._describe(rows)
        if isinstance(level, Value):
            non_tensors[key] = level
        else:
            children[_child_name(key)] = level
    cls = type(td)
    return {
        "cls": cls if is_special(cls) else "TensorDict",
        "non_tensors": non_tensors,
        "leaves": leaves,
        "cls_metadata": _metadata(td),
        **children,
    }


def _metadata(td: CollectionProtocol) -> dict[str, Any]:
    device = td.device
    return {
        "device": None if device is None else str(device),
        "names": list(td.names),
        "batch_size": list(td.batch_size),
        "is_locked": False,
    }


def problem_of(level: object) -> str:
    """Return the reason why a level of a file is invalid, an empty text if it is valid."""
    if not isinstance(level, dict) or not level.keys() >= RESERVED:
        return "its level has no fields"
    for name in sorted(RESERVED):
        field = level[name]
        if isinstance(field, dict) and isinstance(field.get("leaves"), dict):
            return (
                f"a nested collection under the key {name!r} has replaced the field of "
                "this name (tensordict 0.15 writes such files)"
            )
        if not isinstance(field, (str, type) if name == "cls" else dict):
            return f"its field {name!r} is {field!r}"
    return ""


def describe_stack(
    name: str, members: list[Any], dim: int, dim_name: str | None, rows: object
) -> dict[str, Any]:
    """Return the level of a stack. The members are at their numbers."""
    level: dict[str, Any] = {
        "cls": name,
        "non_tensors": {},
        "leaves": {},
        "cls_metadata": {
            "stack_dim": dim,
            "stack_dim_name": dim_name,
            "is_locked": False,
        },
    }
    for number, member in enumerate(members):
        described = member._describe(rows)
        is_value = isinstance(described, Value)
        place = level["non_tensors"] if is_value else level
        place[str(number)] = described
    return level


def root_level(td: CollectionProtocol, described: Any) -> dict[str, Any]:
    """Return the level of the root. The level of non-tensor data alone has it as an entry."""
    if not isinstance(described, Value):
        return described
    return {
        "cls": type(td).__name__,
        "non_tensors": {"data": described},
        "leaves": {},
        # Readers of the published package need all fields.
        "cls_metadata": _metadata(td),
    }


def note_locks(level: dict[str, Any], td: TensorCollection) -> None:
    """Note in a level which collections are locked."""
    level["cls_metadata"]["is_locked"] = bool(td.is_locked)
    for name, child in level.items():
        if name not in RESERVED:
            note_locks(child, td._described_child(key_of(name)))


def with_modules(level: dict[str, Any], td: Any) -> dict[str, Any]:
    """Return a level that names the classes of modules, so that pickles restore them."""
    cls = type(td) if isinstance(td, torch.nn.Module) else level["cls"]
    return {
        name: with_modules(field, td._described_child(key_of(name)))
        if name not in RESERVED
        else field
        for name, field in level.items()
    } | {"cls": cls}


def _is_module(cls: type) -> bool:
    return isinstance(cls, type) and issubclass(cls, torch.nn.Module)


def without_modules(level: dict[str, Any]) -> dict[str, Any]:
    """Return a level without the classes of :func:`with_modules`."""
    return {
        name: without_modules(field) if name not in RESERVED else field
        for name, field in level.items()
    } | {"cls": "TensorDict" if _is_module(level["cls"]) else level["cls"]}


def keyed_rows(level: dict[str, Any], path: tuple[str, ...]) -> list[tuple[str, Row]]:
    """Return the rows of a description in their order, each with its key for messages."""
    found = [
        (shown((*path, key_of(name))), row) for name, row in level["leaves"].items()
    ]
    for name, child in level.items():
        if name not in RESERVED:
            found += keyed_rows(child, (*path, key_of(name)))
    return sorted(found, key=lambda row: row[1][2:4])


# Its JSON -----------------------------------------------------------------------------


def as_plain(
    td: Any, level: dict[str, Any], path: tuple[str, ...], notes: extra_metadata.Remarks
) -> dict[str, Any]:
    """Return a level in a form for JSON. ``notes`` take what JSON cannot hold.

    Raises:
        RuntimeError: collections are nested too deep to be loaded.
    """
    if len(path) > MAX_LEVELS:
        raise RuntimeError(MSG_LEVELS)
    non_tensors = {}
    for name, (value, *rest) in level["non_tensors"].items():
        inner = (*path, name)
        kind = type(td._described_child(name)).__name__
        non_tensors[name] = [notes.value(value, inner, kind, MSG_JSON), *rest]
    fields = {
        "cls": notes.class_name(level, path),
        "non_tensors": non_tensors,
        "leaves": level["leaves"],
        "cls_metadata": level["cls_metadata"],
    }
    children = [name for name in level if name not in RESERVED]
    for name in children:
        key = key_of(name)
        child = td._described_child(key)
        fields[name] = as_plain(child, level[name], (*path, key), notes)
    if "batch_size" in level["cls_metadata"]:
        entries = list(td._entries())
        nested = [key_of(name) for name in children]
        others = {*non_tensors, *nested}
        tensors = [key for key in entries if key not in others]
        notes.order(entries, [*non_tensors, *tensors, *nested], path)
    return fields


# Comparing ----------------------------------------------------------------------------


def is_same(fresh: dict[str, Any], description: dict[str, Any]) -> bool:
    """Return whether a description's leaves are unchanged and in their places."""
    if fresh.keys() != description.keys():
        return False
    for key, value in fresh.items():
        described = description[key]
        if key == "leaves":
            if list(value) != list(described):
                return False
            for name, (dtype, shape, start, is_there, *_) in value.items():
                row = described[name]
                if not is_there or [dtype, shape] != [row[0], list(row[1])]:
                    return False
                if start != row[2] and row[3] - row[4] > row[2]:
                    return False
        elif key == "non_tensors":
            if list(value) != list(described):
                return False
        elif key not in RESERVED and not is_same(value, described):
            return False
    return True


def refresh(description: dict[str, Any], fresh: dict[str, Any]) -> None:
    """Update a description with names, batch sizes and values, which may have changed."""
    is_locked = description["cls_metadata"].get("is_locked", False)
    if not _is_module(description["cls"]):
        description["cls"] = fresh["cls"]
    description["non_tensors"] = fresh["non_tensors"]
    description["cls_metadata"] = {**fresh["cls_metadata"], "is_locked": is_locked}
    for key, child in description.items():
        if key not in RESERVED:
            refresh(child, fresh[key])
