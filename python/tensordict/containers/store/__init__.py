"""Collections whose entries are on a Redis server.

``dense`` and ``lazy`` define the two collections; ``common`` holds the methods that
they share, and ``element`` is a member of the lazy one. ``server`` talks to the server,
with ``scripts`` for operations that need several commands. A ``tree`` describes the
entries on the server. ``encoding`` and ``stacked`` convert entries to bytes, ``ranges``
finds the bytes of an index, and ``writes`` collects the changes to send.
"""

from __future__ import annotations

from tensordict.containers.store.dense import TensorDictStore
from tensordict.containers.store.lazy import LazyStackedTensorDictStore

__all__ = ["LazyStackedTensorDictStore", "TensorDictStore"]
