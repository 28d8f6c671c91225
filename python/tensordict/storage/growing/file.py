"""A file that is written at its end, with positioned writes and room set aside."""

from __future__ import annotations

import os
from typing import Any, Final

__all__ = ["GrowingFile"]

BUFFER_BYTES: Final = 1 << 18
"""Up to this many bytes wait in memory, so that a short row is no system call."""

MOST_AHEAD: Final = 1 << 28
"""The most room that is set aside at once."""

NO_ROOM_FROM: Final = 1 << 23
"""Room is set aside from this size on: a small file needs none."""

MSG_SHORT = (
    "{} has {} bytes, and the rows that its metadata counts need {}: it was cut."
)


class GrowingFile:
    """The file of a column, or of its table of shapes.

    Args:
        path: where it is. It is made when there are bytes for it.
        size: how many of its bytes are rows. Those behind were never published, and are
            written over.
        stays_open: whether its descriptor is kept between writes.
        has_room: whether room is set aside for rows to come.
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
        """Write bytes behind those that are there; short ones a little later."""
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
        """Add an array without gaps, in fewer steps where it is short."""
        size = data.nbytes
        if not size or len(self._buffer) + size > BUFFER_BYTES:
            self.add(data)
            return
        self._buffer += data.data
        self.size += size

    def write_out(self) -> None:
        """Write what waits in memory."""
        if self._buffer:
            # Kept until it is written: a full disk can get room, and be tried again.
            self._write(memoryview(bytes(self._buffer)))
            self._buffer.clear()

    def skip(self, num_bytes: int) -> None:
        """Count bytes that are not in this file, behind all that were written."""
        self.write_out()
        self.size += num_bytes
        self._written = self.size

    def reserve(self, num_bytes: int) -> None:
        """Set room aside for so many bytes in all.

        Raises:
            OSError: there is no such room.
        """
        if num_bytes <= self._room or not hasattr(os, "posix_fallocate"):
            return
        os.posix_fallocate(self._opened(), 0, num_bytes)
        self._room = num_bytes
        self._end_on_disk = max(self._end_on_disk, num_bytes)

    def cut_to(self, size: int) -> None:
        """Forget the bytes from ``size`` on: of rows of which not all could be written."""
        if size < self._written:
            self._written = size
            self._buffer.clear()
        else:
            del self._buffer[size - self._written :]
        self.size = size

    def sync(self) -> None:
        """Have the disk hold what was written."""
        if self._is_unsynced:
            os.fsync(self._opened())
            self._is_unsynced = False
            self._let_go()

    def close(self) -> None:
        """Give back the room that no row needs, and the descriptor."""
        if self._end_on_disk > self.size:
            os.ftruncate(self._opened(), self.size)
        self.forget()

    def forget(self) -> None:
        """Close the descriptor, and leave the file as it is."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def check_size(self) -> None:
        """Refuse a file that is shorter than what it should hold.

        Raises:
            RuntimeError: it is.
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
                # Without room for more there may be enough for this.
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
            # A link out of the directory is not followed.
            flags |= getattr(os, "O_NOFOLLOW", 0)
            self._descriptor = os.open(self.path, flags, 0o666)
        return self._descriptor

    def _let_go(self) -> None:
        if not self.stays_open:
            self.forget()
