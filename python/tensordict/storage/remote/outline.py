"""The outline of a save: sparse files with the metadata of the save, and holes for tensors.

Some bytes describe a save: the metadata of its directories, the header of a safetensors file,
the directory of an archive, the end of a consolidated file. The outline has these bytes at their
offsets, in files of the sizes of the objects. So each layout loads the outline like a save on a
disk. The address of a tensor over a hole tells its object and its offset in the object.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tensordict import _rust
from tensordict.storage.growing.publish import CHECKSUMS
from tensordict.storage.remote.manifests import read_manifest
from tensordict.storage.remote.objects import PiecedObject, RemoteObject, objects_of
from tensordict.storage.remote.outline_file import fetch_file
from tensordict.storage.remote.parallel import in_threads
from tensordict.storage.remote.reading import read_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensordict.storage.remote.cache import BlockCache
    from tensordict.storage.remote.manifests import Manifest
    from tensordict.storage.remote.place import Found, Place

__all__ = ["Outline", "fill_outline", "outlined"]

META: Final = "meta.json"
GENERATION: Final = ".tensordict-"
INDEX: Final = ".index.json"
_ALSO_READ: Final = (META, "other.pickle", "pickle.pkl")
"""The files of a directory that are always read as a whole."""

MSG_NO_SAVE: Final = (
    "There is no save at {url}: neither an object of that name, nor {url}/meta.json. Check "
    "the path, and that the save was written to its end."
)
MSG_SAVE: Final = "{url} is not a save: {error}"


class Outline:
    """The files of an outline, and their objects.

    Attributes:
        path: the file or folder to load.
        objects: the object of each file, by the path of the file from the folder.
        others: the objects of files that the outline lacks, because no load needs them.
    """

    def __init__(self, folder: Path, place: Place, cache: BlockCache | None) -> None:
        self.folder = folder
        self.path: Path = folder
        self.place = place
        self.cache = cache
        self.objects: dict[str, RemoteObject] = {}
        self.others: dict[str, RemoteObject] = {}

    def add(self, name: str, place: Place, found: Found | None) -> RemoteObject:
        """Note the object of a file."""
        made = RemoteObject(place, cache=self.cache)
        if found is not None:
            made.note(found)
        self.objects[name] = made
        return made

    def write(self, name: str, content: bytes) -> None:
        """Write a file whose content is known."""
        target = self._checked(name)
        target.write_bytes(content)

    def make_hole(self, name: str, size: int) -> None:
        """Make a file of ``size`` bytes, or extend it, with a hole."""
        with self._checked(name).open("ab") as file:
            file.truncate(size)

    def _checked(self, name: str) -> Path:
        """Return the path of a file in the folder; refuse a name that leads out of it."""
        parts = Path(name).parts
        if ".." in parts or os.path.isabs(name):
            message = MSG_SAVE.format(url=self.place, error=f"it has a file {name!r}.")
            raise ValueError(message)
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


@contextlib.contextmanager
def outlined(
    place: Place, cache: BlockCache | None = None, near: Path | None = None
) -> Iterator[Outline]:
    """Make the outline of the save at a place, until the block ends.

    Args:
        place: the save.
        cache: the cache for blocks of the objects.
        near: the parent of the folder of the outline. Default: the temporary directory.

    Raises:
        FileNotFoundError: there is no save.
        ValueError: the objects at the place are not a save.
    """
    around = Path(tempfile.mkdtemp(prefix=".tensordict-outline-", dir=near))
    try:
        # A download makes this folder the copy of the save, with the usual permissions.
        folder = around / "save"
        folder.mkdir()
        outline = Outline(folder, place, cache)
        try:
            _fetch(outline)
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(MSG_SAVE.format(url=place, error=error)) from error
        yield outline
    finally:
        shutil.rmtree(around, ignore_errors=True)


def fill_outline(place: Place, folder: Path) -> None:
    """Make the outline of a save of several objects in a folder.

    Raises:
        FileNotFoundError: there is no save.
    """
    _fetch_folder(Outline(folder, place, None))


def _fetch(outline: Outline) -> None:
    place = outline.place
    if place.name.endswith((".safetensors", ".tdz", INDEX)):
        try:
            _fetch_one(outline)
        except FileNotFoundError:
            pass
        else:
            return
    try:
        _fetch_folder(outline)
    except FileNotFoundError as error:
        is_there = (outline.folder / META).exists()
        if is_there or not place.root:
            # An object of the save is missing.
            raise
        try:
            _fetch_one(outline)
        except FileNotFoundError as missing:
            if "no bucket" in str(missing):
                raise
            message = MSG_NO_SAVE.format(url=place)
            raise FileNotFoundError(2, message) from error


def _fetch_one(outline: Outline) -> None:
    """Read the metadata of a save in one object, or of safetensors shards by their index."""
    place = outline.place
    name = place.name
    if name.endswith(".safetensors"):
        # The name of a single file also means the index of shards.
        with contextlib.suppress(FileNotFoundError):
            return _fetch_index(outline, place.parent / f"{name}{INDEX}")
    if name.endswith(INDEX):
        return _fetch_index(outline, place)
    outline.path = outline.folder / name
    fetch_file(outline, name, outline.add(name, place, None))
    return None


def _fetch_index(outline: Outline, index: Place) -> None:
    content = index.get()
    outline.path = outline.folder / index.name
    outline.write(index.name, content)
    shards, _ = _rust.read_safetensors_index(os.fspath(outline.path))
    names = [os.path.relpath(file, outline.folder) for file, _ in shards]

    def fetch(name: str) -> None:
        fetch_file(outline, name, outline.add(name, index.parent / name, None))

    in_threads(fetch, names)


# Folders --------------------------------------------------------------------------------


def _fetch_folder(outline: Outline) -> None:
    """Read the metadata of a directory save: of the root, then of all levels."""
    place = outline.place
    listed: dict[str, Found] | None = None

    def ask(what: str) -> Any:
        return place.get(META) if what == META else _listed(place)

    content, listed = in_threads(ask, [META, "list"])
    manifest = read_manifest(content)
    if manifest is not None:
        return _fetch_by_manifest(outline, manifest)
    if listed is None:
        # A server without listing: the metadata tells the names.
        return _walk(outline, content)
    sources = {}
    for name, found in listed.items():
        source = RemoteObject(place / name, cache=outline.cache)
        source.note(found)
        sources[name] = source
    return _fetch_named(outline, {META: content}, sources)


def _fetch_by_manifest(outline: Outline, manifest: Manifest) -> None:
    """Read the metadata of a save whose manifest leads to the objects."""
    contents = {META: manifest.text, **manifest.texts}
    _fetch_named(
        outline,
        {name: text.encode() for name, text in contents.items()},
        dict(objects_of(outline.place, manifest, outline.cache)),
    )


def _fetch_named(
    outline: Outline, contents: dict[str, bytes], sources: dict[str, RemoteObject]
) -> None:
    """Read the metadata of a save whose objects are known.

    Args:
        outline: the outline that gets the files.
        contents: the contents of files that are read already, by name.
        sources: the objects of the other files, by the names of the files.
    """
    for name, content in contents.items():
        outline.write(name, content)

    def fetch(name: str) -> None:
        source = sources[name]
        if isinstance(source, PiecedObject):
            content = read_range(source, 0, source.size or 0)
        else:
            content = _content_of(source)
        contents[name] = content
        outline.write(name, content)

    in_threads(
        fetch, [name for name in sources if _is_read(name) and name not in contents]
    )
    whole = _whole_files(contents)
    for name, source in sources.items():
        if name.endswith(".memmap") and name not in whole:
            outline.objects[name] = source
            outline.make_hole(name, source.size or 0)
        elif name not in contents and name not in whole:
            outline.others[name] = source
    in_threads(fetch, [name for name in whole if name in sources])


def _content_of(source: RemoteObject) -> bytes:
    """Return all bytes of an object.

    Raises:
        RuntimeError: the object has changed since the listing.
    """
    content, found = source.place.get_with_tag()
    source.check(found)
    return content


def _listed(place: Place) -> dict[str, Found] | None:
    """List the objects of a save; return None if the store cannot list."""
    try:
        found = {each.name: each for each in place.list()}
    except (OSError, NotImplementedError):
        return None
    return {
        name: each
        for name, each in found.items()
        if name == CHECKSUMS or not name.startswith(GENERATION)
    } or None


def _is_read(name: str) -> bool:
    return name.rpartition("/")[2] in _ALSO_READ


def _whole_files(contents: Mapping[str, bytes]) -> set[str]:
    """Return the names of files of tensors that a load reads as a whole.

    They are the tables of the shapes of rows, and nested tensors outside of columns.
    """
    found = set()
    for name, content in contents.items():
        if not name.endswith(META):
            continue
        fields = json.loads(content)
        is_stack = str(fields.get("_class")).endswith(":ColumnStack")
        for key, entry in fields.items():
            if isinstance(entry, dict) and entry.get("is_nested"):
                ends = [".shape.memmap"] if is_stack else [".shape.memmap", ".memmap"]
                stems = _rust.escape_key(key), key
                found |= {
                    f"{name.removesuffix(META)}{stem}{end}"
                    for stem in stems
                    for end in ends
                }
    return found


def _walk(outline: Outline, root: bytes) -> None:
    """Read the levels of a directory save, if the store cannot list."""
    place = outline.place
    contents: dict[str, bytes] = {}
    levels = {META: root}
    while levels:
        below: list[str] = []
        files: list[str] = []
        for name, content in levels.items():
            outline.write(name, content)
            contents[name] = content
            folder = name.removesuffix(META)
            _note_level(json.loads(content), folder, below, files)
        files += _whole_files(levels)
        found = in_threads(lambda name: _got(place, name), [*below, *files])
        levels = {}
        for name, got in zip([*below, *files], found, strict=True):
            if got is not None and name in below:
                levels[name] = got
            elif got is not None:
                outline.write(name, got)
    outline.others[CHECKSUMS] = RemoteObject(place / CHECKSUMS)
    for name, content in contents.items():
        _add_leaves(outline, name.removesuffix(META), json.loads(content))
    in_threads(_note_version, list(outline.objects.values()))


def _note_version(source: RemoteObject) -> None:
    """Ask for the version of an object, so that every read is of this version."""
    # A read of the object raises the error.
    with contextlib.suppress(OSError):
        source.note(source.place.head())


def _got(place: Place, name: str) -> bytes | None:
    try:
        return place.get(name)
    except FileNotFoundError:
        return None


def _note_level(
    fields: Mapping[str, Any], folder: str, below: list[str], files: list[str]
) -> None:
    """Note the levels below a level, and the names of its possible files."""
    members = fields.get("_num_members")
    if members is not None:
        below += [f"{folder}{at}/{META}" for at in range(members)]
        return
    if "_class" not in fields and "tensorclass" not in str(fields.get("_type")):
        below.append(f"{folder}_tensordict/{META}")
    if "index" in fields:
        below.append(f"{folder}_source/{META}")
    if "data" not in fields and "NonTensor" in str(fields.get("_type")):
        files += [f"{folder}other.pickle", f"{folder}pickle.pkl"]
    for key, entry in fields.items():
        if isinstance(entry, dict) and entry.get("type") is not None:
            below.append(f"{folder}{_rust.escape_key(key)}/{META}")


def _add_leaves(outline: Outline, folder: str, fields: Mapping[str, Any]) -> None:
    from tensordict.storage.layouts.directory import ITEM_BYTES

    for key, entry in fields.items():
        if not isinstance(entry, dict) or "dtype" not in entry:
            continue
        stem = f"{folder}{_rust.escape_key(key)}"
        if entry.get("is_nested"):
            table = outline.folder / f"{stem}.shape.memmap"
            if not table.is_file() or (outline.folder / f"{stem}.memmap").is_file():
                continue
            sizes = memoryview(table.read_bytes()).cast("q").tolist()
            dims = entry["shape"][1]
            items = 0
            for at in range(0, len(sizes), dims):
                product = 1
                for size in sizes[at : at + dims]:
                    product *= size
                items += product
        else:
            items = 1
            for size in entry["shape"]:
                items *= size
        dtype = str(entry["dtype"]).removeprefix("torch.")
        if items:
            name = f"{stem}.memmap"
            outline.add(name, outline.place / name, None)
            outline.make_hole(name, items * ITEM_BYTES.get(dtype, 1))
