"""Classes of tensordicts that lower modules need, registered by the modules above.

An operation may make a tensordict of a class that is defined in a module above it:
``to_tensordict`` makes a :class:`TensorDict`, ``td[0]`` in lazy mode a view. It takes
the class from here, so that no module imports a module above it.
"""

# ruff: noqa: PLC0414 (other modules import these names from here)
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
"""Rarely used classes, and the modules to import on first use."""

_announced: list[tuple[type, str, type | None]] = []
_listeners: list[Callable[[type, str, type | None], Any]] = []


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(importlib.import_module(LATER[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def provided(member: _T) -> _T:
    """Register a class or function for the modules below the one that defines it."""
    globals()[member.__name__] = member  # type: ignore[attr-defined]
    return member


def announce(cls: type, kind: str, rebuilt_as: type | None = None) -> None:
    """Tell the listeners that a class of tensordicts exists.

    Args:
        cls: the class, which a program may have defined.
        kind: ``"collection"``, ``"tensorclass"`` or ``"value"``.
        rebuilt_as: the class that is made of its parts. Default: ``cls``.
    """
    _announced.append((cls, kind, rebuilt_as))
    for listener in _listeners:
        listener(cls, kind, rebuilt_as)


def on_new_class(listener: Callable[[type, str, type | None], Any]) -> None:
    """Call ``listener(cls, kind, rebuilt_as)`` for each class, present and future."""
    for each in _announced:
        listener(*each)
    _listeners.append(listener)
