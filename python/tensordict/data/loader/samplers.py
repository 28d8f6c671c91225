"""Draw rows by a sampler, and go on drawing after a restart."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SamplerRows", "WeightedSampler", "seed_of"]

_SEEDS = 2**63


def seed_of(*numbers: int) -> int:
    """Derive one seed from several numbers, the same everywhere."""
    found = torch.empty(1, dtype=torch.int64)
    key = [number % 2**64 for number in numbers]
    _rust.RowOrder(_SEEDS - 1, key).fill(0, found)
    return int(found)


class WeightedSampler:
    """Rows drawn with replacement, each as often as its weight says.

    Weights may change while a loader draws: by :meth:`update`, or by writing to
    :attr:`weights`. Batches that are drawn from then on follow the new ones; a loader has
    drawn those that it prefetches already.

    Args:
        weights: one number a row, none of them negative.
        num_samples: how many rows an epoch has. Default: as many as there are weights.
        seed: decides what is drawn, together with epoch, position and weights.

    Raises:
        ValueError: a weight is negative or not finite, or all of them are 0.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.data import BatchLoader, WeightedSampler
        >>> td = TensorDict(x=torch.arange(4), batch_size=[4])
        >>> sampler = WeightedSampler([0.0, 1.0, 0.0, 0.0])
        >>> loader = BatchLoader(td, 2, sampler=sampler, prefetch=0)
        >>> batches = iter(loader)
        >>> next(batches)["x"]
        tensor([1, 1])
        >>> sampler.update(torch.tensor([0.0, 1.0]), [1, 3])
        >>> next(batches)["x"]
        tensor([3, 3])
    """

    def __init__(
        self, weights: object, num_samples: int | None = None, *, seed: int = 0
    ) -> None:
        self.weights: torch.Tensor = torch.as_tensor(weights, dtype=torch.float64)
        if self.weights.dim() != 1 or not len(self.weights):
            msg = (
                "weights is a tensor of one dim with a number for each row, not of the "
                f"shape {tuple(self.weights.shape)}."
            )
            raise ValueError(msg)
        self.weights = self.weights.clone()
        self.num_samples: int = (
            len(self.weights) if num_samples is None else num_samples
        )
        self.seed: int = seed
        self._cumulative: torch.Tensor | None = None
        self._version = -1
        self._cumulative_weights()

    def __len__(self) -> int:
        return self.num_samples

    def update(self, weights: object, indices: object = None) -> None:
        """Set the weights of all rows, or of some.

        Raises:
            ValueError: a weight is negative or not finite, or all of them are 0. Then
                weights stay as they were.
        """
        before = self.weights.clone()
        if indices is None:
            self.weights.copy_(torch.as_tensor(weights, dtype=torch.float64))
        else:
            weights = torch.as_tensor(weights, dtype=torch.float64)
            self.weights[torch.as_tensor(indices)] = weights
        try:
            self._cumulative_weights()
        except ValueError:
            self.weights.copy_(before)
            raise

    def draw(self, epoch: int, position: int, count: int) -> torch.Tensor:
        """Draw the rows at some positions of an epoch, by the weights of now."""
        count = max(0, min(count, self.num_samples - position))
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch, position))
        chances = torch.rand(count, dtype=torch.float64, generator=generator)
        sums = self._cumulative_weights()
        rows = torch.searchsorted(sums, chances * sums[-1], right=True)
        # A product may be rounded up to the sum of all weights.
        last = torch.searchsorted(sums, sums[-1:])
        return rows.minimum(last)

    def _cumulative_weights(self) -> torch.Tensor:
        if self._cumulative is None or self._version != self.weights._version:
            sums = self.weights.cumsum(0)
            is_right = bool((self.weights >= 0).all()) and bool(sums[-1].isfinite())
            if not is_right or not bool(sums[-1] > 0):
                msg = "Weights are finite numbers, none negative and one of them positive."
                raise ValueError(msg)
            self._cumulative, self._version = sums, self.weights._version
        return self._cumulative

    def state_dict(self) -> dict[str, Any]:
        """Return the weights."""
        return {"weights": self.weights.clone(), "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take weights that were saved.

        Raises:
            ValueError: they are those of another number of rows.
        """
        weights = state["weights"]
        if weights.shape != self.weights.shape:
            msg = (
                f"The state has {len(weights)} weights, and this sampler has "
                f"{len(self.weights)}."
            )
            raise ValueError(msg)
        self.update(weights)
        self.seed = state["seed"]


class SamplerRows:
    """The rows of one epoch as a sampler of torch, or anything iterable, gives them.

    The state of the sampler when the epoch began is kept, and a loader that goes on in the
    middle draws again what was dealt. One that draws from torch's own generator gets a
    seed for the epoch, and that generator stays as it was.

    Args:
        sampler: gives numbers of rows.
        seed: that of the epoch.
        epoch: its number, for samplers that want it.
        state: that of an epoch that began before.
        num_rows: of the source, which bounds the numbers.
    """

    def __init__(
        self,
        sampler: Any,
        seed: int,
        epoch: int,
        state: dict[str, Any] | None,
        num_rows: int,
    ) -> None:
        self._num_rows = num_rows
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        generator = getattr(sampler, "generator", None)
        self.state: dict[str, Any] = {}
        if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
            if state is not None:
                sampler.load_state_dict(state["sampler"])
            self.state["sampler"] = sampler.state_dict()
        elif isinstance(generator, torch.Generator):
            if state is not None:
                generator.set_state(state["generator"])
            self.state["generator"] = generator.get_state()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            rows: Iterator[Any] = iter(sampler)
            first = list(itertools.islice(rows, 1))
        self._rows = itertools.chain(first, rows)

    def skip(self, count: int) -> None:
        """Draw rows that were dealt before."""
        for _ in itertools.islice(self._rows, count):
            pass

    def draw(self, count: int) -> torch.Tensor:
        """Draw the next rows, fewer at the end.

        Raises:
            TypeError: the sampler gives something that is no number.
            IndexError: it gives a row that is not there.
        """
        numbers = list(itertools.islice(self._rows, count))
        try:
            rows = torch.tensor([one.__index__() for one in numbers], dtype=torch.int64)
        except (AttributeError, TypeError):
            kinds = sorted({type(one).__name__ for one in numbers})
            msg = (
                "A sampler gives numbers of rows, one at a time, and this one gives "
                f"{', '.join(kinds)}. The loader makes the batches: no batch sampler."
            )
            raise TypeError(msg) from None
        outside = (rows < -self._num_rows) | (rows >= self._num_rows)
        if bool(outside.any()):
            msg = (
                f"the sampler gave row {int(rows[outside][0])}, and there are "
                f"{self._num_rows} rows"
            )
            raise IndexError(msg)
        return rows.where(rows >= 0, rows + self._num_rows)
