"""Reading and writing of Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.interop.tables import arrow, files
from tensordict.interop.tables.columns import (
    Asked,
    collection,
    flat_columns,
    rows_of,
    rules_of,
)
from tensordict.interop.tables.pandas import from_pandas, import_pandas
from tensordict.primitives.checks import holds_values

if TYPE_CHECKING:
    import os

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["read", "write"]

MSG_NEITHER = (
    "{} needs pyarrow, or pandas with fastparquet: pip install pyarrow (it is the extra "
    "tensordict-rs[parquet])"
)


def read(
    cls: type,
    asked: Asked,
    path: str | os.PathLike[str],
    columns: list[str] | None,
    options: dict[str, Any],
) -> Any:
    """See :meth:`TensorDict.from_parquet`."""
    rules = rules_of(asked)
    try:
        import pyarrow as pa
    except ImportError:
        try:
            pd = import_pandas(asked.method)
            frame = pd.read_parquet(path, columns=columns, **options)
        except ImportError as error:
            raise ImportError(MSG_NEITHER.format(asked.method)) from error
        return from_pandas(cls, asked, frame)
    table = _table(path, columns, options)
    reader = arrow.Reader(pa, rules, counts_time=True)
    entries = arrow.entries_of(asked, reader, table)
    return collection(cls, asked, entries, rules.masks, table.num_rows)


def _table(
    path: str | os.PathLike[str], columns: list[str] | None, options: dict[str, Any]
) -> Any:
    from pyarrow import parquet

    file = files.local_file(path)
    if file is not None and not options:
        with parquet.ParquetFile(file) as opened:
            names = opened.schema_arrow.names
            if len(set(names)) == len(names) and (
                columns is None or set(columns) <= set(names)
            ):
                # One array a column; `read_table` returns pieces, which would be copied.
                table = opened.read(columns)
                return table if columns is None else table.select(columns)
    return parquet.read_table(path, columns=columns, **options)


def write(
    td: CollectionProtocol,
    path: str | os.PathLike[str],
    separator: str | None,
    options: dict[str, Any],
) -> None:
    """See :meth:`TensorDict.to_parquet`."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        _write_with_pandas(td, path, separator, options)
        return
    columns = flat_columns("to_parquet", td, separator)
    rows = rows_of("to_parquet", td, columns)
    fields, arrays = [], []
    for name, value in columns.items():
        array = arrow.column_of(pa, name, value, rows)
        # The mark makes a reader return numbers as Python values, not as a tensor.
        metadata = arrow.VALUES if holds_values(value) else None
        fields.append(pa.field(name, array.type, metadata=metadata))
        arrays.append(array)
    table = pa.table(arrays, schema=pa.schema(fields))
    with files.replacing(path) as target:
        parquet.write_table(table, target, **options)


def _write_with_pandas(
    td: Any,
    path: str | os.PathLike[str],
    separator: str | None,
    options: dict[str, Any],
) -> None:
    try:
        frame = td.to_pandas(separator=separator)
        with files.replacing(path) as target:
            frame.to_parquet(target, **options)
    except ImportError as error:
        raise ImportError(MSG_NEITHER.format("to_parquet")) from error
