"""The base classes of every collection: one class with all methods.

Start with :mod:`tensordict.primitives.protocol` (what a collection provides), then read
any file of :mod:`tensordict.ops` (methods written with the protocol).
"""

from __future__ import annotations

import types
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar

from tensordict.ops.access import AccessOps
from tensordict.ops.apply import ApplyOps
from tensordict.ops.arrays import ArrayOps
from tensordict.ops.autograd import AutogradOps
from tensordict.ops.batch import BatchOps
from tensordict.ops.clients import ClientOps
from tensordict.ops.consolidating import ConsolidatingOps
from tensordict.ops.construct import ConstructOps
from tensordict.ops.convert import ConvertOps
from tensordict.ops.device import DeviceOps
from tensordict.ops.display import DisplayOps
from tensordict.ops.distributed import DistributedOps
from tensordict.ops.dtype import DtypeOps
from tensordict.ops.growing import GrowingOps
from tensordict.ops.index_writes import IndexWritesOps
from tensordict.ops.indexing import IndexingOps
from tensordict.ops.joining import JoiningOps
from tensordict.ops.key_views import KeyViewsOps
from tensordict.ops.keys import KeysOps
from tensordict.ops.locking import LockingOps
from tensordict.ops.mapping import MappingOps
from tensordict.ops.memory import MemoryOps
from tensordict.ops.merging import MergingOps
from tensordict.ops.modules import ModulesOps
from tensordict.ops.pickling import PicklingOps
from tensordict.ops.pipes import PipeOps
from tensordict.ops.pointwise import PointwiseOps
from tensordict.ops.ray_data import RayDataOps
from tensordict.ops.reductions import ReductionsOps
from tensordict.ops.saving import SavingOps
from tensordict.ops.shape import ShapeOps
from tensordict.ops.storing import StoringOps
from tensordict.ops.tables import TablesOps
from tensordict.ops.torch_dispatch import TorchDispatchOps
from tensordict.primitives import classes
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["TensorCollection", "TensorDictBase", "Vocabulary", "gather"]

_SET_BY_PYTHON = frozenset(
    {
        "__abstractmethods__",
        "__annotations__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "__slots__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)
"""The names in a class dictionary that Python sets; :func:`gather` skips them."""


def gather(cls: type, source: type, until: type = object) -> None:
    """Copy the attributes of ``source`` and its bases before ``until`` into ``cls``.

    One class with all methods keeps compiled code fast. Before each call, a compiled
    function checks every class that precedes the method's class in the MRO, and the
    compiler searches all classes for some attributes. With a base class for each topic,
    each collection would cost some hundred such checks.
    """
    for base in source.__mro__[: source.__mro__.index(until)]:
        for name, value in vars(base).items():
            if name not in _SET_BY_PYTHON and name not in vars(cls):
                setattr(cls, name, value)


class Vocabulary(
    AccessOps,
    StoringOps,
    MergingOps,
    IndexWritesOps,
    KeyViewsOps,
    KeysOps,
    ConstructOps,
    BatchOps,
    ShapeOps,
    JoiningOps,
    IndexingOps,
    PointwiseOps,
    ReductionsOps,
    DeviceOps,
    DtypeOps,
    AutogradOps,
    LockingOps,
    ApplyOps,
    MappingOps,
    MemoryOps,
    SavingOps,
    GrowingOps,
    ArrayOps,
    ConsolidatingOps,
    ConvertOps,
    TablesOps,
    RayDataOps,
    ModulesOps,
    DistributedOps,
    PipeOps,
    PicklingOps,
    DisplayOps,
    TorchDispatchOps,
    ClientOps,
):
    """All public methods, from one base class for each topic."""


if TYPE_CHECKING:
    _Base = Vocabulary
else:
    _Base = CollectionProtocol


class TensorCollection(_Base):
    """The base class of all collections of tensors with shared leading dimensions."""

    __slots__ = ()

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Make a collection; each class defines its own arguments."""
        super().__init__()


gather(TensorCollection, Vocabulary)
for _name, _method in vars(TensorCollection).items():
    # Python shows the qualified name if a call passes an unknown argument, and pickle
    # looks the method up by it.
    if isinstance(_method, types.FunctionType) and not _name.startswith("_"):
        _method.__qualname__ = f"TensorDictBase.{_name}"
        _method.__module__ = "tensordict.base"


@classes.provided
class TensorDictBase(  # type: ignore[misc]
    TensorCollection, MutableMapping[Any, Any]
):
    """A collection that is also a mutable mapping from nested keys to values."""

    # Annotations do not use this class: `update` and similar methods return
    # `TensorCollection`, as the published package does. The mapping is typed with `Any`
    # keys, because iteration yields rows.

    __slots__ = ()
    __hash__: ClassVar[Any] = None


TensorCollection.__module__ = "tensordict._tensorcollection"
TensorDictBase.__module__ = "tensordict.base"
