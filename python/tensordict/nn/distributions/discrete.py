"""Categories as one-hot vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributions import Categorical, RelaxedOneHotCategorical

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OneHotCategorical", "rand_one_hot"]


def rand_one_hot(values: torch.Tensor, do_softmax: bool = True) -> torch.Tensor:
    """Sample a category from each row, as a one-hot vector.

    Args:
        values: the logits, ``[*B, N]``.
        do_softmax: false if ``values`` are probabilities.

    Returns:
        An int64 tensor of zeros and ones, ``[*B, N]``.

    Examples:
        >>> rand_one_hot(torch.tensor([0.0, 1000.0]))
        tensor([0, 1])
    """
    if do_softmax:
        values = values.softmax(-1)
    levels = values.cumsum(-1) > torch.rand_like(values[..., :1])
    # Rounding can leave the sum below the random number: the last category then counts.
    levels[..., -1] = True
    return (levels.cumsum(-1) == 1).to(torch.long)


class OneHotCategorical(Categorical):
    """A categorical distribution whose samples are one-hot vectors.

    Batch and event shape are those of :class:`torch.distributions.Categorical`. Samples
    are int64 tensors, whose last dim is the categories. :meth:`rsample` is a
    straight-through estimator: its gradient is that of soft categories.

    Args:
        logits: ``[*B, N]``.
        probs: probabilities ``[*B, N]``, instead of ``logits``.
        **kwargs: further keyword arguments of :class:`torch.distributions.Categorical`.

    Raises:
        ValueError: both ``logits`` and ``probs`` are passed, or neither.

    Examples:
        >>> dist = OneHotCategorical(logits=torch.tensor([0.0, 1.0]))
        >>> dist.mode
        tensor([0, 1])
        >>> dist.log_prob(torch.tensor([0, 1]))
        tensor(-0.3133)
    """

    num_params: int = 1

    def __init__(
        self,
        logits: torch.Tensor | None = None,
        probs: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(probs=probs, logits=logits, **kwargs)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of one-hot vectors."""
        if value.dtype is torch.bool:
            value = value.to(torch.uint8)
        return super().log_prob(value.argmax(dim=-1))

    @property
    def mode(self) -> torch.Tensor:
        """The most probable category, one-hot; the first of several."""
        return torch.nn.functional.one_hot(
            self.logits.argmax(dim=-1), self.logits.shape[-1]
        )

    @property
    def deterministic_sample(self) -> torch.Tensor:
        """The most probable category, one-hot."""
        return self.mode

    def sample(
        self, sample_shape: torch.Size | Sequence[int] | None = None
    ) -> torch.Tensor:
        """Sample one-hot vectors of dtype int64, ``[*sample_shape, *B, N]``."""
        drawn = super().sample(torch.Size(sample_shape or ()))
        return torch.nn.functional.one_hot(drawn, self.logits.shape[-1])

    def rsample(
        self, sample_shape: torch.Size | Sequence[int] | None = None
    ) -> torch.Tensor:
        """Sample one-hot vectors with the gradient of soft categories.

        The vectors have the dtype of the logits. The soft categories are samples of
        :class:`torch.distributions.RelaxedOneHotCategorical` at temperature 1; the
        category of a sample is their largest entry.
        """
        relaxed = RelaxedOneHotCategorical(torch.ones(()), logits=self.logits)
        soft = relaxed.rsample(torch.Size(sample_shape or ()))
        hard = torch.nn.functional.one_hot(soft.argmax(dim=-1), soft.shape[-1])
        return hard + (soft - soft.detach())
