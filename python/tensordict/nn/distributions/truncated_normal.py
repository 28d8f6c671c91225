"""Normal distributions between two bounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

from tensordict._deprecated_utils import NN_TRUNCATED_NORMAL
from tensordict._established import established_names

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TruncatedNormal", "TruncatedStandardNormal"]

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_LOG_SQRT_2PI_E = _LOG_SQRT_2PI + 0.5


def _density(x: torch.Tensor) -> torch.Tensor:
    """Return the density of the standard normal distribution."""
    return (-0.5 * x * x - _LOG_SQRT_2PI).exp()


def _standard_cdf(x: torch.Tensor) -> torch.Tensor:
    """Return the cumulative probability under the standard normal distribution."""
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _standard_icdf(p: torch.Tensor) -> torch.Tensor:
    return math.sqrt(2) * torch.erfinv(2 * p - 1)


class TruncatedStandardNormal(Distribution):
    """A standard normal distribution between two bounds.

    Args:
        a: the lower bound. It may be minus infinity.
        b: the upper bound. It may be infinity.
        validate_args: see :class:`torch.distributions.Distribution`.

    Raises:
        ValueError: ``a`` is not less than ``b``, or their dtypes differ.

    Examples:
        >>> TruncatedStandardNormal(-1.0, 1.0).variance
        tensor(0.2911)
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "a": constraints.real,
        "b": constraints.real,
    }
    has_rsample = True
    eps: float = 1e-6

    def __init__(
        self,
        a: float | torch.Tensor,
        b: float | torch.Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self.a: torch.Tensor
        self.b: torch.Tensor
        self.a, self.b = broadcast_all(a, b)
        shape = self.a.shape
        super().__init__(shape, validate_args=validate_args)
        if self.a.dtype != self.b.dtype:
            msg = f"Truncation bounds types are different: {self.a.dtype}, {self.b.dtype}."
            raise ValueError(msg)
        if (self.a >= self.b).any():
            msg = "Incorrect truncation range: a must be less than b everywhere."
            raise ValueError(msg)
        # In single precision, the mass between two bounds in a tail rounds to 0.
        below_a, below_b = (
            _standard_cdf(x).clamp(self.eps, 1 - self.eps) for x in (self.a, self.b)
        )
        self._below_a = below_a
        self._mass = (below_b - below_a).clamp(self.eps, 1 - self.eps)
        density_a, density_b = _density(self.a), _density(self.b)
        # The limit of x * density(x) at infinity is 0.
        weighted = [
            torch.where(x.isinf(), torch.zeros_like(x), x) * density
            for x, density in ((self.a, density_a), (self.b, density_b))
        ]
        self._tails = (weighted[1] - weighted[0]) / self._mass
        self._mean = -(density_b - density_a) / self._mass
        self._variance = 1 - self._tails - self._mean**2
        self._entropy = _LOG_SQRT_2PI_E + self._mass.log() - 0.5 * self._tails

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """The interval between the bounds."""
        return constraints.interval(self.a, self.b)

    @property
    def mean(self) -> torch.Tensor:
        """The mean."""
        return self._mean

    @property
    def variance(self) -> torch.Tensor:
        """The variance."""
        return self._variance

    @property
    def auc(self) -> torch.Tensor:
        """The probability of the interval under the untruncated distribution."""
        return self._mass

    def entropy(self) -> torch.Tensor:
        """Return the entropy."""
        return self._entropy

    def _checked(self, value: float | torch.Tensor) -> torch.Tensor:
        value = torch.as_tensor(value, dtype=self.a.dtype, device=self.a.device)
        if self._validate_args:
            self._validate_sample(value)
        return value

    def cdf(self, value: float | torch.Tensor) -> torch.Tensor:
        """Return the cumulative probability of a value."""
        value = self._checked(value)
        return ((_standard_cdf(value) - self._below_a) / self._mass).clamp(0, 1)

    def icdf(self, value: torch.Tensor) -> torch.Tensor:
        """Return the quantile of a probability."""
        probability = self._below_a + value * self._mass
        return _standard_icdf(probability.clamp(self.eps, 1 - self.eps))

    def log_prob(self, value: float | torch.Tensor) -> torch.Tensor:
        """Return the log-density of a value."""
        value = self._checked(value)
        return -_LOG_SQRT_2PI - self._mass.log() - 0.5 * value * value

    def rsample(
        self, sample_shape: torch.Size | Sequence[int] | None = None
    ) -> torch.Tensor:
        """Sample values that are differentiable in the parameters."""
        shape = self._extended_shape(torch.Size(sample_shape or ()))
        # In the default dtype: a seed gives the same samples for all dtypes of bounds.
        p = torch.empty(shape, device=self.a.device).uniform_(self.eps, 1 - self.eps)
        return self.icdf(p.to(self.a.dtype))

    def expand(
        self, batch_shape: Any, _instance: object = None
    ) -> TruncatedStandardNormal:
        """Return the same distribution with a larger batch shape."""
        return type(self)(
            self.a.expand(batch_shape),
            self.b.expand(batch_shape),
            validate_args=self._validate_args,
        )


class TruncatedNormal(TruncatedStandardNormal):
    """A normal distribution between two bounds.

    Args:
        loc: the mean of the untruncated distribution.
        scale: the standard deviation of the untruncated distribution.
        a: the lower bound. It may be minus infinity.
        b: the upper bound. It may be infinity.
        validate_args: see :class:`torch.distributions.Distribution`.

    Raises:
        ValueError: ``a`` is not less than ``b``, or their dtypes differ.

    Examples:
        >>> dist = TruncatedNormal(torch.zeros(2), 1.0, -1.0, torch.tensor([1.0, 2.0]))
        >>> dist.mean
        tensor([0.0000, 0.2296])
        >>> dist.sample().shape
        torch.Size([2])
    """

    def __init__(
        self,
        loc: float | torch.Tensor,
        scale: float | torch.Tensor,
        a: float | torch.Tensor,
        b: float | torch.Tensor,
        validate_args: bool | None = None,
    ) -> None:
        tensors = (a, b)
        if all(isinstance(x, torch.Tensor) for x in tensors) and a.dtype != b.dtype:  # type: ignore[union-attr]
            msg = f"Truncation bounds types are different: {a.dtype}, {b.dtype}."  # type: ignore[union-attr]
            raise ValueError(msg)
        self.loc: torch.Tensor
        self.scale: torch.Tensor
        self.loc, self.scale, self._low, self._high = broadcast_all(loc, scale, a, b)
        # `icdf` clamps to these bounds: rounding must not lead outside of them.
        super().__init__(
            (self._low - self.loc) / self.scale,
            (self._high - self.loc) / self.scale,
            validate_args=validate_args,
        )
        self._log_scale = self.scale.log()
        self._mean = self._mean * self.scale + self.loc
        self._variance = self._variance * self.scale**2
        self._entropy = self._entropy + self._log_scale

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """The interval between the bounds."""
        return constraints.interval(self._low, self._high)

    def _standard(self, value: torch.Tensor) -> torch.Tensor:
        return (value - self.loc) / self.scale

    def cdf(self, value: float | torch.Tensor) -> torch.Tensor:
        """Return the cumulative probability of a value."""
        value = self._checked(value)
        probability = _standard_cdf(self._standard(value))
        return ((probability - self._below_a) / self._mass).clamp(0, 1)

    def icdf(self, value: torch.Tensor) -> torch.Tensor:
        """Return the quantile of a probability."""
        quantile = super().icdf(value) * self.scale + self.loc
        # A clamped value keeps its gradient, so that a location far outside of the
        # bounds can learn. The added difference is 0: the value stays in the bounds.
        inside = quantile.detach().clamp(self._low, self._high)
        return inside + (quantile - quantile.detach())

    def log_prob(self, value: float | torch.Tensor) -> torch.Tensor:
        """Return the log-density of a value."""
        value = self._checked(value)
        standard = self._standard(value)
        return (
            -_LOG_SQRT_2PI
            - self._mass.log()
            - 0.5 * standard * standard
            - self._log_scale
        )

    def expand(self, batch_shape: Any, _instance: object = None) -> TruncatedNormal:
        """Return the same distribution with a larger batch shape."""
        return type(self)(
            self.loc.expand(batch_shape),
            self.scale.expand(batch_shape),
            self._low.expand(batch_shape),
            self._high.expand(batch_shape),
            validate_args=self._validate_args,
        )


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__, NN_TRUNCATED_NORMAL)
