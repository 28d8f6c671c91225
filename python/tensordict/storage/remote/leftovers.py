"""Find and remove the objects that killed writers have left in a store."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tensordict import _rust
from tensordict.storage.remote.errors import naming
from tensordict.storage.remote.manifests import SWITCH, read_manifest
from tensordict.storage.remote.options import obstore
from tensordict.storage.remote.publishing import LOCK, OWN, RECORD, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.storage.remote.manifests import Manifest
    from tensordict.storage.remote.place import Place

__all__ = ["Leftover", "find_leftovers", "remove_leftovers"]

RETIRED: Final = ".tensordict-retired"

_GENERATION: Final = re.compile(re.escape(OWN) + "[0-9a-f]{16}")
_SHARD: Final = re.compile(r"(.+)-([0-9a-f]{16})-[0-9]{5}-of-[0-9]{5}(\.safetensors)")


class Leftover(NamedTuple):
    """Objects that no save has."""

    name: str
    """The folder that they are in, or the save that was to be."""
    reason: str
    objects: list[str]
    num_bytes: int


class _Listed(NamedTuple):
    size: int
    time: float


def find_leftovers(place: Place, older_than: float = 24.0) -> list[Leftover]:
    """List the objects that belong to no save and to no running writer.

    Args:
        place: the folder that is looked through, at any depth.
        older_than: the hours after which a writer on another machine is taken to have
            ended. A process of this machine that runs has not ended, at any age, and one
            that has ended counts as ended at once.

    Raises:
        OSError: the store cannot be read.
    """
    objects = _listed(place)
    records = _records(place, objects)
    # Before the switches: a dataset takes objects over before others lose them.
    foreign = set(_of_other_places(place, records))
    used, switches = _used(place, objects, records)
    used |= foreign
    found: list[tuple[str, str, list[str]] | None] = []
    for name in objects:
        folder, _, file = name.rpartition("/")
        if file == RECORD:
            record = records.get(name)
            found.append(_of_record(name, record, objects, switches, older_than))
        elif file == LOCK:
            found.append(_of_lock(place, name, older_than))
        elif file == RETIRED and _below(folder, SWITCH) not in objects:
            own = [each for each in objects if each.startswith(f"{folder}/")]
            # The marker goes when nothing else is left.
            rest = [each for each in own if each not in used]
            if rest != [name] or len(own) == 1:
                found.append((folder, "a step that was deleted", rest))
    found += _of_shards(place, objects, records, older_than)
    taken: set[str] = set()
    leftovers = []
    for about in found:
        if about is None:
            continue
        folder, reason, names = about
        rest = [each for each in names if each in objects and each not in used | taken]
        if any(each in used for each in names) and reason == "a step that was deleted":
            rest = [each for each in rest if not each.endswith(RETIRED)]
        taken.update(rest)
        if rest:
            size = sum(objects[each].size for each in rest)
            leftovers.append(Leftover(folder, reason, sorted(rest), size))
    return leftovers


def remove_leftovers(place: Place, leftovers: list[Leftover]) -> None:
    """Delete leftovers.

    Raises:
        OSError: the store cannot be written to.
    """
    for leftover in leftovers:
        # Records and markers go last: after a kill, the next call finds the rest.
        first = [name for name in leftover.objects if f"/{OWN}" not in f"/{name}"]
        place.delete(first)
        place.delete([name for name in leftover.objects if name not in first])


def _listed(place: Place) -> dict[str, _Listed]:
    cut = len(place.root) + 1 if place.root else 0
    found = {}
    with naming(place):
        for part in obstore(place).list(place.store, place.key() or None):
            for each in part:
                moment = each["last_modified"].timestamp()
                found[each["path"][cut:]] = _Listed(each["size"], moment)
    return found


def _records(place: Place, objects: dict[str, _Listed]) -> dict[str, dict[str, Any]]:
    """Read the records of all writers, by their names."""
    names = [name for name in objects if name.rpartition("/")[2] == RECORD]
    found = ((name, read_record(place, name)) for name in names)
    return {name: record for name, record in found if record is not None}


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _used(
    place: Place, objects: dict[str, _Listed], records: dict[str, dict[str, Any]]
) -> tuple[set[str], dict[str, bool]]:
    """Return the objects of saves, and of each switch whether it is a manifest."""
    used: set[str] = set()
    switches: dict[str, bool] = {}
    # The `meta.json` of a nested level is an object of a save, and not the switch of one,
    # unless a save of its own was put there later.
    nested = {
        _below(name.rpartition("/")[0], each)
        for name, record in records.items()
        for each in record["objects"]
    }
    for name in objects:
        folder, _, file = name.rpartition("/")
        is_own = name not in nested or _below(folder, RECORD) in records
        is_switch = file == SWITCH and is_own
        if not is_switch or _GENERATION.search(f"/{folder}/"):
            continue
        try:
            manifest = read_manifest(place.get(name))
        except (FileNotFoundError, ValueError):
            continue
        switches[name] = manifest is not None
        used.add(name)
        if manifest is None:
            record = records.get(_below(folder, RECORD))
            own = [] if record is None else record["objects"]
            used.update(_below(folder, each) for each in [*own, RECORD])
            continue
        used.update(_with_records(folder, manifest))
    return used, switches


def _with_records(folder: str, manifest: Manifest) -> Iterator[str]:
    """Give the objects of a manifest in a folder, and the records of their writers."""
    for key in manifest.keys():  # noqa: SIM118 - not those of a dict
        path = folder.split("/") if folder else []
        while key.startswith("../"):
            path, key = path[:-1], key[3:]
        full = "/".join([*path, key])
        yield full
        generation = _GENERATION.search(full)
        if generation:
            yield f"{full[: generation.end()]}/{RECORD}"


def _of_record(
    name: str,
    record: dict[str, Any] | None,
    objects: dict[str, _Listed],
    switches: dict[str, bool],
    older_than: float,
) -> tuple[str, str, list[str]] | None:
    """Return the objects of a writer by its record, if it is gone and its save is not there."""
    folder = name.rpartition("/")[0]
    is_generation = bool(_GENERATION.fullmatch(folder.rpartition("/")[2]))
    if record is None or not _is_gone(record, older_than):
        return None
    if is_generation:
        names = [each for each in objects if each.startswith(f"{folder}/")]
        return folder, "a save that was not finished, or was replaced", names
    if switches.get(_below(folder, SWITCH)) is False:
        return None
    names = [*(_below(folder, each) for each in record["objects"]), name]
    return folder, "a save that was not finished, or was replaced", names


def _of_other_places(place: Place, records: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Give the objects here that the saves of other places lead to.

    The parts of a dataset are such saves: their objects lie beside those of the dataset.
    """
    for name, record in records.items():
        home, _, generation = name.rpartition("/")[0].rpartition("/")
        if not _GENERATION.fullmatch(generation) or "switch" not in record:
            continue
        switch = (place / home if home else place).reach(str(record["switch"]))
        try:
            manifest = read_manifest(switch.get())
        except FileNotFoundError:
            continue
        cut = len(place.key()) + 1 if place.key() else 0
        for key in manifest.keys() if manifest is not None else ():
            yield switch.parent.reach(key).root[cut:]
        yield name


