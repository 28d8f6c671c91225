"""Established import path: the base class of all tensordict classes."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.collection import TensorCollection

__all__ = ["TensorCollection"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
