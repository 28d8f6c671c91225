"""States as JSON and tensors: the decoded values have the types of the encoded ones.

JSON holds text, numbers, booleans, None, lists, and dicts whose keys are text. Every other value
is an object with the key ``$``. This key names its kind, a codec of ``storage/codecs/``::

    {"$": "tuple", "items": [1, 2]}          {"$": "tensor", "name": "state.0.exp_avg"}

A name in a file never causes an import or a call. A value without a codec is refused when it is
saved.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from tensordict.storage.codecs import codec_named, codec_of
from tensordict.storage.codecs.dtypes import (
    FORMAT_DTYPES,
    MSG_UNKNOWN,
    dtype_of,
    in_format,
    name_of,
)
from tensordict.storage.sharded import Layout, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tensordict.storage.safetensors_levels import Leaf

__all__ = ["Decoder", "Encoder", "dtype_of", "in_format"]

MAX_DEPTH = 150
"""The depth to which values may be nested. Python writes and parses JSON recursively."""

MSG_TYPE = (
    "Cannot save the value at {place} in a checkpoint: a {cls} is neither a tensor, nor a "
    "tensordict, nor plain data (numbers, text, bytes, None, dicts, lists, tuples, sets, "
    "arrays). Save its state instead. An object with state_dict() and load_state_dict() can "
    "be an item of the checkpoint."
)
MSG_DEPTH = (
    "Cannot save the value at {}: it is nested more than {} times, or contains itself."
)
MSG_MISSING = "'{}' is damaged: the tensor {!r} is missing."


class Encoder:
    """Encodes a state as JSON, and collects its tensors under names.

    A tensor that occurs twice is stored once. So are tied tensors, which have the same
    memory, dtype, shape and strides.

    Args:
        item: the name of the item, for messages.
    """

    def __init__(self, item: str) -> None:
        self.item = item
        self.tensors: dict[str, Leaf] = {}
        self.sharded: dict[str, tuple[Layout, Any]] = {}
        """The ``DTensor`` values by their keys. Each rank saves its parts."""
        self._names: dict[Any, str] = {}
        # The names are found by addresses, so their tensors must stay alive.
        self._held: list[Any] = []

    def encode(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Return the JSON of a value.

        Raises:
            TypeError: a checkpoint cannot hold a value of this type.
            RecursionError: the value is nested too deep.
        """
        cls = type(value)
        if value is None or cls in (bool, int, str):
            return value
        if cls is float and math.isfinite(value):
            return value
        is_leaf = cls is float or isinstance(value, torch.Tensor)
        if len(path) > MAX_DEPTH and not is_leaf:
            raise RecursionError(MSG_DEPTH.format(self._place(path[:5]), MAX_DEPTH))
        if cls is list:
            return self.items(value, path)
        codec = codec_of(value)
        if codec is None:
            raise self.refusal(path, f"{cls.__module__}.{cls.__qualname__}")
        if codec.name == "dict" and "$" not in value:
            pairs = list(value.items())
            if all(type(key) is str for key, _ in pairs):
                return {key: self.encode(item, (*path, key)) for key, item in pairs}
        return {"$": codec.name, **codec.encode(value, path, self)}

    def items(self, values: Iterable[Any], path: tuple[str, ...]) -> list[Any]:
        """Return the JSON of each value, as a list."""
        return [
            self.encode(item, (*path, str(number)))
            for number, item in enumerate(list(values))
        ]

    def refusal(self, path: tuple[str, ...], cls: str) -> TypeError:
        """Return an error that names the place and the type of a value that cannot be saved."""
        return TypeError(MSG_TYPE.format(place=self._place(path), cls=cls))

    def _place(self, path: tuple[str, ...]) -> str:
        return "".join([self.item, *(f"[{part!r}]" for part in path)])

    def take(self, value: torch.Tensor, name: str) -> dict[str, Any]:
        """Store a dense tensor under an unused name; return the fields that refer to it."""
        identity = _identity(value)
        stored_name = None if identity is None else self._names.get(identity)
        if stored_name is None:
            stored_name = self.unused(name)
            if identity is not None:
                self._names[identity] = stored_name
                self._held.append(value)
            self.tensors[stored_name] = in_format(value)
        fields: dict[str, Any] = {"name": stored_name}
        if value.dtype not in FORMAT_DTYPES:
            fields["dtype"] = name_of(value.dtype)
            fields["shape"] = list(value.shape)
        return fields

    def share(self, value: torch.Tensor, path: tuple[str, ...]) -> tuple[str, Layout]:
        """Store a ``DTensor``; return its key and its layout."""
        key = self.unused(".".join(path) or "value")
        layout = layout_of(value, self._place(path))
        self.sharded[key] = layout, value
        return key, layout

    def unused(self, name: str) -> str:
        """Return a name that no tensor has yet: ``name``, or ``name`` with a number."""
        if name == "__metadata__":
            name = "__metadata__~"
        unused, number = name, 1
        while unused in self.tensors or unused in self.sharded:
            number += 1
            unused = f"{name}~{number}"
        return unused


def _identity(value: torch.Tensor) -> tuple[Any, Any, Any, Any, Any] | None:
    """Return a key that is equal for tensors over the same values, None if there is none."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not value.numel():
        return None
    if value.is_meta:
        return None
    place = value.data_ptr(), value.storage_offset(), value.device
    signs = value.is_conj(), value.is_neg()
    return place, value.dtype, value.shape, value.stride(), signs


class Decoder:
    """Decodes the JSON of an :class:`Encoder`, with tensors by their names.

    Args:
        tensors: the tensors of the item.
        source: the file or directory, for messages.
        device: the device for decoded tensors. The default is the saved device, or the CPU if
            this machine lacks it.
        sharded: a function that assembles a ``DTensor`` from the parts of all ranks.
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
        """Return the value that was encoded.

        Raises:
            RuntimeError: a tensor is missing.
            ValueError: no codec is registered for a kind, for example one of a newer version.
        """
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("$")
        if kind is None:
            return {key: self.decode(item) for key, item in value.items()}
        codec = codec_named(kind)
        if codec is None:
            raise ValueError(MSG_UNKNOWN.format(kind))
        return codec.decode(value, self)

    def placed(self, tensor: torch.Tensor, saved: str | None) -> torch.Tensor:
        """Move a tensor to the device of the decoder, or to its saved device."""
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
        """Return the tensor that the fields of :meth:`Encoder.take` refer to."""
        tensor = self.named(fields["name"])
        if "dtype" not in fields:
            return tensor
        # Clone: the bytes may start at any address, but a dtype needs an aligned address.
        return tensor.clone().view(dtype_of(fields["dtype"])).reshape(fields["shape"])

    def named(self, name: str) -> torch.Tensor:
        """Return the tensor of a name.

        Raises:
            RuntimeError: the tensor is missing.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise RuntimeError(MSG_MISSING.format(self.source, name)) from None
