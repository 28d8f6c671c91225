"""Collections with typed fields: ``@tensorclass`` and its base class.

A tensorclass is declared like a dataclass, and has the methods of a ``TensorDict``. It
holds a collection with an entry for each field that is set, and implements the protocol
of collections with it. The methods are inherited.

``base`` defines the base class with its options. Its other base classes are in:

- ``access``: fields as attributes and entries;
- ``making``: making instances around collections;
- ``inner``: the protocol, implemented with the collection inside;
- ``methods``: public methods that differ from the collection's;
- ``files``: saves of a tensorclass;
- ``delegation``: all other methods, which call the collection inside.

Further modules:

- ``fields``: the fields that a class body declares, and the ``__init__`` made from them;
- ``casting``: conversion of values for ``autocast``;
- ``attributes``: :class:`TensorAttrs`, the leaves of ``td.attrs()``;
- ``dataclass``: :func:`from_dataclass`;
- ``decorator``: the decorator, which adds the base class to a class;
- ``reserved``: the names that fields cannot have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict._established import established_names
from tensordict.primitives.checks import is_non_tensor as _is_non_tensor
from tensordict.tensorclass.attributes import TensorAttrs
from tensordict.tensorclass.base import TensorClass
from tensordict.tensorclass.dataclass import from_dataclass
from tensordict.tensorclass.decorator import tensorclass

if TYPE_CHECKING:
    from tensordict.containers.nontensor import (
        MetaData,
        NonTensorData,
        NonTensorDataBase,
        NonTensorStack,
    )

__all__ = [
    "MetaData",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
    "TensorAttrs",
    "TensorClass",
    "from_dataclass",
    "is_non_tensor",
    "tensorclass",
]


def is_non_tensor(obj: object) -> bool:
    """Return whether an object is non-tensor data.

    See :func:`tensordict.is_non_tensor`.
    """
    return _is_non_tensor(obj)


if not TYPE_CHECKING:  # so that checkers report unknown names
    _named = established_names(__name__)

    def __getattr__(name: str) -> Any:
        # These classes derive from a class of this package, so they are imported late.
        if name in ("MetaData", "NonTensorData", "NonTensorDataBase", "NonTensorStack"):
            from tensordict.containers import nontensor

            return getattr(nontensor, name)
        return _named(name)
