"""States as JSON and tensors, and back: values come back as what they were.

JSON has text, numbers, truth values, None, lists, and dicts whose keys are text. Everything
else is an object with the key ``$``, which says what it is::

    {"$": "tuple", "items": [1, 2]}          {"$": "tensor", "name": "state.0.exp_avg"}

Nothing is ever imported or called by its name: what is not listed here is refused when it
is saved.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import pathlib
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.primitives import classes, registry
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.safetensors_levels import Reader, Writer
from tensordict.storage.sharded import Layout, is_sharded, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensordict.storage.safetensors_levels import Leaf

__all__ = ["Decoder", "Encoder", "dtype_of", "in_format"]

MAX_DEPTH = 150
"""The depth to which values may be nested: Python writes and reads JSON recursively."""

MSG_TYPE = (
    "Cannot save the value at {place} in a checkpoint: a {cls} is neither a tensor, nor a "
    "collection, nor plain data (numbers, text, bytes, None, dicts, lists, tuples, sets, "
    "arrays). Save its state: what has state_dict() and load_state_dict() is an item of "
    "its own."
)
MSG_DEPTH = (
    "Cannot save the value at {}: it is nested more than {} times, or holds itself."
)
MSG_MISSING = "'{}' is damaged: the tensor {!r} is missing."
MSG_UNKNOWN = (
    "This version of tensordict cannot read a value of the kind {!r}: upgrade it."
)

_FORMAT_DTYPES = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    *(
        getattr(torch, name)
        for name in (
            "uint16",
            "uint32",
            "uint64",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
        )
        if hasattr(torch, name)
    ),
}
"""The dtypes that the safetensors format has; tensors of others are kept as bytes."""


class Encoder:
    """Makes JSON of a state, and collects its tensors under names.

    A tensor that occurs twice, and one that is tied to another, is kept once.

    Args:
        item: the name of what the state is of, for messages.
    """

    def __init__(self, item: str) -> None:
        self.item = item
        self.tensors: dict[str, Leaf] = {}
        self.sharded: dict[str, tuple[Layout, Any]] = {}
        """The ``DTensor`` values by their keys: each rank saves parts of them."""
        self._names: dict[Any, str] = {}
        # Numbers tell objects apart only while these live.
        self._held: list[Any] = []

    def encode(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """The JSON of a value.

        Raises:
            TypeError: it is of a type that a checkpoint cannot hold.
            RecursionError: it is nested too deep.
        """
        cls: Any = type(value)
        if value is None or cls in (bool, int, str):
            return value
        if cls is float:
            if math.isfinite(value):
                return value
            return {"$": "float", "value": repr(value)}
        if isinstance(value, torch.Tensor):
            return self.tensor(value, path)
        if len(path) > MAX_DEPTH:
            raise RecursionError(MSG_DEPTH.format(self._place(path[:5]), MAX_DEPTH))
        if isinstance(value, CollectionProtocol):
            return self._collection(value, path)
        if cls is list:
            return self._items(value, path)
        if cls in (dict, OrderedDict, Counter):
            return self._dict(value, cls, path)
        kind = _KIND_OF_SEQUENCE.get(cls)
        if kind is not None:
            items = value
            if cls in (set, frozenset):
                # Equal sets make equal files.
                items = sorted(value, key=repr)
            return {"$": kind, "items": self._items(items, path)}
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value, path)
        encoded = _encode_scalar(value)
        if encoded is not None:
            return encoded
        if (
            isinstance(value, Mapping)
            and hasattr(value, "items")
            and cls.__init__
            in (
                dict.__init__,
                OrderedDict.__init__,
            )
        ):
            # A dict of a class of its own, such as torch's for states: its values count.
            return self._dict(value, dict, path)
        raise TypeError(
            MSG_TYPE.format(
                place=self._place(path), cls=f"{cls.__module__}.{cls.__qualname__}"
            )
        )

    def _place(self, path: tuple[str, ...]) -> str:
        return "".join([self.item, *(f"[{part!r}]" for part in path)])

    def _items(self, values: Iterator[Any], path: tuple[str, ...]) -> list[Any]:
        return [
            self.encode(item, (*path, str(number)))
            for number, item in enumerate(list(values))
        ]

    def _dict(self, value: Any, cls: type, path: tuple[str, ...]) -> Any:
        pairs = list(value.items())
        is_plain = cls is dict and all(type(key) is str for key, _ in pairs)
        if is_plain and "$" not in value:
            return {key: self.encode(item, (*path, key)) for key, item in pairs}
        kind = _KIND_OF_DICT[cls]
        versions = getattr(value, "_metadata", None) if cls is OrderedDict else None
        if versions:
            # Modules note versions in their states.
            return {
                **self._pairs(kind, pairs, path),
                "metadata": self.encode(dict(versions), (*path, "_metadata")),
            }
        return self._pairs(kind, pairs, path)

    def _pairs(
        self, kind: str, pairs: list[tuple[Any, Any]], path: tuple[str, ...]
    ) -> dict[str, Any]:
        items = [
            [self.encode(key, (*path, "key")), self.encode(item, (*path, str(key)))]
            for key, item in pairs
        ]
        return {"$": kind, "items": items}

    def tensor(self, value: torch.Tensor, path: tuple[str, ...]) -> dict[str, Any]:
        """The JSON of a tensor, which is taken under a name made of its path."""
        if is_sharded(value):
            return self._sharded(value.detach(), path)
        if isinstance(value, torch.nn.Parameter):
            inner = self.tensor(value.detach(), path)
            return {"$": "parameter", "value": inner, "trains": value.requires_grad}
        trains = value.requires_grad and value.is_leaf
        if value.requires_grad or type(value) is not torch.Tensor:
            value = value.detach()
        if value.layout != torch.strided:
            return self._sparse(value, path)
        if value.is_nested or value.is_quantized:
            is_quantized = value.is_quantized
            cls = "quantized tensor" if is_quantized else "strided nested tensor"
            cls = f"{cls} ({value.dtype})"
            raise TypeError(MSG_TYPE.format(place=self._place(path), cls=cls))
        encoded = {"$": "tensor", **self.take(value, ".".join(path) or "value")}
        if trains:
            encoded["trains"] = True
        if value.device.type != "cpu":
            encoded["device"] = str(value.device)
        return encoded

    def _sharded(self, value: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """The JSON of a tensor of which each rank has a part."""
        known = self._unused(".".join(path) or "value")
        layout = layout_of(value, self._place(path))
        self.sharded[known] = layout, value
        dtype = str(value.dtype).removeprefix("torch.")
        return {
            "$": "sharded",
            "key": known,
            "shape": list(layout.shape),
            "dtype": dtype,
            "placements": list(layout.placements),
        }

    def _sparse(self, value: torch.Tensor, path: tuple[str, ...]) -> dict[str, Any]:
        if value.layout == torch.jagged:
            offsets = value.offsets()  # type: ignore[attr-defined]
            parts = {"values": value.values(), "offsets": offsets}
            encoded = {
                key: self.tensor(part, (*path, key)) for key, part in parts.items()
            }
            return {"$": "jagged", **encoded}
        if value.layout != torch.sparse_coo:
            raise TypeError(
                MSG_TYPE.format(place=self._place(path), cls=f"{value.layout} tensor")
            )
        return {
            "$": "sparse",
            "indices": self.tensor(value._indices(), (*path, "indices")),
            "values": self.tensor(value._values(), (*path, "values")),
            "shape": list(value.shape),
            "is_coalesced": value.is_coalesced(),
        }

    def take(self, value: torch.Tensor, name: str) -> dict[str, Any]:
        """Take a dense tensor, under a name of its own: the fields that lead to it."""
        identity = _identity(value)
        known = None if identity is None else self._names.get(identity)
        if known is None:
            known = self._unused(name)
            if identity is not None:
                self._names[identity] = known
                self._held.append(value)
            self.tensors[known] = in_format(value)
        fields: dict[str, Any] = {"name": known}
        if value.dtype not in _FORMAT_DTYPES:
            fields["dtype"] = str(value.dtype).removeprefix("torch.")
            fields["shape"] = list(value.shape)
        return fields

    def _unused(self, name: str) -> str:
        if name == "__metadata__":
            name = "__metadata__~"
        found, number = name, 1
        while found in self.tensors or found in self.sharded:
            number += 1
            found = f"{name}~{number}"
        return found

    def _array(self, value: object, path: tuple[str, ...]) -> dict[str, Any]:
        array = np.asarray(value)
        is_masked = type(value) is not np.ndarray and np.ma.is_masked(value)
        if is_masked or array.dtype.hasobject or array.dtype.kind == "V":
            cls = f"{type(value).__name__} of the dtype {array.dtype}"
            raise TypeError(MSG_TYPE.format(place=self._place(path), cls=cls))
        if isinstance(value, np.generic):
            return {
                "$": "numpy scalar",
                "dtype": array.dtype.str,
                "bytes": _text_of(array.tobytes()),
            }
        content = np.frombuffer(array.tobytes(), np.uint8).copy()
        fields = self.take(torch.from_numpy(content), ".".join(path) or "value")
        return {
            "$": "array",
            **fields,
            "dtype": array.dtype.str,
            "shape": list(array.shape),
        }

    def _collection(self, value: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if value._is_non_tensor:
            kind = "column" if hasattr(value, "tensordicts") else "non tensor"
            data = value.tolist() if kind == "column" else value.data
            return {
                "$": kind,
                "class": type(value).__name__,
                "data": self.encode(data, (*path, "data")),
                "shape": list(value.batch_size),
            }
        if is_lazy(value):
            return {
                "$": "stack",
                "members": self._items(value.tensordicts, path),
                "dim": value.stack_dim,
                "names": list(value.names) if value._has_names() else None,
            }
        writer = _ItemWriter(self)
        prefix = path or ()
        level = value._to_level(writer, prefix)
        names = {}
        for name, leaf in writer.tensors.items():
            if isinstance(leaf, torch.Tensor):
                fields = self.take(leaf, name)
            else:
                fields = {"name": self._unused(name)}
                self.tensors[fields["name"]] = leaf
            if fields != {"name": name}:
                names[name] = fields
        encoded = {"$": "collection", "path": list(prefix), "level": level}
        encoded["names"] = list(writer.tensors)
        if names:
            encoded["renamed"] = names
        return encoded


def is_lazy(value: object) -> bool:
    """Return whether a collection is a lazy stack itself, no view or wrapper of one."""
    return isinstance(value, classes.LazyStackedTensorDict)


class _ItemWriter(Writer):
    """A writer of levels that has a place for what safetensors files alone have not.

    Args:
        encoder: takes lazy stacks, columns of values, and values that are no JSON.
    """

    takes_columns = True

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def value(self, value: object, path: tuple[str, ...], kind: str) -> dict[str, Any]:
        """The entry of a value that is no tensor."""
        entry = {"encoded": self.encoder.encode(value, path)}
        return entry if kind == "NonTensorData" else {**entry, "kind": kind}

    def column(
        self, stack: CollectionProtocol, path: tuple[str, ...]
    ) -> dict[str, Any]:
        """The entry of a value per element."""
        return {"encoded": self.encoder.encode(stack, path), "is_whole": True}

    def entries(self, values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """The entries of a level, of which lazy stacks stay lazy."""
        lazy = {key: value for key, value in values.items() if is_lazy(value)}
        others = {key: value for key, value in values.items() if key not in lazy}
        found = super().entries(others, path)
        for key, value in lazy.items():
            encoded = self.encoder.encode(value, (*path, key))
            found[key] = {"encoded": encoded, "is_whole": True}
        return {key: found[key] for key in values}


class _ItemReader(Reader):
    """A reader of the levels of an :class:`_ItemWriter`."""

    def __init__(self, tensors: dict[str, torch.Tensor], decoder: Decoder) -> None:
        super().__init__(tensors, decoder.source, None)
        self.decoder = decoder

    def _value(self, entry: dict[str, Any], size: torch.Size) -> Any:
        if "encoded" not in entry:
            return super()._value(entry, size)
        data = self.decoder.decode(entry["encoded"])
        if entry.get("is_whole"):
            return data
        text = f"tensordict:{entry.get('kind', 'NonTensorData')}"
        cls: Any = registry.find_class(None, text, None, self.path)
        return cls._of([data], 0, size)


def _identity(value: torch.Tensor) -> Any:
    """Identify the memory that tensors over the same values share; None if unknown."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not value.numel():
        return None
    if value.is_meta:
        return None
    place = value.data_ptr(), value.storage_offset(), value.device
    signs = value.is_conj(), value.is_neg()
    return place, value.dtype, value.shape, value.stride(), signs


