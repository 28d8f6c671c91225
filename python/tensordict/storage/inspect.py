"""What a save holds, from its metadata alone.

No tensor is read, no class is needed, no pickle is opened: so it works for saves of
anybody, and says what is wrong with those that cannot be loaded.
"""

from __future__ import annotations

import json
import os
import zipfile
from typing import TYPE_CHECKING, Any, NamedTuple

from tensordict import _rust
from tensordict.storage import single
from tensordict.storage.buffer import VALUES, problem_of_row
from tensordict.storage.describing import RESERVED, problem_of
from tensordict.storage.foreign import MSG_NO_LAYOUT, explain
from tensordict.storage.layouts import safetensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Entry", "Survey", "survey"]

ITEM_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8", "qint8", "quint8"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32", "qint32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}


_LONGEST_HEADER = 100_000_000  # the limit of the safetensors format


class Entry(NamedTuple):
    """An entry of a save."""

    key: tuple[str, ...]
    kind: str
    """``tensor``, ``collection`` or ``value``."""
    dtype: str | None = None
    shape: list[int] | None = None
    num_bytes: int = 0
    note: str = ""
    """Of a collection its class, of a value the value or where it is kept."""
    problem: str = ""
    """What is wrong with it; empty where nothing is."""


class Survey(NamedTuple):
    """What a save holds."""

    path: str
    layout: str
    entries: list[Entry]

    @property
    def num_bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(entry.num_bytes for entry in self.entries)

    @property
    def problems(self) -> list[str]:
        """What is wrong, a line for each entry."""
        return [
            f"the entry {shown(entry.key)}: {entry.problem}"
            for entry in self.entries
            if entry.problem
        ]


def shown(key: tuple[str, ...]) -> str:
    """A key as messages show it."""
    return repr(key[0] if len(key) == 1 else key) if key else "of the root"


def survey(path: str | Path) -> Survey:
    """List what a save of any layout holds.

    Raises:
        OSError: there is no save, or it cannot be read.
        RuntimeError: its metadata makes no sense.
        ValueError: it is no save.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> _ = TensorDict({"a": torch.zeros(3, 2), "n": {"b": torch.ones(3)}}).save(path)
        >>> [(entry.key, entry.dtype, entry.num_bytes) for entry in survey(path).entries]
        [((), None, 0), (('a',), 'float32', 24), (('n',), None, 0), (('n', 'b'), 'float32', 12)]
    """
    path = os.fspath(path)
    layout = single.layout_of(path)
    if layout == "safetensors":
        return Survey(path, layout, list(_safetensors(path)))
    if layout == "consolidated":
        return Survey(path, layout, list(_consolidated(path)))
    if os.path.isdir(path):
        files = _Files(path)
        return Survey(path, "tree", list(_level(files, "", ())))
    if not os.path.exists(path):
        raise FileNotFoundError(2, "No such file or directory", path)
    layout = None if zipfile.is_zipfile(path) else _cut_off(path)
    if layout is not None:
        problem = "the end of the file is missing: it was cut off"
        return Survey(path, layout, [Entry((), "collection", problem=problem)])
    if explanation := explain(path):
        raise ValueError(f"{path} is no save. {explanation}")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no save. {MSG_NO_LAYOUT}")
    with zipfile.ZipFile(path) as archive:
        return Survey(path, "archive", list(_level(_Members(archive), "", ())))


def _cut_off(path: str) -> str | None:
    """The layout that a file has by its beginning alone; None where that does not tell."""
    with open(path, "rb") as file:
        start = file.read(9)
    if start.startswith(b"PK\x03\x04"):
        return "archive"
    # The length of a header of JSON, and its first byte.
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= _LONGEST_HEADER:
        return "safetensors"
    return None


# Trees, as directories and as archives ------------------------------------------------


class _Files:
    """The files of a directory. A link out of it is not followed."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.save = _rust.Directory(os.path.abspath(root), "r")

    def content(self, name: str) -> bytes:
        content: bytes = self.save.read(name)
        return content

    def text(self, name: str) -> str:
        return self.content(name).decode()

    def size(self, name: str) -> int | None:
        try:
            return os.stat(os.path.join(self.root, name)).st_size
        except OSError:
            return None

    def folders(self, name: str) -> list[str]:
        with os.scandir(os.path.join(self.root, name)) as found:
            return [entry.name for entry in found if entry.is_dir()]


class _Members:
    """The entries of an archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.root = archive.filename
        self.sizes = {info.filename: info.file_size for info in archive.infolist()}

    def content(self, name: str) -> bytes:
        if name not in self.sizes:
            raise FileNotFoundError(2, "No such entry", name)
        return self.archive.read(name)

    def text(self, name: str) -> str:
        return self.content(name).decode()

    def size(self, name: str) -> int | None:
        return self.sizes.get(name)

    def folders(self, name: str) -> list[str]:
        start = f"{name}/" if name else ""
        below = [key[len(start) :] for key in self.sizes if key.startswith(start)]
        return list(dict.fromkeys(key.split("/")[0] for key in below if "/" in key))


