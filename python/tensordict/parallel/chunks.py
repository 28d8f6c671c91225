"""Divide rows into chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives.dim_numbers import MSG_INCOMPATIBLE_DIM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["ChunkPlan"]


class ChunkPlan:
    """The chunks of a call: which rows along which dim, in which order.

    Args:
        batch_size: that of the collection.
        dim: the batch dim along which the rows are.
        chunksize: how many rows a chunk has, 0 for single rows without the dim.
        num_chunks: how many chunks there should be. There may be fewer, since all but the
            last one have the same number of rows.
        num_workers: how many chunks there are where neither of the two is given.
        order: the rows in the order in which chunks take them, if that is another one.
        is_locked: whether chunks are locked, as pieces of a locked collection are.

    Raises:
        IndexError: ``dim`` is no batch dim.
        ValueError: both a chunk size and a number of chunks were given, or one that is
            not positive.
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
            # There are at most as many chunks as rows, so none without rows, as in the
            # release.
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
        """The first row of a chunk and the one after its last."""
        start = chunk * self.size
        return start, min(start + self.size, self.num_rows)

    def named(self, chunk: int) -> str:
        """A chunk and its rows, for people."""
        return f"chunk {chunk} ({self.named_rows(chunk)})"

    def named_rows(self, chunk: int) -> str:
        """The rows of a chunk, for people."""
        start, stop = self.rows(chunk)
        if self.order is not None:
            rows = self.order[start:stop].tolist()
            return f"rows {', '.join(map(str, rows))}"
        return f"row {start}" if stop - start == 1 else f"rows {start} to {stop - 1}"

    def take(self, source: CollectionProtocol, chunk: int) -> Any:
        """A chunk of a collection. A view, except of rows in another order."""
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
        """Assign the rows of a chunk."""
        start, stop = self.rows(chunk)
        index: Any = start if self.drops_dim else slice(start, stop)
        target[(*self._prefix, index)] = rows

    def place(self, source: CollectionProtocol, start: int, stop: int) -> Any:
        """A view of some rows of a collection."""
        return source[(*self._prefix, slice(start, stop))]
