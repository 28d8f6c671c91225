"""Reading and writing of CSV files.

CSV has no types. A column becomes numbers if all its cells are numbers in their usual
form: ``007``, with leading zeros, is text. A text column keeps each cell as it is
written, also texts that pandas reads as missing values (NA, null). An empty cell is a
missing value.
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
    "{} reads a whole file, but got {}: omit chunksize and iterator, or read the pieces "
    "with pandas and pass each of them to from_pandas."
)
MSG_CELLS = "to_csv got the entry {!r} with values of {}, which a CSV file would turn into text. {}"
MSG_CAST = "Convert them to text or numbers, or write the entry with to_parquet."
MSG_MIXED = "A column has one kind: convert the values to text, or to numbers."
MSG_LIKE_NUMBERS = (
    "to_csv got the entry {!r} of texts which read as numbers, such as {!r}: a reader "
    "cannot tell them from numbers. Convert the entry to numbers, write it with "
    "to_parquet or to_json, or pass quoting= (such as csv.QUOTE_NONNUMERIC) to write it "
    "anyway."
)
MSG_EMPTY = (
    "to_csv got the entry {!r} with an empty text, which a reader cannot tell from a "
    "missing value. Write it with to_parquet or to_json, or pass na_rep=, the text of "
    "missing values, to write it anyway."
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
"""Options of pandas for the conversion of cells: if one is passed, pandas converts."""

NOT_PLAIN = re.compile(r"[+-]?0\d|\+\d", re.ASCII)
"""The beginning of a cell that changes if it is read and written as a number."""

PIECE = 1 << 18
"""The bytes of a file that are scanned at a time: they fit into the processor's cache."""

_NUMBER = re.compile(
    r"\s*[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf(?:inity)?)\s*",
    re.ASCII | re.IGNORECASE,
)
_OTHER_TEXTS = frozenset({"true", "false"})
"""Texts that are read as booleans."""

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
"""Texts that pandas reads as missing values in a column of numbers."""

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
        # The content may be read twice.
        content = path.read()
        buffer = io.StringIO if isinstance(content, str) else io.BytesIO
        path = buffer(content)
    if options.keys() & CONVERSIONS:
        frame = pd.read_csv(path, **_exact(pd, options))
        _refuse_pieces(asked, pd, frame)
    else:
        frame = _as_written(asked, pd, path, options)
    return from_pandas(cls, asked, frame)


def _exact(pd: ModuleType, options: dict[str, Any]) -> dict[str, Any]:
    """Add the option that makes pandas read floating point exactly."""
    # pandas 3 always reads exactly, and warns about the option.
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
    """Read a frame whose texts, and integers beside missing values, are exact."""
    frame = _typed(asked, pd, path, options)
    is_suspicious = _is_suspicious(path)
    texts_at, numbers_at = [], []
    for index, dtype in enumerate(frame.dtypes):
        if isinstance(dtype, pd.StringDtype):
            if frame.iloc[:, index].isna().any():
                texts_at.append(index)
        elif isinstance(dtype, np.dtype) and dtype.kind == "O":
            # Parts of the column looked like numbers.
            texts_at.append(index)
        elif is_suspicious and getattr(dtype, "kind", "O") in "iuf":
            numbers_at.append(index)
    if not texts_at and not numbers_at:
        return frame
    _rewind(path)
    texts = pd.read_csv(path, dtype=str, keep_default_na=False, **options)
    columns = [frame.iloc[:, index] for index in range(frame.shape[1])]
    for index in texts_at + numbers_at:
        column = texts.iloc[:, index]
        if index in texts_at or column.str.match(NOT_PLAIN.pattern, na=False).any():
            column.index = frame.index
            columns[index] = column.mask(column == "")
    return pd.concat(columns, axis=1)


def _typed(asked: Asked, pd: ModuleType, path: object, options: dict[str, Any]) -> Any:
    """Read a frame whose integers and booleans beside missing values are exact.

    Nullable dtypes take 1.5 times as long, so they are used only if other dtypes lose
    values.
    """
    with warnings.catch_warnings():
        # Columns of several types are read again, as text.
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        options = _exact(pd, options)
        frame = pd.read_csv(path, **options)
        _refuse_pieces(asked, pd, frame)
        if any(_may_lose(frame.iloc[:, at]) for at in range(frame.shape[1])):
            _rewind(path)
            frame = pd.read_csv(path, dtype_backend="numpy_nullable", **options)
    return frame


