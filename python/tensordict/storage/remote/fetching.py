"""Download objects and saves of a store."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tensordict.storage.remote.errors import naming
from tensordict.storage.remote.manifests import SWITCH, Manifest, read_manifest
from tensordict.storage.remote.objects import PiecedObject, RemoteObject, objects_of
from tensordict.storage.remote.options import obstore
from tensordict.storage.remote.place import Found
from tensordict.storage.remote.publishing import (
    LOCK,
    OWN,
    RECORD,
    Uploads,
    in_threads,
    read_record,
)
from tensordict.storage.remote.reading import read_range
from tensordict.storage.remote.saved_times import set_times

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict.storage.remote.place import Place

__all__ = [
    "Saved",
    "download_file",
    "download_folder",
    "download_object",
    "fetch_head",
    "saved_at",
]

_SPAN: Final = 64 << 20
"""The bytes of an object that one request brings; the answers of some come at the same time."""

_CHUNK: Final = 1 << 20
"""So many bytes go to the file at once: memory of this size is used again and again."""

HEAD: Final = 64 << 10
"""The bytes of the beginning of a file, if they are enough."""

_TENSORS: Final = (".memmap", ".safetensors")

_TABLE: Final = ".shape.memmap"
"""The end of the name of a table of shapes, all of which is needed."""

_GENERATION: Final = re.compile(re.escape(OWN) + "[0-9a-f]{16}")

MSG_CUT: Final = "{} has {} bytes, and {} of them came: read it again."
MSG_NO_SAVE: Final = "There is no save in {}: it has no {}."


class Saved(NamedTuple):
    """The objects of a save of several objects."""

    place: Place
    objects: dict[str, tuple[str, int | None]]
    """By the name of each file, its object as a path from the place, and its size."""
    switch: bytes
    """The content of the file :data:`SWITCH`, which is not among them."""
    manifest: Manifest | None = None
    """The manifest, which also has files in pieces, and texts of further files."""

    def at(self, name: str) -> Place:
        """Return the place of the object of a file."""
        return self.place.reach(self.objects[name][0])

    def pieced(self) -> dict[str, PiecedObject]:
        """Return the files that are pieces of objects, by their names."""
        if self.manifest is None:
            return {}
        found = objects_of(self.place, self.manifest)
        return {
            name: each for name, each in found.items() if isinstance(each, PiecedObject)
        }


def saved_at(place: Place) -> Saved:
    """Return the objects of the save at a place, plain or by its manifest.

    Raises:
        FileNotFoundError: there is none.
    """
    content = place.get(SWITCH)
    manifest = read_manifest(content)
    if manifest is not None:
        objects: dict[str, Any] = dict(manifest.objects)
        return Saved(place, objects, manifest.text.encode(), manifest)
    record = read_record(place, RECORD)
    try:
        found = {each.name: (each.name, each.size) for each in place.list()}
    except OSError:
        # HTTP servers list no objects: the record lists them.
        if record is None:
            raise
        return Saved(place, {name: (name, None) for name in record["objects"]}, content)
    plain = {
        name: each
        for name, each in found.items()
        if (name in record["objects"] if record is not None else _is_plain(name))
    }
    return Saved(place, dict(plain), content)


def _is_plain(name: str) -> bool:
    """Return whether an object beside a switch without a record is of its save."""
    first = name.partition("/")[0]
    return name not in (SWITCH, LOCK) and not _GENERATION.match(first)


def download_file(place: Place, path: Path, progress: Uploads | None = None) -> None:
    """Download an object to a file, in several streams.

    Raises:
        OSError: the store does not return all bytes.
        RuntimeError: another version takes its place meanwhile.
    """
    download_object(RemoteObject(place), path, progress)
    set_times(path)


def download_object(
    source: RemoteObject, path: Path, progress: Uploads | None = None
) -> None:
    """Download this version of an object to a file, in several streams.

    Raises:
        OSError: the store does not return all bytes.
        RuntimeError: another version takes its place meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        descriptor = file.fileno()
        if isinstance(source, PiecedObject):
            spans, at = [], 0
            for piece, start, size in source.pieces:
                spans += _spans(piece, start, start + size, at)
                at += size
        else:
            try:
                first = _download_span(source, 0, _SPAN, descriptor, 0, progress)
            except (OSError, RuntimeError, ValueError):
                # Of an object without bytes there is no range.
                if source.place.head().size:
                    raise
                return
            spans = _spans(source, _SPAN, first, _SPAN)

        def bring(part: RemoteObject, start: int, stop: int, at: int) -> None:
            _download_span(part, start, stop, descriptor, at, progress)

        in_threads(bring, spans)


