"""Non-tensor values as directories: ``meta.json``, and a pickle of what JSON cannot say.

The files are those of tensordict 0.15. What it loses on the way is noted in a file
of ours, which it does not read: where tuples, sizes and ordered dicts stood, and the
batch size of a value that is saved alone.
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
"""The classes that :meth:`from_pytree` notes, by the names that files have for them."""

NOTED_TYPES: dict[str, type[Any]] = {
    "sizes": torch.Size,
    "tuples": tuple,
    "ordered": OrderedDict,
}
"""The types that JSON turns into lists and dicts, by the names under which they are
noted."""

MSG_COLUMN = "{} names the file {!r} for its non-tensor data, which is not such a file."


# Saving -------------------------------------------------------------------------------


def plan_value(held: Any, plan: Any, level: int) -> None:
    """Add one value, or one of metadata, to a level of a plan."""
    if not getattr(plan, "has_files", True):
        return
    fields: dict[str, Any] = {"_type": registry.type_text(type(held))}
    pickled: dict[str, Any] = {}
    for name, value in (("data", held.data), ("_metadata", held._metadata)):
        (fields if is_jsonable(value) else pickled)[name] = value
    fields["_is_non_tensor"] = True
    text = json.dumps(fields)
    notes: dict[str, Any] = typed_paths(fields.get("data"))
    if not level and held.batch_size:
        notes["batch_size"] = list(held.batch_size)
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
    """Add a value for each element to a level of a plan: one list of all."""
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
    # With several dims, or lists as values, the data do not tell which is which.
    if len(size) > 1 or any(isinstance(value, (list, tuple)) for value in flat):
        notes["batch_size"] = size
    text = json.dumps(fields, separators=(",", ":"))
    _add_notes(plan, level, text, notes)
    plan.close_level_as(level, text)


def saved_values(held: Any, directory: Any, inplace: bool) -> Any:
    """Return what stands for saved values: ``held`` itself, or one like it."""
    saved = held if inplace else held._twin()
    saved._is_memmap = True
    saved._is_shared = False
    saved._is_locked = True
    saved._memmap_prefix = None if directory is None else directory.path
    return saved


def check_content(held: Iterable[Any]) -> None:
    """Raise what saving these values would raise."""
    for value in held:
        if not is_jsonable(value):
            _pickle_of(value)


def rewrite(held: Any, places: Sequence[int], new: Sequence[Any]) -> None:
    """Set some cells of values that were saved, and write the files of all of them.

    The directory is replaced in one step. Where another thread or process writes other
    cells meanwhile, it is written again, so that the last one to finish writes all.
    If it cannot be written, the cells have their old values again.
    """
    cells = held._cells
    old = [cells[place] for place in places]
    _set_cells(cells, places, new)
    try:
        written: list[Any] | None = None
        while written is None or not _is_same_list(written, cells):
            written = list(cells)
            target = os.path.abspath(held._memmap_prefix)
            plan = _rust.SavePlan(target, True, True, False)
            held._save_plan(plan, 0)
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
    """Return whether JSON says all of a value, tuples and lists alike.

    Not where a text has half of a character, as file names of other encodings have:
    readers of JSON refuse it.

    Raises:
        RuntimeError: lists and dicts are nested too deep in it.
    """
    if value is None or type(value) in (int, float, bool):
        return True
    if type(value) is str:
        return is_text(value)
    if isinstance(value, enum.Enum):
        return False
    # No generators, which take as much of the interpreter's stack again.
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
    """Return whether a text has whole characters only."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def typed_paths(value: object) -> dict[str, Any]:
    """List the paths where JSON can say a value, but not its type."""
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
    """Make the value that a directory holds; its size is that of what holds it.

    Raises:
        RuntimeError: it holds a pickle, which the caller does not allow.
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
    """Make the stack of values that a directory holds.

    Raises:
        RuntimeError: it holds a pickle, which the caller does not allow.
        ValueError: its metadata names another file.
    """
    from tensordict.storage.stacks import load_members

    text = (path / META).read_text(encoding="utf-8")
    fields = json.loads(text)
    if "data" not in fields:
        # Releases before 0.6 wrote this form.
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
    """Return the batch size of a stack of lists that tensordict 0.15 saved.

    It does not say which lists are dims and which are values.

    Args:
        data: nested lists.
        within: the batch size of what the stack is an entry of, if that is known.

    Returns:
        None: the lists are dims as far down as their lengths are equal.
    """
    shape = shape_of_lists(data)
    if within and shape[: len(within)] == list(within):
        return list(within)
    flat: list[Any] = data
    for _ in shape[1:]:
        flat = [item for row in flat for item in row]
    # Lists of numbers that are dims are a tensor and no values.
    is_numbers = flat and all(isinstance(item, (int, float)) for item in flat)
    return shape[:1] if is_numbers else None


_CPU = torch.device("cpu")


def _is_fake() -> bool:
    """Return whether tensors that are made now are fake ones."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def _home(options: Any) -> torch.device:
    if options.device is not None and options.device.type == "meta":
        return options.device
    return torch.device("cpu")


def _notes(path: SavedPath, text: str) -> dict[str, Any]:
    """Read what tensordict 0.15 does not say, if it is about this very metadata."""
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
    # Inner ones first: a tuple cannot be written into.
    noted.sort(key=lambda each: -len(each[0]))
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
        known = json.loads(record.read_text(encoding="utf-8"))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        types = known.get("types", {})
        if known.get("pickle_sha256") == digest and all(
            name in PYTREE_TYPES for name in types.values()
        ):
            return {field: PYTREE_TYPES[name] for field, name in types.items()}
    return _read_pickle(file, allow_pickle)
