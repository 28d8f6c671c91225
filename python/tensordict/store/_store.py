"""A collection in a store."""

from typing import TYPE_CHECKING

from tensordict import _later
from tensordict._established import established_names
from tensordict.containers.collection import TensorDictBase

__all__ = ["TensorDictStore"]


class TensorDictStore(_later.Later, TensorDictBase):  # type: ignore[misc] # as TensorDictBase
    """A collection whose entries are in a store that several machines reach."""


if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
