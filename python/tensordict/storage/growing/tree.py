"""A saved directory to which rows are appended."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives import registry
from tensordict.primitives.errors import KeyMessageError
from tensordict.storage.growing.class_names import CLASS_NAMES
from tensordict.storage.growing.column import Column
from tensordict.storage.growing.lock import LOCK_FILE, WriterLock
from tensordict.storage.growing.publish import publish, sweep
from tensordict.storage.growing.rows import Level, Values, refuse_dtypes
from tensordict.storage.growing.text import CLASS_TEXT
from tensordict.storage.remote.copied import MSG_COPY, is_copied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["MSG_FIRST_DIM", "GrowingTree"]

FIELDS = (
    "shape",
    "device",
    "_type",
    "_format_version",
    "_class",
    "_names",
    "_row_dims",
)
"""The fields of a level that are not entries."""

OPEN_COLUMNS = 200
"""The most columns whose files are kept open. A process may open about a thousand files."""

MSG_FIRST_DIM = (
    "{} appends along the first batch dimension, which the saved tensordict (batch size "
    "{}) and the rows (batch size {}) must both have."
)
MSG_KEYS = "Cannot append rows with the keys {} to {}, which has the keys {}."
MSG_TAIL = (
    "Cannot append rows of batch size {} to {}, of batch size {}: they differ beyond the "
    "first dimension."
)
MSG_CLASS = "Cannot append a {} to {}, a {}."
MSG_CONSTANT = (
    "Cannot append to the entry {!r}: all rows share the saved non-tensor value {!r}, so "
    "the rows must hold the same value, not {!r}."
)
MSG_STACK = (
    "Cannot append to the entry {!r}, a {}: a stack of non-tensor values cannot grow."
)
MSG_NO_SAVE = "{} is not a save, and is not empty: pass the path of a new directory."
MSG_RESERVED = (
    "The key {!r} is reserved for the metadata of a directory: rename the entry."
)
MSG_SHAPE_TAKEN = (
    "The shapes of {0!r} need the file of the entry '{0}.shape': rename one of the two "
    "entries."
)
MSG_NO_CLASSES = "class_names has names for {!r}, which is not an entry of tensors."
MSG_CLASSES = (
    "The classes of {!r} are named {} in the directory, not {}: their numbers would not "
    "mean the same."
)
MSG_ONE_FILE = (
    "The keys {!r} and {!r} need the same file: rename one of the two entries."
)


class TreeLevel:
    """A directory of a growing tree: its metadata, its columns, its children."""

    def __init__(
        self, folder: str, key: tuple[str, ...], fields: dict[str, Any]
    ) -> None:
        self.folder = folder
        self.key = key
        self.fields = fields
        self.class_name = "TensorDict"
        self.columns: dict[str, Column] = {}
        self.children: dict[str, TreeLevel] = {}
        self.constants: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The name of the level in messages."""
        if not self.key:
            return "the saved tensordict"
        return f"the entry {(self.key[0] if len(self.key) == 1 else self.key)!r}"

    @property
    def keys(self) -> list[str]:
        """The keys of the entries, in their order."""
        return [key for key, value in self.fields.items() if isinstance(value, dict)]

    @property
    def is_stack(self) -> bool:
        """Whether the level is loaded as a lazy stack of its rows."""
        return "_row_dims" in self.fields

    def below(self) -> Iterator[TreeLevel]:
        """Yield this level and all levels below it."""
        yield self
        for child in self.children.values():
            yield from child.below()


