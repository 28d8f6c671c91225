"""Collections whose entries are in a file of HDF5 or Zarr: an established import path."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.persistent import PersistentTensorDict

__all__ = ["PersistentTensorDict"]


if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
