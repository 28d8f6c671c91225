"""The steps of a checkpointer in an object store: which there are, and their files.

A step is the folder ``step-<number>`` of objects, and is there when its ``meta.json`` is,
which is put last. With ``dedupe`` it is a manifest, which may lead to objects of older steps.
One that is deleted gets the object :data:`RETIRED`, loses its ``meta.json``, and then all
objects that no other step leads to.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tensordict.checkpoint.reading import StepFiles
from tensordict.checkpoint.steps import (
    META,
    Step,
    find_step,
    parse_meta,
    step_name,
    step_number,
    step_of,
)
from tensordict.storage.remote.fetching import (
    Saved,
    download_file,
    fetch_head,
)
from tensordict.storage.remote.manifests import Manifest, read_manifest
from tensordict.storage.remote.publishing import in_threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tensordict.storage.remote.place import Found, Place

__all__ = ["RETIRED", "RemoteStepFiles", "RemoteSteps"]

RETIRED = ".tensordict-retired"
"""The name of the object of a step that is deleted."""


class _Known:
    """A step whose switch was read.

    Args:
        tag: the tag of its switch.
        step: what is known of it.
        manifest: the manifest that it is; None for a plain one.
    """

    def __init__(self, tag: str | None, step: Step, manifest: Manifest | None) -> None:
        self.tag = tag
        self.step = step
        self.manifest = manifest

    def leads_to(self) -> set[str]:
        """The objects that its manifest leads to, as paths from the folder of steps."""
        if self.manifest is None:
            return set()
        name = step_name(self.step.number)
        keys = (key for key, _ in self.manifest.objects.values())
        return {key[3:] if key.startswith("../") else f"{name}/{key}" for key in keys}


class RemoteSteps:
    """The steps of a folder of a store, as they are now.

    Args:
        place: the folder.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._known: dict[int, _Known] = {}
        self._objects: dict[str, Found] = {}

    def saved(self) -> list[Step]:
        """The steps in the order in which they were saved."""
        objects = {found.name: found for found in self.place.list()}
        known: dict[int, _Known] = {}
        for name, found in objects.items():
            folder, _, file = name.partition("/")
            number = step_number(folder)
            if number is None or file != META:
                continue
            old = self._known.get(number)
            if old is not None and old.tag is not None and old.tag == found.e_tag:
                known[number] = old
                continue
            try:
                known[number] = self._read(number)
            except (FileNotFoundError, RuntimeError, ValueError):
                # Gone meanwhile, or damaged: then it is no step, and `verify` says so.
                continue
        self._known = known
        self._objects = objects
        steps = [each.step for each in known.values()]
        return sorted(steps, key=lambda step: (step.order, step.number))

    def _read(self, number: int) -> _Known:
        place = self.place / step_name(number)
        content, found = place.get_with_tag(META)
        manifest = read_manifest(content)
        text = content if manifest is None else manifest.text.encode()
        meta = parse_meta(text, place / META)
        step = step_of(cast("Path", place), number, meta)
        return _Known(found.e_tag, step, manifest)

    def find(self, number: int | None) -> Step:
        """A step by its number, or the one that was saved last.

        Raises:
            FileNotFoundError: there is none.
        """
        return find_step(self.saved(), number, self.place, self._unreadable)

    def _unreadable(self, number: int) -> Step | None:
        is_there = f"{step_name(number)}/{META}" in self._objects
        return self._read(number).step if is_there else None

    def has(self, key: str) -> bool:
        """Return whether there was an object at the last look, by its path from the folder."""
        return key in self._objects

    def referenced(self, number: int) -> set[str]:
        """The objects that other steps lead to, as paths from the folder of steps.

        Args:
            number: the step whose own manifest does not count.
        """
        others = (known for each, known in self._known.items() if each != number)
        return {key for known in others for key in known.leads_to()}

    def retire(self, numbers: Iterable[int]) -> None:
        """Delete steps, and what is left of others that were deleted.

        Objects that a step leads to stay.
        """
        for number in numbers:
            folder = step_name(number)
            self.place.put(f"{folder}/{RETIRED}", b"")
            self.place.delete([f"{folder}/{META}"])
        self.saved()
        retired = {
            name.partition("/")[0]
            for name in self._objects
            if name.endswith(f"/{RETIRED}")
        }
        kept = self.referenced(-1)
        for folder in retired:
            own = {name for name in self._objects if name.startswith(f"{folder}/")}
            if f"{folder}/{META}" in own:
                # It was saved again meanwhile.
                own = {f"{folder}/{RETIRED}"}
            marker = {f"{folder}/{RETIRED}"}
            self.place.delete(sorted(own - kept - marker))
            if not own & kept:
                self.place.delete(sorted(marker))


