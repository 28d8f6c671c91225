"""The blocks of a Ray Data dataset: rows of a tensordict as an Arrow table.

Tensors have the tensor types of Ray Data, so that batches of NumPy or torch have arrays
of the right shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.interop.tables.arrow import (
    DTYPES,
    VALUES,
    array_of_values,
    import_pyarrow,
)
from tensordict.interop.tables.columns import MSG_ROWS, MSG_TWICE, check_tensor
from tensordict.primitives.special import is_shared
from tensordict.storage.growing.rows import Level, Ragged, Values, level_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "as_objects",
    "column_name",
    "column_of",
    "of_shapes",
    "table_of",
    "type_of_values",
    "widened",
]

METHOD = "to_ray_dataset"

WIDER = frozenset(
    {
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    }
)
"""Dtypes that Arrow lacks and that float32 represents exactly."""

MSG_DTYPE = (
    "to_ray_dataset got the dtype {dtype} at {name!r}, which Arrow and NumPy lack. Convert "
    "the entry first, for example with torch.view_as_real, or exclude it."
)


def table_of(td: CollectionProtocol, separator: str, types: Mapping[str, Any]) -> Any:
    """Make an Arrow table of rows, with a column for each leaf.

    Args:
        td: a tensordict ``[N, ...]``.
        separator: the text between the parts of nested keys in column names.
        types: the types of columns that have the same type in every block.

    Raises:
        ValueError: two entries have one name, or an entry has not one value for each
            row.
        TypeError: Arrow has no type for an entry.
    """
    pa = import_pyarrow(METHOD)
    rows = td.batch_size[0]
    _refuse_shared(td, separator, rows)
    fields, arrays = [], []
    names: set[str] = set()
    for name, value in _walk(level_of_rows(td), separator, ()):
        if name in names:
            raise ValueError(MSG_TWICE.format(METHOD, [name]))
        names.add(name)
        array = column_of(pa, name, value, rows, types.get(name))
        # The mark makes a reader return numbers as Python values, not as a tensor.
        metadata = VALUES if isinstance(value, Values) else None
        fields.append(pa.field(name, array.type, metadata=metadata))
        arrays.append(array)
    return pa.table(arrays, schema=pa.schema(fields))


def column_name(path: tuple[str, ...], separator: str) -> str:
    """Return the column name of an entry."""
    return separator.join(path)


def _walk(
    level: Level, separator: str, path: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    for key, value in level.entries.items():
        if isinstance(value, Level):
            yield from _walk(value, separator, (*path, key))
        else:
            yield column_name((*path, key), separator), value


def _refuse_shared(td: CollectionProtocol, separator: str, rows: int) -> None:
    """Raise an error for an entry that all rows share (``UnbatchedTensor``)."""
    if not td._is_dense:
        return
    for path, value in td.items(True, True):
        if isinstance(value, torch.Tensor) and is_shared(value):
            path = (path,) if isinstance(path, str) else path
            name = column_name(path, separator)
            raise ValueError(MSG_ROWS.format(name, value.shape, rows))


def column_of(
    pa: ModuleType, name: str, value: Any, rows: int, kind: Any = None
) -> Any:
    """Convert an entry to the array of a column.

    Args:
        pa: the module ``pyarrow``.
        name: the name of the column, for errors.
        value: a tensor ``[N, *F]``, ragged rows, or Python values.
        rows: the number of rows.
        kind: the required type. Default: derived from the value.
    """
    if isinstance(value, Values):
        return _of_values(pa, name, value.items, kind)
    if isinstance(value, Ragged):
        return of_shapes(pa, _array(name, value.values), value.table)
    check_tensor(name, value, rows)
    array = _array(name, value)
    if kind is not None and _is_variable(kind):
        sizes = torch.tensor(value.shape[1:], dtype=torch.int64)
        return of_shapes(pa, array.reshape(-1), sizes.expand(len(value), -1))
    if array.ndim == 1:
        return pa.array(array)
    from ray.data.extensions import ArrowTensorArray

    return ArrowTensorArray.from_numpy(np.ascontiguousarray(array))


def widened(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the column for a leaf of ``dtype``."""
    return torch.float32 if dtype in WIDER else dtype


def _array(name: str, value: torch.Tensor) -> Any:
    """Convert a tensor to an array that shares its memory if possible.

    Raises:
        TypeError: Arrow lacks the dtype.
    """
    value = value.detach().cpu()
    if value.dtype in WIDER:
        value = value.float()
    if value.dtype not in DTYPES:
        raise TypeError(MSG_DTYPE.format(dtype=value.dtype, name=name))
    return value.resolve_conj().resolve_neg().numpy()


def _is_variable(kind: object) -> bool:
    from ray.data.extensions import ArrowVariableShapedTensorType

    return isinstance(kind, ArrowVariableShapedTensorType)


def of_shapes(pa: ModuleType, items: np.ndarray[Any, Any], table: torch.Tensor) -> Any:
    """Make the array of rows that may differ in shape.

    Args:
        pa: the module ``pyarrow``.
        items: the elements of all rows, one row after the other.
        table: the shape of each row, ``[N, dims]``.
    """
    from ray.data.extensions import ArrowVariableShapedTensorType

    count, num_dims = table.shape
    ends = torch.zeros(count + 1, dtype=torch.int64)
    torch.cumsum(table.prod(1), 0, out=ends[1:])
    offsets = np.arange(count + 1, dtype=np.int32) * num_dims
    values = pa.array(items)
    data = pa.LargeListArray.from_arrays(pa.array(ends.numpy()), values)
    sizes = pa.array(table.contiguous().numpy().reshape(-1))
    shapes = pa.ListArray.from_arrays(pa.array(offsets), sizes)
    kind = ArrowVariableShapedTensorType(values.type, num_dims)
    storage = pa.StructArray.from_arrays([data, shapes], names=["data", "shape"])
    return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))


def _of_values(pa: ModuleType, name: str, values: list[Any], kind: object) -> Any:
    """Convert Python values to an array; values without an Arrow type are pickled."""
    from ray.data.extensions import ArrowPythonObjectType

    if not isinstance(kind, ArrowPythonObjectType):
        try:
            if kind is not None:
                return pa.array(values, kind)
            return array_of_values(pa, name, values)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            pass
    return as_objects(values)


def as_objects(values: list[Any]) -> Any:
    """Make an array of pickled values."""
    from ray.data.extensions import ArrowPythonObjectArray

    return ArrowPythonObjectArray.from_objects(values)


def type_of_values(pa: ModuleType, name: str, values: list[Any]) -> tuple[Any, int]:
    """Return the type of a column of Python values, and its size in bytes."""
    array = _of_values(pa, name, values, None)
    return array.type, array.nbytes
