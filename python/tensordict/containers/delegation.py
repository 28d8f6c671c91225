"""Give a class around a collection the methods of what is inside.

A typed collection over a lazy stack and a tensorclass are such classes. A method that works
on one collection is called on the one inside: arguments that are wrappers themselves go in as
what they are around, and collections among the results come out as wrappers.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    Inside = Callable[[Any], Any]
    Outside = Callable[[Any, Any], Any]

__all__ = ["delegate", "members_of", "results"]


def members_of(classes: Iterable[type]) -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties of classes, each name once, with that of the first."""
    seen = set()
    for cls in classes:
        for name, member in list(vars(cls).items()):
            is_member = isinstance(member, (types.FunctionType, property))
            if is_member and name not in seen:
                seen.add(name)
                yield name, member


def results(place: str, wrapped: Outside) -> Outside:
    """Return a function that converts the result of a method of what is inside.

    Args:
        place: the attribute of a wrapper that has the collection.
        wrapped: makes a wrapper like its first argument of a collection.
    """

    def outside(this: Any, result: Any) -> Any:
        if result is getattr(this, place):
            return this
        kind = type(result)
        if result is None or kind is bool or kind is int or kind is torch.Size:
            return result
        if isinstance(result, CollectionProtocol):
            return result if result._is_non_tensor else wrapped(this, result)
        # The other tuples are the named ones of reductions, such as `torch.return_types.max`.
        if kind is list or kind is tuple or kind.__module__ == "torch.return_types":
            return kind(outside(this, item) for item in result)
        return result

    return outside


def delegate(
    cls: type,
    members: Iterable[tuple[str, Any]],
    place: str,
    inside: Inside,
    outside: Outside,
    bare: Container[str] = (),
) -> None:
    """Give a class the methods and properties of the collection inside.

    What the class has in its own body stays.

    Args:
        cls: the class of the wrappers.
        members: names, each with the method or property of collections; None for a method
            that only some collections have.
        place: the attribute that has the collection.
        inside: returns what is inside of a wrapper, and any other argument as it is.
        outside: converts results, as of :func:`results`.
        bare: the names whose results stay what they are.
    """
    for name, member in members:
        if name in vars(cls):
            continue
        out = _as_it_is if name in bare else outside
        if isinstance(member, property):
            setattr(cls, name, _property(name, member, place, inside, out))
        else:
            setattr(cls, name, _method(name, member, place, inside, out))


def _as_it_is(_this: object, result: Any) -> Any:
    return result


def _method(
    name: str,
    function: Callable[..., Any] | None,
    place: str,
    inside: Inside,
    outside: Outside,
) -> Any:
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        call = getattr(getattr(self, place), name)
        if not args and not kwargs:
            return outside(self, call())
        # The compiler enters a function for a collection only, and for no comprehension.
        given = []
        for value in args:
            is_one = isinstance(value, CollectionProtocol)
            given.append(inside(value) if is_one else value)
        if kwargs:
            kwargs = {key: inside(value) for key, value in kwargs.items()}
        return outside(self, call(*given, **kwargs))

    return method if function is None else functools.wraps(function)(method)


def _property(
    name: str, own: property, place: str, inside: Inside, outside: Outside
) -> property:
    def read(self: Any) -> Any:
        value = getattr(getattr(self, place), name)
        # Most are plain. The compiler knows these comparisons.
        kind = type(value)
        if value is None or kind is torch.Size or kind is bool or kind is int:
            return value
        return outside(self, value)

    def write(self: Any, value: object) -> None:
        setattr(getattr(self, place), name, inside(value))

    return property(read, write if own.fset else None, doc=own.__doc__)
