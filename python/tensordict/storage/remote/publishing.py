"""Upload the files of a save so that the save appears complete, or not at all.

A save of several objects is there when its *switch* is: ``meta.json``, which goes up last and
under a condition: of two concurrent writers, one gets an error. Its objects are

- plain, under the names of the files, where nothing is at the place. A *record*
  (:data:`RECORD`), which is made under a condition, keeps other writers from the same names
  and says which objects a writer that was killed has left.
- below ``.tensordict-<token>/`` where a save is there already, or another writer is at work.
  The switch is then a *manifest* of the objects. After the switch, the objects of the
  replaced save are deleted.

A save in one object is its own switch. ``docs/dev/object_stores.md`` has the format.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tensordict import _rust
from tensordict.storage.remote.errors import explained
from tensordict.storage.remote.manifests import (
    MANIFEST,
    SWITCH,
    Manifest,
    read_manifest,
)
from tensordict.storage.remote.options import obstore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from tensordict.storage.remote.place import Place

__all__ = [
    "CHECK_S",
    "LOCK",
    "OWN",
    "RECORD",
    "Helpers",
    "Uploads",
    "claim",
    "files_below",
    "forget",
    "in_threads",
    "missing_objects",
    "new_prefix",
    "put_switch",
    "read_record",
    "record_of",
    "refuse_missing",
    "switch_at",
    "upload_file",
    "upload_folder",
]

RECORD: Final = ".tensordict-objects"
"""The name of the object that lists the objects of a writer."""

LOCK: Final = ".tensordict-writer"
"""The name of the object that a writer of rows has while it is open."""

OWN: Final = ".tensordict-"
"""The beginning of names that no save of others has."""

THREADS: Final = 4
PARTS: Final = 6
PART: Final = 8 << 20
"""So many objects go up at a time, each in so many parts at a time, of so many bytes: 48 MiB
of memory a thread."""

_MOST_PARTS: Final = 9_000
"""S3 takes 10,000 parts of an object: parts of larger objects are larger."""

_UNKNOWN: Final = ("NotImplementedError", "NotSupportedError")
"""The errors of stores that put without conditions."""

_REFUSED: Final = ("AlreadyExistsError", "PreconditionError", "NotFoundError")
"""The errors of a put whose condition does not hold."""

_ATTEMPTS: Final = 10
"""So often a put under a condition is made whose answer is lost."""

CHECK_S: Final = 60.0
"""After an upload of so many seconds, the objects are listed before the switch goes up."""

MSG_LOST: Final = (
    "Another writer has saved to {url} meanwhile, and its save is there: this one was not "
    "published, and is removed. Save to a place of its own, or again."
)
MSG_CUT: Final = (
    "The file {} had {:,} bytes when its upload began, and was cut meanwhile. The object was not "
    "written: upload the file again when no program writes to it."
)
MSG_REMOVED: Final = (
    "Cannot publish the save: its object {} is gone. `tensordict clean` deletes the "
    "objects of a writer on another machine that began more than --older-than hours ago. What "
    "was at the place is as before: save again, and run clean with a larger number of hours."
)
MSG_CANCELLED: Final = "The save was cancelled: the store has no object of it."


class Helpers(Protocol):
    """Other processes that upload files of a folder."""

    def begin(self, objects: Mapping[str, str]) -> set[str]:
        """Tell them the objects, and return the names of the files that they leave."""
        ...

    def wait_for_others(self) -> None:
        """Wait until their objects are up, or raise that one has failed."""
        ...


class Uploads:
    """The progress of a save that goes up, as :class:`TensorDictFuture` asks for it."""

    def __init__(self) -> None:
        self.done: int = 0
        self.total: int = 0
        self.is_cancelled: bool = False
        self._lock: threading.Lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        """Count bytes of one of the threads as uploaded."""
        with self._lock:
            self.done += num_bytes

    def bytes(self) -> tuple[int, int]:
        """Bytes that are up, and bytes that have to go there."""
        return self.done, self.total

    def cancel(self) -> None:
        """Have the save stop before its next object."""
        self.is_cancelled = True

    def check(self) -> None:
        """Stop if that was asked for.

        Raises:
            RuntimeError: it was.
        """
        if self.is_cancelled:
            raise RuntimeError(MSG_CANCELLED)


def files_below(folder: Path) -> dict[str, Path]:
    """The files below a folder, by their names from there."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            found[path.relative_to(folder).as_posix()] = path
    return found


def upload_file(
    place: Place, file: Path, name: str = "", *, is_own: bool = False
) -> str | None:
    """Upload a file as one object, in parts if it is large; return its tag.

    Args:
        place: the folder of the object.
        file: the file.
        name: the name of the object below ``place``.
        is_own: whether this process made the file, so that no other program cuts it. Parts
            are mapped then, and not copied.
    """
    size = file.stat().st_size
    part = max(PART, -(-size // _MOST_PARTS))
    if size <= part:
        return place.put(name, file.read_bytes())
    parts = _parts(file, size, part, is_own)
    return place.put(name, parts, chunk_size=part, max_concurrency=PARTS)


def _parts(file: Path, size: int, part: int, is_own: bool) -> Iterator[Any]:
    """Give the parts of a file, each as memory that goes when the part is uploaded."""
    page = mmap.ALLOCATIONGRANULARITY
    with file.open("rb", buffering=0) as opened:
        for start in range(0, size, part):
            count = min(part, size - start)
            if is_own:
                begin = start // page * page
                mapped = mmap.mmap(
                    opened.fileno(),
                    start + count - begin,
                    flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
                    prot=mmap.PROT_READ,
                    offset=begin,
                )
                yield memoryview(mapped)[start - begin :]
            else:
                content = os.pread(opened.fileno(), count, start)
                if len(content) < count:
                    raise OSError(MSG_CUT.format(file, size))
                yield content


def upload_folder(
    folder: Path,
    place: Place,
    *,
    switch: str = SWITCH,
    references: Mapping[str, str] | None = None,
    progress: Uploads | None = None,
    may_replace: bool = True,
    kept: Collection[str] = (),
    helpers: Helpers | None = None,
    is_own: bool = False,
) -> dict[str, str]:
    """Upload the files of a folder, and the switch after them.

    Args:
        folder: the folder.
        place: the save that they become.
        switch: the name of the file that goes last.
        references: objects that are there already, as a path from ``place``, by the names
            of the files that they are the content of.
        progress: is told how far it is.
        may_replace: whether a save that is there may be replaced.
        kept: objects of the save before that stay, as a path from ``place``.
        helpers: other processes that upload some of the files.
        is_own: as for :func:`upload_file`.

    Returns:
        The objects of the files, as a path from ``place``, by their names.

    Raises:
        FileExistsError: there is a save and ``may_replace`` is not set; or another writer
            was faster.
        OSError: the store could not be written to.
        RuntimeError: it was cancelled, or an object is gone.
    """
    progress = progress or Uploads()
    references = references or {}
    files = files_below(folder)
    last = files.pop(switch)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    before = switch_at(place, switch)
    if before is not None and not may_replace:
        raise explained(FileExistsError(), place)
    own = {name: path for name, path in files.items() if name not in references}
    progress.total += sum(sizes[name] for name in own)
    began = time.monotonic()
    prefix, record = _claimed(place, before is None and not references, own)
    objects = {name: f"{prefix}{name}" for name in own} | dict(references)
    written = [*(objects[name] for name in own), record]
    mine = set(own)
    try:
        if helpers is not None:
            mine = helpers.begin({name: objects[name] for name in own})
        _upload_all(
            place,
            {objects[name]: path for name, path in own.items() if name in mine},
            progress,
            is_own=is_own,
        )
        if helpers is not None:
            helpers.wait_for_others()
        if time.monotonic() - began >= CHECK_S:
            missing = missing_objects(place, prefix, written)
            # A writer that was faster deletes objects, too: the put below says so.
            if missing and switch_at(place, switch) == before:
                refuse_missing(place, missing)
    except BaseException:
        forget(place, written)
        raise
    content = last.read_bytes()
    if prefix or references:
        placed = {name: (objects[name], sizes[name]) for name in files}
        content = Manifest(placed, content.decode()).to_bytes()
    try:
        put_switch(place, switch, content, before)
    except FileExistsError:
        # After any other error nobody knows whether the save is there.
        forget(place, written)
        raise
    if before is not None or prefix:
        _remove_the_one_before(
            place, before and before[0], {*objects.values(), *kept}, prefix
        )
    return objects


def missing_objects(place: Place, folder: str, names: Collection[str]) -> list[str]:
    """Return the objects that are not in the store, with one listing.

    Args:
        place: the place from which the names are paths.
        folder: the folder of all objects, as a path from ``place``.
        names: the objects.
    """
    there = {found.name for found in place.list(folder.rstrip("/"))}
    return sorted(set(names) - there)


def refuse_missing(place: Place, names: Collection[str]) -> None:
    """Refuse to publish a save if objects of the save are missing.

    Raises:
        RuntimeError: there is a missing object.
    """
    for name in names:
        raise RuntimeError(MSG_REMOVED.format(place / name))


def switch_at(place: Place, switch: str) -> tuple[bytes, str | None] | None:
    """Return the switch that is there, with its tag; None where there is none."""
    try:
        content, found = place.get_with_tag(switch)
    except FileNotFoundError:
        return None
    return content, found.e_tag


def _claimed(place: Place, is_empty: bool, files: Iterable[str]) -> tuple[str, str]:
    """Decide the names of the objects of a save, and say that they are being written.

    Returns:
        The prefix of their names, and the name of the record.
    """
    text = record_of(files)
    if is_empty and _is_created(place, RECORD, text):
        return "", RECORD
    prefix = new_prefix()
    place.put(f"{prefix}{RECORD}", text)
    return prefix, f"{prefix}{RECORD}"


def claim(place: Place, prefix: str, switch: str | None = None) -> None:
    """Say that a writer of this process makes objects below a prefix.

    Args:
        place: the save.
        prefix: the prefix of their names: a folder that no other writer has.
        switch: the path of the switch from the place, if the switch is elsewhere.
    """
    fields = {} if switch is None else {"switch": switch}
    place.put(f"{prefix}{RECORD}", record_of([], **fields))


def new_prefix() -> str:
    """Return the name of a folder for the objects of a writer, which no other has."""
    return f"{OWN}{uuid.uuid4().hex[:16]}/"


def record_of(files: Iterable[str], **fields: str) -> bytes:
    """Return the content of a record: which process writes which files, and since when."""
    about: dict[str, Any] = {
        "format": MANIFEST,
        "version": 1,
        "host": socket.gethostname(),
        "process": _rust.process_name(),
        "time": time.time(),
        "objects": sorted(files),
    }
    return json.dumps(about | fields).encode()


def _is_created(place: Place, name: str, content: bytes) -> bool:
    """Make an object that is not there; return False if it is, or stores cannot tell."""
    try:
        _put_under_a_condition(place, name, content, None)
    except FileExistsError:
        return False
    except NotImplementedError:
        return False
    return True


def put_switch(
    place: Place, name: str, content: bytes, before: tuple[bytes, str | None] | None
) -> str | None:
    """Put the object that makes a save be there, if nobody else has done so meanwhile.

    Args:
        place: the save.
        name: the name of the object.
        content: its content, which no other writer has.
        before: content and tag of the one that it replaces; None where there is none.

    Returns:
        The tag that it has now.

    Raises:
        FileExistsError: somebody has.
    """
    try:
        return _put_under_a_condition(place, name, content, before)
    except NotImplementedError:
        # Two writers at the very same moment are not told apart; others are.
        if switch_at(place, name) != before:
            raise FileExistsError(17, MSG_LOST.format(url=place / name)) from None
        return place.put(name, content)


def _put_under_a_condition(
    place: Place, name: str, content: bytes, before: tuple[bytes, str | None] | None
) -> str | None:
    """Put an object if there is none, or replace the known version.

    A put under a condition is not made again by the library when its answer is lost: this
    looks whether it was made, and makes it again.

    Raises:
        FileExistsError: somebody else has put one.
        NotImplementedError: the store puts without conditions.
    """
    mode: Any = "create"
    if before is not None:
        mode = "overwrite" if before[1] is None else {"e_tag": before[1]}
    for _ in range(_ATTEMPTS):
        try:
            library, key = obstore(place), place.key(name)
            tag: str | None = library.put(place.store, key, content, mode=mode)["e_tag"]
        except Exception as error:
            kind = type(error).__name__
            if kind in _UNKNOWN:
                raise NotImplementedError(str(place)) from error
            is_refused = kind in _REFUSED or isinstance(error, FileNotFoundError)
            if not is_refused and kind != "GenericError":
                raise explained(error, place / name) from error
            found = switch_at(place, name)
            if found is not None and found[0] == content:
                return found[1]
            if is_refused or found != before:
                raise FileExistsError(17, MSG_LOST.format(url=place / name)) from error
            failed = error
        else:
            return tag
    raise explained(failed, place / name) from failed


def _upload_all(
    place: Place, files: Mapping[str, Path], progress: Uploads, *, is_own: bool
) -> None:
    """Upload files, the largest first, some at a time."""

    def upload(name: str, path: Path) -> None:
        progress.check()
        upload_file(place, path, name, is_own=is_own)
        progress.add(path.stat().st_size)

    in_order = sorted(files, key=lambda name: -files[name].stat().st_size)
    in_threads(upload, [(name, files[name]) for name in in_order])
    progress.check()


def in_threads(work: Callable[..., object], calls: Iterable[tuple[Any, ...]]) -> None:
    """Make calls in a few threads; after one that raises no other begins.

    A pool of ``concurrent.futures`` takes no work when the interpreter is about to end,
    which waits for steps that go up in the background.
    """
    waiting = deque(calls)
    errors: list[BaseException] = []

    def take() -> None:
        while waiting and not errors:
            try:
                call = waiting.popleft()
            except IndexError:
                return
            try:
                work(*call)
            except BaseException as error:  # noqa: BLE001 (it is raised below)
                errors.append(error)

    threads = [
        threading.Thread(target=take, name="tensordict-upload")
        for _ in range(min(THREADS, len(waiting)) - 1)
    ]
    for thread in threads:
        thread.start()
    take()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def forget(place: Place, names: Iterable[str]) -> None:
    """Delete the objects of a failed save, as far as that is possible."""
    # The error is raised; `tensordict clean` finds the objects that are left.
    with suppress(Exception):
        place.delete(list(names))


def _remove_the_one_before(
    place: Place, switch: bytes | None, kept: set[str], prefix: str
) -> None:
    """Delete the objects of the save that was replaced, and of one that was given up.

    Objects that belong to no known save stay.
    """
    gone: set[str] = set()
    manifest = None if switch is None else read_manifest(switch)
    if manifest is not None:
        gone.update(manifest.keys())
        folders = {key.partition("/")[0] for key in gone if key.startswith(OWN)}
        gone.update(f"{folder}/{RECORD}" for folder in folders)
    record = read_record(place, RECORD)
    if record is not None and manifest is None:
        gone.update([*record["objects"], RECORD])
    # Objects of other saves, to which the manifest of this one leads, are theirs.
    gone = {name for name in gone if not name.startswith("../")}
    place.delete(sorted(gone - kept - {f"{prefix}{RECORD}"}))


def read_record(place: Place, name: str) -> dict[str, Any] | None:
    """Return the record of a writer; None if there is no record."""
    try:
        found: dict[str, Any] = json.loads(place.get(name))
    except (FileNotFoundError, ValueError):
        return None
    return found if found.get("format") == MANIFEST else None
