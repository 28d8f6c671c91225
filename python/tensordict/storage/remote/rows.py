"""The rows that an index needs, and what is left of the index when they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RowsOfIndex", "rows_of_index"]


class RowsOfIndex(NamedTuple):
    """The rows that an index needs along the first dim, and the index of those."""

    rows: np.ndarray[Any, Any]
    """int64, none of them negative."""
    rest: Any
    """The index to take of these rows; None for all of them as they are."""

    def taken_from(self, read: Any) -> Any:
        """Take what the index asks for of a tensor or collection of the rows."""
        return read if self.rest is None else read[self.rest]


def rows_of_index(index: Any, shape: Sequence[int]) -> RowsOfIndex | None:
    """Find the rows of an index of something of this shape.

    Returns:
        None where the index is not known to leave rows out: all are needed.

    Raises:
        IndexError: a row is not there.

    Examples:
        >>> rows_of_index([3, -1], [5, 2])
        RowsOfIndex(rows=array([3, 4]), rest=None)
        >>> rows_of_index((slice(2, 4), 1), [5, 2])
        RowsOfIndex(rows=array([2, 3]), rest=(slice(None, None, None), 1))
    """
    items = index if isinstance(index, tuple) else (index,)
    position = next((at for at, item in enumerate(items) if item is not None), None)
    if position is None:
        return None
    first, count = items[position], shape[0]
    rows, instead = _rows_of(first, shape)
    if rows is None:
        return None
    if len(rows) and (rows.min() < -count or rows.max() >= count):
        wrong = rows[(rows < -count) | (rows >= count)][0]
        msg = f"index {wrong} is out of bounds for dimension 0 with size {count}"
        raise IndexError(msg)
    rows = np.where(rows < 0, rows + count, rows)
    if len(items) == 1 and instead is None:
        return RowsOfIndex(rows, None)
    if instead is None:
        # Beside other indices it has to stay what it is: they may go together.
        instead = slice(None) if isinstance(first, slice) else torch.arange(len(rows))
    rest = (*items[:position], instead, *items[position + 1 :])
    return RowsOfIndex(rows, rest if len(rest) > 1 else rest[0])


def _rows_of(
    first: Any, shape: Sequence[int]
) -> tuple[np.ndarray[Any, Any] | None, Any]:
    """Return the rows of the first part of an index, and what to ask of them instead."""
    if isinstance(first, bool) or first is Ellipsis:
        return None, None
    if isinstance(first, slice):
        return np.arange(*first.indices(shape[0]), dtype=np.int64), None
    if isinstance(first, range):
        return np.arange(first.start, first.stop, first.step, dtype=np.int64), None
    if isinstance(first, int):
        return np.array([first], np.int64), 0
    if isinstance(first, list) and not first:
        return np.zeros(0, np.int64), None
    try:
        picked = torch.as_tensor(first, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return None, None
    if picked.dtype in (torch.bool, torch.uint8):
        if picked.ndim == 0 or list(picked.shape) != list(shape[: picked.ndim]):
            return None, None
        if picked.ndim == 1:
            return picked.nonzero().flatten().numpy(), None
        some = picked.flatten(1).any(1).nonzero().flatten()
        return some.numpy(), picked[some]
    if picked.dtype.is_floating_point or picked.dtype.is_complex:
        return None, None
    rows = picked.to(torch.int64).flatten().numpy()
    if picked.ndim == 1:
        return rows, None
    return rows, torch.arange(len(rows)).reshape(picked.shape)
