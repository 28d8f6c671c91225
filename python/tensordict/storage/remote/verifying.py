"""Compare a directory save in a store with its checksums, without a copy on this machine."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from tensordict import _rust
from tensordict.storage.growing.publish import CHECKSUMS
from tensordict.storage.layouts.interface import DAMAGED, Finding, Report
from tensordict.storage.remote.publishing import in_threads
from tensordict.storage.remote.reading import read_range

if TYPE_CHECKING:
    from tensordict.storage.remote.objects import RemoteObject
    from tensordict.storage.remote.outline import Outline

__all__ = ["verify_outlined"]

_CHUNK: Final = 8 << 20
"""The bytes of a request. Four threads hold the bytes of one request each."""

_BLOCK: Final = 1 << 20
"""The bytes of a checksum."""


class _Chunk(NamedTuple):
    """Some blocks of a file, and their checksums."""

    name: str
    start: int
    stop: int
    checksums: list[int]


def verify_outlined(outline: Outline) -> Report | None:
    """Read the files of a directory save, and compare the bytes with the checksums.

    At most 64 MiB are in memory at a time, and no tensor is on the disk.

    Args:
        outline: the outline of the save.

    Returns:
        None if the save has no checksums.

    Raises:
        OSError: the store cannot be read.
    """
    source = outline.others.get(CHECKSUMS)
    if source is None:
        return None
    try:
        saved = json.loads(source.place.get())
    except FileNotFoundError:
        return None
    problems: dict[str, str] = {}
    chunks: list[_Chunk] = []
    for name, (length, _, whole, *blocks) in saved["files"].items():
        size = _size(outline, name)
        if size != length:
            found = "missing" if size is None else f"{size} bytes long"
            problems[name] = f"it is {found}, and had {length} bytes"
            continue
        text = blocks[0] if blocks else whole
        checksums = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
        for start in range(0, length, _CHUNK):
            first = start // _BLOCK
            some = checksums[first : first + _CHUNK // _BLOCK]
            chunks.append(_Chunk(name, start, min(start + _CHUNK, length), some))

    def compare(chunk: _Chunk) -> None:
        try:
            content = _bytes(outline, chunk)
        except FileNotFoundError:
            problems[chunk.name] = "it is missing"
            return
        except RuntimeError:
            # The size in the manifest, or the tag of the listing, is not the object's.
            problems[chunk.name] = "the object was replaced after the save"
            return
        at = _first_difference(content, chunk)
        if at is not None:
            start, stop = at, min(at + _BLOCK, chunk.stop)
            text = f"bytes {start} to {stop - 1} differ from their checksum"
            problems.setdefault(chunk.name, text)

    in_threads(compare, [(chunk,) for chunk in chunks])
    findings = [_finding(outline, name, problems.get(name)) for name in saved["files"]]
    return Report("tree", str(saved.get("generation", "")), findings)


def _source(outline: Outline, name: str) -> RemoteObject | None:
    return outline.objects.get(name) or outline.others.get(name)


def _size(outline: Outline, name: str) -> int | None:
    """Return the number of bytes of a file; None if there is no file."""
    source = _source(outline, name)
    if source is None:
        path = outline.folder / name
        return path.stat().st_size if path.is_file() else None
    if not source.is_known or source.size is None:
        try:
            source.note(source.place.head())
        except FileNotFoundError:
            return None
    return source.size


def _bytes(outline: Outline, chunk: _Chunk) -> bytes:
    source = _source(outline, chunk.name)
    if source is not None:
        return read_range(source, chunk.start, chunk.stop)
    with (outline.folder / chunk.name).open("rb") as file:
        return os.pread(file.fileno(), chunk.stop - chunk.start, chunk.start)


def _first_difference(content: bytes, chunk: _Chunk) -> int | None:
    """Return where the first block begins that differs from its checksum."""
    found = _rust.block_checksums(content)
    if len(found) < len(chunk.checksums):
        return chunk.start
    for at, (own, expected) in enumerate(zip(found, chunk.checksums, strict=True)):
        if own != expected:
            return chunk.start + at * _BLOCK
    return None


def _finding(outline: Outline, name: str, problem: str | None) -> Finding:
    path = f"{outline.place}/{name}"
    if problem is None:
        return Finding("", path, "good", "", f"({path!r}) is good")
    return Finding("", path, DAMAGED, problem, f"{path!r} is damaged: {problem}.")