class GrowingTree:
    """A saved directory, opened to append rows.

    Args:
        path: the directory. It is created if it does not exist.
        waits: whether to wait for another writer. Otherwise another writer is an error.
        caller: the name of the operation in messages.
        has_room: whether to reserve disk space for later rows.

    Raises:
        RuntimeError: another writer has the directory open, or its files are damaged.
        ValueError: the directory is not a save, or a save that cannot grow.
    """

    def __init__(
        self,
        path: Any,
        waits: bool = False,
        caller: str = "DatasetWriter",
        has_room: bool = True,
    ) -> None:
        self.path: str = os.path.abspath(path)
        self.caller = caller
        self.has_room = has_room
        self.root: TreeLevel | None = None
        self.num_rows: int = 0
        self.published_rows: int = 0
        self._plain_columns: list[Any] | None = None
        self.allow_pickle: bool | None = None
        self._is_changed = False
        self._has_published = False
        self._wrappers: dict[str, dict[str, Any]] = {}
        os.makedirs(self.path, exist_ok=True)
        self._lock = WriterLock(self.path, waits)
        try:
            sweep(self.path)
            if os.path.lexists(os.path.join(self.path, "meta.json")):
                self._open()
            else:
                self._refuse_others()
        except BaseException:
            self._lock.release()
            raise

    def _refuse_others(self) -> None:
        """Raise if the directory contains files, but no save."""
        others = [name for name in os.listdir(self.path) if name[0] != "."]
        if others and not os.path.exists(os.path.join(self.path, _MADE)):
            raise ValueError(MSG_NO_SAVE.format(self.path))

    def check_first_dim(self, size: torch.Size) -> None:
        """Raise if the rows or the save have no batch dimension.

        Raises:
            ValueError: one of them has none.
        """
        saved = torch.Size([0] if self.root is None else self.root.fields["shape"])
        if not saved or not size:
            raise ValueError(MSG_FIRST_DIM.format(self.caller, saved, size))

    # Opening ----------------------------------------------------------------------------

    def _open(self) -> None:
        if is_copied(self.path):
            raise ValueError(MSG_COPY.format(path=self.path))
        self.root = self._read("", ())
        size = self.root.fields.get("shape")
        if size:
            self.num_rows = self.published_rows = size[0]
            self._open_columns()

    def _read(self, folder: str, key: tuple[str, ...]) -> TreeLevel:
        """Read a level and the levels below it from their metadata."""
        with open(self._at(folder, "meta.json"), encoding="utf-8") as file:
            fields = json.load(file)
        cls = _class_name(fields)
        inner = os.path.join(folder, "_tensordict")
        if os.path.exists(self._at(inner, "meta.json")):
            level = self._read(inner, key)
            level.class_name = cls
            return level
        level = TreeLevel(folder, key, fields)
        level.class_name = cls
        if "stack_dim" in fields or "index" in fields or "custom_op" in fields:
            raise ValueError(MSG_CLASS.format(cls, level.name, cls))
        for name, entry in fields.items():
            if not isinstance(entry, dict) or "type" not in entry:
                continue
            below = self._folder_of(folder, name)
            with open(self._at(below, "meta.json"), encoding="utf-8") as file:
                child = json.load(file)
            if child.get("_is_non_tensor") or "data" in child:
                level.constants[name] = _Constant(self._at(below, ""), child)
            else:
                level.children[name] = self._read(below, (*key, name))
        return level

    def _folder_of(self, folder: str, name: str) -> str:
        escaped = os.path.join(folder, _rust.escape_key(name))
        if os.path.exists(self._at(escaped, "meta.json")) or "/" in name:
            return escaped
        return os.path.join(folder, name)

    def _open_columns(self) -> None:
        """Open the columns of all levels, with their published rows."""
        entries = [
            (level, name, entry)
            for level in self._levels()
            for name, entry in level.fields.items()
            if isinstance(entry, dict) and "dtype" in entry
        ]
        stays_open = len(entries) <= OPEN_COLUMNS
        for level, name, entry in entries:
            stem = self._at(level.folder, _rust.escape_key(name))
            if "/" not in name and not os.path.exists(f"{stem}.memmap"):
                raw = self._at(level.folder, name)
                stem = raw if os.path.exists(f"{raw}.memmap") else stem
            key = (*level.key, name)
            rows = self.num_rows
            level.columns[name] = Column(
                key, entry, stem, rows, stays_open, self.has_room
            )

    def _top(self) -> TreeLevel:
        if self.root is None:
            msg = f"{self.path} has no entries yet."
            raise RuntimeError(msg)
        return self.root

    def _levels(self) -> Iterator[TreeLevel]:
        """Yield all levels. Before the first rows there are none."""
        return iter(()) if self.root is None else self.root.below()

    def _at(self, folder: str, name: str) -> str:
        return os.path.join(self.path, folder, name)

    # Making -----------------------------------------------------------------------------

    def make(self, level: Level, is_stack: bool = False) -> None:
        """Create the levels and columns of a new dataset, without rows.

        Args:
            level: the first rows, or rows like them.
            is_stack: whether to load the dataset as a lazy stack even if all rows have
                the same shapes.
        """
        refuse_dtypes(level)
        with open(self._at("", _MADE), "w"):
            # The file marks the directory as a new dataset: after a kill, a later writer
            # may use the directory again.
            pass
        self.root = self._made(level, "", (), is_stack)
        self._open_columns()
        self._is_changed = True

    def _made(
        self, level: Level, folder: str, key: tuple[str, ...], is_stack: bool
    ) -> TreeLevel:
        if level.is_wrapped:
            self._wrappers[folder] = {"_type": registry.type_text(level.cls)}
            folder = os.path.join(folder, "_tensordict")
        os.makedirs(self._at(folder, ""), exist_ok=True)
        _check_names(level.entries)
        fields: dict[str, Any] = {}
        created = TreeLevel(folder, key, fields)
        created.class_name = level.cls.__name__ if level.is_wrapped else "TensorDict"
        for name, data in level.entries.items():
            if isinstance(data, Level):
                fields[name] = {"type": data.cls.__name__}
                below = os.path.join(folder, _rust.escape_key(name))
                path = (*key, name)
                created.children[name] = self._made(data, below, path, is_stack)
            else:
                fields[name] = Column.entry_of(data)
        root = registry.dense_root()
        tail = list(level.batch_size or ())
        fields["shape"] = [0, *tail]
        fields["device"] = "cpu"
        fields["_type"] = registry.type_text(root)
        fields["_format_version"] = 1
        fields["_class"] = registry.class_text(root)
        if level.names is not None and any(level.names):
            fields["_names"] = level.names
        self._mark(created, level, is_stack)
        return created

    def _mark(self, created: TreeLevel, level: Level, is_stack: bool) -> None:
        """Note in the metadata whether the level has ragged columns or columns of values."""
        entries = [
            value for value in created.fields.values() if isinstance(value, dict)
        ]
        is_ragged = any(
            entry.get("is_nested") and "encoding" not in entry for entry in entries
        ) or any(child.is_stack for child in created.children.values())
        has_text = any("encoding" in entry for entry in entries)
        if is_ragged or is_stack or level.batch_size is None:
            created.fields["_row_dims"] = level.num_dims
            if level.batch_size is None:
                created.fields["shape"] = [0]
                created.fields.pop("_names", None)
        if has_text or created.is_stack:
            created.fields["_class"] = CLASS_TEXT

    # Adding -----------------------------------------------------------------------------

    def check(self, level: Level, count: int) -> None:
        """Raise if :meth:`add` would refuse these rows. Nothing is added."""
        self._plan(self._top(), level, count, False, [], [])

    def add(self, level: Level, count: int, is_strict: bool = False) -> None:
        """Add rows. After an error, no row is added.

        Args:
            level: the rows.
            count: the number of rows.
            is_strict: whether to refuse rows of another shape in a column that is not
                ragged, as tensordict 0.15 does.

        Raises:
            ValueError: the rows do not fit.
            OSError: the rows cannot be written.
        """
        planned: list[tuple[Column, Any]] = []
        tails: list[tuple[TreeLevel, Level]] = []
        root = self._top()
        self._plan(root, level, count, is_strict, planned, tails)
        before = [
            (column, column.num_rows, column.num_items, column.undecided_entry())
            for column, _ in planned
        ]
        try:
            for column, fitted in planned:
                column.add(fitted, count)
        except BaseException:
            for column, num_rows, num_items, entry in before:
                column.cut_to(num_rows, num_items, entry)
            raise
        for target, rows in tails:
            target.fields["shape"] = target.fields["shape"][:1]
            target.fields.pop("_names", None)
            target.fields["_row_dims"] = rows.num_dims
        self._mark_ragged(root)
        self._count_rows(count)

    def _count_rows(self, count: int) -> None:
        """Count rows that all columns have received."""
        self._plain_columns = None
        self.num_rows += count
        self._is_changed = True

    def add_row(self, entries: Mapping[str, Any]) -> bool:
        """Add a row of tensors if it has the shapes and dtypes of the rows before.

        It takes a tenth of the time of :meth:`add`, which handles all other rows.

        Returns:
            Whether the row was added. It is not if the row differs, or if the dataset has
            nested entries, ragged columns or non-tensor data.

        Raises:
            OSError: the row cannot be written. It is not added.
        """
        if self._plain_columns is None:
            self._plain_columns = self._found_plain_columns()
        columns = self._plain_columns
        if not columns or len(columns) != len(entries):
            return False
        rows = []
        try:
            for name, column, dtype, shape in columns:
                value = entries[name]
                if (
                    type(value) is not torch.Tensor
                    or value.dtype is not dtype
                    or value.shape != shape
                    or not value.is_contiguous()
                ):
                    return False
                rows.append((column, value.numpy()))
        except (KeyError, RuntimeError, TypeError):
            # An entry is missing, requires grad or is on another device, or NumPy lacks
            # its dtype.
            return False
        try:
            for column, data in rows:
                column.values.add_short(data)
        except BaseException:
            for column, _ in rows:
                column.cut_to(column.num_rows, column.num_items, None)
            raise
        for column, data in rows:
            column.num_rows += 1
            column.num_items += data.size
        self.num_rows += 1
        self._is_changed = True
        return True

    def _found_plain_columns(self) -> list[tuple[str, Column, torch.dtype, torch.Size]]:
        """Return the columns if all are dense tensors of one level, an empty list otherwise."""
        root = self.root
        if root is None or root.folder or root.children or root.constants:
            return []
        columns = root.columns.items()
        if len(root.fields["shape"]) > 1 or root.is_stack:
            return []
        if any(column.is_ragged or column.encoding for _, column in columns):
            return []
        return [
            (name, column, column.dtype, torch.Size(column.row_shape))
            for name, column in columns
        ]

    def _plan(
        self,
        target: TreeLevel,
        level: Level,
        count: int,
        is_strict: bool,
        planned: list[tuple[Column, Any]],
        tails: list[tuple[TreeLevel, Level]],
    ) -> None:
        class_name = level.cls.__name__
        if level.is_wrapped != (
            target.class_name != "TensorDict" and self._is_inner(target)
        ):
            shown = class_name if level.is_wrapped else "TensorDict"
            raise ValueError(MSG_CLASS.format(shown, target.name, target.class_name))
        if level.is_wrapped and class_name != target.class_name:
            raise ValueError(
                MSG_CLASS.format(class_name, target.name, target.class_name)
            )
        keys = target.keys
        if level.entries.keys() != set(keys):
            raise ValueError(
                MSG_KEYS.format(sorted(level.entries), target.name, sorted(keys))
            )
        size = level.batch_size
        tail = target.fields["shape"][1:]
        num_dims = target.fields.get("_row_dims", len(tail))
        is_fixed = len(tail) == num_dims
        if level.num_dims != num_dims or (
            is_fixed and (size is None or list(size) != tail)
        ):
            if is_strict or level.num_dims != num_dims:
                rows = torch.Size([count, *(size or ())])
                saved = torch.Size([self.num_rows, *tail])
                raise ValueError(MSG_TAIL.format(rows, target.name, saved))
            tails.append((target, level))
        for name in keys:
            data = level.entries[name]
            if name in target.constants:
                target.constants[name].check(
                    (*target.key, name), data, self.allow_pickle
                )
            elif name in target.children:
                if not isinstance(data, Level):
                    shown = "values" if isinstance(data, Values) else "tensors"
                    raise ValueError(
                        f"Cannot append {shown} to {target.children[name].name}, "
                        "which is a collection."
                    )
                below = target.children[name]
                self._plan(below, data, count, is_strict, planned, tails)
            elif isinstance(data, Level):
                key = target.columns[name].key
                raise ValueError(
                    f"Cannot append a {data.cls.__name__} to the entry {key!r}, which is "
                    "a tensor."
                )
            else:
                column = target.columns[name]
                planned.append((column, column.fitted(data, is_strict)))

    def _is_inner(self, level: TreeLevel) -> bool:
        return os.path.basename(level.folder) == "_tensordict"

    def _mark_ragged(self, level: TreeLevel) -> None:
        """Mark the levels in which a column has become ragged."""
        for child in level.children.values():
            self._mark_ragged(child)
        # A level with nested tensors from `save` stays a level of nested tensors.
        is_ragged = any(
            column.became_ragged for column in level.columns.values()
        ) or any(child.is_stack for child in level.children.values())
        if is_ragged and not level.is_stack:
            level.fields["_row_dims"] = len(level.fields["shape"]) - 1
            level.fields["_class"] = CLASS_TEXT
        elif level.is_stack:
            level.fields["_class"] = CLASS_TEXT

    def name_classes(self, names: Mapping[Any, Sequence[str]]) -> None:
        """Store the names of the classes that the integers of an entry stand for.

        Raises:
            KeyError: the key is not an entry of tensors.
            ValueError: the entry has other names already.
        """
        by_key = {
            (*level.key, name): column
            for level in self._levels()
            for name, column in level.columns.items()
        }
        for key, class_names in names.items():
            path = tuple(_rust.unravel_key_to_tuple(key))
            column = by_key.get(path)
            if column is None or column.encoding is not None:
                raise KeyMessageError(MSG_NO_CLASSES.format(key))
            saved_names = column.entry.get(CLASS_NAMES)
            if saved_names is not None and saved_names != list(class_names):
                text = MSG_CLASSES.format(key, saved_names, list(class_names))
                raise ValueError(text)
            if saved_names is None:
                column.entry[CLASS_NAMES] = list(class_names)
                self._is_changed = True

    def reserve(self, num_rows: int) -> None:
        """Reserve disk space for ``num_rows`` rows in all."""
        for level in self._levels():
            for column in level.columns.values():
                column.reserve(num_rows)

    # Publishing -------------------------------------------------------------------------

    def publish(self, is_durable: bool = False) -> None:
        """Make the added rows visible to readers, all in one step."""
        if not self._is_changed or self.root is None:
            return
        changed = self._written_out(is_durable)
        publish(self.path, changed, is_durable, not self._has_published)
        if not self._has_published:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at("", _MADE))
        self._note_published()

    def _written_out(self, is_durable: bool) -> dict[str, dict[str, Any]]:
        """Write buffered bytes, and return the metadata of the levels by their folders."""
        changed = dict(self._wrappers)
        for level in self._levels():
            for column in level.columns.values():
                for file in column.files():
                    file.write_out()
                    if is_durable:
                        file.sync()
                column.entry["shape"][0] = column.num_rows
            level.fields["shape"][0] = self.num_rows
            changed[level.folder] = level.fields
        return changed

    def _note_published(self) -> None:
        """Note that all rows are visible to readers."""
        self._has_published = True
        self._wrappers.clear()
        self.published_rows = self.num_rows
        self._is_changed = False

    def forget(self) -> None:
        """Close the tree of a writer that was garbage-collected."""
        self.close()

    def close(self) -> None:
        """Free reserved space, and let other writers in. Unpublished rows are lost."""
        columns = self._levels()
        try:
            for level in columns:
                for column in level.columns.values():
                    for file in column.files():
                        file.close() if not self._is_changed else file.forget()
        finally:
            if self.root is None and set(os.listdir(self.path)) <= {LOCK_FILE}:
                self._lock.release()
                with contextlib.suppress(OSError):
                    os.rmdir(self.path)
            self._lock.release()


