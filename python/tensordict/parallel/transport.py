"""The pickles in which tensors, functions and collections are sent between processes.

A tensor is sent as its own bytes, without the rest of its storage. A function that pickle
refuses is sent by cloudpickle. The collection of a call is sent once, in shared memory.
"""

# ruff: noqa: S301 (a process of the same call has pickled these bytes)
from __future__ import annotations

import contextlib
import importlib
import io
import mmap
import os
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict.primitives import classes
from tensordict.primitives.checks import is_tensor_collection
from tensordict.primitives.protocol import PartsProtocol
from tensordict.storage.out_of_band import is_plain
from tensordict.storage.tensors import arena

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Rows", "dumps", "loads", "map_memory", "share", "share_memory"]

_MAX_SHARED = 256
"""The most storages that other tensors use as well to share: each takes a descriptor."""


def _by_value(value: object) -> Any:
    """Reduce a function or class of ``__main__`` that a worker cannot import.

    In a notebook, a prompt or ``python -c``, ``__main__`` has no file. From Python 3.14 on,
    workers do not start as forks, so they cannot find its functions.
    """
    if not isinstance(value, FunctionType | type) or value.__module__ != "__main__":
        return NotImplemented
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) or getattr(main, "__spec__", None):
        return NotImplemented
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        return NotImplemented
    return pickle.loads, (cloudpickle.dumps(value),)


class _Pickler(pickle.Pickler):
    """Pickles a plain tensor as its own bytes; torch would pickle its whole storage."""

    def reducer_override(self, value: object) -> Any:
        if type(value) is torch.Tensor and is_plain(value):
            return _tensor_of, (_bytes_of(value), value.dtype, tuple(value.shape))
        return _by_value(value)


class _ResultPickler(_Pickler):
    """Pickles a collection in a file by its entries, instead of by its path."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, PartsProtocol):
            value = value.to_tensordict()
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(value)


class _SharingPickler(ForkingPickler):
    """Writes the bytes of tensors to a memory file. Tensors in shared memory stay there."""

    def __init__(self, buffer: io.BytesIO, fd: int) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._fd = fd
        self.end = 0
        self.descriptors: list[int] = []

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, classes._SubTensorDict):
            # The worker reads the rows of this view from the file itself.
            return object.__reduce_ex__(value, pickle.HIGHEST_PROTOCOL)
        if type(value) is not torch.Tensor or not is_plain(value):
            return _by_value(value)
        if value.is_shared():
            return self._reduce_shared(value)
        start = self.end
        view = memoryview(_bytes_of(value))
        while view:
            written = os.pwrite(self._fd, view, self.end)
            self.end += written
            view = view[written:]
        place = _Place(0, start, self.end - start)
        self.end = -(-self.end // 64) * 64
        return _tensor_of, (place, value.dtype, tuple(value.shape))

    def _reduce_shared(self, value: torch.Tensor) -> tuple[Any, Any]:
        storage = value.untyped_storage()
        if storage.nbytes() == 0:
            return _tensor_of, (b"", value.dtype, tuple(value.shape))
        fd, size = storage._share_fd_cpu_()
        if fd not in self.descriptors:
            self.descriptors.append(fd)
        place = _Place(1 + self.descriptors.index(fd), 0, size)
        how = (value.size(), value.stride(), value.storage_offset())
        return _view_of, (place, value.dtype, *how)

    def persistent_id(self, value: object) -> tuple[Any, Any, Any] | None:
        if type(value) is not _Place:
            return None
        return value.memory, value.start, value.length


class _SharingUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes, memories: list[mmap.mmap | None]) -> None:
        super().__init__(io.BytesIO(content))
        self._memories = memories

    def persistent_load(self, place: Any) -> memoryview | bytes:
        number, start, length = place
        memory = self._memories[number]
        if length == 0 or memory is None:
            return b""
        return memoryview(memory)[start : start + length]


class _Place:
    """The place of a tensor's bytes: the number of the memory, the start, the length."""

    __slots__ = ("length", "memory", "start")

    def __init__(self, memory: int, start: int, length: int) -> None:
        self.memory = memory
        self.start = start
        self.length = length


