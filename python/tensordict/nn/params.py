"""Established import path, used by pickles: ``TensorDictParams``."""

from typing import TYPE_CHECKING

from tensordict._deprecated_utils import NN_PARAMS
from tensordict._established import established_names
from tensordict.containers.params import TensorDictParams

__all__ = ["TensorDictParams"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__, NN_PARAMS)
