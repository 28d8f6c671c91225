"""The tensordict classes that lower floors make, each put here where it is defined.

An operation may make a collection of a class that stands on a floor above it:
``to_tensordict`` a :class:`TensorDict`, ``td[0]`` of the lazy mode a view. It takes the
class from here, so that no floor imports one above it.
"""

# ruff: noqa: PLC0414 (what others take from here is what it imports)
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.containers.collection import TensorDictBase as TensorDictBase
    from tensordict.containers.dense import TensorDict as TensorDict
    from tensordict.containers.lazy.construct import lazy_stack as lazy_stack
    from tensordict.containers.lazy.stack import (
        LazyStackedTensorDict as LazyStackedTensorDict,
    )
    from tensordict.containers.lazy_views import lazy_view as lazy_view
    from tensordict.containers.nontensor.metadata import MetaData as MetaData
    from tensordict.containers.nontensor.write_through import LinkedList as LinkedList
    from tensordict.containers.numbered import NumberedTensorDict as NumberedTensorDict
    from tensordict.containers.params import TensorDictParams as TensorDictParams
    from tensordict.containers.persistent import (
        PersistentTensorDict as PersistentTensorDict,
    )
    from tensordict.containers.remote import load_remote as load_remote
    from tensordict.containers.view import _SubTensorDict as _SubTensorDict
    from tensordict.interop.pytree import exclude_from_pytree as exclude_from_pytree
    from tensordict.tensorclass.attributes import TensorAttrs as TensorAttrs

__all__ = ["announce", "on_new_class", "provided"]

_T = TypeVar("_T")

LATER = {
    "PersistentTensorDict": "tensordict.containers.persistent",
    "load_remote": "tensordict.containers.remote",
}
"""Classes that few programs use: where they are, to be imported when they are asked for."""

_announced: list[tuple[type, str, type | None]] = []
_listeners: list[Callable[[type, str, type | None], Any]] = []


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(importlib.import_module(LATER[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def provided(member: _T) -> _T:
    """Offer a class or function to the floors below the one that defines it."""
    globals()[member.__name__] = member  # type: ignore[attr-defined]
    return member


def announce(cls: type, kind: str, rebuilt_as: type | None = None) -> None:
    """Tell those who asked that a class of collections exists.

    Args:
        cls: the class, which a program may have defined.
        kind: ``"collection"``, ``"tensorclass"`` or ``"value"``.
        rebuilt_as: the class of what is made of its parts. Default: ``cls``.
    """
    _announced.append((cls, kind, rebuilt_as))
    for listener in _listeners:
        listener(cls, kind, rebuilt_as)


def on_new_class(listener: Callable[[type, str, type | None], Any]) -> None:
    """Call ``listener(cls, kind, rebuilt_as)`` for each class, now and when it is made."""
    for each in _announced:
        listener(*each)
    _listeners.append(listener)
