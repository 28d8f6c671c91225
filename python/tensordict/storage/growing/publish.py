"""The step in which new rows become visible to readers."""

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
"""The name of the directory in the work area that replaces the growing directory."""

_EXCHANGE = 2
"""The flag of ``renameat2`` that exchanges two directories."""


def publish(
    root: str,
    changed: dict[str, dict[str, Any]],
    is_durable: bool,
    is_first: bool = True,
) -> None:
    """Replace the metadata of some levels in one step.

    The metadata of one level is one file, which a rename replaces. For several levels, a new
    directory gets the new metadata and links to all other files, and is exchanged with the
    old directory. A process that reads the old directory continues with it.

    Args:
        root: the directory.
        changed: the metadata of levels by their folders. The folder of the root is "".
        is_durable: whether to wait until the metadata is on the disk.
        is_first: whether the writer has published nothing yet.
    """
    # The old checksums do not cover the new rows.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(root, CHECKSUMS))
    is_new = is_first and not os.path.exists(os.path.join(root, METADATA))
    if len(changed) == 1 or is_new or not _exchanged(root, changed, is_durable):
        # The root is written last: a directory without its metadata is not a save.
        for folder in sorted(changed, reverse=True):
            text = json.dumps(changed[folder])
            replace_file(os.path.join(root, folder, METADATA), text, is_durable)


def replace_file(path: str, text: str, is_durable: bool = False) -> None:
    """Replace the text of a file in one step."""
    # There is one writer at a time, so one name is enough for the work file.
    work_file = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.next")
    _write(work_file, text, is_durable)
    os.replace(work_file, path)
    if is_durable:
        _sync(os.path.dirname(path))


def _exchanged(root: str, changed: dict[str, dict[str, Any]], is_durable: bool) -> bool:
    """Exchange the directory with one with the new metadata; return whether that worked."""
    area = work_area(root)
    work = os.path.join(area, _MADE)
    try:
        os.makedirs(area, exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        _link_tree(root, work, changed, is_durable)
        if not exchange(work, root):
            return False
        if is_durable:
            _sync(os.path.dirname(root))
    except OSError:
        # The disk is full, the parent is not writable, or the file system has no links.
        return False
    else:
        return True
    finally:
        shutil.rmtree(work, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(area)


def sweep(root: str) -> None:
    """Delete the work directory that a killed writer left. The caller holds the lock."""
    area = work_area(root)
    if os.path.exists(area):
        shutil.rmtree(os.path.join(area, _MADE), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(area)


def _link_tree(
    root: str, work: str, changed: dict[str, dict[str, Any]], is_durable: bool
) -> None:
    for folder, folders, names in _walk(root):
        work_folder = os.path.join(work, folder)
        os.mkdir(work_folder)
        os.chmod(work_folder, os.stat(os.path.join(root, folder)).st_mode & 0o7777)
        for name in names:
            if name == METADATA and folder in changed:
                text = json.dumps(changed[folder])
                _write(os.path.join(work_folder, name), text, is_durable)
            else:
                source = os.path.join(root, folder, name)
                os.link(source, os.path.join(work_folder, name), follow_symlinks=False)
        if is_durable and not folders:
            _sync(work_folder)


def _walk(root: str, folder: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder below ``root``, with the names of its folders and its files."""
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
    """Return the folder for work directories, which the Rust engine uses as well."""
    parent, name = os.path.split(root)
    return os.path.join(parent, f".{name[:50]}.tdtmp")


def exchange(first: str, second: str) -> bool:
    """Exchange two directories in one step; return False if the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    here = -100  # AT_FDCWD: relative paths start at the working directory.
    done = call(here, os.fsencode(first), here, os.fsencode(second), _EXCHANGE)
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
