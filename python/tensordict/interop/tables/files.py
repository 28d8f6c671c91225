"""Files of tables that appear whole: written beside their place, then renamed."""

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
    """Tell whether ``path`` is of this machine, and neither an open file nor an address.

    Raises:
        ValueError: it was an address, and lost a slash as a ``pathlib.Path``.
    """
    if not isinstance(path, (str, os.PathLike)) or "://" in os.fspath(path):
        return False
    local(path)
    return True


def local_file(path: str | os.PathLike[str]) -> Path | None:
    """The path of an ordinary file that there is, otherwise None."""
    if not is_local(path):
        return None
    found = Path(os.path.expanduser(path))  # noqa: PTH111 - as pandas does
    return found if found.is_file() else None


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Give what to write to, so that a file at ``path`` changes only by success.

    An open file, an address and what is no ordinary file are written to as they are.

    Raises:
        FileNotFoundError: there is no such folder.
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
    # The name stays: libraries take the compression from its end.
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield str(work / target.name)
        if target.exists():
            shutil.copymode(target, work / target.name)
        (work / target.name).replace(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