_FOLDERS: weakref.WeakSet[RemoteStepFiles] = weakref.WeakSet()


class RemoteStepFiles(StepFiles):
    """The tensors of the files of one step in a store: each file comes when it is asked for.

    Args:
        place: the step.
        num_threads: the most threads that read.
        heads_only: whether only the beginnings of files come, which say what they hold.
    """

    def __init__(
        self, place: Place, num_threads: int = 0, *, heads_only: bool = False
    ) -> None:
        content = place.get(META)
        manifest = read_manifest(content)
        text = content if manifest is None else manifest.text.encode()
        self.heads_only = heads_only
        self._switch = content
        self._place = place
        self._folder: Path = Path(tempfile.mkdtemp(prefix="tensordict-step-"))
        super().__init__(self._folder, num_threads)
        self.directory = cast("Path", place)
        (self._folder / META).write_bytes(text)
        self._is_kept: bool = False
        objects = {} if manifest is None else dict(manifest.objects)
        self._saved: Saved = Saved(place, cast("Any", objects), text)
        others = self._others(parse_meta(text, place / META))
        self._fetch([name for name in others if not name.endswith(".safetensors")])
        _FOLDERS.add(self)

    def _others(self, meta: Mapping[str, Any]) -> list[str]:
        """The descriptions of the parts of other ranks."""
        from tensordict.checkpoint.distributed import rank_file

        return [rank_file(rank) for rank in range(1, meta.get("world", 1))]

    def close(self) -> None:
        """Give the files back; what is mapped stays until this process ends."""
        super().close()
        if not self._mapped:
            self.remove()

    def remove(self) -> None:
        """Remove the files that came."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def is_current(self) -> bool:
        """Return whether the step is still what its name leads to."""
        try:
            return self._place.get(META) == self._switch
        except OSError:
            return False

    def paths(self, about: Mapping[str, Any]) -> list[str]:
        """The files of an item, which have come.

        Raises:
            RuntimeError: one is not in the step.
            OSError: it cannot be read.
        """
        paths = super().paths(about)
        self._fetch(about["files"])
        return paths

    def _object(self, name: str) -> Place:
        key = self._saved.objects.get(name, (name, None))[0]
        return self._place.reach(key)

    def _fetch(self, names: Iterable[str]) -> None:
        missing = [name for name in names if not (self._folder / name).exists()]
        in_threads(self._fetch_one, [(name,) for name in missing])

    def _fetch_one(self, name: str) -> None:
        path = self._folder / name
        half = path.with_name(f".half-{name}")
        if self.heads_only and name.endswith(".safetensors"):
            fetch_head(self._object(name), half)
        else:
            download_file(self._object(name), half)
        half.rename(path)

    def mapped_tensor(self, stored: Any) -> Any:
        """A tensor over the file that has come; stores stay in this process."""
        shown = self.directory
        self.directory: Path = self._folder
        try:
            return super().mapped_tensor(stored)
        finally:
            self.directory = shown


def _remove_folders() -> None:
    for files in list(_FOLDERS):
        files.remove()


atexit.register(_remove_folders)
