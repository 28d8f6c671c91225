"""State dicts: tensors by name, as in torch modules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives.checks import holds_values, is_branch, is_tensorclass
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.old_states import to_present_form

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.containers.collection import TensorCollection

__all__ = ["checked_values", "load_state_dict", "state_dict", "take_field"]

VALUES = "_non_tensor"
"""The field of a state's metadata for the content of non-tensor data."""

DATA = "data"

SINGLE = frozenset({"NonTensorData", "MetaData"})
"""The types that hold one value for all elements. This value may be a list."""

MSG_KEYS = (
    "Cannot load state-dict because the key sets don't match: got state_dict extra keys "
    "\n{}\n and tensordict extra keys\n{}\n"
)


def state_dict(
    td: CollectionProtocol,
    destination: object,
    prefix: str,
    keep_vars: bool,
    flatten: bool,
) -> Any:
    """See :meth:`tensordict.TensorDictBase.state_dict`."""
    out: Any = OrderedDict() if destination is None else destination
    if getattr(out, "_metadata", None) is None:
        out._metadata = OrderedDict()
    if destination is not None and flatten and len(_rust.containers(td)) > 1:
        _check_names(td)
    num_leaves = _add(td, out, out._metadata, prefix, keep_vars, flatten)
    if destination is None and len(out) != num_leaves:
        # A name was written twice. The caller has not seen `out` yet, so raise now.
        _check_names(td)
    return out


def _add(
    td: CollectionProtocol,
    out: CollectionProtocol,
    metadata: Any,
    prefix: str,
    keep_vars: bool,
    flatten: bool,
) -> int:
    """Add the tensors of ``td`` to ``out``; return their number."""
    num_leaves = 0
    fields, entries = td._stated()
    description = {"batch_size": td.batch_size, "device": td.device, **fields}
    metadata[prefix[:-1]] = description
    for key, value in entries.items():
        if type(value) is torch.Tensor:
            out[prefix + key] = value if keep_vars else value.detach()
        elif not isinstance(value, CollectionProtocol):
            is_kept = keep_vars or not isinstance(value, torch.Tensor)
            out[prefix + key] = value if is_kept else value.detach()
        elif flatten:
            below = f"{prefix}{key}."
            num_leaves += _add(value, out, metadata, below, keep_vars, flatten)
            continue
        else:
            out[prefix + key] = state_dict(value, None, "", keep_vars, flatten)
        num_leaves += 1
    return num_leaves


def _check_names(td: CollectionProtocol) -> None:
    """Raise if two nested keys are equal when their parts are joined by dots."""
    seen: dict[str, Any] = {}
    for key in td.keys(include_nested=True, leaves_only=True):
        name = key if isinstance(key, str) else ".".join(key)
        if name in seen:
            raise KeyMessageError(
                f"Flattening keys in tensordict causes keys {[seen[name], key]} to "
                f"collide in the flat state dict key {name!r}. Use "
                "state_dict(flatten=False) to keep them apart."
            )
        seen[name] = key


def load_state_dict(
    td: Any,
    source: Mapping[str, Any],
    strict: bool,
    assign: bool,
    from_flatten: bool | None,
) -> Any:
    """See :meth:`tensordict.TensorDictBase.load_state_dict`."""
    source = to_present_form(td, source)
    metadata = getattr(source, "_metadata", None) or {}
    if from_flatten is None:
        # Only a flat state holds the metadata of nested collections.
        from_flatten = len(metadata) > 1 and not any(
            isinstance(value, Mapping) for value in source.values()
        )
    values = dict(source.items())
    if from_flatten:
        values = _nest(values)
    values = _accepted(td, values, dict(_described(source, ())), (), strict)
    found = [(_at(td, path), size) for path, size in _sizes_of(source)]
    sizes = [(nested, size) for nested, size in found if nested is not None]
    if td._is_non_tensor:
        # The metadata below holds its value.
        pass
    elif all(nested.batch_size == size for nested, size in sizes):
        td.update(values, inplace=not assign)
    else:
        _update_with_sizes(td, values, sizes, assign)
    for path, description in list(_described(source, ())):
        if VALUES in description:
            _take_value(td, path, description, assign)
    return td


