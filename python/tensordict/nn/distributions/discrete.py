"""Categories as vectors of zeros and a one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributions import Categorical, RelaxedOneHotCategorical

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OneHotCategorical", "rand_one_hot"]


def rand_one_hot(values: torch.Tensor, do_softmax: bool = True) -> torch.Tensor:
    """Draw a category of each row, as a vector of zeros and a one.

    Args:
        values: their logits, ``[*B, N]``.
        do_softmax: false where they are probabilities.

    Returns:
        Zeros and ones of type int64, ``[*B, N]``.

    Examples:
        >>> rand_one_hot(torch.tensor([0.0, 1000.0]))
        tensor([0, 1])
    """
    if do_softmax:
        values = values.softmax(-1)
    levels = values.cumsum(-1) > torch.rand_like(values[..., :1])
    # A sum just below 1 may leave a row without any: it is then the last.
    levels[..., -1] = True
    return (levels.cumsum(-1) == 1).to(torch.long)


class OneHotCategorical(Categorical):
    """A category as a vector of zeros and a one.

    As :class:`torch.distributions.Categorical`, whose batch and event shapes it has;
    samples are of type int64 and have the categories as last dim. :meth:`rsample` passes
    the gradients of soft categories straight through.

    Args:
        logits: ``[*B, N]``.
        probs: the same as probabilities, in place of ``logits``.
        **kwargs: those of :class:`torch.distributions.Categorical`.

    Raises:
        ValueError: both are given, or neither.

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
        """The log-probability of a vector with a one."""
        if value.dtype is torch.bool:
            value = value.to(torch.uint8)
        return super().log_prob(value.argmax(dim=-1))

    @property
    def mode(self) -> torch.Tensor:
        """The most probable category; the first where there are several."""
        return torch.nn.functional.one_hot(
            self.logits.argmax(dim=-1), self.logits.shape[-1]
        )

    @property
    def deterministic_sample(self) -> torch.Tensor:
        """The most probable category."""
        return self.mode

    def sample(
        self, sample_shape: torch.Size | Sequence[int] | None = None
    ) -> torch.Tensor:
        """Categories, of type int64."""
        drawn = super().sample(torch.Size(sample_shape or ()))
        return torch.nn.functional.one_hot(drawn, self.logits.shape[-1])

    def rsample(
        self, sample_shape: torch.Size | Sequence[int] | None = None
    ) -> torch.Tensor:
        """Categories of the type of the probabilities, with the gradient of soft ones.

        These are samples of :class:`torch.distributions.RelaxedOneHotCategorical` at
        temperature 1, whose largest entry is the category.
        """
        relaxed = RelaxedOneHotCategorical(torch.ones(()), logits=self.logits)
        soft = relaxed.rsample(torch.Size(sample_shape or ()))
        hard = torch.nn.functional.one_hot(soft.argmax(dim=-1), soft.shape[-1])
        return hard + (soft - soft.detach())