def _of_lock(
    place: Place, name: str, older_than: float
) -> tuple[str, str, list[str]] | None:
    """Return the lock of a writer of rows, if the writer is gone."""
    holder = read_record(place, name)
    if holder is None or not _is_gone(holder, older_than):
        return None
    return name.rpartition("/")[0], "a writer that has ended", [name]


def _is_gone(record: dict[str, Any], older_than: float) -> bool:
    """Return whether the process of a record has ended, or is taken to have ended by its age.

    A process of this machine that runs has not, whatever the age.
    """
    if record.get("host") == socket.gethostname():
        process = str(record.get("process"))
        if _rust.process_is_running(process):
            return False
        if _rust.process_has_ended(process):
            return True
    return time.time() - float(record.get("time", 0)) > older_than * 3600


def _of_shards(
    place: Place,
    objects: dict[str, _Listed],
    records: dict[str, dict[str, Any]],
    older_than: float,
) -> list[tuple[str, str, list[str]]]:
    """Shards of safetensors that no index names, and whose writer has ended."""
    by_index: dict[str, list[str]] = {}
    ended: set[str] = set()
    for name in objects:
        shard = _SHARD.fullmatch(name)
        if shard:
            folder = name.rpartition("/")[0]
            record = records.get(_below(folder, f"{OWN}{shard[2]}/{RECORD}"))
            if record is not None:
                if not _is_gone(record, older_than):
                    continue
                ended.add(name)
            by_index.setdefault(f"{shard[1]}{shard[3]}.index.json", []).append(name)
    found = []
    limit = time.time() - older_than * 3600
    for index, shards in by_index.items():
        named: set[str] = set()
        # It is read even if it was not listed: a writer may have put it meanwhile.
        with suppress(FileNotFoundError):
            weights = json.loads(place.get(index)).get("weight_map", {})
            folder = index.rpartition("/")[0]
            named = {_below(folder, each) for each in weights.values()}
        rest = [
            name
            for name in shards
            if name not in named and (name in ended or objects[name].time < limit)
        ]
        if rest:
            found.append((index, "shards that no index names", rest))
    return found
