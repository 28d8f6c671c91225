"""The blocks of a dataset of Ray Data as one table.

A function that was called for batches makes each block on its own: tensors that differ in
shape in one block may be of one shape in another, and numbers integers in one and floating
point in another. Such columns are brought to one type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.interop.ray_data.blocks import as_objects, of_shapes
from tensordict.interop.tables.ray_tensors import is_ray_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    import pyarrow as pa
    from ray.data import Dataset

__all__ = ["joined"]

MSG_MIXED = (
    "from_ray_dataset cannot bring the column {name!r} to one type: its blocks have {kinds}. "
    "Cast it, so that all blocks have the same."
)


def joined(pa: ModuleType, dataset: Dataset) -> pa.Table:
    """Make one table of the blocks, in the order in which Ray Data gives them."""
    blocks: Iterator[Any] = iter(
        dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    )
    tables = [table for table in blocks if table.num_columns]
    if not tables:
        return _empty(pa, dataset)
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    fields, columns = [], []
    for name in names:
        found = [_part(pa, table, name) for table in tables]
        column = _as_one_type(pa, name, found)
        metadata = {
            **{key: it for table in tables for key, it in _marks(table, name).items()}
        }
        fields.append(pa.field(name, column.type, metadata=metadata))
        columns.append(column)
    return pa.table(columns, schema=pa.schema(fields))


def _marks(table: pa.Table, name: str) -> dict[bytes, bytes]:
    if name not in table.column_names:
        return {}
    return table.schema.field(name).metadata or {}


def _part(pa: ModuleType, table: pa.Table, name: str) -> Any:
    if name in table.column_names:
        return table.column(name)
    return pa.chunked_array([pa.nulls(table.num_rows)])


def _empty(pa: ModuleType, dataset: Dataset) -> Any:
    """A table without rows, of the columns that the dataset has."""
    schema = dataset.schema()
    kinds = getattr(schema, "base_schema", None)
    if isinstance(kinds, pa.Schema):
        return kinds.empty_table()
    names = list(schema.names) if schema is not None else []
    return pa.table({name: pa.nulls(0) for name in names})


def _as_one_type(pa: ModuleType, name: str, found: Sequence[Any]) -> Any:
    """Join parts of a column; values of different types are objects of Python.

    Raises:
        TypeError: there are tensors in some, and something else in others.
    """
    kinds = {part.type for part in found if part.type != pa.null()}
    if len(kinds) > 1 and any(map(_is_tensor(pa), kinds)):
        if not all(map(_is_tensor(pa), kinds)):
            shown = ", ".join(sorted(map(str, kinds)))
            raise TypeError(MSG_MIXED.format(name=name, kinds=shown))
        found = _with_shapes(pa, [part for part in found if len(part)])
        kinds = {found[0].type}
    if len(kinds) == 1:
        kind = kinds.pop()
        chunks = [
            chunk if chunk.type == kind else pa.nulls(len(chunk), kind)
            for part in found
            for chunk in part.chunks
        ]
        return pa.chunked_array(chunks, type=kind)
    parts = [pa.table({name: part}) for part in found]
    try:
        made = pa.concat_tables(parts, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Values of Python, whatever they are.
        return pa.chunked_array(
            [as_objects([it for part in found for it in part.to_pylist()])]
        )
    return made.column(name)


def _is_tensor(pa: ModuleType) -> Any:
    def check(kind: object) -> bool:
        return is_ray_tensor(kind) or isinstance(kind, pa.FixedShapeTensorType)

    return check


def _with_shapes(pa: ModuleType, parts: list[Any]) -> list[Any]:
    """Columns of tensors as such of rows that may differ in shape, of one dtype."""
    rows = [[np.asarray(row) for row in _rows(part)] for part in parts]
    dtype = np.result_type(*(row.dtype for some in rows for row in some))
    made = []
    for some in rows:
        table = torch.tensor([row.shape for row in some], dtype=torch.int64)
        items = np.concatenate([row.reshape(-1) for row in some]).astype(dtype)
        array = of_shapes(pa, items, table.reshape(len(some), -1))
        made.append(pa.chunked_array([array]))
    return made


def _rows(part: pa.ChunkedArray) -> list[Any]:
    """The arrays of the rows of a column of tensors."""
    return [
        scalar.to_numpy() if hasattr(scalar, "to_numpy") else scalar.as_py()
        for chunk in part.chunks
        for scalar in chunk
    ]
