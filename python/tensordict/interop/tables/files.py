"""Atomic writes of table files: to a temporary folder, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict.storage.locations import local

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_local", "local_file", "replacing"]


def is_local(path: object) -> bool:
    """Return whether ``path`` is a local path: neither an open file nor a URL.

    Raises:
        ValueError: ``path`` is a URL that lost a slash as a ``pathlib.Path``.
    """
    if not isinstance(path, (str, os.PathLike)) or "://" in os.fspath(path):
        return False
    local(path)
    return True


def local_file(path: str | os.PathLike[str]) -> Path | None:
    """Return the path of an existing ordinary file, otherwise None."""
    if not is_local(path):
        return None
    file = Path(os.path.expanduser(path))  # noqa: PTH111 - as pandas does
    return file if file.is_file() else None


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Yield a path to write to; success replaces the file at ``path``.

    An open file, a URL, or a ``path`` that exists and is no ordinary file is written to
    directly.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    if not is_local(path):
        yield path
        return
    target = Path(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111
    if target.exists() and not target.is_file():
        yield path
        return
    if not target.parent.is_dir():
        msg = f"Cannot save file into a non-existent directory: '{target.parent}'"
        raise FileNotFoundError(errno.ENOENT, msg)
    # The file name stays the same: libraries derive the compression from its suffix.
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield str(work / target.name)
        if target.exists():
            shutil.copymode(target, work / target.name)
        (work / target.name).replace(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
