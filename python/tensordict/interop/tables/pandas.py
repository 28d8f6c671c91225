"""Conversion to and from data frames of pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.interop.tables.columns import (
    Asked,
    as_entries,
    collection,
    flat_columns,
    rows_of,
    rules_of,
    values_of,
)
from tensordict.interop.tables.rules import Path, Rules, cells
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from types import ModuleType

    from tensordict.containers.dense import TensorDict
    from tensordict.containers.nontensor.stack import NonTensorStack

__all__ = ["columns_of", "from_pandas", "import_pandas", "to_pandas"]

MSG_NO_PANDAS = "{} needs pandas, which is not installed: pip install pandas"
MSG_SHAPE = (
    "Cannot convert tensor with shape {} at key {!r} to a single DataFrame column. Only "
    "1D tensors (matching the batch size) are supported."
)
MSG_DTYPE = (
    "{}: pandas has no column type for the entry {!r} of dtype {}. Cast the entry, for "
    "example with .float()."
)
MSG_MISSING_TIME = (
    "The column {!r} has {} missing timestamp(s), but int64 nanoseconds have no missing "
    "value. Pass nulls='fill' to fill them with 0, or nulls='mask' to also get a mask."
)
MSG_NO_FRAME = "{} expects a pandas DataFrame, got a {}."


def import_pandas(asked: str) -> ModuleType:
    """Import pandas for the method ``asked``.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(MSG_NO_PANDAS.format(asked)) from error
    return pd


# Reading ------------------------------------------------------------------------------


def from_pandas(cls: type, asked: Asked, frame: object) -> Any:
    """See :meth:`TensorDict.from_pandas`."""
    pd = import_pandas(asked.method)
    rules = rules_of(asked)
    if not isinstance(frame, pd.DataFrame):
        # The published package raises the same exception class.
        raise AttributeError(MSG_NO_FRAME.format(asked.method, type(frame).__name__))
    levels = [level for level, name in enumerate(frame.index.names) if name is not None]
    indexes = [frame.index.get_level_values(level) for level in levels]
    names = [*frame.columns, *(index.name for index in indexes)]
    columns = [frame.iloc[:, index] for index in range(frame.shape[1])]
    columns += [pd.Series(index) for index in indexes]
    paths = as_entries(asked, names)
    reader = _Reader(pd, rules)
    entries = {
        path: reader.entry(path, column)
        for path, column in zip(paths, columns, strict=True)
    }
    return collection(cls, asked, entries, rules.masks, len(frame))


