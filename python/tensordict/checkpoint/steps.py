"""The folder of a checkpointer: which steps it has, in which order, and which may go.

A step is the directory ``step-<number>``, which appears whole. What is being written, or
deleted, is in ``.tdtmp``, which the next save sweeps.
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
"""The number of steps whose descriptions are remembered, so that they are not parsed
again."""

_NAME = re.compile(r"step-(0|[1-9][0-9]*)")

MSG_DAMAGED = "'{}' is damaged: {}."
MSG_VERSION = (
    "'{}' was saved in version {} of the format of checkpoints, and this version of "
    "tensordict reads those up to 1. Upgrade tensordict to load it."
)
MSG_NO_STEP = "There is no step {} in '{}': it has {}."
MSG_EMPTY = "There is no checkpoint in '{}' yet."

_HEAD = b'{"sha256": "'
_MIDDLE = b'", "content": '
_TAIL = b"}\n"


def step_number(name: str) -> int | None:
    """The number of the step whose directory has a name; None where it is none."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def is_meta(path: Path) -> bool:
    """Return whether a file begins as the description of a step does."""
    try:
        with path.open("rb") as file:
            return is_description(file.read(len(_HEAD)))
    except OSError:
        return False


def is_description(content: bytes) -> bool:
    """Return whether bytes begin as the description of a step does."""
    return content.startswith(_HEAD)


def step_name(number: int) -> str:
    """The name of the directory of a step."""
    return f"step-{number}"


def meta_bytes(content: dict[str, Any]) -> bytes:
    """The file that describes a step, with a checksum of itself."""
    text = json.dumps(content, allow_nan=False).encode()
    return b"".join(
        [_HEAD, hashlib.sha256(text).hexdigest().encode(), _MIDDLE, text, _TAIL]
    )


def read_meta(directory: Path | str, name: str = META) -> dict[str, Any]:
    """Read the description of a step, or of the part of a rank.

    Raises:
        FileNotFoundError: there is none.
        RuntimeError: its description is damaged.
        ValueError: it is of a newer version.
    """
    path = Path(directory) / name
    return parse_meta(path.read_bytes(), path)


def parse_meta(content: bytes, path: object) -> dict[str, Any]:
    """Return what the description of a step says.

    Args:
        content: its bytes.
        path: where it is, for errors.

    Raises:
        RuntimeError: it is damaged.
        ValueError: it is of a newer version.
    """
    meta: dict[str, Any] = json.loads(_text_of(content, path)[0])
    if meta["version"] > VERSION:
        raise ValueError(MSG_VERSION.format(path, meta["version"]))
    return meta


def _text_of(content: bytes, path: object) -> tuple[bytes, bytes]:
    """The text that describes a step, and its checksum, which it has."""
    start = len(_HEAD) + 64 + len(_MIDDLE)
    text = content[start : -len(_TAIL)]
    middle = content[len(_HEAD) + 64 : start]
    if not (
        content.startswith(_HEAD) and middle == _MIDDLE and content.endswith(_TAIL)
    ):
        raise RuntimeError(MSG_DAMAGED.format(path, "it is no description of a step"))
    checksum = hashlib.sha256(text).hexdigest().encode()
    if checksum != _checksum_in(content):
        raise RuntimeError(MSG_DAMAGED.format(path, "it does not have its checksum"))
    return text, checksum


def _checksum_in(description: bytes) -> bytes:
    return description[len(_HEAD) : len(_HEAD) + 64]


class Step(NamedTuple):
    """Facts about a step that are known without its items."""

    number: int
    order: int
    """The number of steps that were saved before it, of any number."""
    metrics: dict[str, float]
    path: Path
    process: str = ""
    """The name of the process that saved it; empty if it does not say."""


