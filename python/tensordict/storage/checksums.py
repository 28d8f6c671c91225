"""Comparing saves with the sums that were taken when they were written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from tensordict import _rust
from tensordict.primitives.deprecation import warn_caller
from tensordict.storage.foreign import MSG_NO_LAYOUT, explain
from tensordict.storage.future import with_bar
from tensordict.storage.paths import subpath_parts

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Finding", "Report", "check_loaded", "check_undamaged", "seal", "verify"]

DAMAGED = "damaged"
MSG_SEAL = (
    "{} is a {} file, whose sums are part of it: only directories and archives are "
    "sealed. `tensordict convert --force` writes a file again."
)
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


def verify(
    path: str | Path,
    num_threads: int = 0,
    *,
    deep: bool = False,
    pbar: bool = False,
) -> Report:
    """Read the files of a save and compare them with their sums.

    Nothing is raised where files are damaged: the report says it. Tensors that were
    filled through their mapping are *modified since the save*, and not damaged.

    Args:
        path: the save, of any layout; of shards the name of their index, or the one
            that was saved to.
        num_threads: the most native threads. Default: the cores of this process, at
            most 8.
        deep: whether what no sum of ours covers is looked at, too: files without a sum
            are read to their end, entries of archives are compared with the CRC-32 that
            other tools go by, and pickles are gone through, without running them.
        pbar: whether a progress bar is shown.

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
    progress = _rust.SaveProgress()

    def work() -> Report:
        return _verified(path, num_threads, deep, progress)

    report = with_bar(work, progress, "verifying") if pbar else work()
    if deep and report.layout in ("tree", "archive"):
        looked_at = [_with_pickle_looked_at(each, path) for each in report.findings]
        return report._replace(findings=looked_at)
    return report


def _with_pickle_looked_at(finding: Finding, path: str | Path) -> Finding:
    """The same, or that a pickle which nothing else is wrong with cannot be loaded."""
    is_pickle = os.path.basename(finding.path) in ("other.pickle", "pickle.pkl")
    if not is_pickle or finding.outcome not in ("good", "unchecked"):
        return finding
    import pickletools
    import zipfile

    try:
        if os.path.isdir(path):
            with open(finding.path, "rb") as file:
                text = file.read()
        else:
            with zipfile.ZipFile(path) as archive:
                text = archive.read(finding.path.partition("::/")[2])
        # The instructions are read and not followed.
        for _ in pickletools.genops(text):
            pass
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        detail = f"it is no whole pickle: {error}"
        entry = f"the entry {finding.key} " if finding.key else ""
        line = f"{entry}('{finding.path}') is damaged: {detail}"
        return finding._replace(outcome=DAMAGED, detail=detail, line=line)
    return finding


def seal(path: str | Path, num_threads: int = 0, *, pbar: bool = False) -> int:
    """Take the sums of a saved directory, or an archive, as it is now.

    For a dataset that was made with :meth:`~tensordict.TensorDictBase.memmap_like`, or
    changed through its mapping, and is finished: from now on :func:`verify` compares
    with what is there today.

    Args:
        path: the directory or archive. Nothing but the sums, and the times of files,
            is written. An archive that was made without sums has those of its entries.
        num_threads: as for :func:`verify`.
        pbar: whether a progress bar is shown.

    Returns:
        How many files, or entries, have a sum.

    Raises:
        OSError: a file is missing, too short, or cannot be read.
        ValueError: it is a save of another layout, which has its sums from being saved.

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
    from tensordict.storage import single
    from tensordict.storage.layouts.archive import is_memmap_archive

    layout = single.layout_of(path)
    if layout is not None:
        raise ValueError(MSG_SEAL.format(path, layout))
    is_archive = is_memmap_archive(path)
    if not is_archive and os.path.isfile(path):
        raise ValueError(f"{path} is no save. {explain(path) or MSG_NO_LAYOUT}")
    seal_it = _rust.refresh_archive if is_archive else _rust.seal_tree
    progress = _rust.SaveProgress()

    def work() -> int:
        return seal_it(os.fspath(path), max(0, num_threads), progress)

    return with_bar(work, progress, "sealing") if pbar else work()


def check_loaded(path: str | Path, num_threads: int, subpath: Any = None) -> None:
    """Refuse a damaged save, and warn of one that was modified: ``verify=True``."""
    report = check_undamaged(path, num_threads, subpath)
    changes = report.lines(*CHANGED)
    if changes:
        warn_caller("\n".join(changes), UserWarning)


def check_undamaged(path: str | Path, num_threads: int, subpath: Any = None) -> Report:
    """Refuse a damaged save: for copies into memory, which nothing else looks at.

    Of a save of which only what is at ``subpath`` is loaded, only that is read.
    """
    report = _report_on(path, num_threads, subpath)
    damages = report.lines(DAMAGED)
    if damages:
        raise RuntimeError("\n".join(damages))
    return report


def _report_on(path: str | Path, num_threads: int, subpath: Any) -> Report:
    if subpath is not None:
        progress = _rust.SaveProgress()
        part = [key for key in subpath_parts(subpath) if key]
        report = _verified(path, num_threads, False, progress, part)
        # Names of files may be written in other ways than the keys.
        if any(finding.key for finding in report.findings):
            return report
    return verify(path, num_threads)


def _verified(
    path: str | Path,
    num_threads: int,
    deep: bool,
    progress: _rust.SaveProgress,
    part: list[str] | None = None,
) -> Report:
    from tensordict.storage.layouts import safetensors

    place = safetensors.index_of(path) or os.fspath(path)
    threads = max(0, num_threads)
    layout, generation, found = _rust.verify_save(place, threads, deep, progress, part)
    findings = [Finding(key, os.fspath(file), *words) for key, file, *words in found]
    return Report(layout, generation, findings)
