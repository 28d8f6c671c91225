"""Compare saves with the checksums that were taken when they were written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tensordict import _rust
from tensordict.storage import layouts
from tensordict.storage.foreign import MSG_NO_LAYOUT, explain
from tensordict.storage.future import with_bar
from tensordict.storage.layouts.interface import CHANGED, DAMAGED, Finding, Report
from tensordict.storage.locations import local

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CHANGED", "DAMAGED", "Finding", "Report", "seal", "verify"]


def verify(
    path: str | Path,
    num_threads: int = 0,
    *,
    deep: bool = False,
    pbar: bool = False,
) -> Report:
    """Read the files of a save and compare them with their checksums.

    Nothing is raised where files are damaged: the report says it. Tensors that were
    filled through their mapping are *modified since the save*, and not damaged.

    Args:
        path: the save, of any layout; of shards the name of their index, or the one
            that was saved to.
        num_threads: the most native threads. Default: the cores of this process, at
            most 8.
        deep: whether what no checksum covers is looked at, too: files without a checksum
            are read to their end, entries of archives are compared with the CRC-32 that
            other tools go by, and pickles are gone through, without running them.
        pbar: whether a progress bar is shown.

    Raises:
        OSError: there is no save, or it cannot be read.
        RuntimeError: its metadata is invalid.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> _ = TensorDict({"a": torch.zeros(3)}).save(path)
        >>> report = verify(path)
        >>> [(found.key, found.outcome) for found in report.findings if found.key]
        [("'a'", 'good')]
    """
    path = local(path)
    layout = layouts.find(path) or layouts.DIRECTORY
    progress = _rust.SaveProgress()

    def work() -> Report:
        return layout.verify(path, num_threads, deep, progress)

    return with_bar(work, progress, "verifying") if pbar else work()


def seal(path: str | Path, num_threads: int = 0, *, pbar: bool = False) -> int:
    """Take the checksums of a saved directory, or an archive, as it is now.

    For a dataset that was made with :meth:`~tensordict.TensorDictBase.memmap_like`, or
    changed through its mapping, and is finished: from now on :func:`verify` compares
    with what is there today.

    Args:
        path: the directory or archive. Nothing but the checksums, and the times of files,
            is written. An archive that was made without checksums has those of its entries.
        num_threads: as for :func:`verify`.
        pbar: whether a progress bar is shown.

    Returns:
        How many files, or entries, have a checksum.

    Raises:
        OSError: a file is missing, too short, or cannot be read.
        ValueError: it is of another layout, which has its checksums from being saved.

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
    path = local(path)
    layout = layouts.find(path)
    if layout is None and os.path.isfile(path):
        raise ValueError(f"{path} is not a save. {explain(path) or MSG_NO_LAYOUT}")
    sealed = layout or layouts.DIRECTORY
    progress = _rust.SaveProgress()

    def work() -> int:
        return sealed.seal(path, num_threads, progress)

    return with_bar(work, progress, "sealing") if pbar else work()
