"""Established import path, used by pickles and files: dense tensordicts."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.dense import TensorDict
from tensordict.containers.view import _SubTensorDict
from tensordict.ops.joining import cat, maybe_dense_stack, stack

__all__ = ["TensorDict", "_SubTensorDict", "cat", "maybe_dense_stack", "stack"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
