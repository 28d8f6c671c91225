"""The function ``tensordict.append_memmap``."""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING

from tensordict.primitives.checks import is_branch
from tensordict.storage.growing.rows import level_of_rows
from tensordict.storage.growing.tree import GrowingTree
from tensordict.storage.locations import local

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["append_memmap"]

MSG_ROWS = "rows must be a tensordict or a tensorclass, got {}."
MSG_NO_DIRECTORY = (
    "append_memmap appends to a directory written by save or memmap, but {} is not a "
    "directory. {}"
)
MSG_ARCHIVE = "An archive cannot grow: unpack it with unpack_memmap first."
MSG_FILE = (
    "A file cannot grow: load it, save it to a directory with td.save(directory), and append "
    "to the directory."
)
MSG_MISSING = (
    "There is nothing there: save the first rows there with td.save(directory)."
)


def append_memmap(
    prefix: str | Path, rows: object, *, allow_pickle: bool | None = None
) -> None:
    """Append rows to a saved directory, along its first batch dimension.

    All rows become visible in one step. After a kill, the save contains all of the new rows
    or none. Tensordicts that were loaded before keep their rows. For many short appends, a
    :class:`~tensordict.data.DatasetWriter` is faster.

    Args:
        prefix: the directory, written by ``save`` or ``memmap``.
        rows: a tensordict with the keys and dtypes of the save, and with its shapes except
            for the first dimension. Non-tensor data must equal the saved values.
        allow_pickle: whether to unpickle saved values to compare them.

    Raises:
        ValueError: the rows do not fit, or ``prefix`` is not a directory that can grow.
        TypeError: ``rows`` is not a tensordict.
        OSError: the rows cannot be written. The save is unchanged.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> _ = TensorDict({"a": torch.zeros(3)}, [3]).save(path)
        >>> append_memmap(path, TensorDict({"a": torch.ones(2)}, [2]))
        >>> TensorDict.load(path)["a"]
        MemoryMappedTensor([0., 0., 0., 1., 1.])
    """
    if not is_branch(rows):
        raise TypeError(MSG_ROWS.format(type(rows)))
    prefix = local(prefix)
    if not os.path.isdir(prefix):
        raise ValueError(MSG_NO_DIRECTORY.format(prefix, _why_no_directory(prefix)))
    if not os.path.exists(os.path.join(prefix, "meta.json")):
        path = os.path.join(prefix, "meta.json")
        raise FileNotFoundError(2, "No such file or directory", path)
    tree = GrowingTree(prefix, waits=True, caller="append_memmap", has_room=False)
    try:
        size = rows.batch_size
        tree.check_first_dim(size)
        tree.allow_pickle = allow_pickle
        if size[0]:
            tree.add(level_of_rows(rows), size[0], is_strict=True)
            tree.publish()
    finally:
        tree.close()


def _why_no_directory(path: str | Path) -> str:
    """Return the part of the message for a path that is not a directory."""
    if not os.path.lexists(path):
        return MSG_MISSING
    is_archive = os.path.isfile(path) and zipfile.is_zipfile(path)
    return MSG_ARCHIVE if is_archive else MSG_FILE
