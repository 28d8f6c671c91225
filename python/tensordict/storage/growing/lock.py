"""The lock of a growing directory: one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref

__all__ = ["LOCK_FILE", "WriterLock"]

LOCK_FILE = ".tensordict-writer.lock"

MSG_TAKEN = (
    "Another writer has {} open. Let each process write its own part: DatasetWriter(path, "
    "part=...)."
)

_HELD: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """The lock of a directory. It is held until :meth:`release`, or until the process ends.

    Args:
        directory: the directory.
        waits: whether to wait for another writer. Otherwise another writer is an error.

    Raises:
        RuntimeError: another writer holds the lock.
    """

    def __init__(self, directory: str, waits: bool) -> None:
        self.path: str = os.path.join(directory, LOCK_FILE)
        self.is_of_parent = False
        self.is_brief = waits
        if waits and any(
            not lock.is_brief and lock._is_at(self.path) for lock in _HELD
        ):
            # A writer of this process holds the lock: the wait would never end.
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
                # The file system has no locks. Nothing keeps writers apart there.
                pass
            if self._is_current(descriptor):
                break
            os.close(descriptor)
        self._descriptor: int | None = descriptor
        _HELD.add(self)

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            if not self.is_of_parent:
                # Delete the file while the lock is held: a waiting writer checks that the
                # file still exists.
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
                with contextlib.suppress(OSError):
                    # A child that was forked meanwhile holds the descriptor as well, so
                    # closing it here would not release the lock.
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None
            _HELD.discard(self)

    def _is_at(self, path: str) -> bool:
        """Return whether the lock is in this file."""
        return self._descriptor is not None and os.path.realpath(
            path
        ) == os.path.realpath(self.path)

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False


def _after_fork() -> None:
    """Leave the locks to the parent: a child that outlives it must not hold them."""
    for lock in list(_HELD):
        lock.is_of_parent = True
        lock.release()


os.register_at_fork(after_in_child=_after_fork)
