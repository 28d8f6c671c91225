"""Non-tensor data that belongs to a collection as a whole, and its typed subclasses."""

from __future__ import annotations

import copyreg
import functools
import types
import typing
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.containers.nontensor.data import NonTensorDataBase, Value
from tensordict.primitives import classes, registry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MetaData"]

MSG_TYPE = "Expected data of type {}, got {}"
MSG_TWICE = "Cannot specify type for {}: it has one."


@classes.provided
class MetaData(NonTensorDataBase[Value]):
    """One value of any type that belongs to a collection as a whole.

    It differs from :class:`NonTensorData` when it is stacked: equal metadata stays one
    value, and does not become a :class:`NonTensorStack`.

    Examples:
        >>> torch.stack([MetaData("a"), MetaData("a")])
        MetaData(data=a, batch_size=torch.Size([2]), device=None)

    ``MetaData[int]`` is a subclass that only accepts values of this type:

        >>> MetaData[int](3)
        MetaData[int](data=3, batch_size=torch.Size([]), device=None)
        >>> MetaData[int]("a")
        Traceback (most recent call last):
        TypeError: Expected data of type int, got str
    """

    _expected_type: ClassVar[object] = None

    if not TYPE_CHECKING:  # checkers see a generic class

        @classmethod
        def __class_getitem__(cls, item: object) -> type:
            """Return the subclass for values of a type: ``MetaData[int]``."""
            if cls._expected_type is not None:
                raise TypeError(MSG_TWICE.format(cls.__name__))
            return _of_type(cls, item)

    def _repr_short(self) -> str:
        return type(self).__name__

    def _chosen(self, condition: torch.Tensor, other: object) -> Any:
        # Metadata belongs to the whole collection: a mask does not choose it.
        if isinstance(other, NonTensorOps):
            return self._twin()
        return super()._chosen(condition, other)

    # Writing a tensor or number addresses the elements, so it skips metadata.

    def _check_item(self, size: torch.Size, value: object, at: object = ...) -> None:
        if not isinstance(value, (torch.Tensor, int, float)):
            super()._check_item(size, value, at)

    def _written_at(self, at: object, value: object) -> Any:
        if isinstance(value, (torch.Tensor, int, float)):
            return self
        return super()._written_at(at, value)


class _OfType(type):
    """The metaclass of typed subclasses, which pickle cannot find by name."""


@functools.cache
def _of_type(cls: type[MetaData], item: object) -> type:
    """Make the subclass of ``cls`` for values of a type, once for each type."""
    name = f"{cls.__qualname__}[{_name_of(item)}]"
    body = {
        "_expected_type": item,
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
    }
    kind: Any = item
    typed_class: Any = _OfType(name, (cls,), body)

    def checked(self: MetaData, data: object, *args: Any, **options: Any) -> None:
        cls.__init__(self, data, *args, **options)
        if not _is_instance(self.data, kind):
            msg = MSG_TYPE.format(_name_of(item), type(self.data).__name__)
            raise TypeError(msg)

    # Set after creation: in the body, the class would wrap it.
    typed_class.__init__ = checked
    return typed_class


def _reduce_class(cls: type[MetaData]) -> str | tuple[Callable[..., type], Any]:
    """Reduce a typed subclass to its base and type; other classes to their name."""
    if "_expected_type" not in cls.__dict__:
        return str(cls.__qualname__)
    return _of_type, (cls.__base__, cls._expected_type)


def _is_instance(value: object, expected: type[Any]) -> bool:
    """Return whether ``value`` is of a type, as far as Python can check it."""
    try:
        return isinstance(value, expected)
    except TypeError:
        origin: Any = typing.get_origin(expected)
    if origin in (typing.Union, types.UnionType):
        return any(_is_instance(value, member) for member in typing.get_args(expected))
    # The answer for `Any`, type variables and similar types is True.
    is_class = isinstance(origin, type) and origin.__module__ != "typing"
    return not is_class or isinstance(value, origin)


def _name_of(item: object) -> str:
    """Return the text of a type for use between brackets."""
    # From Python 3.14 on, `__name__` of a union is the name of its class.
    if isinstance(item, types.UnionType):
        return str(item)
    return str(getattr(item, "__name__", item))


copyreg.pickle(_OfType, _reduce_class)  # type: ignore[arg-type]
MetaData.__module__ = "tensordict.tensorclass"
registry.register_class(MetaData, "tensordict.tensorclass", dense=False)
classes.announce(MetaData, "value")
