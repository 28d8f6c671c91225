"""Checkpoints of several ranks: each writes its part, and rank 0 publishes the step.

Modules and optimizers belong to all ranks, and each writes a share of them. Everything
else (loaders, random states, plain data) is each rank's own. What ranks tell each other goes through ``torch.distributed`` in the
call, never in the background: there rank 0 waits for directories to appear.
"""

from __future__ import annotations

import pickle
import shutil
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.checkpoint.lost_ranks import note_processes, tell_process, wait_for
from tensordict.checkpoint.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tensordict.checkpoint.steps import Step
    from tensordict.checkpoint.turns import Turn

__all__ = [
    "Publication",
    "Ranks",
    "begin_parts",
    "group_of",
    "mark_failed",
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
    "them have, or Checkpointer(..., shared=False), with which each keeps its parts in its own "
    "folder. Nothing was saved."
)

MSG_SHARED = (
    "The ranks share the folder '{}': make the checkpointer without shared=False, which is for "
    "folders of their own. Nothing was saved."
)
MSG_OUTSIDE = (
    "This process, rank {} of {}, is not in the process_group of the checkpointer{}: only "
    "the ranks of that save and restore with it."
)
MSG_DESTROYED = "The process_group of the checkpointer was destroyed."
MSG_GROUP = (
    "process_group is a ProcessGroup or a DeviceMesh, such as mesh['dp'], got {!r}."
)
MSG_DIFFERENT = "All ranks of a group call the same, and they called {}, by rank."
MSG_NO_COMMON = (
    "The ranks see no step in '{}' that all of them see, or other ones of one number: do they "
    "share it? By rank they see {}."
)
MSG_ASKED = "All ranks restore the same step, and they asked for {}, by rank."
MSG_UNPUBLISHED = "The step {} did not appear in '{}': rank {} could not make it{}."
MSG_LATE = "The step {} did not appear in '{}' within {} seconds."
MSG_OTHER = "Rank {} {}: {}"


class Ranks(NamedTuple):
    """The ranks of a run, of which this process is one."""

    rank: int
    """The place of this process among them."""
    world: int
    group: Any = None
    """Their process group; None for that of all processes."""
    members: tuple[int, ...] = ()
    """The ranks of their processes among all, which errors name, by place."""
    order: tuple[int, ...] = ()
    """The ranks in the group, by place, where those with the folder of this come first."""
    here: int = 0
    """The number of these; 0 where one folder is that of all."""

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks.

        Raises:
            RuntimeError: a process has ended.
        """
        from torch.distributed import distributed_c10d as c10d

        own = self.members[self.rank]
        tell_process(own)
        device = torch.device(c10d._get_object_coll_device(self.group))
        content = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = self._gathered(torch.tensor([content.numel()], device=device))
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8, device=device)
        padded[: content.numel()] = content
        values = [
            pickle.loads(found[: int(size)].cpu().numpy().tobytes())  # noqa: S301 (of this run)
            for size, found in zip(sizes, self._gathered(padded), strict=True)
        ]
        return [values[rank] for rank in self.order] if self.order else values

    def by_folder(self, what: str, directory: Path) -> Ranks:
        """Put those first that have the same folder as this rank, which is made.

        Args:
            what: the call that all ranks make.
            directory: the folder of this rank.

        Raises:
            OSError: it could not be made.
        """
        error: OSError | None = None
        identity = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            about = directory.stat()
            machine = _rust.process_name().partition("-")[0]
            identity = machine, about.st_dev, about.st_ino
        except OSError as found:
            error = found
        told = self.call(what, identity)
        if None in told:
            self.raise_together(error, "could not make its folder")
        own = told[self.rank]
        order = sorted(range(self.world), key=lambda rank: told[rank] != own)
        return self._replace(
            rank=order.index(self.rank),
            members=tuple(self.members[rank] for rank in order),
            order=tuple(order),
            here=told.count(own),
        )

    def _gathered(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self.world)]
        work = torch.distributed.all_gather(
            found, tensor, group=self.group, async_op=True
        )
        wait_for(work, self.members, self.members[self.rank])
        return found

    def call(self, what: str, value: object) -> list[Any]:
        """Return the values of all ranks, which all make the same call.

        Raises:
            RuntimeError: they make different ones.
        """
        found = self.gather((what, value))
        called = dict(zip(self.members, (each for each, _ in found), strict=True))
        if len(set(called.values())) > 1:
            raise RuntimeError(MSG_DIFFERENT.format(called))
        return [each for _, each in found]

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
        known = self.gather(([(step.order, step.number) for step in there], number))
        common = set(known[0][0]).intersection(*(steps for steps, _ in known))
        asked = {each for _, each in known}
        if len(asked) > 1:
            raise ValueError(MSG_ASKED.format([each for _, each in known]))
        is_unlike = (
            number is not None
            and len(
                {order for steps, _ in known for order, each in steps if each == number}
            )
            > 1
        )
        if is_unlike or (not common and any(steps for steps, _ in known)):
            seen = {
                member: [each for _, each in steps]
                for member, (steps, _) in zip(self.members, known, strict=True)
            }
            raise OSError(MSG_NO_COMMON.format(directory, seen))
        return max(common)[1] if number is None and common else number

    def introduce(self, value: object, what: str) -> tuple[list[Any], list[str]]:
        """Return the values of all ranks, and the names of their processes.

        Args:
            value: the value of this rank.
            what: the call that all ranks make.
        """
        found = self.call(what, (value, _rust.process_name()))
        names = [name for _, name in found]
        note_processes(self.members, names)
        return [each for each, _ in found], names

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
                raise RuntimeError(MSG_OTHER.format(self.members[rank], what, other))

    def folder(self, directory: Path, token: str) -> Path:
        """Return the folder that has the parts of a save until it is published."""
        return directory / f"{PARTS}{token}"

    def part(self, directory: Path, token: str, rank: int) -> Path:
        """Return the folder that a rank writes its part to."""
        return self.folder(directory, token) / f"rank-{rank:05}"


def ranks(group: Any = None) -> Ranks | None:
    """The ranks of a group; None where this process is alone in it.

    Args:
        group: the process group. Default: that of all processes.

    Raises:
        ValueError: this process is not in it, or it was destroyed.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        if group is not None:
            raise ValueError(MSG_DESTROYED)
        return None
    if group is None:
        world = torch.distributed.get_world_size()
        rank = torch.distributed.get_rank()
        return None if world == 1 else Ranks(rank, world, None, tuple(range(world)))
    members = torch.distributed.get_process_group_ranks(group)
    rank = torch.distributed.get_rank(group)
    return (
        None if len(members) == 1 else Ranks(rank, len(members), group, tuple(members))
    )


