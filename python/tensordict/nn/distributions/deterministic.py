"""The value that stands for a distribution: its ``deterministic_sample``."""

from __future__ import annotations

from typing import Any

from torch import distributions

from tensordict.nn.settings import InteractionType
from tensordict.primitives.deprecation import warn_caller

__all__ = ["deterministic_sample", "estimated_mean", "register"]

MSG_FALLING_BACK = (
    "deterministic_sample wasn't found when queried on {cls}. "
    "ProbabilisticTensorDictModule is falling back on mean instead. For better code "
    "quality and efficiency, add a `deterministic_sample` property to the class, or set "
    "an interaction type such as mode or mean."
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
"""From classes of distributions to their deterministic sample: mode or mean."""


def register() -> None:
    """Fill the table of deterministic samples, once all distributions are defined."""
    from tensordict.nn.distributions.continuous import Delta
    from tensordict.nn.distributions.discrete import OneHotCategorical
    from tensordict.nn.distributions.truncated_normal import (
        TruncatedNormal,
        TruncatedStandardNormal,
    )

    of_torch = {
        cls: InteractionType.MODE if cls in _BY_MODE else InteractionType.MEAN
        for cls in vars(distributions).values()
        if isinstance(cls, type) and issubclass(cls, distributions.Distribution)
    }
    _kinds.update(
        {
            **of_torch,
            distributions.LogisticNormal: InteractionType.DETERMINISTIC,
            Delta: InteractionType.DETERMINISTIC,
            OneHotCategorical: InteractionType.MODE,
            TruncatedNormal: InteractionType.MEAN,
            TruncatedStandardNormal: InteractionType.MEAN,
        }
    )


def deterministic_sample(dist: Any, num_samples: int = 1000) -> Any:
    """Return the ``deterministic_sample`` of a distribution, or else its mode or mean.

    Args:
        dist: the distribution. Its class decides between mode and mean.
        num_samples: the number of samples that estimate the mean, if ``dist`` has no
            ``mean``.
    """
    sample = getattr(dist, "deterministic_sample", None)
    if sample is not None:
        return sample
    cls = type(dist)
    kind = _kinds.get(cls)
    if kind is None:
        warn_caller(MSG_FALLING_BACK.format(cls=cls), UserWarning)
    if kind is not InteractionType.MODE:
        return estimated_mean(dist, num_samples)
    try:
        return dist.mode
    except NotImplementedError:
        # `Independent` has no mode if its base distribution has none.
        return deterministic_sample(dist.base_dist, num_samples)


def estimated_mean(dist: Any, num_samples: int) -> Any:
    """Return the mean of a distribution, or of samples if it has no ``mean``."""
    try:
        return dist.mean
    except NotImplementedError:
        draw = dist.rsample if dist.has_rsample else dist.sample
        return draw((num_samples,)).mean(0)
