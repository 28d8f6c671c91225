"""Collections whose entries are kept elsewhere: in a collection, a file, on a server.

A class says in its body what it refuses, and what it does on a copy of its entries:

    permute: Any = refused(MSG_SHAPE)
    where: Any = on_a_copy()

Both make a method with the signature of the dense collection's. Its attribute ``differs``
says which of the two it is: the page of the documentation on what works on which
collection is made of these.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from tensordict.containers.collection import TensorDictBase
from tensordict.containers.plain_walks import PlainEntries
from tensordict.primitives import options
from tensordict.primitives.operations import ONLY_VIEWS, REFUSED_BY_VIEWS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "KeptElsewhere",
    "KeptOutside",
    "OnACopy",
    "Refusal",
    "Refused",
    "on_a_copy",
    "refused",
]

MSG_SHAPE = "Cannot call `{name}` on a {owner}. Call `to_tensordict()` first."
MSG_ONLY_VIEW = (
    "Cannot call `{name}` on a {owner}. Call `reshape` or `to_tensordict()` first."
)
MSG_PIN = (
    "Cannot pin memory of a {owner}. Call to_tensordict() before making this call."
)
MSG_INPLACE = (
    "An operation that replaces tensors in place is not supported on {owner}; call "
    ".to_tensordict() first or use inplace=False."
)
MSG_MEMMAP = "Cannot build a memmap TensorDict in-place from a {owner}. Use `td.memmap()` instead."
MSG_MAKE = (
    "Cannot call `{name}` on a {owner}. Only a memory-mapped TensorDict supports it."
)
MSG_SHARE = "Cannot call {name} on a {owner}. Call `to_tensordict()` first."
MSG_FLATTEN = (
    "Cannot call {name} in_place with a {owner}. Call it without inplace, or on what "
    "to_tensordict() gives."
)


class Refusal(NamedTuple):
    """The error of a call that a collection cannot answer.

    Attributes:
        message: its text, with ``{name}`` for the method and ``{owner}`` for the class.
        error: its class.
    """

    message: str
    error: type[Exception] = RuntimeError

    def of(self, td: object, name: str) -> Exception:
        """Make the error of a call of the method ``name`` of ``td``."""
        return self.error(self.message.format(name=name, owner=type(td).__name__))


class _Written:
    """A line of a class body, which becomes a method once its name is known."""

    def _method(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        raise NotImplementedError

    def __set_name__(self, owner: type, name: str) -> None:
        own = getattr(TensorDictBase, name)
        method: Any = functools.wraps(own)(self._method(name, own))
        method.__doc__ = f"{self._summary()} See ``TensorDict.{name}``."
        method.__module__ = owner.__module__
        method.__qualname__ = f"{owner.__qualname__}.{name}"
        method.differs = self
        setattr(owner, name, method)

    def _summary(self) -> str:
        raise NotImplementedError


class Refused(_Written):
    """A method that raises an error."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal

    def _method(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        refusal = self.refusal

        def method(self: Any, *_: object, **__: object) -> Any:
            raise refusal.of(self, name)

        return method

    def _summary(self) -> str:
        return "Not supported: the entries are kept elsewhere."


class OnACopy(_Written):
    """A method that works on a copy of the entries."""

    def __init__(self, inplace: Refusal | None) -> None:
        self.inplace = inplace

    def _method(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        inplace = self.inplace
        # The place of ``inplace`` among the arguments by position, after ``self``.
        parameters = list(inspect.signature(own).parameters.values())
        by_position = (
            at - 1
            for at, parameter in enumerate(parameters)
            if parameter.name == "inplace"
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        )
        place = next(by_position, None)

        def method(self: Any, *args: object, **kwargs: object) -> Any:
            if inplace is not None and (
                kwargs.get("inplace")
                or (place is not None and len(args) > place and args[place])
            ):
                raise inplace.of(self, name)
            return getattr(self._shown(), name)(*args, **kwargs)

        return method

    def _summary(self) -> str:
        return "Work on an ordinary copy of the entries, which are read for it."


def refused(message: str, error: type[Exception] = RuntimeError) -> Any:
    """Write a method that a collection does not support.

    Args:
        message: the reason and the remedy, with ``{name}`` for the method and ``{owner}``
            for the class of the collection.
        error: the class of the error.
    """
    return Refused(Refusal(message, error))


def on_a_copy(*, inplace: Refusal | None = None) -> Any:
    """Write a method that is called on an ordinary collection of the entries.

    Args:
        inplace: the error where the caller asks for work in place. Default: the copy
            decides.
    """
    return OnACopy(inplace)


class KeptElsewhere(PlainEntries, TensorDictBase):  # type: ignore[misc]
    """A collection that reads its entries where they are kept, and writes them there."""

    pin_memory: Any = refused(MSG_PIN)
    masked_select: Any = on_a_copy(inplace=Refusal(MSG_INPLACE, NotImplementedError))
    where: Any = on_a_copy()

    def _refuse(self, op: object) -> None:
        if op in REFUSED_BY_VIEWS:
            message = MSG_ONLY_VIEW if op in ONLY_VIEWS else MSG_SHAPE
            raise Refusal(message).of(self, str(op))

    def _replace_content(self, result: object) -> Any:
        raise Refusal(MSG_INPLACE, NotImplementedError).of(self, "an operation")

    def squeeze(self, *args: Any, **kwargs: Any) -> Self:
        """Remove a dim of another size than 1, which leaves the collection as it is.

        Raises:
            RuntimeError: no dim is named, outside of the lazy mode.
        """
        if not (args or kwargs.get("dim") is not None or options.lazy_legacy()):
            raise Refusal(MSG_SHAPE).of(self, "squeeze")
        return super().squeeze(*args, **kwargs)

    def view(self, *shape: Any, **kwargs: Any) -> Any:
        """Read the entries as another dtype; a shape has to be the one that it has.

        Raises:
            RuntimeError: the shape is another one. Use :meth:`reshape`.
        """
        if shape and isinstance(shape[0], torch.dtype):
            return self._shown().view(*shape, **kwargs)
        return super().view(*shape, **kwargs)


class KeptOutside(KeptElsewhere):
    """A collection whose entries are not in memory, but in a file or on a server."""

    memmap: Any = on_a_copy()
    memmap_: Any = refused(MSG_MEMMAP)
    make_memmap: Any = refused(MSG_MAKE)
    make_memmap_from_storage: Any = refused(MSG_MAKE)
    make_memmap_from_tensor: Any = refused(MSG_MAKE)
    share_memory_: Any = refused(MSG_SHARE, NotImplementedError)
    permute: Any = refused(MSG_SHAPE)
    flatten_keys: Any = on_a_copy(inplace=Refusal(MSG_FLATTEN, ValueError))
    unflatten_keys: Any = on_a_copy(inplace=Refusal(MSG_FLATTEN, ValueError))
    unflatten: Any = on_a_copy(inplace=Refusal(MSG_INPLACE, NotImplementedError))

    def detach_(self) -> Self:
        """Return this collection: nothing outside of memory has gradients."""
        return self

    def is_contiguous(self) -> bool:
        """Return False: the entries are not in memory."""
        return False
