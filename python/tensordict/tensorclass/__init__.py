"""Collections with typed fields: ``@tensorclass`` and its base class.

A tensorclass is declared as a dataclass is, and does all that a ``TensorDict`` does.
It holds a collection with an entry per field that is set, and implements the protocol
of collections over it, so that it has their whole vocabulary by inheritance.

The base class, ``base``, has the options and is put together of

- ``access``: fields as attributes and entries;
- ``making``: instances around collections;
- ``inner``: the protocol, over the collection inside;
- ``methods``: the public methods that differ from that collection's;
- ``files``: what a save holds of a class;
- ``delegation``: all other methods, which are those of the collection inside.

What stands beside it:

- ``fields``: what a class body declares, and the ``__init__`` made of it;
- ``casting``: what ``autocast`` makes of values;
- ``attributes``: :class:`TensorAttrs`, the leaves of ``td.attrs()``;
- ``dataclass``: :func:`from_dataclass`;
- ``decorator``: the decorator form, which gives a class that base;
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
    """Tell whether a value is non-tensor data: see :func:`tensordict.is_non_tensor`."""
    return _is_non_tensor(obj)


if not TYPE_CHECKING:  # which is to find names that there are not
    _named = established_names(__name__)

    def __getattr__(name: str) -> Any:
        # They derive from a class of this package, so they are not there when it is
        # loaded.
        if name in ("MetaData", "NonTensorData", "NonTensorDataBase", "NonTensorStack"):
            from tensordict.containers import nontensor

            return getattr(nontensor, name)
        return _named(name)
