"""Copy the rows of batches while the consumer works on an earlier batch.

``put`` takes the rows of a batch, and ``get`` returns the batches in the same order.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tensordict import _rust
from tensordict.data.loader.buffers import Buffer, Buffers
from tensordict.parallel.cpus import num_cpus
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.containers.remote.row_filler import RowFiller
    from tensordict.data.loader.source import Dense, Source
    from tensordict.storage.remote.mapped_rows import RowCopy

__all__ = [
    "DirectPipeline",
    "NativePipeline",
    "Pipeline",
    "ThreadsPipeline",
    "WaitingPipeline",
]

_MOST_THREADS = 2
"""The most threads that copy batches; each shares its batch with the thread pool."""


_MOST_WAITING = 16
"""The most batches that are requested from a network at one time."""

_MOST_BYTES = 256 << 20
"""The most bytes of waiting batches; above it, no more batches are begun than asked for."""


class Pipeline(Protocol):
    """A producer of batches."""

    def put(self, rows: torch.Tensor) -> None:
        """Begin a batch."""
        ...  # pragma: no cover

    def get(self) -> Any:
        """Wait for the oldest batch."""
        ...  # pragma: no cover

    def close(self) -> None:
        """End the work, and wait for the batches that are being made."""
        ...  # pragma: no cover

    def abandon(self) -> None:
        """End the work for a finalizer, which may not wait for a thread of Python.

        The garbage collector may call a finalizer while this thread holds a lock of
        ``threading``; a thread needs that lock to end.
        """
        ...  # pragma: no cover


class DirectPipeline:
    """A pipeline that makes each batch when it is asked for.

    Args:
        make: the function that makes a batch of rows.
    """

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        self._make = make
        self._begun: deque[torch.Tensor] = deque()

    def put(self, rows: torch.Tensor) -> None:
        """Remember the rows."""
        self._begun.append(rows)

    def get(self) -> Any:
        """Make the oldest batch."""
        return self._make(self._begun.popleft())

    def close(self) -> None:
        """Forget the remembered rows."""
        self._begun.clear()

    abandon = close


class ThreadsPipeline:
    """A pipeline of Python threads, for batches that need Python code.

    Args:
        make: the function that makes a batch of rows.
        num_threads: the number of batches that are made at the same time.
    """

    def __init__(self, make: Callable[..., Any], num_threads: int) -> None:
        self._make = make
        self._threads = ThreadPoolExecutor(num_threads, "tensordict-loader")
        self._begun: deque[Future[Any] | RowCopy] = deque()

    def put(self, rows: torch.Tensor) -> None:
        """Begin a batch."""
        self._begun.append(self._threads.submit(self._make, rows))

    def get(self) -> Any:
        """Wait for the oldest batch."""
        return self._begun.popleft().result()

    def close(self) -> None:
        """Wait for the batches that threads are making."""
        self._begun.clear()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def abandon(self) -> None:
        """Begin no further batch; each thread ends after the batch that it is making."""
        self._begun.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)


class WaitingPipeline(ThreadsPipeline):
    """A pipeline of batches from a network, with enough requests to hide the latency.

    If the consumer has to wait for a batch, the number of batches begun ahead is
    doubled, up to a limit of bytes. If a cache on the local disk contains all rows of a
    batch, native code copies them like rows of local files.

    Args:
        make: the function that makes a batch of rows.
        num_prefetched: the number of batches begun ahead at first.
        buffers: recycled memory, which is passed to ``make`` as well; or None.
        filler: the reader of rows into this memory; or None.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        num_prefetched: int,
        buffers: Buffers | None = None,
        filler: RowFiller | None = None,
    ) -> None:
        super().__init__(make, _MOST_WAITING)
        self._filler = filler
        self._prefetcher = _rust.GatherPrefetcher(_num_threads(num_prefetched))
        self.depth: int = min(num_prefetched, _MOST_WAITING - 1)
        """The number of batches to begin before the first is taken."""
        self._buffers = buffers
        self._filled: deque[tuple[Buffer, int]] = deque()
        self.last: Buffer | None = None
        """The buffer of the batch that was returned last."""

    @classmethod
    def of(
        cls,
        source: Source,
        batch_size: int,
        num_prefetched: int,
        *,
        recycle: bool,
        pin: bool,
    ) -> WaitingPipeline:
        """Return a pipeline over a source, with recycled memory if the source can use it."""
        collections = source.collections()
        is_plain = len(collections) == 1 and getattr(source, "form", None) is None
        make_filler = getattr(collections[0], "_row_filler", None)
        filler = make_filler() if is_plain and make_filler is not None else None
        if filler is None:
            return cls(source.take, num_prefetched)
        buffers = Buffers(filler.row, batch_size, recycle, pin)
        return cls(filler.fill, num_prefetched, buffers, filler)

    def put(self, rows: torch.Tensor) -> None:
        """Begin a batch."""
        if self._buffers is None or self._filler is None:
            super().put(rows)
            return
        buffer = self._buffers.take()
        count = rows.numel()
        out = buffer.place(count)
        copy = self._filler.submit(self._prefetcher, rows, out)
        self._begun.append(copy or self._threads.submit(self._make, rows, out))
        self._filled.append((buffer, count))

    def get(self) -> Any:
        """Wait for the oldest batch."""
        is_late = not self._begun[0].done()
        batch = super().get()
        if self._buffers is not None:
            buffer, count = self._filled.popleft()
            batch = buffer.part(count)
            self._buffers.give(buffer)
            self.last = buffer
        if is_late and self.depth < _MOST_WAITING - 1:
            size = max(1, _num_bytes(batch))
            most = min(_MOST_WAITING - 1, max(1, _MOST_BYTES // size))
            self.depth = max(self.depth, min(2 * self.depth, most))
        return batch


def _num_bytes(batch: Any) -> int:
    leaves = _rust.leaves(batch) if isinstance(batch, CollectionProtocol) else []
    return sum(
        leaf.numel() * leaf.element_size() for leaf in leaves if not leaf.is_nested
    )


def _num_threads(num_prefetched: int) -> int:
    """Return the number of threads that copy batches besides the consumer's thread."""
    return min(num_prefetched, _MOST_THREADS, max(num_cpus() - 1, 1))


def _keep_in_place(tensor: torch.Tensor) -> None:
    """Have torch refuse to resize the storage of a tensor: threads read its memory."""
    storage = tensor.untyped_storage()
    if storage.resizable():
        # The memory of an array is never resized.
        torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


class NativePipeline:
    """A pipeline of native threads that copy rows into recycled memory without the GIL.

    Args:
        source: the source, which has only entries that native code can copy.
        buffers: the memory of the batches.
        num_prefetched: the most batches that are begun ahead.
    """

    def __init__(self, source: Dense, buffers: Buffers, num_prefetched: int) -> None:
        for part in source.parts:
            for leaf in _rust.leaves(part):
                _keep_in_place(leaf)
        self._source = source
        self._buffers = buffers
        self._prefetcher = _rust.GatherPrefetcher(_num_threads(num_prefetched))
        self._begun: deque[tuple[torch.Tensor, Buffer, list[Any]]] = deque()
        self.last: Buffer | None = None
        """The buffer of the batch that was returned last."""

    @classmethod
    def of(
        cls,
        source: Source,
        batch_size: int,
        num_prefetched: int,
        *,
        recycle: bool,
        pin: bool,
    ) -> NativePipeline | None:
        """Return a pipeline, or None if native code cannot copy all entries of a source."""
        dense = source.dense()
        if dense is None or not all(len(part) for part in dense.parts):
            return None
        parts = dense.parts
        first = torch.zeros(1, dtype=torch.int64)
        row = parts[0][first]
        keys = set(row.keys(True, True))
        probe = _rust.GatherPrefetcher(0)
        for part in parts:
            # Rows of several parts go into one batch, so the parts must have equal
            # keys.
            if set(part.keys(True, True)) != keys or not probe.submit(part, first, row):
                return None
        return cls(dense, Buffers(row, batch_size, recycle, pin), num_prefetched)

    def put(self, rows: torch.Tensor) -> None:
        """Begin a batch."""
        buffer = self._buffers.take()
        out = buffer.place(rows.numel())
        pieces = self._source.split(rows)
        tickets = []
        start = 0
        for part, own_rows in pieces:
            stop = start + own_rows.numel()
            place = out if len(pieces) == 1 else out[start:stop]
            tickets.append(self._submit(part, own_rows, place))
            start = stop
        self._begun.append((rows, buffer, tickets))

    def _submit(
        self, part: CollectionProtocol, rows: torch.Tensor, out: CollectionProtocol
    ) -> Any:
        # The first batch is needed at once, so all threads copy it together.
        ticket = self._prefetcher.submit(part, rows, out) if self._begun else None
        if ticket is None:
            # Or an entry has changed: it requires gradients now, or was resized.
            _rust.gather_into(part, rows, out)
        return ticket

    def get(self) -> Any:
        """Wait for the oldest batch."""
        rows, buffer, tickets = self._begun.popleft()
        for ticket in tickets:
            if ticket is not None:
                ticket.wait()
        batch = buffer.part(rows.numel())
        self._buffers.give(buffer)
        self.last = buffer
        return self._source.completed(batch, rows)

    def close(self) -> None:
        """Wait for rows that native threads are copying."""
        self._begun.clear()

    abandon = close
