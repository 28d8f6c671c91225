"""Blocks of objects on the local disk, which all processes of a machine share.

A block is a file of 1 MiB of an object, with a checksum before it. Writers hold the lock of the
folder, and count the bytes of all blocks in a file beside them, so that the bound holds for all
processes together; readers hold nothing. A file that is damaged, cut or gone is a miss, and so
is a disk that is full. Nothing but blocks is ever deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import struct
import threading
import time
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from tensordict.storage.remote.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.storage.remote.objects import RemoteObject

__all__ = ["BLOCK", "BlockCache", "cache_of"]

BLOCK: Final = 1 << 20
LIMIT: Final = 16 << 30
"""The most bytes of a cache whose bound nobody has said."""

_HEAD: Final = struct.Struct("<8sII")
_MAGIC: Final = b"tdblock1"
_FOLDER: Final = "tensordict-blocks"
_NAME: Final = re.compile(r"[0-9a-f]{40}-[0-9a-f]{8}")
_WORK: Final = ".writing"
_OPEN: Final = 256
"""The most files of blocks that are open at a time."""

_TOUCH_S: Final = 10.0
_CHUNK: Final = 64
"""The most blocks that are read from the store at a time."""

MSG_LIMIT: Final = "cache_limit is a number of bytes, 1 MiB at least, got {!r}."


class BlockCache:
    """Blocks of objects in a folder.

    Args:
        folder: the folder, which is made where it is missing.
        limit: the most bytes of all blocks in it, of all processes.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder: Path = folder / _FOLDER
        self.limit = limit
        self.hits: int = 0
        """The number of blocks that were there."""
        self.misses: int = 0
        """The number that was read from a store."""
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, tuple[int, int, float]] = OrderedDict()
        self._checked: dict[str, tuple[int, int, int]] = {}
        self._process = os.getpid()

    def __reduce__(self) -> Any:
        return cache_of, (str(self.folder.parent), self.limit)

    # Reading --------------------------------------------------------------------------

    def read(self, wanted: Segments) -> list[Segments]:
        """Copy what blocks have, and read others from the store, which then stay here.

        Returns:
            The segments that are to be read without blocks: those of an object whose
            versions no tag tells apart.
        """
        source = wanted.object
        if not len(wanted.starts):
            return []
        if source.e_tag is None or source.size is None:
            source.check(_meta_of(source))
        if source.e_tag is None:
            return [wanted]
        source.require(int((wanted.starts + wanted.lengths).max()))
        pieces = _by_block(wanted)
        name = _name_of(source)
        missing = {
            block: parts
            for block, parts in pieces.items()
            if not self._copied(f"{name}-{block:08x}", parts, wanted.out)
        }
        self.hits += len(pieces) - len(missing)
        self.misses += len(missing)
        blocks = sorted(missing)
        for at in range(0, len(blocks), _CHUNK):
            self._fetch(wanted, name, blocks[at : at + _CHUNK], missing)
        return []

    def _fetch(
        self,
        wanted: Segments,
        name: str,
        blocks: list[int],
        missing: dict[int, list[tuple[int, int, int]]],
    ) -> None:
        """Read blocks from the store, keep them, and copy what is wanted of them."""
        from tensordict.storage.remote.reading import read_plain

        numbers = np.asarray(blocks, np.int64)
        starts = numbers * BLOCK
        lengths = np.minimum(BLOCK, int(wanted.object.size or 0) - starts)
        places = np.arange(len(blocks), dtype=np.int64) * BLOCK
        memory = np.empty(len(blocks) * BLOCK, np.uint8)
        read_plain([Segments(wanted.object, starts, lengths, memory, places)])
        found = {}
        for block, place, length in zip(
            blocks, places.tolist(), lengths.tolist(), strict=True
        ):
            data = found[f"{name}-{block:08x}"] = memory[place : place + length]
            for inside, size, at in missing[block]:
                wanted.out[at : at + size] = data[inside : inside + size]
        self._keep(found)

    def _copied(
        self, name: str, parts: list[tuple[int, int, int]], out: np.ndarray[Any, Any]
    ) -> bool:
        """Copy parts of a block; return false where it is not here, or damaged."""
        with self._lock_of_process():
            opened = self._opened(name)
            if opened is None:
                return False
            descriptor, length = opened
            view = memoryview(cast("Any", out))
            for inside, size, at in parts:
                place = _HEAD.size + inside
                if inside + size > length:
                    return False
                if os.preadv(descriptor, [view[at : at + size]], place) != size:
                    self._drop(name)
                    return False
        return True

    @contextlib.contextmanager
    def _lock_of_process(self) -> Iterator[None]:
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            yield

    def _opened(self, name: str) -> tuple[int, int] | None:
        now = time.monotonic()
        known = self._open.get(name)
        if known is not None:
            self._open.move_to_end(name)
            descriptor, length, touched = known
            if self._checked.get(name) != _identity(descriptor):
                # Somebody wrote to it: its checksum is compared anew.
                self._drop(name)
                return self._opened(name)
            if now - touched > _TOUCH_S:
                self._open[name] = descriptor, length, now
                _touch(descriptor)
            return descriptor, length
        path = self._path(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        length_or_none = self._length_if_good(name, descriptor)
        if length_or_none is None:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        _touch(descriptor)
        self._open[name] = descriptor, length_or_none, now
        while len(self._open) > _OPEN:
            _, (old, _, _) = self._open.popitem(last=False)
            os.close(old)
        return descriptor, length_or_none

    def _length_if_good(self, name: str, descriptor: int) -> int | None:
        """Return the bytes of a block, whose checksum is compared once a process."""
        try:
            identity = _identity(descriptor)
            size = identity[2]
            if self._checked.get(name) == identity:
                return size - _HEAD.size
            content = os.pread(descriptor, size, 0)
        except OSError:
            return None
        if len(content) < _HEAD.size:
            return None
        magic, checksum, length = _HEAD.unpack_from(content)
        data = memoryview(content)[_HEAD.size :]
        if magic != _MAGIC or length != len(data) or zlib.crc32(data) != checksum:
            return None
        self._checked[name] = identity
        return length

    def _drop(self, name: str) -> None:
        known = self._open.pop(name, None)
        if known is not None:
            os.close(known[0])
        self._checked.pop(name, None)

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    # Writing --------------------------------------------------------------------------

    def _keep(self, blocks: dict[str, np.ndarray[Any, Any]]) -> None:
        """Write blocks, as far as there is room; a disk that is full keeps none."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._writing() as counter:
                total = self._total(counter)
                for name, data in blocks.items():
                    size = len(data) + _HEAD.size
                    if size > self.limit:
                        continue
                    if total + size > self.limit:
                        total = self._evict(self.limit - size)
                    if self._write(name, data):
                        total += size
                os.pwrite(counter, struct.pack("<q", total), 0)
        except OSError:
            return

    @contextlib.contextmanager
    def _writing(self) -> Iterator[int]:
        descriptor = os.open(
            self.folder / "bytes", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _total(self, counter: int) -> int:
        """Return the bytes of all blocks, which are counted where nobody has yet."""
        content = os.pread(counter, 8, 0)
        if len(content) == 8:
            total: int = struct.unpack("<q", content)[0]
            if total >= 0:
                return total
        return sum(size for _, size, _ in self._files())

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Give the blocks: when they were used last, their bytes and their paths."""
        for folder in self.folder.iterdir():
            if len(folder.name) != 2 or not folder.is_dir():
                continue
            for path in folder.iterdir():
                if path.name.endswith(_WORK) and _NAME.fullmatch(
                    path.name.removesuffix(_WORK)
                ):
                    # The lock is held here, so that its writer was killed.
                    path.unlink(missing_ok=True)
                elif _NAME.fullmatch(path.name):
                    with contextlib.suppress(OSError):
                        found = path.stat()
                        yield found.st_atime_ns, found.st_size, path

    def _evict(self, room: int) -> int:
        """Delete the blocks that were used longest ago, until so many bytes are left."""
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        # Some more than needed: to list all of them for each block would take long.
        goal = min(room, max(0, room - self.limit // 16))
        for _, size, path in files:
            if total <= goal:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
            self._drop(path.name)
        return total

    def _write(self, name: str, data: np.ndarray[Any, Any]) -> bool:
        path = self._path(name)
        if path.exists():
            return False
        work = path.with_name(name + _WORK)
        try:
            path.parent.mkdir(exist_ok=True)
            with work.open("wb") as file:
                view = memoryview(cast("Any", np.ascontiguousarray(data)))
                file.write(_HEAD.pack(_MAGIC, zlib.crc32(view), len(view)))
                file.write(view)
                file.flush()
                # Its checksum is of now.
                self._checked[name] = _identity(file.fileno())
            work.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                work.unlink()
            return False
        return True


def _identity(descriptor: int) -> tuple[int, int, int]:
    """Return what changes when somebody writes to a file."""
    found = os.fstat(descriptor)
    return found.st_ino, found.st_mtime_ns, found.st_size


def _touch(descriptor: int) -> None:
    """Note that a block is used, without a change of the time that its bytes are of."""
    with contextlib.suppress(OSError):
        written = os.fstat(descriptor).st_mtime_ns
        os.utime(descriptor, ns=(time.time_ns(), written))


def _meta_of(source: RemoteObject) -> dict[str, Any]:
    found = source.place.head()
    return {"e_tag": found.e_tag, "size": found.size}


def _name_of(source: RemoteObject) -> str:
    """Name a version of an object, differently from any other of any store."""
    place = source.place
    config = getattr(place.store, "config", None) or {}
    where = [f"{name}={config[name]}" for name in sorted(config) if name in _OF_STORE]
    own = [str(os.getpid())] if place.is_in_memory else []
    parts = [place.url, str(source.e_tag), str(source.size), *where, *own]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


_OF_STORE: Final = frozenset(
    ["endpoint", "bucket", "account_name", "container_name", "region"]
)


def _by_block(wanted: Segments) -> dict[int, list[tuple[int, int, int]]]:
    """Split segments by block: where each part is in that, its bytes, and its place."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for start, length, place in zip(
        wanted.starts.tolist(),
        wanted.lengths.tolist(),
        wanted.places.tolist(),
        strict=True,
    ):
        at = start
        stop = start + length
        while at < stop:
            block, inside = divmod(at, BLOCK)
            size = min(stop - at, BLOCK - inside)
            found.setdefault(block, []).append((inside, size, place + at - start))
            at += size
    return found


_caches: dict[tuple[str, int], BlockCache] = {}
_caches_lock = threading.Lock()


def cache_of(folder: str | os.PathLike[str], limit: int | None = None) -> BlockCache:
    """Return the cache of a folder: one a process for a bound.

    Raises:
        ValueError: the bound is not one.
    """
    limit = LIMIT if limit is None else limit
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < BLOCK:
        raise ValueError(MSG_LIMIT.format(limit))
    path = os.path.abspath(os.fspath(folder))
    with _caches_lock:
        return _caches.setdefault((path, limit), BlockCache(Path(path), limit))
