"""Tensordicts in torch functions: the table of handlers, and its lookup.

:mod:`tensordict.interop.torch_functions` fills the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensordict import _rust
from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "NATIVE_FORMS",
    "TD_HANDLED_FUNCTIONS",
    "TorchDispatchOps",
    "handler_of",
]

Handler = Callable[..., Any]

TD_HANDLED_FUNCTIONS: dict[Callable[..., Any], Handler] = {}

NATIVE_FORMS: dict[Handler, str] = {}
"""Handlers with a native form for eager code with plain arguments.

The value is the name of the native form, or of the method of the first argument.
"""


def handler_of(function: Callable[..., Any]) -> Handler | None:
    """Return the handler for ``function`` with a tensordict argument, if any."""
    return _looked_up(function)


def _looked_up(function: Callable[..., Any]) -> Handler | None:
    handler = TD_HANDLED_FUNCTIONS.get(function)
    return reflected_operator(function) if handler is None else handler


TRACED = ((handler_of, _looked_up),)
"""Functions for :mod:`tensordict.compile.registration`: the lookup of a known
function is not traced.

Dynamo reads every key of a table in which it looks up a key.
"""


def reflected_operator(function: Callable[..., Any]) -> Handler | None:
    """Return the handler of ``tensor - td`` and similar reflected operators.

    Dynamo cannot look up a Python function in a table, but it can follow comparisons.
    """
    if function is torch.Tensor.__rsub__:
        return _subtract
    if function is torch.Tensor.__rtruediv__:
        return _divide
    if function is torch.Tensor.__rpow__:
        return _power
    if function is torch.Tensor.__rmod__:
        return _remainder
    return None


def _subtract(tensor: torch.Tensor, td: Any) -> Any:
    return td.__sub__(tensor)


def _divide(tensor: torch.Tensor, td: Any) -> Any:
    return td.__truediv__(tensor)


def _power(tensor: torch.Tensor, td: Any) -> Any:
    return td.__pow__(tensor)


def _remainder(tensor: torch.Tensor, td: Any) -> Any:
    return td.__mod__(tensor)


class TorchDispatchOps(CollectionProtocol):
    """The torch functions that accept tensordicts."""

    @classmethod
    @_rust.call_natively
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the handler of a torch function that got a tensordict argument.

        Returns:
            The handler's result; NotImplemented if there is no handler, which torch
            turns into a TypeError.
        """
        handler = handler_of(func)
        if handler is None:
            return NotImplemented
        for each in types:
            if each is not cls and not issubclass(
                each, (torch.Tensor, CollectionProtocol)
            ):
                return NotImplemented
        return handler(*args, **kwargs) if kwargs else handler(*args)
