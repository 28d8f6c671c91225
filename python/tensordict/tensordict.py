"""Established import path: the names of ``tensordict.tensordict`` in early releases."""

from typing import TYPE_CHECKING

from tensordict._deprecated_utils import TENSORDICT
from tensordict._established import established_names
from tensordict._nestedkey import NestedKey
from tensordict.containers.collection import TensorDictBase
from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.functional import (
    dense_stack_tds,
    make_tensordict,
    merge_tensordicts,
    pad,
    pad_sequence,
)
from tensordict.memmap import MemoryMappedTensor
from tensordict.ops.closeness import assert_allclose_td
from tensordict.primitives.checks import is_tensor_collection, is_tensorclass
from tensordict.primitives.protocol import NO_DEFAULT
from tensordict.utils import expand_as_right, expand_right

__all__ = [
    "NO_DEFAULT",
    "LazyStackedTensorDict",
    "MemoryMappedTensor",
    "NestedKey",
    "TensorDict",
    "TensorDictBase",
    "assert_allclose_td",
    "dense_stack_tds",
    "expand_as_right",
    "expand_right",
    "is_tensor_collection",
    "is_tensorclass",
    "make_tensordict",
    "merge_tensordicts",
    "pad",
    "pad_sequence",
]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__, TENSORDICT)
