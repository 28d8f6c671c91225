"""Lookup of names at the import paths of tensordict 0.15.

A module at an established import path defines the names that belong there. It offers all
other public names through :func:`established_names`, because tensordict 0.15 imports them
into most of its modules. A name is looked up when a client first uses it.
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
"""A value of ``inplace``: write into an existing entry, or else make a new entry."""

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
    # Names of torch that clients import from modules of tensordict 0.15.
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
"""The modules of public names that neither the package nor its ``nn`` exports."""


def established_names(
    module: str, table: Mapping[str, tuple[Callable[[], Any], str | None]] | None = None
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module at an established import path.

    Args:
        module: the ``__name__`` of the module.
        table: the deprecated names of the module, as for :func:`deprecated_names`.
    """
    return deprecated_names(module, table or {}, otherwise=_find)


def _find(name: str) -> Any:
    """Return the value of a public name.

    Raises:
        AttributeError: no public name matches.
    """
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    package = importlib.import_module("tensordict")
    if name in package.__all__:
        return getattr(package, name)
    if name in package.nn.__all__:
        return getattr(package.nn, name)
    raise AttributeError(name)
