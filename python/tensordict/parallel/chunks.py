"""The division of rows into chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives.dim_numbers import MSG_INCOMPATIBLE_DIM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["ChunkPlan"]


class ChunkPlan:
    """The chunks of a call: the rows of each chunk along one batch dimension.

    Args:
        batch_size: the batch size of the collection.
        dim: the batch dimension to divide.
        chunksize: the number of rows in a chunk. With 0, a chunk is a single row without
            the dimension.
        num_chunks: the number of chunks. All chunks but the last have the same number of
            rows, so there may be fewer.
        num_workers: the number of chunks if neither ``chunksize`` nor ``num_chunks`` is
            given.
        order: the index of each row, in the order in which chunks take rows. ``None``
            keeps the order of the collection.
        is_locked: whether to lock the chunks, as slices of a locked collection are.

    Raises:
        IndexError: ``dim`` is not a batch dimension.
        ValueError: both ``chunksize`` and ``num_chunks`` are given, ``num_chunks`` is not
            positive, or ``chunksize`` is negative.
        TypeError: ``chunksize`` or ``num_chunks`` is not an integer.
    """

    def __init__(
        self,
        batch_size: Sequence[int],
        dim: int,
        chunksize: int | None,
        num_chunks: int | None,
        num_workers: int,
        order: torch.Tensor | None = None,
        is_locked: bool = False,
    ) -> None:
        if chunksize is not None and num_chunks is not None:
            msg = "Either chunksize or num_chunks must be provided, but not both."
            raise ValueError(msg)
        self.dim: int = dim + len(batch_size) if dim < 0 else dim
        if not 0 <= self.dim < len(batch_size):
            size = torch.Size(batch_size)
            raise IndexError(MSG_INCOMPATIBLE_DIM.format(self.dim, size))
        self.num_rows: int = batch_size[self.dim]
        self.order = order
        self.drops_dim: bool
        self.size: int
        self._is_locked = is_locked
        self.drops_dim = False
        if chunksize is None:
            if num_chunks is not None and not isinstance(num_chunks, int):
                msg = f"num_chunks must be an int, got {type(num_chunks).__name__}."
                raise TypeError(msg)
            wanted = num_workers if num_chunks is None else num_chunks
            # At most one chunk for each row. Without rows this is an error, as in the
            # published package.
            wanted = min(wanted, self.num_rows)
            if wanted <= 0:
                name = "chunks" if num_chunks is None else "num_chunks"
                msg = f"{name} must be a strictly positive integer, got {wanted}."
                raise ValueError(msg)
            self.size = -(-self.num_rows // wanted)
        else:
            if not isinstance(chunksize, int):
                msg = f"chunksize must be an int, got {type(chunksize).__name__}."
                raise TypeError(msg)
            if chunksize < 0:
                msg = (
                    "chunksize must be a number of rows, or 0 for single rows without the "
                    f"dim, got {chunksize}."
                )
                raise ValueError(msg)
            self.drops_dim = chunksize == 0
            self.size = chunksize or 1
        self._prefix = (slice(None),) * self.dim

    def __len__(self) -> int:
        if self.num_rows == 0 and not self.drops_dim:
            return 1
        return (self.num_rows + self.size - 1) // self.size

    def rows(self, chunk: int) -> tuple[int, int]:
        """Return the first row of a chunk and the row after its last."""
        start = chunk * self.size
        return start, min(start + self.size, self.num_rows)

    def named(self, chunk: int) -> str:
        """Describe a chunk and its rows for a message."""
        return f"chunk {chunk} ({self.named_rows(chunk)})"

    def named_rows(self, chunk: int) -> str:
        """Describe the rows of a chunk for a message."""
        start, stop = self.rows(chunk)
        if self.order is not None:
            rows = self.order[start:stop].tolist()
            return f"rows {', '.join(map(str, rows))}"
        return f"row {start}" if stop - start == 1 else f"rows {start} to {stop - 1}"

    def take(self, source: CollectionProtocol, chunk: int) -> Any:
        """Return the rows of a chunk: a view, or a copy if ``order`` is given."""
        start, stop = self.rows(chunk)
        index: Any
        if self.order is not None:
            index = self.order[start:stop]
            index = int(index) if self.drops_dim else index
        else:
            index = start if self.drops_dim else slice(start, stop)
        rows = source[(*self._prefix, index) if self._prefix else index]
        if self._is_locked and not self.drops_dim and not rows.is_locked:
            rows.lock_()
        return rows

    def put(self, target: CollectionProtocol, chunk: int, rows: object) -> None:
        """Assign values to the rows of a chunk."""
        start, stop = self.rows(chunk)
        index: Any = start if self.drops_dim else slice(start, stop)
        target[(*self._prefix, index)] = rows

    def place(self, source: CollectionProtocol, start: int, stop: int) -> Any:
        """Return a view of the rows from ``start`` to ``stop``."""
        return source[(*self._prefix, slice(start, stop))]
