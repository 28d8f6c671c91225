"""The steps of a checkpointer in an object store: which there are, and their files.

A step is the folder ``step-<number>`` of objects, and is there when its ``meta.json`` is,
which is put last. With ``dedupe`` it is a manifest, which may lead to objects of older steps.
One that is deleted gets the object :data:`RETIRED`, loses its ``meta.json``, and then all
objects that no other step leads to.
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
