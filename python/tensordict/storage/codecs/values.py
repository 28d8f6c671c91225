"""Values that are neither tensors nor collections: what Python and NumPy have and JSON not."""

from __future__ import annotations

import base64
import datetime as dt
import pathlib
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tensordict.storage.codecs.dtypes import dtype_of, name_of
from tensordict.storage.codecs.interface import Codec, Path, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tensordict.storage.encoding import Decoder, Encoder

__all__ = ["VALUES"]


def _text_of(content: bytes) -> str:
    """Return bytes as text."""
    return base64.b64encode(content).decode()


class Scalar(Codec):
    """The values of one class, which are one field of JSON.

    Args:
        name: the name of the kind in files.
        cls: the class.
        to_json: makes plain JSON of a value.
        of_json: makes the value again.
    """

    def __init__(
        self,
        name: str,
        cls: type,
        to_json: Callable[[Any], Any],
        of_json: Callable[[Any], Any],
    ) -> None:
        self.name = name
        self.classes: tuple[type, ...] = (cls,)
        self.to_json = to_json
        self.of_json = of_json

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the one field of a value."""
        return {"value": self.to_json(value)}

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the value of the field."""
        return self.of_json(fields["value"])


class PathCodec(Scalar):
    """Paths of files, those of other systems included."""

    def matches(self, value: object) -> bool:
        """Return whether a value is a path."""
        return isinstance(value, pathlib.PurePath)


class Span(Scalar):
    """Ranges and slices of whole numbers."""

    def __init__(self, cls: type) -> None:
        super().__init__(
            cls.__name__,
            cls,
            lambda span: [span.start, span.stop, span.step],
            lambda parts: cls(*parts),
        )
        self.cls = cls
        # A slice may be of anything: each value is looked at.
        self.classes: tuple[type, ...] = ()

    def matches(self, value: object) -> bool:
        """Return whether a value is one of whole numbers."""
        return type(value) is self.cls and all(
            part is None or isinstance(part, int) for part in self.to_json(value)
        )


class Sequence(Codec):
    """The values of a class of items.

    Args:
        name: the name of the kind in files.
        cls: the class.
        order: puts items in an order that does not depend on the run.
    """

    def __init__(
        self, name: str, cls: type, order: Callable[[Any], Iterable[Any]] = iter
    ) -> None:
        self.name = name
        self.classes: tuple[type, ...] = (cls,)
        self.order = order

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the items."""
        return {"items": encoder.items(self.order(value), path)}

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the items in the class."""
        return self.classes[0](decoder.decode(fields["items"]))


def _sorted(items: Iterable[Any]) -> list[Any]:
    """Equal sets make equal files."""
    return sorted(items, key=repr)


class Dict(Codec):
    """The dicts of a class, as pairs."""

    def __init__(self, name: str, cls: type) -> None:
        self.name = name
        self.classes: tuple[type, ...] = (cls,)

    def matches(self, value: object) -> bool:
        """Return whether it is a dict of a class of its own, such as torch's for states.

        Its values count, if it is made as a dict is.
        """
        makers = (dict.__init__, OrderedDict.__init__)
        return isinstance(value, dict) and type(value).__init__ in makers

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the pairs, and the versions that modules note in their states."""
        encode = encoder.encode
        pairs = [
            [encode(key, (*path, "key")), encode(item, (*path, str(key)))]
            for key, item in list(value.items())
        ]
        versions = getattr(value, "_metadata", None)
        if versions and type(value) is OrderedDict:
            metadata = encoder.encode(dict(versions), (*path, "_metadata"))
            return {"items": pairs, "metadata": metadata}
        return {"items": pairs}

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the dict of the pairs."""
        pairs = [tuple(decoder.decode(pair)) for pair in fields["items"]]
        made = self.classes[0](dict(pairs))
        if "metadata" in fields:
            made._metadata = OrderedDict(decoder.decode(fields["metadata"]))
        return made


def _checked(value: Value, path: Path, encoder: Encoder) -> np.ndarray[Any, Any]:
    """Return a value as an array whose bytes say all of it.

    Raises:
        TypeError: they do not: it is masked, or holds objects.
    """
    array = np.asarray(value)
    is_masked = type(value) is not np.ndarray and np.ma.is_masked(value)
    if is_masked or array.dtype.hasobject or array.dtype.kind == "V":
        raise encoder.refusal(
            path, f"{type(value).__name__} of the dtype {array.dtype}"
        )
    return array


class NumPyScalar(Codec):
    """A scalar, as the text of its bytes."""

    name = "numpy scalar"

    def matches(self, value: object) -> bool:
        """Return whether a value is a scalar of NumPy."""
        return isinstance(value, np.generic)

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return dtype and bytes."""
        array = _checked(value, path, encoder)
        return {"dtype": array.dtype.str, "bytes": _text_of(array.tobytes())}

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the scalar."""
        content = base64.b64decode(fields["bytes"])
        return np.frombuffer(content, np.dtype(fields["dtype"]))[0]


class Array(Codec):
    """An array, as a tensor of its bytes."""

    name = "array"

    def matches(self, value: object) -> bool:
        """Return whether a value is an array."""
        return isinstance(value, np.ndarray)

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return dtype, shape and the name of the bytes."""
        array = _checked(value, path, encoder)
        content = np.frombuffer(array.tobytes(), np.uint8).copy()
        return {
            **encoder.take(torch.from_numpy(content), ".".join(path) or "value"),
            "dtype": array.dtype.str,
            "shape": list(array.shape),
        }

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the array."""
        content = decoder.named(fields["name"]).numpy().tobytes()
        array = np.frombuffer(content, np.dtype(fields["dtype"])).copy()
        return array.reshape(fields["shape"])


VALUES: Final[tuple[Codec, ...]] = (
    NumPyScalar(),
    Array(),
    # Finite numbers are JSON themselves.
    Scalar("float", float, repr, float),
    Scalar("bytes", bytes, _text_of, base64.b64decode),
    Scalar(
        "bytearray", bytearray, _text_of, lambda text: bytearray(base64.b64decode(text))
    ),
    Scalar(
        "complex",
        complex,
        lambda value: [repr(value.real), repr(value.imag)],
        lambda parts: complex(float(parts[0]), float(parts[1])),
    ),
    Scalar("dtype", torch.dtype, name_of, dtype_of),
    Scalar("device", torch.device, str, torch.device),
    Span(range),
    Span(slice),
    PathCodec("path", pathlib.Path, str, pathlib.Path),
    Scalar("date", dt.date, dt.date.isoformat, dt.date.fromisoformat),
    Scalar("datetime", dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    Scalar("time", dt.time, dt.time.isoformat, dt.time.fromisoformat),
    Scalar(
        "timedelta",
        dt.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: dt.timedelta(*parts),
    ),
    Sequence("tuple", tuple),
    Sequence("set", set, _sorted),
    Sequence("frozenset", frozenset, _sorted),
    Sequence("deque", deque),
    Sequence("size", torch.Size),
    Dict("dict", dict),
    Dict("ordered", OrderedDict),
    Dict("counter", Counter),
)
"""The codecs of values, in the order in which they are asked."""