def group_of(given: Any) -> Any:
    """Return the process group that a user gave, as such or as a mesh.

    Raises:
        TypeError: it is neither.
        ValueError: this process is not in it.
    """
    if given is None:
        return None
    members: list[int] = []
    if hasattr(given, "get_coordinate") and hasattr(given, "mesh"):
        members = given.mesh.reshape(-1).tolist()
        if given.get_coordinate() is not None:
            return given.get_group() if given.ndim == 1 else _group_of_ranks(members)
    elif not isinstance(given, int) and not hasattr(given, "size"):
        raise TypeError(MSG_GROUP.format(given))
    elif not isinstance(given, int):
        return given
    # To ranks that it does not have, new_group returns a number.
    shown = f" ({', '.join(map(str, members))})" if members else ""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    raise ValueError(MSG_OUTSIDE.format(rank, world, shown))


def _group_of_ranks(members: list[int]) -> Any:
    """Return a group of the ranks of a mesh of several dims: only these call."""
    if len(members) == torch.distributed.get_world_size():
        return None
    return torch.distributed.new_group(sorted(members), use_local_synchronization=True)


def new_token() -> str:
    """Return a name for a save, which says whose it is."""
    return f"{_rust.process_name()}.{uuid.uuid4().hex[:12]}"


def begin_parts(directory: Path, token: str) -> None:
    """Make the folder for the parts of a save."""
    (directory / f"{PARTS}{token}").mkdir(parents=True)


def refuse_unshared(directory: Path, turn: Turn, *, is_known: bool) -> None:
    """Look for the folder of parts that rank 0 has made, as long as a network may take.

    Args:
        directory: the folder of the steps.
        turn: the turn of a save, of which ranks are said to share the folder or not.
        is_known: whether it was found out before.

    Raises:
        OSError: it is not there: the ranks have folders of their own under one name. Or
            ranks that are said to have folders of their own share one.
    """
    if is_known:
        return
    limit = time.monotonic() + SEEN_WITHIN
    while turn.rank and f"{PARTS}{turn.token}" not in _names(directory):
        if time.monotonic() > limit:
            own = socket.gethostname()
            rank = turn.members[turn.rank]
            raise OSError(MSG_UNSHARED.format(directory, rank, own, turn.host))
        time.sleep(0.01)
    here = turn.ranks.here if turn.ranks is not None else 0
    others = turn.processes[here:] if here else []
    for name in _names(directory):
        if name.startswith(PARTS) and name[len(PARTS) :].partition(".")[0] in others:
            raise OSError(MSG_SHARED.format(directory))


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
        token = name.removesuffix(FAILED)
        if (
            name.startswith(PARTS)
            and token not in kept
            and (owner == own or "." not in name[1:] or _rust.process_has_ended(owner))
        ):
            path = directory / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


class Publication(NamedTuple):
    """A step that rank 0 publishes, and the part of this rank."""

    step: Step
    part: Path
    publisher: str
    """The name of the process of rank 0."""
    rank: int
    """Its number among all."""

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
            why = _why_failed(parts)
            if why is not None or has_ended:
                if why is None and _rust.process_has_ended(self.publisher):
                    why = "its process has ended"
                shown = f": {why}" if why else ""
                text = MSG_UNPUBLISHED.format(
                    self.step.number, folder, self.rank, shown
                )
                raise OSError(text)
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


def mark_failed(part: Path, error: object) -> None:
    """Say that a part will not come, and why, to those that wait for it.

    Args:
        part: the folder that it would have; that of all parts, for a step.
        error: what has happened.
    """
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.with_name(part.name + FAILED).write_text(f"{error}", encoding="utf-8")
    except OSError:
        # The disk may be what failed: then rank 0 meets it, too, or gives up in time.
        pass


def _why_failed(part: Path) -> str | None:
    """Return why a part will not come; None where that is not known."""
    mark = part.with_name(part.name + FAILED)
    # Listing the folder has a network file system ask the server.
    if mark.name not in _names(part.parent):
        return None
    try:
        return mark.read_text(encoding="utf-8")
    except OSError:
        return ""


def rank_file(rank: int) -> str:
    """The name of the file that describes the part of a rank."""
    return f"rank-{rank:05}.json"