def in_format(value: torch.Tensor) -> torch.Tensor:
    """A dense tensor as files keep it: as bytes where the format lacks its dtype."""
    if value.dtype in _FORMAT_DTYPES:
        return value
    plain = value.resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


_KIND_OF_SEQUENCE: dict[Any, str] = {
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
    torch.Size: "size",
}

_KIND_OF_DICT: dict[Any, str] = {
    dict: "dict",
    OrderedDict: "ordered",
    Counter: "counter",
}

_MAKER_OF_KIND: dict[str, Callable[[list[Any]], Any]] = {
    kind: cls for cls, kind in _KIND_OF_SEQUENCE.items()
}
_MAKER_OF_KIND |= {"dict": dict, "ordered": OrderedDict}


def _text_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _encode_scalar(value: Any) -> dict[str, Any] | None:
    """The JSON of a value of a few more types; None for any other."""
    cls: Any = type(value)
    if cls in (bytes, bytearray):
        return {"$": cls.__name__, "value": _text_of(bytes(value))}
    if cls is complex:
        parts = [repr(value.real), repr(value.imag)]
        return {"$": "complex", "value": parts}
    if cls is torch.dtype:
        return {"$": "dtype", "value": str(value).removeprefix("torch.")}
    if cls is torch.device:
        return {"$": "device", "value": str(value)}
    if cls in (range, slice):
        parts = [value.start, value.stop, value.step]
        if all(part is None or isinstance(part, int) for part in parts):
            return {"$": cls.__name__, "value": parts}
    if isinstance(value, pathlib.PurePath):
        return {"$": "path", "value": str(value)}
    if cls in _TIMES.values():
        return {"$": cls.__name__, "value": value.isoformat()}
    if cls is dt.timedelta:
        return {
            "$": "timedelta",
            "value": [value.days, value.seconds, value.microseconds],
        }
    return None


