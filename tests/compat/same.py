"""Compare a container that came back from a file with the one that was written."""

from __future__ import annotations

from typing import Any

import torch

from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["assert_same"]


def bits(tensor: torch.Tensor) -> Any:
    """All that a tensor is, but for how it lies in memory."""
    if tensor.is_nested:
        return [tensor.layout, *map(bits, tensor.unbind())]
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    plain = plain.as_subclass(torch.Tensor)
    content = plain.reshape(-1).view(torch.uint8).tolist() if plain.numel() else []
    return [plain.dtype, plain.shape, content]


def as_text(value: Any) -> Any:
    """A value such that NaN is itself, and a tuple the list that JSON makes of it."""
    return repr(value).replace("(", "[").replace(")", "]")


def assert_same(loaded: Any, saved: Any, has_class: bool) -> None:
    if isinstance(saved, torch.Tensor):
        assert bits(loaded) == bits(saved)
        return
    assert loaded.batch_size == saved.batch_size
    if saved._is_non_tensor:
        assert as_text(loaded.tolist()) == as_text(saved.tolist())
        return
    if has_class:
        assert type(loaded) is type(saved)
    assert loaded.names == saved.names
    if hasattr(saved, "tensordicts"):
        assert loaded.stack_dim == saved.stack_dim
        pairs = zip(loaded.tensordicts, saved.tensordicts, strict=True)
        for member, other in pairs:
            assert_same(member, other, has_class)
        return
    found, expected = loaded._entries(), saved._entries()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert isinstance(found[key], CollectionProtocol) == isinstance(
            value, CollectionProtocol
        )
        assert_same(found[key], value, has_class)
