"""Codecs of Python and NumPy values that JSON cannot hold."""

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
    """Return bytes as Base64 text."""
    return base64.b64encode(content).decode()


class Scalar(Codec):
    """The codec of a class whose values are one field of JSON.

    Args:
        name: the name of the kind in files.
        cls: the class.
        to_json: a function that converts a value to plain JSON.
        of_json: a function that converts the JSON back.
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
        """Return the field of a value."""
        return {"value": self.to_json(value)}

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the value of the field."""
        return self.of_json(fields["value"])


class PathCodec(Scalar):
    """The codec of paths, including paths of other systems."""

    def matches(self, value: object) -> bool:
        """Return whether a value is a path."""
        return isinstance(value, pathlib.PurePath)


class Span(Scalar):
    """The codec of ranges and slices of integers."""

    def __init__(self, cls: type) -> None:
        super().__init__(
            cls.__name__,
            cls,
            lambda span: [span.start, span.stop, span.step],
            lambda parts: cls(*parts),
        )
        self.cls = cls
        # No classes: a slice may hold other objects than integers, so `matches` decides.
        self.classes: tuple[type, ...] = ()

    def matches(self, value: object) -> bool:
        """Return whether a value is a range or slice of integers."""
        return type(value) is self.cls and all(
            part is None or isinstance(part, int) for part in self.to_json(value)
        )


class Sequence(Codec):
    """The codec of a class of sequences or sets.

    Args:
        name: the name of the kind in files.
        cls: the class.
        order: a function that returns the items in an order that is the same in every run.
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
        """Return a sequence of the class with the items."""
        return self.classes[0](decoder.decode(fields["items"]))


def _sorted(items: Iterable[Any]) -> list[Any]:
    """Return the items in an order by which equal sets make equal files."""
    return sorted(items, key=repr)


class Dict(Codec):
    """The codec of a class of dicts, as pairs."""

    def __init__(self, name: str, cls: type) -> None:
        self.name = name
        self.classes: tuple[type, ...] = (cls,)

    def matches(self, value: object) -> bool:
        """Return whether a value is a dict of a derived class, for example a state dict.

        The class must have the constructor of ``dict`` or ``OrderedDict``.
        """
        makers = (dict.__init__, OrderedDict.__init__)
        return isinstance(value, dict) and type(value).__init__ in makers

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the pairs, and the versions of modules in a state dict."""
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
        value = self.classes[0](dict(pairs))
        if "metadata" in fields:
            value._metadata = OrderedDict(decoder.decode(fields["metadata"]))
        return value


def _checked(value: Value, path: Path, encoder: Encoder) -> np.ndarray[Any, Any]:
    """Return a value as an array whose bytes hold all of it.

    Raises:
        TypeError: the array is masked, structured, or holds objects.
    """
    array = np.asarray(value)
    is_masked = type(value) is not np.ndarray and np.ma.is_masked(value)
    if is_masked or array.dtype.hasobject or array.dtype.kind == "V":
        raise encoder.refusal(
            path, f"{type(value).__name__} of the dtype {array.dtype}"
        )
    return array


class NumPyScalar(Codec):
    """The codec of NumPy scalars, as the text of their bytes."""

    name = "numpy scalar"

    def matches(self, value: object) -> bool:
        """Return whether a value is a NumPy scalar."""
        return isinstance(value, np.generic)

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the dtype and the bytes."""
        array = _checked(value, path, encoder)
        return {"dtype": array.dtype.str, "bytes": _text_of(array.tobytes())}

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the scalar."""
        content = base64.b64decode(fields["bytes"])
        return np.frombuffer(content, np.dtype(fields["dtype"]))[0]


class Array(Codec):
    """The codec of NumPy arrays, as tensors of their bytes."""

    name = "array"

    def matches(self, value: object) -> bool:
        """Return whether a value is an array."""
        return isinstance(value, np.ndarray)

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the dtype, the shape and the name of the bytes."""
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
    # Only for nan and infinities: JSON holds finite numbers.
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
"""The codecs of values, in the order in which they are tried."""
