"""State dicts: tensors by name, as torch modules have them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives.checks import is_branch, is_tensorclass
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.old_states import as_of_today

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.containers.collection import TensorCollection

__all__ = ["checked_values", "load_state_dict", "state_dict", "take_field"]

VALUES = "_non_tensor"
"""Under this name the metadata of a state has what a non-tensor entry holds."""

DATA = "data"

SINGLE = frozenset({"NonTensorData", "MetaData"})
"""Types that hold one value for all elements, which may be a list itself."""

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
        # Nobody has seen what was written twice.
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
    """Add the tensors of ``td``: how many there were."""
    num_leaves = 0
    fields, entries = td._stated()
    about = {"batch_size": td.batch_size, "device": td.device, **fields}
    metadata[prefix[:-1]] = about
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
    """Check that joining nested keys by dots gives each its own name."""
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
    source = as_of_today(td, source)
    metadata = getattr(source, "_metadata", None) or {}
    if from_flatten is None:
        # Only a flat one has the metadata of its nested collections.
        from_flatten = len(metadata) > 1 and not any(
            isinstance(value, Mapping) for value in source.values()
        )
    values = dict(source.items())
    if from_flatten:
        values = _nest(values)
    values = _accepted(td, values, dict(_described(source, ())), (), strict)
    found = [(_at(td, path), size) for path, size in _sizes_of(source)]
    sizes = [(each, size) for each, size in found if each is not None]
    if td._is_non_tensor:
        # Its value is in the metadata.
        pass
    elif all(each.batch_size == size for each, size in sizes):
        td.update(values, inplace=not assign)
    else:
        _update_with_sizes(td, values, sizes, assign)
    for path, about in list(_described(source, ())):
        if VALUES in about:
            _take_value(td, path, about, assign)
    return td


def _described(
    source: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """The path of each collection that a state came from, and what is said of it."""
    metadata = getattr(source, "_metadata", None) or {}
    # The published release writes that of a tensorclass behind what is nested in it.
    root = min(metadata, key=len, default="")
    for name, about in metadata.items():
        if isinstance(about, Mapping):
            own = name[len(root) :].removeprefix(".")
            yield (*path, *(own.split(".") if own else ())), about
    for key, value in source.items():
        if isinstance(value, Mapping):
            yield from _described(value, (*path, key))


def _sizes_of(source: object) -> Iterator[tuple[Any, torch.Size]]:
    """The path and the batch size of each collection that a state came from."""
    for path, about in _described(source, ()):
        if about.get("batch_size") is not None:
            yield path, about["batch_size"]


def _at(td: CollectionProtocol, path: tuple[str, ...]) -> Any:
    """The collection at a path, or None."""
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
    """Update ``td`` and take the batch sizes of the state, or do nothing."""
    held = [(each, each.batch_size, each.names) for each in _rust.containers(td)]
    try:
        for each, size in sizes:
            each.batch_size = size
        td.update(values, inplace=not assign)
    except BaseException:
        for each, size, names in held:
            each.batch_size = size
            each.names = names
        raise


def _accepted(
    td: Any,
    values: Mapping[str, Any],
    described: Mapping[tuple[str, ...], Any],
    path: tuple[str, ...],
    strict: bool,
) -> dict[str, Any]:
    """The part of a state that is written into the entries of ``td``.

    What stands for values is left out: these are in the metadata.

    Raises:
        KeyError, RuntimeError: ``strict`` is set, and the keys are not those of ``td``.
    """
    about = described.get(path, {})
    kept: dict[str, Any] = td._state_values(values, about.get(VALUES, {}), strict)
    entries = td._sample_entries()
    # That of a tensorclass has its values.
    if strict and about and VALUES not in about and not is_tensorclass(td):
        _check_held_values(entries, values, described, path)
    if td._is_dense:
        # The flat state of an empty collection has the metadata only.
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
            made = _made(td, value, described, below)
            if made is None:
                del kept[key]
            else:
                kept[key] = made
    return kept


def _check_held_values(
    entries: Mapping[str, Any],
    values: Mapping[str, Any],
    described: Mapping[tuple[str, ...], Any],
    path: tuple[str, ...],
) -> None:
    """Raise where a state, which has metadata, says nothing of a value that is there."""
    missing = {
        key
        for key, entry in entries.items()
        if _holds_values(entry) and key not in values and (*path, key) not in described
    }
    if missing:
        raise RuntimeError(MSG_KEYS.format(set(), missing))


def _holds_values(entry: object) -> bool:
    """Return whether an entry is non-tensor data, or a collection of that alone."""
    if not isinstance(entry, CollectionProtocol):
        return False
    if entry._is_non_tensor:
        return True
    below = list(entry._sample_entries().values())
    return any(map(_holds_values, below)) and not _rust.leaves(entry)


def _made(
    td: CollectionProtocol,
    values: Mapping[str, Any],
    described: Mapping[tuple[str, ...], Any],
    path: tuple[str, ...],
) -> Any:
    """A collection for ``td``, which has none at ``path``; None for a value."""
    about = described.get(path, {})
    if "_is_non_tensor" in about.get(VALUES, {}):
        return None
    made = td.empty(batch_size=about.get("batch_size", td.batch_size))
    made.update(_accepted(made, values, described, path, False))
    return made


def checked_values(
    td: CollectionProtocol, values: Mapping[str, Any], strict: bool
) -> dict[str, Any]:
    """A level of a state, whose keys are those of ``td`` if ``strict`` is set.

    Raises:
        RuntimeError: they are not.
    """
    # Nothing is read of an entry: those of a stack may differ in shape.
    entries = td._sample_entries()
    # A state has tensors only: an empty collection is in none.
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
    td: TensorCollection, path: tuple[str, ...], about: Mapping[str, Any], assign: bool
) -> None:
    fields = about[VALUES]
    if "_is_non_tensor" not in fields:
        # The fields of a tensorclass, which are values whatever their type.
        owner = _at(td, path)
        for name, value in fields.items():
            if value is not None and owner is not None:
                owner._take_field(name, value, assign)
        return
    if not path:
        # The state of non-tensor data alone, which another collection has no place for.
        if td._is_non_tensor:
            td._take_state(fields, about.get("_type") in SINGLE)
        return
    parent = td
    for part in path[:-1]:
        parent = parent._get_entry(part, None)
        if not isinstance(parent, CollectionProtocol):
            return
    present = parent._get_entry(path[-1], None)
    if getattr(present, "_is_non_tensor", False):
        taken = present.clone() if assign else present
        taken._take_state(fields, about.get("_type") in SINGLE)
        size = about.get("batch_size")
        if size is not None and taken._is_one:
            taken._resize_batch(size)
        if assign:
            _rust.set_entry(parent, path[-1], taken, False, False)
    elif assign or not isinstance(present, CollectionProtocol):
        if about.get("_type") == "NonTensorStack":
            _rust.set_entry(parent, path[-1], fields[DATA], False, False)
        else:
            parent.set_non_tensor(path[-1], fields[DATA])


def take_field(td: Any, name: str, value: Any, assign: bool) -> None:
    """Take what the state of a tensorclass says of a field that holds no tensor."""
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
