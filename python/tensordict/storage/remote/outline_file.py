"""The parts of a file that describe it: of archives, safetensors and consolidated files."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any, Final

from tensordict.storage.remote.parallel import in_threads
from tensordict.storage.remote.reading import read_range

if TYPE_CHECKING:
    from tensordict.storage.remote.objects import RemoteObject
    from tensordict.storage.remote.outline import Outline

__all__ = ["fetch_file"]

FIRST: Final = 64 << 10
"""So many bytes of each end of a file are read at first."""

_LONGEST: Final = 1 << 30
_LOCAL_HEADER: Final = 30
_REMARKS: Final = b"tdremark"


class _Known:
    """The bytes of a file that are known, and the file with holes that gets them."""

    def __init__(self, outline: Outline, name: str, source: RemoteObject) -> None:
        self.source = source
        self.parts: list[tuple[int, bytes]] = []
        content = read_range(source, 0, FIRST)
        size = source.size
        assert size is not None  # noqa: S101 - the store said it with the first bytes
        self.size: int = size
        outline.make_hole(name, size)
        self.path: Any = outline.folder / name
        self.put(0, content)

    def put(self, start: int, content: bytes) -> None:
        self.parts.append((start, content))
        with self.path.open("r+b") as file:
            file.seek(start)
            file.write(content)

    def get(self, start: int, stop: int) -> bytes:
        """Return bytes; those that are not known are read."""
        start, stop = max(0, start), min(stop, self.size)
        for at, content in self.parts:
            if at <= start and stop <= at + len(content):
                return content[start - at : stop - at]
        content = read_range(self.source, start, stop) if stop > start else b""
        self.put(start, content)
        return content


def fetch_file(outline: Outline, name: str, source: RemoteObject) -> None:
    """Read what describes a file, whatever its name, and put it into its place.

    Args:
        outline: the outline that gets the file.
        name: its path in the outline.
        source: the object.
    """
    known = _Known(outline, name, source)
    head = known.get(0, 16)
    if known.size <= FIRST:
        return
    if head[:4] == b"PK\x03\x04":
        _fetch_archive(known)
        return
    length = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and length < min(known.size, _LONGEST):
        known.get(0, 8 + length)
        return
    _fetch_end(known)


def _fetch_end(known: _Known) -> None:
    """Read the description at the end of a consolidated file, and the part before it."""
    size = known.size
    known.get(size - FIRST, size)
    length = int.from_bytes(known.get(size - 8, size), "little")
    if length > min(size, _LONGEST):
        return
    start = size - 8 - length
    known.get(start, size)
    if known.get(start - 8, start) == _REMARKS:
        noted = int.from_bytes(known.get(start - 16, start - 8), "little")
        if noted < min(size, _LONGEST):
            known.get(start - 16 - noted, start)


class _File(io.RawIOBase):
    """A file for :mod:`zipfile`, of which what is asked for is read."""

    def __init__(self, known: _Known) -> None:
        self.known = known
        self.at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.known.size}
        self.at = base[whence] + offset
        return self.at

    def read(self, size: int | None = -1) -> bytes:
        stop = self.known.size if size is None or size < 0 else self.at + size
        content = self.known.get(self.at, stop)
        self.at += len(content)
        return content


def _fetch_archive(known: _Known) -> None:
    """Read the directory of an archive, the heads of its leaves, and all other entries."""
    known.get(known.size - FIRST, known.size)
    file: Any = _File(known)
    with zipfile.ZipFile(file) as archive:
        entries = sorted(archive.infolist(), key=lambda info: info.header_offset)
        directory = archive.start_dir
    known.get(directory, known.size)
    starts = [info.header_offset for info in entries]
    ranges = []
    for info, stop in zip(entries, [*starts[1:], directory], strict=True):
        start = info.header_offset
        name = info.filename
        is_leaf = name.endswith(".memmap") and not name.endswith(".shape.memmap")
        if is_leaf and info.compress_type == zipfile.ZIP_STORED:
            # The extra field of the head is as long as the alignment needs.
            head = _LOCAL_HEADER + len(name.encode()) + len(info.extra) + 4096
            stop = min(stop, start + head)
        ranges.append((start, stop))
    in_threads(lambda span: known.get(*span), _merged(ranges))


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges that are near each other, in their order."""
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        if merged and start <= merged[-1][1] + FIRST:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged
