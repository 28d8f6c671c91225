"""A dataset in a store, opened to add rows.

New rows are written to files in a temporary folder. The files are those of a local dataset, with
holes for bytes that are in the store. When 64 MiB of new bytes have gathered, a thread uploads
them as one object. ``publish`` uploads the rest and puts a manifest, under the condition that
the previous manifest is still there. The manifest lists the objects of the bytes of each file.
"""

from __future__ import annotations

import ctypes
import json
import os
import posixpath
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tensordict import _rust
from tensordict.storage.growing.publish import CHECKSUMS, METADATA, replace_file
from tensordict.storage.growing.tree import MSG_NO_SAVE, GrowingTree
from tensordict.storage.remote.fetching import saved_at
from tensordict.storage.remote.manifests import SWITCH, Manifest, Piece
from tensordict.storage.remote.outline import fill_outline
from tensordict.storage.remote.publishing import (
    OWN,
    PART,
    PARTS,
    RECORD,
    claim,
    forget,
    missing_objects,
    new_prefix,
    put_switch,
    switch_at,
)
from tensordict.storage.remote.writer_lock import PlaceLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensordict.storage.growing.column import Column
    from tensordict.storage.growing.file import GrowingFile
    from tensordict.storage.growing.rows import Level
    from tensordict.storage.growing.tree import TreeLevel
    from tensordict.storage.remote.place import Place

__all__ = ["RemoteTree"]

OBJECT_BYTES: Final = 64 << 20
"""The number of new bytes that starts an upload."""

RECORD_S: Final = 3600.0
"""A writer renews its record after this number of seconds."""

_PUNCH: Final = 3
"""The flags of ``fallocate`` to make a hole without changing the size of the file."""

_FOLDER: Final = "tensordict-writer-"
"""The beginning of the names of the folders in which rows gather."""

MSG_SUPERSEDED: Final = (
    "Another writer has published rows at {} since this writer was opened: the rows since the "
    "last flush of this writer are lost. Give each process a part of its own: "
    "DatasetWriter(url, part=...)."
)
MSG_REMOVED: Final = (
    "Cannot publish the rows at {}: the object {} of rows since the last flush is gone. "
    "`tensordict clean` deletes the objects of a writer on another machine that has uploaded "
    "nothing for --older-than hours. The dataset has the rows up to the last flush: call "
    "abandon() of this writer, open the dataset again, and write the later rows again."
)
MSG_PART_REMOVED: Final = (
    "Cannot publish the rows of the parts at {}: the object {} of a part is gone. The dataset "
    "and the parts are as before: restore the object, or delete the objects below {} and write "
    "the rows of the part again."
)


class _Run(NamedTuple):
    """A run of bytes of a file in the folder."""

    name: str
    start: int
    stop: int


class _Upload:
    """The upload of one object, in its own thread."""

    def __init__(self, tree: RemoteTree, key: str, runs: list[_Run]) -> None:
        self.key = key
        self.runs = runs
        self.error: BaseException | None = None
        self._tree = tree
        self._thread = threading.Thread(target=self._work, name="tensordict-rows")
        self._thread.start()

    def _work(self) -> None:
        try:
            self._tree._put(self.key, self.runs)
        except BaseException as error:  # noqa: BLE001 - the writer raises it
            self.error = error

    def wait(self) -> None:
        """Wait until the upload has ended."""
        self._thread.join()


