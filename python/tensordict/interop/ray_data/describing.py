"""The columns that rows of a collection will have, found without reading the rows."""

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
    column_of,
    named,
    type_of_values,
    widened,
)
from tensordict.interop.tables.arrow import import_pyarrow
from tensordict.primitives.checks import inside
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.growing.rows import Ragged, rows_of
from tensordict.storage.growing.text import BYTES, TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["Description", "describe"]

UNKNOWN_BYTES = 100
"""The bytes of a row that are taken where nothing is known of it."""


class Description(NamedTuple):
    """The columns of a collection."""

    types: dict[str, Any]
    """The types of columns that are known without reading."""
    schema: Any
    """All of them, as a schema of Arrow; None if some are not known."""
    num_bytes: int
    """The bytes that the rows take as tables, about."""


def describe(td: CollectionProtocol, separator: str) -> Description:
    """Find the columns of a collection ``[N, ...]``, and the bytes that they will take."""
    pa = import_pyarrow("to_ray_dataset")
    types: dict[str, Any] = {}
    num_bytes, rows, is_known = 0, td.batch_size[0], True
    try:
        for path, entry in _entries(td, ()):
            name = named(path, separator)
            kind, size = _column(pa, name, entry, rows)
            num_bytes += size
            if kind is None:
                is_known = False
            else:
                types[name] = kind
    except LookupError:
        return Description({}, None, max(num_bytes, UNKNOWN_BYTES * rows))
    schema = pa.schema(list(types.items())) if is_known else None
    return Description(types, schema, num_bytes)


def _entries(
    td: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object]]:
    """Give what the entries are kept in.

    Raises:
        LookupError: that is not known without reading.
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
        if isinstance(value, CollectionProtocol) and not value._is_non_tensor:
            yield from _entries(value, (*path, key))
        else:
            yield (*path, key), value


def _of_columns(
    columns: Columns, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, value in columns.entries.items():
        here = (*path, key)
        if isinstance(value, Columns):
            yield from _of_columns(value, here)
        elif isinstance(value, CollectionProtocol) and not value._is_non_tensor:
            yield from _entries(value, here)
        else:
            yield here, value


def _column(pa: ModuleType, name: str, entry: Any, rows: int) -> tuple[Any, int]:
    """Return the type of a column, None if it is not known, and its bytes."""
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
        found = rows_of(tensor)
        made = column_of(pa, name, found, rows)
        return made.type, made.nbytes
    none = torch.empty((0, *tensor.shape[1:]), dtype=tensor.dtype)
    size = math.prod(tensor.shape) * widened(tensor.dtype).itemsize
    return column_of(pa, name, none, 0).type, size


def _ragged_column(pa: ModuleType, name: str, column: RaggedColumn) -> tuple[Any, int]:
    num_rows, num_dims = column.table.shape
    size = math.prod(column.values.shape) * widened(column.values.dtype).itemsize
    size += num_rows * 8 * (num_dims + 1)
    if column.encoding is None:
        items = torch.empty(0, dtype=column.values.dtype)
        none = Ragged(items, torch.empty((0, num_dims), dtype=torch.int64))
        return column_of(pa, name, none, 0).type, size
    kinds = {TEXT: pa.string(), BYTES: pa.binary()}
    return kinds.get(column.encoding), size
