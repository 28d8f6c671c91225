"""Saves of collections: directories of raw tensor bytes with their metadata, and other layouts.

The engine is Rust (``tensordict-core/src/storage``): it plans saves, writes in parallel, commits in
one step and checks files as it loads them. This package converts collections to plans, and files to
collections:

- :mod:`~tensordict.storage.layouts` holds a module for each layout on disk.
  :func:`~tensordict.storage.layouts.save` and :func:`~tensordict.storage.layouts.load` find the
  layout of a save. Start there.
- :mod:`~tensordict.storage.tensors.mapped` defines ``MemoryMappedTensor``, the tensor over a file.
- :mod:`~tensordict.storage.leaves` converts unusual tensors to plain bytes.
- :mod:`~tensordict.storage.tensors.anonymous` shares memory without a file name.
- :mod:`~tensordict.storage.checksums` compares saves with their checksums: :func:`verify`,
  :func:`seal`.
- :mod:`~tensordict.primitives.registry` finds the class from which a directory was saved.

Each class of collection may override three methods. Their versions for dense collections are in
:mod:`~tensordict.storage.layouts.directory`:

``_save_plan(plan, level)``
    adds the entries to a level of the plan (``plan.add_entries``), opens levels for nested
    collections, adds further files (``plan.add_file(level, name, content)``, for example pickled
    values), and closes the level (``plan.close_level`` or ``plan.close_level_as``).
``_saved(leaves, directory, inplace)``
    takes the tensors over the files (``leaves.take_level``) in the order of the plan: in each level
    first the tensors, then the nested collections. It returns the saved collection: a new one, or
    itself changed in place.
``_load_tree(directory, options)``, a class method
    returns a collection from a directory that holds a collection of its class.
"""

from typing import Any

__all__ = ["seal", "verify"]


def __getattr__(name: str) -> Any:
    # Imported on first use, because the modules of collections import this package.
    if name in __all__:
        from tensordict.storage import checksums

        return getattr(checksums, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
