"""Established import path: tensordicts in a key-value store."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.store.dense import TensorDictStore
from tensordict.containers.store.element import _StoreStackElementView

__all__ = ["TensorDictStore", "_StoreStackElementView"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
