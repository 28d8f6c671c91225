"""Files and directories of an opened save, with the methods of a path that loaders use.

A save is opened once, as a directory or an archive, and all that is read by it is of
this one save, also where another takes its place meanwhile.
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
    "nor is it a safetensors or a consolidated file, unless one that was cut off."
)
MSG_NO_ARCHIVE = (
    "{} is a file but not a memory-mapped tensordict archive (expected a zip file with a "
    "top-level meta.json entry)."
)
MSG_REPLACED = "The save at {} is replaced faster than it can be loaded: load it while nobody saves."

_MAX_ATTEMPTS = 1000
"""The number of times that a save that is replaced while it is read is opened again."""


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
        """Return whether the save is one file."""
        return isinstance(self.save, _rust.Archive)

    @property
    def directory(self) -> Path | None:
        """The directory that can get further files; None in an archive."""
        return None if self.is_archived else self.root / self.full_name

    def exists(self) -> bool:
        """Return whether there is such a file, or a saved collection."""
        return self.save.has(self.full_name) or self.save.has(
            (self / "meta.json").full_name
        )

    def read_bytes(self) -> bytes:
        """The bytes of a file.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.save.read(self.full_name)

    def read_text(self, encoding: str = "utf-8") -> str:
        """The text of a file."""
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "r", encoding: str = "utf-8") -> Any:
        """The content of a file for reading."""
        if "b" in mode:
            return io.BytesIO(self.read_bytes())
        return io.StringIO(self.read_text(encoding))


def subpath_parts(subpath: object) -> Sequence[str]:
    """The keys of a subpath, given as a tuple or with slashes.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(subpath, str):
        return subpath.split("/")
    parts = _rust.unravel_key_to_tuple(subpath)
    if not parts:
        raise ValueError(
            "subpath must be a string path or a (nested) tuple of strings."
        )
    return parts


def nested_at(loaded: Any, path: str | Path, options: LoadOptions) -> Any:
    """Return the part of a loaded file that was asked for, on the device asked for.

    Raises:
        ValueError: there is no collection at the subpath.
    """
    if options.subpath is not None:
        loaded = _below(loaded, options.subpath, path)
    return loaded if options.device is None else loaded.to(options.device)


def _below(loaded: CollectionProtocol, subpath: object, path: str | Path) -> Any:
    """The nested collection at a key, given as a tuple or with slashes."""
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
    """An entry; a member of a lazy stack is at its number, as in a directory."""
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
    """Call ``load`` on a save so that all it reads is from one and the same.

    Where another save takes its place before all was read, ``load`` is called again.

    Args:
        prefix: the directory or archive.
        mode: as for :meth:`load_memmap`.
        load: reads the save by the path that it is given.
        by_name: whether it looks at files by their names, too.

    Raises:
        OSError: there is no save.
        ValueError: it is a file and no archive.
        RuntimeError: the save was replaced again and again.
    """
    for _ in range(_MAX_ATTEMPTS):
        try:
            save = _open(prefix, mode)
        except FileNotFoundError as error:
            _say_that_nothing_is_there(error, prefix)
            raise
        try:
            loaded = load(SavedPath(save, Path(prefix)))
        except Exception as error:
            if not save.was_replaced(False):
                _say_that_nothing_is_there(error, prefix)
                if isinstance(error, RuntimeError) and kind_of(prefix) == "step":
                    raise ValueError(
                        f"{prefix} is not a save. {explain(prefix)}"
                    ) from None
                raise
            continue
        if not (save.was_replaced(True) or (by_name and not save.is_current())):
            return loaded
    raise RuntimeError(MSG_REPLACED.format(prefix))


def _say_that_nothing_is_there(error: Exception, prefix: str | Path) -> None:
    """Say in the error of a missing file that there is no save, if it is its first file.

    Where the name is that of a file, that is what is missing, and no file in it.
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
