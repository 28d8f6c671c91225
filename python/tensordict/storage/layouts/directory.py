"""Saved directories: a directory for each collection, a file for each leaf.

To save, the collection adds itself to a plan (``_save_plan``), the Rust engine writes the plan, and
the collection takes the tensors over its files (``_saved``).

To load, the engine reads a directory with everything below it in one call, and the functions here
build the collections.

The functions ``*_dense`` are for dense collections. Other classes override the methods that call
them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from tensordict import _rust
from tensordict.primitives import registry
from tensordict.primitives.errors import at_value
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import leading_shape
from tensordict.storage.future import now_or_later, of_now
from tensordict.storage.growing.text import BYTES, CLASS_TEXT, TEXT, VALUES
from tensordict.storage.layouts.interface import (
    DAMAGED,
    Entry,
    Finding,
    NativeLayout,
    Report,
    short,
)
from tensordict.storage.leaves import (
    MSG_MEMORY_MAPPED,
    naming_the_entry,
    naming_the_target,
    nested_from_flat,
    refuse_special,
    with_batch_dims,
)
from tensordict.storage.paths import SavedPath, from_one_save, subpath_parts
from tensordict.storage.read_into_memory import gets_copies, read_copies, read_into
from tensordict.storage.special_entries import SavedEntry, with_saved_entries
from tensordict.storage.take_loaded import check_out
from tensordict.storage.tensors.anonymous_plan import save_anonymous
from tensordict.storage.tensors.mapped import MemoryMappedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tensordict.storage.layouts import LoadOptions, SaveOptions

__all__ = [
    "DirectoryLayout",
    "load_directory",
    "make_level",
    "path_of",
    "plan_dense",
    "saved_dense",
]

CPU = torch.device("cpu")

MSG_SIZE = (
    "{} is inconsistent: the entry {!r} has shape {}, which does not begin with the batch "
    "size {}."
)
MSG_CLASS = (
    "{} is damaged: it describes a tensordict with a batch size, but names the class {}, which "
    "is not a class of such tensordicts. Restore the save from a copy."
)
MSG_SHARED = "memmap and shared memory are mutually exclusive features."

ITEM_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8", "qint8", "quint8"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32", "qint32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""The bytes of an item, by the name of its dtype."""

COLUMNS = {TEXT: "text", BYTES: "bytes", VALUES: "JSON"}
"""The names of the encodings of columns of non-tensor data, in lists of entries."""


