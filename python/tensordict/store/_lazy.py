"""Established import path: a stack of collections in a store."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.store.lazy import LazyStackedTensorDictStore

__all__ = ["LazyStackedTensorDictStore"]

if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
