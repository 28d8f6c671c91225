"""Decide which rows are in which batch of an epoch, and on which rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from tensordict import _rust

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Dealing", "FixedOrder", "Order", "RandomAccess", "Uneven"]

Uneven = Literal["pad", "drop"]


class RandomAccess(Protocol):
    """The rows of one epoch, with random access by position.

    Attributes:
        state: numbers that decide the rows besides seed and epoch, or None.
    """

    state: dict[str, Any] | None

    def __len__(self) -> int:
        """Return the number of rows."""
        ...  # pragma: no cover

    def rows(self, start: int, count: int) -> torch.Tensor:
        """Return the rows at ``count`` positions from ``start``, which wrap around."""
        ...  # pragma: no cover


@dataclass(frozen=True)
class Order:
    """The order of the rows of a source.

    Args:
        shuffle: whether rows, or blocks of rows, are shuffled.
        block_size: the number of neighbouring rows in a block; None shuffles single
            rows.
        seed: the seed; the order depends on it and on the epoch.
    """

    shuffle: bool
    block_size: int | None
    seed: int

    def of_epoch(self, num_rows: int, epoch: int) -> FixedOrder:
        """Return the order of one epoch."""
        key = [self.seed % 2**64, epoch % 2**64] if self.shuffle else None
        return FixedOrder(num_rows, key, self.block_size)


class FixedOrder:
    """The order of the rows of one epoch, which needs no memory for any number of rows."""

    def __init__(
        self, num_rows: int, key: Sequence[int] | None, block_size: int | None = None
    ) -> None:
        self.state: dict[str, Any] | None = None
        self._order = _rust.RowOrder(num_rows, key, block_size)

    def __len__(self) -> int:
        return len(self._order)

    def rows(self, start: int, count: int) -> torch.Tensor:
        """Return the rows at ``count`` positions from ``start``, which wrap around."""
        row_numbers = torch.empty(count, dtype=torch.int64)
        self._order.fill(start, row_numbers)
        return row_numbers


@dataclass(frozen=True)
class Dealing:
    """The division of the rows of an epoch over ranks and batches.

    A step takes the next ``world_size * batch_size`` rows of the order, and each rank
    gets ``batch_size`` of them. So the rows dealt are always a prefix of the order, and
    a resume with another number of ranks can continue after it.

    Args:
        batch_size: the number of rows of one rank's batch.
        rank: this rank.
        world_size: the number of ranks.
        drop_last: whether to leave out an incomplete last batch.
        uneven: how to deal the rows of an incomplete last batch.
    """

    batch_size: int
    rank: int
    world_size: int
    drop_last: bool
    uneven: Uneven

    @property
    def step_rows(self) -> int:
        """The number of rows of a step, over all ranks."""
        return self.batch_size * self.world_size

    def num_batches(self, num_rows: int) -> int:
        """Return the number of batches of each rank."""
        whole, rest = divmod(num_rows, self.step_rows)
        return whole + (self.last_size(rest) > 0)

    def last_size(self, rest: int) -> int:
        """Return the number of rows of each rank in an incomplete last batch."""
        if self.drop_last:
            return 0
        if self.uneven == "drop":
            return rest // self.world_size
        return -(-rest // self.world_size)

    def next_of(
        self, order: RandomAccess, position: int
    ) -> tuple[torch.Tensor, int] | None:
        """Return the rows of the batch after a position, and the next position."""
        left = len(order) - position
        if left >= self.step_rows:
            start = position + self.rank * self.batch_size
            return order.rows(start, self.batch_size), position + self.step_rows
        count = self.last_size(left)
        if count <= 0:
            return None
        return order.rows(position + self.rank * count, count), len(order)

    def share_of(self, drawn: torch.Tensor) -> torch.Tensor | None:
        """Return this rank's rows among the rows of a step; None if it gets none."""
        count = self.batch_size
        if len(drawn) < self.step_rows:
            count = self.last_size(len(drawn))
            if count <= 0:
                return None
        start = self.rank * count
        return drawn[torch.arange(start, start + count) % len(drawn)]


def checked_number(name: str, value: object, least: int) -> int:
    """Check an integer argument.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is less than ``least``.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        msg = f"{name} must be an int, got {type(value).__name__}."
        raise TypeError(msg)
    number = int(value)
    if number < least:
        msg = f"{name} must be at least {least}, got {number}."
        raise ValueError(msg)
    return number
