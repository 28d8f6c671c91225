"""A point mass, and modules that compute the parameters of normal distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.distributions import Distribution

from tensordict.nn.utils import mappings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["AddStateIndependentNormalScale", "Delta", "NormalParamExtractor"]


class NormalParamExtractor(nn.Module):
    """A module that splits the last dim of a tensor into a location and a scale.

    The scale is positive.

    Args:
        scale_mapping: the name of the function that makes the scale positive: see
            :func:`tensordict.nn.mappings`.
        scale_lb: the lower bound of the scale.

    Examples:
        >>> loc, scale = NormalParamExtractor()(torch.zeros(3, 4))
        >>> loc.shape, scale.shape
        (torch.Size([3, 2]), torch.Size([3, 2]))
    """

    def __init__(
        self, scale_mapping: str = "biased_softplus_1.0", scale_lb: float = 1e-4
    ) -> None:
        super().__init__()
        self.scale_mapping: Callable[[torch.Tensor], torch.Tensor] = mappings(
            scale_mapping
        )
        self.scale_lb = scale_lb

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return location and scale of the first tensor, and the other tensors."""
        first, *others = tensors
        loc, scale = first.chunk(2, -1)
        return (loc, self.scale_mapping(scale).clamp_min(self.scale_lb), *others)


class AddStateIndependentNormalScale(nn.Module):
    """A module that adds a learned scale, independent of the input, to a location.

    Args:
        scale_shape: the shape of the scale, ``[*F]``: the last dims of the location.
            Default: ``[]``, one number.
        scale_mapping: the name of the function that makes the scale positive: see
            :func:`tensordict.nn.mappings`.
        scale_lb: the lower bound of the scale.
        device: the device of the scale.
        make_param: whether the scale is a parameter. If false, it is a buffer.
        init_value: the initial value of the scale, before the mapping.

    Examples:
        >>> loc, scale = AddStateIndependentNormalScale(4)(torch.zeros(3, 4))
        >>> scale[0]
        tensor([1., 1., 1., 1.], grad_fn=<SelectBackward0>)
    """

    def __init__(
        self,
        scale_shape: torch.Size | int | tuple[int, ...] | None = None,
        *,
        scale_mapping: str = "exp",
        scale_lb: float = 1e-4,
        device: torch.device | None = None,
        make_param: bool = True,
        init_value: float = 0.0,
    ) -> None:
        super().__init__()
        if scale_shape is None:
            scale_shape = ()
        elif isinstance(scale_shape, int):
            scale_shape = (scale_shape,)
        self.scale_lb = scale_lb
        value = torch.full(torch.Size(scale_shape), init_value, device=device)
        self.state_independent_scale: torch.Tensor = (
            nn.Parameter(value) if make_param else nn.Buffer(value)
        )
        self.scale_mapping: Callable[[torch.Tensor], torch.Tensor] = mappings(
            scale_mapping
        )

    def forward(
        self, loc: torch.Tensor, *others: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the location, the scale expanded to its shape, and the other tensors.

        Raises:
            RuntimeError: the last dims of the location differ from the shape of the
                scale.
        """
        scale = self.state_independent_scale
        last = loc.shape[len(loc.shape) - scale.ndim :]
        if last != scale.shape:
            msg = (
                f"Last dimensions of loc ({last}) do not match the number of dimensions "
                f"in scale ({scale.shape})"
            )
            raise RuntimeError(msg)
        scale = torch.zeros_like(loc) + scale
        return (loc, self.scale_mapping(scale).clamp_min(self.scale_lb), *others)


class Delta(Distribution):
    """A distribution with all mass at one point.

    The log-probability is infinite at the point and minus infinite elsewhere.

    Args:
        param: the point, ``[*B, *F]``.
        atol: the absolute tolerance for values at the point, as in
            :func:`torch.isclose`.
        rtol: the relative tolerance.
        batch_shape: ``[*B]``. Default: all dims but the last.
        event_shape: ``[*F]``. Default: the last dim.

    Examples:
        >>> dist = Delta(torch.tensor([1.0, 2.0]))
        >>> dist.sample()
        tensor([1., 2.])
        >>> dist.log_prob(torch.tensor([1.0, 2.0]))
        tensor(inf)
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        param: torch.Tensor,
        atol: float = 1e-6,
        rtol: float = 1e-6,
        batch_shape: torch.Size | Sequence[int] | None = None,
        event_shape: torch.Size | Sequence[int] | None = None,
    ) -> None:
        self.update(param)
        self.atol = atol
        self.rtol = rtol
        if batch_shape is None and event_shape is None:
            batch_shape = param.shape[:-1]
            event_shape = param.shape[-1:]
        elif event_shape is None:
            event_shape = param.shape[len(batch_shape or ()) :]
        elif batch_shape is None:
            batch_shape = param.shape[: param.ndim - len(event_shape)]
        super().__init__(
            batch_shape=torch.Size(batch_shape or ()),
            event_shape=torch.Size(event_shape),
        )

    def update(self, param: torch.Tensor) -> None:
        """Replace the point."""
        self.param = param

    def expand(self, batch_shape: Any, _instance: object = None) -> Delta:
        """Return a distribution with the same point and a larger batch shape."""
        shape = torch.Size(batch_shape)
        param = self.param.expand(shape + self.event_shape)
        return Delta(param, self.atol, self.rtol, shape, self.event_shape)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """Return infinity for values at the point, minus infinity for others."""
        atol, rtol = self.atol, self.rtol
        distance = (value - self.param).abs()
        is_equal = distance <= atol + rtol * self.param.abs()
        if is_equal.ndim:
            is_equal = is_equal.all(-1)
        infinite = torch.full_like(is_equal, torch.inf, dtype=torch.get_default_dtype())
        return torch.where(is_equal, infinite, -infinite)

    @torch.no_grad()
    def sample(
        self, sample_shape: torch.Size | Sequence[int] | None = None
    ) -> torch.Tensor:
        """Return the point as ``[*sample_shape, *B, *F]``, without gradient."""
        return self.rsample(sample_shape)

    def rsample(
        self, sample_shape: torch.Size | Sequence[int] | None = None
    ) -> torch.Tensor:
        """Return the point as ``[*sample_shape, *B, *F]``, with its gradient."""
        return self.param.expand(torch.Size(sample_shape or ()) + self.param.shape)

    @property
    def mode(self) -> torch.Tensor:
        """The point."""
        return self.param

    @property
    def deterministic_sample(self) -> torch.Tensor:
        """The point."""
        return self.param

    @property
    def mean(self) -> torch.Tensor:
        """The point."""
        return self.param