class Steps:
    """The steps of a folder, as they are now.

    Args:
        folder: the folder, which need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[tuple[int, int], Step] = {}
        # The steps that this process wrote, by the checksum of their description.
        self._own: dict[bytes, Step] = {}
        self._synced: dict[str, int] = {}

    def saved(self) -> list[Step]:
        """The steps in the order in which they were saved."""
        for _ in range(_MAX_SCANS):
            found, is_changed = self._scan()
            if not is_changed:
                break
        self._known = found
        return sorted(found.values(), key=lambda step: (step.order, step.number))

    def remember(self, path: Path, meta: dict[str, Any], description: bytes) -> None:
        """Know a step by its description, which then is not parsed to be found again."""
        step = step_of(path, meta["step"], meta)
        self._own[_checksum_in(description)] = step
        while len(self._own) > _MAX_OWN:
            self._own.pop(next(iter(self._own)))

    def _step_at(self, path: Path, number: int) -> Step:
        meta = path / META
        known = (
            self._own.get(_text_of(meta.read_bytes(), meta)[1]) if self._own else None
        )
        return step_of(path, number, read_meta(path)) if known is None else known

    def _scan(self) -> tuple[dict[tuple[int, int], Step], bool]:
        """The steps that are found, and whether one went meanwhile: for another, maybe."""
        found: dict[tuple[int, int], Step] = {}
        is_changed = False
        for number in self._numbers():
            path = self.folder / step_name(number)
            try:
                about = (path / META).stat()
                key = about.st_ino, about.st_mtime_ns
                step = self._known.get(key)
                if step is None or step.number != number:
                    step = self._step_at(path, number)
            except (OSError, RuntimeError, ValueError):
                # Somebody damaged it: then it is no step, and `tensordict verify` says so.
                is_changed |= not path.is_dir()
                continue
            found[key] = step
        return found, is_changed

    def _numbers(self) -> list[int]:
        """The numbers of the directories, which another process may change meanwhile.

        A directory that is read while a name comes and another one goes can show neither.
        """
        numbers = self._seen_numbers()
        for _ in range(_MAX_SCANS):
            before, numbers = numbers, self._seen_numbers()
            if before == numbers:
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
        """Bring the names of the steps to the disk, unless they are there.

        The files of a step are on the disk before it has its name; another process may
        have given it that just now.
        """
        known = {step.path.name: step.order for step in self._known.values()}
        if known == self._synced:
            return
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return
        try:
            os.fsync(folder)
            self._synced = known
        except OSError:
            # A file system that is read only has nothing to bring to the disk.
            pass
        finally:
            os.close(folder)

    def find(self, number: int | None) -> Step:
        """A step by its number, or the one that was saved last.

        Raises:
            FileNotFoundError: there is none.
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
    """Find a step by its number, or the one that was saved last.

    Args:
        steps: the steps that can be read, in the order of saving.
        number: None for the last.
        place: where they are, for messages.
        read: reads a step that is not among them, which says what is wrong with it; None
            if nothing is there.

    Raises:
        FileNotFoundError: there is none.
    """
    if number is None:
        if not steps:
            raise FileNotFoundError(MSG_EMPTY.format(place))
        return steps[-1]
    for step in steps:
        if step.number == number:
            return step
    found = read(number)
    if found is not None:
        return found
    numbers = [step.number for step in steps]
    raise FileNotFoundError(MSG_NO_STEP.format(number, place, numbers or "none"))


def step_of(path: Path, number: int, meta: dict[str, Any]) -> Step:
    """Return what is known of a step by its description."""
    metrics = Decoder({}, path).decode(meta["metrics"])
    return Step(number, meta["order"], metrics, path, meta.get("process", ""))


def retired(steps: list[Step], keep: int | None, keep_every: int | None) -> list[Step]:
    """The steps that go, of all in the order of saving, the newest last.

    Steps of another job that is still running neither count nor go.
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
    """The processes that save into the same folder as the process of the newest step.

    A process of this machine can be asked about. On other machines, a process still ran
    after this job began if it saved after a step of this job.
    """
    own = steps[-1].process
    first = min(step.order for step in steps if step.process == own)
    machine = own.split("-")[:2]
    return {
        step.process
        for step in steps
        if step.process not in ("", own)
        and not _rust.process_has_ended(step.process)
        and (step.order > first or step.process.split("-")[:2] == machine)
    }
