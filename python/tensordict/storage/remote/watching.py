"""Tell which files of some folders somebody wrote to, by the `inotify` of the system."""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Watch"]

_MODIFY: Final = 0x2
_DELETE: Final = 0x200
_OVERFLOW: Final = 0x4000
_EVENT: Final = struct.Struct("iIII")
_BYTES: Final = 64 << 10


class Watch:
    """The folders that are watched.

    Raises:
        OSError: the system watches no more, or none at all.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "file").write_bytes(b"some")
        >>> watch = Watch()
        >>> number = watch.add(folder)
        >>> watch.changed()
        []
        >>> _ = (folder / "file").write_bytes(b"other")
        >>> set(watch.changed()) == {(number, "file")}
        True
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "inotify_init1"):
            raise OSError("This system does not tell of changes of files.")
        self._library = library
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor: int = self._checked(library.inotify_init1(flags))
        weakref.finalize(self, os.close, self._descriptor)

    def _checked(self, found: int) -> int:
        if found < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return found

    def add(self, folder: Path) -> int:
        """Watch a folder, and return the number that its changes have.

        Raises:
            OSError: it cannot be watched.
        """
        call = self._library.inotify_add_watch
        found = call(self._descriptor, os.fsencode(folder), _MODIFY | _DELETE)
        return self._checked(found)

    def changed(self) -> list[tuple[int, str]] | None:
        """Return the files that changed or went since the last call; None: any may have."""
        found: list[tuple[int, str]] = []
        while True:
            try:
                content = os.read(self._descriptor, _BYTES)
            except BlockingIOError:
                return found
            except OSError:
                return None
            at = 0
            while at < len(content):
                number, mask, _, length = _EVENT.unpack_from(content, at)
                at += _EVENT.size
                if mask & _OVERFLOW:
                    return None
                name = content[at : at + length].rstrip(b"\0")
                found.append((number, os.fsdecode(name)))
                at += length