class DirectoryLayout(NativeLayout):
    """A directory for each collection, with its metadata and a file for each leaf."""

    name = "tree"

    def chosen_by(self, td: object, path: object, options: SaveOptions) -> bool:
        """Return False: a save becomes a directory if no other layout is chosen."""
        return False

    def matches(self, path: str | Path) -> bool:
        """Return whether the path is a directory."""
        return os.path.isdir(path)

    def save(self, td: Any, path: Any, options: SaveOptions) -> Any:
        """Write to a directory; without ``path``, to shared memory without a name."""
        refuse_special(td, MSG_MEMORY_MAPPED)
        inplace = options.inplace
        if inplace:
            if td._is_shared:
                raise RuntimeError(MSG_SHARED)
            for collection in _rust.containers(td):
                collection._refuse_in_place()
        path = td._memmap_prefix if path is None else Path(path)
        # Resolve the path now: the working directory may change before the files are written.
        target = None if path is None else os.path.abspath(path)
        progress = _rust.SaveProgress()
        source = td if inplace else of_now(td, options)
        escapes_keys = options.escapes_keys
        if target is not None:
            # Plan now: the plan references the present memory of the tensors.
            copies = options.copy_existing
            plan = _rust.SavePlan(target, escapes_keys, copies, False, options.threads)
            with naming_the_entry(source):
                source._save_plan(plan, 0)

        def work() -> Any:
            if path is None or target is None:
                return save_anonymous(source, True, inplace)
            try:
                leaves = plan.write(
                    options.existsok, options.is_in_place, options.how, progress
                )
            except OSError as error:
                raise naming_the_target(error, target) from None
            return source._saved(leaves, Directory(path, escapes_keys), inplace)

        return now_or_later(td, work, options, progress)

    def make_like(
        self, td: CollectionProtocol, prefix: Any, options: SaveOptions
    ) -> Any:
        """Save zeros with the shapes of ``td``. They take no disk space until written to."""
        td = with_batch_dims(td)
        path = None if prefix is None else Path(prefix)
        target = None if path is None else os.path.abspath(path)
        source = of_now(td, options)
        device = source.device and CPU

        def work() -> Any:
            if path is None or target is None:
                return with_device(save_anonymous(source, False, False), device)
            escapes_keys = options.escapes_keys
            plan = _rust.SavePlan(target, escapes_keys, True, True, options.threads)
            source._save_plan(plan, 0)
            try:
                leaves = plan.create(options.existsok, options.preallocate)
            except OSError as error:
                raise naming_the_target(error, target) from None
            directory = Directory(path, options.escapes_keys)
            return with_device(source._saved(leaves, directory, False), device)

        return now_or_later(td, work, options, _rust.SaveProgress())

    def load(self, path: str | Path, options: LoadOptions, out: object = None) -> Any:
        """Load a collection over the files, all of one save."""

        def load_from(opened: SavedPath) -> Any:
            return self._load_from(opened, options, out)

        copies = out is not None and gets_copies(out)
        is_named = options.verify or options.is_moved or copies
        return from_one_save(path, options.mode, load_from, by_name=is_named)

    def _load_from(self, path: SavedPath, options: LoadOptions, out: Any) -> Any:
        """Load an opened save, ready to replace the entries of ``out``."""
        threads, subpath = options.num_threads, options.subpath
        if options.verify:
            self.check_loaded(path.root, threads, subpath)
        below = path
        if subpath is not None:
            below = _descend(path, subpath, options.robust_key)
        loaded = load_directory(below, options)
        is_moved = options.is_moved
        is_read = is_moved and not path.is_archived
        is_checked = options.verify or (is_read and read_copies(path, loaded, threads))
        copies = is_moved or (out is not None and gets_copies(out))
        if copies and not is_checked:
            self.check_undamaged(path.root, threads, subpath)
        if is_moved:
            loaded = loaded.to(options.device, non_blocking=options.non_blocking)
        if out is not None:
            check_out(out, loaded)
            is_mapped = not path.is_archived and options.has_values and not is_moved
            if is_mapped and not out.is_memmap():
                read_into(path, loaded, out, threads)
        return loaded

    def inspect(self, path: str) -> Iterator[Entry]:
        """Yield the entries of all levels."""
        return level_entries(_FilesOfDirectory(path), "", ())

    def verify(
        self,
        path: str | Path,
        num_threads: int,
        deep: bool,
        progress: _rust.SaveProgress,
        part: list[str] | None = None,
    ) -> Report:
        """Compare the files with their checksums. With ``deep``, parse pickles as well."""
        report = super().verify(path, num_threads, deep, progress, part)
        if deep and report.layout == self.name:
            findings = [self._with_parsed_pickle(f, path) for f in report.findings]
            return report._replace(findings=findings)
        return report

    def seal(
        self, path: str | Path, num_threads: int, progress: _rust.SaveProgress
    ) -> int:
        """Compute the checksums of all files; return the number of files."""
        return _rust.seal_tree(os.fspath(path), max(0, num_threads), progress)

    def _file(self, path: str | Path, file: str) -> bytes:
        """Return the bytes of a file of the save. ``file`` is the path of a finding."""
        with open(file, "rb") as opened:
            return opened.read()

    def _with_parsed_pickle(self, finding: Finding, path: str | Path) -> Finding:
        """Return the finding; if its file is a pickle that cannot be parsed, as damaged."""
        is_pickle = os.path.basename(finding.path) in ("other.pickle", "pickle.pkl")
        if not is_pickle or finding.outcome not in ("good", "unchecked"):
            return finding
        import pickletools

        try:
            text = self._file(path, finding.path)
            # `genops` parses the instructions, and does not run them.
            for _ in pickletools.genops(text):
                pass
        except (OSError, ValueError) as error:
            detail = f"it is not a complete pickle: {error}"
            entry = f"the entry {finding.key} " if finding.key else ""
            line = f"{entry}('{finding.path}') is damaged: {detail}"
            return finding._replace(outcome=DAMAGED, detail=detail, line=line)
        return finding


