"""Names at the import paths where clients of tensordict 0.15 find them.

A module of an established import path has the names that belong there. All others that
are public somewhere, it offers by :func:`established_names`, since tensordict 0.15 imports
them into most modules: each is found when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeVar

from tensordict.primitives.deprecation import deprecated_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "BEST_ATTEMPT_INPLACE",
    "TENSORDICT_ARCHIVE_SUFFIX",
    "T",
    "established_names",
]

T = TypeVar("T")

TENSORDICT_ARCHIVE_SUFFIX = ".tdz"


class _BestAttemptInplace:
    """The type of :data:`BEST_ATTEMPT_INPLACE`."""

    def __repr__(self) -> str:
        return "BEST_ATTEMPT_INPLACE"


BEST_ATTEMPT_INPLACE = _BestAttemptInplace()
"""A value of ``inplace``: write into the entry if there is one, make a new entry
otherwise."""

HOMES: dict[str, str] = {
    "BEST_ATTEMPT_INPLACE": "tensordict._established",
    "Delta": "tensordict.nn.distributions",
    "LinkedList": "tensordict.utils",
    "NO_DEFAULT": "tensordict.primitives.protocol",
    "PYTREE_REGISTERED_LAZY_TDS": "tensordict._pytree",
    "PYTREE_REGISTERED_TDS": "tensordict._pytree",
    "T": "tensordict._established",
    "TD_HANDLED_FUNCTIONS": "tensordict.interop.torch_functions",
    "TENSORDICT_ARCHIVE_SUFFIX": "tensordict._established",
    "TensorDictFuture": "tensordict.utils",
    "TruncatedStandardNormal": "tensordict.nn.distributions.truncated_normal",
    "convert_ellipsis_to_idx": "tensordict._indexing",
    "deprecated": "tensordict._deprecated_utils",
    "deprecated_attributes": "tensordict._deprecated_utils",
    "deprecation_message": "tensordict.primitives.deprecation",
    "expand_as_right": "tensordict.utils",
    "expand_right": "tensordict.utils",
    "is_dataclass": "dataclasses",
    "json_dumps": "tensordict._utils_key_json",
    "symbolic_trace": "tensordict.prototype.fx",
    "to_mds": "tensordict._datasets",
    "warn_deprecated": "tensordict.primitives.deprecation",
    "warn_deprecated_env_var": "tensordict._deprecated_utils",
    # Names that the release imports from torch, and clients from there.
    "Buffer": "torch.nn.parameter",
    "MappingKey": "torch.utils._pytree",
    "Parameter": "torch.nn.parameter",
    "SequenceKey": "torch.utils._pytree",
    "Tensor": "torch",
    "UninitializedBuffer": "torch.nn.parameter",
    "UninitializedParameter": "torch.nn.parameter",
    "UninitializedTensorMixin": "torch.nn.parameter",
    "default_collate": "torch.utils.data",
    "default_collate_fn_map": "torch.utils.data._utils.collate",
    "get_worker_info": "torch.utils.data",
    "is_batchedtensor": "torch._C._functorch",
    "is_compiling": "torch.compiler",
    "is_dynamo_compiling": "torch.compiler",
    "register_pytree_node": "torch.utils._pytree",
    "tree_flatten": "torch.utils._pytree",
    "tree_leaves": "torch.utils._pytree",
    "tree_map": "torch.utils._pytree",
    "tree_unflatten": "torch.utils._pytree",
}
"""The modules of names that are neither the package's nor those of its ``nn``."""


def established_names(
    module: str, table: Mapping[str, tuple[Callable[[], Any], str | None]] | None = None
) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module of an established import path.

    Args:
        module: the ``__name__`` of the module.
        table: its deprecated names, as for :func:`deprecated_names`.
    """
    return deprecated_names(module, table or {}, otherwise=_find)


def _find(name: str) -> Any:
    """The value of a public name.

    Raises:
        AttributeError: there is none of that name.
    """
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    package = importlib.import_module("tensordict")
    if name in package.__all__:
        return getattr(package, name)
    if name in package.nn.__all__:
        return getattr(package.nn, name)
    raise AttributeError(name)
