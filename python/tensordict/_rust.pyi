"""The native half of the package: see ``rust/tensordict-python``.

Written by hand and checked against the built module by ``make types``. A primitive has
the parameters of its twin in ``tensordict.interop``, where its docstring is.
"""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Final, TypeVar, final

import torch

from tensordict.memmap import MemoryMappedTensor

_T = TypeVar("_T")

# build.rs: how the extension was built.
__version__: Final[str]
core_version: Final[str]
is_debug_build: Final[bool]

# storage/: the directory layout of a save.
@final
class SavePlan:
    def __new__(
        cls,
        target: str | PathLike[str],
        escapes_keys: bool,
        copies_existing: bool,
        is_sparse: bool,
    ) -> SavePlan: ...
    def add_entries(
        self, level: int, entries: dict[str, Any]
    ) -> list[tuple[str, int, Any]]: ...
    def close_level(
        self,
        level: int,
        batch_size: Sequence[int],
        names: Sequence[str | None] | None,
        type_text: str,
        class_text: str | None,
    ) -> None: ...
    def level_directory(self, level: int) -> PathLike[str]: ...
    def write(self, num_threads: int, exist_ok: bool) -> list[MemoryMappedTensor]: ...
    def create(
        self, exist_ok: bool
    ) -> tuple[list[MemoryMappedTensor], list[tuple[PathLike[str], int, int, str]]]: ...

@final
class LoadedLevel:
    @property
    def entries(self) -> dict[str, Any]: ...
    @property
    def batch_size(self) -> tuple[int, ...]: ...
    @property
    def names(self) -> list[str | None] | None: ...
    @property
    def has_device(self) -> bool: ...
    @property
    def type_text(self) -> str | None: ...
    @property
    def class_text(self) -> str | None: ...
    @property
    def directory(self) -> str: ...
    @property
    def nested(self) -> list[str]: ...
    @property
    def special(self) -> list[str]: ...
    @property
    def is_known(self) -> bool: ...

def load_tree(
    directory: str | PathLike[str],
    known_classes: Sequence[str],
    escapes_keys: bool,
    mode: str | None,
    num_threads: int,
    is_mapped: bool,
) -> LoadedLevel: ...
def map_file(
    path: str | PathLike[str], dtype: str, shape: Sequence[int], mode: str | None
) -> MemoryMappedTensor: ...
def mapping_of(address: int) -> tuple[PathLike[str], int, int, bool] | None: ...
def write_file(
    path: str | PathLike[str], source: torch.Tensor, dtype: str, shape: Sequence[int]
) -> MemoryMappedTensor: ...
def create_file(
    path: str | PathLike[str], dtype: str, shape: Sequence[int]
) -> MemoryMappedTensor: ...
def add_metadata(
    directory: str | PathLike[str],
    key: str,
    class_name: str | None = None,
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
) -> None: ...
def escape_key(key: str) -> str: ...

# interop/twins.py has the twins of these.
def unravel_key_to_tuple(key: Any) -> tuple[str, ...]: ...
def unravel_key(key: Any) -> str | tuple[str, ...]: ...
def unravel_key_list(keys: Any) -> list[str | tuple[str, ...]]: ...
def new(
    cls: type[_T],
    entries: dict[str, Any],
    batch_size: torch.Size,
    device: torch.device | None,
    names: list[str | None] | None,
) -> _T: ...
def init(
    td: Any, source: Any, batch_size: Any, device: Any, names: Any, non_blocking: bool
) -> None: ...
def map_leaves(
    td: _T,
    op: Any,
    args: tuple[Any, ...] = (),
    prefix: torch.Size | None = None,
    names: Any = True,
    tail: int = 0,
    lock: bool = False,
    k: int = -1,
) -> _T: ...
def split_leaves(
    td: _T,
    op: Any,
    args: tuple[Any, ...],
    prefixes: list[torch.Size],
    names: Any = True,
    lock: bool = False,
    k: int = -1,
) -> list[_T]: ...
def leaves(td: Any, out: list[Any] | None = None) -> list[Any]: ...
def rebuild(td: _T, values: Any, names: Any = True, lock: bool = False) -> _T: ...
def rebuild_as(
    td: Any, values: Any, cls: Any = None, size: Any = None, lock: bool = False
) -> Any: ...
def align(td: Any, other: Any) -> list[Any] | None: ...
def leaf_batch_dims(td: Any, out: list[int] | None = None) -> list[int]: ...
def clone_structure(td: _T) -> _T: ...
def lock_tree(td: Any, parents: tuple[Any, ...] = ()) -> None: ...
def unlock_tree(td: Any) -> None: ...
def containers(td: Any, out: list[Any] | None = None) -> list[Any]: ...
def get(td: Any, key: Any, default: Any = ...) -> Any: ...
def walk(
    td: Any,
    kind: int,
    include_nested: bool,
    leaves_only: bool,
    is_leaf: Any = None,
    prefix: tuple[str, ...] = (),
    out: list[Any] | None = None,
) -> list[Any]: ...
def contains(td: Any, key: Any) -> bool: ...
def getitem(td: Any, index: Any) -> Any: ...
def validate(td: Any, key: Any, value: Any, non_blocking: bool = False) -> Any: ...
def set_entry(
    td: Any,
    key: Any,
    value: Any,
    inplace: bool | None = False,
    non_blocking: bool = False,
    validated: bool = False,
    ignore_lock: bool = False,
) -> None: ...
def apply_nest(
    td: Any,
    fn: Any,
    others: tuple[Any, ...] = (),
    batch_size: torch.Size | None = None,
    device: Any = ...,
    names: Any = ...,
    default: Any = ...,
    named: bool = False,
    nested_keys: bool = False,
    filter_empty: bool | None = None,
    is_leaf: Any = None,
    checked: bool = False,
    prefix: tuple[str, ...] = (),
) -> Any: ...
def write_tree(
    td: Any, tree: Any, inplace: bool, checked: bool = False, nested: bool = True
) -> None: ...

# interop/key_twins.py has the twins of these.
def select(td: _T, keys: tuple[Any, ...], inplace: bool, strict: bool) -> _T: ...
def exclude(td: _T, keys: tuple[Any, ...], inplace: bool) -> _T: ...
def flatten_keys(td: _T, separator: str, inplace: bool, is_leaf: Any = None) -> _T: ...
def unflatten_keys(td: _T, separator: str, inplace: bool) -> _T: ...
def update(
    td: Any,
    source: Any,
    clone: bool = False,
    inplace: bool = False,
    non_blocking: bool = False,
    is_leaf: Any = None,
    ignore_lock: bool = False,
) -> None: ...
def hang(td: Any, key: str, value: Any) -> None: ...
def fit_inplace(
    td: Any, key: Any, value: Any, present: torch.Tensor
) -> torch.Tensor: ...
def copy_into(
    td: Any, source: Any, keys: Any = None, non_blocking: bool = False
) -> None: ...
def fill(td: Any, value: Any) -> None: ...

# interop/index_twins.py has the twins of these.
def index_plan(
    batch_size: torch.Size, index: Any, td: Any = None
) -> tuple[Any, torch.Size, tuple[int, ...]] | None: ...
def index_shape(batch_size: torch.Size, index: Any) -> torch.Size: ...
def index(td: _T, index: Any) -> _T: ...
def set_index(td: Any, index: Any, value: Any) -> None: ...
def view_shape(batch_size: torch.Size, shape: Any) -> torch.Size: ...
def stack(tds: Sequence[_T], dim: int) -> _T: ...
def cat(tds: Sequence[_T], dim: int) -> _T: ...
