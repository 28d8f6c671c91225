"""A collection whose tensors are in an object store.

Start with :mod:`.collection`; :mod:`.loading` makes one of a URL, and :mod:`.taking` reads
rows of all its entries at once.
"""

from tensordict.containers.remote.collection import RemoteTensorDict
from tensordict.containers.remote.loading import load_remote

__all__ = ["RemoteTensorDict", "load_remote"]
