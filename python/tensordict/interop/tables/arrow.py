"""Conversion to and from tables of Apache Arrow.

A column is an entry, and the rows are the one batch dim:

==========================================  ==========================================
column                                      entry
==========================================  ==========================================
numbers, booleans                           tensor ``[N]``
``fixed_shape_tensor``, lists of one size   tensor ``[N, *F]``
lists of numbers                            jagged nested tensor ``[N, *]``
tensors of Ray Data                         tensor ``[N, *F]``, nested if shapes differ
struct                                      nested tensordict ``[N]``
anything else (text, dates, dictionaries)   non-tensor data ``[N]``
==========================================  ==========================================

Numbers share their memory if possible. :class:`Reader` also reads the columns of Parquet
files, of pandas and of polars, which use Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tensordict.containers.dense import TensorDict
from tensordict.interop.tables.columns import (
    Asked,
    as_entries,
    check_tensor,
    collection,
    nested_of,
    refuse_exclusive_keys,
    rules_of,
    values_of,
)
from tensordict.interop.tables.ray_tensors import (
    RayTensors,
    nested_rows,
    ray_tensors,
    shapes_of,
)
from tensordict.interop.tables.rules import Path, Rules, cells
from tensordict.interop.tables.times import array_of, times_of
from tensordict.primitives.checks import is_branch
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.growing.rows import Ragged

if TYPE_CHECKING:
    from types import ModuleType

    import pyarrow as pa

    from tensordict.containers.nontensor.stack import NonTensorStack

__all__ = [
    "DTYPES",
    "Reader",
    "array_of_values",
    "column_of",
    "entries_of",
    "from_arrow",
    "import_pyarrow",
    "stream",
    "to_arrow",
]

NestedKey = Any

MSG_ONE_BATCH_DIM = (
    "to_arrow needs a tensordict with one batch dimension, got the batch size {size}. Call "
    "td.reshape(-1) first to flatten it."
)
MSG_NO_PYARROW = "{} needs pyarrow, which is not installed: pip install pyarrow"
MSG_RAGGED_DIM = (
    "to_arrow needs the ragged dim of the jagged tensor {key!r} at position 1, got {dim}. "
    "Move it there first, for example with .transpose(1, {dim})."
)
MSG_DTYPE = (
    "{problem}: Arrow has no type for the entry {key!r} of dtype {dtype}. Cast the entry, "
    "or view it as a dtype that Arrow has."
)
MSG_VALUES = (
    "{problem}: the values of the entry {key!r} have no common Arrow type. Convert them to "
    "one type, such as text."
)
MSG_NULLS_INSIDE = (
    "from_arrow got a null inside a map, a list view or the values of a "
    "dictionary-encoded column, and returns it as None. Starting with TensorDict 0.18, the "
    "default will change to raising a ValueError for these nulls, as for nulls inside "
    "lists. Pass nulls='fill' to keep this result without the warning. nulls='mask' gives "
    "the same result: its masks only mark null rows."
)
MSG_TIME_RANGE = (
    "The column {} has a timestamp that int64 nanoseconds cannot hold ({}). Cast the column "
    "to another type, or drop it."
)
MSG_FIELDS = (
    "The values of the entry {!r} are dictionaries with different keys, but all rows of an "
    "Arrow struct have the same keys. Set missing keys to None, or write the values as "
    "text."
)
DTYPES = frozenset(
    {
        *(torch.bool, torch.float16, torch.float32, torch.float64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    }
)
"""The dtypes that Arrow can hold."""

VALUES = {b"tensordict": b"values"}
"""The metadata of a field of numbers that are read as Python values, not as a tensor."""


def import_pyarrow(asked: str) -> ModuleType:
    """Import pyarrow for the function ``asked``.

    Raises:
        ImportError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(MSG_NO_PYARROW.format(asked)) from error
    return pa