def _level(
    files: _Files | _Members, folder: str, key: tuple[str, ...]
) -> Iterator[Entry]:
    """The entries of a level, itself first."""

    def inside(name: str) -> str:
        return f"{folder}/{name}" if folder else name

    try:
        fields = json.loads(files.text(inside("meta.json")))
    except OSError as error:
        if key:
            yield Entry(key, "collection", problem=f"its metadata: {error}")
            return
        if isinstance(error, FileNotFoundError):
            msg = f"{files.root} is no save: it has no meta.json."
            raise FileNotFoundError(msg) from error
        raise
    except ValueError as error:
        problem = f"its metadata, {inside('meta.json')}, is no JSON: {error}"
        yield Entry(key, "collection", problem=problem)
        return
    if not isinstance(fields, dict):
        yield Entry(key, "collection", problem="its metadata is no JSON object")
        return
    cls = str(fields.get("_type", "?")).removeprefix("<class '").removesuffix("'>")
    name = cls.rpartition(".")[2]
    if fields.get("_is_non_tensor") or name == "NonTensorStack":
        yield Entry(key, "value", note=_value_note(fields, files, inside))
    elif files.size(inside("_tensordict/meta.json")) is not None:
        for entry in _level(files, inside("_tensordict"), key):
            yield entry._replace(note=name) if entry.key == key else entry
    elif "index" in fields and files.size(inside("_source/meta.json")) is not None:
        for entry in _level(files, inside("_source"), key):
            yield (
                entry._replace(note=f"part of {entry.note}")
                if entry.key == key
                else entry
            )
    elif "stack_dim" in fields:
        yield Entry(key, "collection", note=f"{name} along dim {fields['stack_dim']}")
        members = [one for one in files.folders(folder) if one.isdigit()]
        for member in sorted(members, key=int):
            yield from _level(files, inside(member), (*key, member))
    else:
        yield Entry(key, "collection", shape=fields.get("shape"), note=name)
        for entry_key, field in fields.items():
            if isinstance(field, dict):
                yield from _tree_entry(files, inside, (*key, entry_key), field)


def _tree_entry(
    files: _Files | _Members,
    inside: Callable[[str], str],
    key: tuple[str, ...],
    field: dict[str, Any],
) -> Iterator[Entry]:
    stems = dict.fromkeys((_rust.escape_key(key[-1]), key[-1]))
    if field.get("type") is not None:
        found = [
            one for one in stems if files.size(inside(f"{one}/meta.json")) is not None
        ]
        if found:
            yield from _level(files, inside(found[0]), key)
        else:
            yield Entry(key, "collection", problem="its directory is missing")
    elif "dtype" in field and "shape" in field:
        dtype = str(field["dtype"]).removeprefix("torch.")
        shape = field["shape"]
        sizes = [files.size(inside(f"{one}.memmap")) for one in stems]
        size = next((one for one in sizes if one is not None), None)
        if field.get("is_nested"):
            tables = [inside(f"{one}.shape.memmap") for one in stems]
            is_there = size is not None or any(
                _is_hollow(files, table, shape) for table in tables
            )
            problem = "" if is_there else "its file is missing"
            yield Entry(key, "tensor", dtype, shape, size or 0, "nested", problem)
            return
        needed = _needed(dtype, shape)
        problem = ""
        if needed is None:
            problem = f"{dtype} of shape {shape} cannot be loaded"
        elif size is None and needed:
            problem = "its file is missing"
        elif needed and (size or 0) < needed:
            problem = f"its file has {size} bytes and its shape and dtype need {needed}"
        yield Entry(key, "tensor", dtype, shape, needed or 0, problem=problem)


