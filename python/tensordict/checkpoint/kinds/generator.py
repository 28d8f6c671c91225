"""The kind of random number generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.checkpoint.kinds.interface import Kind

if TYPE_CHECKING:
    from tensordict.checkpoint.kinds.interface import Item, State

__all__ = ["GeneratorKind"]


class GeneratorKind(Kind):
    """A kind that saves the state of a ``torch.Generator`` as bytes."""

    name = "generator"

    def matches(self, item: object) -> bool:
        """Return whether an item is a ``torch.Generator``."""
        return isinstance(item, torch.Generator)

    def state(self, item: Item) -> Any:
        """Return the bytes of the state."""
        return item.get_state().cpu().numpy().tobytes()

    def set_state(self, item: Item, state: State) -> None:
        """Set the state from its bytes."""
        item.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