def from_arrow(
    table: Any,
    *,
    copy: bool | None = None,
    nulls: Literal["raise", "fill", "mask"] = "raise",
    mask_key: NestedKey | None = None,
    device: torch.device | str | int | None = None,
) -> TensorDict:
    """Convert an Arrow table of ``N`` rows to a tensordict of batch size ``[N]``.

    Args:
        table: a :class:`pyarrow.Table`, a record batch or reader, or any object that
            :func:`pyarrow.table` takes, such as an object with ``__arrow_c_stream__``.
        copy: whether to copy numbers. If false, tensors share the memory of the table
            where possible: then do not write to them, because Arrow data must not
            change. Default: share memory that Arrow declares mutable, copy the rest.
        nulls: how to convert nulls. ``"raise"`` raises an error. ``"fill"`` replaces
            them by NaN, 0, False, an empty list or None. ``"mask"`` fills them, too,
            and adds a boolean mask for each column with nulls, true for the values.
        mask_key: the key that the masks are nested under, by column. Default:
            ``"_mask"``.
        device: the device of the result.

    Returns:
        A :class:`TensorDict` of batch size ``[N]``.

    Raises:
        ValueError: the table contains nulls and ``nulls`` is ``"raise"``, ``mask_key``
            is the name of a column, or two columns have one name.
        ImportError: pyarrow is not installed.

    Examples:
        >>> import pyarrow as pa
        >>> table = pa.table({"a": [1, 2], "b": [[1.0, 2.0], [3.0]], "c": ["x", "y"]})
        >>> td = from_arrow(table)
        >>> td.batch_size, td["a"], list(td["c"])
        (torch.Size([2]), tensor([1, 2]), ['x', 'y'])
        >>> td["b"].is_nested
        True
        >>> from_arrow(pa.table({"a": [1, None]}), nulls="mask")["_mask", "a"]
        tensor([ True, False])
    """
    pa = import_pyarrow("from_arrow")
    asked = Asked("from_arrow", device=device, nulls=nulls, mask_key=mask_key)
    rules = rules_of(asked, "Arrow ")
    if nulls is None:
        msg = "nulls must be one of ('raise', 'fill', 'mask'), got None."
        raise ValueError(msg)
    table = table if isinstance(table, pa.Table) else pa.table(table)
    entries = entries_of(asked, Reader(pa, rules, copy), table)
    return collection(TensorDict, asked, entries, rules.masks, table.num_rows)


def entries_of(asked: Asked, reader: Reader, table: Any) -> dict[Path, Any]:
    """Return the entries of the columns of a table, by key."""
    paths = as_entries(asked, table.column_names)
    return {
        path: reader.column(path, table.field(index), table.column(index))
        for index, path in enumerate(paths)
    }


def to_arrow(td: CollectionProtocol) -> pa.Table:
    """Convert a tensordict of batch size ``[N]`` to an Arrow table of ``N`` rows.

    Returns:
        A :class:`pyarrow.Table`. It shares the memory of contiguous tensors.

    Raises:
        ValueError: ``td`` has not exactly one batch dim, the members of a lazy stack
            differ in keys, or the ragged dim of a nested tensor is not the first
            feature dim.
        TypeError: Arrow lacks the dtype of a tensor, or ``td`` is no tensordict.
        ImportError: pyarrow is not installed.

    Examples:
        >>> td = TensorDict(a=torch.arange(2), n={"b": torch.zeros(2, 3)}, batch_size=[2])
        >>> to_arrow(td).column_names
        ['a', 'n']
        >>> (from_arrow(to_arrow(td)) == td).all()
        True
    """
    pa = import_pyarrow("to_arrow")
    if not isinstance(td, CollectionProtocol):
        msg = f"to_arrow expects a tensor collection, got a {type(td).__name__}."
        raise TypeError(msg)
    if td.batch_dims != 1:
        raise ValueError(MSG_ONE_BATCH_DIM.format(size=td.batch_size))
    columns = _columns(pa, td, td.batch_size[0])
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def stream(td: CollectionProtocol, requested_schema: object = None) -> Any:
    """Return the capsule of an Arrow C stream over the rows of a tensordict."""
    return to_arrow(td).__arrow_c_stream__(requested_schema)


# Reading ------------------------------------------------------------------------------


