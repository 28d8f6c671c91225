"""Draw the rows of an epoch, a step at a time: a class for each kind of order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from tensordict.data.loader.iterated import SamplerRows, follows_epochs, state_of
from tensordict.data.loader.samplers import seed_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.data.loader.loader import BatchLoader

__all__ = ["Drawing", "Drawn", "EpochState", "drawing_for"]


@dataclass(frozen=True)
class EpochState:
    """The place in an epoch.

    Args:
        epoch: its number.
        position: how many rows all ranks have taken.
        sampler: what else decides the rows that follow; None for what the loader and its
            sampler say themselves.
    """

    epoch: int
    position: int = 0
    sampler: dict[str, Any] | None = None


class Drawn(NamedTuple):
    """The rows of one batch.

    Args:
        rows: their numbers.
        position: the one behind them, in the rows of all ranks.
        of_all: the rows of all ranks, where a state has to repeat them.
    """

    rows: torch.Tensor
    position: int
    of_all: torch.Tensor | None = None


class Drawing(ABC):
    """The rows of one epoch in an order, from some place on.

    A new kind of order is a class with these methods, and a line in :func:`drawing_for`.

    Args:
        loader: whose epoch it is.
        start: where it begins, or goes on behind the rows that were taken.
    """

    @abstractmethod
    def __init__(self, loader: BatchLoader, start: EpochState) -> None: ...

    @abstractmethod
    def next(self) -> Drawn | None:
        """Return the rows of the next batch of this rank; None behind the last one."""

    @abstractmethod
    def state(self, begun: Sequence[Drawn]) -> dict[str, Any] | None:
        """Return what a state has besides the position.

        Args:
            begun: the batches that were drawn and not given to the consumer.
        """

    def num_batches(self) -> int | None:
        """Count the batches from the place on where this began; None if nobody knows."""
        return None

    @classmethod
    def between(cls, loader: BatchLoader) -> dict[str, Any] | None:
        """Return what the state of a loader between two epochs has besides the number."""
        return None

    @classmethod
    def pass_over(cls, loader: BatchLoader, epochs: range) -> None:
        """Bring the sampler to where it is behind some epochs that nobody has drawn."""
        return


class ByPosition(Drawing):
    """An order whose rows are found at any position: in turn, shuffled, mixed."""

    def __init__(self, loader: BatchLoader, start: EpochState) -> None:
        self._dealing = loader.dealing
        self._position = start.position
        self._rows = loader.source.of_epoch(loader.order, start.epoch, start.sampler)
        left = len(self._rows) - start.position
        self._num_batches = self._dealing.num_batches(left)

    def next(self) -> Drawn | None:
        """Return the rows of the next batch."""
        found = self._dealing.next_of(self._rows, self._position)
        if found is None:
            return None
        self._position = found[1]
        return Drawn(*found)

    def state(self, begun: Sequence[Drawn]) -> dict[str, Any] | None:
        """Return the shares of a mixture in this epoch."""
        return self._rows.state

    def num_batches(self) -> int | None:
        """Count the batches from the place on where this began."""
        return self._num_batches


class BySampler(Drawing):
    """The order of a sampler of torch, or of anything iterable over numbers of rows.

    A state has the sampler as it was when the epoch began, and who goes on in the middle
    draws again what was dealt.
    """

    def __init__(self, loader: BatchLoader, start: EpochState) -> None:
        self._dealing = loader.dealing
        self._shares = loader.shares
        self._position = start.position
        self._rows = SamplerRows(
            loader.sampler,
            seed_of(loader.seed, start.epoch) >> 1,
            start.epoch,
            start.sampler,
            loader.source.num_rows,
            takes_batches=self._shares is not None,
        )
        skipped = start.position
        if self._shares is not None:
            # A few rows twice, where another number of ranks cannot go on exactly.
            skipped //= self._shares.num_replicas
        self._rows.skip(skipped)

    def next(self) -> Drawn | None:
        """Return the rows of the next batch."""
        dealing = self._dealing
        if self._shares is not None:
            drawn = self._rows.draw(dealing.batch_size)
            if not len(drawn) or (
                dealing.drop_last and len(drawn) < dealing.batch_size
            ):
                return None
            self._position += len(drawn) * self._shares.num_replicas
            return Drawn(drawn, self._position)
        drawn = self._rows.draw(dealing.step_rows)
        rows = dealing.share_of(drawn)
        if rows is None:
            return None
        self._position += len(drawn)
        return Drawn(rows, self._position)

    def state(self, begun: Sequence[Drawn]) -> dict[str, Any] | None:
        """Return the state of the sampler when the epoch began."""
        return self._rows.state

    @classmethod
    def between(cls, loader: BatchLoader) -> dict[str, Any] | None:
        """Return the state of the sampler as it is."""
        return state_of(loader.sampler)

    @classmethod
    def pass_over(cls, loader: BatchLoader, epochs: range) -> None:
        """Draw these epochs, if the order of the next one follows from them."""
        if state_of(loader.sampler) is None or follows_epochs(loader.sampler):
            return
        for epoch in epochs:
            cls(loader, EpochState(epoch))._rows.skip(None)


class ByPositionDrawn(Drawing):
    """The rows that a sampler with ``draw`` chooses for some positions when they are due.

    What was drawn and not given is part of a state, since it is not drawn again: weights
    may be others by then.
    """

    _NOTHING: ClassVar[torch.Tensor] = torch.empty(0, dtype=torch.int64)

    def __init__(self, loader: BatchLoader, start: EpochState) -> None:
        self._dealing = loader.dealing
        self._sampler = loader.sampler
        self._epoch = start.epoch
        self._position = start.position
        self._pending = self._NOTHING
        if start.sampler is not None:
            self._sampler.load_state_dict(start.sampler["sampler"])
            self._pending = start.sampler["pending"]

    def next(self) -> Drawn | None:
        """Return the rows of the next batch."""
        count = self._dealing.step_rows
        drawn, self._pending = self._pending[:count], self._pending[count:]
        if len(drawn) < count:
            at = self._position + len(drawn)
            more = self._sampler.draw(self._epoch, at, count - len(drawn))
            drawn = torch.cat([drawn, more])
        rows = self._dealing.share_of(drawn)
        if rows is None:
            return None
        self._position += len(drawn)
        return Drawn(rows, self._position, drawn)

    def state(self, begun: Sequence[Drawn]) -> dict[str, Any] | None:
        """Return the sampler as it is, and what was drawn."""
        drawn = [one.of_all for one in begun if one.of_all is not None]
        pending = torch.cat([*drawn, self._pending])
        return {"sampler": self._sampler.state_dict(), "pending": pending}

    @classmethod
    def between(cls, loader: BatchLoader) -> dict[str, Any] | None:
        """Return the sampler as it is."""
        return {"sampler": loader.sampler.state_dict(), "pending": cls._NOTHING}


def drawing_for(sampler: object) -> type[Drawing]:
    """Return the class of the order of a loader with this sampler, or with none."""
    if sampler is None:
        return ByPosition
    return ByPositionDrawn if hasattr(sampler, "draw") else BySampler
