"""Comparing saves with the sums that were taken when they were written."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, NamedTuple

from tensordict import _rust

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Finding", "Report", "check_loaded", "seal", "verify"]

DAMAGED = "damaged"
CHANGED = ("modified since the save", "changed or damaged")


class Finding(NamedTuple):
    """What :func:`verify` found out about one file, or an entry's part of one."""

    key: str
    """The entry as messages show it: ``'a'`` or ``('n', 'a')``. Empty for metadata."""
    path: str
    outcome: str
    """One of ``good``, ``damaged``, ``modified since the save``, ``changed or damaged``
    (where the file system does not tell the two apart), ``unchecked`` (no sum)."""
    detail: str
    """What is wrong; empty where nothing is."""
    line: str
    """All of this in a sentence."""


class Report(NamedTuple):
    """What :func:`verify` found out."""

    layout: str
    """``tree``, ``archive``, or another of the layouts."""
    generation: str
    """What tells this save from others; empty where no sums were taken."""
    findings: list[Finding]

    def lines(self, *outcomes: str) -> list[str]:
        """The sentences on the files with one of these outcomes."""
        return [found.line for found in self.findings if found.outcome in outcomes]

    @property
    def is_damaged(self) -> bool:
        """Whether any file is."""
        return bool(self.lines(DAMAGED))


def verify(path: str | Path, num_threads: int = 0) -> Report:
    """Read the files of a save and compare them with their sums.

    Nothing is raised where files are damaged: the report says it. Tensors that were
    filled through their mapping are *modified since the save*, and not damaged.

    Args:
        path: the save, of any layout.
        num_threads: the most native threads. Default: the cores of this process, at
            most 8.

    Raises:
        OSError: there is no save, or it cannot be read.
        RuntimeError: its metadata makes no sense.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> _ = TensorDict({"a": torch.zeros(3)}).save(path)
        >>> report = verify(path)
        >>> [(found.key, found.outcome) for found in report.findings if found.key]
        [("'a'", 'good')]
    """
    layout, generation, found = _rust.verify_save(os.fspath(path), max(0, num_threads))
    findings = [Finding(key, os.fspath(file), *words) for key, file, *words in found]
    return Report(layout, generation, findings)


def seal(path: str | Path, num_threads: int = 0) -> int:
    """Take the sums of a saved directory, or an archive, as it is now.

    For a dataset that was made with :meth:`~tensordict.TensorDictBase.memmap_like`, or
    changed through its mapping, and is finished: from now on :func:`verify` compares
    with what is there today.

    Args:
        path: the directory or archive. Nothing but the sums, and the times of files,
            is written. An archive that was made without sums has those of its entries.
        num_threads: as for :func:`verify`.

    Returns:
        How many files, or entries, have a sum.

    Raises:
        OSError: a file is missing, too short, or cannot be read.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> data = TensorDict({"a": torch.zeros(3)}).memmap_like(path)
        >>> data["a"].fill_(1)
        MemoryMappedTensor([1., 1., 1.])
        >>> seal(path)
        2
        >>> verify(path).is_damaged
        False
    """
    from tensordict.storage.archives import is_memmap_archive

    seal_it = _rust.refresh_archive if is_memmap_archive(path) else _rust.seal_tree
    return seal_it(os.fspath(path), max(0, num_threads))


def check_loaded(path: str | Path, num_threads: int) -> None:
    """Refuse a damaged save, and warn of one that was modified: ``verify=True``."""
    report = verify(path, num_threads)
    damages = report.lines(DAMAGED)
    if damages:
        raise RuntimeError("\n".join(damages))
    changes = report.lines(*CHANGED)
    if changes:
        warnings.warn("\n".join(changes), stacklevel=4)
