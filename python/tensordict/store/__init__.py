"""Tensordicts whose entries are in a key-value store, such as Redis."""

from typing import Literal

from tensordict.store._lazy import LazyStackedTensorDictStore
from tensordict.store._store import TensorDictStore

__all__ = ["STORE_BACKENDS", "LazyStackedTensorDictStore", "TensorDictStore"]

STORE_BACKENDS = Literal["redis", "dragonfly"]
