"""One value of a distribution that is not drawn: its ``deterministic_sample``."""

from __future__ import annotations

from typing import Any

from torch import distributions

from tensordict.nn.settings import InteractionType
from tensordict.primitives.deprecation import warn_caller

__all__ = ["deterministic_sample", "estimated_mean", "register"]

MSG_FALLING_BACK = (
    "deterministic_sample wasn't found when queried on {cls}. "
    "ProbabilisticTensorDictModule is falling back on mean instead. For better code "
    "quality and efficiency, give the class a `deterministic_sample` property, or name a "
    "single interaction type such as mode or mean."
)

_BY_MODE = (
    distributions.Bernoulli,
    distributions.Binomial,
    distributions.Categorical,
    distributions.Independent,
    distributions.OneHotCategorical,
    distributions.OneHotCategoricalStraightThrough,
)


_kinds: dict[type, InteractionType] = {}
"""The deterministic sample of each class: its mode or its mean."""


def register() -> None:
    """Fill the table, once all distributions are defined."""
    from tensordict.nn.distributions.continuous import Delta
    from tensordict.nn.distributions.discrete import OneHotCategorical
    from tensordict.nn.distributions.truncated_normal import (
        TruncatedNormal,
        TruncatedStandardNormal,
    )

    found = {
        cls: InteractionType.MODE if cls in _BY_MODE else InteractionType.MEAN
        for cls in vars(distributions).values()
        if isinstance(cls, type) and issubclass(cls, distributions.Distribution)
    }
    _kinds.update(
        {
            **found,
            distributions.LogisticNormal: InteractionType.DETERMINISTIC,
            Delta: InteractionType.DETERMINISTIC,
            OneHotCategorical: InteractionType.MODE,
            TruncatedNormal: InteractionType.MEAN,
            TruncatedStandardNormal: InteractionType.MEAN,
        }
    )


def deterministic_sample(dist: Any, num_samples: int = 1000) -> Any:
    """One value of a distribution that is not drawn.

    Args:
        dist: its ``deterministic_sample`` is taken, or else its mode or its mean,
            whatever suits the class.
        num_samples: the number of samples to estimate a mean where there is none.
    """
    found = getattr(dist, "deterministic_sample", None)
    if found is not None:
        return found
    cls = type(dist)
    kind = _kinds.get(cls)
    if kind is None:
        warn_caller(MSG_FALLING_BACK.format(cls=cls), UserWarning)
    if kind is not InteractionType.MODE:
        return estimated_mean(dist, num_samples)
    try:
        return dist.mode
    except NotImplementedError:
        # Independent copies have the mode of the distribution inside, if it has one.
        return deterministic_sample(dist.base_dist, num_samples)


def estimated_mean(dist: Any, num_samples: int) -> Any:
    """The mean of a distribution; that of samples where it cannot tell."""
    try:
        return dist.mean
    except NotImplementedError:
        draw = dist.rsample if dist.has_rsample else dist.sample
        return draw((num_samples,)).mean(0)