class Shared(NamedTuple):
    """A value in shared memory: its pickle, and the descriptors of the memory.

    The first descriptor is a file of its own; the others belong to tensors of the value.
    """

    content: bytes
    descriptors: list[int]

    def close(self) -> None:
        """Close the first descriptor, which :func:`share` has opened."""
        os.close(self.descriptors[0])


def _bytes_of(tensor: torch.Tensor) -> memoryview | bytes:
    if tensor.numel() == 0:
        return b""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


def _tensor_of(
    content: Any, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    if len(content) == 0:
        return torch.empty(shape, dtype=dtype)
    if isinstance(content, bytes):
        content = bytearray(content)
    return torch.frombuffer(content, dtype=dtype).view(shape)


def _view_of(
    content: object,
    dtype: torch.dtype,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    storage = torch.frombuffer(content, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)


class Rows(NamedTuple):
    """The rows of a collection in a file. The process that receives them reads them."""

    source: Any
    index: Any

    @classmethod
    def of(cls, rows: Any) -> Any:
        """Return a view of a collection in a file as :class:`Rows`, others unchanged."""
        is_part = isinstance(rows, classes._SubTensorDict)
        if is_part and isinstance(rows._source, PartsProtocol):
            return cls(rows._source, rows._asked)
        return rows

    def take(self) -> Any:
        """Return the rows."""
        return self.source[self.index]


def dumps(value: object, *, is_result: bool = False) -> bytes:
    """Pickle a value; use cloudpickle if pickle refuses it.

    Args:
        value: the value.
        is_result: whether to pickle a collection in a file by its entries, not by its path.

    Raises:
        Exception: the error of pickle, if cloudpickle refuses the value as well or is not
            installed.
    """
    buffer = io.BytesIO()
    try:
        pickler = _ResultPickler if is_result else _Pickler
        pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        with contextlib.suppress(Exception):
            return importlib.import_module("cloudpickle").dumps(value)
        # The error of pickle names the object that pickle refuses.
        raise
    return buffer.getvalue()


def loads(content: bytes) -> Any:
    """Unpickle the bytes that :func:`dumps` has returned."""
    return pickle.loads(content)


def share(value: object) -> Shared:
    """Put the tensors of a value into shared memory: once, for all workers.

    Tensors that are in shared memory or memory-mapped are not copied.
    """
    fd = memory_file("tensordict-source")
    try:
        buffer = io.BytesIO()
        pickler = _SharingPickler(buffer, fd)
        pickler.dump(value)
        os.ftruncate(fd, pickler.end)
    except BaseException:
        os.close(fd)
        raise
    return Shared(buffer.getvalue(), [fd, *pickler.descriptors])


def shared(content: bytes, descriptors: list[int]) -> Any:
    """Return the value that :func:`share` has put into shared memory."""
    memories = [map_memory(fd) for fd in descriptors]
    return _SharingUnpickler(content, memories).load()


def share_memory(source: CollectionProtocol) -> None:
    """Move the tensors of a collection to shared memory in place.

    If a function writes to its chunk in place, the collection changes, as in tensordict 0.15.
    Memory-mapped tensors share their memory already.
    """
    arena.share(_leaves(source), _MAX_SHARED)


def _leaves(source: Any) -> Iterator[torch.Tensor]:
    if isinstance(source, classes.LazyStackedTensorDict):
        for member in source.tensordicts:
            yield from _leaves(member)
    elif isinstance(source, classes._SubTensorDict):
        yield from _leaves(source._source)
    else:
        for value in list(source.values()):
            if is_tensor_collection(value):
                yield from _leaves(value)
            elif isinstance(value, torch.Tensor):
                yield value


def memory_file(name: str) -> int:
    """Create a file in memory that has no name in any folder."""
    return os.memfd_create(name, os.MFD_CLOEXEC)


def map_memory(fd: int) -> mmap.mmap | None:
    """Map a whole memory file, ``None`` if it is empty."""
    size = os.fstat(fd).st_size
    return mmap.mmap(fd, size) if size else None
