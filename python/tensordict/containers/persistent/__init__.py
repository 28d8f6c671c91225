"""A collection whose entries are in an HDF5 file or a Zarr store.

:mod:`.collection` defines the class, :mod:`.state` its attributes, :mod:`.reading` and
:mod:`.writing` its access to the file, and :mod:`.files` the translation between
collections and the contents of files.
"""

from tensordict.containers.persistent.collection import PersistentTensorDict

__all__ = ["PersistentTensorDict"]