def _spans(
    source: RemoteObject, start: int, stop: int, at: int
) -> list[tuple[RemoteObject, int, int, int]]:
    """Return the parts of a run of bytes, and the place of each in a file."""
    return [
        (source, begin, min(begin + _SPAN, stop), at + begin - start)
        for begin in range(start, stop, _SPAN)
    ]


def _download_span(
    source: RemoteObject,
    start: int,
    stop: int,
    descriptor: int,
    at: int,
    progress: Uploads | None,
) -> int:
    """Download a part of an object into a file; return the size of the object."""
    place = source.place
    options: dict[str, Any] = {"range": (start, stop)}
    if source.e_tag is not None:
        options["if_match"] = source.e_tag
    done = 0
    with naming(place, (start, stop)):
        answer = obstore(place).get(place.store, place.root, options=options)
        source.check(Found.of(answer.meta))
        size: int = answer.meta["size"]
        for chunk in answer.stream(min_chunk_size=_CHUNK):
            done += _written(descriptor, chunk, at + done)
            if progress is not None:
                progress.add(len(chunk))
                progress.check()
    if start + done != min(stop, size):
        raise OSError(MSG_CUT.format(place, size, start + done))
    return size


def _written(descriptor: int, chunk: Any, at: int) -> int:
    """Write all of a chunk to its place in a file."""
    view = memoryview(chunk)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], at + done)
    return done


def download_folder(
    place: Place,
    folder: Path,
    progress: Uploads | None = None,
    *,
    heads: bool = False,
) -> None:
    """Download a save of several objects to a folder, which then is a save.

    Args:
        place: the save.
        folder: the folder.
        progress: is told how far it is.
        heads: whether of large files of tensors only the beginnings come.

    Raises:
        FileNotFoundError: there is no save.
        OSError: the store does not return all bytes.
    """
    saved = saved_at(place)
    pieced = saved.pieced()
    if progress is not None:
        progress.total += sum(size or 0 for _, size in saved.objects.values())
        progress.total += sum(each.size or 0 for each in pieced.values())

    def bring(name: str) -> None:
        size = saved.objects[name][1]
        if heads and name.endswith(_TENSORS) and (size or 0) > HEAD:
            fetch_head(saved.at(name), folder / name)
        else:
            download_file(saved.at(name), folder / name, progress)

    def bring_pieces(name: str) -> None:
        source = pieced[name]
        is_head = heads and name.endswith(_TENSORS) and (source.size or 0) > HEAD
        if is_head and not name.endswith(_TABLE):
            _make_file(folder / name, read_range(source, 0, HEAD), source.size or 0)
        else:
            download_object(source, folder / name, progress)

    in_threads(bring, [(name,) for name in saved.objects])
    in_threads(bring_pieces, [(name,) for name in pieced])
    for name, text in (saved.manifest.texts if saved.manifest else {}).items():
        _make_file(folder / name, text.encode())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SWITCH).write_bytes(saved.switch)
    set_times(folder)


def fetch_head(place: Place, path: Path) -> None:
    """Download the beginning of an object to a sparse file of its size.

    Of a safetensors file it is all that says which tensors it has.
    """
    size = place.head().size
    with naming(place):
        content = _beginning(place, min(HEAD, size))
        needed = 8 + int.from_bytes(content[:8], "little")
        if place.name.endswith(".safetensors") and len(content) < needed <= size:
            content = _beginning(place, needed)
    _make_file(path, content, size)


def _make_file(path: Path, content: bytes, size: int | None = None) -> None:
    """Make a file that begins with some bytes, and ends with a hole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.truncate(size)


def _beginning(place: Place, count: int) -> bytes:
    if not count:
        return b""
    library = obstore(place)
    return bytes(library.get_range(place.store, place.root, start=0, end=count))
