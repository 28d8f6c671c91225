"""Established import path: the base classes of tensordicts and their helpers."""

from typing import TYPE_CHECKING

import torch

from tensordict._established import established_names
from tensordict._nestedkey import KEY_SEPARATOR, NestedKey
from tensordict.containers.collection import TensorCollection, TensorDictBase
from tensordict.interop.torch_functions import (
    TD_HANDLED_FUNCTIONS as _TD_HANDLED_FUNCTIONS,
)
from tensordict.ops.factories import (
    from_any,
    from_csv,
    from_dict,
    from_json,
    from_namedtuple,
    from_pandas,
    from_parquet,
    from_struct_array,
    from_tuple,
)
from tensordict.ops.get_defaults import get_defaults_to_none, set_get_defaults_to_none
from tensordict.primitives.checks import (
    _NESTED_TENSORS_AS_LISTS,
    default_is_leaf,
    is_leaf_nontensor,
    is_tensor_collection,
)
from tensordict.primitives.common import _InplaceWriteError
from tensordict.primitives.errors import MSG_BAD_KEY, MSG_LOCKED, KeyThroughLeafError
from tensordict.primitives.protocol import NO_DEFAULT, _NoDefault
from tensordict.utils import DeviceType, IndexType

__all__ = [
    "NO_DEFAULT",
    "TensorCollection",
    "TensorDictBase",
    "from_any",
    "from_csv",
    "from_dict",
    "from_json",
    "from_namedtuple",
    "from_pandas",
    "from_parquet",
    "from_struct_array",
    "from_tuple",
    "get_defaults_to_none",
    "is_tensor_collection",
    "set_get_defaults_to_none",
]

CompatibleType = torch.Tensor | TensorCollection
_ACCEPTED_CLASSES = (torch.Tensor, TensorCollection)
_is_leaf_nontensor = is_leaf_nontensor
_default_is_leaf = default_is_leaf
_is_tensor_collection = is_tensor_collection
_LOCK_ERROR = MSG_LOCKED
_KeyThroughLeafError = KeyThroughLeafError
_GENERIC_NESTED_ERR = MSG_BAD_KEY

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
