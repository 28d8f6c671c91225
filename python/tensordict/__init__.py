"""Groups of tensors that share their leading dimensions. The core is in Rust."""

from tensordict import _rust
from tensordict.interop import index_twins as _index_twins
from tensordict.interop import key_twins as _key_twins
from tensordict.interop import twins as _twins

# Until every primitive is native, its twin stands in.
for _module in (_twins, _index_twins, _key_twins):
    for _name in dir(_module):
        if not _name.startswith("_") and not hasattr(_rust, _name):
            setattr(_rust, _name, getattr(_module, _name))
del _module, _name

from tensordict.base import TensorCollection, TensorDictBase
from tensordict.closeness import assert_allclose_td, assert_close
from tensordict.containers.dense import TensorDict
from tensordict.interop import hooks as _hooks
from tensordict.ops.display import get_printoptions, set_printoptions
from tensordict.ops.joining import (
    cat,
    dense_stack_tds,
    maybe_dense_stack,
    stack,
)
from tensordict.ops.modules import from_module, from_modules
from tensordict.ops.packing import PackLayout
from tensordict import _pytree, _reductions, _td

# The module comes first: the function of the same name then takes the name.
from tensordict.memmap import MemmapTensor, MemoryMappedTensor
from tensordict.storage.functions import load, load_memmap, memmap, save
from tensordict._rust import unravel_key, unravel_key_list, unravel_key_to_tuple

_hooks.install()

__version__ = "0.15.3+rs.0.1.0"

__all__ = [
    "MemmapTensor",
    "MemoryMappedTensor",
    "PackLayout",
    "TensorCollection",
    "TensorDict",
    "TensorDictBase",
    "__version__",
    "assert_allclose_td",
    "assert_close",
    "from_module",
    "from_modules",
    "get_printoptions",
    "load",
    "load_memmap",
    "memmap",
    "save",
    "set_printoptions",
    "cat",
    "dense_stack_tds",
    "maybe_dense_stack",
    "stack",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]
