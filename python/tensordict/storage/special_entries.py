"""Special entries in directories and archives: the format has no type for them.

Each special entry is a subdirectory: its ``meta.json`` names the kind, and its ``_state`` holds the
tensors of :meth:`tensordict.primitives.special.EntryKind.state`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives import registry
from tensordict.primitives.special import EntryKind, kind_named, kind_of

if TYPE_CHECKING:
    from tensordict.storage.paths import SavedPath

__all__ = ["SavedEntry", "with_saved_entries"]

_STATE = "_state"


class SavedEntry:
    """A special entry in a plan of a save, or in a directory that is loaded.

    Args:
        kind: the kind of the entry.
        entry: the entry.
        size: the batch size of its collection.
    """

    def __init__(self, kind: EntryKind, entry: Any, size: torch.Size) -> None:
        self._kind = kind
        self._state = kind.state(entry)
        self._size = size

    def _save_plan(self, plan: Any, level: int) -> None:
        cls: Any = registry.dense_root()
        state = _rust.new(cls, self._state, torch.Size([]), None, None)
        ((_, child_level, state),) = plan.add_entries(level, {_STATE: state})
        state._save_plan(plan, child_level)
        fields = {"_type": registry.type_text(SavedEntry), "kind": self._kind.name}
        plan.close_level_as(level, json.dumps(fields))

    def _saved(self, leaves: Any, directory: object, inplace: bool) -> Any:
        _ = directory, inplace
        # The iterator yields the saved tensors in the order of the plan.
        state = {name: next(leaves) for name in self._state}
        return self._kind.of_state(state, self._size)

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: Any) -> Any:
        from tensordict.storage.layouts.directory import load_directory

        fields = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
        kind = kind_named(fields.get("kind"), directory)
        state = load_directory(directory / _STATE, options._replace(size=None))
        return kind.of_state(state._tensordict, options.size or torch.Size([]))


def with_saved_entries(entries: dict[str, Any], size: torch.Size) -> dict[str, Any]:
    """Replace each special entry that is saved by its state with a :class:`SavedEntry`."""
    found = {}
    for key, value in entries.items():
        kind = kind_of(value)
        if kind is not None and kind.in_files == "state":
            found[key] = SavedEntry(kind, value, size)
    return {**entries, **found} if found else entries


registry.register_class(SavedEntry, "tensordict", dense=False)
