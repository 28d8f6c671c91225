"""The kind of objects with ``state_dict()``: schedulers, loaders, scalers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.kinds.interface import Kind

if TYPE_CHECKING:
    from tensordict.checkpoint.kinds.interface import Item, State

__all__ = ["StatefulKind"]


class StatefulKind(Kind):
    """A kind that saves ``state_dict()`` and restores with ``load_state_dict``."""

    name = "stateful"

    def matches(self, item: object) -> bool:
        """Return whether an item has both methods."""
        return hasattr(item, "state_dict") and hasattr(item, "load_state_dict")

    def state(self, item: Item) -> Any:
        """Return the state of the item."""
        return item.state_dict()

    def set_state(self, item: Item, state: State) -> None:
        """Load a state into the item."""
        item.load_state_dict(state)
