"""Established import path: the base class of every container."""

from tensordict.collection import TensorCollection

__all__ = ["TensorCollection"]
