"""Blocks of objects on the local disk, which all processes of a machine share.

A block is a file of 1 MiB of an object, with a checksum behind it. Writers hold the lock of the
folder, and count the bytes of all blocks in a file beside them, so that the bound holds for all
processes together. Readers map blocks (``mapped_blocks.py``), compare the checksum once, and hold nothing. A file that
is damaged, cut or gone is a miss, and so is a disk that is full. Nothing but blocks is ever deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import struct
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from tensordict.storage.remote.mapped_blocks import (
    BLOCK,
    TAIL,
    WORK,
    MappedBlocks,
    blocks_between,
    tail_of,
)
from tensordict.storage.remote.segments import Segments
from tensordict.storage.remote.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.storage.remote.objects import RemoteObject

__all__ = ["BLOCK", "BlockCache", "cache_of"]

LIMIT: Final = 16 << 30
"""The most bytes of a cache whose bound nobody has said."""

_FOLDER: Final = "tensordict-blocks"
_NAME: Final = re.compile(r"[0-9a-f]{40}-[0-9a-f]{8}")
_MAPPED: Final = 16 << 10
"""About the most blocks that a process maps: the system allows four times as many mappings."""

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
        self._coming: set[str] = set()
        """The blocks that threads of this process are reading from a store."""
        self._came = threading.Condition(self._lock)
        self._mapped: dict[str, MappedBlocks] = {}
        self._watch: Watch | None = None
        self._watched: dict[int, list[MappedBlocks]] = {}
        self._generation = object()
        self._process = os.getpid()

    def __reduce__(self) -> Any:
        return cache_of, (str(self.folder.parent), self.limit)

    # Reading --------------------------------------------------------------------------

    def read(self, wanted: Segments) -> list[Segments]:
        """Copy segments from cached blocks; read missing blocks from the store and keep them.

        Returns:
            The segments that the cache cannot serve: the object has no tag that tells
            versions apart.
        """
        source = wanted.object
        if not len(wanted.starts):
            return []
        if source.e_tag is None or source.size is None:
            source.check(source.place.head())
        if source.e_tag is None:
            return [wanted]
        source.require(int((wanted.starts + wanted.lengths).max()))
        name = _name_of(source)
        blocks = blocks_between(wanted.starts, wanted.lengths)
        try:
            mapped = self._mapped_of(name, source.size or 0)
        except OSError:
            # There is no room in the addresses of this process.
            return [wanted]
        with mapped.lock:
            missing = mapped.missing(blocks)
            if not missing:
                mapped.copy(wanted)
            else:
                pieces = wanted.cut_at(BLOCK)
                is_away = np.isin(pieces.starts // BLOCK, missing)
                mapped.copy(pieces.where(~is_away))
            mapped.note_use(blocks)
        self.hits += len(blocks) - len(missing)
        self.misses += len(missing)
        return self._bring(pieces.where(is_away), name, missing) if missing else []

    def _bring(self, wanted: Segments, name: str, missing: list[int]) -> list[Segments]:
        """Read blocks from the store, or wait for another thread that is reading them."""
        with self._lock:
            files = {f"{name}-{block:08x}": block for block in missing}
            own = {file: files[file] for file in files.keys() - self._coming}
            self._coming.update(own)
        blocks = sorted(own.values())
        try:
            for at in range(0, len(blocks), _CHUNK):
                self._fetch(wanted, name, blocks[at : at + _CHUNK])
        finally:
            with self._lock:
                self._coming.difference_update(own)
                self._came.notify_all()
        if len(own) == len(files):
            return []
        with self._lock:
            self._came.wait_for(lambda: self._coming.isdisjoint(files))
        others = np.isin(wanted.starts // BLOCK, blocks, invert=True)
        return self.read(wanted.where(others))

    def _mapped_of(self, name: str, size: int) -> MappedBlocks:
        """Return the blocks of an object that this process has mapped."""
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            self._note_changes()
            if sum(map(len, self._mapped.values())) > _MAPPED:
                self._mapped.clear()
                self._watched.clear()
                self._generation = object()
            found = self._mapped.get(name)
            if found is None:
                found = self._mapped[name] = self._newly_mapped(name, size)
            return found

    def refreshed(self) -> object:
        """Have changed blocks checked anew before they are used.

        Returns:
            Another object whenever the blocks of all objects were unmapped.
        """
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            self._note_changes()
            return self._generation

    def mapped_now(self, source: RemoteObject) -> MappedBlocks | None:
        """Return the blocks of an object if this process has mapped some."""
        if source.e_tag is None or not source.size:
            return None
        with self._lock:
            return self._mapped.get(_name_of(source))

    def _newly_mapped(self, name: str, size: int) -> MappedBlocks:
        folder = self.folder / name[:2]
        number = None
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            self._watch = self._watch or Watch()
            number = self._watch.add(folder)
        made = MappedBlocks(folder, name, size, is_watched=number is not None)
        if number is not None:
            self._watched.setdefault(number, []).append(made)
        return made

    def _note_changes(self) -> None:
        """Have blocks checked anew whose files somebody wrote to."""
        changed = [] if self._watch is None else self._watch.changed()
        if changed is None:
            for each in self._mapped.values():
                each.note_change()
        for number, file in changed or ():
            for each in self._watched.get(number, ()):
                each.note_change(file)

    def _fetch(self, wanted: Segments, name: str, blocks: list[int]) -> None:
        """Read blocks from the store, keep them, and copy the wanted segments."""
        from tensordict.storage.remote.reading import read_plain

        numbers = np.asarray(blocks, np.int64)
        starts = numbers * BLOCK
        lengths = np.minimum(BLOCK, int(wanted.object.size or 0) - starts)
        places = np.arange(len(blocks), dtype=np.int64) * BLOCK
        memory = np.empty(len(blocks) * BLOCK, np.uint8)
        read_plain([Segments(wanted.object, starts, lengths, memory, places)])
        at = np.searchsorted(numbers, wanted.starts // BLOCK)
        at[at == len(numbers)] = 0
        is_here = numbers[at] == wanted.starts // BLOCK
        inside = places[at] + wanted.starts % BLOCK
        for begin, size, place in zip(
            inside[is_here].tolist(),
            wanted.lengths[is_here].tolist(),
            wanted.places[is_here].tolist(),
            strict=True,
        ):
            wanted.out[place : place + size] = memory[begin : begin + size]
        self._keep(
            {
                f"{name}-{block:08x}": memory[place : place + length]
                for block, place, length in zip(
                    blocks, places.tolist(), lengths.tolist(), strict=True
                )
            }
        )

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    # Writing --------------------------------------------------------------------------

    def _keep(self, blocks: dict[str, np.ndarray[Any, Any]]) -> None:
        """Write blocks, as far as there is room; a disk that is full keeps none."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._writing() as counter:
                total = self._total(counter)
                # If the writer is killed, the next process counts the blocks again.
                os.pwrite(counter, struct.pack("<q", -1), 0)
                for name, data in blocks.items():
                    size = len(data) + TAIL.size
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
                if path.name.endswith(WORK) and _NAME.fullmatch(
                    path.name.removesuffix(WORK)
                ):
                    # The lock is held here, so that its writer was killed.
                    path.unlink(missing_ok=True)
                elif _NAME.fullmatch(path.name):
                    with contextlib.suppress(OSError):
                        found = path.stat()
                        yield found.st_atime_ns, found.st_size, path

    def _evict(self, room: int) -> int:
        """Delete the blocks that were used longest ago, until so many bytes are left."""
        with self._lock:
            mapped = dict(self._mapped)
        for each in mapped.values():
            with each.lock:
                each.write_use()
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
            name, _, block = path.name.partition("-")
            if name in mapped:
                with mapped[name].lock:
                    mapped[name].forget(int(block, 16))
        return total

    def _write(self, name: str, data: np.ndarray[Any, Any]) -> bool:
        path = self._path(name)
        if path.exists():
            return False
        work = path.with_name(name + WORK)
        try:
            path.parent.mkdir(exist_ok=True)
            with work.open("wb") as file:
                file.write(cast("Any", data))
                file.write(tail_of(data))
            work.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                work.unlink()
            return False
        return True


def _name_of(source: RemoteObject) -> str:
    """Name a version of an object, differently from any other of any store."""
    if source.block_name is None:
        place = source.place
        store = place.store
        config = getattr(store, "config", None) or {}
        where = [
            f"{name}={config[name]}" for name in sorted(config) if name in _OF_STORE
        ]
        own = [_token_of(store)] if place.is_in_memory else []
        parts = [place.url, str(source.e_tag), str(source.size), *where, *own]
        text = "\n".join(parts)
        source.block_name = hashlib.sha256(text.encode()).hexdigest()[:40]
    return source.block_name


_tokens: dict[int, tuple[Any, str]] = {}


def _token_of(store: Any) -> str:
    """Return a text that no other store in memory has, of any process."""
    return _tokens.setdefault(id(store), (store, uuid.uuid4().hex))[1]


_OF_STORE: Final = frozenset(
    ["endpoint", "bucket", "account_name", "container_name", "region"]
)


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
