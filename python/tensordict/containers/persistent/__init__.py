"""A collection whose entries are in a file of HDF5 or Zarr.

Start with :mod:`.collection`; :mod:`.state` is what it knows, :mod:`.reading` and
:mod:`.writing` what it does with the file, :mod:`.differences` what it does otherwise than
other collections, and :mod:`.files` what files say of collections.
"""

from tensordict.containers.persistent.collection import PersistentTensorDict

__all__ = ["PersistentTensorDict"]
