"""The blocks of a Ray Data dataset as one table.

A function that maps batches makes each block independently: a column may hold tensors
of several shapes in one block and of one shape in another, or integers in one block and
floating point in another. Such columns are converted to one type.
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
    "from_ray_dataset cannot convert the column {name!r} to one type: its blocks have the "
    "types {kinds}. Cast the column, so that all blocks have the same type."
)


def joined(pa: ModuleType, dataset: Dataset) -> pa.Table:
    """Join all blocks to one table, in the order of Ray Data."""
    blocks: Iterator[Any] = iter(
        dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    )
    tables = [table for table in blocks if table.num_columns]
    if not tables:
        return _empty(pa, dataset)
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    fields, columns = [], []
    for name in names:
        column = _as_one_type(pa, name, [_part(pa, table, name) for table in tables])
        metadata: dict[bytes, bytes] = {}
        for table in tables:
            metadata.update(_metadata_of(table, name))
        fields.append(pa.field(name, column.type, metadata=metadata))
        columns.append(column)
    return pa.table(columns, schema=pa.schema(fields))


def _metadata_of(table: pa.Table, name: str) -> dict[bytes, bytes]:
    if name not in table.column_names:
        return {}
    return table.schema.field(name).metadata or {}


def _part(pa: ModuleType, table: pa.Table, name: str) -> Any:
    if name in table.column_names:
        return table.column(name)
    return pa.chunked_array([pa.nulls(table.num_rows)])


def _empty(pa: ModuleType, dataset: Dataset) -> Any:
    """Return a table without rows, with the columns of the dataset."""
    schema = dataset.schema()
    kinds = getattr(schema, "base_schema", None)
    if isinstance(kinds, pa.Schema):
        return kinds.empty_table()
    names = list(schema.names) if schema is not None else []
    return pa.table({name: pa.nulls(0) for name in names})


def _as_one_type(pa: ModuleType, name: str, blocks: Sequence[Any]) -> Any:
    """Join the parts of a column; values of different types become Python objects.

    Raises:
        TypeError: some parts hold tensors, and others hold other values.
    """
    kinds = {part.type for part in blocks if part.type != pa.null()}
    if len(kinds) > 1 and any(map(_is_tensor(pa), kinds)):
        if not all(map(_is_tensor(pa), kinds)):
            shown = ", ".join(sorted(map(str, kinds)))
            raise TypeError(MSG_MIXED.format(name=name, kinds=shown))
        blocks = _with_shapes(pa, [part for part in blocks if len(part)])
        kinds = {blocks[0].type}
    if len(kinds) == 1:
        kind = kinds.pop()
        chunks = [
            chunk if chunk.type == kind else pa.nulls(len(chunk), kind)
            for part in blocks
            for chunk in part.chunks
        ]
        return pa.chunked_array(chunks, type=kind)
    parts = [pa.table({name: part}) for part in blocks]
    try:
        table = pa.concat_tables(parts, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # The types have no common Arrow type: keep the Python values.
        return pa.chunked_array(
            [as_objects([value for part in blocks for value in part.to_pylist()])]
        )
    return table.column(name)


def _is_tensor(pa: ModuleType) -> Any:
    def check(kind: object) -> bool:
        return is_ray_tensor(kind) or isinstance(kind, pa.FixedShapeTensorType)

    return check


def _with_shapes(pa: ModuleType, parts: list[Any]) -> list[Any]:
    """Convert columns of tensors to one dtype and to rows that may differ in shape."""
    rows = [[np.asarray(row) for row in _rows(part)] for part in parts]
    dtype = np.result_type(*(row.dtype for part_rows in rows for row in part_rows))
    columns = []
    for part_rows in rows:
        table = torch.tensor([row.shape for row in part_rows], dtype=torch.int64)
        items = np.concatenate([row.reshape(-1) for row in part_rows]).astype(dtype)
        array = of_shapes(pa, items, table.reshape(len(part_rows), -1))
        columns.append(pa.chunked_array([array]))
    return columns


def _rows(part: pa.ChunkedArray) -> list[Any]:
    """Return the rows of a column of tensors, as arrays."""
    return [
        scalar.to_numpy() if hasattr(scalar, "to_numpy") else scalar.as_py()
        for chunk in part.chunks
        for scalar in chunk
    ]
