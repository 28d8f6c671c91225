"""Reading and writing of JSON files: an array of records, or one record a line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.interop.tables import files
from tensordict.interop.tables.columns import (
    Asked,
    as_entries,
    collection,
    flat_columns,
    rows_of,
    rules_of,
)
from tensordict.interop.tables.json_texts import column_of, records
from tensordict.interop.tables.pandas import from_pandas, import_pandas, to_pandas
from tensordict.interop.tables.rules import Path, Rules, cells

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from tensordict.containers.nontensor.stack import NonTensorStack
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["read", "write"]

MSG_TWICE = "from_json got a record with two fields of one name among {}."
MSG_NO_RECORDS = (
    "from_json expects an array of records, such as [{{'a': 1}}, {{'a': 2}}], but found {}. "
    "Pass lines=True for a file of one record a line; convert a single object with "
    "TensorDict.from_dict."
)
MSG_LINE = "{}: line {} is no record of JSON ({})."
OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
PANDAS_SUFFIXES = (".zip", ".tar", ".zst")
"""The suffixes of compressed files that are opened by pandas."""


# Reading ------------------------------------------------------------------------------


def read(
    cls: type, asked: Asked, path: Any, lines: bool, options: dict[str, Any]
) -> Any:
    """See :meth:`TensorDict.from_json`."""
    rules = rules_of(asked)
    is_path = not hasattr(path, "read")
    if options or (is_path and not _is_plain(path)):
        return _read_with_pandas(cls, asked, path, lines, options)
    if is_path:
        opener = OPENERS.get(str(path)[str(path).rfind(".") :], open)
        with opener(path, "rt", encoding="utf-8") as file:
            text = file.read()
    else:
        text = path.read()
        text = text if isinstance(text, str) else text.decode()
    shown = path if is_path else "from_json"
    parsed = [*_records_of_lines(shown, text)] if lines else _parsed(text)
    if isinstance(parsed, dict):
        if not any(isinstance(value, (dict, list)) for value in parsed.values()):
            raise ValueError(MSG_NO_RECORDS.format("a single object"))
        if not all(isinstance(value, list) for value in parsed.values()):
            # The columns map row names to values; pandas orders the rows.
            import io

            return _read_with_pandas(cls, asked, io.StringIO(text), lines, options)
        columns = parsed
        rows = len(next(iter(parsed.values()), ()))
        if any(len(values) != rows for values in parsed.values()):
            msg = "All arrays must be of the same length: from_json got columns that differ."
            raise ValueError(msg)
    else:
        columns = _columns(parsed)
        rows = len(parsed)
    paths = as_entries(asked, list(columns))
    entries = {
        path: _entry(rules, path, values)
        for path, values in zip(paths, columns.values(), strict=True)
    }
    return collection(cls, asked, entries, rules.masks, rows)


def _is_plain(path: object) -> bool:
    return files.is_local(path) and not str(path).endswith(PANDAS_SUFFIXES)


def _read_with_pandas(
    cls: type, asked: Asked, path: object, lines: bool, options: dict[str, Any]
) -> Any:
    pd = import_pandas(asked.method)
    # Text must stay text, also if it looks like a number or a date.
    as_written: dict[str, Any] = {"dtype": False, "precise_float": True}
    if int(pd.__version__.partition(".")[0]) < 3:
        # pandas 3 converts no dates, and warns about the option.
        as_written["convert_dates"] = False
    frame = pd.read_json(path, lines=lines, **{**as_written, **options})
    return from_pandas(cls, asked, frame)


def _parsed(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_record)


def _record(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError(MSG_TWICE.format([key for key, _ in pairs]))
    return record


def _records_of_lines(shown: object, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield _parsed(line)
            except ValueError as error:
                raise ValueError(MSG_LINE.format(shown, number, error)) from None


def _columns(records: object) -> dict[str, list[Any]]:
    """Return the values of each field, None for records without it."""
    if not isinstance(records, list) or not all(
        isinstance(record, dict) for record in records
    ):
        description = type(records).__name__
        if isinstance(records, list):
            odd = next(record for record in records if not isinstance(record, dict))
            description = f"an array with {type(odd).__name__} in it"
        raise ValueError(MSG_NO_RECORDS.format(description))
    names: dict[str, None] = {}
    for record in records:
        if record.keys() != names.keys():
            names.update(dict.fromkeys(record))
    return {name: [record.get(name) for record in records] for name in names}


def _entry(
    rules: Rules, path: Path, values: list[Any]
) -> torch.Tensor | NonTensorStack:
    """Convert the values of a field to an entry."""
    kinds = set(map(type, values))
    is_missing = type(None) in kinds
    kinds.discard(type(None))
    if is_missing:
        valid = np.array([value is not None for value in values], dtype=bool)
        count = len(values) - int(valid.sum())
        rules.note(path, count, lambda: torch.from_numpy(valid))
    if kinds <= {int, float} or (kinds == {bool} and (not is_missing or rules.fills)):
        numbers = _numbers(values, kinds)
        if numbers is not None and is_missing:
            return rules.numbers(path, numbers, valid)
        if numbers is not None:
            return rules.cast(path, torch.from_numpy(numbers))
    if kinds == {list} and not is_missing:
        tensor = _block(values)
        if tensor is not None:
            return rules.cast(path, tensor)
    return cells(values)


def _numbers(values: list[Any], kinds: set[type]) -> Any:
    """Return numbers ``[N]``; None if no dtype holds all of them exactly."""
    filled = [0 if value is None else value for value in values]
    if kinds == {bool}:
        return np.array(filled, dtype=bool)
    if kinds == {int}:
        least, most = min(filled), max(filled)
        if least >= -(1 << 63) and most < 1 << 63:
            return np.array(filled, dtype=np.int64)
        if least >= 0 and most < 1 << 64:
            return np.array(filled, dtype=np.uint64)
        return None
    if kinds == {float, int}:
        beyond = [v for v in filled if type(v) is int and abs(v) > 1 << 53]
        if any(float(v) != v for v in beyond if abs(v) < 1 << 1023) or any(
            abs(v) >= 1 << 1023 for v in beyond
        ):
            return None
    return np.array(filled, dtype=np.float64)


def _block(values: list[Any]) -> torch.Tensor | None:
    """Return a tensor ``[N, *F]`` of lists of numbers of one shape, otherwise None."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        return None
    flat: list[Any] = values
    for _ in range(array.ndim - 1):
        if not all(isinstance(value, list) for value in flat):
            return None
        flat = [item for value in flat for item in value]
    kinds = set(map(type, flat))
    if kinds not in ({bool}, {int}, {float}, {int, float}):
        return None
    numbers = _numbers(flat, kinds)
    return None if numbers is None else torch.from_numpy(numbers.reshape(array.shape))


