"""Established import path of the non-tensor classes: pickles and files name it."""

from tensordict.checks import is_non_tensor
from tensordict.containers.nontensor import (
    MetaData,
    NonTensorData,
    NonTensorDataBase,
    NonTensorStack,
)

__all__ = [
    "MetaData",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
    "is_non_tensor",
]
