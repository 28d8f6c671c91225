"""Remarks: metadata for which the established formats have no place.

tensordict 0.15 also reads the text of a consolidated file, so the text holds only what tensordict
0.15 understands. Remarks hold the rest, by path: the class of a collection that is not a plain
``TensorDict``; the order of keys if tensors and nested collections alternate; and values that
JSON changes (a tuple becomes a list, ``{1: 2}`` becomes ``{"1": 2}``).

In a consolidated file, the remarks are between the data and the text. Other readers take them for
data of no leaf. :mod:`tensordict.distributed` sends remarks with the description of a collection.
A safetensors file has no remarks: the levels in its ``__metadata__`` have further fields, which
tensordict 0.15 ignores (:mod:`tensordict.storage.layouts.safetensors`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives import registry
from tensordict.primitives.checks import is_tensorclass

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Remarks", "as_plain", "tagged", "untagged"]

MAX_DEPTH = 450
"""The depth to which lists and dicts may be nested in a value. Python parses JSON recursively, with
a limit of 1000 calls."""

MAX_TAGGED_DEPTH = 200
"""The same limit for values that JSON changes: their tagged form is twice as deep."""

MSG_DEPTH = (
    "Cannot save a non-tensor value in which lists, tuples and dicts are nested more than "
    "{} times."
)

PLAIN_TYPES = (str, int, float, bool, type(None))


class Remarks:
    """Remarks about the levels and entries of a file, by path."""

    def __init__(self, fields: Any = None) -> None:
        self.fields: dict[str, Any] = fields if isinstance(fields, dict) else {}

    def _of(self, kind: str, path: tuple[str, ...]) -> Any:
        for remark_path, *remark in self.fields.get(kind, ()):
            if tuple(remark_path) == path:
                return remark
        return None

    def _add(self, kind: str, path: tuple[str, ...], *remark: object) -> None:
        self.fields.setdefault(kind, []).append([list(path), *remark])

    # Classes ---------------------------------------------------------------------

    def class_name(self, level: dict[str, Any], path: tuple[str, ...]) -> str:
        """Return the name of a class that tensordict 0.15 knows, and note the real class.

        tensordict 0.15 finds the class of a nested tensorclass. For the root and for stacks
        it knows only its own classes.
        """
        cls = level["cls"]
        if isinstance(cls, str):
            return cls
        texts = registry.class_text(cls), registry.type_text(cls)
        self._add("classes", path, *texts)
        if "stack_dim" in level["cls_metadata"]:
            return "LazyStackedTensorDict"
        return texts[1] if path and is_tensorclass(cls) else "TensorDict"

    def find_class(
        self,
        path: tuple[str, ...],
        name: str,
        requested: type | None,
        filename: str | Path | None,
    ) -> Any:
        """Return the class of a level: the noted class, or the class that the level names.

        Raises:
            RuntimeError: this process has not imported a class of this name.
        """
        noted = self._of("classes", path)
        class_text, type_text = noted or (f"tensordict:{name}", name)
        return registry.find_class(requested, class_text, type_text, filename or "")

    # The order of keys -----------------------------------------------------------

    def order(self, keys: list[str], written: list[str], path: tuple[str, ...]) -> None:
        """Note the order of keys, unless they are written in this order."""
        if keys != written:
            self._add("orders", path, keys)

    def ordered(self, entries: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Return the entries of a level in their noted order."""
        noted = self._of("orders", path)
        if noted is None or sorted(noted[0]) != sorted(entries):
            return entries
        return {key: entries[key] for key in noted[0]}

    # Values ----------------------------------------------------------------------

    def value(
        self, value: object, path: tuple[str, ...], kind: str, message: str
    ) -> Any:
        """Return a value in a form for JSON, and note the value if JSON changes it.

        Raises:
            RuntimeError: JSON cannot hold the value.
        """
        try:
            plain, is_same = as_plain(value)
        except TypeError:
            shown = path[0] if len(path) == 1 else path
            text = message.format(key=repr(shown), type=type(value))
            raise RuntimeError(text) from None
        if not is_same:
            self._add("values", path, tagged(value))
        if kind != "NonTensorData":
            self._add("kinds", path, kind)
        return plain

    def noted_value(self, value: object, path: tuple[str, ...]) -> Any:
        """Return the noted value, or ``value`` if none is noted."""
        noted = self._of("values", path)
        return value if noted is None else untagged(noted[0])

    def noted_kind(self, path: tuple[str, ...]) -> str:
        """Return the name of the class of non-tensor data."""
        noted = self._of("kinds", path)
        return "NonTensorData" if noted is None else noted[0]

    # The file --------------------------------------------------------------------

    def to_text(self) -> str:
        """Return the remarks as JSON, empty if there are none."""
        return json.dumps(self.fields) if self.fields else ""


def check_depth(depth: int, limit: int = MAX_DEPTH) -> None:
    """Raise if a value is nested too deep to be loaded."""
    if depth >= limit:
        raise RuntimeError(MSG_DEPTH.format(limit))


def as_plain(value: object, depth: int = 0) -> tuple[Any, bool]:
    """Return a value in a form for JSON, and whether JSON restores it unchanged.

    Raises:
        TypeError: JSON cannot hold the value.
        RuntimeError: lists and dicts are nested too deep in the value.
    """
    if isinstance(value, PLAIN_TYPES):
        return value, True
    check_depth(depth)
    if isinstance(value, (list, tuple)):
        is_same = type(value) is list
        items = []
        for item in value:
            plain, is_item_same = as_plain(item, depth + 1)
            items.append(plain)
            is_same &= is_item_same
        return items, is_same
    if not isinstance(value, dict) or not all(
        isinstance(key, PLAIN_TYPES) for key in value
    ):
        raise TypeError(f"JSON cannot hold a value of type {type(value)}.")
    fields = {}
    is_same = type(value) is dict
    for key, item in value.items():
        fields[key], is_item_same = as_plain(item, depth + 1)
        is_same &= is_item_same and type(key) is str
    return fields, is_same


def tagged(value: object, depth: int = 0) -> Any:
    """Return a value as JSON with the type of each part.

    Raises:
        RuntimeError: lists and dicts are nested too deep in the value.
    """
    if isinstance(value, (list, tuple)):
        check_depth(depth, MAX_TAGGED_DEPTH)
        kind = "tuple" if isinstance(value, tuple) else "list"
        if isinstance(value, torch.Size):
            kind = "size"
        return {kind: [tagged(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        check_depth(depth, MAX_TAGGED_DEPTH)
        pairs = value.items()
        kind = "ordered" if isinstance(value, OrderedDict) else "dict"
        return {kind: [[tagged(key), tagged(item, depth + 1)] for key, item in pairs]}
    return value


def untagged(value: object) -> Any:
    """Return the value from the JSON of :func:`tagged`."""
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    if kind in ("dict", "ordered"):
        cls = OrderedDict if kind == "ordered" else dict
        return cls((untagged(key), untagged(item)) for key, item in items)
    restored = [untagged(item) for item in items]
    return {"tuple": tuple, "size": torch.Size}.get(kind, list)(restored)
