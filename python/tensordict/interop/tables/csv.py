"""Read and write files of comma-separated values.

The format has no types, so a column is of numbers if all of its texts are numbers as
somebody writes them: one with leading zeros, such as ``007``, is text. A column of text
has each cell as it was written, also those that pandas takes for missing values (NA,
null); an empty cell is one.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from tensordict.interop.tables import arrow, files
from tensordict.interop.tables.columns import Asked, collection, rules_of
from tensordict.interop.tables.pandas import (
    columns_of,
    from_pandas,
    import_pandas,
    to_pandas,
)

if TYPE_CHECKING:
    import os
    from types import ModuleType

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["read", "write"]

MSG_NEITHER = (
    "from_csv needs pandas or pyarrow, and neither is installed: pip install pandas"
)
MSG_PIECES = (
    "{} reads a whole file, and got {}: leave out chunksize and iterator, or read the "
    "pieces with pandas and give each to from_pandas."
)
MSG_CELLS = (
    "to_csv got the entry {!r} with values of {}, which would be no more than text in the "
    "file. {}"
)
MSG_CAST = "Convert them to text or numbers, or write the entry with to_parquet."
MSG_MIXED = "A column is of one kind: convert the values to text, or to numbers."
MSG_LIKE_NUMBERS = (
    "to_csv got the entry {!r} of texts which read as numbers, such as {!r}: the file "
    "cannot tell them from numbers. Convert the entry to numbers, write it with "
    "to_parquet or to_json, or pass a quoting (such as csv.QUOTE_NONNUMERIC) to write it "
    "all the same."
)
MSG_EMPTY = (
    "to_csv got the entry {!r} with an empty text, which the file cannot tell from a "
    "missing value. Write it with to_parquet or to_json, or pass na_rep, the text of "
    "missing values, to write it all the same."
)

CONVERSIONS = frozenset(
    {
        "converters",
        "date_format",
        "date_parser",
        "dayfirst",
        "decimal",
        "dtype_backend",
        "false_values",
        "infer_datetime_format",
        "keep_default_na",
        "na_filter",
        "na_values",
        "parse_dates",
        "thousands",
        "true_values",
    }
)
"""Options of pandas that say what texts mean: with one of them, pandas decides."""

NOT_PLAIN = re.compile(r"[+-]?0\d|\+\d", re.ASCII)
"""Begins a text that is another one after it was read as a number."""

PIECE = 1 << 18
"""The number of bytes of a file that are looked at together: the processor caches them."""

_NUMBER = re.compile(
    r"\s*[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf(?:inity)?)\s*",
    re.ASCII | re.IGNORECASE,
)
_OTHER_TEXTS = frozenset({"true", "false"})
"""Texts that read as truth values."""

_MISSING = frozenset(
    {
        "",
        " ",
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "<NA>",
        "N/A",
        "NA",
        "NULL",
        "NaN",
        "None",
        "n/a",
        "nan",
        "null",
    }
)
"""Texts that pandas takes for missing values in a column of numbers."""

_PLAIN = (str, bool, int, float, np.bool_, np.integer, np.floating)
_TIMES = (dt.date, dt.time)


# Reading ------------------------------------------------------------------------------


def read(cls: type, asked: Asked, path: Any, options: dict[str, Any]) -> Any:
    """See :meth:`TensorDict.from_csv`."""
    files.is_local(path)
    try:
        pd = import_pandas(asked.method)
    except ImportError:
        return _read_with_pyarrow(cls, asked, path, options)
    rules_of(asked)
    if hasattr(path, "read"):
        # It may be read twice.
        content = path.read()
        made = io.StringIO if isinstance(content, str) else io.BytesIO
        path = made(content)
    if options.keys() & CONVERSIONS:
        frame = pd.read_csv(path, **_exact(pd, options))
        _refuse_pieces(asked, pd, frame)
    else:
        frame = _as_written(asked, pd, path, options)
    return from_pandas(cls, asked, frame)


def _exact(pd: ModuleType, options: dict[str, Any]) -> dict[str, Any]:
    """The options with which floating point is read exactly."""
    # It is the only way of newer versions, which warn where it is asked for.
    is_old = int(pd.__version__.partition(".")[0]) < 3
    if is_old and options.get("engine") in (None, "c"):
        return {"float_precision": "round_trip", **options}
    return options


def _refuse_pieces(asked: Asked, pd: ModuleType, frame: Any) -> None:
    if not isinstance(frame, pd.DataFrame):
        found = type(frame).__name__
        frame.close()
        raise AttributeError(MSG_PIECES.format(asked.method, found))


def _as_written(
    asked: Asked, pd: ModuleType, path: str | os.PathLike[str], options: dict[str, Any]
) -> Any:
    """Read a frame with integers beside missing values, and texts, as they are."""
    frame = _typed(asked, pd, path, options)
    is_suspicious = _is_suspicious(path)
    texts_at, numbers_at = [], []
    for at, dtype in enumerate(frame.dtypes):
        if isinstance(dtype, pd.StringDtype):
            if frame.iloc[:, at].isna().any():
                texts_at.append(at)
        elif isinstance(dtype, np.dtype) and dtype.kind == "O":
            # Parts of the column looked like numbers.
            texts_at.append(at)
        elif is_suspicious and getattr(dtype, "kind", "O") in "iuf":
            numbers_at.append(at)
    if not texts_at and not numbers_at:
        return frame
    _rewind(path)
    texts = pd.read_csv(path, dtype=str, keep_default_na=False, **options)
    columns = [frame.iloc[:, at] for at in range(frame.shape[1])]
    for at in texts_at + numbers_at:
        column = texts.iloc[:, at]
        if at in texts_at or column.str.match(NOT_PLAIN.pattern, na=False).any():
            column.index = frame.index
            columns[at] = column.mask(column == "")
    return pd.concat(columns, axis=1)


def _typed(asked: Asked, pd: ModuleType, path: object, options: dict[str, Any]) -> Any:
    """Read a frame whose integers, and truth values, are exact beside missing values.

    Dtypes that hold missing values take half as long again, so they are asked for only
    where the others lose something.
    """
    with warnings.catch_warnings():
        # Columns of several types are read again, as texts.
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        options = _exact(pd, options)
        frame = pd.read_csv(path, **options)
        _refuse_pieces(asked, pd, frame)
        if any(_may_lose(frame.iloc[:, at]) for at in range(frame.shape[1])):
            _rewind(path)
            frame = pd.read_csv(path, dtype_backend="numpy_nullable", **options)
    return frame


def _may_lose(column: Any) -> bool:
    """Tell whether a column may be of integers, or of truth values, some missing."""
    if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "fO":
        return False
    if column.dtype.kind == "O":
        return True
    values = column.to_numpy()
    there = values[~np.isnan(values)]
    return len(there) < len(values) and bool((there == np.trunc(there)).all())


def _is_suspicious(path: str | os.PathLike[str]) -> bool:
    """Tell whether a number of a file may have leading zeros or a plus sign."""
    if isinstance(path, io.StringIO):
        content = path.getvalue().encode(errors="replace")
        return _has_odd_numbers(io.BytesIO(content))
    if isinstance(path, io.BytesIO):
        _rewind(path)
        return _has_odd_numbers(path)
    file = files.local_file(path)
    if file is None or file.suffix not in ("", ".csv", ".tsv", ".txt"):
        return True
    with file.open("rb") as opened:
        return _has_odd_numbers(opened)


def _has_odd_numbers(file: Any) -> bool:
    """Tell whether a number may begin with a zero before a digit, or with a plus sign.

    A regular expression takes four times as long as pandas takes to read the file.
    """
    before = b"  "
    while True:
        content = file.read(PIECE)
        # With the two bytes before each, and the one behind it.
        held = before + (content or b" ")
        if b"\0" in content or _begins_oddly(np.frombuffer(held, np.uint8)):
            return True
        if not content:
            return False
        before = held[-3:]


def _begins_oddly(text: np.ndarray[Any, Any]) -> bool:
    """Tell whether a number begins oddly from the third byte on, but for the last."""
    is_digit = (text - np.uint8(ord("0"))) < 10
    # A number may have a point or an exponent before a digit.
    is_inside = is_digit | (text == ord(".")) | ((text | 0x20) == ord("e"))
    here = text[2:-1]
    begins = (here == ord("0")) | (here == ord("+"))
    begins &= ~is_inside[1:-2]
    begins &= is_digit[3:]
    places = np.flatnonzero(begins) + 2
    # A zero behind a sign may be in an exponent, or in a date.
    sign = text[places - 1]
    may_be_inside = ((sign == ord("-")) | (sign == ord("+"))) & (
        text[places] != ord("+")
    )
    return not (may_be_inside & is_inside[places - 2]).all()


def _rewind(path: object) -> None:
    if hasattr(path, "seek"):
        path.seek(0)


def _read_with_pyarrow(
    cls: type, asked: Asked, path: str | os.PathLike[str], options: dict[str, Any]
) -> Any:
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
    except ImportError as error:
        raise ImportError(MSG_NEITHER) from error
    rules = rules_of(asked)
    given = dict(options)
    convert = given.pop("convert_options", None)
    table = arrow_csv.read_csv(path, convert_options=convert, **given)
    if convert is None:
        types = pa.types
        is_suspicious = _is_suspicious(path)
        texts = {
            field.name: pa.string()
            for field in table.schema
            if not types.is_boolean(field.type)
            and (is_suspicious or not _is_number(types, field.type))
        }
        found = arrow_csv.ConvertOptions(
            column_types=texts,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        again = arrow_csv.read_csv(path, convert_options=found, **given)
        for at, name in enumerate(table.column_names):
            if name not in texts:
                continue
            column = again.column(name)
            is_number = _is_number(types, table.schema.field(name).type)
            shown = column.to_pylist() if is_number else []
            if not is_number or any(text and NOT_PLAIN.match(text) for text in shown):
                table = table.set_column(at, name, column)
    reader = arrow.Reader(pa, rules, counts_time=True)
    entries = arrow.entries_of(asked, reader, table)
    return collection(cls, asked, entries, rules.masks, table.num_rows)


def _is_number(types: Any, kind: object) -> bool:
    return types.is_integer(kind) or types.is_floating(kind)


# Writing ------------------------------------------------------------------------------


def write(
    td: CollectionProtocol,
    path: str | os.PathLike[str],
    separator: str | None,
    options: dict[str, Any],
) -> None:
    """See :meth:`TensorDict.to_csv`."""
    import_pandas("to_csv")
    columns = columns_of("to_csv", td, separator)
    for name, column in columns.items():
        if isinstance(column, list):
            _check_values(name, column, options)
        elif column.dtype.kind == "c":
            kind = f"the dtype {column.dtype}"
            raise TypeError(MSG_CELLS.format(name, kind, MSG_CAST))
    frame = to_pandas(td, separator)
    texts = [*columns, *(each for each in columns.values() if isinstance(each, list))]
    if "quoting" not in options and any(map(_has_returns, texts)):
        # It ends a line for readers, and pandas does not quote it.
        options = {**options, "quoting": csv.QUOTE_NONNUMERIC}
    if options.get("mode", "w") not in ("w", "wb"):
        frame.to_csv(path, index=False, **options)
        return
    with files.replacing(path) as place:
        frame.to_csv(place, index=False, **options)


def _has_returns(text: object) -> bool:
    """Tell whether a text, or one of a list, has a carriage return."""
    if isinstance(text, list):
        return any(map(_has_returns, text))
    return isinstance(text, str) and "\r" in text


def _check_values(name: str, values: list[Any], options: dict[str, Any]) -> None:
    """Refuse values that cannot be read back.

    Raises:
        TypeError: they are of classes that become texts, or of several kinds.
        ValueError: all of them are texts which read as something else.
    """
    there = [value for value in values if value is not None]
    for value in there:
        if not isinstance(value, (*_PLAIN, *_TIMES)):
            found = f"the class {type(value).__name__}"
            raise TypeError(MSG_CELLS.format(name, found, MSG_CAST))
    texts = [value for value in there if isinstance(value, str)]
    if texts and len(texts) < len(there):
        raise TypeError(MSG_CELLS.format(name, "several kinds", MSG_MIXED))
    if not texts:
        return
    if "" in texts and "na_rep" not in options:
        raise ValueError(MSG_EMPTY.format(name))
    if "quoting" not in options and not options.get("na_rep"):
        shown = [text for text in texts if text not in _MISSING]
        read_as_numbers = all(
            _NUMBER.fullmatch(text) and not NOT_PLAIN.match(text) for text in shown
        )
        if read_as_numbers or all(text.lower() in _OTHER_TEXTS for text in shown):
            raise ValueError(MSG_LIKE_NUMBERS.format(name, texts[0]))
