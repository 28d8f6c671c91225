"""Lazy stacks over columns in files, whose members are made when they are read.

A :class:`~tensordict.containers.lazy.columns.Columns` holds the files of one level of a
save: a tensor for each entry whose rows all have one shape, and a
:class:`~tensordict.containers.lazy.ragged_column.RaggedColumn` of elements and shapes
for each other entry. A :class:`ColumnStack` is the lazy stack of all or some rows.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict.containers.lazy.columns import (
    CPU,
    Columns,
    copied,
    described,
    gathered,
    value_of,
)
from tensordict.containers.lazy.construct import nested_stacks
from tensordict.containers.lazy.ragged_column import RaggedColumn, padded
from tensordict.containers.lazy.ragged_forms import in_form
from tensordict.containers.lazy.stack import LazyStackedTensorDict
from tensordict.containers.nontensor import NonTensorStack
from tensordict.containers.nontensor.cells import EncodedCells
from tensordict.primitives.checks import inside, is_branch
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.storage.layouts.directory import load_directory, make_level, path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensordict.primitives.protocol import NestedKeyLike
    from tensordict.storage.growing.rows import Level
    from tensordict.storage.paths import SavedPath

__all__ = ["ColumnStack"]

_PADDED = {"as_padded_tensor", "padding_value"}
"""The arguments of ``get`` that read an entry padded on the right."""

MSG_RAGGED = "ragged must be 'stack', 'padded' or 'jagged', got {!r}."
MSG_BOUNDS = "index {} is out of bounds for the stack dim of size {}"


class ColumnStack(LazyStackedTensorDict):
    """A lazy stack of rows in columns, such as the rows of a dataset in files.

    It works like any :class:`LazyStackedTensorDict`. ``stack[i]`` is made at each read,
    as a locked collection over the memory of the columns: writing to its tensors writes
    to the columns. :meth:`unlock_` makes all members, and keeps them.
    """

    _columns: Columns
    _rows: range

    @classmethod
    def of_columns(cls, columns: Columns, rows: range | None = None) -> Self:
        """Make a stack of all rows of columns, or of some."""
        stack = cls.__new__(cls)
        stack._columns = columns
        stack._rows = range(columns.num_rows) if rows is None else rows
        stack.__dict__["_is_locked"] = True
        stack.stack_dim = 0
        stack._batch_size = columns.size(stack._rows)
        stack._hook_out = None
        stack._hook_in = None
        if columns.names is not None:
            stack._td_dim_name = columns.names[0]
        return stack

    @classmethod
    def _of(cls, members: list[Any], dim: int, name: str | None = None) -> Any:
        # A result made of members is a plain lazy stack.
        return LazyStackedTensorDict._of(members, dim, name)

    def _like(self, members: list[Any]) -> Any:
        if not members:
            return self[:0]
        return LazyStackedTensorDict._of(members, self.stack_dim, self._td_dim_name)

    def __getattr__(self, name: str) -> Any:
        # A request for the list of members makes all members.
        if name == "tensordicts" and "_columns" in self.__dict__:
            self._columns.check_files()
            members = [self._columns.row(at) for at in self._rows]
            self.__dict__["tensordicts"] = members
            return members
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    @property
    def _has_members(self) -> bool:
        """Return whether members were made, which may differ from the rows."""
        return "tensordicts" in self.__dict__

    @property
    def _unmade_columns(self) -> Columns | None:
        """The columns, or None if members were made, which may differ from them."""
        return None if self._has_members else self._columns

    def __reduce__(self) -> Any:
        if not self._has_members and self._rows:
            # Copy the rows: torch would pickle the entire column of each view.
            places = np.asarray(self._rows, np.int64)
            return _of_columns, (copied(self._columns, places), self._td_dim_name)
        members = list(self.tensordicts)
        if not members:
            return self.__class__.of_columns, (self._columns, self._rows)
        return _rebuilt, (members, self._td_dim_name)

    # State, which the columns hold until members are made -----------------------------

    def _flag(self, name: str) -> bool:
        if self._has_members:
            return super()._flag(name)
        return bool(self.__dict__.get(name))

    @property
    def _device(self) -> torch.device | None:
        return super()._device if self._has_members else CPU

    @_device.setter
    def _device(self, value: torch.device | None) -> None:
        LazyStackedTensorDict._device.fset(self, value)  # type: ignore[attr-defined]

    @property
    def names(self) -> list[str | None]:
        """A name or None for each batch dim. See ``TensorDict.names``."""
        if self._has_members:
            return super().names
        names = self._columns.names
        return [None] * len(self._batch_size) if names is None else list(names)

    @names.setter
    def names(self, value: Sequence[str | None] | None) -> None:
        LazyStackedTensorDict.names.fset(self, value)  # type: ignore[attr-defined]

    def _has_names(self) -> bool:
        return super()._has_names() if self._has_members else any(self.names)

    @property
    def _has_exclusive_keys(self) -> bool:  # type: ignore[override]
        return super()._has_exclusive_keys if self._has_members else False

    def _common_keys(self) -> list[str]:
        return (
            super()._common_keys() if self._has_members else list(self._columns.entries)
        )

    def _holds_stacks(self) -> bool:
        return super()._holds_stacks() if self._has_members else False

    # Reading --------------------------------------------------------------------------

    def _group(self, key: str) -> list[Any] | None:
        if self._has_members:
            return super()._group(key)
        if key not in self._columns.entries:
            return None
        self._columns.check_files()
        column = self._columns.entries[key]
        if isinstance(column, (Columns, RaggedColumn)):
            rows = [column.row(at) for at in self._rows]
            if isinstance(column, RaggedColumn) and column.encoding is not None:
                places = zip(rows, self._rows, strict=True)
                return [value_of(row, self._columns.row_size(at)) for row, at in places]
            return rows
        return [column[at] for at in self._rows]

    def _column(self, key: str) -> Any:
        """Return the entry of all rows, if that needs no stacking; otherwise None."""
        column = self._columns.entries.get(key)
        rows = self._rows
        if isinstance(column, Columns):
            return column.wrapped(ColumnStack.of_columns(column, rows))
        if isinstance(column, RaggedColumn):
            if column.encoding is None or self._columns.num_dims:
                return None
            return _texts(column, rows)
        if isinstance(column, torch.Tensor):
            if len(rows) == self._columns.num_rows and rows.step == 1:
                return column
            if rows.step > 0:
                return column[rows.start : rows.stop : rows.step]
        return None

    def _get_entry(self, key: str, default: object) -> Any:
        if not self._has_members and self._hook_out is None:
            entry = self._column(key)
            if entry is not None:
                return entry
        return super()._get_entry(key, default)

    def _read(self, key: Any, default: object) -> Any:
        if self._has_members or self._hook_out is not None:
            return super()._read(key, default)
        path = _rust.unravel_key_to_tuple(key)
        if len(path) > 1:
            inner = self._columns.entries.get(path[0])
            if isinstance(inner, Columns):
                return ColumnStack.of_columns(inner, self._rows)._read(
                    path[1:], default
                )
        elif path:
            entry = self._column(path[0])
            if entry is None and path[0] in self._columns.entries:
                entry = self._stacked(path[0], self._group(path[0]) or [])
            if entry is not None:
                return entry._value() if isinstance(entry, NonTensorStack) else entry
        if path and path[0] not in self._columns.entries:
            if default is NO_DEFAULT:
                return _rust.getitem(self, path)
            return _rust.get(self, key, default)
        return super()._read(key, default)

    def _sample_entries(self) -> dict[str, Any]:
        if self._has_members or not self._rows:
            return super()._sample_entries()
        return {key: self._sample_entry(key) for key in self._columns.entries}

    def _sample_entry(self, key: str) -> Any:
        if self._has_members or not self._rows:
            return super()._sample_entry(key)
        column = self._columns.entries.get(key)
        if column is None:
            return NO_DEFAULT
        entry = self._column(key)
        if isinstance(entry, CollectionProtocol):
            return entry
        if isinstance(column, RaggedColumn) and column.encoding is None:
            # Return an uninitialized tensor: reading elements may need an object store.
            sizes = column.table[self._rows[0]].tolist()
            return torch.empty(sizes, dtype=column.values.dtype)
        return self._columns.row(self._rows[0])._get_entry(key, NO_DEFAULT)

    def _get_formatted(
        self, key: NestedKeyLike, default: object, kwargs: dict[str, Any]
    ) -> Any:
        path = _rust.unravel_key_to_tuple(key)
        if not self._has_members and len(path) == 1 and set(kwargs) <= _PADDED:
            column = self._columns.entries.get(path[0])
            is_padded = kwargs.get("as_padded_tensor") and self._rows
            if (
                is_padded
                and isinstance(column, RaggedColumn)
                and column.encoding is None
            ):
                rows = column.taken(list(self._rows))
                return padded(rows, kwargs.get("padding_value", 0))
        return super()._get_formatted(key, default, kwargs)

    def select(
        self,
        *keys: Any,
        inplace: bool = False,
        strict: bool = True,
        as_tensordict: bool = False,
    ) -> Any:
        """Return a stack of some entries. See ``TensorDict.select``."""
        columns = None
        if not (self._has_members or inplace or as_tensordict):
            columns = self._columns.chosen(keys)
        if columns is None:
            return super().select(
                *keys, inplace=inplace, strict=strict, as_tensordict=as_tensordict
            )
        return ColumnStack.of_columns(columns, self._rows)

    def _index(self, index: object) -> Any:
        if self._has_members:
            return super()._index(index)
        count = len(self._rows)
        if type(index) is int:
            if not -count <= index < count:
                raise IndexError(MSG_BOUNDS.format(index, count))
            self._columns.check_files()
            return self._columns.row(self._rows[index])
        if isinstance(index, (slice, range)):
            if isinstance(index, range) and (
                index and not 0 <= min(index) <= max(index) < count
            ):
                return super()._index(index)
            if isinstance(index, range):
                start, step = self._rows.start, self._rows.step
                rows = range(
                    start + index.start * step,
                    start + index.stop * step,
                    step * index.step,
                )
            else:
                rows = self._rows[index]
            return ColumnStack.of_columns(self._columns, rows)
        shape = getattr(index, "shape", ())
        if isinstance(index, torch.Tensor) and len(shape) > 1:
            places = None
            if index.dtype in (torch.int32, torch.int64):
                places = _places(index.reshape(-1), count)
        else:
            places = _places(index, count)
        if places is None or (len(shape) > 1 and not len(places)):
            return super()._index(index)
        stack = self.gather_rows(places)
        if len(shape) < 2:
            return stack
        names: list[str | None] = [None] * len(shape)
        return nested_stacks(stack.tensordicts, 0, tuple(shape), names)

    def gather_rows(
        self,
        index: object,
        ragged: str = "stack",
        *,
        padding_value: float = 0,
        keys: Iterable[Any] | None = None,
    ) -> Any:
        """Copy some rows to memory.

        Args:
            index: the row numbers: a tensor, an array, a list, or a mask.
            ragged: the form of entries whose rows differ in shape. ``"stack"`` returns
                a lazy stack of the rows. ``"padded"`` returns tensors padded to the
                largest row. ``"jagged"`` returns nested tensors with the jagged layout.
            padding_value: the value of the padding.
            keys: the entries to copy. Default: all.

        Returns:
            A lazy stack for ``"stack"``, otherwise a ``TensorDict``.

        Raises:
            IndexError: a row number is out of range, or ``index`` is not an index of
                rows.
            ValueError: a jagged tensor cannot hold an entry.

        Examples:
            >>> import tempfile
            >>> rows = [TensorDict(a=torch.ones(n)) for n in (1, 2, 3)]
            >>> path = tempfile.mkdtemp()
            >>> data = lazy_stack(rows).memmap(path, ragged="columns")
            >>> data.gather_rows([2, 0], ragged="padded")["a"]
            tensor([[1., 1., 1.],
                    [1., 0., 0.]])
        """
        if ragged not in ("stack", "padded", "jagged"):
            raise ValueError(MSG_RAGGED.format(ragged))
        places = _places(index, len(self._rows))
        if places is None:
            raise IndexError(f"{index!r} is not an index of rows.")
        columns: Columns | None = self._columns
        if self._has_members:
            columns = None
        elif keys is not None:
            columns = self._columns.chosen(keys)
        if columns is None:
            chosen = self if keys is None else self.select(*keys)
            return in_form(chosen[places.tolist()], ragged, padding_value)
        rows = self._rows
        places = np.asarray(places, np.int64) * rows.step + rows.start
        if ragged == "stack":
            copies = copied(columns, places)
            if not len(places):
                return ColumnStack.of_columns(copies)
            members = [_unlocked(copies.row(at)) for at in range(len(places))]
            return LazyStackedTensorDict._of(members, 0)
        return gathered(columns, places, ragged, padding_value)

    def _as_level(self) -> Level | None:
        """Return the rows in the form of a writer.

        Return None if members were made, or the rows are not consecutive.
        """
        rows = self._rows
        if self._has_members or rows.step != 1:
            return None
        return self._columns.level(rows.start, rows.start + len(rows))

    # Files ----------------------------------------------------------------------------

    def _plain(self) -> LazyStackedTensorDict:
        """Return a plain lazy stack, which every version of the package can load."""
        return LazyStackedTensorDict._of(self.tensordicts, 0, self._td_dim_name)

    def _save_plan(self, plan: object, level: int) -> None:
        self._plain()._save_plan(plan, level)

    def _describe(self, rows: Any) -> Any:
        return self._plain()._describe(rows)

    @staticmethod
    def _load_level(tree: object, path: SavedPath, options: dict[str, Any]) -> Any:
        """Load a level whose metadata names this class."""
        return _load_level(tree, path, options)

    # Printing -------------------------------------------------------------------------

    def __repr__(self) -> str:
        if self._has_members:
            return super().__repr__()
        lines = ",\n".join(described(self._columns, "        "))
        return (
            f"{type(self).__name__}(\n    fields={{\n{lines}}},\n"
            f"    batch_size={self._batch_size},\n    stack_dim=0)"
        )


ColumnStack.__module__ = "tensordict._lazy"


def _of_columns(columns: Columns, name: str | None) -> LazyStackedTensorDict:
    return _rebuilt([columns.row(at) for at in range(columns.num_rows)], name)


def _rebuilt(members: list[Any], name: str | None) -> LazyStackedTensorDict:
    return LazyStackedTensorDict._of(members, 0, name)


def _unlocked(td: CollectionProtocol) -> CollectionProtocol:
    inner = inside(td)
    inner._is_locked = None
    for value in inner._tensordict.values():
        if is_branch(value):
            _unlocked(value)
    return td


def _places(index: object, count: int) -> Any:
    """Return the row numbers of an index of rows; None for any other index."""
    if isinstance(index, torch.Tensor):
        if index.ndim != 1:
            return None
        if index.dtype in (torch.bool, torch.uint8):
            if len(index) != count or index.dtype is torch.uint8:
                return None
            index = index.nonzero()[:, 0]
        elif index.is_floating_point() or index.is_complex():
            return None
        places = index.cpu().numpy()
    elif isinstance(index, (list, range, np.ndarray)):
        places = np.asarray(index)
        if places.dtype == np.bool_ and places.shape == (count,):
            places = places.nonzero()[0]
        if places.ndim != 1 or (len(places) and places.dtype.kind not in "iu"):
            return None
    else:
        return None
    places = places.astype(np.int64)
    wrong = (places < -count) | (places >= count)
    if wrong.any():
        raise IndexError(MSG_BOUNDS.format(int(places[wrong][0]), count))
    return np.where(places < 0, places + count, places)


# Loading ------------------------------------------------------------------------------


def _load_level(tree: object, path: SavedPath, options: dict[str, Any]) -> Any:
    """Load a level with columns of rows that differ in shape."""
    fields = _fields(path)
    if "_row_dims" not in fields:
        return _with_texts(tree, path, options, fields)
    stack = ColumnStack.of_columns(_columns(tree, path, options, fields))
    stack._memmap_prefix = None
    return stack


def _fields(path: SavedPath) -> dict[str, Any]:
    return json.loads((path / "meta.json").read_text(encoding="utf-8"))


def _columns(
    tree: Any, path: SavedPath, options: Any, fields: dict[str, Any]
) -> Columns:
    entries = dict(tree.entries)
    for key in tree.nested:
        child = entries[key]
        below = path_of(path, child.directory)
        entries[key] = _columns(child, below, options, _fields(below))
    for key in tree.special:
        value = entries[key]
        if isinstance(value, str):
            loaded = load_directory(path_of(path, value), options)
            batch = torch.Size(tree.batch_size)
            entries[key] = _as_columns(loaded._loaded_in(batch, CPU, tree.names))
        else:
            entries[key] = RaggedColumn(value[0], value[1], _encoding(fields, key))
    size = list(tree.batch_size)
    num_dims = fields.get("_row_dims", len(size) - 1)
    tail = torch.Size(size[1:]) if len(size) - 1 == num_dims else None
    return Columns(entries, size[0], num_dims, tail, tree.names)


def _as_columns(loaded: CollectionProtocol) -> CollectionProtocol | Columns:
    """Return the columns of a tensorclass around columns; other entries as they are."""
    inner = inside(loaded)
    if inner is loaded or not isinstance(inner, ColumnStack):
        return loaded
    return dataclasses.replace(inner._columns, wrapper=type(loaded))


def _with_texts(
    tree: Any, path: SavedPath, options: Any, fields: dict[str, Any]
) -> Any:
    """Load a dense collection with columns of texts among its entries."""
    others = []
    for key in tree.special:
        encoding = _encoding(fields, key)
        if encoding is None:
            others.append(key)
        else:
            values, table = tree.entries[key]
            column = RaggedColumn(values, table, encoding)
            tree.entries[key] = _texts(column, range(len(column.table)))
    return make_level(tree, path, options, others)


def _texts(column: RaggedColumn, rows: range) -> NonTensorStack:
    """Make non-tensor data of some rows of a column; values are decoded when read."""
    cells: Any = EncodedCells(column, rows)
    return NonTensorStack._of_cells(cells, torch.Size([len(rows)]), CPU)


def _encoding(fields: dict[str, Any], key: str) -> str | None:
    entry = fields.get(key)
    return entry.get("encoding") if isinstance(entry, dict) else None
