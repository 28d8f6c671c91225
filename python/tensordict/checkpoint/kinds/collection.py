"""The kind of tensordicts, lazy stacks and tensorclasses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.kinds.interface import Kind
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.checkpoint.kinds.interface import Item
    from tensordict.checkpoint.restoring import Restoring

__all__ = ["CollectionKind"]


class CollectionKind(Kind):
    """A kind whose items are filled in place where they have the saved keys."""

    name = "collection"
    is_exact = False

    def matches(self, item: object) -> bool:
        """Return whether an item is a tensordict of any class."""
        return isinstance(item, CollectionProtocol)

    def state(self, item: Item) -> Any:
        """Return the tensordict itself."""
        return item

    def prepare(
        self, item: Item, name: str, metadata: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Register the fill; if it fails, the old values are restored."""
        value = restoring.value(name, metadata)
        if metadata["kind"] != self.name:
            restoring.values[name] = value
            return
        before = item.clone()
        restoring.add(lambda: _fill(item, value), lambda: _fill(item, before))


def _fill(item: Any, value: Any) -> None:
    """Copy the values of ``value`` into ``item``, in place where it has the keys."""
    if item.is_locked:
        item.update_(value)
    else:
        item.update(value, inplace=True)
