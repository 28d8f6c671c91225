"""``memmap(..., ragged="columns")``: saves a collection as columns in one call."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.primitives.checks import is_tensorclass
from tensordict.storage.growing.lock import WriterLock
from tensordict.storage.growing.publish import exchange, work_area
from tensordict.storage.growing.rows import level_of_members, level_of_rows
from tensordict.storage.growing.tree import GrowingTree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.storage.growing.rows import Level

__all__ = ["write_columns"]

ROWS_AT_ONCE = 8192
"""The most rows to lay out in memory at once."""

MSG_NO_ROWS = "ragged='columns' saves rows along the first batch dimension, but the batch size is {}."
MSG_EXISTS = "{} exists, and existsok=False was passed."

_OWN = "columns-"
"""The beginning of the names of the work directories of columns."""

_NUMBERS = itertools.count()


def write_columns(
    td: CollectionProtocol,
    target: str,
    existsok: bool,
    is_durable: bool,
    takes_checksums: bool,
) -> None:
    """Write a collection to a work directory that then replaces ``target``.

    Raises:
        ValueError: the collection has no batch dimension.
        RuntimeError: ``target`` is neither a save nor empty; or it is a save, but
            ``existsok`` is false.
    """
    if not td.batch_size:
        raise ValueError(MSG_NO_ROWS.format(td.batch_size))
    if os.path.exists(os.path.join(target, "meta.json")) and not existsok:
        raise RuntimeError(MSG_EXISTS.format(target))
    area = work_area(target)
    os.makedirs(area, exist_ok=True)
    _sweep(area)
    work = os.path.join(area, f"{_OWN}{os.getpid()}-{next(_NUMBERS)}")
    os.mkdir(work)
    lock = WriterLock(work, waits=False)
    tree_path = os.path.join(work, "tree")
    try:
        tree = GrowingTree(tree_path, caller="memmap", has_room=False)
        try:
            for level, count in _parts(td):
                if tree.root is None:
                    tree.make(level, is_stack=True)
                if count:
                    tree.add(level, count)
            tree.publish(is_durable)
        finally:
            tree.close()
        if takes_checksums:
            _rust.seal_tree(tree_path, 0, _rust.SaveProgress())
        _put(tree_path, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()
        with contextlib.suppress(OSError):
            os.rmdir(area)


def _sweep(area: str) -> None:
    """Delete the work directories of killed processes."""
    for name in os.listdir(area):
        if name.startswith(_OWN):
            leftover = os.path.join(area, name)
            with contextlib.suppress(OSError, RuntimeError):
                lock = WriterLock(leftover, waits=False)
                shutil.rmtree(leftover, ignore_errors=True)
                lock.release()


def _parts(td: Any) -> Iterator[tuple[Level, int]]:
    """Yield the rows in parts that fit in memory."""
    if is_tensorclass(td):
        for level, count in _parts(td._tensordict):
            level.cls = type(td)
            yield level, count
        return
    count = td.batch_size[0]
    is_stack = not td._is_dense and getattr(td, "stack_dim", None) == 0
    if is_stack and getattr(td, "_as_level", lambda: None)() is None and count:
        members = td.tensordicts
        for start in range(0, count, ROWS_AT_ONCE):
            part = members[start : start + ROWS_AT_ONCE]
            yield level_of_members(part), len(part)
    else:
        yield level_of_rows(td), count


def _put(source: str, target: str) -> None:
    """Move a directory to ``target``, and delete the save that it replaces.

    The replacement is one step if the system can exchange directories.
    """
    if not os.path.lexists(target):
        os.rename(source, target)
    elif not os.path.isdir(target):
        raise FileExistsError(17, "The target is a file, not a directory", target)
    elif not os.listdir(target):
        # A rename replaces an empty directory.
        os.rename(source, target)
    elif not os.path.exists(os.path.join(target, "meta.json")):
        msg = f"{target} is not a save, and is not empty: pass the path of a new directory."
        raise RuntimeError(msg)
    elif not exchange(source, target):
        aside = f"{source}.old"
        os.rename(target, aside)
        os.rename(source, target)
        shutil.rmtree(aside, ignore_errors=True)
