"""The interface of layouts on disk.

:mod:`tensordict.storage.layouts` holds the table of all layouts, and finds the layout of a save. A
new layout is a module with a class that derives from :class:`Layout`, and a line in that table.
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
    from typing import NoReturn

    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.storage.layouts import LoadOptions, SaveOptions

__all__ = ["CHANGED", "DAMAGED", "Entry", "Finding", "Layout", "Report", "short"]

DAMAGED = "damaged"
CHANGED = ("modified since the save", "changed or damaged")

MSG_CUT_OFF = "the end of the file is missing: it was cut off"
MSG_LIKE = (
    "memmap_like writes a directory, or an archive whose name ends with '.tdz', but {!r} is "
    "the name of a {} file."
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
    """The class of a collection. For non-tensor data, the value or the place of the value."""
    problem: str = ""
    """The problem of the entry; empty if there is none."""


class Finding(NamedTuple):
    """The result of :func:`verify` for one file, or for one entry in a file."""

    key: str
    """The entry as messages show it: ``'a'`` or ``('n', 'a')``. Empty for metadata."""
    path: str
    outcome: str
    """One of ``good``, ``damaged``, ``modified since the save``, ``changed or damaged`` (the
    file system cannot tell which), ``unchecked`` (no checksum)."""
    detail: str
    """The problem in words, empty if there is none."""
    line: str
    """The finding as a sentence."""


class Report(NamedTuple):
    """The result of :func:`verify`."""

    layout: str
    """The name of the layout, such as ``tree`` or ``archive``."""
    generation: str
    """A text that identifies this save, empty if it has no checksums."""
    findings: list[Finding]

    def lines(self, *outcomes: str) -> list[str]:
        """Return the sentences on the files with one of these outcomes."""
        return [found.line for found in self.findings if found.outcome in outcomes]

    @property
    def is_damaged(self) -> bool:
        """Whether any file is damaged."""
        return bool(self.lines(DAMAGED))


class Layout(ABC):
    """A layout on disk: it recognizes, writes, loads and inspects saves."""

    name: ClassVar[str]
    """The name in commands and reports."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """The suffixes of paths that choose the layout for a new save."""

    def is_named(self, path: object) -> bool:
        """Return whether a new save at this path gets this layout."""
        return str(path).endswith(self.suffixes)

    def chosen_by(
        self, td: CollectionProtocol, path: object, options: SaveOptions
    ) -> bool:
        """Return whether a save of ``td`` gets this layout. By default the suffix decides.

        Without ``path``, the path of the last save of ``td`` decides.
        """
        path = td._memmap_prefix if path is None else path
        return not options.archive and not options.inplace and self.is_named(path)

    @abstractmethod
    def matches(self, path: str | Path) -> bool:
        """Return whether the file or directory at ``path`` is in this layout."""

    def was_cut_off(self, path: str | Path) -> bool:
        """Return whether a file that matches no layout begins as a file of this layout."""
        return False

    @abstractmethod
    def save(self, td: CollectionProtocol, path: object, options: SaveOptions) -> Any:
        """Write ``td``; return the collection over the save, or a future of it."""

    def make_like(
        self, td: CollectionProtocol, prefix: object, options: SaveOptions
    ) -> NoReturn:
        """Save zeros with the shapes of ``td``. They take no disk space until written to.

        Raises:
            ValueError: the layout does not support it.
        """
        raise ValueError(MSG_LIKE.format(prefix, self.name))

    @abstractmethod
    def load(self, path: str | Path, options: LoadOptions, out: object = None) -> Any:
        """Load the save as a collection whose entries can replace those of ``out``."""

    @abstractmethod
    def inspect(self, path: str) -> Iterator[Entry]:
        """Yield the entries of the save, read from its metadata alone."""

    def verify(
        self,
        path: str | Path,
        num_threads: int,
        deep: bool,
        progress: _rust.SaveProgress,
        part: list[str] | None = None,
    ) -> Report:
        """Compare the files, or only the files of the key ``part``, with their checksums.

        A layout without checksums reports the result of :meth:`inspect` for its tensors.
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
        """Compute the checksums again; return the number of files.

        Raises:
            ValueError: the checksums are part of the files of this layout.
        """
        raise ValueError(MSG_SEAL.format(path, self.name))

    def check_before(self, path: str | Path, options: LoadOptions, out: object) -> None:
        """Check a file before loading, if ``verify`` is set or its values are copied.

        Raises:
            RuntimeError: the file is damaged.
        """
        if options.verify:
            self.check_loaded(path, options.num_threads, options.subpath)
        elif options.is_moved or gets_copies(out):
            self.check_undamaged(path, options.num_threads, options.subpath)

    def check_loaded(
        self, path: str | Path, num_threads: int, subpath: object = None
    ) -> None:
        """Raise if a save is damaged; warn if it was modified: ``verify=True``."""
        report = self.check_undamaged(path, num_threads, subpath)
        changes = report.lines(*CHANGED)
        if changes:
            warn_caller("\n".join(changes), UserWarning)

    def check_undamaged(
        self, path: str | Path, num_threads: int, subpath: object = None
    ) -> Report:
        """Raise if a save is damaged: a copy into memory has no later check.

        With ``subpath``, only the files below it are read.
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
            # Without a finding, the names of files may differ from the keys: check all.
            if any(finding.key for finding in report.findings):
                return report
        return self.verify(path, num_threads, False, progress)


class NativeLayout(Layout):
    """A layout whose checksums the Rust engine verifies."""

    def verify(
        self,
        path: str | Path,
        num_threads: int,
        deep: bool,
        progress: _rust.SaveProgress,
        part: list[str] | None = None,
    ) -> Report:
        """Compare the files, or only the files of the key ``part``, with their checksums."""
        threads, place = max(0, num_threads), os.fspath(path)
        layout, generation, found = _rust.verify_save(
            place, threads, deep, progress, part
        )
        findings = [
            Finding(key, os.fspath(file), *words) for key, file, *words in found
        ]
        return Report(layout, generation, findings)


def short(value: object) -> str:
    """Return a value as text of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
