"""Tables of Apache Arrow as collections of tensors, and the other way round.

A column is an entry, a row an element of the one batch dim:

==========================================  ==========================================
column                                      entry
==========================================  ==========================================
numbers, booleans                           tensor ``[N]``
``fixed_shape_tensor``, lists of one size   tensor ``[N, *F]``
lists of numbers                            jagged nested tensor ``[N, *]``
tensors of Ray Data                         tensor ``[N, *F]``, nested if shapes differ
struct                                      nested collection ``[N]``
anything else (text, dates, dictionaries)   a stack of Python values ``[N]``
==========================================  ==========================================

Numbers are not copied where both sides can have the same memory. :class:`Reader` reads
the columns of every kind of table that has the format: of files of Parquet, of pandas
and of polars.
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
    "{problem}: Arrow has no type for the entry {key!r} of dtype {dtype}. Cast it, or view "
    "it as a dtype that there is."
)
MSG_VALUES = (
    "{problem}: the values of the entry {key!r} have no type of Arrow in common. Give them "
    "one, such as text."
)
MSG_NULLS_INSIDE = (
    "from_arrow got a null inside a map, a list view or the values of a "
    "dictionary-encoded column, and returns it as None. Starting with TensorDict 0.18, the "
    "default will change to raising a ValueError for these nulls, as for nulls inside "
    "lists. Pass nulls='fill' to keep this result without the warning. nulls='mask' gives "
    "the same result: its masks only mark null rows."
)
MSG_TIME_RANGE = (
    "The column {} has a timestamp that int64 nanoseconds do not hold ({}). Cast the "
    "column to another type, or leave it out."
)
MSG_FIELDS = (
    "The values of the entry {!r} are dictionaries with different keys, and Arrow gives "
    "all of them the same. Set None for keys that are not there, or write them as text."
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
"""Marks a field whose values are those of Python, though its type is one of numbers."""


def import_pyarrow(asked: str) -> Any:
    """Import pyarrow for the function ``asked``.

    Raises:
        ImportError: it is not installed.
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
    """Make a collection of a table.

    Args:
        table: a :class:`pyarrow.Table`, a record batch or reader, or what
            :func:`pyarrow.table` takes, such as everything that has an
            ``__arrow_c_stream__``. ``N`` rows.
        copy: true to copy all numbers, false to share the memory of the table wherever
            tensors can: Arrow expects that nobody writes to it then. Default: it is
            shared where Arrow says that it may be written to, and copied elsewhere.
        nulls: what becomes of nulls. ``"raise"``: an error; ``"fill"``: NaN, 0, False,
            an empty list or None in their place; ``"mask"``: the same, and a mask for
            each column that has some, true where there is a value.
        mask_key: where the masks go, under the keys of their columns. Default:
            ``"_mask"``.
        device: the device of the result.

    Returns:
        A :class:`TensorDict` of batch size ``[N]``.

    Raises:
        ValueError: there are nulls; the key of the masks is a column; two columns have
            one name.
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
    """The entries of the columns of a table, by their keys."""
    paths = as_entries(asked, table.column_names)
    return {
        path: reader.column(path, table.field(at), table.column(at))
        for at, path in enumerate(paths)
    }


def to_arrow(td: CollectionProtocol) -> pa.Table:
    """Make a table of a collection with one batch dim, ``[N]``: a row for each element.

    Returns:
        A :class:`pyarrow.Table`, which shares the memory of tensors that are
        contiguous.

    Raises:
        ValueError: there is not one batch dim; a lazy stack whose members differ in
            keys; a ragged dim that is not the first after the batch dim.
        TypeError: a tensor has a dtype that Arrow lacks; ``td`` is no collection.
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
    """The capsule of a C stream of Arrow over the rows of a collection."""
    return to_arrow(td).__arrow_c_stream__(requested_schema)


# Reading ------------------------------------------------------------------------------


