"""A tensorclass as a directory.

``meta.json`` names the class and nothing else; ``_tensordict/`` holds the container
inside. Files of early releases have further keys in ``meta.json``, or a file
``other.pickle``: fields that hold no tensors.
"""

from __future__ import annotations

import json
import pickle
import warnings
from typing import TYPE_CHECKING, Any

from tensordict.storage import registry

if TYPE_CHECKING:
    from tensordict.storage.paths import SavedPath

__all__ = ["load_class", "plan_class"]

_INNER = "_tensordict"
_OTHER = "other.pickle"

MSG_PICKLE = (
    "{} holds pickled values, which can run any code when they are read: pass "
    "allow_pickle=True if you trust the file."
)


def plan_class(tc: Any, plan: Any, level: int) -> None:
    """Add a tensorclass to a level of a plan: its class, and the container inside."""
    ((_, child_level, inner),) = plan.add_entries(level, {_INNER: tc._tensordict})
    inner._save_plan(plan, child_level)
    fields = {"_type": registry.type_text(type(tc))}
    plan.close_level_as(level, json.dumps(fields))


def load_class(cls: Any, path: SavedPath, options: Any) -> Any:
    """Make the tensorclass that a directory holds.

    Raises:
        ValueError: it holds entries that are no fields of the class.
    """
    from tensordict.storage.tree import load_directory

    further = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    further.pop("_type", None)
    further.update(_pickled(path / _OTHER, options.allow_pickle))
    return cls._from_tensordict(load_directory(path / _INNER, options), further)


def _pickled(path: SavedPath, allow_pickle: bool | None) -> dict[str, Any]:
    if not path.exists():
        return {}
    if allow_pickle is False:
        raise RuntimeError(MSG_PICKLE.format(path))
    if allow_pickle is None:
        warnings.warn(
            f"{MSG_PICKLE.format(path)} Starting with TensorDict 0.17, the default will "
            "change to refusing such files.",
            FutureWarning,
            stacklevel=2,
        )
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - the caller allows it
