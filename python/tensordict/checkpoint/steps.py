"""The steps in the folder of a checkpointer: their order, and which to delete.

A step is the directory ``step-<number>``, which appears atomically. Steps that are
being written or deleted are in ``.tdtmp``; the next save cleans it up.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensordict import _rust
from tensordict.storage.encoding import Decoder
from tensordict.storage.remote.copied import MSG_COPY, is_copied

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "META",
    "Step",
    "Steps",
    "find_step",
    "is_description",
    "is_meta",
    "meta_bytes",
    "parse_meta",
    "read_meta",
    "retired",
    "step_name",
    "step_number",
    "step_of",
]

META = "meta.json"
VERSION = 1

_MAX_SCANS = 100

_MAX_OWN = 16
"""The number of own steps whose parsed descriptions are cached."""

_NAME = re.compile(r"step-(0|[1-9][0-9]*)")

MSG_DAMAGED = "'{}' is damaged: {}."
MSG_VERSION = (
    "'{}' was saved with version {} of the checkpoint format, and this version of "
    "tensordict reads versions up to 1. Upgrade tensordict to load it."
)
MSG_NO_STEP = "There is no step {} in '{}': it has {}."
MSG_EMPTY = "There is no checkpoint in '{}' yet."

_HEAD = b'{"sha256": "'
_MIDDLE = b'", "content": '
_TAIL = b"}\n"


def step_number(name: str) -> int | None:
    """Return the number of the step with this directory name; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def is_meta(path: Path) -> bool:
    """Return whether a file begins like the description of a step."""
    try:
        with path.open("rb") as file:
            return is_description(file.read(len(_HEAD)))
    except OSError:
        return False


def is_description(content: bytes) -> bool:
    """Return whether bytes begin like the description of a step."""
    return content.startswith(_HEAD)


def step_name(number: int) -> str:
    """Return the directory name of a step."""
    return f"step-{number}"


def meta_bytes(content: dict[str, Any]) -> bytes:
    """Return the content of ``meta.json``: the description with its own checksum."""
    text = json.dumps(content, allow_nan=False).encode()
    return b"".join(
        [_HEAD, hashlib.sha256(text).hexdigest().encode(), _MIDDLE, text, _TAIL]
    )


def read_meta(directory: Path | str, name: str = META) -> dict[str, Any]:
    """Read the description of a step, or of a rank's part.

    Raises:
        FileNotFoundError: there is no such file.
        RuntimeError: the description is damaged.
        ValueError: a newer version wrote it.
    """
    path = Path(directory) / name
    return parse_meta(path.read_bytes(), path)


def parse_meta(content: bytes, path: object) -> dict[str, Any]:
    """Parse the description of a step.

    Args:
        content: the bytes of the file.
        path: the path, for errors.

    Raises:
        RuntimeError: the description is damaged.
        ValueError: a newer version wrote it.
    """
    meta: dict[str, Any] = json.loads(_text_of(content, path)[0])
    if meta["version"] > VERSION:
        raise ValueError(MSG_VERSION.format(path, meta["version"]))
    return meta


def _text_of(content: bytes, path: object) -> tuple[bytes, bytes]:
    """Return the text of a description and its checksum, after a check of both."""
    start = len(_HEAD) + 64 + len(_MIDDLE)
    text = content[start : -len(_TAIL)]
    middle = content[len(_HEAD) + 64 : start]
    if not (
        content.startswith(_HEAD) and middle == _MIDDLE and content.endswith(_TAIL)
    ):
        if isinstance(path, Path) and is_copied(path.parent):
            raise RuntimeError(MSG_COPY.format(path=path.parent))
        raise RuntimeError(
            MSG_DAMAGED.format(path, "it is not the description of a step")
        )
    checksum = hashlib.sha256(text).hexdigest().encode()
    if checksum != _checksum_in(content):
        raise RuntimeError(MSG_DAMAGED.format(path, "it does not match its checksum"))
    return text, checksum


def _checksum_in(description: bytes) -> bytes:
    return description[len(_HEAD) : len(_HEAD) + 64]


class Step(NamedTuple):
    """The facts about a step in its description, without its items."""

    number: int
    order: int
    """The number of saves before it, of any step."""
    metrics: dict[str, float]
    path: Path
    process: str = ""
    """The name of the process that saved it; empty if unknown."""


