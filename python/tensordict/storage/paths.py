"""Paths in an opened save, with the methods of ``pathlib.Path`` that loaders call.

A save is opened once, as a directory or an archive. All reads through it read the same save, even if
another process replaces the save meanwhile.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.foreign import explain, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.storage.layouts import LoadOptions

__all__ = ["SavedPath", "from_one_save", "nested_at", "subpath_parts"]

MSG_NO_FILE = (
    "nor is it a safetensors or a consolidated file, unless its end was cut off."
)
MSG_NO_ARCHIVE = (
    "{} is a file but not a memory-mapped tensordict archive (expected a zip file with a "
    "top-level meta.json entry)."
)
MSG_REPLACED = (
    "The save at {} is replaced faster than it can be loaded: load it while no process "
    "saves to this path."
)

_MAX_ATTEMPTS = 1000
"""The most attempts to load a save that other processes replace meanwhile."""


class SavedPath:
    """A directory or file in an opened save.

    Args:
        save: the opened directory or archive.
        root: its path, as the caller named it.
        name: the path in it, with ``/`` between the parts. Empty for the top.
    """

    def __init__(
        self, save: _rust.Archive | _rust.Directory, root: Path, name: str = ""
    ) -> None:
        self.save = save
        self.root = root
        self.full_name = name

    def __truediv__(self, part: str) -> SavedPath:
        name = f"{self.full_name}/{part}" if self.full_name else part
        return SavedPath(self.save, self.root, name)

    def __str__(self) -> str:
        if self.is_archived:
            return f"{self.root}::{self.full_name}"
        return str(self.root / self.full_name)

    def __repr__(self) -> str:
        return f"SavedPath({str(self)!r})"

    @property
    def is_archived(self) -> bool:
        """Whether the save is an archive."""
        return isinstance(self.save, _rust.Archive)

    @property
    def directory(self) -> Path | None:
        """The directory, in which files can be created; None in an archive."""
        return None if self.is_archived else self.root / self.full_name

    def exists(self) -> bool:
        """Return whether the path is a file, or the directory of a saved collection."""
        return self.save.has(self.full_name) or self.save.has(
            (self / "meta.json").full_name
        )

    def read_bytes(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        return self.save.read(self.full_name)

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the text of the file."""
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "r", encoding: str = "utf-8") -> Any:
        """Open the file for reading."""
        if "b" in mode:
            return io.BytesIO(self.read_bytes())
        return io.StringIO(self.read_text(encoding))


def subpath_parts(subpath: object) -> Sequence[str]:
    """Return the keys of a subpath: a tuple, or a string with slashes.

    Raises:
        ValueError: the subpath is neither of them.
    """
    if isinstance(subpath, str):
        return subpath.split("/")
    parts = _rust.unravel_key_to_tuple(subpath)
    if not parts:
        raise ValueError(
            "subpath must be a string path or a (nested) tuple of strings."
        )
    return parts


def nested_at(
    loaded: Any, path: str | Path, options: LoadOptions
) -> CollectionProtocol:
    """Return the collection at the subpath of the options, on the device of the options.

    Raises:
        ValueError: there is no collection at the subpath.
    """
    if options.subpath is not None:
        loaded = _below(loaded, options.subpath, path)
    return loaded if options.device is None else loaded.to(options.device)


def _below(
    loaded: CollectionProtocol, subpath: object, path: str | Path
) -> CollectionProtocol:
    """Return the nested collection at a key: a tuple, or a string with slashes."""
    below = loaded
    for part in subpath_parts(subpath):
        if part:
            below = _entry(below, part)
            if not isinstance(below, CollectionProtocol):
                raise ValueError(
                    f"No tensordict found under subpath {subpath!r} of {path}."
                )
    return below


def _entry(td: CollectionProtocol, key: str) -> Any:
    """Return an entry. The key of a member of a lazy stack is its number, as in a directory."""
    members = td.__dict__.get("tensordicts")
    if members is not None and key.isdecimal() and int(key) < len(members):
        return members[int(key)]
    return td._get_entry(key, None)


def from_one_save(
    prefix: str | Path,
    mode: str | None,
    load: Callable[[SavedPath], Any],
    *,
    by_name: bool = False,
) -> Any:
    """Call ``load`` so that all bytes that it reads are of one save.

    If another process replaces the save meanwhile, ``load`` is called again.

    Args:
        prefix: the directory or archive.
        mode: see :meth:`load_memmap`.
        load: a function that loads the save at the path that is its argument.
        by_name: whether ``load`` also opens files by their names.

    Raises:
        OSError: the save does not exist.
        ValueError: ``prefix`` is a file, but not an archive.
        RuntimeError: the save was replaced during every attempt.
    """
    for _ in range(_MAX_ATTEMPTS):
        try:
            save = _open(prefix, mode)
        except FileNotFoundError as error:
            _explain_missing(error, prefix)
            raise
        try:
            loaded = load(SavedPath(save, Path(prefix)))
        except Exception as error:
            if not save.was_replaced(False):
                _explain_missing(error, prefix)
                if isinstance(error, RuntimeError) and kind_of(prefix) == "step":
                    raise ValueError(
                        f"{prefix} is not a save. {explain(prefix)}"
                    ) from None
                raise
            continue
        if not (save.was_replaced(True) or (by_name and not save.is_current())):
            return loaded
    raise RuntimeError(MSG_REPLACED.format(prefix))


def _explain_missing(error: Exception, prefix: str | Path) -> None:
    """Add to the error that there is no save, if ``meta.json`` or the path is missing.

    If the path looks like the name of a file, the error names the path instead of
    ``meta.json``.
    """
    path = os.path.abspath(prefix)
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        missing = os.path.abspath(error.filename)
        if missing in (path, os.path.join(path, "meta.json")):
            error.strerror = f"{error.strerror}: there is no save in {path}"
            if os.path.splitext(path)[1] and not os.path.lexists(path):
                error.filename = path
            if explanation := explain(path):
                error.strerror += f". {explanation} It lacks"


def _open(prefix: str | Path, mode: str | None) -> _rust.Archive | _rust.Directory:
    path = os.path.abspath(prefix)
    if not os.path.isfile(path):
        return _rust.Directory(path, mode)
    try:
        return _rust.Archive(path, mode)
    except ValueError as error:
        if mode not in (None, "r", "r+"):
            raise
        reason = explain(prefix) or f"{error}; {MSG_NO_FILE}"
        message = f"{MSG_NO_ARCHIVE.format(prefix)} {reason}"
        raise ValueError(message) from None
