"""A ``deterministic_sample`` for the distributions of torch that have no mode or mean.

:mod:`tensordict.nn.distributions.deterministic` uses the mode or the mean of most
distributions. Three have neither: they get a ``deterministic_sample`` here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributions

__all__ = ["install"]


def _of_logistic_normal(self: Any) -> torch.Tensor:
    """Return the mean of the base distribution, transformed."""
    value = self.base_dist.mean
    for transform in self.transforms:
        value = transform(value)
    return value


def _of_relaxed_one_hot(self: Any) -> torch.Tensor:
    """Return the most probable category, one-hot."""
    return torch.nn.functional.one_hot(
        self.logits.argmax(-1), self.logits.shape[-1]
    ).to(self.logits)


def _of_relaxed_bernoulli(self: Any) -> torch.Tensor:
    """Return 1 if it is more probable than 0, else 0."""
    return (self.logits > 0).to(self.logits)


def install() -> None:
    """Add the property ``deterministic_sample`` to three distributions of torch."""
    lacking: tuple[tuple[Any, Any], ...] = (
        (distributions.LogisticNormal, _of_logistic_normal),
        (distributions.RelaxedOneHotCategorical, _of_relaxed_one_hot),
        (distributions.RelaxedBernoulli, _of_relaxed_bernoulli),
    )
    for cls, method in lacking:
        if not hasattr(cls, "deterministic_sample"):
            cls.deterministic_sample = property(method)
