"""Established import path, named by pickles: parameters as a collection."""

from tensordict.containers.params import TensorDictParams

__all__ = ["TensorDictParams"]
