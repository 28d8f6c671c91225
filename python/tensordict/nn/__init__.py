"""Modules that read and write collections."""

from tensordict.containers.params import TensorDictParams

__all__ = ["TensorDictParams"]
