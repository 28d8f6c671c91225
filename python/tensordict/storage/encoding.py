"""States as JSON and tensors, and back: values come back as what they were.

JSON has text, numbers, truth values, None, lists, and dicts whose keys are text. Everything
else is an object with the key ``$``, which names its kind: a codec of ``storage/codecs/``::

    {"$": "tuple", "items": [1, 2]}          {"$": "tensor", "name": "state.0.exp_avg"}

Nothing is ever imported or called by its name: a value of no known kind is refused when it
is saved.
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
        """The JSON of each of some values."""
        return [
            self.encode(item, (*path, str(number)))
            for number, item in enumerate(list(values))
        ]

    def refusal(self, path: tuple[str, ...], cls: str) -> TypeError:
        """An error that says where the value is that no file can hold, and what it is."""
        return TypeError(MSG_TYPE.format(place=self._place(path), cls=cls))

    def _place(self, path: tuple[str, ...]) -> str:
        return "".join([self.item, *(f"[{part!r}]" for part in path)])

    def take(self, value: torch.Tensor, name: str) -> dict[str, Any]:
        """Take a dense tensor, under a name of its own: the fields that lead to it."""
        identity = _identity(value)
        known = None if identity is None else self._names.get(identity)
        if known is None:
            known = self.unused(name)
            if identity is not None:
                self._names[identity] = known
                self._held.append(value)
            self.tensors[known] = in_format(value)
        fields: dict[str, Any] = {"name": known}
        if value.dtype not in FORMAT_DTYPES:
            fields["dtype"] = name_of(value.dtype)
            fields["shape"] = list(value.shape)
        return fields

    def share(self, value: torch.Tensor, path: tuple[str, ...]) -> tuple[str, Layout]:
        """Take a tensor of which each rank has a part: its key and its layout."""
        known = self.unused(".".join(path) or "value")
        layout = layout_of(value, self._place(path))
        self.sharded[known] = layout, value
        return known, layout

    def unused(self, name: str) -> str:
        """A name that no tensor has yet, made of ``name``."""
        if name == "__metadata__":
            name = "__metadata__~"
        found, number = name, 1
        while found in self.tensors or found in self.sharded:
            number += 1
            found = f"{name}~{number}"
        return found


def _identity(value: torch.Tensor) -> tuple[Any, Any, Any, Any, Any] | None:
    """Identify the memory that tensors over the same values share; None if unknown."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not value.numel():
        return None
    if value.is_meta:
        return None
    place = value.data_ptr(), value.storage_offset(), value.device
    signs = value.is_conj(), value.is_neg()
    return place, value.dtype, value.shape, value.stride(), signs


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
            ValueError: it is of a newer version, or its codec is not registered here.
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
