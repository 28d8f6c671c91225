"""Groups of tensors that share their leading dimensions. The core is in Rust."""

from typing import TYPE_CHECKING

from tensordict import _deprecated_utils, _pytree, _reductions, _td
from tensordict._nestedkey import KEY_SEPARATOR, NestedKey
from tensordict._rust import unravel_key, unravel_key_list, unravel_key_to_tuple
from tensordict.base import TensorCollection, TensorDictBase
from tensordict.compile import registration as _registration
from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy import LazyStackedTensorDict, lazy_stack
from tensordict.containers.numbered import NumberedTensorDict as _NumberedTensorDict
from tensordict.containers.params import TensorDictParams
from tensordict.entries.unbatched import UnbatchedTensor
from tensordict.functional import (
    collate,
    group_by,
    make_tensordict,
    merge_tensordicts,
    pad,
    pad_sequence,
    unpad_sequence,
)
from tensordict.interop import hooks as _hooks

# Imported first: `tensordict.memmap` must become the function, not this module.
from tensordict.memmap import MemmapTensor, MemoryMappedTensor
from tensordict.ops.arrays import from_h5, from_zarr
from tensordict.ops.closeness import assert_allclose_td, assert_close
from tensordict.ops.display import get_printoptions, set_printoptions
from tensordict.ops.factories import (
    from_any,
    from_csv,
    from_dict,
    from_json,
    from_namedtuple,
    from_pandas,
    from_parquet,
    from_polars,
    from_pytree,
    from_struct_array,
    from_tuple,
    fromkeys,
)
from tensordict.ops.get_defaults import get_defaults_to_none, set_get_defaults_to_none
from tensordict.ops.joining import (
    cat,
    dense_stack_tds,
    maybe_dense_stack,
    stack,
)
from tensordict.ops.modules import from_module, from_modules
from tensordict.ops.notebook import show
from tensordict.ops.packing import PackLayout
from tensordict.primitives import deprecation
from tensordict.primitives.checks import (
    default_is_leaf,
    is_bool,
    is_floating,
    is_inexact,
    is_integer,
    is_leaf_nontensor,
    is_non_tensor,
    is_tensor_collection,
    is_tensorclass,
)
from tensordict.primitives.errors import KeyThroughLeafError, MissingKeyError
from tensordict.primitives.metatensor import MetaTensor
from tensordict.primitives.options import (
    capture_non_tensor_stack,
    lazy_legacy,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_lazy_legacy,
    set_list_to_stack,
)
from tensordict.storage.functions import (
    from_consolidated,
    from_safetensors,
    load,
    load_memmap,
    memmap,
    save,
    to_safetensors,
)
from tensordict.storage.layouts.archive import (
    is_memmap_archive,
    pack_memmap,
    refresh_archive_checksums,
    unpack_memmap,
)

# Imported last: `tensordict.tensorclass` must become the decorator, not the package.
from tensordict.tensorclass import (
    MetaData,
    NonTensorData,
    NonTensorDataBase,
    NonTensorStack,
    TensorAttrs,
    TensorClass,
    from_dataclass,
    tensorclass,
)
from tensordict.typedtensordict import TypedTensorDict
from tensordict.utils import isin, parse_tensor_dict_string

if TYPE_CHECKING:
    from tensordict import data, nn, persistent, store
    from tensordict._arrow import from_arrow, to_arrow
    from tensordict._datasets import to_mds
    from tensordict.interop.dlpack import from_dlpack, to_dlpack
    from tensordict.interop.hugging_face import from_hf, to_hf
    from tensordict.interop.mds import from_mds
    from tensordict.interop.nested import to_nested
    from tensordict.interop.records import to_dataclass, to_pydantic
    from tensordict.interop.xarray import from_xarray, to_xarray
    from tensordict.nn import (
        TensorClassModuleBase,
        TensorClassModuleWrapper,
        as_tensordict_module,
    )
    from tensordict.persistent import PersistentTensorDict
    from tensordict.storage.growing.appending import append_memmap
    from tensordict.store import LazyStackedTensorDictStore, TensorDictStore

