"""A saved directory that rows are added to."""

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
"""The fields of a level, beside its entries."""

OPEN_COLUMNS = 200
"""The number of columns whose files are kept open: a process may have about a
thousand."""

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
    "Cannot append to the entry {!r}: the saved non-tensor value {!r} stays as it is, so "
    "the rows must hold the same value, not {!r}."
)
MSG_STACK = (
    "Cannot append to the entry {!r}, a {}: a stack of non-tensor values cannot grow."
)
MSG_NO_SAVE = "{} is not a save, and not empty: a dataset gets a directory of its own."
MSG_RESERVED = "The key {!r} is one that the metadata of a directory uses itself."
MSG_SHAPE_TAKEN = (
    "The shapes of {0!r} are kept in the file that the entry '{0}.shape' has: rename one "
    "of the two."
)
MSG_NO_CLASSES = "class_names has names for {!r}, which is no entry of tensors."
MSG_CLASSES = (
    "The classes of {!r} have the names {}, and not {}: their numbers would not mean the "
    "same."
)
MSG_ONE_FILE = "The keys {!r} and {!r} need one file: rename one of the two."


class TreeLevel:
    """A directory of a tree that grows: its metadata, its columns, its children."""

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
        """The keys of its entries, in their order."""
        return [key for key, value in self.fields.items() if isinstance(value, dict)]

    @property
    def is_stack(self) -> bool:
        """Return whether it is loaded as a lazy stack of its rows."""
        return "_row_dims" in self.fields

    def below(self) -> Iterator[TreeLevel]:
        """This level and those below it."""
        yield self
        for child in self.children.values():
            yield from child.below()


