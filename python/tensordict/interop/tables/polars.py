"""Conversion to and from data frames of polars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.interop.tables import arrow
from tensordict.interop.tables.columns import (
    Asked,
    collection,
    flat_columns,
    rows_of,
    rules_of,
)

if TYPE_CHECKING:
    from types import ModuleType

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["from_polars", "to_polars"]

MSG_NO_POLARS = "{} needs polars, which is not installed: pip install polars pyarrow"
MSG_EMPTY_DIM = (
    "to_polars got the entry {!r} of shape {}: polars has no arrays without elements. "
    "Exclude the entry."
)
MSG_NO_FRAME = "{} expects a DataFrame or LazyFrame of polars, got a {}."


def _import_polars(asked: str) -> ModuleType:
    try:
        import polars as pl
    except ImportError as error:
        raise ImportError(MSG_NO_POLARS.format(asked)) from error
    return pl


def from_polars(cls: type, asked: Asked, frame: object) -> Any:
    """See :meth:`TensorDict.from_polars`."""
    pl = _import_polars(asked.method)
    pa = arrow.import_pyarrow(asked.method)
    rules = rules_of(asked)
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if not isinstance(frame, pl.DataFrame):
        raise TypeError(MSG_NO_FRAME.format(asked.method, type(frame).__name__))
    reader = arrow.Reader(pa, rules)
    entries = arrow.entries_of(asked, reader, pa.table(frame))
    return collection(cls, asked, entries, rules.masks, frame.height)


def to_polars(td: CollectionProtocol, separator: str | None) -> Any:
    """See :meth:`TensorDict.to_polars`."""
    pl = _import_polars("to_polars")
    pa = arrow.import_pyarrow("to_polars")
    columns = flat_columns("to_polars", td, separator)
    rows = rows_of("to_polars", td, columns)
    for name, value in columns.items():
        if isinstance(value, torch.Tensor) and 0 in tuple(value.shape)[1:]:
            raise ValueError(MSG_EMPTY_DIM.format(name, value.shape))
    arrays = {
        name: arrow.column_of(pa, name, value, rows, plain_lists=True)
        for name, value in columns.items()
    }
    return pl.DataFrame(pa.table(arrays))
