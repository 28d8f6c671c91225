"""Established import path: torch functions of tensordicts."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tensordict._established import established_names
from tensordict.interop.torch_functions import TD_HANDLED_FUNCTIONS

__all__ = ["TD_HANDLED_FUNCTIONS", "implements_for_lazy_td", "implements_for_td"]


def implements_for_td(
    torch_function: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the tensordict handler of a torch function."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        TD_HANDLED_FUNCTIONS[torch_function] = function
        return function

    return register


implements_for_lazy_td = implements_for_td


def where(
    condition: object, input: object, other: object, *, out: object = None
) -> Any:
    """Choose elements of two tensordicts by a condition: see :func:`torch.where`."""
    return TD_HANDLED_FUNCTIONS[torch.where](condition, input, other, out=out)


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
