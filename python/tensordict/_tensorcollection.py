"""Established import path: the base class of every collection."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.collection import TensorCollection

__all__ = ["TensorCollection"]

if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
