"""Conversion to and from datasets of Hugging Face, and the format of their batches.

``dataset.with_format("tensordict")`` is registered once both packages are imported. The
numbers of a batch keep their dtypes. They are copied: Arrow's memory is often a file
that is mapped read-only, where a write would end the process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tensordict.interop.leaves import check_collection, extra, path_of
from tensordict.interop.nested import to_nested
from tensordict.interop.tables.arrow import DTYPES, from_arrow, to_arrow
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import datasets

    from tensordict._nestedkey import NestedKey
    from tensordict.containers.dense import TensorDict

__all__ = ["from_hf", "register", "to_hf"]

INSTALL = "pip install 'tensordict-rs[datasets]'"

MSG_DTYPE = (
    "to_hf got the dtype {dtype} at {key!r}, which Arrow lacks. Convert the entry first, for "
    "example with .float(), or view it as integers."
)
MOST_VALUES = 2**31 - 1
"""The most values in a column of arrays: the offsets of its lists have 32 bits."""

MSG_VALUES = (
    "to_hf cannot convert the values at {key!r} to one Arrow column: {error}. Convert the "
    "values to one type, or exclude the entry."
)
MSG_ARROW = "to_hf cannot make an Arrow table: {}"
MSG_EMPTY_DIM = (
    "to_hf got the shape {shape} at {key!r}: a dataset cannot store a dim of size 0. "
    "Exclude the entry."
)
MSG_SPLITS = (
    "from_hf expects one split, got a {kind} of the splits {names}: pass one split, such "
    "as dataset[{first!r}]."
)
MSG_KIND = "from_hf expects a Dataset or IterableDataset of Hugging Face, got a {}."


def to_hf(td: CollectionProtocol, *, features: object = None) -> datasets.Dataset:
    """Convert a tensordict of batch size ``[N]`` to a Hugging Face dataset.

    The dataset has ``N`` rows. Nested tensordicts become structures. A leaf with one
    feature dim becomes a list of fixed length, with two to five an ``Array2D`` to
    ``Array5D``. Nested tensors become lists. Contiguous tensors share their memory with
    the dataset.

    Args:
        td: the tensordict.
        features: the ``datasets.Features`` to cast the columns to, such as a
            ``ClassLabel`` for numbers. Default: derived from the dtypes.

    Raises:
        ValueError: ``td`` has not exactly one batch dim, the members of a lazy stack
            differ in keys, or a leaf has a dim of size 0.
        TypeError: Arrow lacks the dtype of a tensor.
        ImportError: datasets is not installed.
    """
    check_collection(td, "to_hf")
    package = extra("datasets", "to_hf", INSTALL)
    pa = extra("pyarrow", "to_hf", INSTALL)
    td = to_nested(td) if td.batch_dims == 1 else td
    _check((), td)
    try:
        table = to_arrow(td)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        _refuse_values(pa, td)
        raise TypeError(MSG_ARROW.format(error)) from error
    columns = [
        _array_feature(pa, package, column.combine_chunks()) for column in table.columns
    ]
    dataset = package.Dataset(
        pa.table(dict(zip(table.column_names, columns, strict=True)))
    )
    return dataset if features is None else dataset.cast(features)


def _check(path: tuple[str, ...], td: CollectionProtocol) -> None:
    """Raise an error for a leaf that Arrow cannot hold."""
    for key, value in list(td.items()):
        key_path = (*path, key)
        if isinstance(value, CollectionProtocol):
            _check(key_path, value)
            continue
        if value.dtype not in DTYPES:
            raise TypeError(MSG_DTYPE.format(dtype=value.dtype, key=path_of(key_path)))
        if not value.is_nested and 0 in value.shape[1:]:
            raise ValueError(
                MSG_EMPTY_DIM.format(shape=tuple(value.shape), key=path_of(key_path))
            )


def _refuse_values(pa: ModuleType, td: CollectionProtocol) -> None:
    """Raise an error that names the entry whose values do not fit into one column.

    Raises:
        TypeError: there is such an entry.
    """
    for key, value in td.non_tensor_items(include_nested=True):
        try:
            pa.array(list(value._flat()))
        except (pa.ArrowException, OverflowError, TypeError) as error:
            msg = MSG_VALUES.format(key=key, error=error)
            raise TypeError(msg) from error


def _array_feature(pa: Any, package: Any, column: Any) -> Any:
    """Convert a column of tensors to an ``Array2D`` to ``Array5D``, if possible.

    The other formats of ``datasets`` read these quickly. Tensors with fewer or more
    dims become lists of fixed length, as tensors in structures do.
    """
    kind = column.type
    if not isinstance(kind, pa.FixedShapeTensorType) or not 2 <= len(kind.shape) <= 5:
        return _plain(pa, column)
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    values = array.storage.flatten()
    if len(values) > MOST_VALUES:
        return _plain(pa, column)
    for size in reversed(kind.shape):
        offsets = np.arange(len(values) // size + 1, dtype=np.int32) * size
        values = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
    names = package.features.features
    make = getattr(names, f"Array{len(kind.shape)}DExtensionType")
    dtype = np.dtype(kind.value_type.to_pandas_dtype()).name
    return pa.ExtensionArray.from_storage(make(tuple(kind.shape), dtype), values)


def _plain(pa: Any, array: Any) -> Any:
    """Convert a column of tensors to lists of fixed length."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=array.type)
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        values = array.storage.flatten()
        for size in reversed(kind.shape):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        return values
    if pa.types.is_struct(kind) and kind.num_fields:
        names = [field.name for field in kind]
        parts = [_plain(pa, part) for part in array.flatten()]
        return pa.StructArray.from_arrays(parts, names=names)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(array.offsets, _plain(pa, array.values))
    return array


