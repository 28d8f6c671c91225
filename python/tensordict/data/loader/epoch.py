"""Iterate over the batches of one epoch, and know the place of the consumer."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict.data.loader.mixture import Mixture
from tensordict.data.loader.pipelines import (
    DirectPipeline,
    NativePipeline,
    Pipeline,
    ThreadsPipeline,
)
from tensordict.data.loader.samplers import SamplerRows, seed_of

if TYPE_CHECKING:
    from tensordict.data.loader.loader import BatchLoader
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Epoch", "EpochState"]

_of_the_parent: list[Any] = []
"""Pipelines that the parent of this process began. They are never freed: that could wait for
a lock whose thread is not there."""


@dataclass(frozen=True)
class EpochState:
    """The place in an epoch.

    Args:
        epoch: its number.
        position: how many rows all ranks have taken.
        sampler: the state of the sampler.
    """

    epoch: int
    position: int = 0
    sampler: dict[str, Any] | None = None


class _Begun(NamedTuple):
    """A batch that a pipeline works on."""

    rows: torch.Tensor
    position: int
    drawn: torch.Tensor | None


class Epoch:
    """The batches of one epoch, as :class:`BatchLoader` gives them."""

    def __init__(self, loader: BatchLoader, start: EpochState) -> None:
        self.is_finished: bool = False
        self._loader = loader
        self._number = start.epoch
        self._taken = start.position
        self._put = start.position
        self._begun: deque[_Begun] = deque()
        self._rows: Any
        self._pending = torch.empty(0, dtype=torch.int64)
        self._begin_rows(start)
        self._num_prefetched = max(loader.prefetch, 2 * loader.workers)
        self._owner = os.getpid()
        self._pipeline: Pipeline | None = None
        self._pool: Any = None
        self._failure: Exception | None = None
        self._is_closed = False
        self._stream: Any = None

    def _begin_rows(self, start: EpochState) -> None:
        loader = self._loader
        self._weights: list[float] | None = None
        if loader.sampler is None and isinstance(loader.source, Mixture):
            self._weights = (start.sampler or {}).get("weights", loader.source.weights)
            self._rows = loader.source.of_epoch(
                loader.order, start.epoch, self._weights
            )
        elif loader.sampler is None:
            self._rows = loader.source.of_epoch(loader.order, start.epoch)
        elif hasattr(loader.sampler, "draw"):
            if start.sampler is not None:
                loader.sampler.load_state_dict(start.sampler["sampler"])
                self._pending = start.sampler["pending"]
        else:
            seed = seed_of(loader.seed, start.epoch) >> 1
            self._rows = SamplerRows(
                loader.sampler, seed, start.epoch, start.sampler, loader.source.num_rows
            )
            self._rows.skip(start.position)

    def state(self) -> EpochState:
        """Return the place of the consumer: behind the batch that was returned last."""
        sampler = self._loader.sampler
        state = None
        if hasattr(sampler, "draw"):
            drawn = [one.drawn for one in self._begun if one.drawn is not None]
            pending = torch.cat([*drawn, self._pending])
            state = {"sampler": sampler.state_dict(), "pending": pending}
        elif sampler is not None:
            state = self._rows.state
        elif self._weights is not None:
            state = {"weights": self._weights}
        return EpochState(self._number, self._taken, state)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            return self._next()
        except BaseException as error:
            # After an error the state is that before the batch, which is tried again.
            self.is_finished = isinstance(error, StopIteration)
            self.close()
            raise

    def _next(self) -> Any:
        if self._owner != os.getpid():
            self._begin_again()
        self._fill()
        if not self._begun:
            raise StopIteration
        pipeline = self._pipeline
        assert pipeline is not None  # noqa: S101 - a batch was begun
        batch = pipeline.get()
        loader = self._loader
        if loader.workers == 0 and loader.transform is not None:
            batch = loader.transform(batch)
        if loader.device is not None or loader.pin_memory:
            batch = self._moved(batch, getattr(pipeline, "last", None))
        self._taken = self._begun.popleft().position
        return batch

    def _fill(self) -> None:
        """Begin as many batches as are prefetched, and the one that is wanted."""
        while len(self._begun) <= self._num_prefetched and self._failure is None:
            try:
                drawn = self._draw()
                if drawn is None:
                    return
                if self._pipeline is None:
                    self._pipeline = self._made_pipeline()
                self._pipeline.put(drawn.rows)
            except Exception as error:  # noqa: BLE001 # the sampler is the user's
                # Batches that were begun before come first.
                self._failure = error
                break
            self._begun.append(drawn)
            self._put = drawn.position
        if self._failure is not None and not self._begun:
            raise self._failure

    def _draw(self) -> _Begun | None:
        """Draw the rows of the next batch; None behind the last one."""
        dealing, sampler = self._loader.dealing, self._loader.sampler
        if sampler is None:
            found = dealing.next_of(self._rows, self._put)
            return None if found is None else _Begun(*found, None)
        count = dealing.step_rows
        if hasattr(sampler, "draw"):
            drawn, self._pending = self._pending[:count], self._pending[count:]
            if len(drawn) < count:
                at = self._put + len(drawn)
                more = sampler.draw(self._number, at, count - len(drawn))
                drawn = torch.cat([drawn, more])
        else:
            drawn = self._rows.draw(count)
        rows = dealing.share_of(drawn)
        return None if rows is None else _Begun(rows, self._put + len(drawn), drawn)

    def _made_pipeline(self) -> Pipeline:
        loader, num_prefetched = self._loader, self._num_prefetched
        if loader.workers and loader.backend == "processes":
            return self._in_processes()
        if loader.workers:
            return ThreadsPipeline(self._transformed, loader.workers)
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
        # Another epoch that is not at its end may have the pool.
        self._pool, loader.pool = loader.pool or backend_for(loader), None
        first = -(-self._put // loader.dealing.step_rows)
        stop = None
        if loader.sampler is None:
            stop = first + loader.dealing.num_batches(len(self._rows) - self._put)
        return ProcessesPipeline(
            self._pool,
            loader.source,
            loader.transform or _unchanged,
            self._num_prefetched,
            loader.batch_size,
            (first, stop),
            seed_of(loader.seed, self._number) >> 1,
        )

    def _transformed(self, rows: torch.Tensor) -> Any:
        batch = self._loader.source.take(rows)
        transform = self._loader.transform
        return batch if transform is None else transform(batch)

    def _begin_again(self) -> None:
        """Go on in the child of a fork, where no thread works on what was begun."""
        _of_the_parent.append((self._pipeline, self._pool, self._loader.pool))
        self._owner = os.getpid()
        self._stream = self._pipeline = self._pool = self._loader.pool = None
        begun, put = list(self._begun), self._put
        if begun:
            self._put = self._taken
            self._pipeline = self._made_pipeline()
            for one in begun:
                self._pipeline.put(one.rows)
        self._put = put

    def _moved(self, batch: Any, buffer: Any) -> Any:
        """Move a batch to the device of the loader, or pin it."""
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
            # Nobody else keeps the memory that is being read.
            copied.synchronize()
        else:
            buffer.copied = copied
        return moved

    def close(self) -> None:
        """End the threads and processes. An iterator that nobody has does so, too."""
        self._is_closed = True
        pipeline, self._pipeline = self._pipeline, None
        if self._owner != os.getpid():
            _of_the_parent.append(pipeline)
        elif pipeline is not None:
            pipeline.close()
            self._loader.pool, self._pool = self._pool, None

    def __del__(self) -> None:
        # Also of one whose making failed, and while the interpreter ends.
        with contextlib.suppress(Exception):
            if not self._is_closed:
                self.close()


def _unchanged(batch: CollectionProtocol) -> Any:
    return batch
