"""A view ``_SubTensorDict`` as a directory.

The subdirectory ``_source`` holds the whole source, and ``meta.json`` the index of the view. In the
index, numbers, booleans and None are JSON values. Anything else is a list that begins with its
kind: ``["slice", {"start": 0, "stop": 2, "step": null}]``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives import registry

if TYPE_CHECKING:
    from tensordict._rust import SavedTensors
    from tensordict.storage.paths import SavedPath

__all__ = ["load_part", "plan_part", "saved_part"]

_SOURCE = "_source"


def plan_part(part: Any, plan: Any, level: int) -> None:
    """Add a view to a level of a plan: its whole source, and its index."""
    ((_, child_level, source),) = plan.add_entries(level, {_SOURCE: part._source})
    source._save_plan(plan, child_level)
    cls = type(part)
    fields = {
        "_type": registry.type_text(cls),
        "_format_version": 1,
        "_class": registry.class_text(cls),
        "index": _to_json(part.idx),
    }
    plan.close_level_as(level, json.dumps(fields))


def saved_part(part: Any, leaves: SavedTensors, directory: Any) -> Any:
    """Return the same view of the saved source."""
    child = None if directory is None else directory.child(_SOURCE)
    saved = type(part)(part._source._saved(leaves, child, False), part.idx)
    saved._is_memmap = True
    saved._memmap_prefix = None if directory is None else directory.path
    return saved


def load_part(cls: type, path: SavedPath, options: Any) -> Any:
    """Load the view in a directory.

    Raises:
        ValueError: the metadata has no valid index.
    """
    from tensordict.storage.layouts.directory import load_directory

    fields = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    try:
        index = _from_json(fields["index"])
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{path / 'meta.json'} has no valid index of a view: {error!r}."
        raise ValueError(msg) from error
    return cls(load_directory(path / _SOURCE, options), index)


def _to_json(index: object) -> Any:
    if index is Ellipsis:
        return ["ellipsis"]
    if isinstance(index, (tuple, list)):
        return [type(index).__name__, [_to_json(item) for item in index]]
    if isinstance(index, (slice, range)):
        bounds = {"start": index.start, "stop": index.stop, "step": index.step}
        return [type(index).__name__, bounds]
    if isinstance(index, torch.Tensor):
        return ["tensor", index.tolist(), str(index.device)]
    return index


def _from_json(value: object) -> Any:
    if not isinstance(value, list):
        return value
    kind, *rest = value
    if kind == "ellipsis":
        return Ellipsis
    if kind in ("tuple", "list"):
        items = [_from_json(item) for item in rest[0]]
        return tuple(items) if kind == "tuple" else items
    if kind in ("slice", "range"):
        bounds = rest[0]["start"], rest[0]["stop"], rest[0]["step"]
        return slice(*bounds) if kind == "slice" else range(*bounds)
    if kind == "tensor":
        tensor = torch.tensor(rest[0])
        # The dtype of an empty list is unknown: an index needs int64.
        return tensor if tensor.numel() else tensor.long()
    msg = f"unknown kind of index {kind!r}"
    raise ValueError(msg)
