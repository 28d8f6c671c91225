"""Datasets in object stores: open them to write or read, and join their parts.

A part is a dataset in ``<url>.parts/<name>``; its objects are next to the objects of
the joined dataset. A join adds references to all of them to the dataset's manifest, and then
deletes the parts. Before the join publishes that manifest, it writes the plan,
``<url>.parts/manifest.json``. The plan and the manifest have the same token: if a join was
killed, the token shows whether the dataset has the rows of the parts.
"""

from __future__ import annotations

import json
import uuid
from contextlib import ExitStack
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

_VERSION: Final = 2
"""The version of the plan of a join."""

MSG_GROWN: Final = (
    "The part {} has {} rows, and a join that was killed added {} rows of it to {}: the dataset "
    "has these rows already. Write the further rows of the part to a part of another name, "
    "delete this part, and call `DatasetWriter.join` again."
)
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
    """Add the rows of all parts to the dataset in one publication, and delete the parts.

    Raises:
        RuntimeError: a writer has the dataset or a part open, or a part has got rows since
            a join that was killed.
        ValueError: the rows of a part do not fit the rows of the dataset. The dataset and
            all parts stay as they were.
    """
    place = place_of(path, storage_options)
    folder = _folder(place)
    with ExitStack() as opened_parts:
        writer = writer_class(place)
        opened_parts.callback(writer.abandon)
        tree = writer._open_tree()
        planned = _planned(folder)
        if planned is not None and planned["token"] == tree.joined:
            parts = _open_joined(opened_parts, folder, place, planned["parts"])
        else:
            parts = _add_all(writer, opened_parts, folder, place)
        count = len(writer)
        writer.flush()
        used = tree.objects()
        for part in parts:
            part.place.delete([SWITCH])
            place.delete(sorted(part.objects() - used))
        folder.delete([MANIFEST])
    return count


def _planned(folder: Place) -> Any:
    """Return the plan of a join that was killed; None if there is none."""
    try:
        planned = json.loads(folder.get(MANIFEST))
    except FileNotFoundError:
        return None
    return planned if planned.get("version") == _VERSION else None


def _open_joined(
    opened_parts: ExitStack,
    folder: Place,
    home: Place,
    planned: list[tuple[str, int]],
) -> list[RemoteTree]:
    """Open the parts whose rows the dataset has, and that are not deleted yet."""
    parts = []
    for name, num_rows in planned:
        if (folder / name).exists(SWITCH):
            part = RemoteTree(folder / name, home)
            opened_parts.callback(part.close)
            parts.append(part)
            part.close_files()
            if part.num_rows != num_rows:
                found = part.num_rows
                message = MSG_GROWN.format(part.place, found, num_rows, home)
                raise RuntimeError(message)
    return parts


def _add_all(
    writer: Any, opened_parts: ExitStack, folder: Place, home: Place
) -> list[RemoteTree]:
    """Add the rows of all parts to the dataset, without publishing the rows."""
    parts = []
    names = {found.name.partition("/")[0] for found in folder.list()} - {MANIFEST}
    for name in sorted(names, key=by_number):
        # Opening the part raises an error if a writer has it open.
        part = RemoteTree(folder / name, home)
        opened_parts.callback(part.close)
        if part.root is not None:
            parts.append(part)
            _add(writer, part)
        part.close_files()
    if parts:
        tree = writer._open_tree()
        tree.joined = uuid.uuid4().hex
        planned = [(part.place.name, part.num_rows) for part in parts]
        plan = {"version": _VERSION, "token": tree.joined, "parts": planned}
        folder.put(MANIFEST, json.dumps(plan).encode())
    return parts


def _add(writer: Any, part: RemoteTree) -> None:
    """Add the rows of a part."""
    tree = writer._open_tree()
    if not tree.take_over(part):
        rows = TensorDict.load_memmap(part.place)  # type: ignore[arg-type]
        for at in range(0, part.num_rows, ROWS_AT_ONCE):
            writer.extend(rows[at : at + ROWS_AT_ONCE])
        if not part.num_rows:
            writer._expect(rows[:0])
    with outlined(part.place) as outline:
        tree.name_classes(read_class_names(outline.path))
