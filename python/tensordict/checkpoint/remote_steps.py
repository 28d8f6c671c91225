"""The steps of a checkpointer in an object store.

A step is the "folder" ``step-<number>`` of objects. Its ``meta.json`` is written last:
the step exists from then on. With ``dedupe``, ``meta.json`` is a manifest, which may
refer to objects of older steps. A deleted step gets the object :data:`RETIRED`, then
loses its ``meta.json``, then all objects to which no other step refers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tensordict.checkpoint.steps import (
    META,
    Step,
    find_step,
    parse_meta,
    step_name,
    step_number,
    step_of,
)
from tensordict.storage.remote.manifests import Manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tensordict.storage.remote.place import Found, Place

__all__ = ["RETIRED", "RemoteSteps"]

RETIRED = ".tensordict-retired"
"""The name of the object that marks a deleted step."""


class _Entry:
    """A step whose ``meta.json`` was read.

    Args:
        tag: the ETag of ``meta.json``.
        step: the facts about the step.
        manifest: the manifest; None if ``meta.json`` is a plain description.
    """

    def __init__(self, tag: str | None, step: Step, manifest: Manifest | None) -> None:
        self.tag = tag
        self.step = step
        self.manifest = manifest

    def leads_to(self) -> set[str]:
        """Return the objects of the manifest, as paths relative to the folder of steps."""
        if self.manifest is None:
            return set()
        name = step_name(self.step.number)
        keys = (key for key, _ in self.manifest.objects.values())
        return {key[3:] if key.startswith("../") else f"{name}/{key}" for key in keys}


class RemoteSteps:
    """The steps of a folder in an object store, listed anew at each call.

    Args:
        place: the folder.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._entries: dict[int, _Entry] = {}
        self._objects: dict[str, Found] = {}

    def saved(self) -> list[Step]:
        """Return the steps in the order in which they were saved."""
        objects = {found.name: found for found in self.place.list()}
        entries: dict[int, _Entry] = {}
        for name, found in objects.items():
            folder, _, file = name.partition("/")
            number = step_number(folder)
            if number is None or file != META:
                continue
            old_entry = self._entries.get(number)
            if (
                old_entry is not None
                and old_entry.tag is not None
                and old_entry.tag == found.e_tag
            ):
                entries[number] = old_entry
                continue
            try:
                entries[number] = self._read(number)
            except (FileNotFoundError, RuntimeError, ValueError):
                # Deleted meanwhile, or damaged. A damaged step is reported by `verify`.
                continue
        self._entries = entries
        self._objects = objects
        steps = [entry.step for entry in entries.values()]
        return sorted(steps, key=lambda step: (step.order, step.number))

    def _read(self, number: int) -> _Entry:
        place = self.place / step_name(number)
        content, found = place.get_with_tag(META)
        manifest = read_manifest(content)
        text = content if manifest is None else manifest.text.encode()
        meta = parse_meta(text, place / META)
        step = step_of(cast("Path", place), number, meta)
        return _Entry(found.e_tag, step, manifest)

    def find(self, number: int | None) -> Step:
        """Return a step by its number, or the step that was saved last.

        Raises:
            FileNotFoundError: there is no such step.
        """
        return find_step(self.saved(), number, self.place, self._unreadable)

    def _unreadable(self, number: int) -> Step | None:
        is_there = f"{step_name(number)}/{META}" in self._objects
        return self._read(number).step if is_there else None

    def has(self, key: str) -> bool:
        """Return whether the last listing contained an object, by its relative path."""
        return key in self._objects

    def referenced(self, number: int) -> set[str]:
        """Return the objects to which other steps refer, as paths relative to the folder.

        Args:
            number: the step whose own manifest is ignored.
        """
        others = (entry for other, entry in self._entries.items() if other != number)
        return {key for entry in others for key in entry.leads_to()}

    def retire(self, numbers: Iterable[int]) -> None:
        """Delete steps, and the remains of steps that were deleted before.

        Objects to which a step still refers are kept.
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
            own_objects = {
                name for name in self._objects if name.startswith(f"{folder}/")
            }
            if f"{folder}/{META}" in own_objects:
                # The step was saved again meanwhile.
                own_objects = {f"{folder}/{RETIRED}"}
            marker = {f"{folder}/{RETIRED}"}
            self.place.delete(sorted(own_objects - kept - marker))
            if not own_objects & kept:
                self.place.delete(sorted(marker))
