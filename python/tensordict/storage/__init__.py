"""Collections as files: directories of raw tensor bytes with their metadata.

The engine is Rust (``tensordict-core/src/storage``): plans, parallel writing, the
commit in one step, checked loading. This package converts collections to plans and
files to collections:

- :mod:`~tensordict.storage.layouts` has a file for each layout on disk, the table of them,
  and :func:`~tensordict.storage.layouts.save` and :func:`~tensordict.storage.layouts.load`,
  which find the layout of a save; start there;
- :mod:`~tensordict.storage.tensors.mapped` is the tensor over a file, ``MemoryMappedTensor``;
- :mod:`~tensordict.storage.leaves` makes the bytes of unusual tensors plain;
- :mod:`~tensordict.storage.tensors.anonymous` is memory shared without a file name;
- :mod:`~tensordict.storage.checksums` compares saves with checksums: :func:`verify`,
  :func:`seal`;
- :mod:`~tensordict.primitives.registry` knows which class a directory was saved from.

A collection takes part with three methods, which each kind of collection may override
(the dense ones are in :mod:`~tensordict.storage.layouts.directory`):

``_save_plan(plan, level)``
    adds its entries to a level of the plan (``plan.add_entries``), opens levels for
    nested collections, adds files of its own (``plan.add_file(level, name, content)``,
    such as pickled values), and closes the level (``plan.close_level`` or
    ``plan.close_level_as``);
``_saved(leaves, directory, inplace)``
    takes the tensors over its files (``leaves.take_level``), in the order in which it
    planned them (of each level the tensors first, then what is nested), and gives the
    saved collection: a new one, or itself changed in place;
``_load_tree(directory, options)``, a class method
    makes a collection from a directory that holds one of its class.
"""

from typing import Any

__all__ = ["seal", "verify"]


def __getattr__(name: str) -> Any:
    # Imported on use: the collections import the modules of this package.
    if name in __all__:
        from tensordict.storage import checksums

        return getattr(checksums, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
