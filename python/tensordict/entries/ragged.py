"""Nested tensors: entries whose rows differ in shape.

The class is torch's: :mod:`tensordict.primitives.ragged_leaves` has the operations on them
that torch lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives import ragged_leaves
from tensordict.primitives.special import EntryKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Ragged"]


class Ragged(EntryKind):
    """The kind of nested tensors, of both layouts: the first dim is regular."""

    name = "ragged"
    has_file = True

    def holds(self, entry: object) -> bool:
        """Return whether an entry is a nested tensor: one of the old layout has no class."""
        return isinstance(entry, torch.Tensor) and entry.is_nested

    def leading_shape(self, entry: Any) -> torch.Size:
        """Give the sizes that all rows have in common."""
        return ragged_leaves.regular_shape(entry)

    def fits(self, entry: Any, size: torch.Size) -> bool:
        """Return whether all rows have the batch dims: one of the old layout has no shape."""
        if ragged_leaves.is_jagged(entry):
            return super().fits(entry, size)
        return not size or (
            entry.size(0) == size[0] and ragged_leaves.rows_fit(entry, size)
        )

    def at(self, entry: Any, index: Any, size: torch.Size) -> Any:
        """Take rows, of which torch takes one alone."""
        _ = size
        return ragged_leaves.at_index(entry, index)

    def check_write(
        self, entry: Any, value: Any, index: Any, size: torch.Size, k: int
    ) -> None:
        """Raise where a value does not fit the rows at an index."""
        _ = size, k
        ragged_leaves.check_rows(entry, index, value)

    def write_at(self, entry: Any, index: Any, value: Any) -> None:
        """Write into the rows at an index, one by one."""
        ragged_leaves.write_rows(entry, index, value)

    def joined(
        self,
        group: Sequence[Any],
        dim: int,
        size: torch.Size | None,
        join: Callable[..., Any],
    ) -> Any:
        """Join nested tensors: torch does not along their first dim."""
        _ = size
        if join is torch.cat:
            return ragged_leaves.cat_leaves(list(group), dim)
        return join(list(group), dim)
