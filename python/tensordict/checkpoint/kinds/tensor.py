"""The kind of tensors that are items themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.checkpoint.kinds.interface import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.checkpoint.kinds.interface import Item
    from tensordict.checkpoint.restoring import Restoring

__all__ = ["TensorKind"]

MSG_SHAPE = (
    "Cannot restore {!r}: a tensor of shape {} was saved, but the given tensor has shape {}. "
    "Nothing was changed."
)


class TensorKind(Kind):
    """A kind that copies the saved values into the given tensor."""

    name = "tensor"
    is_exact = False

    def matches(self, item: object) -> bool:
        """Return whether an item is a tensor."""
        return isinstance(item, torch.Tensor)

    def state(self, item: Item) -> Any:
        """Return the tensor itself."""
        return item

    def prepare(
        self, item: Item, name: str, metadata: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Compare the shapes, and register the copy."""
        is_tensor = metadata["kind"] == self.name
        value = restoring.value(name, metadata, like=item if is_tensor else None)
        if not is_tensor:
            restoring.values[name] = value
            return
        if item.shape != value.shape:
            shapes = list(value.shape), list(item.shape)
            raise RuntimeError(MSG_SHAPE.format(name, *shapes))
        before = item.detach().clone()
        restoring.add(
            lambda: item.detach().copy_(value), lambda: item.detach().copy_(before)
        )