# Writing ------------------------------------------------------------------------------


def write(
    td: CollectionProtocol,
    path: str | os.PathLike[str],
    separator: str | None,
    lines: bool,
    options: dict[str, Any],
) -> None:
    """See :meth:`TensorDict.to_json`."""
    if options:
        frame = to_pandas(td, separator)
        with files.replacing(path) as target:
            frame.to_json(
                target,
                lines=lines,
                **{"orient": "records", "double_precision": 15, **options},
            )
        return
    columns = flat_columns("to_json", td, separator)
    rows = rows_of("to_json", td, columns)
    converted = {name: column_of(name, value, rows) for name, value in columns.items()}
    pieces = records(converted, rows if converted else 0, lines)
    if hasattr(path, "write"):
        _write_to(path, pieces)
        return
    with files.replacing(path) as target:
        if not _is_plain(path):
            frame = to_pandas(td, separator)
            frame.to_json(target, orient="records", lines=lines, double_precision=15)
            return
        opener = OPENERS.get(str(path)[str(path).rfind(".") :], open)
        with opener(target, "wb") as file:
            file.writelines(pieces)


def _write_to(file: Any, pieces: Iterator[bytes]) -> None:
    """Write to an open text or binary file."""
    is_text = hasattr(file, "encoding") or (
        hasattr(file, "getvalue") and isinstance(file.getvalue(), str)
    )
    for piece in pieces:
        file.write(piece.decode() if is_text else piece)
