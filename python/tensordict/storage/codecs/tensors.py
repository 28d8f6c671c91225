"""Codecs of tensors: dense, sparse and jagged tensors, parameters, and sharded tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from tensordict.primitives import special
from tensordict.storage.codecs.dtypes import MSG_UNKNOWN, name_of
from tensordict.storage.codecs.interface import Codec, Path, Value
from tensordict.storage.sharded import is_sharded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.nn import Parameter

    from tensordict.storage.encoding import Decoder, Encoder

__all__ = ["TENSORS"]


def _detached(value: torch.Tensor) -> torch.Tensor:
    is_plain = type(value) is torch.Tensor and not value.requires_grad
    return value if is_plain else value.detach()


class ShardedCodec(Codec):
    """The codec of sharded tensors: each rank holds a part."""

    name = "sharded"

    def matches(self, value: object) -> bool:
        """Return whether a value is a ``DTensor``."""
        return isinstance(value, torch.Tensor) and is_sharded(value)

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the layout of the tensor. Each rank saves its part under the key."""
        if value.requires_grad:
            value = value.detach()
        key, layout = encoder.share(value, path)
        return {
            "key": key,
            "shape": list(layout.shape),
            "dtype": name_of(value.dtype),
            "placements": list(layout.placements),
        }

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> torch.Tensor:
        """Return the tensor, assembled from all parts.

        Raises:
            ValueError: the decoder reads data of a single process.
        """
        if decoder.sharded is None:
            raise ValueError(MSG_UNKNOWN.format(self.name))
        return decoder.sharded(fields)


class ParameterCodec(Codec):
    """The codec of parameters of modules."""

    name = "parameter"

    def matches(self, value: object) -> bool:
        """Return whether a value is a parameter."""
        return isinstance(value, torch.nn.Parameter)

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the tensor, and whether it requires grad."""
        inner = encoder.encode(value.detach(), path)
        return {"value": inner, "trains": value.requires_grad}

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Parameter:
        """Return the parameter."""
        return torch.nn.Parameter(decoder.decode(fields["value"]), fields["trains"])


class JaggedCodec(Codec):
    """The codec of nested tensors in the jagged layout."""

    name = "jagged"

    def matches(self, value: object) -> bool:
        """Return whether a value is a jagged tensor."""
        return isinstance(value, torch.Tensor) and value.layout == torch.jagged

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the values and the offsets."""
        value = _detached(value)
        parts = {"values": value.values(), "offsets": value.offsets()}
        return {key: encoder.encode(part, (*path, key)) for key, part in parts.items()}

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> torch.Tensor:
        """Return the nested tensor."""
        return torch.nested.nested_tensor_from_jagged(
            decoder.decode(fields["values"]), decoder.decode(fields["offsets"])
        )


class SparseCodec(Codec):
    """The codec of sparse tensors in the COO layout."""

    name = "sparse"

    def matches(self, value: object) -> bool:
        """Return whether a value is a sparse COO tensor."""
        return isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the indices, values and shape."""
        value = _detached(value)
        return {
            "indices": encoder.encode(value._indices(), (*path, "indices")),
            "values": encoder.encode(value._values(), (*path, "values")),
            "shape": list(value.shape),
            "is_coalesced": value.is_coalesced(),
        }

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> torch.Tensor:
        """Return the sparse tensor."""
        return torch.sparse_coo_tensor(
            decoder.decode(fields["indices"]),
            decoder.decode(fields["values"]),
            fields["shape"],
            is_coalesced=fields["is_coalesced"],
            check_invariants=True,
        )


class EntryCodec(Codec):
    """A special entry, such as an unbatched tensor: of a kind that collections ask."""

    name = "entry"

    def matches(self, value: object) -> bool:
        """Return whether a value is of a registered kind."""
        return special.kind_of(value) is not None

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return its kind, its batch size, and the tensors that files keep of it."""
        kind = special.kind_of(value)
        if kind is None or kind.in_files == "tensor":
            cls = f"{value.layout} nested tensor ({value.dtype})"
            raise encoder.refusal(path, cls.removeprefix("torch."))
        trains = {"trains": True} if value.requires_grad and value.is_leaf else {}
        state = kind.state(value.detach())
        return {
            **trains,
            "kind": kind.name,
            "size": list(getattr(value, "batch_size", ())),
            "state": {
                name: encoder.encode(part, (*path, name))
                for name, part in state.items()
            },
        }

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the entry.

        Raises:
            RuntimeError: no kind of that name is registered.
        """
        kind = special.kind_named(fields["kind"], f"A value in '{decoder.source}'")
        state = decoder.decode(fields["state"])
        entry = kind.of_state(state, torch.Size(fields["size"]))
        return entry.requires_grad_() if fields.get("trains") else entry


class TensorCodec(Codec):
    """The codec of dense tensors. Their values are in the files of the item."""

    name = "tensor"

    def matches(self, value: object) -> bool:
        """Return whether a value is a tensor."""
        return isinstance(value, torch.Tensor)

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the name of the tensor, whether it requires grad, and its device."""
        trains = value.requires_grad and value.is_leaf
        value = _detached(value)
        if value.layout != torch.strided:
            raise encoder.refusal(path, f"{value.layout} tensor")
        if value.is_quantized:
            raise encoder.refusal(path, f"quantized tensor ({value.dtype})")
        fields = encoder.take(value, ".".join(path) or "value")
        if trains:
            fields["trains"] = True
        if value.device.type != "cpu":
            fields["device"] = str(value.device)
        return fields

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> torch.Tensor:
        """Return the tensor, on the device of the decoder or on its saved device."""
        tensor = decoder.placed(decoder.taken(fields), fields.get("device"))
        return tensor.requires_grad_() if fields.get("trains") else tensor


TENSORS: Final[tuple[Codec, ...]] = (
    ShardedCodec(),
    ParameterCodec(),
    JaggedCodec(),
    SparseCodec(),
    EntryCodec(),
    TensorCodec(),
)
"""The codecs of tensors, in the order in which they are tried."""