# Reading ------------------------------------------------------------------------------


def from_hf(
    dataset: Any,
    *,
    columns: Sequence[str] | None = None,
    copy: bool = True,
    nulls: Literal["raise", "fill", "mask"] = "raise",
    mask_key: NestedKey | None = None,
    device: torch.device | str | int | None = None,
) -> TensorDict:
    """Read a Hugging Face dataset into a tensordict of batch size ``[N]``.

    Numbers and arrays become tensors, structures nested tensordicts, and images uint8
    tensors ``[N, channels, height, width]``. Lists of equal length become a tensor,
    other lists a nested tensor. Text and all other values become non-tensor data with
    one value for each row. A ``ClassLabel`` becomes its numbers.

    Args:
        dataset: one split. A streamed split is read to its end.
        columns: the columns to read. Default: all.
        copy: whether to copy the data. If false, the result shares the memory of the
            dataset if possible. This memory may be a file that is mapped read-only: a
            write to the result can then end the process.
        nulls: see :func:`tensordict.from_arrow`. A null text always becomes None.
        mask_key: see :func:`tensordict.from_arrow`.
        device: the device to move all entries to.

    Returns:
        A :class:`TensorDict` with one row for each of the ``N`` rows of the dataset.

    Raises:
        ValueError: the dataset contains nulls and ``nulls`` is ``"raise"``, or
            ``dataset`` is a dictionary of splits.
        TypeError: ``dataset`` is not a dataset.
        ImportError: datasets is not installed.
    """
    package = extra("datasets", "from_hf", INSTALL)
    pa = extra("pyarrow", "from_hf", INSTALL)
    if isinstance(dataset, dict):
        names = list(dataset)
        raise ValueError(
            MSG_SPLITS.format(
                kind=type(dataset).__name__,
                names=names,
                first=next(iter(names), "train"),
            )
        )
    if not isinstance(dataset, (package.Dataset, package.IterableDataset)):
        raise TypeError(MSG_KIND.format(type(dataset).__name__))
    if columns is not None:
        dataset = dataset.select_columns(list(columns))
    plain = dataset.with_format("arrow")
    if isinstance(dataset, package.Dataset):
        table = plain[:]
    else:
        table = pa.concat_tables(list(plain.iter(batch_size=1000)))
    td = batch_of(table, dataset.features, copy=copy, nulls=nulls, mask_key=mask_key)
    return td if device is None else td.to(device)


def batch_of(
    table: Any,
    features: Any,
    *,
    decode: Any = None,
    copy: bool = True,
    nulls: Any = "raise",
    mask_key: Any = None,
) -> Any:
    """Convert a table of a dataset to a tensordict.

    Args:
        table: an Arrow table.
        features: the features of the dataset, or None.
        decode: a function that decodes a column, given the list of its values and its
            name. Default: ``features.decode_column``.
        copy: see :func:`from_hf`.
        nulls: see :func:`from_hf`.
        mask_key: see :func:`from_hf`.
    """
    import pyarrow as pa

    encoded = [
        name
        for name in table.column_names
        if features is not None and features._column_requires_decoding.get(name)
    ]
    arrays = {
        name: _readable(pa, column.combine_chunks())
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name not in encoded
    }
    if nulls == "raise":
        columns_with_nulls = {
            name: array for name, array in arrays.items() if _lacks_numbers(pa, array)
        }
        if columns_with_nulls:
            from_arrow(pa.table(columns_with_nulls))
        nulls = "fill"
    if arrays:
        td: Any = from_arrow(
            pa.table(arrays), copy=copy, nulls=nulls, mask_key=mask_key
        )
    else:
        td = importlib.import_module("tensordict").TensorDict({}, [len(table)])
    for name in encoded:
        decoded = (decode or features.decode_column)(table[name].to_pylist(), name)
        td.set(name, _decoded(decoded))
    return td.select(*table.column_names) if encoded and arrays else td


