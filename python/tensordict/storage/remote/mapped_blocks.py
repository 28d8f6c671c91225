"""Blocks of an object that are mapped next to each other, as if the object were a file here."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tensordict import _rust

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict.storage.remote.segments import Segments

__all__ = ["BLOCK", "TAIL", "WORK", "MappedBlocks", "blocks_between", "tail_of"]

BLOCK: Final = 1 << 20

TAIL: Final = struct.Struct("<8sQI")
"""The end of a block file: magic bytes, the checksum of the block, and its size."""

WORK: Final = ".writing"
"""The end of the name of a file that somebody writes."""

_MAGIC: Final = b"tdblock2"
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_FREE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE

_NOTE_S: Final = 10.0
"""The use of a block is noted in its file once in so many seconds, and when some have to go."""

_Identity = tuple[int, int, int]


def blocks_between(
    starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any] | int
) -> np.ndarray[Any, Any]:
    """Return the numbers of the blocks that runs of bytes are in, in their order.

    Args:
        starts: the first byte of each run, one run at least.
        lengths: the bytes of each, 1 at least.

    Examples:
        >>> blocks_between(np.array([0, 5 * BLOCK - 1]), 2)
        array([0, 4, 5])
    """
    first = starts // BLOCK
    last = (starts + lengths - 1) // BLOCK
    is_wanted = np.zeros(int(last.max()) + 1, bool)
    for step in range(int((last - first).max()) + 1):
        is_wanted[np.minimum(first + step, last)] = True
    return np.flatnonzero(is_wanted)


def tail_of(data: np.ndarray[Any, Any]) -> bytes:
    """Return the end of the file of a block: magic bytes, checksum and size."""
    return TAIL.pack(_MAGIC, _checksum(data), len(data))


def _checksum(data: np.ndarray[Any, Any]) -> int:
    return _rust.tensor_digests([torch.from_numpy(data)], 1)[0]


class MappedBlocks:
    """Memory of the size of an object, over which the files of its blocks are mapped.

    A block that is in use may be deleted: it is read as before. One that somebody writes to or
    cuts is checked anew.

    Args:
        folder: has the files of the blocks.
        name: the prefix of their names.
        size: the bytes of the object.
        is_watched: whether :meth:`note_change` is told of changes. Else files are looked at
            before every read.
    """

    def __init__(
        self, folder: Path, name: str, size: int, *, is_watched: bool = False
    ) -> None:
        self.lock: threading.Lock = threading.Lock()
        """Held while blocks are read, so that no thread unmaps them."""
        self._name = f"{name}-"
        self._prefix = f"{folder}/{name}-"
        self._size = size
        # Pages that are touched nowhere else take no memory.
        self._region = mmap.mmap(-1, max(size, 1), flags=_FREE)
        self._memory: np.ndarray[Any, Any] = np.frombuffer(self._region, np.uint8)
        self.version: int = 0
        """Another number whenever a block that was mapped has changed, or is unmapped."""
        self._known: dict[int, _Identity] = {}
        """The files of the blocks that are mapped and were good."""
        self._is_watched = is_watched
        self._is_good: np.ndarray[Any, Any] = np.zeros(-(-size // BLOCK), bool)
        """The blocks that are mapped, and have not changed since."""
        self._used: np.ndarray[Any, Any] = np.zeros(-(-size // BLOCK))
        self._noted: np.ndarray[Any, Any] = self._used.copy()

    def __len__(self) -> int:
        return len(self._known)

    def is_complete(self) -> bool:
        """Return whether all blocks are mapped, and will be told of if they change."""
        return self._is_watched and bool(self._is_good.all())

    def has(self, blocks: np.ndarray[Any, Any]) -> bool:
        """Return the same of some blocks."""
        with self.lock:
            return self._is_watched and bool(self._is_good[blocks].all())

    def window(self, start: int, size: int) -> np.ndarray[Any, Any]:
        """Return the memory of some bytes. Bytes of unmapped blocks are 0."""
        return self._memory[start : start + size]

    def missing(self, blocks: np.ndarray[Any, Any]) -> list[int]:
        """Map blocks; return the numbers of missing and damaged blocks."""
        if self._is_watched:
            blocks = blocks[~self._is_good[blocks]]
        known, prefix, stat = self._known, self._prefix, os.stat
        found = []
        for block in blocks.tolist():
            path = f"{prefix}{block:08x}"
            try:
                there = stat(path)
            except OSError:
                self.forget(block)
                found.append(block)
                continue
            identity = there.st_ino, there.st_mtime_ns, there.st_size
            is_same = not self._is_watched and known.get(block) == identity
            if not is_same and not self._map(block, path):
                found.append(block)
        return found

    def note_change(self, file: str | None = None) -> None:
        """Note that somebody wrote to a file, or to any."""
        if file is None:
            self.version += 1
            self._is_good[:] = False
        elif file.startswith(self._name) and not file.endswith(WORK):
            block = int(file.removeprefix(self._name), 16)
            if block < len(self._is_good):
                self.version += 1
                self._is_good[block] = False

    def forget(self, block: int) -> None:
        """Unmap a block, so that its file takes no space once it is deleted."""
        self._is_good[block] = False
        if self._known.pop(block, None) is not None:
            # First of all: a copy that goes on sees zeros from now on.
            self.version += 1
            self._place(block, -1)

    def note_use(self, blocks: np.ndarray[Any, Any]) -> None:
        """Note that blocks are used now."""
        now = time.time()
        self._used[blocks] = now
        if (now - self._noted[blocks]).max(initial=0.0) > _NOTE_S:
            self.write_use(_NOTE_S)

    def write_use(self, age: float = 0.0) -> None:
        """Give files the times of the last use of their blocks, where theirs are older."""
        due = np.flatnonzero(self._used > self._noted + age)
        for block, used in zip(due.tolist(), self._used[due].tolist(), strict=True):
            path = f"{self._prefix}{block:08x}"
            with contextlib.suppress(OSError):
                # The time that its bytes are of stays.
                os.utime(path, ns=(int(used * 1e9), os.stat(path).st_mtime_ns))
        self._noted[due] = self._used[due]

    def copy(self, wanted: Segments) -> None:
        """Copy segments, all blocks of which are mapped."""
        memory, out = self._memory, wanted.out
        if wanted.grid is not None:
            offset, size, rows = wanted.grid
            count = (len(memory) - offset) // size
            grid = memory[offset : offset + count * size].reshape(count, size)
            # In the mode "raise" it would copy twice; the rows were checked.
            np.take(grid, rows, 0, out.reshape(-1, size), mode="clip")
            return
        for start, length, place in zip(
            wanted.starts.tolist(),
            wanted.lengths.tolist(),
            wanted.places.tolist(),
            strict=True,
        ):
            out[place : place + length] = memory[start : start + length]

    def _map(self, block: int, path: str) -> bool:
        """Map a block; return false where it is damaged, which deletes its file."""
        self.forget(block)
        # Before it is looked at: a change from now on is another one.
        self._is_good[block] = True
        is_good = self._is_mapped(block, path)
        self._is_good[block] &= is_good
        return is_good

    def _is_mapped(self, block: int, path: str) -> bool:
        start = block * BLOCK
        length = min(BLOCK, self._size - start)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            found = os.fstat(descriptor)
            identity = found.st_ino, found.st_mtime_ns, found.st_size
            tail = os.pread(descriptor, TAIL.size, length)
            if found.st_size == length + TAIL.size and len(tail) == TAIL.size:
                self._place(block, descriptor)
                if tail == tail_of(self._memory[start : start + length]):
                    self._known[block] = identity
                    return True
                self._place(block, -1)
            os.unlink(path)
        except OSError:
            pass
        finally:
            os.close(descriptor)
        return False

    def _place(self, block: int, descriptor: int) -> None:
        """Put a file into the place of a block, or nothing."""
        start = block * BLOCK
        length = min(BLOCK, self._size - start)
        address = self._memory.ctypes.data + start
        flags = _FREE if descriptor < 0 else mmap.MAP_SHARED
        access = mmap.PROT_READ | (mmap.PROT_WRITE if descriptor < 0 else 0)
        placed = _mmap()(address, length, access, flags | _MAP_FIXED, descriptor, 0)
        if placed != address:
            raise OSError(ctypes.get_errno(), "A block of the cache cannot be mapped.")


@functools.cache
def _mmap() -> Any:
    """Return the call of the system, which the module :mod:`mmap` has without addresses."""
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    return call
