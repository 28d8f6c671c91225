"""Let collections take part in torch's functions: the table, and who is asked.

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
"""Handlers whose work the bindings do in eager code, where the arguments are plain.

By a name of theirs, or by the method of that name of the first argument.
"""


def handler_of(function: Callable[..., Any]) -> Handler | None:
    """Return what answers a call of ``function`` with a collection, if any."""
    return _looked_up(function)


def _looked_up(function: Callable[..., Any]) -> Handler | None:
    handler = TD_HANDLED_FUNCTIONS.get(function)
    return reflected_operator(function) if handler is None else handler


TRACED = ((handler_of, _looked_up),)
"""Functions for :mod:`tensordict.compile.registration`: a known function is not traced.

Dynamo reads every key of a table in which it looks something up.
"""


def reflected_operator(function: Callable[..., Any]) -> Handler | None:
    """The handler of ``td - tensor`` and its kin, which Dynamo asks for as a reflection.

    A function written in Python is no key that Dynamo finds in a table; it does follow
    comparisons.
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
    """The torch functions that collections take part in."""

    @classmethod
    @_rust.call_natively
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer a call of a torch function that was given a collection.

        Returns:
            What the function's entry in the table gives, or NotImplemented (which
            torch turns into a TypeError) where the table has none.
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
