"""Established import path: lazy stacks in a key-value store."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.store.lazy import LazyStackedTensorDictStore

__all__ = ["LazyStackedTensorDictStore"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
