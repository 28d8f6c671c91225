"""Established import path, named by pickles: parameters as a collection."""

from typing import TYPE_CHECKING

from tensordict._deprecated_utils import NN_PARAMS
from tensordict._established import established_names
from tensordict.containers.params import TensorDictParams

__all__ = ["TensorDictParams"]

if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__, NN_PARAMS)
