"""Computing with the positions of values."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["on_real_tensors"]


def on_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have ``function``, which computes with positions, do so under any dispatch mode.

    Values are where they are: under a ``FakeTensorMode`` positions must not be fake.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not _has_modes():
            return function(*args, **kwargs)
        with _disable_current_modes():
            return function(*args, **kwargs)

    return wrapper


def _has_modes() -> bool:
    """Whether a dispatch mode is on."""
    return bool(torch._C._len_torch_dispatch_stack())
