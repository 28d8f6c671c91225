"""``tensordict.append_memmap``."""

from __future__ import annotations

import os
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
    "append_memmap appends to a directory written by save or memmap, and {} is not one. An "
    "archive cannot grow: unpack it with unpack_memmap first."
)


def append_memmap(
    prefix: str | Path, rows: object, *, allow_pickle: bool | None = None
) -> None:
    """Append rows to a saved directory, along its first batch dim.

    The rows are written behind those that are there, and then appear in one step: a
    process that is killed leaves the save as it was before or after, and a reader sees all
    of the rows or none. Collections that were loaded before keep their rows. Of many
    short appends a :class:`~tensordict.data.DatasetWriter` makes less work.

    Args:
        prefix: the directory, written by ``save`` or ``memmap``.
        rows: a collection of the same keys, dtypes and shapes behind the first dim.
            Non-tensor values must be those that were saved.
        allow_pickle: whether saved values that are pickles are read, to be compared.

    Raises:
        ValueError: the rows do not fit, or ``prefix`` is no directory that can grow.
        TypeError: ``rows`` is no collection.
        OSError: they cannot be written; the save is as it was.

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
        raise ValueError(MSG_NO_DIRECTORY.format(prefix))
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
