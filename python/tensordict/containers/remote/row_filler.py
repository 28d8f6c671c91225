"""Read rows of a remote collection into memory that is used again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.containers.remote.taking import memory_for, take_into
from tensordict.storage.remote.mapped_rows import MappedRows, RowCopy

if TYPE_CHECKING:
    import torch

__all__ = ["RowFiller"]


class RowFiller:
    """A reader of rows of nested tensordicts of remote tensors.

    Args:
        template: the nested tensordicts.
        row: memory for one row.
    """

    def __init__(self, template: Any, row: Any) -> None:
        self.row: Any = row
        self._template = template
        leaves = _rust.leaves(template) if template._batch_size[0] else []
        self._mapped = MappedRows.of(leaves)
        self._shown: tuple[object, list[Any]] = (None, [])

    @classmethod
    def of(cls, template: Any) -> RowFiller | None:
        """Make the reader; return None if the template has more than tensors."""
        row = memory_for(template)
        return None if row is None else cls(template, row)

    def fill(self, rows: torch.Tensor, out: Any) -> None:
        """Read rows into memory for so many.

        Args:
            rows: their numbers, not negative.
            out: nested tensordicts of the keys of the template, without gaps.
        """
        take_into(self._template, rows.numpy(), out)

    def submit(
        self, prefetcher: _rust.GatherPrefetcher, rows: torch.Tensor, out: Any
    ) -> RowCopy | None:
        """Have native code copy rows of :meth:`fill` out of the blocks of a cache.

        Returns:
            The copy that was begun; None if the cache has not all rows.
        """
        mapped = self._mapped
        tensors = None if mapped is None else mapped.tensors()
        if mapped is None or tensors is None:
            return None
        numbers, generation = rows.numpy(), mapped.generation
        versions = mapped.versions(numbers)
        if versions is None:
            return None
        if self._shown[0] is not generation:
            shown = [_rust.rebuild(self._template, some) for some in tensors]
            self._shown = generation, shown
        tickets = prefetcher.submit_parts(self._shown[1], mapped.stops, rows, out)
        if tickets is None:
            return None
        return RowCopy(
            tickets,
            lambda: mapped.is_current(generation, versions),
            lambda: self.fill(rows, out),
        )
