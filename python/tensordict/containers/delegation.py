"""Wrapper classes that call the methods of the collection they wrap.

A tensorclass, or a typed collection around a lazy stack, is such a wrapper. A wrapper's
method calls the same method of its collection. Arguments that are wrappers are
unwrapped before the call, and collections in the result are wrapped after it.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives.checks import is_branch
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    Inside = Callable[[Any], Any]
    Outside = Callable[[Any, Any], Any]

__all__ = ["delegate", "members_of", "results"]


def members_of(classes: Iterable[type]) -> Iterator[tuple[str, Any]]:
    """Yield each method or property by name, from the first class that defines it."""
    seen = set()
    for cls in classes:
        for name, member in list(vars(cls).items()):
            is_member = isinstance(member, (types.FunctionType, property))
            if is_member and name not in seen:
                seen.add(name)
                yield name, member


def results(place: str, wrapped: Outside) -> Outside:
    """Return a function that wraps the collections in the result of a method.

    Args:
        place: the attribute of a wrapper that holds its collection.
        wrapped: a function of a wrapper and a collection that returns a wrapper around
            the collection.
    """

    def outside(this: Any, result: Any) -> Any:
        if result is getattr(this, place):
            return this
        kind = type(result)
        if result is None or kind is bool or kind is int or kind is torch.Size:
            return result
        if is_branch(result):
            return wrapped(this, result)
        # Other tuples are the named ones of reductions, such as
        # `torch.return_types.max`.
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
    """Give a wrapper class the methods and properties of the collection that it wraps.

    Names that the class body defines are not replaced.

    Args:
        cls: the class of the wrappers.
        members: pairs of a name and the collection's method or property; None for a
            method that only some collections have.
        place: the attribute of a wrapper that holds its collection.
        inside: a function that unwraps a wrapper, and returns any other argument as it
            is.
        outside: a function that converts results, such as :func:`results` returns.
        bare: the names whose results are not converted.
    """
    for name, member in members:
        if name in vars(cls):
            continue
        out = _unchanged if name in bare else outside
        if isinstance(member, property):
            setattr(cls, name, _property(name, member, place, inside, out))
        else:
            setattr(cls, name, _method(name, member, place, inside, out))


def _unchanged(_this: object, result: Any) -> Any:
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
        # A loop that calls `inside` for collections only is cheaper to compile than a
        # comprehension.
        unwrapped = []
        for value in args:
            is_collection = isinstance(value, CollectionProtocol)
            unwrapped.append(inside(value) if is_collection else value)
        if kwargs:
            kwargs = {key: inside(value) for key, value in kwargs.items()}
        return outside(self, call(*unwrapped, **kwargs))

    return method if function is None else functools.wraps(function)(method)


def _property(
    name: str, source: property, place: str, inside: Inside, outside: Outside
) -> property:
    def read(self: Any) -> Any:
        value = getattr(getattr(self, place), name)
        # Most values are plain, and dynamo can trace these comparisons.
        kind = type(value)
        if value is None or kind is torch.Size or kind is bool or kind is int:
            return value
        return outside(self, value)

    def write(self: Any, value: object) -> None:
        setattr(getattr(self, place), name, inside(value))

    return property(read, write if source.fset else None, doc=source.__doc__)