# Saving -------------------------------------------------------------------------------


def with_device(saved: Any, device: torch.device | None) -> Any:
    """Set the device of non-tensor data that has none, and return ``saved``."""
    for collection in _rust.containers(saved):
        if collection._is_non_tensor and collection._device is None:
            collection._device = device
    return saved


class Directory(NamedTuple):
    """A directory of a save, with the path that the caller passed."""

    path: Path
    escapes_keys: bool

    def child(self, key: str) -> Directory:
        """Return the directory of a nested collection."""
        name = _rust.escape_key(key) if self.escapes_keys else key
        return Directory(self.path / name, self.escapes_keys)


def plan_dense(td: CollectionProtocol, plan: Any, level: int) -> None:
    """Add a dense collection to the level of a plan."""
    entries = with_saved_entries(td._tensordict, td._batch_size)
    for key, child_level, value in plan.add_entries(level, entries):
        if not isinstance(value, (CollectionProtocol, SavedEntry)):
            raise TypeError(
                f"the entry {key!r} of type {type(value)} cannot be saved to a directory."
            )
        try:
            value._save_plan(plan, child_level)
        except Exception as error:
            if getattr(error, "_at_entry", None) is not None:
                at_value(error, key)
            raise
    cls = type(td)
    names = td._td_dim_names
    if names is not None and all(name is None for name in names):
        names = None
    texts = registry.type_text(cls), registry.class_text(cls)
    plan.close_level(level, list(td._batch_size), names, *texts)


def saved_dense(
    td: Any, leaves: _rust.SavedTensors, directory: Directory | None, inplace: bool
) -> Any:
    """Return a dense collection over the files of a save: ``td`` itself, or a new one."""
    # In the order of the plan: all leaves of a level, then its nested collections.
    source = with_saved_entries(td._tensordict, td._batch_size)
    entries, flat, others = leaves.take_level(source)
    for key in flat:
        entries[key] = _as_nested(
            entries[key], td._tensordict[key]._nested_tensor_size()
        )
    for key in others:
        child = None if directory is None else directory.child(key)
        entries[key] = source[key]._saved(leaves, child, inplace)
    if inplace:
        td._tensordict.update(entries)
        td._device = CPU
        saved = td
    else:
        names = None if td._td_dim_names is None else list(td._td_dim_names)
        saved = _rust.new(type(td), entries, td._batch_size, CPU, names)
    saved._is_memmap = True
    saved._is_shared = False
    saved._is_locked = True
    saved._memmap_prefix = None if directory is None else directory.path
    saved._last_op = None
    return saved


