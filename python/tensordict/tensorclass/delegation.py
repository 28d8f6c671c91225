"""The methods of a tensorclass that call the method of the collection inside.

Such a method returns the same result for a tensorclass as for its collection, wrapped
as an instance of the class. Calling the collection works for collections of any class,
and even if a field has the name of a method.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from tensordict.containers import delegation
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
    from collections.abc import Callable, Iterator

__all__ = ["delegate", "forwarded"]

_OWN_TOPICS = frozenset(
    topic
    for base in (
        # Entries are read and written like fields.
        AccessOps,
        StoringOps,
        # Files, texts and messages name the class.
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
        # The results hold entries, which are not wrapped.
        "items",
        "keys",
        "non_tensor_items",
        "values",
    }
)


_COMPARISONS = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"})


def delegate(cls: type) -> None:
    """Give a class the methods of its collection, the attribute ``_tensordict``.

    Methods in the class body, and class methods, are not replaced.
    """
    members = dict(_vocabulary())
    for name in _COMPARISONS & members.keys() - vars(cls).keys():
        setattr(cls, name, _comparison(name, members[name]))
    delegation.delegate(cls, members.items(), "_tensordict", inside, _outside)


def _vocabulary() -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of collections that can be delegated."""
    topics = [topic for topic in Vocabulary.__mro__ if topic not in _OWN_TOPICS]
    for name, member in delegation.members_of(topics):
        is_operator = name.startswith("__") and name.endswith("__")
        is_public = is_operator or not name.startswith("_")
        if is_public and name not in _NOT_DELEGATED:
            yield name, member


def _wrapped(tc: Any, result: Any) -> Any:
    return tc._from_tensordict(result) if isinstance(result, TensorDictBase) else result


_outside = delegation.results("_tensordict", _wrapped)


def _comparison(name: str, function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: Any, other: object) -> Any:
        compare = getattr(self._tensordict, name)
        if not isinstance(other, CollectionProtocol):
            return _outside(self, compare(other))
        other_collection = inside(other)
        try:
            return _outside(self, compare(other_collection))
        except KeyError:
            # `other` may have unset fields as entries with the value None.
            extra = set(other_collection._sample_entries()) - set(
                self._sample_entries()
            )
            unset = unset_fields(other_collection, extra, self)
            if not unset:
                raise
        return _outside(self, compare(other_collection.exclude(*unset)))

    return method


def forwarded(tc: CollectionProtocol, name: str) -> Any:
    """Return an attribute of the collection inside ``tc`` that ``tc`` itself lacks."""
    attribute = getattr(tc._tensordict, name)
    if not isinstance(attribute, types.MethodType):
        return attribute

    def call(*args: object, **kwargs: object) -> Any:
        inner = [
            [inside(item) for item in value]
            if isinstance(value, list)
            else inside(value)
            for value in args
        ]
        return attribute(
            *inner, **{key: inside(value) for key, value in kwargs.items()}
        )

    return call
