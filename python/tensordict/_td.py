"""Established import path, named by pickles and files: the dense containers."""

from tensordict.containers.dense import TensorDict

__all__ = ["TensorDict"]
