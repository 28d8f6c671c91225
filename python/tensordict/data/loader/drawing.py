"""Draw the rows of an epoch, one step at a time: a class for each kind of order."""

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
    """A position in an epoch.

    Args:
        epoch: the number of the epoch.
        position: the number of rows that all ranks together have taken.
        sampler: the state from which the following rows are derived; None if the loader
            and its sampler suffice.
    """

    epoch: int
    position: int = 0
    sampler: dict[str, Any] | None = None


class Drawn(NamedTuple):
    """The rows of one batch.

    Args:
        rows: their indices.
        position: the position after them, counted in rows of all ranks.
        of_all: the rows of all ranks, if a state must repeat them.
    """

    rows: torch.Tensor
    position: int
    of_all: torch.Tensor | None = None


class Drawing(ABC):
    """The rows of one epoch in some order, from a position on.

    To add a kind of order, write a subclass and add a line to :func:`drawing_for`.

    Args:
        loader: the loader of the epoch.
        start: the position to start at.
    """

    @abstractmethod
    def __init__(self, loader: BatchLoader, start: EpochState) -> None: ...

    @abstractmethod
    def next(self) -> Drawn | None:
        """Return the rows of this rank's next batch; None after the last batch."""

    @abstractmethod
    def state(self, begun: Sequence[Drawn]) -> dict[str, Any] | None:
        """Return the part of a loader's state besides the position.

        Args:
            begun: the batches that were drawn and not yet returned to the consumer.
        """

    def num_batches(self) -> int | None:
        """Return the number of batches from the start position on; None if unknown."""
        return None

    @classmethod
    def between(cls, loader: BatchLoader) -> dict[str, Any] | None:
        """Return a loader's state between two epochs, besides the number of the epoch."""
        return None

    @classmethod
    def pass_over(cls, loader: BatchLoader, epochs: range) -> None:
        """Advance the sampler over epochs that were not drawn."""
        return


class ByPosition(Drawing):
    """An order with random access by position: sequential, shuffled or mixed."""

    def __init__(self, loader: BatchLoader, start: EpochState) -> None:
        self._dealing = loader.dealing
        self._position = start.position
        self._rows = loader.source.of_epoch(loader.order, start.epoch, start.sampler)
        left = len(self._rows) - start.position
        self._num_batches = self._dealing.num_batches(left)

    def next(self) -> Drawn | None:
        """Return the rows of the next batch."""
        rows_and_position = self._dealing.next_of(self._rows, self._position)
        if rows_and_position is None:
            return None
        self._position = rows_and_position[1]
        return Drawn(*rows_and_position)

    def state(self, begun: Sequence[Drawn]) -> dict[str, Any] | None:
        """Return the weights of a mixture in this epoch."""
        return self._rows.state

    def num_batches(self) -> int | None:
        """Return the number of batches from the start position on."""
        return self._num_batches


class BySampler(Drawing):
    """The order of a torch sampler, or of another iterable over row indices.

    A state contains the sampler's state at the start of the epoch. A resume in the
    middle of an epoch draws the earlier rows again.
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
            # After a change of the number of ranks, some rows may come twice.
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
        """Return the state of the sampler at the start of the epoch."""
        return self._rows.state

    @classmethod
    def between(cls, loader: BatchLoader) -> dict[str, Any] | None:
        """Return the present state of the sampler."""
        return state_of(loader.sampler)

    @classmethod
    def pass_over(cls, loader: BatchLoader, epochs: range) -> None:
        """Draw these epochs, if the next epoch's order depends on them."""
        if state_of(loader.sampler) is None or follows_epochs(loader.sampler):
            return
        for epoch in epochs:
            cls(loader, EpochState(epoch))._rows.skip(None)


class ByPositionDrawn(Drawing):
    """Rows that a sampler with a ``draw`` method chooses by position, when they are needed.

    A state contains the rows that were drawn and not yet returned. They are not drawn
    again, since the weights may have changed.
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
        """Return the state of the sampler, and the rows that were drawn."""
        drawn = [batch.of_all for batch in begun if batch.of_all is not None]
        pending = torch.cat([*drawn, self._pending])
        return {"sampler": self._sampler.state_dict(), "pending": pending}

    @classmethod
    def between(cls, loader: BatchLoader) -> dict[str, Any] | None:
        """Return the state of the sampler."""
        return {"sampler": loader.sampler.state_dict(), "pending": cls._NOTHING}


def drawing_for(sampler: object) -> type[Drawing]:
    """Return the class of drawing for a sampler, or for no sampler."""
    if sampler is None:
        return ByPosition
    return ByPositionDrawn if hasattr(sampler, "draw") else BySampler
