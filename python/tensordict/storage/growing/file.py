"""A file that grows at its end: buffered writes, and disk space reserved ahead."""

from __future__ import annotations

import os
from typing import Any, Final

__all__ = ["GrowingFile"]

BUFFER_BYTES: Final = 1 << 18
"""The size of the buffer. It saves a system call for each short row."""

MOST_AHEAD: Final = 1 << 28
"""The most bytes to reserve ahead at once."""

NO_ROOM_FROM: Final = 1 << 23
"""The size of a file from which space is reserved ahead."""

MSG_SHORT = (
    "{} has {} bytes, but the rows that its metadata counts need {}: it was cut off."
)


class GrowingFile:
    """The file of a column, or of its table of shapes.

    Args:
        path: the path. The file is created with the first bytes.
        size: the bytes of published rows. Bytes behind them are overwritten.
        stays_open: whether to keep the descriptor open between writes.
        has_room: whether to reserve disk space for later rows.
    """

    def __init__(
        self,
        path: str,
        size: int,
        stays_open: bool = True,
        has_room: bool = True,
    ) -> None:
        self.path = path
        self.size: int = size
        self.stays_open = stays_open
        self.has_room = has_room
        self._written = size
        self._buffer = bytearray()
        self._room = 0
        self._end_on_disk = 0
        self._descriptor: int | None = None
        self._is_unsynced = False

    def add(self, data: Any) -> None:
        """Append bytes. Short data is buffered."""
        data = memoryview(data)
        if not data.nbytes:
            # A view with a dim of size 0 cannot be cast to bytes.
            return
        if data.format != "B" or data.ndim != 1:
            data = data.cast("B")
        self.size += len(data)
        if len(self._buffer) + len(data) <= BUFFER_BYTES:
            self._buffer += data
            return
        self.write_out()
        self._write(data)

    def add_short(self, data: Any) -> None:
        """Append a contiguous array. This is faster than :meth:`add` if the array is short."""
        size = data.nbytes
        if not size or len(self._buffer) + size > BUFFER_BYTES:
            self.add(data)
            return
        self._buffer += data.data
        self.size += size

    def write_out(self) -> None:
        """Write the buffered bytes."""
        if self._buffer:
            # The buffer is cleared after the write: if the disk is full, a later attempt
            # may succeed.
            self._write(memoryview(bytes(self._buffer)))
            self._buffer.clear()

    def skip(self, num_bytes: int) -> None:
        """Count bytes that follow the written bytes, but are stored in another place."""
        self.write_out()
        self.size += num_bytes
        self._written = self.size

    def reserve(self, num_bytes: int) -> None:
        """Reserve disk space for ``num_bytes`` bytes in all.

        Raises:
            OSError: the disk does not have the space.
        """
        if num_bytes <= self._room or not hasattr(os, "posix_fallocate"):
            return
        os.posix_fallocate(self._opened(), 0, num_bytes)
        self._room = num_bytes
        self._end_on_disk = max(self._end_on_disk, num_bytes)

    def cut_to(self, size: int) -> None:
        """Remove the bytes from ``size`` on, after an error in the middle of some rows."""
        if size < self._written:
            self._written = size
            self._buffer.clear()
        else:
            del self._buffer[size - self._written :]
        self.size = size

    def sync(self) -> None:
        """Wait until the written bytes are on the disk."""
        if self._is_unsynced:
            os.fsync(self._opened())
            self._is_unsynced = False
            self._let_go()

    def close(self) -> None:
        """Free the reserved space that no row uses, and close the descriptor."""
        if self._end_on_disk > self.size:
            os.ftruncate(self._opened(), self.size)
        self.forget()

    def forget(self) -> None:
        """Close the descriptor, and leave the file unchanged."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def check_size(self) -> None:
        """Raise if the file is shorter than its rows need.

        Raises:
            RuntimeError: the file is shorter.
        """
        try:
            self._end_on_disk = os.stat(self.path).st_size
        except FileNotFoundError:
            self._end_on_disk = 0
        if self._end_on_disk < self.size:
            found = self._end_on_disk
            raise RuntimeError(MSG_SHORT.format(self.path, found, self.size))

    def _write(self, data: memoryview) -> None:
        descriptor = self._opened()
        end = self._written + len(data)
        if self.has_room and end > max(self._room, NO_ROOM_FROM):
            try:
                self.reserve(end + min(end, MOST_AHEAD))
            except OSError:
                # The disk may have enough space for these bytes, but not for more.
                self._room = 0
        at = self._written
        self._end_on_disk = max(self._end_on_disk, end)
        while data:
            count = os.pwrite(descriptor, data, at)
            data, at = data[count:], at + count
        self._written = at
        self._is_unsynced = True
        self._let_go()

    def _opened(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            # Do not follow a symbolic link, which could lead out of the directory.
            flags |= getattr(os, "O_NOFOLLOW", 0)
            self._descriptor = os.open(self.path, flags, 0o666)
        return self._descriptor

    def _let_go(self) -> None:
        if not self.stays_open:
            self.forget()
