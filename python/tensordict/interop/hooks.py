"""Registration of the package with torch and the standard library at import."""

from __future__ import annotations

import importlib
from collections import deque

from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.containers.lazy.column_stack import ColumnStack
from tensordict.containers.lazy_views import VIEW_TYPES
from tensordict.containers.nontensor import (
    MetaData,
    NonTensorData,
    NonTensorStack,
    convert,
    joining,
    mapped,
    ragged,
)
from tensordict.containers.params import TensorDictParams
from tensordict.containers.view import _SubTensorDict
from tensordict.entries.unbatched import UnbatchedTensor
from tensordict.interop import collate, distributions, pytree, vmap
from tensordict.primitives.after_import import after_import
from tensordict.primitives.registry import register_class, register_family
from tensordict.storage import pickles
from tensordict.storage.tensors import processes
from tensordict.storage.tensors.mapped import loaded_copy
from tensordict.tensorclass.base import TensorClass

__all__ = ["install"]

# Imported here for the first non-tensor value of a process, which would otherwise import
# them one by one.
NON_TENSOR_MODULES = (convert, joining, mapped, ragged)


def install() -> None:
    """Register all classes of tensordicts; a second call changes nothing."""
    pickles.install(TensorDict, LazyStackedTensorDict)
    pickles.send_as_data(_SubTensorDict)
    pickles.allow(
        *(NonTensorData, NonTensorStack, MetaData, UnbatchedTensor, TensorDictParams),
        *(_SubTensorDict, *VIEW_TYPES, slice, deque),
        (loaded_copy, "tensordict.memmap.MemoryMappedTensor"),
    )
    pytree.register_collection(TensorDict)
    pytree.register_collection(_SubTensorDict, rebuilt_as=TensorDict)
    pytree.register_stack(LazyStackedTensorDict)
    pytree.install()
    collate.install()
    vmap.install()
    processes.install()
    distributions.install()
    after_import("datasets", _offer_format)
    old_text = "<class 'tensordict.tensordict.TensorDict'>"
    register_class(TensorDict, "tensordict", old_text, dense=True)
    register_class(_SubTensorDict, "tensordict._td", dense=False)
    for view in VIEW_TYPES:
        register_class(view, "tensordict._lazy", dense=False)
    register_class(ColumnStack, "tensordict", dense=False)
    for cls in (LazyStackedTensorDict, NonTensorData, NonTensorStack, MetaData):
        register_class(cls, "tensordict", dense=False)
    register_family(TensorClass)


def _offer_format() -> None:
    """Register ``with_format("tensordict")`` with Hugging Face's ``datasets``."""
    importlib.import_module("tensordict.interop.hugging_face").register()