class _Writable:
    """An array interface that presents a read-only NumPy array as writable.

    Torch has no read-only tensors, and warns about read-only arrays.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = array.__array_interface__ | {
            "data": (address, False)
        }


def _as_one_array(pa: ModuleType, column: Any) -> Any:
    """Return a column as one array; the chunks of a chunked column are copied."""
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def _validity(array: Any) -> Any:
    """Return a boolean array ``[N]``: false for nulls."""
    return array.is_valid().to_numpy(zero_copy_only=False)


class Reader:
    """A reader that converts columns to entries.

    Args:
        pa: the module ``pyarrow``.
        rules: the rules for nulls and dtypes.
        copy: see :func:`from_arrow`.
        counts_time: whether timestamps without a time zone become int64 nanoseconds, as
            in pandas and Parquet. If false, they become Python values.
    """

    def __init__(
        self,
        pa: ModuleType,
        rules: Rules,
        copy: bool | None = None,
        counts_time: bool = False,
    ) -> None:
        self.pa = pa
        self.rules = rules
        self.copy = copy
        self.counts_time = counts_time

    def column(
        self, path: Path, field: Any, column: object
    ) -> NonTensorStack | torch.Tensor | TensorDict:
        """Return the entry of a column of a table."""
        array = _as_one_array(self.pa, column)
        if (field.metadata or {}).items() >= VALUES.items():
            return self._values(path, array)
        return self.entry(path, array, field)

    def entry(self, path: Path, array: Any, field: object = None) -> Any:
        """Return the entry of an array, and collect the mask of its nulls."""
        types = self.pa.types
        kind = array.type
        tensors = ray_tensors(self.pa, array, field)
        if tensors is not None:
            return self._tensors(path, array, tensors)
        if types.is_struct(kind):
            if array.null_count and self.rules.nulls is None:
                self.rules.refuse(path, array.null_count)
            # `flatten` puts the nulls of the struct into the fields.
            names = [field.name for field in kind]
            children = zip(names, array.flatten(), strict=True)
            fields = {name: self.entry((*path, name), part) for name, part in children}
            return nested_of(fields, len(array))
        if self._is_number(kind):
            if types.is_boolean(kind) and array.null_count and not self.rules.fills:
                return self._values(path, array)
            return self.rules.cast(path, self._numbers(path, array, notes=True))
        if self.counts_time and types.is_timestamp(kind) and kind.tz is None:
            return self._nanoseconds(path, array)
        is_list = types.is_list(kind) or types.is_large_list(kind)
        if self._is_block(kind):
            self._note_rows(path, array)
            return self.rules.cast(path, self._block(path, array))
        if is_list and self._is_block(kind.value_type):
            self._note_rows(path, array)
            return self._jagged(path, array)
        return self._values(path, array)

    def _note_rows(self, path: Path, array: Any) -> None:
        """Collect the mask of null rows, or raise an error for them."""
        if array.null_count:
            if self.rules.nulls is None:
                self.rules.refuse(path, array.null_count)
            self._note(path, array)

    def _note(self, path: Path, array: Any) -> None:
        self.rules.note(
            path, array.null_count, lambda: torch.from_numpy(_validity(array))
        )

    def _values(self, path: Path, array: Any) -> NonTensorStack:
        """Return a Python value for each row; dictionary values are converted once."""
        if array.null_count:
            self._note(path, array)
        if self.rules.nulls == "raise":
            self._refuse_nulls_inside(path, array)
        if self.pa.types.is_dictionary(array.type):
            values = [*array.dictionary.to_pylist(), None]
            positions = array.indices.fill_null(len(values) - 1).to_pylist()
            return cells([values[position] for position in positions])
        if array.type == self.pa.time64("ns"):
            return cells(times_of(array, array.cast(self.pa.int64())))
        return cells(array.to_pylist())

    def _refuse_nulls_inside(self, path: Path, array: object) -> None:
        """Raise an error for nulls inside of values, which would become None."""
        in_lists, elsewhere = self._nulls_inside(array)
        if in_lists or (elsewhere and not self.rules.kind):
            self.rules.refuse(path, in_lists + elsewhere)
        if elsewhere:
            warn_caller(MSG_NULLS_INSIDE)

    def _nulls_inside(self, array: Any) -> tuple[int, int]:
        """Count the nulls inside of lists and structs, and inside of other types."""
        types, kind = self.pa.types, array.type
        if types.is_dictionary(kind):
            return 0, array.dictionary_decode().null_count - array.null_count
        if types.is_struct(kind):
            parts, is_list = array.flatten(), True
        elif types.is_map(kind):
            start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
            parts, is_list = [array.items.slice(start, end - start)], False
        elif types.is_list_view(kind):
            parts, is_list = [array.flatten()], False
        elif (
            types.is_list(kind)
            or types.is_large_list(kind)
            or (types.is_fixed_size_list(kind))
        ):
            parts, is_list = [array.flatten()], True
        else:
            return 0, 0
        counts = [(part.null_count, *self._nulls_inside(part)) for part in parts]
        in_lists = sum(direct + nested for direct, nested, _ in counts)
        elsewhere = sum(nested for _, _, nested in counts)
        return (in_lists, elsewhere) if is_list else (0, in_lists + elsewhere)

    def _nanoseconds(self, path: Path, array: Any) -> torch.Tensor:
        """Return timestamps as int64 nanoseconds ``[N]``; filled nulls are 0."""
        self._note_rows(path, array)
        try:
            array = array.cast(self.pa.timestamp("ns")).cast(self.pa.int64())
        except self.pa.ArrowInvalid as error:
            raise ValueError(MSG_TIME_RANGE.format(".".join(path), error)) from None
        return self._tensor(array.fill_null(0) if array.null_count else array)

    def _is_number(self, kind: object) -> bool:
        types = self.pa.types
        return (
            types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        )

    def _is_block(self, kind: Any) -> bool:
        """Return whether every value of a type is a tensor of one shape."""
        if isinstance(kind, self.pa.FixedShapeTensorType):
            return self._is_number(kind.value_type)
        if self.pa.types.is_fixed_size_list(kind):
            return self._is_block(kind.value_type)
        return self._is_number(kind)

    def _numbers(self, path: Path, array: Any, *, notes: bool = False) -> torch.Tensor:
        """Return numbers ``[N]``; nulls become 0, False or NaN.

        Args:
            path: the key of the entry.
            array: the array.
            notes: whether nulls are null rows, which are collected in the mask.
        """
        if not array.null_count:
            return self._tensor(array)
        if notes or self.rules.nulls == "raise":
            self._note(path, array)
        types = self.pa.types
        if types.is_boolean(array.type) and self.rules.nulls is None:
            self.rules.refuse(path, array.null_count)
        zero = False if types.is_boolean(array.type) else 0
        filled = array.fill_null(zero).to_numpy(zero_copy_only=False)
        values = filled if filled.flags.writeable else filled.copy()
        return Rules.numbers(self._uncast, path, values, _validity(array))

    @property
    def _uncast(self) -> Rules:
        """The same rules without a dtype: the cast follows for the whole column."""
        return Rules(self.rules.nulls, None, self.rules.kind)

    def _tensor(self, array: Any) -> torch.Tensor:
        """Return an array without nulls as a tensor ``[N]``."""
        # Booleans are bits in Arrow.
        is_bits = self.pa.types.is_boolean(array.type)
        values = array.to_numpy(zero_copy_only=not is_bits)
        if not is_bits:
            memory = array.buffers()[1]
            is_constant = memory is not None and not memory.is_mutable
            if self.copy or (self.copy is None and is_constant):
                values = values.copy()
        elif self.copy:
            values = values.copy()
        if not values.flags.writeable:
            values = np.asarray(_Writable(values))
        return torch.from_numpy(values)

    def _block(self, path: Path, array: Any) -> torch.Tensor:
        """Return a tensor ``[N, *F]``; null rows are filled like null numbers."""
        kind = array.type
        if isinstance(kind, self.pa.FixedShapeTensorType):
            rows = self._block(path, array.storage)
            order = [1 + dim for dim in kind.permutation or range(len(kind.shape))]
            return rows.reshape(len(array), *kind.shape).permute(0, *order)
        if not self.pa.types.is_fixed_size_list(kind):
            return self._numbers(path, array)
        size = kind.list_size
        inner = array.values.slice(array.offset * size, len(array) * size)
        if not array.null_count:
            values = self._block(path, inner)
            return values.reshape(len(array), size, *values.shape[1:])
        # The values of a null list are undefined, and may be null.
        rows = Reader(self.pa, Rules("fill"), True)._block(path, inner)
        rows = rows.reshape(len(array), size, *rows.shape[1:])
        missing = torch.from_numpy(~_validity(array))
        rows[missing] = float("nan") if rows.is_floating_point() else 0
        return rows

    def _tensors(
        self, path: Path, array: Any, found: RayTensors
    ) -> NonTensorStack | torch.Tensor:
        """Return a column of Ray Data as a tensor ``[N, *F]`` or a nested tensor."""
        storage, shape = found
        table = None
        if shape is None:
            data, shapes = storage.flatten()
            table = shapes_of(shapes)
            if table is None:
                return self._values(path, array)
        self._note_rows(path, storage)
        items = (storage if shape is not None else data).flatten()
        values = self.rules.cast(path, self._numbers(path, items))
        if table is not None:
            return nested_rows(path, Ragged(values, table))
        if not storage.null_count:
            return values.reshape(len(storage), *(shape or ()))
        rows = values.new_zeros(len(storage), *(shape or ()))
        valid = torch.from_numpy(_validity(storage))
        if rows.is_floating_point():
            rows[~valid] = float("nan")
        rows[valid] = values.reshape(-1, *(shape or ()))
        return rows

    def _jagged(self, path: Path, array: Any) -> torch.Tensor:
        """Return a nested tensor ``[N, *, *F]``; null lists become empty rows."""
        lengths = self._tensor(array.value_lengths().fill_null(0))
        offsets = torch.zeros(len(array) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        # `flatten` drops the values of null lists and respects the offset of a slice.
        values = self.rules.cast(path, self._block(path, array.flatten()))
        return torch.nested.nested_tensor_from_jagged(values, offsets)


# Writing ------------------------------------------------------------------------------


def _columns(pa: object, td: CollectionProtocol, rows: int) -> dict[str, Any]:
    refuse_exclusive_keys("to_arrow", td)
    return {key: column_of(pa, key, value, rows) for key, value in td.items()}


def column_of(
    pa: Any, key: str, value: object, rows: int, *, plain_lists: bool = False
) -> Any:
    """Convert an entry to an Arrow array.

    Args:
        pa: the module ``pyarrow``.
        key: the key of the entry.
        value: the entry.
        rows: the number of rows.
        plain_lists: whether feature dims become nested lists of one size. If false,
            they become Arrow tensors, which fewer libraries can read.

    Raises:
        TypeError: Arrow has no type for the entry.
    """
    if is_branch(value):
        columns = _columns(pa, value, rows)
        if not columns:
            return pa.array([{}] * rows, type=pa.struct([]))
        return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    if not isinstance(value, torch.Tensor):
        return array_of_values(pa, key, values_of(value, rows))
    check_tensor(key, value, rows)
    try:
        if value.is_nested:
            return _lists(pa, key, value)
        return _plain_blocks(pa, value) if plain_lists else _blocks(pa, value)
    except (pa.ArrowNotImplementedError, TypeError) as error:
        msg = MSG_DTYPE.format(problem=error, key=key, dtype=value.dtype)
        raise type(error)(msg) from None


def array_of_values(pa: ModuleType, key: str, values: list[Any]) -> Any:
    """Convert the Python values of an entry to an Arrow array.

    Raises:
        ValueError: the values are dictionaries with different keys.
        TypeError: the values have no common Arrow type.
    """
    try:
        array = array_of(pa, values)
    except (pa.ArrowException, OverflowError) as error:
        problem = str(error).partition("\n")[0].rstrip(".")
        raise type(error)(MSG_VALUES.format(problem=problem, key=key)) from None
    if pa.types.is_struct(array.type):
        keys = {field.name for field in array.type}
        if any(value is not None and value.keys() != keys for value in values):
            raise ValueError(MSG_FIELDS.format(key))
    return array


def _plain_blocks(pa: ModuleType, value: torch.Tensor) -> Any:
    """Convert a tensor ``[N, *F]`` to an array of nested lists of one size."""
    if not value.numel():
        kind = _blocks(pa, value.reshape(-1)).type
        for size in reversed(value.shape[1:]):
            kind = pa.list_(kind, size)
        return pa.array(value.detach().cpu().numpy().tolist(), type=kind)
    array = _blocks(pa, value.reshape(-1))
    for size in reversed(value.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _blocks(pa: ModuleType, value: torch.Tensor) -> Any:
    """Convert a tensor ``[N, *F]`` to an array of numbers or of Arrow tensors."""
    rows = value.detach().cpu().resolve_conj().resolve_neg().contiguous().numpy()
    if rows.ndim == 1:
        return pa.array(rows)
    if rows.size:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(rows)
    kind = pa.fixed_shape_tensor(pa.array(rows.reshape(-1)).type, rows.shape[1:])
    empty = pa.array([[]] * len(rows), type=kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, empty)


def _lists(pa: ModuleType, key: str, value: Any) -> Any:
    if value.layout is not torch.jagged:
        msg = (
            "to_arrow converts the nested tensors of layout torch.jagged only, got "
            f"{value.layout}."
        )
        raise ValueError(msg)
    if value._ragged_idx != 1:
        raise ValueError(MSG_RAGGED_DIM.format(key=key, dim=value._ragged_idx))
    values, offsets = value.values(), value.offsets()
    if value.lengths() is not None:
        # There are gaps between the rows.
        rows = [*value.unbind()]
        offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
        values = torch.cat(rows)
    return pa.LargeListArray.from_arrays(
        pa.array(offsets.detach().cpu().to(torch.int64).numpy()), _blocks(pa, values)
    )


from_arrow.__module__ = to_arrow.__module__ = "tensordict._arrow"
