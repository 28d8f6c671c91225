"""Established import path: the base classes and what belongs to them."""

from tensordict.collection import TensorCollection, TensorDictBase
from tensordict.interop.twins import _InplaceWriteError, _KeyThroughLeafError
from tensordict.protocol import NO_DEFAULT, _NoDefault

__all__ = ["NO_DEFAULT", "TensorCollection", "TensorDictBase"]
