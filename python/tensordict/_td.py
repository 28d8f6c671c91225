"""Established import path, named by pickles and files: the dense containers."""

from tensordict.containers.dense import TensorDict
from tensordict.containers.view import _SubTensorDict
from tensordict.ops.joining import cat, maybe_dense_stack, stack

__all__ = ["TensorDict", "_SubTensorDict", "cat", "maybe_dense_stack", "stack"]
