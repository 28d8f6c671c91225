"""The iterator over the batches of one epoch, which knows the consumer's position."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from tensordict.data.loader.drawing import EpochState, drawing_for
from tensordict.data.loader.pipelines import (
    DirectPipeline,
    NativePipeline,
    Pipeline,
    ThreadsPipeline,
    WaitingPipeline,
)
from tensordict.data.loader.samplers import seed_of
from tensordict.data.ragged import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.data.loader.drawing import Drawing, Drawn
    from tensordict.data.loader.loader import BatchLoader
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Epoch"]

_of_the_parent: list[Any] = []
"""Pipelines of the parent of this process. They are never freed, since that could wait for a
lock of a thread that does not exist here."""


class Epoch:
    """The batches of one epoch, as :class:`BatchLoader` yields them.

    The epoch and the position are taken from the loader at the first batch, so the
    loader may be set to another epoch until then.

    Attributes:
        start: the position at the first batch.
        is_finished: whether all batches were returned.
    """

    def __init__(self, loader: BatchLoader) -> None:
        self.start: EpochState = EpochState(0)
        self.is_finished: bool = False
        self._loader = loader
        self._taken = 0
        self._put = 0
        self._begun: deque[Drawn] = deque()
        self._drawing: Drawing | None = None
        self._num_prefetched = max(loader.prefetch, 2 * loader.workers)
        self._owner = os.getpid()
        self._pipeline: Pipeline | None = None
        self._pool: Any = None
        self._failure: Exception | None = None
        self._is_closed = False
        self._stream: Any = None

    def _begin(self) -> Drawing:
        loader = self._loader
        self.start = start = loader._beginning(self)
        self._taken = self._put = start.position
        return drawing_for(loader.sampler)(loader, start)

    def state(self) -> EpochState:
        """Return the consumer's position: after the last returned batch."""
        if self._drawing is None:
            return self.start
        state = self._drawing.state(self._begun)
        return EpochState(self.start.epoch, self._taken, state)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            return self._next()
        except BaseException as error:
            # After an error, the state is before the failed batch, which is tried
            # again.
            self.is_finished = isinstance(error, StopIteration)
            if self.is_finished:
                self._loader._ended(self)
            self.close()
            raise

    def _next(self) -> Any:
        if self._owner != os.getpid():
            self._restart_after_fork()
        self._fill()
        if not self._begun:
            raise StopIteration
        pipeline = self._pipeline
        assert pipeline is not None  # noqa: S101 - `_fill` has created it
        batch = pipeline.get()
        loader = self._loader
        if loader.workers == 0 and loader.transform is not None:
            batch = loader.transform(batch)
        if loader.device is not None or loader.pin_memory:
            batch = self._moved(batch, getattr(pipeline, "last", None))
        self._taken = self._begun.popleft().position
        return batch

    def _fill(self) -> None:
        """Begin the batch that is wanted, and as many as are prefetched."""
        while len(self._begun) <= self._num_wanted() and self._failure is None:
            try:
                if self._drawing is None:
                    self._drawing = self._begin()
                drawn = self._drawing.next()
                if drawn is None:
                    return
                if self._pipeline is None:
                    self._pipeline = self._new_pipeline()
                self._pipeline.put(drawn.rows)
            except Exception as error:  # noqa: BLE001 # the sampler is the user's
                # Batches that were begun earlier are returned before the error is
                # raised.
                self._failure = error
                break
            self._begun.append(drawn)
            self._put = drawn.position
        if self._failure is not None and not self._begun:
            raise self._failure

    def _num_wanted(self) -> int:
        """Return the number of batches to begin before the first is taken."""
        pipeline = self._pipeline
        if isinstance(pipeline, WaitingPipeline):
            return pipeline.depth
        return self._num_prefetched

    def _new_pipeline(self) -> Pipeline:
        loader, num_prefetched = self._loader, self._num_prefetched
        if loader.workers and loader.backend == "processes":
            return self._in_processes()
        if loader.workers:
            return ThreadsPipeline(self._transformed, loader.workers)
        if num_prefetched and any(map(is_remote, loader.source.collections())):
            return WaitingPipeline.of(
                loader.source,
                loader.batch_size,
                num_prefetched,
                recycle=loader.recycle,
                pin=loader.pin_memory,
            )
        native = NativePipeline.of(
            loader.source,
            loader.batch_size,
            num_prefetched,
            recycle=loader.recycle,
            pin=loader.pin_memory,
        )
        if native is not None:
            return native
        if num_prefetched:
            return ThreadsPipeline(loader.source.take, 1)
        return DirectPipeline(loader.source.take)

    def _in_processes(self) -> Pipeline:
        from tensordict.data.loader.processes import ProcessesPipeline, backend_for

        loader = self._loader
        # Another unfinished epoch may be using the loader's pool.
        self._pool, loader.pool = loader.pool or backend_for(loader), None
        size = loader.dealing.step_rows
        num = None if self._drawing is None else self._drawing.num_batches()
        stop = None if num is None else -(-self.start.position // size) + num
        return ProcessesPipeline(
            self._pool,
            loader.source,
            loader.transform or _unchanged,
            self._num_prefetched,
            loader.batch_size,
            (-(-self._put // size), stop),
            seed_of(loader.seed, self.start.epoch) >> 1,
        )

    def _transformed(self, rows: torch.Tensor) -> Any:
        batch = self._loader.source.take(rows)
        transform = self._loader.transform
        return batch if transform is None else transform(batch)

    def _restart_after_fork(self) -> None:
        """Restart in the child of a fork, in which the parent's threads do not exist."""
        _of_the_parent.append((self._pipeline, self._pool, self._loader.pool))
        self._owner = os.getpid()
        self._stream = self._pipeline = self._pool = self._loader.pool = None
        begun, put = list(self._begun), self._put
        if begun:
            self._put = self._taken
            self._pipeline = self._new_pipeline()
            for drawn_batch in begun:
                self._pipeline.put(drawn_batch.rows)
        self._put = put

    def _moved(self, batch: Any, buffer: Any) -> Any:
        """Move a batch to the loader's device, or pin it."""
        loader, device = self._loader, self._loader.device
        if not hasattr(batch, "to"):
            return batch
        if loader.pin_memory and buffer is None:
            batch = batch.pin_memory()
        if device is None:
            return batch
        if device.type != "cuda":
            return batch.to(device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        current = torch.cuda.current_stream(device)
        with torch.cuda.stream(self._stream):
            moved = batch.to(device, non_blocking=True)
            copied = self._stream.record_event()
        current.wait_event(copied)
        for leaf in moved.values(True, True):
            leaf.record_stream(current)
        if buffer is None:
            # No buffer keeps the memory alive while the copy reads it.
            copied.synchronize()
        else:
            buffer.copied = copied
        return moved

    def close(self) -> None:
        """End the threads and processes, and wait for the batches that they are making."""
        self._end(lambda pipeline: pipeline.close())

    def _end(self, end: Callable[[Pipeline], None]) -> None:
        self._is_closed = True
        pipeline, self._pipeline = self._pipeline, None
        if self._owner != os.getpid():
            _of_the_parent.append(pipeline)
        elif pipeline is not None:
            end(pipeline)
            self._loader.pool, self._pool = self._pool, None

    def __del__(self) -> None:
        # `__init__` may have failed, or the interpreter may be shutting down.
        with contextlib.suppress(Exception):
            if not self._is_closed:
                self._end(lambda pipeline: pipeline.abandon())


def _unchanged(batch: CollectionProtocol) -> CollectionProtocol:
    return batch
