"""A mixture of several tensordicts, each with a share of the rows."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch

from tensordict.data.loader.order import FixedOrder
from tensordict.data.loader.source import (
    Template,
    Tensors,
    checked_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.containers.dense import TensorDict
    from tensordict.data.loader.order import Order, RandomAccess
    from tensordict.data.loader.source import Dense
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Mixture"]

_BLOCK = 1024
"""The number of rows in which each source has its exact share, rounded to rows."""


class Mixture:
    """Several tensordicts whose rows a :class:`BatchLoader` mixes in given proportions.

    Among any thousand neighbouring rows of an epoch, each tensordict has its share up
    to rounding, at random positions. With the default weights, each row comes once. The
    rows of one tensordict come in an order of their own; after all of them have come,
    they come again in a new order. In a batch, rows of one tensordict stand together,
    in the order of ``sources``.

    Args:
        sources: tensordicts with the same entries.
        weights: the shares, in any unit. Default: the numbers of rows.
        num_rows: the number of rows of an epoch. Default: the rows of all tensordicts.

    Raises:
        ValueError: there are no tensordicts, or one is empty; or the weights have
            another number, a negative value, or no positive value.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.data import BatchLoader, Mixture
        >>> few = TensorDict(x=torch.zeros(10), batch_size=[10])
        >>> many = TensorDict(x=torch.ones(3000), batch_size=[3000])
        >>> mixture = Mixture([few, many], weights=[1, 3], num_rows=2048)
        >>> batches = list(BatchLoader(mixture, 256, shuffle=True, seed=0))
        >>> sum(int(batch["x"].sum()) for batch in batches)
        1536
    """

    def __init__(
        self,
        sources: Sequence[Any],
        weights: Sequence[float] | None = None,
        *,
        num_rows: int | None = None,
    ) -> None:
        self.sources: list[Any] = list(sources)
        lengths = [checked_rows(source) for source in self.sources]
        if not lengths or not all(lengths):
            msg = f"A mixture needs collections that are not empty, got {lengths} rows."
            raise ValueError(msg)
        self._lengths = lengths
        self._weights: Sequence[float] = []
        self.weights = lengths if weights is None else weights
        self._ends = torch.tensor(lengths).cumsum(0)
        self._epoch_rows = sum(lengths) if num_rows is None else num_rows

    @property
    def weights(self) -> list[float]:
        """The shares of the collections, in any unit. New ones apply to the next epoch."""
        return list(self._weights)

    @weights.setter
    def weights(self, weights: Sequence[float]) -> None:
        numbers = [
            weight if isinstance(weight, int) else float(weight) for weight in weights
        ]
        is_right = len(numbers) == len(self.sources) and min(numbers) >= 0
        if not is_right or not 0 < sum(numbers) < float("inf"):
            msg = (
                f"A mixture of {len(self.sources)} collections needs as many weights, none "
                f"negative and at least one positive: got {numbers}."
            )
            raise ValueError(msg)
        self._weights = numbers

    def __len__(self) -> int:
        """Return the number of rows of an epoch."""
        return self._epoch_rows

    def select(self, *keys: object) -> Mixture:
        """Return the same mixture with some of the entries."""
        chosen = [source.select(*keys) for source in self.sources]
        return Mixture(chosen, self._weights, num_rows=self._epoch_rows)

    @property
    def num_rows(self) -> int:
        """The number of rows of all collections."""
        return sum(self._lengths)

    def of_epoch(
        self, order: Order, epoch: int, state: dict[str, Any] | None = None
    ) -> RandomAccess:
        """Return the rows of one epoch, with the weights of ``state`` if that is given."""
        weights = (state or {}).get("weights", self._weights)
        return _MixedOrder(self._lengths, weights, self._epoch_rows, order, epoch)

    def take(self, rows: torch.Tensor) -> Any:
        """Copy rows by their indices, which count through all collections."""
        from tensordict.data.rows import gather

        pieces = self._split(self.sources, rows)
        batches = [gather(source, own_rows) for source, own_rows in pieces]
        return batches[0] if len(batches) == 1 else torch.cat(batches, 0)

    def _split(
        self, parts: Sequence[Any], rows: torch.Tensor
    ) -> list[tuple[Any, torch.Tensor]]:
        """Return the parts that contain the rows, each with the indices inside it."""
        numbers = torch.searchsorted(self._ends, rows, right=True)
        pieces = []
        for number, part in enumerate(parts):
            own_rows = rows[numbers == number]
            if len(own_rows):
                start = int(self._ends[number]) - self._lengths[number]
                pieces.append((part, own_rows - start))
        return pieces

    def dense(self) -> Dense | None:
        """Return the tensors, if all collections have one class and no non-tensor data."""
        tensors = [Tensors(source) for source in self.sources]
        parts = [
            part.td
            for part in tensors
            if part.td is not None and not part.has_non_tensors
        ]
        is_one_class = len({type(source) for source in self.sources}) == 1
        if len(parts) < len(tensors) or not is_one_class:
            return None
        return _DenseMixture(self, parts, Template(self.sources[0], tensors[0]))

    def collections(self) -> list[Any]:
        """Return all collections."""
        return self.sources


class _DenseMixture:
    """A mixture of which all collections are dense."""

    def __init__(
        self, mixture: Mixture, parts: list[TensorDict], template: Template
    ) -> None:
        self.parts: list[TensorDict] = parts
        self._mixture = mixture
        self._template = template

    def split(self, rows: torch.Tensor) -> list[tuple[TensorDict, torch.Tensor]]:
        """Return the parts that contain the rows, each with the indices inside it."""
        return self._mixture._split(self.parts, rows)

    def completed(self, batch: CollectionProtocol, rows: torch.Tensor) -> Any:
        """Convert to tensorclasses if the first collection has them."""
        return self._template.completed(batch, None)


class _MixedOrder:
    """The rows of one epoch of a mixture, with random access by position.

    In the first ``n`` blocks, a collection has its share of the rows, rounded down; the
    collection with the largest weight has the remaining rows. So the number of its rows
    before a block follows without counting. Shares are fractions, since rounded numbers
    could lose a row.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        weights: Sequence[float],
        num_rows: int,
        order: Order,
        epoch: int,
    ) -> None:
        self.state: dict[str, Any] | None = {"weights": list(weights)}
        self._lengths = lengths
        shares = [Fraction(weight) for weight in weights]
        self._shares = [share / sum(shares) for share in shares]
        self._num_rows = num_rows
        self._order = order
        self._key = [order.seed % 2**64, epoch % 2**64]
        self._size = max(_BLOCK, len(lengths) ** 2)
        self._largest = max(range(len(weights)), key=lambda at: weights[at])
        self._starts = torch.tensor([0, *lengths[:-1]]).cumsum(0).tolist()

    def __len__(self) -> int:
        return self._num_rows

    def rows(self, start: int, count: int) -> torch.Tensor:
        """Return the rows at ``count`` positions from ``start``, which wrap around."""
        pieces = []
        position = start % self._num_rows
        while count > 0:
            block, first = divmod(position, self._size)
            stop = min(first + count, self._size)
            stop = min(stop, self._num_rows - block * self._size)
            pieces.append(self._of_block(block, first, stop))
            count -= stop - first
            position = (position + stop - first) % self._num_rows
        return torch.cat(pieces)

    def _counts(self, block: int) -> list[int]:
        """Return the number of rows of each collection before a block."""
        before = min(block * self._size, self._num_rows)
        counts = [int(before * share) for share in self._shares]
        counts[self._largest] += before - sum(counts)
        return counts

    def _of_block(self, block: int, first: int, stop: int) -> torch.Tensor:
        before, after = self._counts(block), self._counts(block + 1)
        shares = [end - start for start, end in zip(before, after, strict=True)]
        numbers = torch.repeat_interleave(
            torch.arange(len(shares)), torch.tensor(shares)
        )
        places = FixedOrder(len(numbers), [*self._key, block])
        numbers = numbers[places.rows(0, stop)]
        rows = torch.empty(stop - first, dtype=torch.int64)
        for source in range(len(shares)):
            is_of_source = numbers == source
            places_in_result = is_of_source[first:]
            count = int(places_in_result.sum())
            if count:
                at = before[source] + int(is_of_source[:first].sum())
                rows[places_in_result] = self._of_source(source, at, count)
        return rows

    def _of_source(self, source: int, position: int, count: int) -> torch.Tensor:
        """Return rows of one collection; after its end, it begins again in a new order."""
        length, pieces = self._lengths[source], []
        while count > 0:
            turn, at = divmod(position, length)
            size = min(count, length - at)
            key = [*self._key, source, turn] if self._order.shuffle else None
            order = FixedOrder(length, key, self._order.block_size)
            pieces.append(order.rows(at, size) + self._starts[source])
            position += size
            count -= size
        return torch.cat(pieces)
