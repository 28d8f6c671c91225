"""Define what a layout on disk is asked, and what it answers with.

:mod:`tensordict.storage.layouts` has the table of all layouts, and finds the one of a
save. A new one is a file with a class that derives from :class:`Layout`, and a line in
that table.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tensordict import _rust
from tensordict.primitives.deprecation import warn_caller
from tensordict.storage.paths import subpath_parts
from tensordict.storage.read_into_memory import gets_copies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.storage.layouts import LoadOptions, SaveOptions

__all__ = ["CHANGED", "DAMAGED", "Entry", "Finding", "Layout", "Report", "short"]

DAMAGED = "damaged"
CHANGED = ("modified since the save", "changed or damaged")

MSG_CUT_OFF = "the end of the file is missing: it was cut off"
MSG_LIKE = (
    "memmap_like makes a directory, or an archive with a name that ends with '.tdz', and {!r} "
    "is the name of a save in {}."
)
MSG_UNCHECKED = "there is no checksum to compare it with"
MSG_SEAL = (
    "{} is a {} file, whose checksums are part of it: only directories and archives are "
    "sealed. `tensordict convert --force` writes a file again."
)


class Entry(NamedTuple):
    """An entry of a save."""

    key: tuple[str, ...]
    kind: str
    """``tensor``, ``collection`` or ``value``."""
    dtype: str | None = None
    shape: list[int] | None = None
    num_bytes: int = 0
    note: str = ""
    """The class of a collection, or of non-tensor data the value or the place where it
    is kept."""
    problem: str = ""
    """The problem of the entry; empty if there is none."""


class Finding(NamedTuple):
    """The result of :func:`verify` for one file, or for an entry's part of one."""

    key: str
    """The entry as messages show it: ``'a'`` or ``('n', 'a')``. Empty for metadata."""
    path: str
    outcome: str
    """One of ``good``, ``damaged``, ``modified since the save``, ``changed or damaged``
    (where the file system does not tell the two apart), ``unchecked`` (no checksum)."""
    detail: str
    """The problem in words; empty if there is none."""
    line: str
    """All of this in a sentence."""


class Report(NamedTuple):
    """The result of :func:`verify`."""

    layout: str
    """``tree``, ``archive``, or another of the layouts."""
    generation: str
    """The text that tells this save from others; empty if no checksums were taken."""
    findings: list[Finding]

    def lines(self, *outcomes: str) -> list[str]:
        """The sentences on the files with one of these outcomes."""
        return [found.line for found in self.findings if found.outcome in outcomes]

    @property
    def is_damaged(self) -> bool:
        """Return whether any file is."""
        return bool(self.lines(DAMAGED))


