"""Load a step as a memory-mapped tensordict, without the objects that were saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.checkpoint.restoring import Restoring
from tensordict.primitives import registry
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.checkpoint.reading import StepFiles

__all__ = ["as_entry", "load_step"]


def load_step(files: StepFiles, meta: Mapping[str, Any]) -> Any:
    """Return a locked tensordict with one entry for each item of a step."""
    restoring = Restoring(files, meta, device=None, strict=False, lazy=True)
    entries = {}
    for name, metadata in meta["items"].items():
        value = restoring.value(name, metadata)
        is_module = metadata["kind"] == "module"
        entries[name] = _nested(value) if is_module else as_entry(value)
    cls = registry.dense_root()
    collection: Any = cls({}, [])
    for name, entry in entries.items():
        _set(collection, name, entry)
    return files.shown(collection.lock_())


def _nested(state: Mapping[str, Any]) -> Any:
    """Nest a state by the dots in its names, unless a name is a prefix of another."""
    root: dict[str, Any] = {}
    for name, value in state.items():
        *parents, last = name.split(".")
        level: Any = root
        for parent in parents:
            level = level.setdefault(parent, {})
            if not isinstance(level, dict):
                return as_entry(dict(state))
        if last in level:
            return as_entry(dict(state))
        level[last] = value
    return as_entry(root)


def as_entry(value: object) -> Any:
    """Convert a value to an entry of a tensordict: dictionaries become tensordicts."""
    if isinstance(value, (torch.Tensor, CollectionProtocol)):
        return value
    if not isinstance(value, dict):
        return value
    collection: Any = registry.dense_root()({}, [])
    for key, item in value.items():
        _set(collection, key if isinstance(key, str) else str(key), as_entry(item))
    return collection


def _set(collection: Any, key: str, value: Any) -> None:
    if isinstance(value, (torch.Tensor, CollectionProtocol)):
        collection.set(key, value)
    else:
        collection.set_non_tensor(key, value)