_MADE = ".tensordict-unpublished"
"""The file that marks a directory whose first rows are not published yet."""


class _Constant:
    """A non-tensor value that all rows share, in a subdirectory."""

    def __init__(self, folder: str, fields: dict[str, Any]) -> None:
        self.folder = folder
        self.fields = fields

    def check(
        self, key: tuple[str, ...], data: object, allow_pickle: bool | None
    ) -> None:
        """Raise if rows hold another value.

        Raises:
            ValueError: a row holds another value.
        """
        shown = key[0] if len(key) == 1 else key
        if not self.fields.get("_is_non_tensor"):
            raise ValueError(MSG_STACK.format(shown, _class_name(self.fields)))
        from tensordict.storage.layouts import load

        value = load(None, self.folder, allow_pickle=allow_pickle).data
        items = data.items if isinstance(data, Values) else [data]
        for item in items[:1] if getattr(data, "is_one", False) else items:
            if item != value:
                raise ValueError(MSG_CONSTANT.format(shown, value, item))


def _class_name(fields: dict[str, Any]) -> str:
    text = str(fields.get("_type", "?")).removeprefix("<class '").removesuffix("'>")
    return text.rpartition(".")[2]


def _check_names(entries: dict[str, Any]) -> None:
    """Raise if the metadata reserves a key, or if two keys need the same file."""
    files: dict[str, str] = {}
    for key in entries:
        if key in FIELDS:
            raise RuntimeError(MSG_RESERVED.format(key))
        name = _rust.escape_key(key)
        if name in files:
            raise RuntimeError(MSG_ONE_FILE.format(files[name], key))
        files[name] = key
        stem, dot, end = key.rpartition(".")
        if dot and end == "shape" and stem in entries:
            # A column gets a table of shapes with the first row of another shape.
            raise RuntimeError(MSG_SHAPE_TAKEN.format(stem))