def _described(
    source: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the path and the description of each collection that a state came from."""
    metadata = getattr(source, "_metadata", None) or {}
    # The published package writes the metadata of a tensorclass after its nested entries,
    # so the root is found by its shortest name.
    root = min(metadata, key=len, default="")
    for name, description in metadata.items():
        if isinstance(description, Mapping):
            nested = name[len(root) :].removeprefix(".")
            yield (*path, *(nested.split(".") if nested else ())), description
    for key, value in source.items():
        if isinstance(value, Mapping):
            yield from _described(value, (*path, key))


def _sizes_of(source: object) -> Iterator[tuple[Any, torch.Size]]:
    """Yield the path and the batch size of each collection that a state came from."""
    for path, description in _described(source, ()):
        if description.get("batch_size") is not None:
            yield path, description["batch_size"]


def _at(td: CollectionProtocol, path: tuple[str, ...]) -> Any:
    """Return the collection at a path, or None."""
    for part in path:
        td = td._get_entry(part, None)
        if not is_branch(td):
            return None
    return td


def _update_with_sizes(
    td: CollectionProtocol,
    values: Mapping[str, Any],
    sizes: list[tuple[Any, torch.Size]],
    assign: bool,
) -> None:
    """Update ``td`` and set the batch sizes of the state. After an error, restore them."""
    before = [
        (nested, nested.batch_size, nested.names) for nested in _rust.containers(td)
    ]
    try:
        for nested, size in sizes:
            nested.batch_size = size
        td.update(values, inplace=not assign)
    except BaseException:
        for nested, size, names in before:
            nested.batch_size = size
            nested.names = names
        raise


def _accepted(
    td: Any,
    values: Mapping[str, Any],
    described: Mapping[tuple[str, ...], Any],
    path: tuple[str, ...],
    strict: bool,
) -> dict[str, Any]:
    """Return the part of a state to write into the entries of ``td``.

    Placeholders of non-tensor data are left out: the metadata holds the values.

    Raises:
        KeyError, RuntimeError: ``strict`` is true, but the keys differ from those of ``td``.
    """
    description = described.get(path, {})
    fields = description.get(VALUES, {})
    kept: dict[str, Any] = td._state_values(values, fields, strict)
    entries = td._sample_entries()
    # The description of a tensorclass holds its non-tensor fields itself.
    if strict and description and VALUES not in description and not is_tensorclass(td):
        _check_held_values(entries, values, described, path)
    if td._is_dense:
        # In a flat state, an empty collection appears in the metadata only.
        for below in described:
            if below and below[:-1] == path:
                entry = entries.get(below[-1])
                if entry is None or isinstance(entry, CollectionProtocol):
                    kept.setdefault(below[-1], {})
    for key, value in list(kept.items()):
        if not isinstance(value, Mapping):
            continue
        entry, below = entries.get(key), (*path, key)
        if isinstance(entry, CollectionProtocol):
            if entry._is_non_tensor and not value:
                del kept[key]
            else:
                kept[key] = _accepted(entry, value, described, below, strict)
        elif entry is None and td._is_dense:
            nested = _new_nested(td, value, described, below)
            if nested is None:
                del kept[key]
            else:
                kept[key] = nested
    return kept


def _check_held_values(
    entries: Mapping[str, Any],
    values: Mapping[str, Any],
    described: Mapping[tuple[str, ...], Any],
    path: tuple[str, ...],
) -> None:
    """Raise if a state with metadata lacks non-tensor data that the collection contains."""
    missing = {
        key
        for key, entry in entries.items()
        if _holds_values(entry) and key not in values and (*path, key) not in described
    }
    if missing:
        raise RuntimeError(MSG_KEYS.format(set(), missing))


def _holds_values(entry: object) -> bool:
    """Return whether an entry is non-tensor data, or a collection of nothing else."""
    if not is_branch(entry):
        return holds_values(entry)
    below = list(entry._sample_entries().values())
    return any(map(_holds_values, below)) and not _rust.leaves(entry)


def _new_nested(
    td: CollectionProtocol,
    values: Mapping[str, Any],
    described: Mapping[tuple[str, ...], Any],
    path: tuple[str, ...],
) -> Any:
    """Return a new collection for ``path``, or None if the state has a value there."""
    description = described.get(path, {})
    if "_is_non_tensor" in description.get(VALUES, {}):
        return None
    nested = td.empty(batch_size=description.get("batch_size", td.batch_size))
    nested.update(_accepted(nested, values, described, path, False))
    return nested


def checked_values(
    td: CollectionProtocol, values: Mapping[str, Any], strict: bool
) -> dict[str, Any]:
    """Return a level of a state; with ``strict``, check its keys.

    Raises:
        RuntimeError: ``strict`` is true, but the keys differ from those of ``td``.
    """
    # Only the keys are used: the entries of a stack may differ in shape.
    entries = td._sample_entries()
    # A state holds tensors only, so an empty collection does not appear in it.
    extra = {
        key
        for key in values.keys() - entries.keys()
        if not (isinstance(values[key], Mapping) and not values[key])
    }
    missing = {
        key
        for key in entries.keys() - values.keys()
        if not (
            isinstance(entries[key], CollectionProtocol)
            and not _rust.leaves(entries[key])
        )
    }
    if strict and (extra or missing):
        raise RuntimeError(MSG_KEYS.format(extra or set(), missing or set()))
    return dict(values)


def _take_value(
    td: TensorCollection,
    path: tuple[str, ...],
    description: Mapping[str, Any],
    assign: bool,
) -> None:
    fields = description[VALUES]
    if "_is_non_tensor" not in fields:
        # The non-tensor fields of a tensorclass.
        owner = _at(td, path)
        for name, value in fields.items():
            if value is not None and owner is not None:
                owner._take_field(name, value, assign)
        return
    if not path:
        # The state of non-tensor data alone. Other collections ignore it.
        if td._is_non_tensor:
            td._take_state(fields, description.get("_type") in SINGLE)
        return
    parent = td
    for part in path[:-1]:
        parent = parent._get_entry(part, None)
        if not isinstance(parent, CollectionProtocol):
            return
    present = parent._get_entry(path[-1], None)
    if getattr(present, "_is_non_tensor", False):
        updated = present.clone() if assign else present
        updated._take_state(fields, description.get("_type") in SINGLE)
        size = description.get("batch_size")
        if size is not None and updated._is_one:
            updated._resize_batch(size)
        if assign:
            _rust.set_entry(parent, path[-1], updated, False, False)
    elif assign or not isinstance(present, CollectionProtocol):
        if description.get("_type") == "NonTensorStack":
            _rust.set_entry(parent, path[-1], fields[DATA], False, False)
        else:
            parent.set_non_tensor(path[-1], fields[DATA])


def take_field(td: Any, name: str, value: Any, assign: bool) -> None:
    """Set a non-tensor field of a tensorclass to its value in a state."""
    present = td._get_entry(name, None)
    if getattr(present, "_is_non_tensor", False) and not assign:
        present._take_state({DATA: value}, False)
    else:
        td.set_non_tensor(name, value)


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})
        level[last] = value
    return nested
