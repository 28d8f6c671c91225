"""The files of a step in an object store, downloaded as far as they are read.

Each local file has the size of its object, and is sparse at first. The header is
downloaded when the item is first used. A restore names the bytes of the tensors that it
needs; they are written at their positions, so that the file is read like a file of a
local step.
"""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch

from tensordict import _rust
from tensordict.checkpoint.distributed import rank_file
from tensordict.checkpoint.reading import StepFiles
from tensordict.checkpoint.steps import META, parse_meta
from tensordict.containers.remote.collection import shown_as
from tensordict.storage.encoding import Decoder
from tensordict.storage.remote.fetching import download_file
from tensordict.storage.remote.manifests import read_manifest
from tensordict.storage.remote.objects import PiecedObject, RemoteObject
from tensordict.storage.remote.publishing import in_threads
from tensordict.storage.remote.reading import read_all, read_range
from tensordict.storage.remote.segments import Segments
from tensordict.storage.remote.tensor import RemoteTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tensordict.checkpoint.ranges import Bytes, Stored
    from tensordict.storage.remote.place import Place

__all__ = ["RemoteStepFiles", "ShownStepFiles"]

HEAD: Final = 16 << 10
"""The bytes of a file that are downloaded first; most headers fit."""

_FOLDERS: weakref.WeakSet[RemoteStepFiles] = weakref.WeakSet()


