"""Collections with typed fields: ``@tensorclass`` and its base class.

A tensorclass is declared as a dataclass is, and does all that a ``TensorDict`` does.
It holds a container with an entry per field that is set, and implements the protocol of
containers over it, so that it has their whole vocabulary by inheritance.

- ``base``: the container, and how attributes are read and written;
- ``fields``: what a class body declares, and the ``__init__`` made of it;
- ``casting``: what ``autocast`` makes of values;
- ``attributes``: :class:`TensorAttrs`, the leaves of ``td.attrs()``;
- ``decorator``: the decorator form, which gives a class that base;
- ``reserved``: the names that fields cannot have.
"""

from tensordict.checks import is_non_tensor
from tensordict.containers.nontensor import (
    MetaData,
    NonTensorData,
    NonTensorDataBase,
    NonTensorStack,
)
from tensordict.tensorclass.attributes import TensorAttrs
from tensordict.tensorclass.base import TensorClass
from tensordict.tensorclass.decorator import tensorclass

__all__ = [
    "MetaData",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
    "TensorAttrs",
    "TensorClass",
    "is_non_tensor",
    "tensorclass",
]
