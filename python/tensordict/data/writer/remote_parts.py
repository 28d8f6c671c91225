"""Datasets in object stores: opened to be written or read, and joined of parts.

A part is a dataset of its own in ``<url>.parts/<name>``, whose objects lie beside those of the
dataset that it will be part of. A join lets the manifest of the dataset lead to them, and then
deletes the part. As on a disk, ``<url>.parts/manifest.json`` says first at which row each part
begins, so that a join that was killed goes on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tensordict import TensorDict
from tensordict.data.writer.parts import (
    MANIFEST,
    PARTS,
    ROWS_AT_ONCE,
    by_number,
    checked_name,
)
from tensordict.storage.growing.class_names import read_class_names
from tensordict.storage.locations import scheme_of
from tensordict.storage.remote.growing import RemoteTree
from tensordict.storage.remote.manifests import SWITCH
from tensordict.storage.remote.outline import outlined
from tensordict.storage.remote.place import Place, is_remote, place_of
from tensordict.storage.remote.publishing import LOCK, switch_at

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RemoteDataset", "is_at_url", "join", "opened"]

MSG_NO_NAME: Final = (
    "The parts of a dataset are beside it, and {} is all of a store: give the dataset a path "
    "in it."
)


def is_at_url(path: object) -> bool:
    """Return whether a path is in an object store. A ``file`` URL is on this machine."""
    return is_remote(path) and (scheme_of(path) or "").lower() != "file"


def opened(
    path: Any, part: str | int | None, storage_options: Mapping[str, Any] | None
) -> RemoteTree:
    """Open the dataset at a URL, or a part of it, to be written.

    Raises:
        RuntimeError: another writer has it open.
        ValueError: there is something else; or the part has no name.
    """
    place = place_of(path, storage_options)
    if part is None:
        return RemoteTree(place)
    return RemoteTree(_folder(place) / checked_name(part), place)


def _folder(place: Place) -> Place:
    """Return the place of the parts of a dataset."""
    if not place.name:
        raise ValueError(MSG_NO_NAME.format(place))
    return place.parent / f"{place.name}{PARTS}"


class RemoteDataset:
    """The rows that a writer has published at a URL.

    Args:
        path: the URL.
        storage_options: the options of the store.
    """

    poll_s: float = 0.2
    """A reader that waits asks the store so often."""

    def __init__(self, path: Any, storage_options: Mapping[str, Any] | None) -> None:
        self.place: Place = place_of(path, storage_options)
        self._seen: bytes | None = None
        self._data: Any = None

    def load(self) -> Any:
        """Return the rows that are published; None where there are none."""
        found = switch_at(self.place, SWITCH)
        if found is not None and found[0] != self._seen:
            self._data = TensorDict.load_memmap(self.place)  # type: ignore[arg-type]
            self._seen = found[0]
        return self._data

    def class_names(self) -> dict[Any, list[str]]:
        """Return the names of classes, by the keys of entries."""
        with outlined(self.place) as outline:
            return read_class_names(outline.path)

    def why_no_dataset(self) -> str | None:
        """Say why this is no URL of a dataset; None if a writer is at work there."""
        return None if self.place.exists(LOCK) else "there are no objects of one"


def join(
    writer_class: Any, path: Any, storage_options: Mapping[str, Any] | None
) -> int:
    """Add the rows of all parts to the dataset, and delete the parts."""
    place = place_of(path, storage_options)
    folder = _folder(place)
    with writer_class(place) as writer:
        for name, start in _planned(folder, len(writer)):
            part = folder / name
            # Opening it shows whether somebody writes to it now.
            tree = RemoteTree(part, place)
            try:
                if tree.root is not None:
                    _add(writer, tree, start)
                    part.delete([SWITCH])
                    place.delete(sorted(tree.objects() - writer._open_tree().objects()))
            finally:
                tree.close()
        count = len(writer)
    folder.delete([MANIFEST])
    return count


def _add(writer: Any, part: RemoteTree, start: int) -> None:
    """Add the rows of a part that begins at a row of the dataset, as far as they are not."""
    done = len(writer) - start
    own = writer._open_tree()
    if done >= part.num_rows > 0:
        return
    if done > 0 or not own.take_over(part):
        rows = TensorDict.load_memmap(part.place)  # type: ignore[arg-type]
        for at in range(max(0, done), part.num_rows, ROWS_AT_ONCE):
            writer.extend(rows[at : at + ROWS_AT_ONCE])
        if not part.num_rows:
            writer._expect(rows[:0])
    with outlined(part.place) as outline:
        own.name_classes(read_class_names(outline.path))
    writer.flush()


def _planned(folder: Place, num_rows: int) -> list[tuple[str, int]]:
    """List the parts that are still to be added, and the row at which each begins."""
    try:
        planned = json.loads(folder.get(MANIFEST))["parts"]
    except FileNotFoundError:
        names = {found.name.partition("/")[0] for found in folder.list()}
        if not names:
            return []
        planned = []
        for name in sorted(names, key=by_number):
            planned.append([name, num_rows])
            if (folder / name).exists(SWITCH):
                rows = TensorDict.load_memmap(folder / name)  # type: ignore[arg-type]
                num_rows += rows.batch_size[0]
        text = json.dumps({"version": 1, "parts": planned})
        folder.put(MANIFEST, text.encode())
    return [(name, start) for name, start in planned]