class Steps:
    """The steps of a folder, listed anew at each call.

    Args:
        folder: the folder, which may be missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[tuple[int, int], Step] = {}
        # The steps that this process wrote, by the checksum of their description.
        self._own: dict[bytes, Step] = {}
        self._synced: dict[str, int] = {}

    def saved(self) -> list[Step]:
        """Return the steps in the order in which they were saved."""
        for _ in range(_MAX_SCANS):
            found, is_changed = self._scan()
            if not is_changed:
                break
        self._known = found
        return sorted(found.values(), key=lambda step: (step.order, step.number))

    def remember(self, path: Path, meta: dict[str, Any], description: bytes) -> None:
        """Cache a step by the checksum of its description, to save parsing it later."""
        step = step_of(path, meta["step"], meta)
        self._own[_checksum_in(description)] = step
        while len(self._own) > _MAX_OWN:
            self._own.pop(next(iter(self._own)))

    def _step_at(self, path: Path, number: int) -> Step:
        meta = path / META
        known_step = (
            self._own.get(_text_of(meta.read_bytes(), meta)[1]) if self._own else None
        )
        return (
            step_of(path, number, read_meta(path)) if known_step is None else known_step
        )

    def _scan(self) -> tuple[dict[tuple[int, int], Step], bool]:
        """Return the steps, and whether a directory disappeared meanwhile."""
        found: dict[tuple[int, int], Step] = {}
        is_changed = False
        for number in self._numbers():
            path = self.folder / step_name(number)
            try:
                status = (path / META).stat()
                key = status.st_ino, status.st_mtime_ns
                step = self._known.get(key)
                if step is None or step.number != number:
                    step = self._step_at(path, number)
            except (OSError, RuntimeError, ValueError):
                # The description is damaged. Such a step is reported by `tensordict
                # verify`.
                is_changed |= not path.is_dir()
                continue
            found[key] = step
        return found, is_changed

    def _numbers(self) -> list[int]:
        """Return the step numbers of the directories.

        If a name is replaced during a listing, the listing may contain neither the old
        nor the new one. So the directory is listed until two results are equal.
        """
        numbers = self._seen_numbers()
        for _ in range(_MAX_SCANS):
            previous, numbers = numbers, self._seen_numbers()
            if previous == numbers:
                break
        return numbers

    def _seen_numbers(self) -> list[int]:
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        matches = filter(None, map(_NAME.fullmatch, names))
        return sorted(int(match[1]) for match in matches)

    def sync(self) -> None:
        """Flush the names of the steps to the disk, unless that was done before.

        The files of a step are on the disk before the step gets its name. Another
        process may have renamed a step just now.
        """
        orders = {step.path.name: step.order for step in self._known.values()}
        if orders == self._synced:
            return
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return
        try:
            os.fsync(folder)
            self._synced = orders
        except OSError:
            # A read-only file system has nothing to flush.
            pass
        finally:
            os.close(folder)

    def find(self, number: int | None) -> Step:
        """Return a step by its number, or the step that was saved last.

        Raises:
            FileNotFoundError: there is no such step.
        """
        return find_step(self.saved(), number, self.folder, self._unreadable)

    def _unreadable(self, number: int) -> Step | None:
        path = self.folder / step_name(number)
        return step_of(path, number, read_meta(path)) if path.is_dir() else None


def find_step(
    steps: list[Step],
    number: int | None,
    place: object,
    read: Callable[[int], Step | None],
) -> Step:
    """Return a step by its number, or the step that was saved last.

    Args:
        steps: the readable steps, in the order in which they were saved.
        number: the number; None for the last step.
        place: the folder, for messages.
        read: reads a step that is not in ``steps`` and raises what is wrong with it;
            returns None if there is none.

    Raises:
        FileNotFoundError: there is no such step.
    """
    if number is None:
        if not steps:
            raise FileNotFoundError(MSG_EMPTY.format(place))
        return steps[-1]
    for step in steps:
        if step.number == number:
            return step
    unreadable = read(number)
    if unreadable is not None:
        return unreadable
    numbers = [step.number for step in steps]
    raise FileNotFoundError(MSG_NO_STEP.format(number, place, numbers or "none"))


def step_of(path: Path, number: int, meta: dict[str, Any]) -> Step:
    """Return the facts about a step in its description."""
    metrics = Decoder({}, path).decode(meta["metrics"])
    return Step(number, meta["order"], metrics, path, meta.get("process", ""))


def retired(steps: list[Step], keep: int | None, keep_every: int | None) -> list[Step]:
    """Return the steps to delete, given all steps in order, the newest last.

    Steps of another job that still runs are neither counted nor deleted.
    """
    if keep is None:
        return []
    others = _running_jobs(steps)
    counted = [step for step in steps if step.process not in others]
    return [
        step
        for step in counted[:-keep]
        if keep_every is None or step.number % keep_every
    ]


def _running_jobs(steps: list[Step]) -> set[str]:
    """Return the running processes that save into the folder, besides the newest step's.

    For a process of this machine, the system knows whether it runs. A process of
    another machine counts as running if it saved after the first step of this job.
    """
    own_process = steps[-1].process
    first = min(step.order for step in steps if step.process == own_process)
    machine = own_process.split("-")[:2]
    return {
        step.process
        for step in steps
        if step.process not in ("", own_process)
        and not _rust.process_has_ended(step.process)
        and (step.order > first or step.process.split("-")[:2] == machine)
    }
