"""Established import path, named by pickles and files: lazy stacks."""

from tensordict.containers.lazy import LazyStackedTensorDict

__all__ = ["LazyStackedTensorDict"]
