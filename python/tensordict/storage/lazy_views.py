"""A view of the lazy mode as a directory: its source, and the operation of the view.

The subdirectory ``_source`` holds the whole source. ``meta.json`` holds the operation and its inverse,
both with their arguments. A file may name only operations of
:mod:`tensordict.containers.lazy_views`, and their arguments may be only numbers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tensordict.primitives import registry

if TYPE_CHECKING:
    from tensordict._rust import SavedTensors
    from tensordict.storage.paths import SavedPath

__all__ = ["load_view", "plan_view", "saved_view"]

MSG_NO_VIEW = "{} has no valid operation of a view: {!r}."

_SOURCE = "_source"
_DIM, _DIMS = "dim", "dims"
_ARGUMENTS: dict[str, dict[str, str]] = {
    "permute": {"dims": _DIMS},
    "squeeze": {"dim": _DIM},
    "transpose": {"dim0": _DIM, "dim1": _DIM},
    "unsqueeze": {"dim": _DIM},
    "view": {"size": _DIMS},
}
"""The arguments of each operation: a number, or a list of numbers."""


def plan_view(view: Any, plan: Any, level: int) -> None:
    """Add a view to a level of a plan: its whole source, and its operation."""
    ((_, child_level, source),) = plan.add_entries(level, {_SOURCE: view._source})
    source._save_plan(plan, child_level)
    cls = type(view)
    fields = {
        "shape": list(view.batch_size),
        "device": "cpu",
        "_type": registry.type_text(cls),
        "custom_op": view.custom_op,
        "inv_op": view.inv_op,
        "custom_op_kwargs": _to_json(view.custom_op_kwargs),
        "inv_op_kwargs": _to_json(view.inv_op_kwargs),
        "_format_version": 1,
        "_class": registry.class_text(cls),
    }
    plan.close_level_as(level, json.dumps(fields))


def saved_view(view: Any, leaves: SavedTensors, directory: Any, inplace: bool) -> Any:
    """Return the same view of the saved source."""
    child = None if directory is None else directory.child(_SOURCE)
    source = view._source._saved(leaves, child, inplace)
    saved = view if inplace else view._of_source(source)
    saved._source = source
    saved._memmap_prefix = None if directory is None else directory.path
    return saved


def load_view(cls: Any, path: SavedPath, options: Any) -> Any:
    """Load the view in a directory.

    Raises:
        ValueError: the metadata has no valid operation.
    """
    from tensordict.storage.layouts.directory import load_directory

    fields = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    try:
        op = fields["custom_op"]
        kwargs = _checked(op, fields["custom_op_kwargs"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(MSG_NO_VIEW.format(path / "meta.json", error)) from error
    loaded = cls._seen_through(load_directory(path / _SOURCE, options), op, kwargs)
    loaded._memmap_prefix = options.home_of(path)
    return loaded


def _to_json(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, (list, tuple)) else value
        for name, value in kwargs.items()
    }


def _checked(op: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Check the arguments of an operation and return them.

    Raises:
        KeyError: the operation is unknown.
        ValueError: the operation has other arguments.
    """
    kinds = _ARGUMENTS[op]
    if set(kwargs) != set(kinds):
        raise ValueError(f"{op} takes {sorted(kinds)}, got {sorted(kwargs)}")
    for name, kind in kinds.items():
        value = kwargs[name]
        items = value if kind is _DIMS and isinstance(value, list) else [value]
        if not all(type(item) is int for item in items):
            raise ValueError(f"{name} of {op} is {value!r}")
    return dict(kwargs)
