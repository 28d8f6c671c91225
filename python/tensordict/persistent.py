"""Collections whose entries are in a file of HDF5 or Zarr: an established import path."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.persistent import PersistentTensorDict

__all__ = ["PersistentTensorDict"]


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