class RemoteTree(GrowingTree):
    """A dataset in a store, opened to append rows.

    Args:
        place: the dataset.
        home: the folder of the objects. A part of a dataset has its objects in the folder of the
            dataset. Default: ``place``.

    Raises:
        RuntimeError: another writer of this machine has the dataset open.
        ValueError: the place contains other objects, or a save that cannot grow.
    """

    def __init__(self, place: Place, home: Place | None = None) -> None:
        self.place = place
        self.home: Place = home or place
        self.joined: str | None = None
        """The token of the last join of parts to the dataset."""
        self._prefix = new_prefix()
        self._num_objects = 0
        self._recorded: float | None = None
        self._upload: _Upload | None = None
        self._unpublished: list[str] = []
        self._taken_over: dict[str, tuple[Place, RemoteTree]] = {}
        self._pieces: dict[str, list[Piece]] = {}
        self._sent: dict[str, int] = {}
        self._others: dict[str, tuple[str, int]] = {}
        self._attempted: bytes | None = None
        self._is_superseded = False
        self._file_list: list[tuple[str, GrowingFile]] = []
        self._replaced: set[str] = set()
        self._place_lock = PlaceLock(place)
        self._folder: str = _made_folder()
        try:
            self._before = switch_at(place, SWITCH)
            if self._before is None:
                self._refuse_other_objects()
            else:
                self._fetch()
            super().__init__(self._folder, has_room=False)
            self._note_files()
        except BaseException:
            self._place_lock.release()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    # Opening ----------------------------------------------------------------------------

    def _refuse_other_objects(self) -> None:
        """Raise an error if the place has objects of other programs."""
        is_taken = bool(self.place.root) and self.place.exists()
        for found in self.place.list():
            is_taken |= not found.name.startswith(OWN)
            if is_taken:
                break
        if is_taken:
            raise ValueError(MSG_NO_SAVE.format(self.place))

    def _fetch(self) -> None:
        """Create the files of the dataset, with holes for the bytes of its tensors."""
        fill_outline(self.place, Path(self._folder))
        saved = saved_at(self.place)
        if saved.manifest is not None:
            self._replaced = saved.manifest.keys()
        for name, (key, size) in saved.objects.items():
            self._replaced.add(key)
            if name.endswith(".memmap"):
                self._pieces[name] = [Piece(key, 0, size or 0)]
            elif Path(name).name not in (METADATA, CHECKSUMS, RECORD):
                self._others[name] = key, size or 0
        if saved.manifest is None:
            self._replaced.add(RECORD)
        else:
            self._pieces.update(saved.manifest.pieces)
            self.joined = saved.manifest.joined

    def _note_files(self) -> None:
        """Note which bytes of each file are in the store, up to the published rows."""
        for name, file in self._files():
            self._sent[name] = file.size
            self._pieces[name] = _cut(self._pieces.get(name, []), file.size)

    def _files(self) -> Iterator[tuple[str, GrowingFile]]:
        for level in self._levels():
            for column in level.columns.values():
                for file in column.files():
                    yield os.path.relpath(file.path, self.path), file

    # Adding -----------------------------------------------------------------------------

    def add(self, level: Level, count: int, is_strict: bool = False) -> None:
        """Add all rows, or none in case of an error."""
        self._send_some()
        super().add(level, count, is_strict)

    def add_row(self, entries: Mapping[str, Any]) -> bool:
        """Add a row whose tensors have the form of the previous rows."""
        self._send_some()
        return super().add_row(entries)

    def reserve(self, num_rows: int) -> None:
        """Do nothing: a store cannot reserve space."""

    def _send_some(self) -> None:
        """Upload new bytes if there are enough of them.

        Raises:
            OSError: the previous upload failed. Its bytes are kept for the next upload.
            RuntimeError: an uploaded object is gone.
        """
        if self._unpublished:
            self._say_that_it_runs()
        count = sum(
            file.size - self._sent.get(name, 0) for name, file in self._named_files()
        )
        in_flight = self._upload
        if in_flight is not None:
            count -= sum(stop - start for _, start, stop in in_flight.runs)
        if count >= OBJECT_BYTES:
            self._wait()
            self._send()

    def _named_files(self) -> list[tuple[str, GrowingFile]]:
        """Return the files with their names, listed again if a table of shapes was added."""
        num_files = sum(
            1 if column.table is None else 2
            for level in self._levels()
            for column in level.columns.values()
        )
        if len(self._file_list) != num_files:
            self._file_list = list(self._files())
        return self._file_list

    def _send(self) -> None:
        """Begin to upload the bytes that the store lacks."""
        runs = []
        for name, file in self._files():
            file.write_out()
            start = self._sent.get(name, 0)
            if file.size > start:
                runs.append(_Run(name, start, file.size))
        if not runs:
            return
        self._say_that_it_runs()
        self._num_objects += 1
        key = f"{self._prefix}{self._num_objects:06d}"
        self._upload = _Upload(self, key, runs)

    def _say_that_it_runs(self) -> None:
        now = time.monotonic()
        if self._recorded is not None and now - self._recorded < RECORD_S:
            return
        is_late = self._recorded is not None
        switch = None
        if self.home is not self.place:
            switch = f"{path_between(self.home, self.place)}/{SWITCH}"
        claim(self.home, self._prefix, switch)
        self._recorded = now
        if is_late:
            self._check_objects()

    def _check_objects(self) -> None:
        """Check that the objects that the next manifest adds are in the store.

        Raises:
            RuntimeError: an object is gone.
        """
        if self._unpublished:
            for key in missing_objects(self.home, self._prefix, self._unpublished):
                raise RuntimeError(MSG_REMOVED.format(self.place, self.home / key))
        folders: dict[str, tuple[Place, RemoteTree, set[str]]] = {}
        for taken, part in self._taken_over.values():
            folder = taken.parent
            folders.setdefault(folder.root, (folder, part, set()))[2].add(taken.name)
        for folder, part, names in folders.values():
            for name in missing_objects(folder, "", names):
                gone = folder / name
                message = MSG_PART_REMOVED.format(self.place, gone, part.place)
                raise RuntimeError(message)

    def _put(self, key: str, runs: list[_Run]) -> None:
        """Put runs of bytes as one object."""
        size = sum(stop - start for _, start, stop in runs)
        chunks = self._chunks(runs)
        if size <= PART:
            self.home.put(key, b"".join(chunks))
        else:
            self.home.put(key, chunks, chunk_size=PART, max_concurrency=PARTS)

    def _chunks(self, runs: list[_Run]) -> Iterator[bytes]:
        for name, start, stop in runs:
            with open(os.path.join(self.path, name), "rb") as file:
                for at in range(start, stop, PART):
                    yield os.pread(file.fileno(), min(PART, stop - at), at)

    def _wait(self) -> None:
        """Wait for the upload, and note its object as the place of the bytes.

        Raises:
            OSError: the upload failed. Its bytes are part of the next upload.
        """
        upload, self._upload = self._upload, None
        if upload is None:
            return
        upload.wait()
        if upload.error is not None:
            raise upload.error
        self._unpublished.append(upload.key)
        reached, at = self._reached(upload.key), 0
        for name, start, stop in upload.runs:
            piece = Piece(reached, at, stop - start)
            self._pieces.setdefault(name, []).append(piece)
            self._sent[name] = stop
            at += stop - start
            _make_hole(os.path.join(self.path, name), start, stop)

    def _reached(self, key: str) -> str:
        """Return the path of an object in the home from the place."""
        if self.home is self.place:
            return key
        return f"{path_between(self.place, self.home)}/{key}"

    # Taking over ------------------------------------------------------------------------

    def take_over(self, other: RemoteTree) -> bool:
        """Add all rows of another dataset in the same store, without reading them.

        Args:
            other: the dataset, which is opened and not changed.

        Returns:
            False, with nothing added, if the rows do not have the form of the rows here.

        Raises:
            OSError: the store cannot be written to.
        """
        if other.root is None:
            return False
        if self.root is None:
            if any(level.constants for level in other.root.below()):
                return False
            self._adopt(other)
        root = self._top()
        pairs = _paired(root, other.root)
        if pairs is None:
            return False
        for own, given in pairs:
            own.make_room_for(given)
        self._wait()
        self._send()
        self._wait()
        for own, given in pairs:
            for file, source in zip(own.files(), given.files(), strict=False):
                self._refer(file, other, source)
            own.count_rows_of(given)
        self._mark_ragged(root)
        self._count_rows(other.num_rows)
        return True

    def objects(self) -> set[str]:
        """Return the objects of the rows and their records, as paths from the home."""
        keys = {piece.key for pieces in self._pieces.values() for piece in pieces}
        found = {path_between(self.home, self.place.reach(key)) for key in keys}
        folders = {key.partition("/")[0] for key in found if key.startswith(OWN)}
        return found | {f"{folder}/{RECORD}" for folder in folders}

    def _adopt(self, other: RemoteTree) -> None:
        """Create the levels and columns of another dataset, without rows."""
        for parent, _, names in os.walk(other.path):
            if METADATA not in names:
                continue
            folder = os.path.join(self.path, os.path.relpath(parent, other.path))
            os.makedirs(folder, exist_ok=True)
            fields = json.loads(Path(parent, METADATA).read_text(encoding="utf-8"))
            for entry in (fields, *fields.values()):
                if isinstance(entry, dict) and "shape" in entry:
                    entry["shape"][0] = 0
            replace_file(os.path.join(folder, METADATA), json.dumps(fields))
        self._open()
        self._is_changed = True

    def _refer(self, file: GrowingFile, other: RemoteTree, source: GrowingFile) -> None:
        """Append the bytes of a file of another dataset to a file here, by reference."""
        name = os.path.relpath(file.path, self.path)
        pieces = self._pieces.setdefault(name, [])
        for key, start, size in other._pieces[os.path.relpath(source.path, other.path)]:
            taken = other.place.reach(key)
            self._taken_over[taken.root] = taken, other
            path = path_between(self.place, taken)
            pieces.append(Piece(path, start, size))
        file.skip(source.size)
        self._sent[name] = file.size

    # Publishing -------------------------------------------------------------------------

    def publish(self, is_durable: bool = False) -> None:
        """Publish all added rows to readers in one step.

        Raises:
            FileExistsError: another writer has published since this one was opened.
            OSError: the store cannot be written to. The rows are kept.
            RuntimeError: an object of the rows is gone. The dataset is unchanged.
        """
        if not self._is_changed or self.root is None:
            return
        if self._is_superseded:
            raise FileExistsError(17, MSG_SUPERSEDED.format(self.place))
        self._wait()
        # Objects of this call alone are not checked: `clean` has had no time to delete them.
        had_objects = bool(self._unpublished or self._taken_over)
        self._send()
        self._wait()
        for folder, fields in self._written_out(False).items():
            path = os.path.join(self.path, folder, METADATA)
            replace_file(path, json.dumps(fields))
        manifest = self._manifest()
        if had_objects:
            self._check_objects()
        self._put_manifest(manifest.to_bytes())
        self._unpublished.clear()
        self._taken_over.clear()
        self._note_published()
        gone, self._replaced = self._replaced - manifest.keys(), set()
        forget(self.place, [key for key in gone if not key.startswith("../")])

    def _manifest(self) -> Manifest:
        texts = {}
        for parent, _, names in os.walk(self.path):
            if METADATA in names:
                path = Path(parent, METADATA)
                name = path.relative_to(self.path).as_posix()
                texts[name] = path.read_text(encoding="utf-8")
        pieces = {name: runs for name, runs in self._pieces.items() if runs}
        text = texts.pop(METADATA)
        return Manifest(self._others, text, pieces, texts, self.joined)

    def _put_manifest(self, content: bytes) -> None:
        before = self._before
        if self._attempted is not None:
            # A put whose answer was lost may have been made.
            found = switch_at(self.place, SWITCH)
            if found is not None and found[0] == self._attempted:
                before = found
        self._attempted = content
        try:
            tag = put_switch(self.place, SWITCH, content, before)
        except FileExistsError as error:
            self._is_superseded = True
            self._attempted = None
            self._drop()
            raise FileExistsError(17, MSG_SUPERSEDED.format(self.place)) from error
        self._before = content, tag
        self._attempted = None

    def _drop(self) -> None:
        """Remove the objects of unpublished rows."""
        if self._upload is not None:
            self._upload.wait()
            self._unpublished.append(self._upload.key)
            self._upload = None
        if self._attempted is not None:
            # The answer of the last put was lost: the manifest may lead to the objects.
            self._unpublished.clear()
            return
        record = f"{self._prefix}{RECORD}"
        gone = [*self._unpublished, record]
        if any(key.startswith(self._prefix) for key in self.objects().difference(gone)):
            gone.remove(record)
        elif self._recorded is None:
            gone.clear()
        forget(self.home, gone)
        self._unpublished.clear()

    def close(self) -> None:
        """Remove the objects of unpublished rows, and release the lock."""
        try:
            self._drop()
        finally:
            self.close_files()
            self._place_lock.release()

    def forget(self) -> None:
        """Close the files without a request: `tensordict clean` removes the remaining objects."""
        self.close_files()
        self._place_lock.forget()

    def close_files(self) -> None:
        """Close and remove the files of rows. The lock is kept, and the list of objects."""
        try:
            super().close()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def _made_folder() -> str:
    """Create a folder for new rows, and remove the folders of processes that have ended."""
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        owner = left.name.removeprefix(_FOLDER).partition(".")[0]
        if _rust.process_has_ended(owner):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_FOLDER}{_rust.process_name()}.")


