"""Collections whose entries are in a file of HDF5 or Zarr."""

from typing import TYPE_CHECKING

from tensordict import _later
from tensordict._established import established_names
from tensordict.containers.collection import TensorDictBase

__all__ = ["PersistentTensorDict"]


class PersistentTensorDict(_later.Later, TensorDictBase):  # type: ignore[misc] # as TensorDictBase
    """A collection whose entries are in a file of HDF5 or Zarr."""


if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
