"""Functions that map any number to a positive number, and the settings of modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensordict._deprecated_utils import NN_UTILS
from tensordict._established import established_names
from tensordict.nn.settings import (
    _dispatch_td_nn_modules,
    _set_dispatch_td_nn_modules,
    _set_skip_existing_None,
    composite_lp_aggregate,
    set_composite_lp_aggregate,
    set_skip_existing,
    skip_existing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "add_custom_mapping",
    "biased_softplus",
    "composite_lp_aggregate",
    "expln",
    "inv_softplus",
    "mappings",
    "set_composite_lp_aggregate",
    "set_skip_existing",
    "skip_existing",
]

SMALLEST = 1e-6


def inv_softplus(bias: float | torch.Tensor) -> float | torch.Tensor:
    """Return the inverse of softplus, elementwise.

    ``expm1(bias)`` is clamped to at least 1e-6, so the result is finite.

    Args:
        bias: a tensor, or a number, for which the result is a number.

    Examples:
        >>> torch.nn.functional.softplus(inv_softplus(torch.tensor([2.0])))
        tensor([2.])
    """
    if isinstance(bias, torch.Tensor):
        return bias.expm1().clamp_min(SMALLEST).log()
    return torch.tensor(bias).expm1().clamp_min(SMALLEST).log().item()


class biased_softplus(nn.Module):  # noqa: N801 - a public name
    """A softplus that is ``bias`` at 0 and never less than ``min_val``.

    Args:
        bias: the value at 0.
        min_val: the lower bound of the values.

    Examples:
        >>> biased_softplus(1.0)(torch.zeros(2))
        tensor([1., 1.])
    """

    def __init__(self, bias: float, min_val: float = 0.01) -> None:
        super().__init__()
        self.bias: float | torch.Tensor = inv_softplus(bias - min_val)
        self.min_val = min_val

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values, elementwise."""
        return torch.nn.functional.softplus(x + self.bias) + self.min_val


def expln(x: torch.Tensor) -> torch.Tensor:
    """Return ``exp(x)`` below 0 and ``log(x + 1) + 1`` above, elementwise.

    The result is positive and grows slowly.

    Examples:
        >>> expln(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.3679, 1.0000, 1.6931])
    """
    # `where` computes both branches. Zeros in the unused branch keep NaNs out of the
    # gradient.
    below = x <= 0
    zero = torch.zeros_like(x)
    return torch.where(
        below,
        torch.where(below, x, zero).exp(),
        torch.where(below, zero, x).log1p() + 1,
    )


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


_MAPPINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softplus": torch.nn.functional.softplus,
    "exp": torch.exp,
    "relu": torch.relu,
    "expln": expln,
    "none": _unchanged,
}

BIASED = "biased_softplus"
MSG_NUMBERS = (
    "Invalid number of args in  {}: write biased_softplus_BIAS or "
    "biased_softplus_BIAS_MINVAL, such as biased_softplus_1.0_0.1."
)


def mappings(key: str) -> Callable[..., Any]:
    """Return the function of a name.

    Args:
        key: ``"softplus"``, ``"exp"``, ``"relu"``, ``"expln"``, ``"none"``, a name that
            :func:`add_custom_mapping` added, or ``"biased_softplus"``. The bias of
            ``"biased_softplus"`` is 1 and its lower bound 0.01;
            ``"biased_softplus_0.5"`` changes the bias, ``"biased_softplus_0.5_0.1"``
            changes both.

    Raises:
        NotImplementedError: the name is unknown.
        ValueError: ``"biased_softplus"`` is not followed by one or two numbers.

    Examples:
        >>> mappings("exp")(torch.zeros(1))
        tensor([1.])
    """
    mapping = _MAPPINGS.get(key)
    if mapping is not None:
        return mapping
    if key == BIASED:
        return biased_softplus(1.0)
    if key.startswith(BIASED):
        numbers = key.split("_")[2:]
        if len(numbers) not in (1, 2):
            raise ValueError(MSG_NUMBERS.format(key))
        return biased_softplus(*map(float, numbers))
    msg = f"Unknown mapping {key}. Add it with add_custom_mapping, or use one of "
    raise NotImplementedError(msg + ", ".join((*_MAPPINGS, BIASED)) + ".")


def add_custom_mapping(
    name: str, mapping: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Register a function under a name for :func:`mappings`.

    Args:
        name: the name. An existing name is replaced.
        mapping: an elementwise function.

    Examples:
        >>> add_custom_mapping("square", torch.square)
        >>> mappings("square")(torch.full((1,), 3.0))
        tensor([9.])
    """
    _MAPPINGS[name] = mapping


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__, NN_UTILS)
