"""Draw rows by weights, which may change at any time."""

from __future__ import annotations

from typing import Any

import torch

from tensordict import _rust

__all__ = ["WeightedSampler", "seed_of"]

_SEEDS = 2**63


def seed_of(*numbers: int) -> int:
    """Derive one seed from several numbers, the same on every machine."""
    seed = torch.empty(1, dtype=torch.int64)
    key = [number % 2**64 for number in numbers]
    _rust.RowOrder(_SEEDS - 1, key).fill(0, seed)
    return int(seed)


class WeightedSampler:
    """A sampler that draws rows with replacement, with probabilities given by weights.

    The weights may change while a loader draws: call :meth:`update`, or write to
    :attr:`weights`. Batches drawn afterwards use the new weights. Batches that the
    loader has prefetched already are not drawn again.

    Args:
        weights: one number for each row, none negative.
        num_samples: the number of rows of an epoch. Default: the number of weights.
        seed: the seed; the drawn rows depend on it, the epoch, the position and the
            weights.

    Raises:
        ValueError: a weight is negative or not finite, or all weights are 0.

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
                "weights must be a tensor of one dim with a number for each row, got the "
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
        """Set the weights of all rows, or of the rows at ``indices``.

        Raises:
            ValueError: a weight is negative or not finite, or all weights are 0. The
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
        """Draw the rows at ``count`` positions of an epoch, by the present weights."""
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
                msg = "Weights must be finite numbers, none negative and at least one positive."
                raise ValueError(msg)
            self._cumulative, self._version = sums, self.weights._version
        return self._cumulative

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the seed."""
        return {"weights": self.weights.clone(), "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the weights and the seed of a state.

        Raises:
            ValueError: the state has another number of weights.
        """
        weights = state["weights"]
        if weights.shape != self.weights.shape:
            msg = (
                f"The state has {len(weights)} weights, but this sampler has "
                f"{len(self.weights)}."
            )
            raise ValueError(msg)
        self.update(weights)
        self.seed = state["seed"]