class _Reader:
    """A reader that converts columns of data frames to entries."""

    def __init__(self, pd: Any, rules: Rules) -> None:
        self.pd = pd
        self.rules = rules

    def entry(self, path: Path, column: Any) -> Any:
        """Return the entry of a column."""
        pd, dtype = self.pd, column.dtype
        if isinstance(dtype, pd.SparseDtype):
            column = column.sparse.to_dense()
            dtype = column.dtype
        if isinstance(dtype, pd.ArrowDtype):
            return self._of_arrow(path, column)
        if isinstance(dtype, pd.CategoricalDtype):
            return self._of_categories(path, column)
        if isinstance(dtype, np.dtype):
            if dtype.kind in "biufc":
                return self._numbers(path, column.to_numpy(copy=True), None)
            if dtype.kind == "M":
                return self._nanoseconds(path, column)
        elif getattr(dtype, "kind", "O") in "biuf" and hasattr(dtype, "numpy_dtype"):
            missing = column.isna().to_numpy()
            values = column.to_numpy(
                dtype.numpy_dtype, copy=True, na_value=dtype.numpy_dtype.type(0)
            )
            if dtype.kind == "b" and missing.any() and not self.rules.fills:
                return self._values(path, column, missing)
            return self._numbers(path, values, missing)
        return self._values(path, column, column.isna().to_numpy())

    def _numbers(self, path: Path, values: Any, missing: Any) -> torch.Tensor:
        """Return numbers ``[N]``; NaN is missing, too, if ``nulls`` was passed."""
        if values.dtype.kind in "fc" and self.rules.nulls is not None:
            is_nan = np.isnan(values)
            missing = is_nan if missing is None else missing | is_nan
        if missing is None or not missing.any():
            return self.rules.cast(path, torch.from_numpy(_native(values)))
        self._note(path, missing)
        return self.rules.numbers(path, values, ~missing)

    def _note(self, path: Path, missing: Any) -> None:
        count = int(missing.sum())
        self.rules.note(path, count, lambda: torch.from_numpy(~missing))

    def _values(self, path: Path, column: Any, missing: Any) -> NonTensorStack:
        """Return a Python value for each row, None for missing values."""
        values = column.astype(object).to_numpy(copy=True)
        if missing.any():
            self._note(path, missing)
            values[missing] = None
        return cells(values.tolist() if values.ndim == 1 else list(values))

    def _nanoseconds(self, path: Path, column: Any) -> torch.Tensor:
        """Return timestamps without a time zone as int64 nanoseconds ``[N]``."""
        missing = column.isna().to_numpy()
        values = column.to_numpy()
        if missing.any():
            if self.rules.nulls is None:
                name, count = ".".join(path), int(missing.sum())
                raise ValueError(MSG_MISSING_TIME.format(name, count))
            self._note(path, missing)
            values = np.where(missing, np.datetime64(0, "s"), values)
        # pandas raises an error for a timestamp outside of the range of nanoseconds.
        column = self.pd.Series(values).astype("datetime64[ns]")
        return torch.from_numpy(column.to_numpy().astype(np.int64))

    def _of_categories(self, path: Path, column: Any) -> Any:
        """Return the values, not the codes, of a categorical column."""
        categories = column.dtype.categories
        codes = column.cat.codes.to_numpy()
        missing = codes < 0
        if not len(categories):
            return self._values(path, column.astype(object), missing)
        if not missing.any():
            return self.entry(path, self.pd.Series(categories.take(codes)))
        if isinstance(categories.dtype, np.dtype) and categories.dtype.kind in "iuf":
            values = categories.to_numpy()[np.where(missing, 0, codes)]
            return self._numbers(path, values, missing)
        return self._values(path, column, missing)

    def _of_arrow(
        self, path: Path, column: Any
    ) -> NonTensorStack | torch.Tensor | TensorDict:
        """Return the entry of a column whose memory is Arrow's."""
        import pyarrow as pa

        from tensordict.interop.tables import arrow

        array = pa.chunked_array(pa.array(column.array))
        field = pa.field(path[-1], array.type)
        # A tensor that shares Arrow memory would write to it; pandas copies on write.
        reader = arrow.Reader(pa, self.rules, copy=True, counts_time=True)
        return reader.column(path, field, array)


def _native(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array in the byte order of this machine."""
    if values.dtype.isnative:
        return values
    return values.astype(values.dtype.newbyteorder("="))


# Writing ------------------------------------------------------------------------------


def to_pandas(td: CollectionProtocol, separator: str | None) -> Any:
    """See :meth:`TensorDict.to_pandas`."""
    pd = import_pandas("to_pandas")
    columns = columns_of("to_pandas", td, separator)
    rows = rows_of("to_pandas", td, columns)
    series = {
        name: value if isinstance(value, np.ndarray) else _series(pd, value)
        for name, value in columns.items()
    }
    # `copy=True` is also the default of pandas for a dictionary.
    return pd.DataFrame(series, index=pd.RangeIndex(rows), copy=True)


def columns_of(
    method: str, td: CollectionProtocol, separator: str | None
) -> dict[str, Any]:
    """Return the columns of a table with one value in each cell: arrays or lists.

    Raises:
        ValueError: a tensor has feature dims.
        TypeError: NumPy lacks the dtype of a tensor.
    """
    entries = flat_columns(method, td, separator, is_narrow=True)
    for name, value in entries.items():
        is_wide = isinstance(value, torch.Tensor) and (
            value.ndim > 1 or value.ndim < td.batch_dims
        )
        if is_wide:
            raise ValueError(MSG_SHAPE.format(value.shape, name))
    rows = rows_of(method, td, entries)
    return {name: _column(name, value, rows) for name, value in entries.items()}


def _column(name: str, value: object, rows: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return values_of(value, rows)
    tensor = value.detach().cpu().resolve_conj().resolve_neg()
    try:
        array: np.ndarray[Any, Any] = tensor.numpy()
    except TypeError as error:
        raise TypeError(MSG_DTYPE.format(error, name, value.dtype)) from None
    return array


def _series(pd: Any, values: list[Any]) -> Any:
    """Make a series of Python values, of a specific dtype if they have one class."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        return pd.Series(values)
    array = np.empty(len(values), object)
    for at, value in enumerate(values):
        array[at] = value
    column = pd.Series(array)
    is_one = len(kinds) == 1 and not any(value is None for value in values)
    is_plain = is_one and not isinstance(values[0], CollectionProtocol)
    return column.infer_objects() if is_plain else column
