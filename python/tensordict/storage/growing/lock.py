"""One writer at a time in a directory that grows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref

__all__ = ["LOCK_FILE", "WriterLock"]

LOCK_FILE = ".tensordict-writer.lock"

MSG_TAKEN = (
    "Another writer has {} open. Give each process a part of its own: DatasetWriter(path, "
    "part=...)."
)

_HELD: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """The lock of a directory, until it is released or the process ends.

    Args:
        directory: the directory.
        waits: whether another writer is waited for.

    Raises:
        RuntimeError: another writer has it.
    """

    def __init__(self, directory: str, waits: bool) -> None:
        self.path: str = os.path.join(directory, LOCK_FILE)
        self.is_of_parent = False
        self.is_brief = waits
        if waits and any(
            not each.is_brief and each._is_at(self.path) for each in _HELD
        ):
            # The writer of this process would be waited for without end.
            raise RuntimeError(MSG_TAKEN.format(directory))
        while True:
            descriptor = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
            how = fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB)
            try:
                fcntl.flock(descriptor, how)
            except BlockingIOError:
                os.close(descriptor)
                raise RuntimeError(MSG_TAKEN.format(directory)) from None
            except OSError:
                # A file system without locks: there writers are on their own.
                pass
            if self._is_current(descriptor):
                break
            os.close(descriptor)
        self._descriptor: int | None = descriptor
        _HELD.add(self)

    def release(self) -> None:
        """Let others write."""
        if self._descriptor is not None:
            if not self.is_of_parent:
                # While it is held: who waits for it looks whether it is still there.
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
                with contextlib.suppress(OSError):
                    # Closing alone would leave it to a child that was forked meanwhile.
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None
            _HELD.discard(self)

    def _is_at(self, path: str) -> bool:
        """Return whether it is the lock in this file."""
        return self._descriptor is not None and os.path.realpath(
            path
        ) == os.path.realpath(self.path)

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False


def _after_fork() -> None:
    """Leave the locks to the parent: a child that lives longer must not hold them."""
    for lock in list(_HELD):
        lock.is_of_parent = True
        lock.release()


os.register_at_fork(after_in_child=_after_fork)