def _as_nested(flat: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    nested = nested_from_flat(flat, table)
    if not isinstance(flat, MemoryMappedTensor):
        return nested
    nested = nested.as_subclass(MemoryMappedTensor)
    nested.__dict__.update(flat.__dict__)
    nested._parent_shape = table
    return nested


# Loading ------------------------------------------------------------------------------


def load_directory(path: SavedPath, options: LoadOptions) -> Any:
    """Load a directory that was saved from a collection of any class."""
    known_texts = registry.known_texts()
    how = options.num_threads, options.has_values
    tree = path.save.load_tree(path.full_name, known_texts, options.robust_key, *how)
    if tree.is_known:
        return _make_dense(tree, path, options)
    cls = registry.find_class(options.requested, tree.class_text, tree.type_text, path)
    return cls._load_tree(path, options)


def _make_dense(tree: Any, path: SavedPath, options: LoadOptions) -> CollectionProtocol:
    """Build the collection of a level that the engine has read, with its nested ones."""
    if tree.class_text == CLASS_TEXT and options.has_values:
        stack = registry.find_class(None, CLASS_TEXT, None, path)
        return stack._load_level(tree, path, options)
    return make_level(tree, path, options, tree.special)


def make_level(tree: Any, path: SavedPath, options: LoadOptions, special: Any) -> Any:
    """Build a level as :func:`_make_dense` does. ``special`` names its special entries."""
    entries = tree.entries
    batch_size = torch.Size(tree.batch_size)
    home: torch.device | None = CPU if tree.has_device else None
    if options.device is not None and options.device.type == "meta":
        home = options.device
    if not options.has_values:
        device = options.device or CPU
        for key, value in entries.items():
            if type(value) is tuple:
                shape, dtype = value
                entries[key] = torch.empty(shape, dtype=dtype, device=device)
    for key in tree.nested:
        child = entries[key]
        entries[key] = _make_dense(child, path_of(path, child.directory), options)
    for key in special:
        value = entries[key]
        if isinstance(value, str):
            inner = options._replace(size=batch_size)
            child = load_directory(path_of(path, value), inner)
            # A special entry is a tensor. Values are a collection of the batch of this level.
            if not isinstance(child, torch.Tensor):
                child = child._loaded_in(batch_size, home, tree.names)
            entries[key] = child
        elif options.has_values:
            entries[key] = _as_nested(*value)
    if batch_size:
        _check_sizes(entries, batch_size, path)
    text = None if tree.class_text == CLASS_TEXT else tree.class_text
    cls = registry.find_class(options.requested, text, tree.type_text, path)
    if not registry.is_dense_class(cls):
        raise RuntimeError(MSG_CLASS.format(path / "meta.json", text))
    loaded = _rust.new(cls, entries, batch_size, home, tree.names)
    loaded._memmap_prefix = options.home_of(path)
    return loaded


def _check_sizes(entries: dict[str, Any], size: torch.Size, path: SavedPath) -> None:
    """Raise if the shape of an entry does not begin with the batch size.

    Raises:
        RuntimeError: the shape of an entry does not.
    """
    ndim = len(size)
    for key, value in entries.items():
        shape = leading_shape(value)
        if shape is not None and shape[:ndim] != size:
            found = MSG_SIZE.format(path / "meta.json", key, list(shape), list(size))
            raise RuntimeError(found)


def path_of(parent: SavedPath, directory: str) -> SavedPath:
    """Return the path of a subdirectory."""
    return parent / os.path.basename(directory)


def _descend(path: SavedPath, subpath: object, escapes_keys: bool) -> SavedPath:
    """Return the directory of a nested key: a tuple, or a string with slashes."""
    below = path
    for part in subpath_parts(subpath):
        if part:
            name = _rust.escape_key(part) if escapes_keys else part
            fields = below / "_tensordict" / name / "meta.json"
            if not (below / name / "meta.json").exists() and fields.exists():
                # The entries of a tensorclass are one directory deeper.
                below = below / "_tensordict"
            below = below / name
    if not (below / "meta.json").exists():
        raise ValueError(
            f"No tensordict found under subpath {subpath!r} "
            f"(missing meta.json in {below})."
        )
    return below


# Inspecting ---------------------------------------------------------------------------


class Files(Protocol):
    """The files of a save: in a directory, or in an archive."""

    @property
    def root(self) -> str | None:
        """The path of the save."""
        ...

    def content(self, name: str) -> bytes:
        """Return the bytes of a file."""
        ...

    def text(self, name: str) -> str:
        """Return the text of a file."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a file; None if it does not exist."""
        ...

    def folders(self, name: str) -> list[str]:
        """Return the names of the folders in a folder."""
        ...


class _FilesOfDirectory:
    """The files of a directory. Links that lead out of it are not followed."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.save = _rust.Directory(os.path.abspath(root), "r")

    def content(self, name: str) -> bytes:
        return self.save.read(name)

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


def level_entries(files: Files, folder: str, key: tuple[str, ...]) -> Iterator[Entry]:
    """Yield the entries of a level. The first entry is the level itself."""

    def inside(name: str) -> str:
        return f"{folder}/{name}" if folder else name

    try:
        fields = json.loads(files.text(inside("meta.json")))
    except OSError as error:
        if key:
            yield Entry(key, "collection", problem=f"its metadata: {error}")
            return
        if isinstance(error, FileNotFoundError):
            msg = f"{files.root} is not a save: it has no meta.json."
            raise FileNotFoundError(msg) from error
        raise
    except ValueError as error:
        problem = f"its metadata, {inside('meta.json')}, is not JSON: {error}"
        yield Entry(key, "collection", problem=problem)
        return
    if not isinstance(fields, dict):
        yield Entry(key, "collection", problem="its metadata is not a JSON object")
        return
    cls = str(fields.get("_type", "?")).removeprefix("<class '").removesuffix("'>")
    name = cls.rpartition(".")[2]
    if fields.get("_is_non_tensor") or name == "NonTensorStack":
        yield Entry(key, "value", note=_value_note(fields, files, inside))
    elif files.size(inside("_tensordict/meta.json")) is not None:
        for entry in level_entries(files, inside("_tensordict"), key):
            yield entry._replace(note=name) if entry.key == key else entry
    elif "index" in fields and files.size(inside("_source/meta.json")) is not None:
        for entry in level_entries(files, inside("_source"), key):
            yield (
                entry._replace(note=f"part of {entry.note}")
                if entry.key == key
                else entry
            )
    elif "stack_dim" in fields:
        yield Entry(key, "collection", note=f"{name} along dim {fields['stack_dim']}")
        members = [name for name in files.folders(folder) if name.isdigit()]
        for member in sorted(members, key=int):
            yield from level_entries(files, inside(member), (*key, member))
    else:
        is_ragged = fields.get("_class") == CLASS_TEXT
        shape = fields.get("shape")
        if is_ragged and shape:
            name = f"{name} of columns, {shape[0]} rows"
        yield Entry(key, "collection", shape=shape, note=name)
        for entry_key, field in fields.items():
            if isinstance(field, dict):
                path = (*key, entry_key)
                yield from _tree_entry(files, inside, path, field, is_ragged)


def _tree_entry(
    files: Files,
    inside: Callable[[str], str],
    key: tuple[str, ...],
    field: dict[str, Any],
    is_ragged: bool = False,
) -> Iterator[Entry]:
    stems = dict.fromkeys((_rust.escape_key(key[-1]), key[-1]))
    if field.get("type") is not None:
        found = [
            stem
            for stem in stems
            if files.size(inside(f"{stem}/meta.json")) is not None
        ]
        if found:
            yield from level_entries(files, inside(found[0]), key)
        else:
            yield Entry(key, "collection", problem="its directory is missing")
    elif "dtype" in field and "shape" in field:
        dtype = str(field["dtype"]).removeprefix("torch.")
        shape = field["shape"]
        sizes = [files.size(inside(f"{stem}.memmap")) for stem in stems]
        size = next((found for found in sizes if found is not None), None)
        if field.get("is_nested"):
            tables = [inside(f"{stem}.shape.memmap") for stem in stems]
            is_there = size is not None or any(
                _is_hollow(files, table, shape) for table in tables
            )
            problem = "" if is_there or shape[:1] == [0] else "its file is missing"
            encoding = field.get("encoding")
            note = "nested"
            if encoding is not None:
                note, dtype = "column of values", COLUMNS.get(encoding, encoding)
                shape = shape[:1]
            elif is_ragged:
                note, shape = "ragged column", [*shape[:1], *[-1] * shape[1]]
            yield Entry(key, "tensor", dtype, shape, size or 0, note, problem)
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


def _is_hollow(files: Files, table: str, shape: Sequence[int]) -> bool:
    """Return whether a nested tensor has no items by its table of sizes, and so no file."""
    if files.size(table) != _needed("int64", shape) or len(shape) != 2:
        return False
    sizes = memoryview(files.content(table)).cast("q").tolist()
    components, dims = shape
    rows = [sizes[dims * row : dims * (row + 1)] for row in range(components)]
    return all(0 in row for row in rows)


def _needed(dtype: str, shape: object) -> int | None:
    """Return the bytes that a tensor needs; None if the dtype or the shape is invalid."""
    item = 1 if dtype.startswith(("float8", "float4")) else ITEM_BYTES.get(dtype)
    if item is None or not isinstance(shape, list):
        return None
    for size in shape:
        if type(size) is not int or size < 0:
            return None
        item *= size
    return item


def _value_note(
    fields: dict[str, Any], files: Files, inside: Callable[[str], str]
) -> str:
    for name in ("other.pickle", "pickle.pkl"):
        if files.size(inside(name)) is not None:
            return f"pickled in {name}"
    return short(fields.get("data"))
