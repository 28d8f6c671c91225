"""Values that are no tensors, as a column of bytes: texts, bytes, or JSON of others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tensordict.storage.extra_metadata import as_plain, tagged, untagged

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CLASS_TEXT",
    "TEXT",
    "VALUES",
    "decoded",
    "empty_shape",
    "encoded",
    "encoding_of",
]

TEXT: Final = "utf-8"
"""The encoding of a column of texts."""

BYTES: Final = "bytes"
"""The encoding of a column of bytes, such as files that are not decoded."""

VALUES: Final = "json"
"""The encoding of a column of other values."""

CLASS_TEXT: Final = "tensordict:ColumnStack"
"""The class that the metadata names where there are columns of rows that differ in size.

tensordict 0.15 does not know it, and goes by ``_type``: a ``TensorDict`` of nested tensors.
"""

_TAGGED: Final = "!"
"""The key of a value that JSON alone would change."""

MSG_NO_TEXT = (
    "The entry {!r} is a column of {}, and a row has {!r}: convert that, or make the "
    "dataset with values of both kinds in its first rows."
)
MSG_NO_JSON = (
    "The entry {!r} has a value of type {}, which JSON cannot hold. A column takes "
    "texts, numbers, booleans, None, and lists, tuples and dicts of these."
)


def encoding_of(values: Sequence[Any]) -> str:
    """The encoding of a column that begins with these values."""
    for cls, encoding in ((str, TEXT), (bytes, BYTES)):
        if all(type(value) is cls for value in values):
            return encoding
    return VALUES


def encoded(values: Sequence[Any], encoding: str, key: object) -> list[bytes]:
    """The bytes of each value.

    Raises:
        TypeError: a value is none that the column can hold.
    """
    if encoding in (TEXT, BYTES):
        cls = str if encoding == TEXT else bytes
        for value in values:
            if type(value) is not cls:
                raise TypeError(MSG_NO_TEXT.format(key, cls.__name__, value))
        if encoding == BYTES:
            return list(values)
        # Half of a surrogate pair is no UTF-8, and a text of Python all the same.
        return [value.encode("utf-8", "surrogatepass") for value in values]
    return [_as_json(value, key) for value in values]


def _as_json(value: object, key: object) -> bytes:
    try:
        plain, is_same = as_plain(value)
    except (TypeError, ValueError):
        raise TypeError(MSG_NO_JSON.format(key, type(value).__name__)) from None
    is_taken = isinstance(plain, dict) and list(plain) == [_TAGGED]
    kept = plain if is_same and not is_taken else {_TAGGED: tagged(value)}
    return json.dumps(kept).encode()


def empty_shape(value: object) -> list[int] | None:
    """The shape of a list without values, such as ``[]`` and ``[[], []]``; else None."""
    if not isinstance(value, (list, tuple)):
        return None
    if not value:
        return [0]
    shapes = [empty_shape(item) for item in value]
    first = shapes[0]
    is_even = first is not None and all(shape == first for shape in shapes)
    return [len(value), *first] if is_even and first is not None else None


def decoded(bytes_: bytes, encoding: str) -> Any:
    """The value of its bytes."""
    if encoding == TEXT:
        return bytes_.decode("utf-8", "surrogatepass")
    if encoding == BYTES:
        return bytes_
    if not bytes_:
        # A list of a column that had empty ones alone, which could be of anything.
        return []
    value = json.loads(bytes_)
    if isinstance(value, dict) and list(value) == [_TAGGED]:
        return untagged(value[_TAGGED])
    return value
