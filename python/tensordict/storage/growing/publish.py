"""Let readers see the rows that were written, in one step."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["exchange", "publish", "replace_file", "sweep", "work_area"]

METADATA = "meta.json"
CHECKSUMS = ".tensordict-sums.json"
_MADE = "growing"
"""The directory in the work area that takes the place of the one that grows."""

_EXCHANGE = 2
"""The flag of ``renameat2`` with which two names exchange what they are of."""


def publish(
    root: str,
    changed: dict[str, dict[str, Any]],
    is_durable: bool,
    is_first: bool = True,
) -> None:
    """Replace the metadata of some levels in one step.

    The metadata of one level is one file, which a rename replaces. Of several levels, a
    directory is made with the new metadata and links to all other files, and exchanged
    with the old one: who reads the old one goes on with that.

    Args:
        root: the directory.
        changed: the metadata of levels, by their folders; that of the root is "".
        is_durable: whether it is on the disk afterwards.
        is_first: whether its writer has published nothing yet.
    """
    # Checksums are of the bytes that were there before.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(root, CHECKSUMS))
    is_new = is_first and not os.path.exists(os.path.join(root, METADATA))
    if len(changed) == 1 or is_new or not _exchanged(root, changed, is_durable):
        # The root is the last: without its metadata there is no save.
        for folder in sorted(changed, reverse=True):
            text = json.dumps(changed[folder])
            replace_file(os.path.join(root, folder, METADATA), text, is_durable)


def replace_file(path: str, text: str, is_durable: bool = False) -> None:
    """Put a text into a file in one step."""
    # One writer at a time: a name of its own is not needed, and nothing stays behind.
    made = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.next")
    _write(made, text, is_durable)
    os.replace(made, path)
    if is_durable:
        _sync(os.path.dirname(path))


def _exchanged(root: str, changed: dict[str, dict[str, Any]], is_durable: bool) -> bool:
    """Return whether the directory could be exchanged with one of the new metadata."""
    area = work_area(root)
    made = os.path.join(area, _MADE)
    try:
        os.makedirs(area, exist_ok=True)
        shutil.rmtree(made, ignore_errors=True)
        _link_tree(root, made, changed, is_durable)
        if not exchange(made, root):
            return False
        if is_durable:
            _sync(os.path.dirname(root))
    except OSError:
        # No room, no right to write beside it, or a file system without links.
        return False
    else:
        return True
    finally:
        shutil.rmtree(made, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(area)


def sweep(root: str) -> None:
    """Delete what a killed process left beside a directory whose lock is held now."""
    area = work_area(root)
    if os.path.exists(area):
        shutil.rmtree(os.path.join(area, _MADE), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(area)


def _link_tree(
    root: str, made: str, changed: dict[str, dict[str, Any]], is_durable: bool
) -> None:
    for folder, folders, names in _walk(root):
        own = os.path.join(made, folder)
        os.mkdir(own)
        os.chmod(own, os.stat(os.path.join(root, folder)).st_mode & 0o7777)
        for name in names:
            if name == METADATA and folder in changed:
                text = json.dumps(changed[folder])
                _write(os.path.join(own, name), text, is_durable)
            else:
                source = os.path.join(root, folder, name)
                os.link(source, os.path.join(own, name), follow_symlinks=False)
        if is_durable and not folders:
            _sync(own)


def _walk(root: str, folder: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
    """The folders below ``root``, each with those and the files that it holds."""
    folders: list[str] = []
    names: list[str] = []
    with os.scandir(os.path.join(root, folder)) as found:
        for entry in found:
            is_folder = entry.is_dir(follow_symlinks=False)
            (folders if is_folder else names).append(entry.name)
    yield folder, folders, names
    for name in folders:
        yield from _walk(root, os.path.join(folder, name))


def work_area(root: str) -> str:
    """Return the folder in which the engine has its work directories, too."""
    parent, name = os.path.split(root)
    return os.path.join(parent, f".{name[:50]}.tdtmp")


def exchange(one: str, other: str) -> bool:
    """Exchange two directories in one step; False where the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    here = -100  # AT_FDCWD: names are those of this process.
    done = call(here, os.fsencode(one), here, os.fsencode(other), _EXCHANGE)
    return bool(done == 0)


def _write(path: str, text: str, is_durable: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        data = memoryview(text.encode())
        while data:
            data = data[os.write(descriptor, data) :]
        if is_durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(directory: str) -> None:
    descriptor = os.open(directory or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
