"""Checkpoints of several ranks: each writes its part, and rank 0 publishes the step.

Modules and optimizers belong to all ranks, and each writes a share of them. Everything
else (loaders, random states, plain data) is each rank's own. What ranks tell each other goes through ``torch.distributed`` in the
call, never in the background: there rank 0 waits for directories to appear.
"""

from __future__ import annotations

import shutil
import socket
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.checkpoint.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tensordict.checkpoint.steps import Step

__all__ = [
    "Publication",
    "Ranks",
    "begin_parts",
    "mark_failed",
    "mark_unpublished",
    "new_token",
    "rank_file",
    "ranks",
    "refuse_unshared",
    "sweep_parts",
]

PARTS = ".parts-"

FAILED = ".failed"

SEEN_WITHIN = 10.0
"""The seconds within which a folder that one rank has made is seen by others."""

MSG_UNSHARED = (
    "The ranks do not share the folder '{0}': rank {1} on {2} does not see what rank 0 on {3} "
    "writes there. The steps of several ranks need a folder on a file system that all of "
    "them have. Nothing was saved."
)
ENDED_WITHIN = 2.0
"""The seconds for which a process may end whose connections are closed."""

_PROCESSES: dict[int, list[str]] = {}
"""The names of the processes of all ranks, as they were last told, by their number."""

MSG_ENDED = "The process of rank {} has ended: nothing was changed here."
MSG_NO_COMMON = "The ranks see no step in '{}' that all of them see: do they share it?"
MSG_ASKED = "All ranks restore the same step, and they asked for {}, by rank."
MSG_UNPUBLISHED = "The step {} did not appear in '{}': rank 0 could not make it."
MSG_LATE = "The step {} did not appear in '{}' within {} seconds."
MSG_OTHER = "Rank {} {}: {}"


class Ranks(NamedTuple):
    """The ranks of a run, of which this process is one."""

    rank: int
    world: int

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks."""
        found: list[Any] = [None] * self.world
        try:
            torch.distributed.all_gather_object(found, value)
        except RuntimeError as lost:
            ended = self._ended()
            if not ended:
                raise
            shown = ", ".join(map(str, ended))
            raise RuntimeError(MSG_ENDED.format(shown)) from lost
        return found

    def _ended(self) -> list[int]:
        """The ranks whose processes are known to have ended."""
        known = _PROCESSES.get(self.world, [])
        limit = time.monotonic() + ENDED_WITHIN
        while True:
            found = [
                rank
                for rank, name in enumerate(known)
                if rank != self.rank and _rust.process_has_ended(name)
            ]
            if found or not known or time.monotonic() > limit:
                return found
            time.sleep(0.01)

    def agree(self, value: object) -> Any:
        """Return the value of rank 0, on all ranks."""
        return self.gather(value if self.rank == 0 else None)[0]

    def agree_on_step(
        self, there: list[Step], number: int | None, directory: Path
    ) -> int | None:
        """Return the number of the step that all restore, whatever appears meanwhile.

        Args:
            there: the steps that this rank sees.
            number: the one that is asked for; None for the newest that all ranks see.
            directory: the folder of the steps.

        Raises:
            OSError: they see steps, and none that all see.
        """
        # The names of processes tell who has ended if one does.
        self.introduce(None)
        known = self.gather(([(step.order, step.number) for step in there], number))
        common = set(known[0][0]).intersection(*(steps for steps, _ in known))
        if not common and any(steps for steps, _ in known):
            raise OSError(MSG_NO_COMMON.format(directory))
        asked = {each for _, each in known}
        if len(asked) > 1:
            raise ValueError(MSG_ASKED.format([each for _, each in known]))
        return max(common)[1] if number is None and common else number

    def introduce(self, value: object) -> tuple[Any, list[str]]:
        """Return the value of rank 0, and the names of all processes, on all ranks."""
        found = self.gather((value, _rust.process_name()))
        names = _PROCESSES[self.world] = [name for _, name in found]
        return found[0][0], names

    def raise_together(
        self, error: Exception | None, what: str = "could not save its part"
    ) -> None:
        """Raise on all ranks what one of them met.

        Args:
            error: what this rank met.
            what: what a rank that met something could not do.

        Raises:
            Exception: the error of this rank.
            RuntimeError: another one has an error.
        """
        text = None if error is None else f"{type(error).__name__}: {error}"
        try:
            found = self.gather(text)
        except RuntimeError as lost:
            # A rank that has died is why, and why this one has an error.
            if error is not None:
                raise error from lost
            raise
        if error is not None:
            raise error
        for rank, other in enumerate(found):
            if other is not None:
                raise RuntimeError(MSG_OTHER.format(rank, what, other))

    def folder(self, directory: Path, token: str) -> Path:
        """Return the folder that has the parts of a save until it is published."""
        return directory / f"{PARTS}{token}"

    def part(self, directory: Path, token: str, rank: int) -> Path:
        """Return the folder that a rank writes its part to."""
        return self.folder(directory, token) / f"rank-{rank:05}"


def ranks() -> Ranks | None:
    """The ranks of this run; None where this process is alone."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    world = torch.distributed.get_world_size()
    return None if world == 1 else Ranks(torch.distributed.get_rank(), world)


