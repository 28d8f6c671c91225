"""The vocabulary of a tensorclass: each method is that of the collection inside.

A method that works on one collection gives the same for a tensorclass as for the
collection that holds its fields, as an instance of the class. So it is called there:
the names of fields are in nobody's way, whatever kind of collection it is.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from tensordict.containers.collection import TensorDictBase, Vocabulary
from tensordict.ops.access import AccessOps
from tensordict.ops.consolidating import ConsolidatingOps
from tensordict.ops.display import DisplayOps
from tensordict.ops.distributed import DistributedOps
from tensordict.ops.growing import GrowingOps
from tensordict.ops.modules import ModulesOps
from tensordict.ops.operands import unset_fields
from tensordict.ops.pickling import PicklingOps
from tensordict.ops.saving import SavingOps
from tensordict.ops.storing import StoringOps
from tensordict.ops.torch_dispatch import TorchDispatchOps
from tensordict.primitives.checks import inside
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["delegate", "forwarded"]

_OWN_TOPICS = frozenset(
    topic
    for base in (
        # Entries are read and written as fields are,
        AccessOps,
        StoringOps,
        # and files, texts and messages name the class.
        ConsolidatingOps,
        DisplayOps,
        DistributedOps,
        GrowingOps,
        ModulesOps,
        PicklingOps,
        SavingOps,
        TorchDispatchOps,
        Vocabulary,
    )
    for topic in (base, *CollectionProtocol.__mro__)
)
_NOT_DELEGATED = frozenset(
    {
        "__init__",
        "__init_subclass__",
        "__iter__",
        # Their results hold entries, which stay what they are.
        "items",
        "keys",
        "non_tensor_items",
        "values",
    }
)


_COMPARISONS = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"})


def delegate(cls: type) -> None:
    """Give a class around a collection, as ``_tensordict``, the methods of that.

    Those that ``cls`` has in its own body stay, and so do class methods.
    """
    for name, member in _vocabulary():
        if name in vars(cls):
            continue
        if isinstance(member, property):
            setattr(cls, name, _delegated_property(name, member))
        elif name in _COMPARISONS:
            setattr(cls, name, _delegated_comparison(name, member))
        else:
            setattr(cls, name, _delegated_method(name, member))


def _vocabulary() -> Iterator[tuple[str, Any]]:
    """The public methods and properties of collections that can be delegated."""
    seen = set()
    for topic in Vocabulary.__mro__:
        if topic in _OWN_TOPICS:
            continue
        for name, member in list(vars(topic).items()):
            is_operator = name.startswith("__") and name.endswith("__")
            if name in seen or name in _NOT_DELEGATED:
                continue
            if name.startswith("_") and not is_operator:
                continue
            if isinstance(member, (types.FunctionType, property)):
                seen.add(name)
                yield name, member


def _delegated_method(name: str, function: Any) -> Any:
    @functools.wraps(function)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        inner = self._tensordict
        if not args and not kwargs:
            return _outside(self, getattr(inner, name)())
        # The compiler enters a function for a collection only, and for no comprehension.
        given = []
        for value in args:
            is_one = isinstance(value, CollectionProtocol)
            given.append(inside(value) if is_one else value)
        if kwargs:
            kwargs = {key: inside(value) for key, value in kwargs.items()}
        return _outside(self, getattr(inner, name)(*given, **kwargs))

    return method


def _delegated_comparison(name: str, function: Any) -> Any:
    @functools.wraps(function)
    def method(self: Any, other: object) -> Any:
        compare = getattr(self._tensordict, name)
        if not isinstance(other, CollectionProtocol):
            return _outside(self, compare(other))
        given = inside(other)
        try:
            return _outside(self, compare(given))
        except KeyError:
            # A dictionary of fields has those that are not set, as None.
            extra = set(given._sample_entries()) - set(self._sample_entries())
            unset = unset_fields(given, extra, self)
            if not unset:
                raise
        return _outside(self, compare(given.exclude(*unset)))

    return method


def _delegated_property(name: str, own: property) -> property:
    def read(self: Any) -> Any:
        value = getattr(self._tensordict, name)
        # Most are plain. The compiler knows these comparisons.
        kind = type(value)
        if value is None or kind is torch.Size or kind is bool or kind is int:
            return value
        return _outside(self, value)

    def write(self: Any, value: object) -> None:
        setattr(self._tensordict, name, inside(value))

    return property(read, write if own.fset else None, doc=own.__doc__)


def forwarded(tc: CollectionProtocol, name: str) -> Any:
    """Return what the collection inside ``tc`` has at ``name`` and ``tc`` has not."""
    found = getattr(tc._tensordict, name)
    if not isinstance(found, types.MethodType):
        return found

    def call(*args: object, **kwargs: object) -> Any:
        inner = [
            [inside(each) for each in value]
            if isinstance(value, list)
            else inside(value)
            for value in args
        ]
        return found(*inner, **{key: inside(value) for key, value in kwargs.items()})

    return call


def _outside(tc: Any, result: Any) -> Any:
    """Convert the result of a method of the collection inside ``tc``."""
    if result is tc._tensordict:
        return tc
    kind = type(result)
    if (
        result is None
        or kind is torch.Size
        or kind is bool
        or kind is int
        or kind is torch.device
    ):
        return result
    if isinstance(result, TensorDictBase) and not result._is_non_tensor:
        return tc._from_tensordict(result)
    # The other tuples are the named ones of reductions, such as `torch.return_types.max`.
    if kind is list or kind is tuple or kind.__module__ == "torch.return_types":
        return kind(_outside(tc, item) for item in result)
    return result
