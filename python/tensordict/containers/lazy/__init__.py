"""Stacks of collections that are made when an entry is read, not before.

``stack.py`` has the container and ``making.py`` what makes one; ``reading.py`` reads
entries, ``indexing.py`` says which members an index touches and
how, ``members.py`` what members do on their own, ``keys.py`` what is done with keys,
``shapes.py`` what operations on dims make of the members, ``formats.py`` how entries whose
shapes differ are read, and ``display.py`` how a stack prints. ``column_stack.py`` is a stack
over columns in files, which ``columns.py`` and ``ragged_column.py`` have.
"""

from tensordict.containers.lazy.construct import lazy_stack
from tensordict.containers.lazy.stack import LazyStackedTensorDict

__all__ = ["LazyStackedTensorDict", "lazy_stack"]