def new_token() -> str:
    """Return a name for a save, which says whose it is."""
    return f"{_rust.process_name()}.{uuid.uuid4().hex[:12]}"


def begin_parts(directory: Path, token: str) -> None:
    """Make the folder for the parts of a save."""
    (directory / f"{PARTS}{token}").mkdir(parents=True)


def refuse_unshared(directory: Path, token: str, rank: int, host: str) -> None:
    """Look for the folder of parts that rank 0 has made, as long as a network may take.

    Raises:
        OSError: it is not there: the ranks have folders of their own under one name.
    """
    limit = time.monotonic() + SEEN_WITHIN
    while f"{PARTS}{token}" not in _names(directory):
        if time.monotonic() > limit:
            own = socket.gethostname()
            raise OSError(MSG_UNSHARED.format(directory, rank, own, host))
        time.sleep(0.01)


def _names(directory: Path) -> set[str]:
    # Listing it has a network file system ask the server.
    try:
        return {path.name for path in directory.iterdir()}
    except FileNotFoundError:
        return set()


def sweep_parts(directory: Path, tokens: Iterable[str]) -> None:
    """Delete the parts of saves that came to nothing: all but those of these tokens.

    Those of another process that still runs are of another training in this folder.
    """
    kept = {PARTS + token for token in tokens}
    own = _rust.process_name()
    for name in _names(directory):
        owner = name.removeprefix(PARTS).partition(".")[0]
        if (
            name.startswith(PARTS)
            and name not in kept
            and (owner == own or "." not in name[1:] or _rust.process_has_ended(owner))
        ):
            shutil.rmtree(directory / name, ignore_errors=True)


class Publication(NamedTuple):
    """A step that rank 0 publishes, and the part of this rank."""

    step: Step
    part: Path
    publisher: str
    """The name of the process of rank 0."""

    def wait(self, limit: float) -> None:
        """Wait until the step can be seen from here.

        Raises:
            OSError: rank 0 has failed or ended, or it takes longer than ``limit`` seconds.
        """
        folder = self.step.path.parent
        began, pause, has_ended = time.monotonic(), 0.001, False
        while True:
            parts = self.part.parent
            is_moved = self.part.name not in _names(parts)
            if is_moved and self._is_there():
                return
            if parts.name + FAILED in _names(folder) or has_ended:
                raise OSError(MSG_UNPUBLISHED.format(self.step.number, folder))
            if time.monotonic() - began > limit:
                raise TimeoutError(MSG_LATE.format(self.step.number, folder, limit))
            # It is looked for once more behind the end of its process.
            has_ended = _rust.process_has_ended(self.publisher) or (
                is_moved and parts.name not in _names(folder)
            )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _is_there(self) -> bool:
        """Return whether this step is there, or one that took its place or came later."""
        saved = Steps(self.step.path.parent).saved()
        return any(each.order >= self.step.order for each in saved)


def mark_unpublished(directory: Path, token: str) -> None:
    """Say that a step will not come, to the ranks that wait for it."""
    # They give up in time where that fails, too.
    with suppress(OSError):
        (directory / f"{PARTS}{token}{FAILED}").touch()


def mark_failed(part: Path) -> None:
    """Say that a part will not come, to rank 0 that waits for it."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.with_name(part.name + FAILED).touch()
    except OSError:
        # The disk may be what failed: then rank 0 meets it, too, or gives up in time.
        pass


def rank_file(rank: int) -> str:
    """The name of the file that describes the part of a rank."""
    return f"rank-{rank:05}.json"
