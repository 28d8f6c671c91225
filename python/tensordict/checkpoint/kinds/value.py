"""The kind of plain data, and of all items that cannot be restored in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.kinds.interface import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.checkpoint.kinds.interface import Item
    from tensordict.checkpoint.restoring import Restoring

__all__ = ["ValueKind"]


class ValueKind(Kind):
    """A kind whose value is returned; a given item only provides ``DTensor`` layouts."""

    name = "value"
    is_exact = False

    def matches(self, item: object) -> bool:
        """Return True: this kind is tried last."""
        return True

    def state(self, item: Item) -> Any:
        """Return the value itself."""
        return item

    def prepare(
        self, item: Item, name: str, metadata: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Return the value among the plain data."""
        restoring.values[name] = restoring.value(name, metadata, like=item)
