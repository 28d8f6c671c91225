"""Decide which rows are in which batch of an epoch, and of which rank."""

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
    """The rows of one epoch, found at any position.

    Attributes:
        state: what decides them besides seed and number of the epoch, in numbers.
    """

    state: dict[str, Any] | None

    def __len__(self) -> int:
        """Count the rows."""
        ...  # pragma: no cover

    def rows(self, start: int, count: int) -> torch.Tensor:
        """Return the rows at some positions; behind the last one the first follows."""
        ...  # pragma: no cover


@dataclass(frozen=True)
class Order:
    """The order of the rows of a source in an epoch.

    Args:
        shuffle: whether rows, or blocks of them, are shuffled.
        block_size: how many neighbours stay together; None shuffles single rows.
        seed: decides the order, together with the number of the epoch.
    """

    shuffle: bool
    block_size: int | None
    seed: int

    def of_epoch(self, num_rows: int, epoch: int) -> FixedOrder:
        """Return the order of one epoch."""
        key = [self.seed % 2**64, epoch % 2**64] if self.shuffle else None
        return FixedOrder(num_rows, key, self.block_size)


class FixedOrder:
    """The order of the rows of one epoch: no memory, whatever their number."""

    def __init__(
        self, num_rows: int, key: Sequence[int] | None, block_size: int | None = None
    ) -> None:
        self.state: dict[str, Any] | None = None
        self._order = _rust.RowOrder(num_rows, key, block_size)

    def __len__(self) -> int:
        return len(self._order)

    def rows(self, start: int, count: int) -> torch.Tensor:
        """Return the rows at some positions; behind the last one the first follows."""
        found = torch.empty(count, dtype=torch.int64)
        self._order.fill(start, found)
        return found


@dataclass(frozen=True)
class Dealing:
    """Deal the rows of an epoch to ranks, batch by batch.

    A step takes the next ``world_size * batch_size`` rows of the order, and each rank has
    ``batch_size`` of them. So what was dealt is always a beginning of the order, and
    another number of ranks can go on behind it.

    Args:
        batch_size: the rows of a batch of one rank.
        rank: this one.
        world_size: how many there are.
        drop_last: whether the batch that is not whole is left out.
        uneven: what becomes of rows that are left over when the last batch is dealt.
    """

    batch_size: int
    rank: int
    world_size: int
    drop_last: bool
    uneven: Uneven

    @property
    def step_rows(self) -> int:
        """The rows of a step of all ranks."""
        return self.batch_size * self.world_size

    def num_batches(self, num_rows: int) -> int:
        """Count the batches of each rank."""
        whole, rest = divmod(num_rows, self.step_rows)
        return whole + (self.last_size(rest) > 0)

    def last_size(self, rest: int) -> int:
        """Count the rows of each rank in the batch that is not whole."""
        if self.drop_last:
            return 0
        if self.uneven == "drop":
            return rest // self.world_size
        return -(-rest // self.world_size)

    def next_of(
        self, order: RandomAccess, position: int
    ) -> tuple[torch.Tensor, int] | None:
        """Return the rows of the batch behind a position, and the position behind it."""
        left = len(order) - position
        if left >= self.step_rows:
            start = position + self.rank * self.batch_size
            return order.rows(start, self.batch_size), position + self.step_rows
        count = self.last_size(left)
        if count <= 0:
            return None
        return order.rows(position + self.rank * count, count), len(order)

    def share_of(self, drawn: torch.Tensor) -> torch.Tensor | None:
        """Return the rows of this rank among those of a step, which may be the last one."""
        count = self.batch_size
        if len(drawn) < self.step_rows:
            count = self.last_size(len(drawn))
            if count <= 0:
                return None
        start = self.rank * count
        return drawn[torch.arange(start, start + count) % len(drawn)]


def checked_number(name: str, value: object, least: int) -> int:
    """Check an argument that is a whole number.

    Raises:
        TypeError: it is something else.
        ValueError: it is too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        msg = f"{name} must be an int, got {type(value).__name__}."
        raise TypeError(msg)
    number = int(value)
    if number < least:
        msg = f"{name} must be at least {least}, got {number}."
        raise ValueError(msg)
    return number