class GrowingTree:
    """A saved directory, opened to have rows added at its end.

    Args:
        path: the directory. It is made where there is none.
        waits: whether another writer is waited for, and not refused.
        caller: what messages call the operation.
        has_room: whether room is set aside for rows to come.

    Raises:
        RuntimeError: another writer has it open, or its files are damaged.
        ValueError: there is something else, or what cannot grow.
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
        """Refuse a directory of something else."""
        others = [name for name in os.listdir(self.path) if name[0] != "."]
        if others and not os.path.exists(os.path.join(self.path, _MADE)):
            raise ValueError(MSG_NO_SAVE.format(self.path))

    def check_first_dim(self, size: torch.Size) -> None:
        """Refuse rows that are no rows, or a save that has none.

        Raises:
            ValueError: one of them has no batch dims.
        """
        saved = torch.Size([0] if self.root is None else self.root.fields["shape"])
        if not saved or not size:
            raise ValueError(MSG_FIRST_DIM.format(self.caller, saved, size))

    # Opening ----------------------------------------------------------------------------

    def _open(self) -> None:
        self.root = self._read("", ())
        size = self.root.fields.get("shape")
        if size:
            self.num_rows = self.published_rows = size[0]
            self._open_columns()

    def _read(self, folder: str, key: tuple[str, ...]) -> TreeLevel:
        """A level and those below it, from their metadata."""
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
        """Make the columns of all levels, whose rows are those that are published."""
        held = [
            (level, name, entry)
            for level in self._levels()
            for name, entry in level.fields.items()
            if isinstance(entry, dict) and "dtype" in entry
        ]
        stays_open = len(held) <= OPEN_COLUMNS
        for level, name, entry in held:
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
        """All levels; none before the first rows."""
        return iter(()) if self.root is None else self.root.below()

    def _at(self, folder: str, name: str) -> str:
        return os.path.join(self.path, folder, name)

    # Making -----------------------------------------------------------------------------

    def make(self, level: Level, is_stack: bool = False) -> None:
        """Make the levels and columns of a new dataset; there are no rows yet.

        Args:
            level: the first rows, or some that are like them.
            is_stack: whether it is loaded as a lazy stack, even where all rows have
                tensors of the same shapes.
        """
        refuse_dtypes(level)
        with open(self._at("", _MADE), "w"):
            # From now on what is here is ours, also after a kill.
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
        made = TreeLevel(folder, key, fields)
        made.class_name = level.cls.__name__ if level.is_wrapped else "TensorDict"
        for name, data in level.entries.items():
            if isinstance(data, Level):
                fields[name] = {"type": data.cls.__name__}
                below = os.path.join(folder, _rust.escape_key(name))
                path = (*key, name)
                made.children[name] = self._made(data, below, path, is_stack)
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
        self._mark(made, level, is_stack)
        return made

    def _mark(self, made: TreeLevel, level: Level, is_stack: bool) -> None:
        """Say in the metadata that columns have rows that differ."""
        entries = [value for value in made.fields.values() if isinstance(value, dict)]
        is_ragged = any(
            entry.get("is_nested") and "encoding" not in entry for entry in entries
        ) or any(child.is_stack for child in made.children.values())
        has_text = any("encoding" in entry for entry in entries)
        if is_ragged or is_stack or level.batch_size is None:
            made.fields["_row_dims"] = level.num_dims
            if level.batch_size is None:
                made.fields["shape"] = [0]
                made.fields.pop("_names", None)
        if has_text or made.is_stack:
            made.fields["_class"] = CLASS_TEXT

    # Adding -----------------------------------------------------------------------------

    def check(self, level: Level, count: int) -> None:
        """Refuse rows that :meth:`add` would refuse, without adding any."""
        self._plan(self._top(), level, count, False, [], [])

    def add(self, level: Level, count: int, is_strict: bool = False) -> None:
        """Add rows: all of them, or in case of an error none.

        Args:
            level: the rows.
            count: how many they are.
            is_strict: whether rows of other shapes are refused, as tensordict 0.15 does,
                where no column has such rows yet.

        Raises:
            ValueError: they do not fit.
            OSError: they cannot be written.
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
        for own, given in tails:
            own.fields["shape"] = own.fields["shape"][:1]
            own.fields.pop("_names", None)
            own.fields["_row_dims"] = given.num_dims
        self._mark_ragged(root)
        self._count_rows(count)

    def _count_rows(self, count: int) -> None:
        """Count rows that every column has got."""
        self._plain_columns = None
        self.num_rows += count
        self._is_changed = True

    def add_row(self, entries: Mapping[str, Any]) -> bool:
        """Add a row of tensors that are just like those before.

        It takes a tenth of the time of :meth:`add`, which looks at all that can differ.

        Returns:
            False, with nothing added, where they are not, or where there is more to look
            at than tensors of one level.

        Raises:
            OSError: it cannot be written; it is left out.
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
            # An entry is missing, has a gradient, is elsewhere or of a dtype of torch's own.
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
        """The columns where rows are tensors of one shape each, and nothing else."""
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
        own: TreeLevel,
        level: Level,
        count: int,
        is_strict: bool,
        planned: list[tuple[Column, Any]],
        tails: list[tuple[TreeLevel, Level]],
    ) -> None:
        given = level.cls.__name__
        if level.is_wrapped != (own.class_name != "TensorDict" and self._is_inner(own)):
            shown = given if level.is_wrapped else "TensorDict"
            raise ValueError(MSG_CLASS.format(shown, own.name, own.class_name))
        if level.is_wrapped and given != own.class_name:
            raise ValueError(MSG_CLASS.format(given, own.name, own.class_name))
        held = own.keys
        if level.entries.keys() != set(held):
            raise ValueError(
                MSG_KEYS.format(sorted(level.entries), own.name, sorted(held))
            )
        size = level.batch_size
        tail = own.fields["shape"][1:]
        num_dims = own.fields.get("_row_dims", len(tail))
        is_fixed = len(tail) == num_dims
        if level.num_dims != num_dims or (
            is_fixed and (size is None or list(size) != tail)
        ):
            if is_strict or level.num_dims != num_dims:
                rows = torch.Size([count, *(size or ())])
                saved = torch.Size([self.num_rows, *tail])
                raise ValueError(MSG_TAIL.format(rows, own.name, saved))
            tails.append((own, level))
        for name in held:
            data = level.entries[name]
            if name in own.constants:
                own.constants[name].check((*own.key, name), data, self.allow_pickle)
            elif name in own.children:
                if not isinstance(data, Level):
                    shown = "values" if isinstance(data, Values) else "tensors"
                    raise ValueError(
                        f"Cannot append {shown} to {own.children[name].name}, "
                        "which is a collection."
                    )
                below = own.children[name]
                self._plan(below, data, count, is_strict, planned, tails)
            elif isinstance(data, Level):
                key = own.columns[name].key
                raise ValueError(
                    f"Cannot append a {data.cls.__name__} to the entry {key!r}, which is "
                    "a tensor."
                )
            else:
                column = own.columns[name]
                planned.append((column, column.fitted(data, is_strict)))

    def _is_inner(self, own: TreeLevel) -> bool:
        return os.path.basename(own.folder) == "_tensordict"

    def _mark_ragged(self, own: TreeLevel) -> None:
        """Mark the levels in which a column came to have rows that differ."""
        for child in own.children.values():
            self._mark_ragged(child)
        # Nested tensors that were saved as such stay what they are.
        is_ragged = any(column.became_ragged for column in own.columns.values()) or any(
            child.is_stack for child in own.children.values()
        )
        if is_ragged and not own.is_stack:
            own.fields["_row_dims"] = len(own.fields["shape"]) - 1
            own.fields["_class"] = CLASS_TEXT
        elif own.is_stack:
            own.fields["_class"] = CLASS_TEXT

    def name_classes(self, names: Mapping[Any, Sequence[str]]) -> None:
        """Keep the names of the classes that numbers of an entry stand for.

        Raises:
            KeyError: there is no such entry of tensors.
            ValueError: it has other names.
        """
        by_key = {
            (*level.key, name): column
            for level in self._levels()
            for name, column in level.columns.items()
        }
        for key, given in names.items():
            path = tuple(_rust.unravel_key_to_tuple(key))
            column = by_key.get(path)
            if column is None or column.encoding is not None:
                raise KeyMessageError(MSG_NO_CLASSES.format(key))
            known = column.entry.get(CLASS_NAMES)
            if known is not None and known != list(given):
                raise ValueError(MSG_CLASSES.format(key, known, list(given)))
            if known is None:
                column.entry[CLASS_NAMES] = list(given)
                self._is_changed = True

    def reserve(self, num_rows: int) -> None:
        """Set room aside for so many rows in all."""
        for level in self._levels():
            for column in level.columns.values():
                column.reserve(num_rows)

    # Publishing -------------------------------------------------------------------------

    def publish(self, is_durable: bool = False) -> None:
        """Let readers see the rows that were added: all of them in one step."""
        if not self._is_changed or self.root is None:
            return
        changed = self._written_out(is_durable)
        publish(self.path, changed, is_durable, not self._has_published)
        if not self._has_published:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at("", _MADE))
        self._note_published()

    def _written_out(self, is_durable: bool) -> dict[str, dict[str, Any]]:
        """Write what waits in memory, and return the metadata of the levels, by folders."""
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
        """Note that readers see all rows."""
        self._has_published = True
        self._wrappers.clear()
        self.published_rows = self.num_rows
        self._is_changed = False

    def forget(self) -> None:
        """Close, where nobody waits: of a writer that was dropped."""
        self.close()

    def close(self) -> None:
        """Give room back, and let other writers in. Nothing is published."""
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
    """A value that is the same for all rows, in a directory of its own."""

    def __init__(self, folder: str, fields: dict[str, Any]) -> None:
        self.folder = folder
        self.fields = fields

    def check(
        self, key: tuple[str, ...], data: object, allow_pickle: bool | None
    ) -> None:
        """Refuse rows that have another value.

        Raises:
            ValueError: they have.
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
    """Refuse keys that the metadata, or two files, have no place for."""
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
            # A column gets a table when the first row of another shape comes.
            raise RuntimeError(MSG_SHAPE_TAKEN.format(stem))
