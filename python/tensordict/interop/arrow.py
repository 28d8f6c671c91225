"""Tables of Apache Arrow as collections of tensors, and the other way round.

A column is an entry, a row an element of the one batch dim:

==========================================  ==========================================
column                                      entry
==========================================  ==========================================
numbers, booleans                           tensor ``[N]``
``fixed_shape_tensor``, lists of one size   tensor ``[N, *F]``
lists of numbers                            jagged nested tensor ``[N, *]``
struct                                      nested collection ``[N]``
anything else (text, dates, dictionaries)   a stack of Python values ``[N]``
==========================================  ==========================================

Numbers are not copied where both sides can have the same memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.containers.nontensor import NonTensorStack
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["from_arrow", "to_arrow"]

NestedKey = Any

NULLS = ("raise", "fill", "mask")

MSG_NULLS = (
    "The Arrow column {key} has {count} null value(s). Pass nulls='fill' to fill them, or "
    "nulls='mask' to also get a mask entry."
)
MSG_ONE_BATCH_DIM = (
    "to_arrow needs a tensordict with one batch dimension, got the batch size {size}. Call "
    "td.reshape(-1) first to flatten it."
)
MSG_NO_PYARROW = "{} needs pyarrow, which is not installed: pip install pyarrow"
MSG_EXCLUSIVE = (
    "to_arrow got a lazy stack of which only some members have {keys}: a table has all "
    "columns in every row. Select the keys that all members have, or set the others."
)
MSG_RAGGED_DIM = (
    "to_arrow needs the ragged dim of the jagged tensor {key!r} at position 1, got {dim}. "
    "Move it there first, for example with .transpose(1, {dim})."
)


def _pyarrow(asked: str) -> Any:
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
            :func:`pyarrow.table` takes. ``N`` rows.
        copy: true to copy all numbers; otherwise tensors share the memory of the table
            where they can. Arrow expects that nobody writes to it then.
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
    pa = _pyarrow("from_arrow")
    if nulls not in NULLS:
        msg = f"nulls must be one of {NULLS}, got {nulls!r}."
        raise ValueError(msg)
    table = table if isinstance(table, pa.Table) else pa.table(table)
    names = table.column_names
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        msg = f"from_arrow got several columns of the names {twice}: rename them."
        raise ValueError(msg)
    masks_at = _mask_path(mask_key, nulls, names)
    reader = _Reader(pa, bool(copy), nulls == "raise")
    fields = {
        name: reader.entry((name,), _as_one_array(pa, column))
        for name, column in zip(names, table.columns, strict=True)
    }
    td: Any = _nested(fields, table.num_rows)
    if nulls == "mask":
        for path, mask in reader.masks.items():
            td.set(masks_at + path, mask)
    return td if device is None else td.to(device)


def to_arrow(td: Any) -> pa.Table:
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
    pa = _pyarrow("to_arrow")
    if not isinstance(td, CollectionProtocol):
        msg = f"to_arrow expects a tensor collection, got a {type(td).__name__}."
        raise TypeError(msg)
    if td.batch_dims != 1:
        raise ValueError(MSG_ONE_BATCH_DIM.format(size=td.batch_size))
    columns = _columns(pa, td, td.batch_size[0])
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


# Reading ------------------------------------------------------------------------------


def _mask_path(mask_key: Any, nulls: str, names: list[str]) -> tuple[str, ...]:
    """The path of the masks, which no column has."""
    if mask_key is None:
        mask_key = "_mask"
    elif nulls != "mask":
        msg = f"from_arrow got a mask_key but nulls={nulls!r}, not 'mask'."
        raise ValueError(msg)
    try:
        path: tuple[str, ...] = _rust.unravel_key_to_tuple(mask_key)
    except (TypeError, ValueError):
        path = ()
    if not path:
        msg = f"mask_key must be a string or a tuple of strings, got {mask_key!r}."
        raise TypeError(msg)
    if nulls == "mask" and path[0] in names:
        msg = (
            f"nulls='mask' writes the masks under the key {path[0]!r}, which is a column "
            "of the table."
        )
        raise ValueError(msg)
    return path


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


def _as_one_array(pa: Any, column: Any) -> Any:
    """A column that may be in pieces as one array, which is copied if it is."""
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def _validity(array: Any) -> torch.Tensor:
    """``[N]``: False where a value is null."""
    return torch.from_numpy(array.is_valid().to_numpy(zero_copy_only=False))


def _nested(fields: dict[str, Any], rows: int) -> Any:
    return _rust.new(TensorDict, fields, torch.Size([rows]), None, None)


class _Reader:
    """Makes entries of columns.

    Args:
        pa: the module ``pyarrow``.
        copy: whether memory is never shared.
        refuses_nulls: whether nulls are an error.
    """

    def __init__(self, pa: Any, copy: bool, refuses_nulls: bool) -> None:
        self.pa = pa
        self.copy = copy
        self.refuses_nulls = refuses_nulls
        self.masks: dict[tuple[str, ...], torch.Tensor] = {}

    def entry(self, path: tuple[str, ...], array: Any) -> Any:
        """The entry of a column, with its mask where there are nulls."""
        types = self.pa.types
        if types.is_struct(array.type):
            # The fields get the nulls of the rows that hold them.
            names = [field.name for field in array.type]
            children = zip(names, array.flatten(), strict=True)
            return _nested(
                {name: self.entry((*path, name), part) for name, part in children},
                len(array),
            )
        if array.null_count:
            self._refuse(path, array)
            self.masks[path] = _validity(array)
        if self._is_number(array.type):
            return self._numbers(path, array)
        if self._is_block(array.type):
            return self._block(path, array)
        is_list = types.is_list(array.type) or types.is_large_list(array.type)
        if is_list and self._is_block(array.type.value_type):
            return self._jagged(path, array)
        return NonTensorStack._of_cells(array.to_pylist(), torch.Size([len(array)]))

    def _refuse(self, path: tuple[str, ...], array: Any) -> None:
        if self.refuses_nulls and array.null_count:
            raise ValueError(MSG_NULLS.format(key=path, count=array.null_count))

    def _is_number(self, kind: Any) -> bool:
        types = self.pa.types
        return (
            types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        )

    def _is_block(self, kind: Any) -> bool:
        """Whether every value of a type is a tensor of one shape."""
        if isinstance(kind, self.pa.FixedShapeTensorType):
            return self._is_number(kind.value_type)
        if self.pa.types.is_fixed_size_list(kind):
            return self._is_block(kind.value_type)
        return self._is_number(kind)

    def _numbers(self, path: tuple[str, ...], array: Any) -> torch.Tensor:
        """``[N]``; nulls are 0, False or NaN."""
        types = self.pa.types
        if array.null_count:
            self._refuse(path, array)
            fill: Any = float("nan") if types.is_floating(array.type) else 0
            array = array.fill_null(False if types.is_boolean(array.type) else fill)
        # Booleans are bits in Arrow.
        values = array.to_numpy(zero_copy_only=not types.is_boolean(array.type))
        if self.copy:
            values = values.copy()
        elif not values.flags.writeable:
            values = np.asarray(_Writable(values))
        return torch.from_numpy(values)

    def _block(self, path: tuple[str, ...], array: Any) -> torch.Tensor:
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
        # What is in the place of a null list is not specified, nor whether it is null.
        rows = _Reader(self.pa, True, False)._block(path, inner)
        rows = rows.reshape(len(array), size, *rows.shape[1:])
        rows[~_validity(array)] = float("nan") if rows.is_floating_point() else 0
        return rows

    def _jagged(self, path: tuple[str, ...], array: Any) -> torch.Tensor:
        """``[N, *, *F]``; null lists are empty."""
        lengths = self._numbers(path, array.value_lengths().fill_null(0))
        offsets = torch.zeros(len(array) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        # Without what null lists point to, and from the offset of a slice on.
        values = self._block(path, array.flatten())
        return torch.nested.nested_tensor_from_jagged(values, offsets)


# Writing ------------------------------------------------------------------------------


def _columns(pa: Any, td: Any, rows: int) -> dict[str, Any]:
    if not td._is_dense and getattr(td, "_has_exclusive_keys", False):
        every: set[str] = set().union(*(member.keys() for member in td.tensordicts))
        keys = sorted(every - set(td.keys()))
        raise ValueError(MSG_EXCLUSIVE.format(keys=keys))
    return {key: _column(pa, key, value, rows) for key, value in td.items()}


def _column(pa: Any, key: str, value: Any, rows: int) -> Any:
    if getattr(value, "_is_non_tensor", False):
        values = value.tolist()
        return pa.array(values if isinstance(values, list) else [values] * rows)
    if isinstance(value, CollectionProtocol):
        columns = _columns(pa, value, rows)
        if not columns:
            return pa.array([{}] * rows, type=pa.struct([]))
        return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    if not isinstance(value, torch.Tensor):
        return pa.array([value] * rows)
    if value.is_nested:
        return _lists(pa, key, value)
    return _blocks(pa, value)


def _blocks(pa: Any, value: torch.Tensor) -> Any:
    """Tensors ``[N, *F]`` as one array."""
    rows = value.detach().cpu().resolve_conj().resolve_neg().contiguous().numpy()
    if rows.ndim == 1:
        return pa.array(rows)
    if len(rows):
        return pa.FixedShapeTensorArray.from_numpy_ndarray(rows)
    numbers = pa.array(rows.reshape(-1))
    kind = pa.fixed_shape_tensor(numbers.type, rows.shape[1:])
    return pa.ExtensionArray.from_storage(kind, pa.array([], type=kind.storage_type))


def _lists(pa: Any, key: str, value: Any) -> Any:
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
