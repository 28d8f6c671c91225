"""Collections whose entries are on a Redis server.

``server`` talks to it, by ``scripts`` where one command is not enough, and a ``tree`` tells
the entries that are there; ``encoding`` and ``stacked`` say what an entry is there, ``ranges``
which bytes of it an index means, and ``writes`` what of a collection is to be written.
``dense`` and ``lazy`` are the two collections over them, ``element`` is a member of the
second; ``common`` has what all of them do.
"""

from __future__ import annotations

from tensordict.containers.store.dense import TensorDictStore
from tensordict.containers.store.lazy import LazyStackedTensorDictStore

__all__ = ["LazyStackedTensorDictStore", "TensorDictStore"]
