"""Established import path: the tensordict classes that are pytree nodes."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.dense import TensorDict
from tensordict.containers.view import _SubTensorDict

__all__ = ["PYTREE_REGISTERED_LAZY_TDS", "PYTREE_REGISTERED_TDS"]

PYTREE_REGISTERED_TDS: tuple[type, ...] = (_SubTensorDict, TensorDict)
PYTREE_REGISTERED_LAZY_TDS: tuple[type, ...] = ()

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
