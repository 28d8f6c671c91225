"""``memmap(..., ragged="columns")``: a collection saved as columns in one go."""

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
"""So many rows are laid out in memory at once."""

MSG_NO_ROWS = "ragged='columns' saves rows along the first batch dim, and there is none: batch size {}."
MSG_EXISTS = "{} exists, and existsok=False was given."

_OWN = "columns-"
"""The beginning of the names of the directories that columns are written to."""

_NUMBERS = itertools.count()


def write_columns(
    td: CollectionProtocol,
    target: str,
    existsok: bool,
    is_durable: bool,
    takes_checksums: bool,
) -> None:
    """Write a collection to a directory that then takes the place of ``target``.

    Raises:
        ValueError: it has no rows.
        RuntimeError: there is something else at ``target``, or something at all without
            ``existsok``.
    """
    if not td.batch_size:
        raise ValueError(MSG_NO_ROWS.format(td.batch_size))
    if os.path.exists(os.path.join(target, "meta.json")) and not existsok:
        raise RuntimeError(MSG_EXISTS.format(target))
    area = work_area(target)
    os.makedirs(area, exist_ok=True)
    _sweep(area)
    own = os.path.join(area, f"{_OWN}{os.getpid()}-{next(_NUMBERS)}")
    os.mkdir(own)
    lock = WriterLock(own, waits=False)
    made = os.path.join(own, "tree")
    try:
        tree = GrowingTree(made, caller="memmap", has_room=False)
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
            _rust.seal_tree(made, 0, _rust.SaveProgress())
        _put(made, target)
    finally:
        shutil.rmtree(own, ignore_errors=True)
        lock.release()
        with contextlib.suppress(OSError):
            os.rmdir(area)


def _sweep(area: str) -> None:
    """Delete what killed processes left."""
    for name in os.listdir(area):
        if name.startswith(_OWN):
            left = os.path.join(area, name)
            with contextlib.suppress(OSError, RuntimeError):
                lock = WriterLock(left, waits=False)
                shutil.rmtree(left, ignore_errors=True)
                lock.release()


def _parts(td: Any) -> Iterator[tuple[Level, int]]:
    """The rows, not too many at once."""
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


def _put(made: str, target: str) -> None:
    """Put a directory in the place of another one, in one step where that can be."""
    if not os.path.lexists(target):
        os.rename(made, target)
    elif not os.path.isdir(target):
        raise FileExistsError(17, "There is a file", target)
    elif not os.listdir(target):
        # A rename takes the place of an empty directory.
        os.rename(made, target)
    elif not os.path.exists(os.path.join(target, "meta.json")):
        msg = f"{target} is not a save, and not empty: columns get a directory of their own."
        raise RuntimeError(msg)
    elif not exchange(made, target):
        aside = f"{made}.old"
        os.rename(target, aside)
        os.rename(made, target)
        shutil.rmtree(aside, ignore_errors=True)