class _File:
    """A sparse local file with some bytes of an object.

    Args:
        path: the file, which is created.
        source: the object.
    """

    def __init__(self, path: Path, source: RemoteObject) -> None:
        self.path = path
        self.source = source
        content = read_range(source, 0, HEAD)
        self.size: int = source.size or 0
        needed = min(8 + int.from_bytes(content[:8], "little"), self.size)
        if needed > len(content):
            content += read_range(source, len(content), needed)
        half = path.with_name(f".half-{path.name}")
        with half.open("wb") as file:
            file.write(content)
            file.truncate(self.size)
        half.rename(path)
        self._there: list[tuple[int, int]] = [(0, len(content))]
        self._places: dict[str, tuple[int, int]] | None = None

    def place_of(self, name: str) -> tuple[int, int]:
        """Return the position of a tensor's first byte, and its number of bytes."""
        if self._places is None:
            _, tensors, _ = _rust.safetensors_header(self.path)
            self._places = {each: (start, size) for each, *_, start, size in tensors}
        return self._places[name]

    def missing(self, wanted: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the wanted ranges that are not here yet."""
        found = []
        for start, stop in _merged(wanted):
            position = start
            for begin, end in self._there:
                if end <= position or begin >= stop:
                    continue
                if begin > position:
                    found.append((position, begin))
                position = max(position, end)
            if position < stop:
                found.append((position, stop))
        return found

    def note(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Record ranges that are here now."""
        self._there = _merged([*self._there, *ranges])


class RemoteStepFiles(StepFiles):
    """The tensors in the files of a step in a store; bytes are downloaded on demand.

    Args:
        place: the step.
        num_threads: the most threads that read.
    """

    def __init__(self, place: Place, num_threads: int = 0) -> None:
        content = place.get(META)
        manifest = read_manifest(content)
        text = content if manifest is None else manifest.text.encode()
        self._switch = content
        self._place = place
        self._folder: Path = Path(tempfile.mkdtemp(prefix="tensordict-step-"))
        super().__init__(self._folder, num_threads)
        self.directory: Path = cast("Path", place)
        (self._folder / META).write_bytes(text)
        self._keys: dict[str, str] = {}
        if manifest is not None:
            self._keys = {name: key for name, (key, _) in manifest.objects.items()}
        self._files: dict[str, _File] = {}
        self._lock: threading.Lock = threading.Lock()
        meta = parse_meta(text, place / META)
        names = [rank_file(rank) for rank in range(1, meta.get("world", 1))]
        in_threads(self._download, [(name,) for name in names])
        _FOLDERS.add(self)

    def close(self) -> None:
        """Close the files; mapped tensors stay valid until this process ends."""
        super().close()
        if not self._mapped:
            self.remove()

    def remove(self) -> None:
        """Remove the local files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def is_current(self) -> bool:
        """Return whether the place still contains this step."""
        try:
            return self._place.get(META) == self._switch
        except OSError:
            return False

    def paths(self, metadata: Mapping[str, Any]) -> list[str]:
        """Return the paths of an item's files, after their headers were downloaded.

        Raises:
            RuntimeError: a file is not in the step.
            OSError: a file cannot be read.
        """
        paths = super().paths(metadata)
        with self._lock:
            missing = [name for name in metadata["files"] if name not in self._files]
            in_threads(self._begin, [(name,) for name in missing])
        return paths

    def _object(self, name: str) -> Place:
        return self._place.reach(self._keys.get(name, name))

    def _download(self, name: str) -> None:
        download_file(self._object(name), self._folder / name)

    def _begin(self, name: str) -> None:
        source = RemoteObject(self._object(name))
        self._files[name] = _File(self._folder / name, source)

    def bring(self, wanted: Mapping[str, Iterable[Bytes]]) -> None:
        """Download bytes of tensors, all with parallel requests.

        Args:
            wanted: by the path of a file: the name of a tensor, its first needed byte,
                and the byte after the last.

        Raises:
            OSError: the bytes cannot be read, or the disk is full.
        """
        ranges: dict[str, list[tuple[int, int]]] = {}
        for path, parts in wanted.items():
            name = Path(path).name
            file_ranges = ranges.setdefault(name, [])
            for tensor, start, stop in parts:
                first, size = self._files[name].place_of(tensor)
                file_ranges.append((first + start, first + min(stop, size)))
        self._fetch(ranges)

    def bring_tensors(self, tensors: Sequence[Stored]) -> None:
        """Download all bytes of the tensors that are in one file each."""
        wanted: dict[str, list[Bytes]] = {}
        for stored in tensors:
            if stored.is_one_file:
                source = stored.find(0)
                # `bring` limits the range to the tensor's size.
                wanted.setdefault(source.path, []).append((source.name, 0, sys.maxsize))
        self.bring(wanted)

    def _bring_files(self, metadata: Mapping[str, Any]) -> None:
        """Download all files of an item."""
        self.paths(metadata)
        self._fetch(
            {name: [(0, self._files[name].size)] for name in set(metadata["files"])}
        )

    def _fetch(self, ranges: Mapping[str, list[tuple[int, int]]]) -> None:
        """Download ranges of files, as far as they are not here."""
        with self._lock:
            missing = {
                name: self._files[name].missing(file_ranges)
                for name, file_ranges in ranges.items()
            }
            missing = {
                name: file_ranges
                for name, file_ranges in missing.items()
                if file_ranges
            }
            maps: list[mmap.mmap] = []
            plans = []
            for name, file_ranges in missing.items():
                file = self._files[name]
                with file.path.open("r+b") as opened:
                    for start, stop in file_ranges:
                        # A full disk raises an error here; in mapped memory it would be
                        # a signal.
                        os.posix_fallocate(opened.fileno(), start, stop - start)
                    maps.append(mmap.mmap(opened.fileno(), file.size))
                starts = np.array([start for start, _ in file_ranges], np.int64)
                lengths = np.array(
                    [stop - start for start, stop in file_ranges], np.int64
                )
                memory = np.frombuffer(maps[-1], np.uint8)
                plans.append(Segments(file.source, starts, lengths, memory, starts))
            read_all(plans)
            for name, file_ranges in missing.items():
                self._files[name].note(file_ranges)

    def mapped_tensor(self, stored: Any) -> torch.Tensor:
        """Return a tensor that is memory-mapped from its downloaded file."""
        self.bring_tensors([stored])
        shown = self.directory
        self.directory = self._folder
        try:
            return super().mapped_tensor(stored)
        finally:
            self.directory = shown

    def problems(self, metadata: Mapping[str, Any]) -> list[str]:
        """Return one line for each problem of an item's files."""
        self._bring_files(metadata)
        try:
            return super().problems(metadata)
        finally:
            # The files are not needed any more, and the next item needs the disk space.
            for name in metadata["files"]:
                self._files.pop(name, None)
                (self._folder / name).unlink(missing_ok=True)


class ShownStepFiles(RemoteStepFiles):
    """The tensors of a step in a store, whose bytes stay there until they are used."""

    def bring_tensors(self, tensors: Sequence[Stored]) -> None:
        """Download nothing: :meth:`lazy_tensor` leaves all bytes in the store."""

    def lazy_tensor(self, stored: Stored) -> torch.Tensor | None:
        """Return a remote tensor; None if its bytes are not contiguous runs of files."""
        found = []
        at = 0
        boxes = stored.grid.boxes
        for number in sorted(range(len(boxes)), key=lambda number: boxes[number][0]):
            offsets, sizes = boxes[number]
            if offsets and (offsets[0] != at or sizes[1:] != stored.shape[1:]):
                return None
            at += sizes[0] if sizes else 0
            part = stored.find(number)
            file = self._files[Path(part.path).name]
            found.append((file.source, *file.place_of(part.name)))
        if not found:
            return None
        source: RemoteObject = found[0][0]
        start = found[0][1]
        if len(found) > 1:
            name = f"{source.place.name} ({stored.name})"
            source, start = PiecedObject(source.place.parent / name, found), 0
        shape = torch.Size(stored.shape)
        return RemoteTensor.of(source, start, shape, stored.dtype, sys.maxsize)

    def decoder(self, *args: Any) -> Decoder:
        """Return a decoder that leaves remote tensors on the CPU."""
        return _InTheStore(*args)

    def shown(self, loaded: Any) -> Any:
        """Return a remote tensordict."""
        return shown_as(loaded, sys.maxsize)


class _InTheStore(Decoder):
    """A decoder of remote tensors, which moves none to a device: that would read it."""

    def placed(self, tensor: torch.Tensor, saved: str | None) -> torch.Tensor:
        return tensor


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges, and merge those that touch."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def _remove_folders() -> None:
    for files in list(_FOLDERS):
        files.remove()


atexit.register(_remove_folders)
