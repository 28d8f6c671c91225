"""Established import path: functional modules, and tensordicts as leaves of pytrees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from tensordict._established import established_names
from tensordict._pytree import PYTREE_REGISTERED_LAZY_TDS, PYTREE_REGISTERED_TDS
from tensordict.nn.functional import (
    extract_weights_and_buffers,
    get_functional,
    is_functional,
    make_functional,
    repopulate_module,
)
from tensordict.primitives import classes
from tensordict.primitives.deprecation import warn_deprecated

if TYPE_CHECKING:
    import torch

__all__ = [
    "PYTREE_REGISTERED_LAZY_TDS",
    "PYTREE_REGISTERED_TDS",
    "extract_weights_and_buffers",
    "get_functional",
    "is_functional",
    "make_functional",
    "repopulate_module",
]


class _exclude_td_from_pytree:  # noqa: N801 - a name that clients use
    """A context manager in which tensordicts are leaves of pytrees."""

    def __enter__(self) -> None:
        self.set()

    def __exit__(self, *exception: object) -> None:
        self.unset()

    def set(self) -> None:
        """Make tensordicts leaves of pytrees from now on."""
        classes.exclude_from_pytree(True)

    def unset(self) -> None:
        """Register tensordicts as pytree nodes again."""
        classes.exclude_from_pytree(False)


def set_tensor(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Put a tensor into a module under any name; deprecated."""
    warn_deprecated("tensordict.nn.functional_modules.set_tensor()")
    _set_tensor(module, name, tensor)


def set_tensor_dict(
    module_dict: dict[str, Any],  # noqa: ARG001
    module: nn.Module,
    name: str,
    tensor: torch.Tensor,
) -> None:
    """Put a tensor into a module under any name; deprecated."""
    warn_deprecated("tensordict.nn.functional_modules.set_tensor_dict()")
    _set_tensor(module, name, tensor)


def _set_tensor(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Set a parameter, a buffer, or else a plain attribute."""
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
        return
    module._parameters.pop(name, None)
    if name in module._buffers:
        module._buffers[name] = tensor
    else:
        module.__dict__[name] = tensor


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