_TIMES: dict[str, Any] = {"date": dt.date, "datetime": dt.datetime, "time": dt.time}

_SCALARS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "bytes": base64.b64decode,
    "bytearray": lambda value: bytearray(base64.b64decode(value)),
    "complex": lambda parts: complex(float(parts[0]), float(parts[1])),
    "device": torch.device,
    "range": lambda parts: range(*parts),
    "slice": lambda parts: slice(*parts),
    "path": pathlib.Path,
    "timedelta": lambda parts: dt.timedelta(*parts),
    **{name: cls.fromisoformat for name, cls in _TIMES.items()},
}


class Decoder:
    """Makes values of the JSON of an :class:`Encoder` and of tensors by their names.

    Args:
        tensors: the tensors of the item.
        source: the file or directory, for messages.
        device: where tensors of plain data go. Default: where they were, or else the CPU.
        sharded: puts a tensor together of which each rank has saved a part.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        source: Any,
        device: torch.device | None = None,
        sharded: Callable[[Mapping[str, Any]], torch.Tensor] | None = None,
    ) -> None:
        self.tensors = tensors
        self.source = source
        self.device = device
        self.sharded = sharded

    def decode(self, value: object) -> Any:
        """The value that was encoded.

        Raises:
            RuntimeError: a tensor is missing.
            ValueError: it is of a newer version.
        """
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("$")
        if kind is None:
            return {key: self.decode(item) for key, item in value.items()}
        if kind == "tensor":
            tensor = self._placed(self.taken(value), value.get("device"))
            return tensor.requires_grad_() if value.get("trains") else tensor
        if kind == "sharded" and self.sharded is not None:
            return self.sharded(value)
        if kind == "parameter":
            return torch.nn.Parameter(self.decode(value["value"]), value["trains"])
        if kind in ("dict", "ordered", "counter"):
            pairs = [
                (self.decode(key), self.decode(item)) for key, item in value["items"]
            ]
            if kind == "counter":
                return Counter(dict(pairs))
            made = _MAKER_OF_KIND[kind](pairs)
            if "metadata" in value:
                made._metadata = OrderedDict(self.decode(value["metadata"]))
            return made
        if kind in _MAKER_OF_KIND:
            return _MAKER_OF_KIND[kind]([self.decode(item) for item in value["items"]])
        if kind in _SCALARS:
            return _SCALARS[kind](value["value"])
        if kind == "dtype":
            return dtype_of(value["value"])
        if kind == "array":
            content = self.named(value["name"]).numpy().tobytes()
            array = np.frombuffer(content, np.dtype(value["dtype"])).copy()
            return array.reshape(value["shape"])
        if kind == "numpy scalar":
            content = base64.b64decode(value["bytes"])
            return np.frombuffer(content, np.dtype(value["dtype"]))[0]
        if kind == "sparse":
            return torch.sparse_coo_tensor(
                self.decode(value["indices"]),
                self.decode(value["values"]),
                value["shape"],
                is_coalesced=value["is_coalesced"],
                check_invariants=True,
            )
        if kind == "jagged":
            return torch.nested.nested_tensor_from_jagged(
                self.decode(value["values"]), self.decode(value["offsets"])
            )
        if kind == "collection":
            return self._collection(value)
        if kind == "stack":
            members = [self.decode(member) for member in value["members"]]
            made = classes.LazyStackedTensorDict(*members, stack_dim=value["dim"])
            if value["names"] is not None:
                made.names = value["names"]
            return made
        if kind in ("column", "non tensor"):
            return self._non_tensor(value)
        raise ValueError(MSG_UNKNOWN.format(kind))

    def _placed(self, tensor: torch.Tensor, saved: str | None) -> torch.Tensor:
        """A tensor where it is wished, or where it was."""
        if self.device is not None:
            return tensor.to(self.device)
        if saved is None:
            return tensor
        try:
            return tensor.to(saved)
        except (RuntimeError, AssertionError):
            # This machine has no such device.
            return tensor

    def taken(self, fields: Mapping[str, Any]) -> torch.Tensor:
        """The tensor that fields of :meth:`Encoder.take` lead to."""
        tensor = self.named(fields["name"])
        if "dtype" not in fields:
            return tensor
        # Bytes begin anywhere in a file, and numbers of many bytes may not.
        return tensor.clone().view(dtype_of(fields["dtype"])).reshape(fields["shape"])

    def named(self, name: str) -> torch.Tensor:
        """The tensor of a name.

        Raises:
            RuntimeError: there is none.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise RuntimeError(MSG_MISSING.format(self.source, name)) from None

    def _collection(self, value: Mapping[str, Any]) -> Any:
        renamed = value.get("renamed", {})
        tensors = {
            name: self.taken(renamed.get(name, {"name": name}))
            for name in value["names"]
        }
        reader = _ItemReader(tensors, self)
        return reader.collection(value["level"], tuple(value["path"]))

    def _non_tensor(self, value: Mapping[str, Any]) -> Any:
        text = f"tensordict:{value['class']}"
        cls: Any = registry.find_class(None, text, None, self.source)
        data, size = self.decode(value["data"]), torch.Size(value["shape"])
        if value["$"] == "column":
            return cls._from_nested(data, list(size))
        return cls._of([data], 0, size)


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name, such as ``float32``.

    Raises:
        ValueError: this torch has none of that name.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(MSG_UNKNOWN.format(f"dtype {name}"))
    return found