def _may_lose(column: Any) -> bool:
    """Return whether a column may hold integers or booleans beside missing values."""
    if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "fO":
        return False
    if column.dtype.kind == "O":
        return True
    values = column.to_numpy()
    present = values[~np.isnan(values)]
    return len(present) < len(values) and bool((present == np.trunc(present)).all())


def _is_suspicious(path: str | os.PathLike[str]) -> bool:
    """Return whether a number in a file may have leading zeros or a plus sign."""
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
    """Return whether a number may begin with a plus sign or with a zero before a digit.

    A regular expression would take four times as long as pandas takes to read the file.
    """
    before = b"  "
    while True:
        content = file.read(PIECE)
        # Pieces overlap: a byte is judged with two bytes before it and one after it.
        piece = before + (content or b" ")
        if b"\0" in content or _begins_oddly(np.frombuffer(piece, np.uint8)):
            return True
        if not content:
            return False
        before = piece[-3:]


def _begins_oddly(text: np.ndarray[Any, Any]) -> bool:
    """Return whether a number begins oddly, from the third byte to the last but one."""
    is_digit = (text - np.uint8(ord("0"))) < 10
    # Bytes that may be inside of a number: digits, a point, an exponent.
    is_inside = is_digit | (text == ord(".")) | ((text | 0x20) == ord("e"))
    judged = text[2:-1]
    begins = (judged == ord("0")) | (judged == ord("+"))
    begins &= ~is_inside[1:-2]
    begins &= is_digit[3:]
    positions = np.flatnonzero(begins) + 2
    # A zero after a sign may belong to an exponent or a date.
    sign = text[positions - 1]
    may_be_inside = ((sign == ord("-")) | (sign == ord("+"))) & (
        text[positions] != ord("+")
    )
    return not (may_be_inside & is_inside[positions - 2]).all()


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
    read_options = dict(options)
    convert = read_options.pop("convert_options", None)
    table = arrow_csv.read_csv(path, convert_options=convert, **read_options)
    if convert is None:
        types = pa.types
        is_suspicious = _is_suspicious(path)
        texts = {
            field.name: pa.string()
            for field in table.schema
            if not types.is_boolean(field.type)
            and (is_suspicious or not _is_number(types, field.type))
        }
        as_texts = arrow_csv.ConvertOptions(
            column_types=texts,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        text_table = arrow_csv.read_csv(path, convert_options=as_texts, **read_options)
        for index, name in enumerate(table.column_names):
            if name not in texts:
                continue
            column = text_table.column(name)
            is_number = _is_number(types, table.schema.field(name).type)
            shown = column.to_pylist() if is_number else []
            if not is_number or any(text and NOT_PLAIN.match(text) for text in shown):
                table = table.set_column(index, name, column)
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
    lists = [column for column in columns.values() if isinstance(column, list)]
    texts = [*columns, *lists]
    if "quoting" not in options and any(map(_has_returns, texts)):
        # Readers take a carriage return as the end of a line; pandas does not quote it.
        options = {**options, "quoting": csv.QUOTE_NONNUMERIC}
    if options.get("mode", "w") not in ("w", "wb"):
        frame.to_csv(path, index=False, **options)
        return
    with files.replacing(path) as place:
        frame.to_csv(place, index=False, **options)


def _has_returns(text: object) -> bool:
    """Return whether a text, or a text in a list, contains a carriage return."""
    if isinstance(text, list):
        return any(map(_has_returns, text))
    return isinstance(text, str) and "\r" in text


def _check_values(name: str, values: list[Any], options: dict[str, Any]) -> None:
    """Raise an error for values that cannot be read back.

    Raises:
        TypeError: values have classes that become text, or are of several kinds.
        ValueError: a text is empty, or all texts look like numbers or booleans.
    """
    present = [value for value in values if value is not None]
    for value in present:
        if not isinstance(value, (*_PLAIN, *_TIMES)):
            found = f"the class {type(value).__name__}"
            raise TypeError(MSG_CELLS.format(name, found, MSG_CAST))
    texts = [value for value in present if isinstance(value, str)]
    if texts and len(texts) < len(present):
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
