"""Shared memory without a file name: ``memmap()`` without a path."""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any

__all__ = ["FileHandler"]


class FileHandler:
    """An open file without a name, and its mapping.

    :mod:`multiprocessing` can send it to another process: it duplicates the descriptor. Other
    pickles refuse it, because there is no name to open. A pickle of a tensor over it holds the
    values instead.

    Args:
        size: the bytes of the file, at least one.
        reserve: whether to allocate the memory now. If memory is short, this raises an error
            here; otherwise a later write to the tensor ends the process with a bus error.
    """

    def __init__(self, size: int, reserve: bool = False) -> None:
        self.size = size
        self.fd: int = _open_nameless(size, reserve)
        self.buffer: mmap.mmap = mmap.mmap(self.fd, size)

    @classmethod
    def _from_descriptor(cls, fd: int, size: int) -> FileHandler:
        handler = cls.__new__(cls)
        handler.size = size
        handler.fd = fd
        handler.buffer = mmap.mmap(fd, size)
        return handler

    def __del__(self) -> None:
        # Tensors keep the mapping alive. The descriptor can be closed now.
        fd = self.__dict__.pop("fd", None)
        if fd is not None and os is not None:
            os.close(fd)


FileHandler.__module__ = "tensordict.memmap"
FileHandler.__qualname__ = FileHandler.__name__ = "_FileHandler"


def _open_nameless(size: int, reserve: bool) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("tensordict", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        if reserve and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _reduce_handler(handler: FileHandler) -> tuple[Any, ...]:
    return _rebuild_handler, (reduction.DupFd(handler.fd), handler.size)


def _rebuild_handler(duplicate: Any, size: int) -> FileHandler:
    return FileHandler._from_descriptor(duplicate.detach(), size)


reduction.register(FileHandler, _reduce_handler)