def _is_hollow(files: _Files | _Members, table: str, shape: Any) -> bool:
    """Whether a nested tensor has no items, and so no file: by its table of sizes."""
    if files.size(table) != _needed("int64", shape) or len(shape) != 2:
        return False
    sizes = memoryview(files.content(table)).cast("q").tolist()
    components, dims = shape
    rows = [sizes[dims * row : dims * (row + 1)] for row in range(components)]
    return all(0 in row for row in rows)


def _needed(dtype: str, shape: Any) -> int | None:
    """The bytes of a tensor; None where there is no such tensor."""
    item = 1 if dtype.startswith(("float8", "float4")) else ITEM_BYTES.get(dtype)
    if item is None or not isinstance(shape, list):
        return None
    for size in shape:
        if type(size) is not int or size < 0:
            return None
        item *= size
    return item


def _value_note(
    fields: dict[str, Any], files: _Files | _Members, inside: Callable[[str], str]
) -> str:
    for name in ("other.pickle", "pickle.pkl"):
        if files.size(inside(name)) is not None:
            return f"pickled in {name}"
    return _short(fields.get("data"))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Single files -------------------------------------------------------------------------


def _safetensors(path: str) -> Iterator[Entry]:
    notes, sizes, values = _described(path)

    def collection(key: tuple[str, ...], note: str) -> Entry:
        return Entry(key, "collection", shape=sizes.get(key), note=notes.get(key, note))

    yield collection((), "safetensors of others")
    seen: set[tuple[str, ...]] = {()}
    for name, dtype, shape, num_bytes in safetensors.tensors_of(path):
        key = tuple(name.split("."))
        for depth in range(1, len(key)):
            if key[:depth] not in seen:
                seen.add(key[:depth])
                yield collection(key[:depth], "")
        yield Entry(key, "tensor", dtype, shape, num_bytes)
    for key, value in values.items():
        yield Entry(key, "value", note=_short(value))


def _described(
    path: str,
) -> tuple[
    dict[tuple[str, ...], str], dict[tuple[str, ...], Any], dict[tuple[str, ...], Any]
]:
    """Of a safetensors file of ours: classes and sizes of collections, and values."""
    text = safetensors.description_of(path)
    notes: dict[tuple[str, ...], str] = {}
    sizes: dict[tuple[str, ...], Any] = {}
    values: dict[tuple[str, ...], Any] = {}
    if text is None:
        return notes, sizes, values

    def visit(level: Any, key: tuple[str, ...]) -> None:
        if not isinstance(level, dict):
            return
        cls = level.get("class") or (level.get("subclass") or ["", "TensorDict"])[1]
        name = str(cls).removesuffix("'>").rpartition(".")[2]
        notes[key] = "LazyStackedTensorDict" if "stack_dim" in level else name
        sizes[key] = level.get("batch_size")
        for entry_key, entry in level.get("keys", {}).items():
            if "td" in entry:
                visit(entry["td"], (*key, entry_key))
            elif "non_tensor" in entry:
                values[(*key, entry_key)] = entry["non_tensor"]

    visit(json.loads(text).get("root"), ())
    return notes, sizes, values


def _consolidated(path: str) -> Iterator[Entry]:
    data_bytes, _, text = _rust.read_consolidated(path)
    yield from _consolidated_level(json.loads(text), (), data_bytes)


def _consolidated_level(
    level: Any, key: tuple[str, ...], data_bytes: int
) -> Iterator[Entry]:
    problem = problem_of(level)
    if problem:
        yield Entry(key, "collection", problem=problem)
        return
    size = level["cls_metadata"].get("batch_size")
    yield Entry(key, "collection", shape=size, note=str(level["cls"]))
    for name, row in level["leaves"].items():
        inner = (*key, name.removeprefix("\0").removeprefix(VALUES))
        if name.startswith("<NJT_") and not name.startswith(VALUES):
            continue
        problem = problem_of_row(row, data_bytes)
        if problem:
            yield Entry(inner, "tensor", problem=problem)
            continue
        dtype, shape, start, stop, pad = row[:5]
        note = "jagged" if name.startswith(VALUES) else ""
        dtype = dtype.removeprefix("torch.")
        yield Entry(inner, "tensor", dtype, shape, stop - pad - start, note)
    for name, value in level["non_tensors"].items():
        if isinstance(value, list) and value:
            yield Entry((*key, name), "value", note=_short(value[0]))
        else:
            problem = f"no value is described by {value!r}"
            yield Entry((*key, name), "value", problem=problem)
    for name, child in level.items():
        if name not in RESERVED:
            inner = (*key, name.removeprefix("\0"))
            yield from _consolidated_level(child, inner, data_bytes)
