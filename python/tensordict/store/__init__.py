"""Collections whose entries are in a store that several machines reach."""

from typing import Literal

from tensordict.store._lazy import LazyStackedTensorDictStore
from tensordict.store._store import TensorDictStore

__all__ = ["STORE_BACKENDS", "LazyStackedTensorDictStore", "TensorDictStore"]

STORE_BACKENDS = Literal["redis", "dragonfly"]
