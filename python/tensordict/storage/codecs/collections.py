"""Codecs of collections: dense collections, lazy stacks, non-tensor data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from tensordict.primitives import classes, registry
from tensordict.primitives.checks import holds_values
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.codecs.interface import Codec, Path, Value
from tensordict.storage.safetensors_levels import Reader, Writer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.containers.lazy.stack import LazyStackedTensorDict
    from tensordict.storage.encoding import Decoder, Encoder

__all__ = ["COLLECTIONS"]


def _class_named(name: str, source: object) -> Any:
    """Return the class of non-tensor data that has this name in files."""
    return registry.find_class(None, f"tensordict:{name}", None, source)


class NonTensorCodec(Codec):
    """The codec of one non-tensor value for all elements."""

    name = "non tensor"

    def matches(self, value: object) -> bool:
        """Return whether a value is a collection of one non-tensor value."""
        return holds_values(value)

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the class, the value and the batch size."""
        return {
            "class": type(value).__name__,
            "data": encoder.encode(self.data(value), (*path, "data")),
            "shape": list(value.batch_size),
        }

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the non-tensor collection."""
        cls = _class_named(fields["class"], decoder.source)
        return self.made(cls, decoder.decode(fields["data"]), fields["shape"])

    def data(self, value: Value) -> Any:
        """Return the Python value of the collection."""
        return value.data

    def made(self, cls: Any, data: object, size: list[int]) -> Any:
        """Return a collection of the class ``cls`` with the value ``data``."""
        return cls._of([data], 0, torch.Size(size))


class ColumnCodec(NonTensorCodec):
    """The codec of non-tensor data with one value for each element."""

    name = "column"

    def matches(self, value: object) -> bool:
        """Return whether a value is a collection with one non-tensor value for each element."""
        return super().matches(value) and hasattr(value, "tensordicts")

    def data(self, value: Value) -> Any:
        """Return the values as nested lists."""
        return value.tolist()

    def made(self, cls: Any, data: object, size: list[int]) -> Any:
        """Return a collection of the class ``cls`` with the values of nested lists."""
        return cls._from_nested(data, size)


def _is_lazy(value: object) -> bool:
    """Return whether a value is a lazy stack itself, not a view or wrapper of one."""
    return isinstance(value, classes.LazyStackedTensorDict)


class StackCodec(Codec):
    """The codec of lazy stacks: it encodes each member."""

    name = "stack"

    def matches(self, value: object) -> bool:
        """Return whether a value is a lazy stack."""
        return isinstance(value, CollectionProtocol) and _is_lazy(value)

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the members, the stack dimension and the names."""
        return {
            "members": encoder.items(value.tensordicts, path),
            "dim": value.stack_dim,
            "names": list(value.names) if value._has_names() else None,
        }

    def decode(
        self, fields: Mapping[str, Any], decoder: Decoder
    ) -> LazyStackedTensorDict:
        """Return the lazy stack."""
        members = decoder.decode(fields["members"])
        stack = classes.LazyStackedTensorDict(*members, stack_dim=fields["dim"])
        if fields["names"] is not None:
            stack.names = fields["names"]
        return stack


class CollectionCodec(Codec):
    """The codec of other collections: it encodes the levels of a safetensors file."""

    name = "collection"

    def matches(self, value: object) -> bool:
        """Return whether a value is a collection."""
        return isinstance(value, CollectionProtocol)

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the level, the names of its tensors, and names that differ from the keys."""
        writer = _ItemWriter(encoder)
        level = value._to_level(writer, path)
        renamed = {}
        for name, leaf in writer.tensors.items():
            if isinstance(leaf, torch.Tensor):
                fields = encoder.take(leaf, name)
            else:
                fields = {"name": encoder.unused(name)}
                encoder.tensors[fields["name"]] = leaf
            if fields != {"name": name}:
                renamed[name] = fields
        encoded = {"path": list(path), "level": level, "names": list(writer.tensors)}
        return {**encoded, "renamed": renamed} if renamed else encoded

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the collection."""
        renamed = fields.get("renamed", {})
        tensors = {
            name: decoder.taken(renamed.get(name, {"name": name}))
            for name in fields["names"]
        }
        reader = _ItemReader(tensors, decoder)
        return reader.collection(fields["level"], tuple(fields["path"]))


class _ItemWriter(Writer):
    """A writer of levels that also takes values that a safetensors file cannot hold.

    Args:
        encoder: encodes lazy stacks, columns of values, and values that are not JSON.
    """

    takes_columns = True

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def value(self, value: object, path: Path, kind: str) -> dict[str, Any]:
        """Return the entry of a non-tensor value."""
        entry = {"encoded": self.encoder.encode(value, path)}
        return entry if kind == "NonTensorData" else {**entry, "kind": kind}

    def column(self, stack: CollectionProtocol, path: Path) -> dict[str, Any]:
        """Return the entry of non-tensor data with one value for each element."""
        return {"encoded": self.encoder.encode(stack, path), "is_whole": True}

    def entries(self, values: dict[str, Any], path: Path) -> dict[str, Any]:
        """Return the entries of a level. Lazy stacks stay lazy."""
        lazy = {key: value for key, value in values.items() if _is_lazy(value)}
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
        cls = _class_named(entry.get("kind", "NonTensorData"), self.path)
        return cls._of([data], 0, size)


COLLECTIONS: Final[tuple[Codec, ...]] = (
    ColumnCodec(),
    NonTensorCodec(),
    StackCodec(),
    CollectionCodec(),
)
"""The codecs of collections, in the order in which they are tried."""
