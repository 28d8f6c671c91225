"""Non-tensor data as a column of bytes: strings, bytes, or the JSON of other values."""

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
"""The encoding of a column of strings."""

BYTES: Final = "bytes"
"""The encoding of a column of bytes, for example undecoded files."""

VALUES: Final = "json"
"""The encoding of a column of other values."""

CLASS_TEXT: Final = "tensordict:ColumnStack"
"""The class in the metadata of a directory with ragged columns or columns of values.

tensordict 0.15 does not know it, and reads ``_type``: a ``TensorDict`` of nested tensors.
"""

_TAGGED: Final = "!"
"""The key of a value that JSON alone would change."""

MSG_NO_TEXT = (
    "The entry {!r} is a column of {}, but a row holds {!r}: convert the value, or create "
    "the dataset with first rows that hold both types."
)
MSG_NO_JSON = (
    "The entry {!r} holds a value of type {}, which JSON cannot hold. A column takes "
    "strings, numbers, booleans, None, and lists, tuples and dicts of these."
)


def encoding_of(values: Sequence[Any]) -> str:
    """Return the encoding of a column whose first values are these."""
    for cls, encoding in ((str, TEXT), (bytes, BYTES)):
        if all(type(value) is cls for value in values):
            return encoding
    return VALUES


def encoded(values: Sequence[Any], encoding: str, key: object) -> list[bytes]:
    """Return the bytes of each value.

    Raises:
        TypeError: the column cannot hold a value.
    """
    if encoding in (TEXT, BYTES):
        cls = str if encoding == TEXT else bytes
        for value in values:
            if type(value) is not cls:
                raise TypeError(MSG_NO_TEXT.format(key, cls.__name__, value))
        if encoding == BYTES:
            return list(values)
        # A Python string may contain a lone surrogate, which strict UTF-8 refuses.
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
    """Return the shape of a list without values, such as ``[]`` and ``[[], []]``; else None."""
    if not isinstance(value, (list, tuple)):
        return None
    if not value:
        return [0]
    shapes = [empty_shape(item) for item in value]
    first = shapes[0]
    is_even = first is not None and all(shape == first for shape in shapes)
    return [len(value), *first] if is_even and first is not None else None


def decoded(bytes_: bytes, encoding: str) -> Any:
    """Return the value of some bytes."""
    if encoding == TEXT:
        return bytes_.decode("utf-8", "surrogatepass")
    if encoding == BYTES:
        return bytes_
    if not bytes_:
        # An empty list, from the time when all rows of the column were empty lists.
        return []
    value = json.loads(bytes_)
    if isinstance(value, dict) and list(value) == [_TAGGED]:
        return untagged(value[_TAGGED])
    return value