def path_between(start: Place, target: Place) -> str:
    """Return the path from one place of a store to another.

    Examples:
        >>> from tensordict.storage.remote.place import place_of
        >>> start, target = place_of("memory://a/parts/0"), place_of("memory://a/data")
        >>> path_between(start, target)
        '../../data'
    """
    return posixpath.relpath(f"/{target.root}", f"/{start.root}")


def _cut(pieces: list[Piece], size: int) -> list[Piece]:
    """Return the pieces of the first ``size`` bytes of a file."""
    kept = []
    for key, start, count in pieces:
        count = min(count, size)
        if count:
            kept.append(Piece(key, start, count))
        size -= count
    return kept


def _paired(own: TreeLevel, other: TreeLevel) -> list[tuple[Column, Column]] | None:
    """Return the pairs of columns of two levels; None if the levels or columns differ."""
    is_same = own.class_name == other.class_name and not own.constants
    is_same &= not other.constants and set(own.keys) == set(other.keys)
    is_same &= own.columns.keys() == other.columns.keys()
    tail, given = own.fields["shape"][1:], other.fields["shape"][1:]
    dims = own.fields.get("_row_dims", len(tail))
    is_same &= tail == given and dims == other.fields.get("_row_dims", len(given))
    if not is_same:
        return None
    pairs = []
    for name, column in own.columns.items():
        if not column.holds_rows_of(other.columns[name]):
            return None
        pairs.append((column, other.columns[name]))
    for name, child in own.children.items():
        below = _paired(child, other.children[name])
        if below is None:
            return None
        pairs += below
    return pairs


def _make_hole(path: str, start: int, stop: int) -> None:
    """Free the disk space of some bytes of a file, if the file system can."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is None:
        return
    descriptor = os.open(path, os.O_RDWR)
    try:
        call(descriptor, _PUNCH, ctypes.c_int64(start), ctypes.c_int64(stop - start))
    finally:
        os.close(descriptor)
