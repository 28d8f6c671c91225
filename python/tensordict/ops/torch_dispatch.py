"""How a collection takes part in torch's functions; the table is elsewhere.

See :mod:`tensordict.interop.torch_functions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.interop.torch_functions import handler_of
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TorchDispatchOps"]


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
