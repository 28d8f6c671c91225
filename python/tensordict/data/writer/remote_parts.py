"""Datasets in object stores: open them to write or read, and join their parts.

A part is a dataset in ``<url>.parts/<name>``; its objects are next to the objects of
the joined dataset. A join adds references to them to the dataset's manifest, and then
deletes the part. As on a disk, a join first writes ``<url>.parts/manifest.json`` with
the row at which each part begins, so that a killed join can be continued.
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
    "The parts of a dataset are next to it, but {} is the root of a store: give the dataset a "
    "path in the store."
)


def is_at_url(path: object) -> bool:
    """Return whether a path is in an object store. A ``file`` URL is on this machine."""
    return is_remote(path) and (scheme_of(path) or "").lower() != "file"


def opened(
    path: Any, part: str | int | None, storage_options: Mapping[str, Any] | None
) -> RemoteTree:
    """Open the dataset at a URL, or a part of it, for writing.

    Raises:
        RuntimeError: another writer has it open.
        ValueError: the URL contains something else, or the dataset's name is empty.
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
    """The published rows of a dataset at a URL.

    Args:
        path: the URL.
        storage_options: the options of the store.
    """

    poll_s: float = 0.2
    """The seconds between two requests of a waiting reader."""

    def __init__(self, path: Any, storage_options: Mapping[str, Any] | None) -> None:
        self.place: Place = place_of(path, storage_options)
        self._seen: bytes | None = None
        self._data: Any = None

    def load(self) -> Any:
        """Return the published rows; None if there are none."""
        found = switch_at(self.place, SWITCH)
        if found is not None and found[0] != self._seen:
            self._data = TensorDict.load_memmap(self.place)  # type: ignore[arg-type]
            self._seen = found[0]
        return self._data

    def class_names(self) -> dict[Any, list[str]]:
        """Return the class names by the keys of entries."""
        with outlined(self.place) as outline:
            return read_class_names(outline.path)

    def why_no_dataset(self) -> str | None:
        """Return why there is no dataset at the URL; None if a writer is at work there."""
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
            # Opening the part raises an error if a writer has it open.
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
    """Add the rows of a part, as far as the dataset does not contain them."""
    done = len(writer) - start
    tree = writer._open_tree()
    if done >= part.num_rows > 0:
        return
    if done > 0 or not tree.take_over(part):
        rows = TensorDict.load_memmap(part.place)  # type: ignore[arg-type]
        for at in range(max(0, done), part.num_rows, ROWS_AT_ONCE):
            writer.extend(rows[at : at + ROWS_AT_ONCE])
        if not part.num_rows:
            writer._expect(rows[:0])
    with outlined(part.place) as outline:
        tree.name_classes(read_class_names(outline.path))
    writer.flush()


def _planned(folder: Place, num_rows: int) -> list[tuple[str, int]]:
    """Return the remaining parts, each with the row at which it begins."""
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