class Layout(ABC):
    """A layout on disk: how a save of it is recognized, written, loaded and looked into."""

    name: ClassVar[str]
    """The name in commands and reports."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """The ends of names that choose it for a new save."""

    def is_named(self, path: object) -> bool:
        """Return whether a new save of this name gets this layout."""
        return str(path).endswith(self.suffixes)

    def chosen_by(
        self, td: CollectionProtocol, path: object, options: SaveOptions
    ) -> bool:
        """Return whether a save of ``td`` gets this layout; by the name unless overridden.

        Without ``path`` it goes to where ``td`` was saved before.
        """
        path = td._memmap_prefix if path is None else path
        return not options.archive and not options.inplace and self.is_named(path)

    @abstractmethod
    def matches(self, path: str | Path) -> bool:
        """Return whether what is at ``path`` is in this layout, whatever its name."""

    def was_cut_off(self, path: str | Path) -> bool:
        """Return whether a file that matches no layout begins as one of this."""
        return False

    @abstractmethod
    def save(self, td: CollectionProtocol, path: object, options: SaveOptions) -> Any:
        """Write ``td``: the collection over what was written, or a future of it."""

    def make_like(
        self, td: CollectionProtocol, prefix: object, options: SaveOptions
    ) -> Any:
        """Save zeros of the shapes of ``td``, which take no space until they are stored to.

        Raises:
            ValueError: the layout has no files that can be stored to.
        """
        raise ValueError(MSG_LIKE.format(prefix, self.name))

    @abstractmethod
    def load(self, path: str | Path, options: LoadOptions, out: object = None) -> Any:
        """Make a collection of the save, with entries that ``out``, if given, can take."""

    @abstractmethod
    def inspect(self, path: str) -> Iterator[Entry]:
        """Describe the save from its metadata alone."""

    def verify(
        self,
        path: str | Path,
        num_threads: int,
        deep: bool,
        progress: _rust.SaveProgress,
        part: list[str] | None = None,
    ) -> Report:
        """Compare the files, or those at the keys of ``part``, with their checksums.

        A layout that keeps none has what :meth:`inspect` says of its tensors.
        """
        place = os.fspath(path)
        findings = []
        for entry in self.inspect(place):
            if entry.kind == "tensor" or entry.problem:
                key = repr(entry.key[0] if len(entry.key) == 1 else entry.key)
                outcome = DAMAGED if entry.problem else "unchecked"
                line = f"the entry {key} of '{place}': {entry.problem or MSG_UNCHECKED}"
                findings.append(Finding(key, place, outcome, entry.problem, line))
        return Report(self.name, "", findings)

    def seal(
        self, path: str | Path, num_threads: int, progress: _rust.SaveProgress
    ) -> int:
        """Take the checksums anew, and say of how many files.

        Raises:
            ValueError: the layout has its checksums from being saved.
        """
        raise ValueError(MSG_SEAL.format(path, self.name))

    def check_before(self, path: str | Path, options: LoadOptions, out: object) -> None:
        """Compare a file with its checksums where that was asked, or values are copied.

        Raises:
            RuntimeError: it is damaged.
        """
        if options.verify:
            self.check_loaded(path, options.num_threads, options.subpath)
        elif options.is_moved or gets_copies(out):
            self.check_undamaged(path, options.num_threads, options.subpath)

    def check_loaded(
        self, path: str | Path, num_threads: int, subpath: object = None
    ) -> None:
        """Refuse a damaged save, and warn of one that was modified: ``verify=True``."""
        report = self.check_undamaged(path, num_threads, subpath)
        changes = report.lines(*CHANGED)
        if changes:
            warn_caller("\n".join(changes), UserWarning)

    def check_undamaged(
        self, path: str | Path, num_threads: int, subpath: object = None
    ) -> Report:
        """Refuse a damaged save: for copies into memory, which nothing else looks at.

        Of a save of which only what is at ``subpath`` is loaded, only that is read.
        """
        report = self._report_on(path, num_threads, subpath)
        damages = report.lines(DAMAGED)
        if damages:
            raise RuntimeError("\n".join(damages))
        return report

    def _report_on(self, path: str | Path, num_threads: int, subpath: object) -> Report:
        progress = _rust.SaveProgress()
        if subpath is not None:
            part = [key for key in subpath_parts(subpath) if key]
            report = self.verify(path, num_threads, False, progress, part)
            # Names of files may be written in other ways than the keys.
            if any(finding.key for finding in report.findings):
                return report
        return self.verify(path, num_threads, False, progress)


class NativeLayout(Layout):
    """A layout that the engine verifies."""

    def verify(
        self,
        path: str | Path,
        num_threads: int,
        deep: bool,
        progress: _rust.SaveProgress,
        part: list[str] | None = None,
    ) -> Report:
        """Compare the files, or those at the keys of ``part``, with their checksums."""
        threads, place = max(0, num_threads), os.fspath(path)
        layout, generation, found = _rust.verify_save(
            place, threads, deep, progress, part
        )
        findings = [
            Finding(key, os.fspath(file), *words) for key, file, *words in found
        ]
        return Report(layout, generation, findings)


def short(value: object) -> str:
    """A value as a list of entries shows it, on one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
