"""The types and sizes of the columns of a tensordict, without reading its rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict.containers.lazy.column_stack import ColumnStack
from tensordict.containers.lazy.columns import Columns
from tensordict.containers.lazy.ragged_column import RaggedColumn
from tensordict.containers.nontensor.cells import EncodedCells
from tensordict.containers.remote import RemoteTensorDict
from tensordict.interop.ray_data.blocks import (
    column_name,
    column_of,
    type_of_values,
    widened,
)
from tensordict.interop.tables.arrow import import_pyarrow
from tensordict.primitives.checks import inside, is_branch
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.growing.rows import Ragged, rows_of
from tensordict.storage.growing.text import BYTES, TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["Description", "describe"]

UNKNOWN_BYTES = 100
"""The assumed bytes of a row whose columns are unknown."""


class Description(NamedTuple):
    """The columns of a tensordict."""

    types: dict[str, Any]
    """The types of the columns whose type is known without reading."""
    schema: Any
    """The Arrow schema of all columns; None if a type is unknown."""
    num_bytes: int
    """The approximate bytes of all rows as Arrow tables."""


def describe(td: CollectionProtocol, separator: str) -> Description:
    """Return the columns of a tensordict ``[N, ...]`` and their approximate bytes."""
    pa = import_pyarrow("to_ray_dataset")
    types: dict[str, Any] = {}
    num_bytes, rows, is_complete = 0, td.batch_size[0], True
    try:
        for path, entry in _entries(td, ()):
            name = column_name(path, separator)
            kind, size = _column(pa, name, entry, rows)
            num_bytes += size
            if kind is None:
                is_complete = False
            else:
                types[name] = kind
    except LookupError:
        return Description({}, None, max(num_bytes, UNKNOWN_BYTES * rows))
    schema = pa.schema(list(types.items())) if is_complete else None
    return Description(types, schema, num_bytes)


def _entries(
    td: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the key path and the stored form of each entry.

    Raises:
        LookupError: the entries are unknown without reading.
    """
    if isinstance(td, RemoteTensorDict):
        td = td._template
    td = inside(td)
    if isinstance(td, RemoteTensorDict):
        td = td._template
    if isinstance(td, ColumnStack):
        columns = td._unmade_columns
        if columns is None or len(td._rows) != columns.num_rows:
            raise LookupError
        yield from _of_columns(columns, path)
        return
    if not td._is_dense:
        raise LookupError
    for key, value in td._tensordict.items():
        if is_branch(value):
            yield from _entries(value, (*path, key))
        else:
            yield (*path, key), value


def _of_columns(
    columns: Columns, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, value in columns.entries.items():
        key_path = (*path, key)
        if isinstance(value, Columns):
            yield from _of_columns(value, key_path)
        elif is_branch(value):
            yield from _entries(value, key_path)
        else:
            yield key_path, value


def _column(pa: ModuleType, name: str, entry: Any, rows: int) -> tuple[Any, int]:
    """Return the type of a column, None if it is unknown, and its bytes."""
    if isinstance(entry, RaggedColumn):
        return _ragged_column(pa, name, entry)
    if isinstance(entry, CollectionProtocol):
        cells: Any = getattr(entry, "_cells", None)
        if isinstance(cells, EncodedCells):
            return _ragged_column(pa, name, cells.column)
        values = rows_of(entry)
        return type_of_values(pa, name, values.items)
    tensor: Any = entry
    if tensor.is_nested:
        ragged = rows_of(tensor)
        array = column_of(pa, name, ragged, rows)
        return array.type, array.nbytes
    empty = torch.empty((0, *tensor.shape[1:]), dtype=tensor.dtype)
    size = math.prod(tensor.shape) * widened(tensor.dtype).itemsize
    return column_of(pa, name, empty, 0).type, size


def _ragged_column(pa: ModuleType, name: str, column: RaggedColumn) -> tuple[Any, int]:
    num_rows, num_dims = column.table.shape
    size = math.prod(column.values.shape) * widened(column.values.dtype).itemsize
    size += num_rows * 8 * (num_dims + 1)
    if column.encoding is None:
        items = torch.empty(0, dtype=column.values.dtype)
        empty = Ragged(items, torch.empty((0, num_dims), dtype=torch.int64))
        return column_of(pa, name, empty, 0).type, size
    kinds = {TEXT: pa.string(), BYTES: pa.binary()}
    return kinds.get(column.encoding), size
