"""Datasets of Hugging Face's ``datasets``: both ways, and batches of them as collections.

``dataset.with_format("tensordict")`` is registered once both packages are imported. The
numbers of a batch keep their dtypes. They are copied: Arrow's memory is often a file that is
mapped for reading, where a write would end the process.
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
"""The limit of a column of arrays, whose lists have offsets of 32 bits."""

MSG_VALUES = (
    "to_hf cannot make one column of Arrow of the values at {key!r}: {error}. Convert them, "
    "or leave the entry out."
)
MSG_ARROW = "to_hf cannot make a table of Arrow: {}"
MSG_EMPTY_DIM = (
    "to_hf got the shape {shape} at {key!r}: the lists of a dataset do not keep a dim of "
    "size 0. Leave the entry out."
)
MSG_SPLITS = (
    "from_hf expects one split, got a {kind} of the splits {names}: pass one of them, "
    "dataset[{first!r}]."
)
MSG_KIND = "from_hf expects a dataset of Hugging Face's datasets, got a {}."


def to_hf(td: CollectionProtocol, *, features: object = None) -> datasets.Dataset:
    """Make a dataset of a collection with one batch dim, ``[N]``: a row for each element.

    Nested collections are structures, one dim of features is a list of fixed length, more
    are an ``Array2D`` to ``Array5D``, nested tensors are lists. Memory is shared where
    tensors are contiguous.

    Args:
        td: a collection.
        features: the ``datasets.Features`` that the columns are cast to, such as a
            ``ClassLabel`` for numbers. Default: they follow from the dtypes.

    Raises:
        ValueError: there is not one batch dim; a lazy stack whose members differ in keys;
            a dim of size 0.
        TypeError: a tensor has a dtype that Arrow lacks.
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
        _refuse_values(pa, (), td)
        raise TypeError(MSG_ARROW.format(error)) from error
    columns = [
        _array_feature(pa, package, column.combine_chunks()) for column in table.columns
    ]
    made = package.Dataset(
        pa.table(dict(zip(table.column_names, columns, strict=True)))
    )
    return made if features is None else made.cast(features)


def _check(path: tuple[str, ...], td: CollectionProtocol) -> None:
    """Refuse the leaves that Arrow cannot hold."""
    for key, value in list(td.items()):
        here = (*path, key)
        if isinstance(value, CollectionProtocol):
            if not value._is_non_tensor:
                _check(here, value)
            continue
        if value.dtype not in DTYPES:
            raise TypeError(MSG_DTYPE.format(dtype=value.dtype, key=path_of(here)))
        if not value.is_nested and 0 in value.shape[1:]:
            raise ValueError(
                MSG_EMPTY_DIM.format(shape=tuple(value.shape), key=path_of(here))
            )


def _refuse_values(
    pa: ModuleType, path: tuple[str, ...], td: CollectionProtocol
) -> None:
    """Name the entry whose values do not fit into one column.

    Raises:
        TypeError: there is one.
    """
    for key, value in list(td.items()):
        here = (*path, key)
        if not isinstance(value, CollectionProtocol):
            continue
        held: Any = value
        if not held._is_non_tensor:
            _refuse_values(pa, here, held)
            continue
        try:
            pa.array(list(held._flat()))
        except (pa.ArrowException, OverflowError, TypeError) as error:
            msg = MSG_VALUES.format(key=path_of(here), error=error)
            raise TypeError(msg) from error


def _array_feature(pa: Any, package: Any, column: Any) -> Any:
    """A column whose tensors are an ``Array2D`` to ``Array5D``, where there are such.

    They are what the other formats of ``datasets`` read quickly. Deeper in structures, and
    with other numbers of dims, tensors are lists of fixed length.
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
    """An array whose tensors are lists of fixed length, which ``datasets`` knows."""
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
    """Make a collection of a dataset of Hugging Face's ``datasets``, with a row for each.

    Numbers and arrays are tensors, structures are nested collections, images are uint8
    tensors ``[N, channels, height, width]``. Lists of one length are a tensor, others a
    nested tensor. Text and all else is non-tensor data, one value for each row. A
    ``ClassLabel`` is its numbers.

    Args:
        dataset: a split; one that is streamed is read to its end.
        columns: the columns to read. Default: all.
        copy: false to share the memory of the dataset where that is possible. It may be a
            file that is mapped for reading only: a write to the result can then end the
            process.
        nulls: see :func:`tensordict.from_arrow`. A text that is null is None in any case.
        mask_key: see :func:`tensordict.from_arrow`.
        device: where all entries are moved.

    Returns:
        A :class:`TensorDict` of batch size ``[N]``.

    Raises:
        ValueError: there are nulls; ``dataset`` is a dictionary of splits.
        TypeError: ``dataset`` is none.
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
    """The rows of a table of a dataset as a collection.

    Args:
        table: a table of Arrow.
        features: the features of the dataset, or None.
        decode: gives a column of encoded values decoded, by the list of the values and the
            name. Default: the features do.
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
        wrong = {name: array for name, array in arrays.items() if _lacks(pa, array)}
        if wrong:
            from_arrow(pa.table(wrong))
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
    """An array with lists of fixed length for arrays of one shape, as ``from_arrow`` reads."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=array.type)
    kind = array.type
    if hasattr(kind, "storage_dtype") and hasattr(kind, "shape"):
        # An Array2D and so on, whose lists have no fixed length in Arrow.
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


def _lacks(pa: Any, array: Any) -> bool:
    """Tell whether tensors would lack values: None is a value of what is no tensor."""
    kind, types = array.type, pa.types
    if types.is_struct(kind):
        parts = array.flatten() if kind.num_fields else []
        return bool(array.null_count) or any(_lacks(pa, part) for part in parts)
    if (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    ):
        return bool(array.null_count) or _lacks(pa, array.flatten())
    is_number = (
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    )
    return is_number and bool(array.null_count)


def _running(lengths: list[int]) -> list[int]:
    """The sums of the first, the first two, and so on."""
    total, sums = 0, []
    for length in lengths:
        total += length
        sums.append(total)
    return sums


def _of_arrays(pa: ModuleType, array: Any) -> Any:
    """An array of ``ArrayXD`` as lists whose lengths Arrow knows."""
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
    """Decoded images as one tensor, where they have one shape; a value for each row if not."""
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
    """A picture of Pillow as ``[channels, height, width]``, as the torch format has it."""
    array = torch.from_numpy(np.array(picture))
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1).contiguous()


# The format ---------------------------------------------------------------------------


def register() -> None:
    """Offer ``with_format("tensordict")``; does nothing where ``datasets`` is another module."""
    try:
        formatting = importlib.import_module("datasets.formatting")
        formats: Any = formatting._FORMAT_TYPES
        add: Any = formatting._register_formatter
    except (ImportError, AttributeError):
        return
    if "tensordict" in formats:
        return
    made = importlib.import_module("tensordict.interop.hugging_face_format")
    add(made.formatter(), "tensordict", aliases=["td"])
    made.give_rows_to_loaders()