class _Writable:
    """The memory of an array that NumPy takes for constant, and torch for writable.

    Torch has no constant tensors, and warns where it gets a constant array.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = array.__array_interface__ | {
            "data": (address, False)
        }


def _as_one_array(pa: ModuleType, column: Any) -> Any:
    """A column that may be in pieces as one array, which is copied if it is."""
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def _validity(array: Any) -> Any:
    """``[N]``: False where a value is null."""
    return array.is_valid().to_numpy(zero_copy_only=False)


class Reader:
    """Makes entries of columns.

    Args:
        pa: the module ``pyarrow``.
        rules: what becomes of nulls.
        copy: see :func:`from_arrow`.
        counts_time: whether timestamps without a time zone are int64 nanoseconds, as
            those of pandas and of Parquet are. Otherwise they are Python values.
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

    def column(self, path: Path, field: Any, column: object) -> Any:
        """The entry of a column of a table."""
        array = _as_one_array(self.pa, column)
        if (field.metadata or {}).items() >= VALUES.items():
            return self._values(path, array)
        return self.entry(path, array, field)

    def entry(self, path: Path, array: Any, field: object = None) -> Any:
        """The entry of an array, with its mask where there are nulls."""
        types = self.pa.types
        kind = array.type
        tensors = ray_tensors(self.pa, array, field)
        if tensors is not None:
            return self._tensors(path, array, tensors)
        if types.is_struct(kind):
            if array.null_count and self.rules.nulls is None:
                self.rules.refuse(path, array.null_count)
            # The fields get the nulls of the rows that hold them.
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
        """Take account of rows that are null, for which there is no value to set."""
        if array.null_count:
            if self.rules.nulls is None:
                self.rules.refuse(path, array.null_count)
            self._note(path, array)

    def _note(self, path: Path, array: Any) -> None:
        self.rules.note(
            path, array.null_count, lambda: torch.from_numpy(_validity(array))
        )

    def _values(self, path: Path, array: Any) -> Any:
        """A Python value for each row; of a dictionary, each value is made once."""
        if array.null_count:
            self._note(path, array)
        if self.rules.nulls == "raise":
            self._refuse_nulls_inside(path, array)
        if self.pa.types.is_dictionary(array.type):
            values = [*array.dictionary.to_pylist(), None]
            places = array.indices.fill_null(len(values) - 1).to_pylist()
            return cells([values[place] for place in places])
        if array.type == self.pa.time64("ns"):
            return cells(times_of(array, array.cast(self.pa.int64())))
        return cells(array.to_pylist())

    def _refuse_nulls_inside(self, path: Path, array: object) -> None:
        """Refuse nulls inside values, which come back as None otherwise."""
        in_lists, elsewhere = self._nulls_inside(array)
        if in_lists or (elsewhere and not self.rules.kind):
            self.rules.refuse(path, in_lists + elsewhere)
        if elsewhere:
            warn_caller(MSG_NULLS_INSIDE)

    def _nulls_inside(self, array: Any) -> tuple[int, int]:
        """Count the nulls inside lists and structs, and inside anything else."""
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
        here = sum(own + deep for own, deep, _ in counts)
        other = sum(deep for _, _, deep in counts)
        return (here, other) if is_list else (0, here + other)

    def _nanoseconds(self, path: Path, array: Any) -> torch.Tensor:
        """``[N]`` int64 of timestamps; nulls are 0 where the caller told so."""
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
        """Tell whether every value of a type is a tensor of one shape."""
        if isinstance(kind, self.pa.FixedShapeTensorType):
            return self._is_number(kind.value_type)
        if self.pa.types.is_fixed_size_list(kind):
            return self._is_block(kind.value_type)
        return self._is_number(kind)

    def _numbers(self, path: Path, array: Any, *, notes: bool = False) -> torch.Tensor:
        """``[N]``; nulls are 0, False or NaN, and noted if they are rows of the table."""
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
        """The same rules without a dtype, which whole columns are cast to."""
        return Rules(self.rules.nulls, None, self.rules.kind)

    def _tensor(self, array: Any) -> torch.Tensor:
        """``[N]`` of an array without nulls."""
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
        """``[N, *F]``; null rows are filled as null numbers are."""
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
        # The values under a null list are not specified, nor whether they are null.
        rows = Reader(self.pa, Rules("fill"), True)._block(path, inner)
        rows = rows.reshape(len(array), size, *rows.shape[1:])
        missing = torch.from_numpy(~_validity(array))
        rows[missing] = float("nan") if rows.is_floating_point() else 0
        return rows

    def _tensors(self, path: Path, array: Any, found: RayTensors) -> Any:
        """``[N, *F]`` of a column of Ray Data, or a nested tensor ``[N, *]``."""
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
        """``[N, *, *F]``; null lists are empty."""
        lengths = self._tensor(array.value_lengths().fill_null(0))
        offsets = torch.zeros(len(array) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        # Without what null lists point to, and from the offset of a slice on.
        values = self.rules.cast(path, self._block(path, array.flatten()))
        return torch.nested.nested_tensor_from_jagged(values, offsets)


# Writing ------------------------------------------------------------------------------


def _columns(pa: object, td: CollectionProtocol, rows: int) -> dict[str, Any]:
    refuse_exclusive_keys("to_arrow", td)
    return {key: column_of(pa, key, value, rows) for key, value in td.items()}


def column_of(
    pa: Any, key: str, value: object, rows: int, *, plain_lists: bool = False
) -> Any:
    """The array of an entry.

    Args:
        pa: the module ``pyarrow``.
        key: the key of the entry.
        value: the entry.
        rows: how many there are.
        plain_lists: whether the dims of features are nested lists of one size, and not
            tensors, which others know less often.

    Raises:
        TypeError: Arrow has no type for it.
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
    """Make the array of the Python values of an entry.

    Raises:
        ValueError: they are dictionaries with different keys.
        TypeError: Arrow has no type for all of them.
    """
    try:
        made = array_of(pa, values)
    except (pa.ArrowException, OverflowError) as error:
        problem = str(error).partition("\n")[0].rstrip(".")
        raise type(error)(MSG_VALUES.format(problem=problem, key=key)) from None
    if pa.types.is_struct(made.type):
        keys = {field.name for field in made.type}
        if any(value is not None and value.keys() != keys for value in values):
            raise ValueError(MSG_FIELDS.format(key))
    return made


def _plain_blocks(pa: ModuleType, value: torch.Tensor) -> Any:
    """Tensors ``[N, *F]`` as one array of nested lists of one size."""
    if not value.numel():
        kind = _blocks(pa, value.reshape(-1)).type
        for size in reversed(value.shape[1:]):
            kind = pa.list_(kind, size)
        return pa.array(value.detach().cpu().numpy().tolist(), type=kind)
    made = _blocks(pa, value.reshape(-1))
    for size in reversed(value.shape[1:]):
        made = pa.FixedSizeListArray.from_arrays(made, size)
    return made


def _blocks(pa: ModuleType, value: torch.Tensor) -> Any:
    """Tensors ``[N, *F]`` as one array."""
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
        # There are holes between the rows.
        rows = [*value.unbind()]
        offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
        values = torch.cat(rows)
    return pa.LargeListArray.from_arrays(
        pa.array(offsets.detach().cpu().to(torch.int64).numpy()), _blocks(pa, values)
    )


from_arrow.__module__ = to_arrow.__module__ = "tensordict._arrow"
