"""Comparison of saves with the checksums from the time of writing."""

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

    Damage raises no error: the report contains it. A tensor that was written to through its
    mapping is reported as *modified since the save*, not as damaged.

    Args:
        path: the save, of any layout. For shards, the path of the index, or the path that was
            saved to.
        num_threads: the most native threads. The default is the number of cores of this
            process, at most 8.
        deep: whether to check more than checksums: files without a checksum are read to
            their end, entries of archives are compared with the CRC-32 of the zip format,
            and the instructions of pickles are parsed, without running them.
        pbar: whether to show a progress bar.

    Raises:
        OSError: the save does not exist, or cannot be read.
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
    """Compute the checksums of a saved directory or archive again, from its present bytes.

    Call it when a dataset is finished that was created with
    :meth:`~tensordict.TensorDictBase.memmap_like`, or changed through its mapping. From then on
    :func:`verify` compares with the present bytes.

    Args:
        path: the directory or archive. The call writes checksums and times of files, and
            nothing else. An archive without checksums gets those of the zip format only.
        num_threads: see :func:`verify`.
        pbar: whether to show a progress bar.

    Returns:
        The number of files, or entries of the archive, with a checksum.

    Raises:
        OSError: a file is missing, too short, or cannot be read.
        ValueError: the save has another layout, whose files contain their checksums.

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