def _readable(pa: Any, array: Any) -> Any:
    """Convert an array to the form that ``from_arrow`` reads: lists of fixed length."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=array.type)
    kind = array.type
    if hasattr(kind, "storage_dtype") and hasattr(kind, "shape"):
        # Array2D to Array5D: their lists have no fixed length in Arrow.
        return _of_arrays(pa, array)
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(
        kind, pa.FixedShapeTensorType
    ):
        return _readable(pa, array.storage)
    if pa.types.is_struct(kind) and kind.num_fields and not array.null_count:
        names = [field.name for field in kind]
        parts = [_readable(pa, part) for part in array.flatten()]
        return pa.StructArray.from_arrays(parts, names=names)
    if pa.types.is_list(kind) and not array.null_count and len(array):
        values = _readable(pa, array.flatten())
        lengths = array.value_lengths()
        first = lengths[0].as_py()
        if first and lengths.unique().to_pylist() == [first]:
            return pa.FixedSizeListArray.from_arrays(values, first)
        if values.type != kind.value_type:
            # The offsets of a slice do not begin at 0.
            offsets = pa.array([0, *_running(lengths.to_pylist())], pa.int32())
            return pa.ListArray.from_arrays(offsets, values)
    return array


def _lacks_numbers(pa: Any, array: Any) -> bool:
    """Return whether an array contains nulls that a tensor cannot hold."""
    kind, types = array.type, pa.types
    if types.is_struct(kind):
        parts = array.flatten() if kind.num_fields else []
        return bool(array.null_count) or any(_lacks_numbers(pa, part) for part in parts)
    if (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    ):
        return bool(array.null_count) or _lacks_numbers(pa, array.flatten())
    is_number = (
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    )
    return is_number and bool(array.null_count)


def _running(lengths: list[int]) -> list[int]:
    """Return the cumulative sums."""
    total, sums = 0, []
    for length in lengths:
        total += length
        sums.append(total)
    return sums


def _of_arrays(pa: ModuleType, array: Any) -> Any:
    """Convert an ``ArrayXD`` array to lists of fixed length."""
    kind, storage = array.type, array.storage
    sizes = list(kind.shape)
    if storage.null_count or None in sizes[1:]:
        return storage
    values = storage
    for _ in sizes:
        values = values.flatten()
    for size in reversed(sizes[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    if sizes[0] is not None:
        return pa.FixedSizeListArray.from_arrays(values, sizes[0])
    lengths = storage.value_lengths().to_pylist()
    return pa.ListArray.from_arrays(
        pa.array([0, *_running(lengths)], pa.int32()), values
    )


def _decoded(values: list[Any]) -> Any:
    """Stack decoded images of one shape; other values become non-tensor data."""
    cells = [
        _pixels(value) if hasattr(value, "getbands") else value for value in values
    ]
    if cells and all(isinstance(cell, torch.Tensor) for cell in cells):
        first = cells[0]
        if all(
            cell.shape == first.shape and cell.dtype == first.dtype for cell in cells
        ):
            return torch.stack(cells)
    stack: Any = CollectionProtocol._non_tensor_stack_type
    return stack._of_cells(cells, torch.Size([len(cells)]))


def _pixels(picture: object) -> torch.Tensor:
    """Convert a Pillow image to a tensor ``[channels, height, width]``."""
    array = torch.from_numpy(np.array(picture))
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1).contiguous()


# The format "tensordict" --------------------------------------------------------------


def register() -> None:
    """Register ``with_format("tensordict")``, if the ``datasets`` is Hugging Face's."""
    try:
        formatting = importlib.import_module("datasets.formatting")
        formats: Any = formatting._FORMAT_TYPES
        add: Any = formatting._register_formatter
    except (ImportError, AttributeError):
        return
    if "tensordict" in formats:
        return
    module = importlib.import_module("tensordict.interop.hugging_face_format")
    add(module.formatter(), "tensordict", aliases=["td"])
    module.give_rows_to_loaders()