_hooks.install()
_registration.install()
if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = deprecation.deprecated_names(
        __name__,
        _deprecated_utils.TOP,
        later={
            "PersistentTensorDict": "tensordict.persistent",
            "data": "tensordict.data",
            "nn": "tensordict.nn",
            "persistent": "tensordict.persistent",
            "prototype": "tensordict.prototype",
            "store": "tensordict.store",
            "tensordict": "tensordict.tensordict",
            "LazyStackedTensorDictStore": "tensordict.store",
            "TensorClassModuleBase": "tensordict.nn",
            "TensorClassModuleWrapper": "tensordict.nn",
            "TensorDictStore": "tensordict.store",
            "append_memmap": "tensordict.storage.growing.appending",
            "as_tensordict_module": "tensordict.nn",
            "from_arrow": "tensordict._arrow",
            "to_nested": "tensordict.interop.nested",
            "to_pydantic": "tensordict.interop.records",
            "to_dataclass": "tensordict.interop.records",
            "to_xarray": "tensordict.interop.xarray",
            "from_xarray": "tensordict.interop.xarray",
            "from_mds": "tensordict.interop.mds",
            "to_hf": "tensordict.interop.hugging_face",
            "from_hf": "tensordict.interop.hugging_face",
            "to_dlpack": "tensordict.interop.dlpack",
            "from_dlpack": "tensordict.interop.dlpack",
            "to_arrow": "tensordict._arrow",
            "to_mds": "tensordict._datasets",
        },
    )

__version__ = "0.15.3+rs.0.1.0"

__all__ = [
    "KEY_SEPARATOR",
    "KeyThroughLeafError",
    "LazyStackedTensorDict",
    "LazyStackedTensorDictStore",
    "MemmapTensor",
    "MemoryMappedTensor",
    "MetaData",
    "MetaTensor",
    "MissingKeyError",
    "NestedKey",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
    "PackLayout",
    "PersistentTensorDict",
    "TensorAttrs",
    "TensorClass",
    "TensorClassModuleBase",
    "TensorClassModuleWrapper",
    "TensorCollection",
    "TensorDict",
    "TensorDictBase",
    "TensorDictParams",
    "TensorDictStore",
    "TypedTensorDict",
    "UnbatchedTensor",
    "__version__",
    "append_memmap",
    "as_tensordict_module",
    "assert_allclose_td",
    "assert_close",
    "capture_non_tensor_stack",
    "cat",
    "collate",
    "default_is_leaf",
    "dense_stack_tds",
    "from_any",
    "from_arrow",
    "from_consolidated",
    "from_csv",
    "from_dataclass",
    "from_dict",
    "from_dlpack",
    "from_h5",
    "from_hf",
    "from_json",
    "from_mds",
    "from_module",
    "from_modules",
    "from_namedtuple",
    "from_pandas",
    "from_parquet",
    "from_polars",
    "from_pytree",
    "from_safetensors",
    "from_struct_array",
    "from_tuple",
    "from_xarray",
    "from_zarr",
    "fromkeys",
    "get_defaults_to_none",
    "get_printoptions",
    "group_by",
    "is_bool",
    "is_floating",
    "is_inexact",
    "is_integer",
    "is_leaf_nontensor",
    "is_memmap_archive",
    "is_non_tensor",
    "is_tensor_collection",
    "is_tensorclass",
    "isin",
    "lazy_legacy",
    "lazy_stack",
    "list_to_stack",
    "load",
    "load_memmap",
    "make_tensordict",
    "maybe_dense_stack",
    "memmap",
    "merge_tensordicts",
    "pack_memmap",
    "pad",
    "pad_sequence",
    "parse_tensor_dict_string",
    "refresh_archive_checksums",
    "save",
    "set_capture_non_tensor_stack",
    "set_get_defaults_to_none",
    "set_lazy_legacy",
    "set_list_to_stack",
    "set_printoptions",
    "show",
    "stack",
    "tensorclass",
    "to_arrow",
    "to_dataclass",
    "to_dlpack",
    "to_hf",
    "to_nested",
    "to_pydantic",
    "to_safetensors",
    "to_xarray",
    "unpack_memmap",
    "unpad_sequence",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]


def __dir__() -> list[str]:
    """Return the public names and the subpackages."""
    return sorted([*__all__, "data", "nn"])
