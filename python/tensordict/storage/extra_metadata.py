"""Write what an established format has no place for: classes, key order, values.

The text of a consolidated file, and that of ``__metadata__["tensordict"]`` in a
safetensors file, is read by tensordict 0.15 too, and holds what that can
understand. The rest is in remarks, by path: the class of a collection that is no plain
``TensorDict``, the order of keys where tensors and nested collections alternate, and
values that change when they go through JSON (a tuple becomes a list, ``{1: 2}``
becomes ``{"1": 2}``).

In a consolidated file the remarks lie between data and text. Who does not know them
takes them for data that no leaf is in. In a safetensors file they are the entry
``tensordict.remarks`` of ``__metadata__``.
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
"""The depth to which lists and dicts may be nested in a value: Python reads JSON
recursively, and gives up at its limit of 1000."""

MAX_TAGGED_DEPTH = 200
"""The same for values that JSON changes, whose form with tags is twice as deep."""

MSG_DEPTH = (
    "Cannot save a non-tensor value in which lists, tuples and dicts are nested more than "
    "{} times in one another."
)

PLAIN_TYPES = (str, int, float, bool, type(None))


class Remarks:
    """Remarks about the levels and entries of a file, by path."""

    def __init__(self, fields: Any = None) -> None:
        self.fields: dict[str, Any] = fields if isinstance(fields, dict) else {}

    def _of(self, kind: str, path: tuple[str, ...]) -> Any:
        for known, *remark in self.fields.get(kind, ()):
            if tuple(known) == path:
                return remark
        return None

    def _add(self, kind: str, path: tuple[str, ...], *remark: object) -> None:
        self.fields.setdefault(kind, []).append([list(path), *remark])

    # Classes ---------------------------------------------------------------------

    def class_name(self, level: dict[str, Any], path: tuple[str, ...]) -> str:
        """The name of a class that tensordict 0.15 knows; the class is noted.

        tensordict 0.15 finds the class of a field, and takes that of the root, or of a
        stack, for one that it has itself.
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
        """The class that a level names, by itself or in a remark.

        Raises:
            RuntimeError: there is no class of that name here.
        """
        noted = self._of("classes", path)
        class_text, type_text = noted or (f"tensordict:{name}", name)
        return registry.find_class(requested, class_text, type_text, filename or "")

    # The order of keys -----------------------------------------------------------

    def order(self, keys: list[str], written: list[str], path: tuple[str, ...]) -> None:
        """Note the order of keys, unless it is the one in which they are written."""
        if keys != written:
            self._add("orders", path, keys)

    def ordered(self, entries: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """The entries of a level in their order."""
        noted = self._of("orders", path)
        if noted is None or sorted(noted[0]) != sorted(entries):
            return entries
        return {key: entries[key] for key in noted[0]}

    # Values ----------------------------------------------------------------------

    def value(
        self, value: object, path: tuple[str, ...], kind: str, message: str
    ) -> Any:
        """A value as JSON holds it; one that JSON changes is noted as it is.

        Raises:
            RuntimeError: JSON cannot hold it.
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
        """A value as it was noted, or else as JSON gave it."""
        noted = self._of("values", path)
        return value if noted is None else untagged(noted[0])

    def noted_kind(self, path: tuple[str, ...]) -> str:
        """The class of a value that is no tensor."""
        noted = self._of("kinds", path)
        return "NonTensorData" if noted is None else noted[0]

    # The file --------------------------------------------------------------------

    def to_text(self) -> str:
        """The remarks as JSON; empty where there are none."""
        return json.dumps(self.fields) if self.fields else ""


def check_depth(depth: int, limit: int = MAX_DEPTH) -> None:
    """Refuse what is nested deeper than it could be loaded."""
    if depth >= limit:
        raise RuntimeError(MSG_DEPTH.format(limit))


def as_plain(value: object, depth: int = 0) -> tuple[Any, bool]:
    """The value as JSON holds it, and whether JSON gives it back as it is.

    Raises:
        TypeError: JSON cannot hold it.
        RuntimeError: lists and dicts are nested too deep in it.
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
    """A value in JSON that says which type each part is of.

    Raises:
        RuntimeError: lists and dicts are nested too deep in it.
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
    """The value that :func:`tagged` was given."""
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    if kind in ("dict", "ordered"):
        cls = OrderedDict if kind == "ordered" else dict
        return cls((untagged(key), untagged(item)) for key, item in items)
    made = [untagged(item) for item in items]
    return {"tuple": tuple, "size": torch.Size}.get(kind, list)(made)
