"""Lazy stacks: an entry is stacked when it is read.

``stack.py`` defines the class, ``construct.py`` checks members and makes stacks.
``access.py`` reads keys and entries, ``set.py`` writes entries, ``apply.py`` calls
functions on leaves and joins stacks. ``indexing.py`` finds the members that an index
selects, ``shapes.py`` implements operations on dims, ``formats.py`` reads entries whose
shapes differ, ``display.py`` prints. ``rollback.py`` undoes a write that fails.
``column_stack.py`` defines a stack over columns in files, which ``columns.py`` and
``ragged_column.py`` read.
"""

from tensordict.containers.lazy.construct import lazy_stack
from tensordict.containers.lazy.stack import LazyStackedTensorDict

__all__ = ["LazyStackedTensorDict", "lazy_stack"]
