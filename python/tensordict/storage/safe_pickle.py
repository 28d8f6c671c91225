"""Non-tensor data as directories: ``meta.json``, and a pickle of values that JSON cannot hold.

The files are those of tensordict 0.15, which loses some information. A further file, which
tensordict 0.15 does not read, holds it: the places of tuples, ``torch.Size`` and ordered dicts, and
the batch size of non-tensor data that is saved alone.
"""

from __future__ import annotations

import enum
import hashlib
import io
import itertools
import json
import operator
import os
import pickle
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives import registry
from tensordict.primitives.common import shape_of_lists
from tensordict.primitives.errors import at_value
from tensordict.storage import extra_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensordict.storage.paths import SavedPath

__all__ = [
    "check_content",
    "load_column",
    "load_value",
    "plan_column",
    "plan_value",
    "rewrite",
    "saved_values",
]

META = "meta.json"
OTHER = "other.pickle"
TYPES = "json_types.json"
COLUMN = "pickle.pkl"
NOTES = ".nontensor.json"

PYTREE_TYPES: dict[str, type[Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "list": list,
    "tuple": tuple,
}
"""The classes that :meth:`from_pytree` notes, by their names in files."""

NOTED_TYPES: dict[str, type[Any]] = {
    "sizes": torch.Size,
    "tuples": tuple,
    "ordered": OrderedDict,
}
"""The types that JSON turns into lists and dicts, by their names in the notes."""

MSG_COLUMN = "{} is damaged: it names the file {!r} for its non-tensor data, instead of 'pickle.pkl'."


# Saving -------------------------------------------------------------------------------


def plan_value(non_tensor: Any, plan: Any, level: int) -> None:
    """Add non-tensor data with one value, or metadata, to a level of a plan."""
    if not getattr(plan, "has_files", True):
        return
    fields: dict[str, Any] = {"_type": registry.type_text(type(non_tensor))}
    pickled: dict[str, Any] = {}
    for name, value in (("data", non_tensor.data), ("_metadata", non_tensor._metadata)):
        (fields if is_jsonable(value) else pickled)[name] = value
    fields["_is_non_tensor"] = True
    text = json.dumps(fields)
    notes: dict[str, Any] = typed_paths(fields.get("data"))
    if not level and non_tensor.batch_size:
        notes["batch_size"] = list(non_tensor.batch_size)
    if pickled:
        content = _pickle_of(pickled)
        plan.add_file(level, OTHER, content)
        names = {name: _type_name(value) for name, value in pickled.items()}
        if all(names.values()):
            digest = hashlib.sha256(content).hexdigest()
            record = {"types": names, "pickle_sha256": digest}
            plan.add_file(level, TYPES, json.dumps(record).encode())
    _add_notes(plan, level, text, notes)
    plan.close_level_as(level, text)


def plan_column(stack: Any, plan: Any, level: int) -> None:
    """Add non-tensor data with one value for each element to a level of a plan, as a list."""
    if not getattr(plan, "has_files", True):
        return
    cls = type(stack)
    device = stack.device
    data = stack.tolist()
    fields: dict[str, Any] = {
        "_type": registry.type_text(cls),
        "_format_version": 1,
        "_class": registry.class_text(cls),
        "stack_dim": stack.stack_dim,
        "device": None if device is None else str(device),
    }
    flat = stack._flat()
    notes: dict[str, Any] = {}
    if all(type(value) is str for value in flat):
        fields["data"] = data
    elif is_jsonable(data):
        fields["data"] = data
        notes = typed_paths(data)
    else:
        plan.add_file(level, COLUMN, _pickle_of(data))
        fields["data"] = COLUMN
    size = list(stack.batch_size)
    # With several batch dimensions, or lists as values, the nested lists are ambiguous.
    if len(size) > 1 or any(isinstance(value, (list, tuple)) for value in flat):
        notes["batch_size"] = size
    text = json.dumps(fields, separators=(",", ":"))
    _add_notes(plan, level, text, notes)
    plan.close_level_as(level, text)


def saved_values(non_tensor: Any, directory: Any, inplace: bool) -> Any:
    """Return the saved non-tensor data: ``held`` itself, or a copy of it."""
    saved = non_tensor if inplace else non_tensor._twin()
    saved._is_memmap = True
    saved._is_shared = False
    saved._is_locked = True
    saved._memmap_prefix = None if directory is None else directory.path
    return saved


def check_content(values: Iterable[Any]) -> None:
    """Raise the error that saving these values would raise."""
    for value in values:
        if not is_jsonable(value):
            _pickle_of(value)


def rewrite(non_tensor: Any, places: Sequence[int], new: Sequence[Any]) -> None:
    """Set some values of saved non-tensor data, and write the files of all values again.

    The directory is replaced in one step. If another thread or process changes other values
    meanwhile, the files are written again, so that the last writer writes all values. If the
    files cannot be written, the old values are restored.
    """
    cells = non_tensor._cells
    old = [cells[place] for place in places]
    _set_cells(cells, places, new)
    try:
        written: list[Any] | None = None
        while written is None or not _is_same_list(written, cells):
            written = list(cells)
            target = os.path.abspath(non_tensor._memmap_prefix)
            plan = _rust.SavePlan(target, True, True, False)
            non_tensor._save_plan(plan, 0)
            plan.write(True, False, (0, False, False), _rust.SaveProgress())
    except BaseException:
        _set_cells(cells, places, old)
        raise


def _is_same_list(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(map(operator.is_, first, second))


def _set_cells(cells: Any, places: Sequence[int], new: Sequence[Any]) -> None:
    for place, value in zip(places, new, strict=True):
        cells[place] = value


def _add_notes(plan: Any, level: int, text: str, notes: dict[str, Any]) -> None:
    if notes:
        notes["meta_sha256"] = hashlib.sha256(text.encode()).hexdigest()
        plan.add_file(level, NOTES, json.dumps(notes).encode())


def _pickle_of(value: object) -> bytes:
    stream = io.BytesIO()
    try:
        pickle.Pickler(stream, protocol=4).dump(value)
    except Exception as error:
        at_value(error)
        raise
    return stream.getvalue()


def _type_name(value: object) -> str | None:
    return next((name for name, cls in PYTREE_TYPES.items() if cls is value), None)


def is_jsonable(value: object, depth: int = 0) -> bool:
    """Return whether JSON can hold a value. Tuples count as lists.

    A string with a lone surrogate, for example from a file name in another encoding, does
    not count: JSON readers refuse it.

    Raises:
        RuntimeError: lists and dicts are nested too deep in the value.
    """
    if value is None or type(value) in (int, float, bool):
        return True
    if type(value) is str:
        return is_text(value)
    if isinstance(value, enum.Enum):
        return False
    # No generators: they would double the use of the interpreter's stack.
    if isinstance(value, (list, tuple)):
        extra_metadata.check_depth(depth)
        if hasattr(value, "_fields"):
            return False
        return all(map(is_jsonable, value, itertools.repeat(depth + 1)))
    if isinstance(value, dict):
        extra_metadata.check_depth(depth)
        for key, item in value.items():
            if not isinstance(key, str) or not is_text(key):
                return False
            if not is_jsonable(item, depth + 1):
                return False
        return True
    if isinstance(value, str):
        return is_text(value)
    return isinstance(value, (int, float))


def is_text(value: str) -> bool:
    """Return whether a string has no lone surrogates."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def typed_paths(value: object) -> dict[str, Any]:
    """Return the paths where JSON keeps a value but not its type."""
    found: dict[str, Any] = {}
    _add_typed(value, (), found)
    return found


def _add_typed(value: object, path: tuple[Any, ...], found: dict[str, Any]) -> None:
    if isinstance(value, (list, tuple)):
        items: Any = enumerate(value)
    elif isinstance(value, dict):
        items = value.items()
    else:
        return
    for name, cls in NOTED_TYPES.items():
        if isinstance(value, cls):
            found.setdefault(name, []).append(list(path))
            break
    for key, item in items:
        if isinstance(item, (list, tuple, dict)):
            _add_typed(item, (*path, key), found)


# Loading ------------------------------------------------------------------------------


def load_value(cls: type, path: SavedPath, options: Any) -> Any:
    """Load non-tensor data with one value from a directory, with its own batch size.

    Raises:
        RuntimeError: the directory holds a pickle, which the caller does not allow.
    """
    text = (path / META).read_text(encoding="utf-8")
    fields = json.loads(text)
    notes = _notes(path, text)
    if "data" not in fields or "_metadata" not in fields:
        fields.update(_pickled_fields(path, options.allow_pickle))
    data = _with_types(fields.get("data"), notes)
    size = torch.Size(notes.get("batch_size", ()))
    loaded = cls(data, fields.get("_metadata"), batch_size=size, device=_home(options))
    loaded._memmap_prefix = options.home_of(path)
    return loaded


def load_column(cls: Any, path: SavedPath, options: Any) -> Any:
    """Load non-tensor data with one value for each element from a directory.

    Raises:
        RuntimeError: the directory holds a pickle, which the caller does not allow.
        ValueError: the metadata names an unknown file.
    """
    from tensordict.storage.stacks import load_members

    text = (path / META).read_text(encoding="utf-8")
    fields = json.loads(text)
    if "data" not in fields:
        # Versions before 0.6 wrote a directory for each value.
        members, dim, _ = load_members(path, options)
        loaded = cls(*members, stack_dim=dim)
        loaded._memmap_prefix = options.home_of(path)
        return loaded
    data = fields["data"]
    if isinstance(data, str):
        if data != COLUMN:
            raise ValueError(MSG_COLUMN.format(path / META, data))
        data = _read_pickle(path / COLUMN, options.allow_pickle)
    notes = _notes(path, text)
    data = _with_types(data, notes)
    size = notes.get("batch_size")
    if size is None:
        size = _likely_size(data, options.size)
    loaded = cls._from_nested(data, size)
    device = fields.get("device")
    loaded._device = None if device is None else torch.device(device)
    if _is_fake():
        loaded._device = _CPU
    if options.device is not None and options.device.type == "meta":
        loaded._device = options.device
    dim = fields.get("stack_dim", 0)
    if isinstance(dim, int) and 0 < dim < len(loaded.batch_size):
        loaded.stack_dim = dim
    loaded._memmap_prefix = options.home_of(path)
    return loaded


def _likely_size(data: list[Any], within: torch.Size | None) -> list[int] | None:
    """Guess the batch size of a stack of lists that tensordict 0.15 has saved.

    Its metadata does not say which lists are batch dimensions and which are values.

    Args:
        data: nested lists.
        within: the batch size of the parent collection, if it is known.

    Returns:
        None if the lists are batch dimensions as deep as their lengths are equal.
    """
    shape = shape_of_lists(data)
    if within and shape[: len(within)] == list(within):
        return list(within)
    flat: list[Any] = data
    for _ in shape[1:]:
        flat = [item for row in flat for item in row]
    # If the lists of numbers were batch dimensions, they would have been a tensor.
    is_numbers = flat and all(isinstance(item, (int, float)) for item in flat)
    return shape[:1] if is_numbers else None


_CPU = torch.device("cpu")


def _is_fake() -> bool:
    """Return whether new tensors are fake tensors now."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def _home(options: Any) -> torch.device:
    if options.device is not None and options.device.type == "meta":
        return options.device
    return torch.device("cpu")


def _notes(path: SavedPath, text: str) -> dict[str, Any]:
    """Read the file of notes, if it belongs to this version of the metadata."""
    file = path / NOTES
    if not file.exists():
        return {}
    notes: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if notes.get("meta_sha256") != hashlib.sha256(text.encode()).hexdigest():
        return {}
    return notes


def _with_types(value: Any, notes: dict[str, Any]) -> Any:
    noted = [
        (path, cls) for name, cls in NOTED_TYPES.items() for path in notes.get(name, ())
    ]
    # Inner values first: a tuple cannot be changed.
    noted.sort(key=lambda note: -len(note[0]))
    for path, cls in noted:
        if not path:
            value = cls(value)
            continue
        *parents, last = path
        holder = value
        for key in parents:
            holder = holder[key]
        holder[last] = cls(holder[last])
    return value


def _read_pickle(file: SavedPath, allow_pickle: bool | None) -> Any:
    from tensordict.storage.restricted_pickle import read_pickle

    return read_pickle(file, allow_pickle)


def _pickled_fields(path: SavedPath, allow_pickle: bool | None) -> dict[str, Any]:
    file = path / OTHER
    if not file.exists():
        return {}
    record = path / TYPES
    if record.exists():
        noted = json.loads(record.read_text(encoding="utf-8"))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        types = noted.get("types", {})
        if noted.get("pickle_sha256") == digest and all(
            name in PYTREE_TYPES for name in types.values()
        ):
            return {field: PYTREE_TYPES[name] for field, name in types.items()}
    return _read_pickle(file, allow_pickle)
