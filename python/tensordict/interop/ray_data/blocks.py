"""The blocks of a dataset of Ray Data: rows of a collection as a table of Arrow.

Columns are those that Ray Data makes itself: tensors are in its own types, by which a batch
of NumPy or torch has arrays of the right shape.
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
    "column_of",
    "named",
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
"""The dtypes that Arrow lacks, and all of whose values float32 has."""

MSG_DTYPE = (
    "to_ray_dataset got the dtype {dtype} at {name!r}, which Arrow and NumPy lack. Convert "
    "the entry first, for example with torch.view_as_real, or leave it out."
)


def table_of(td: CollectionProtocol, separator: str, types: Mapping[str, Any]) -> Any:
    """Make a table of rows, a column for each leaf.

    Args:
        td: a collection ``[N, ...]``.
        separator: joins nested keys to names of columns.
        types: those of columns that have the same type in every block.

    Raises:
        ValueError: two entries have one name; an entry has no value for each row.
        TypeError: Arrow has no type for an entry.
    """
    pa = import_pyarrow(METHOD)
    rows = td.batch_size[0]
    _refuse_shared(td, separator, rows)
    fields, arrays = [], []
    known: set[str] = set()
    for name, value in _walk(level_of_rows(td), separator, ()):
        if name in known:
            raise ValueError(MSG_TWICE.format(METHOD, [name]))
        known.add(name)
        array = column_of(pa, name, value, rows, types.get(name))
        # Numbers come back as tensors, unless they are said to be values.
        marks = VALUES if isinstance(value, Values) else None
        fields.append(pa.field(name, array.type, metadata=marks))
        arrays.append(array)
    return pa.table(arrays, schema=pa.schema(fields))


def named(path: tuple[str, ...], separator: str) -> str:
    """Return the name of the column of an entry."""
    return separator.join(path)


def _walk(
    level: Level, separator: str, path: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    for key, value in level.entries.items():
        if isinstance(value, Level):
            yield from _walk(value, separator, (*path, key))
        else:
            yield named((*path, key), separator), value


def _refuse_shared(td: CollectionProtocol, separator: str, rows: int) -> None:
    """Refuse an entry that is one for all rows, such as an ``UnbatchedTensor``."""
    if not td._is_dense:
        return
    for path, value in td.items(True, True):
        if isinstance(value, torch.Tensor) and is_shared(value):
            path = (path,) if isinstance(path, str) else path
            name = named(path, separator)
            raise ValueError(MSG_ROWS.format(name, value.shape, rows))


def column_of(
    pa: ModuleType, name: str, value: Any, rows: int, kind: Any = None
) -> Any:
    """Make the array of a column.

    Args:
        pa: the module ``pyarrow``.
        name: its name, for messages.
        value: a tensor ``[N, *F]``, ragged rows, or values.
        rows: their number.
        kind: the type that it has to have. Default: it follows from the value.
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
    """Return the dtype that a column has."""
    return torch.float32 if dtype in WIDER else dtype


def _array(name: str, value: torch.Tensor) -> Any:
    """Return a tensor as an array, in the memory that it has where that is possible.

    Raises:
        TypeError: Arrow lacks its dtype.
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
        items: those of all rows, one after the other.
        table: the shape of each row: ``[N, dims]``.
    """
    from ray.data.extensions import ArrowVariableShapedTensorType

    count, num_dims = table.shape
    ends = torch.zeros(count + 1, dtype=torch.int64)
    torch.cumsum(table.prod(1), 0, out=ends[1:])
    places = np.arange(count + 1, dtype=np.int32) * num_dims
    values = pa.array(items)
    data = pa.LargeListArray.from_arrays(pa.array(ends.numpy()), values)
    sizes = pa.array(table.contiguous().numpy().reshape(-1))
    shapes = pa.ListArray.from_arrays(pa.array(places), sizes)
    kind = ArrowVariableShapedTensorType(values.type, num_dims)
    storage = pa.StructArray.from_arrays([data, shapes], names=["data", "shape"])
    return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))


def _of_values(pa: ModuleType, name: str, values: list[Any], kind: object) -> Any:
    """Make the array of Python values: those for which Arrow has no type are pickled."""
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
    """Make the array of values that are pickled."""
    from ray.data.extensions import ArrowPythonObjectArray

    return ArrowPythonObjectArray.from_objects(values)


def type_of_values(pa: ModuleType, name: str, values: list[Any]) -> tuple[Any, int]:
    """Return the type of a column of values, and the bytes that they take."""
    made = _of_values(pa, name, values, None)
    return made.type, made.nbytes
