"""Collections whose entries are kept elsewhere: in a collection, a file, on a server.

A class body lists the methods that it refuses, and the methods that run on a copy of
its entries:

    permute: Any = refused(MSG_SHAPE)
    where: Any = on_a_copy()

Both lines make a method with the signature of the dense collection's. The method's
attribute ``differs`` tells the two kinds apart. The documentation page on which method
works on which collection is generated from it.
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
    from typing import NoReturn

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
    "Cannot call {name} in_place with a {owner}. Call it without inplace, or on the "
    "result of to_tensordict()."
)


class Refusal(NamedTuple):
    """The error that a collection raises for a method that it does not support.

    Attributes:
        message: the text, with ``{name}`` for the method and ``{owner}`` for the class.
        error: the exception class.
    """

    message: str
    error: type[Exception] = RuntimeError

    def of(self, td: object, name: str) -> Exception:
        """Return the error for a call of the method ``name`` of ``td``."""
        return self.error(self.message.format(name=name, owner=type(td).__name__))


class _ReplacedMethod:
    """An assignment in a class body that becomes a method once its name is known."""

    def _method(
        self, name: str, dense_method: Callable[..., Any]
    ) -> Callable[..., Any]:
        raise NotImplementedError

    def __set_name__(self, owner: type, name: str) -> None:
        dense_method = getattr(TensorDictBase, name)
        method: Any = functools.wraps(dense_method)(self._method(name, dense_method))
        method.__doc__ = f"{self._summary()} See ``TensorDict.{name}``."
        method.__module__ = owner.__module__
        method.__qualname__ = f"{owner.__qualname__}.{name}"
        method.differs = self
        setattr(owner, name, method)

    def _summary(self) -> str:
        raise NotImplementedError


class Refused(_ReplacedMethod):
    """A method that raises an error."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal

    def _method(
        self, name: str, dense_method: Callable[..., Any]
    ) -> Callable[..., Any]:
        refusal = self.refusal

        def method(self: Any, *_: object, **__: object) -> NoReturn:
            raise refusal.of(self, name)

        return method

    def _summary(self) -> str:
        return "Not supported: the entries are kept elsewhere."


class OnACopy(_ReplacedMethod):
    """A method that works on a copy of the entries."""

    def __init__(self, inplace: Refusal | None) -> None:
        self.inplace = inplace

    def _method(
        self, name: str, dense_method: Callable[..., Any]
    ) -> Callable[..., Any]:
        inplace = self.inplace
        # The position of ``inplace`` among the positional arguments, without ``self``.
        parameters = list(inspect.signature(dense_method).parameters.values())
        by_position = (
            at - 1
            for at, parameter in enumerate(parameters)
            if parameter.name == "inplace"
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        )
        position = next(by_position, None)

        def method(self: Any, *args: object, **kwargs: object) -> Any:
            if inplace is not None and (
                kwargs.get("inplace")
                or (position is not None and len(args) > position and args[position])
            ):
                raise inplace.of(self, name)
            return getattr(self._shown(), name)(*args, **kwargs)

        return method

    def _summary(self) -> str:
        return "Copy the entries to memory, and call the method of the copy."


def refused(message: str, error: type[Exception] = RuntimeError) -> Refused:
    """Return a class attribute that becomes a method which raises an error.

    Args:
        message: the reason and the remedy, with ``{name}`` for the method and
            ``{owner}`` for the class of the collection.
        error: the exception class.
    """
    return Refused(Refusal(message, error))


def on_a_copy(*, inplace: Refusal | None = None) -> OnACopy:
    """Return a class attribute that becomes a method which runs on an ordinary copy.

    Args:
        inplace: the error to raise if the caller passes ``inplace=True``. Default: the
            method runs in place on the copy.
    """
    return OnACopy(inplace)


class KeptElsewhere(PlainEntries, TensorDictBase):  # type: ignore[misc]
    """A collection that reads and writes its entries where they are kept."""

    pin_memory: Any = refused(MSG_PIN)
    masked_select: Any = on_a_copy(inplace=Refusal(MSG_INPLACE, NotImplementedError))
    where: Any = on_a_copy()

    def _refuse(self, op: object) -> None:
        if op in REFUSED_BY_VIEWS:
            message = MSG_ONLY_VIEW if op in ONLY_VIEWS else MSG_SHAPE
            raise Refusal(message).of(self, str(op))

    def _replace_content(self, result: object) -> NoReturn:
        raise Refusal(MSG_INPLACE, NotImplementedError).of(self, "an operation")

    def squeeze(self, *args: Any, **kwargs: Any) -> Self:
        """Return this collection if the dim's size is not 1; refuse other calls.

        Raises:
            RuntimeError: no dim is given, unless lazy legacy mode is on.
        """
        if not (args or kwargs.get("dim") is not None or options.lazy_legacy()):
            raise Refusal(MSG_SHAPE).of(self, "squeeze")
        return super().squeeze(*args, **kwargs)

    def view(self, *shape: Any, **kwargs: Any) -> Any:
        """View the entries as another dtype; the only shape allowed is the present one.

        Raises:
            RuntimeError: the shape differs from the batch size. Use :meth:`reshape`.
        """
        if shape and isinstance(shape[0], torch.dtype):
            return self._shown().view(*shape, **kwargs)
        return super().view(*shape, **kwargs)


class KeptOutside(KeptElsewhere):
    """A collection whose entries are in a file or on a server, not in memory."""

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
        """Return this collection: entries outside of memory have no gradients."""
        return self

    def is_contiguous(self) -> bool:
        """Return False: the entries are not in memory."""
        return False
