"""Collective saves: each rank writes its part, and rank 0 publishes the step.

All ranks own modules and optimizers together, and each rank writes a part of them. Each
rank has its own loaders, random states and plain data. Ranks exchange messages through
``torch.distributed`` during the call, never in the background. In the background, rank
0 waits for directories to appear.
"""

from __future__ import annotations

import pickle
import shutil
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from tensordict import _rust
from tensordict.checkpoint.lost_ranks import note_processes, tell_process, wait_for
from tensordict.checkpoint.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tensordict.checkpoint.steps import Step
    from tensordict.checkpoint.turns import Turn

__all__ = [
    "COULD_NOT_EXPORT",
    "Publication",
    "Ranks",
    "begin_parts",
    "group_of",
    "mark_failed",
    "new_token",
    "rank_file",
    "ranks",
    "refuse_unshared",
    "run_together",
    "sweep_parts",
]

_Result = TypeVar("_Result")

PARTS = ".parts-"

FAILED = ".failed"

SEEN_WITHIN = 10.0
"""The seconds after which a folder of one rank must be visible to the others."""

MSG_UNSHARED = (
    "The ranks do not share the folder '{0}': rank {1} on {2} does not see the files that "
    "rank 0 on {3} writes there. Nothing was saved. Use a folder that all ranks "
    "share, or Checkpointer(..., shared=False): each node then keeps its parts in its "
    "own folder."
)

MSG_STAGING = (
    "The ranks do not share the folder '{0}', from which steps are uploaded: rank {1} on "
    "{2} does not see the files that rank 0 on {3} writes there. Nothing was saved. Use a "
    "folder that all ranks share: Checkpointer(url, staging=folder)."
)

MSG_SHARED = (
    "The ranks share the folder '{}', and shared=False is for separate folders: "
    "leave it out. Nothing was saved."
)
MSG_OUTSIDE = (
    "This process, rank {} of {}, is not in the process_group of the checkpointer{}. Only "
    "ranks of this group can save and restore with it."
)
MSG_DESTROYED = "The process_group of the checkpointer was destroyed."
MSG_GROUP = "process_group must be a ProcessGroup or a DeviceMesh, such as mesh['dp'], got {!r}."
MSG_DIFFERENT = (
    "All ranks of a group must make the same call, but they called {}, by rank."
)
MSG_NO_COMMON = (
    "The ranks have no common step in '{}', or see different steps of one number: do they "
    "share the folder? By rank they see {}."
)
MSG_ASKED = "All ranks must restore the same step, but they asked for {}, by rank."
MSG_UNPUBLISHED = "The step {} did not appear in '{}': rank {} could not write it{}."
MSG_LATE = "The step {} did not appear in '{}' within {} seconds."
MSG_OTHER = "Rank {} {}: {}"
COULD_NOT_EXPORT = "could not export"


class Ranks(NamedTuple):
    """The ranks that save and restore together, seen from this process."""

    rank: int
    """The index of this process among them."""
    world: int
    group: Any = None
    """Their process group; None for the default group."""
    members: tuple[int, ...] = ()
    """Their global ranks, by index; error messages name these."""
    order: tuple[int, ...] = ()
    """Their ranks in the group, by index, ranks with this process's folder first."""
    here: int = 0
    """The number of ranks with this process's folder; 0 if all ranks share one folder."""

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks.

        Raises:
            RuntimeError: a process has ended.
        """
        from torch.distributed import distributed_c10d as c10d

        own_rank = self.members[self.rank]
        tell_process(own_rank)
        device = torch.device(c10d._get_object_coll_device(self.group))
        content = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = self._gathered(torch.tensor([content.numel()], device=device))
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8, device=device)
        padded[: content.numel()] = content
        values = [
            pickle.loads(row[: int(size)].cpu().numpy().tobytes())  # noqa: S301 (another rank of this run wrote it)
            for size, row in zip(sizes, self._gathered(padded), strict=True)
        ]
        return [values[rank] for rank in self.order] if self.order else values

    def by_folder(self, call_name: str, directory: Path) -> Ranks:
        """Reorder the ranks so that ranks with this process's folder come first.

        Args:
            call_name: the name of the collective call.
            directory: the folder of this rank; it is created.

        Raises:
            OSError: the folder could not be created.
        """
        error: OSError | None = None
        identity = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            status = directory.stat()
            machine = _rust.process_name().partition("-")[0]
            identity = machine, status.st_dev, status.st_ino
        except OSError as caught:
            error = caught
        identities = self.call(call_name, identity)
        if None in identities:
            self.raise_together(error, "could not make its folder")
        own_identity = identities[self.rank]
        order = sorted(
            range(self.world), key=lambda rank: identities[rank] != own_identity
        )
        return self._replace(
            rank=order.index(self.rank),
            members=tuple(self.members[rank] for rank in order),
            order=tuple(order),
            here=identities.count(own_identity),
        )

    def _gathered(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.world)]
        work = torch.distributed.all_gather(
            gathered, tensor, group=self.group, async_op=True
        )
        wait_for(work, self.members, self.members[self.rank])
        return gathered

    def call(self, call_name: str, value: object) -> list[Any]:
        """Return the values of all ranks, after a check that all make the same call.

        Raises:
            RuntimeError: the ranks make different calls.
        """
        answers = self.gather((call_name, value))
        called = dict(zip(self.members, (call for call, _ in answers), strict=True))
        if len(set(called.values())) > 1:
            raise RuntimeError(MSG_DIFFERENT.format(called))
        return [call for _, call in answers]

    def agree(self, value: object) -> Any:
        """Return the value of rank 0 on all ranks."""
        return self.gather(value if self.rank == 0 else None)[0]

    def agree_on_step(
        self, there: list[Step], number: int | None, directory: Path
    ) -> int | None:
        """Return the number of the step that all ranks restore, also if new steps appear.

        Args:
            there: the steps that this rank sees.
            number: the requested number; None for the newest step that all ranks see.
            directory: the folder of the steps.

        Raises:
            OSError: the ranks see steps, but no common one.
            ValueError: the ranks asked for different steps.
        """
        answers = self.gather(([(step.order, step.number) for step in there], number))
        common = set(answers[0][0]).intersection(*(steps for steps, _ in answers))
        asked = {candidate for _, candidate in answers}
        if len(asked) > 1:
            raise ValueError(MSG_ASKED.format([candidate for _, candidate in answers]))
        is_unlike = (
            number is not None
            and len(
                {
                    order
                    for steps, _ in answers
                    for order, candidate in steps
                    if candidate == number
                }
            )
            > 1
        )
        if is_unlike or (not common and any(steps for steps, _ in answers)):
            seen = {
                member: [candidate for _, candidate in steps]
                for member, (steps, _) in zip(self.members, answers, strict=True)
            }
            raise OSError(MSG_NO_COMMON.format(directory, seen))
        return max(common)[1] if number is None and common else number

    def introduce(self, value: object, call_name: str) -> tuple[list[Any], list[str]]:
        """Return the values of all ranks, and the names of their processes.

        Args:
            value: the value of this rank.
            call_name: the name of the collective call.
        """
        answers = self.call(call_name, (value, _rust.process_name()))
        names = [name for _, name in answers]
        note_processes(self.members, names)
        return [each for each, _ in answers], names

    def raise_together(
        self, error: Exception | None, failed_action: str = "could not save its part"
    ) -> None:
        """Raise an error on all ranks if any rank has one.

        Args:
            error: the error of this rank.
            failed_action: the words for the message, such as "could not save".

        Raises:
            Exception: the error of this rank.
            RuntimeError: another rank has an error.
        """
        text = None if error is None else f"{type(error).__name__}: {error}"
        try:
            errors = self.gather(text)
        except RuntimeError as lost_rank:
            # A rank has ended, which is probably the cause of this rank's error.
            if error is not None:
                raise error from lost_rank
            raise
        if error is not None:
            try:
                raise error
            finally:
                # The error's traceback refers to this frame: no cycle may stay.
                del error
        for rank, other in enumerate(errors):
            if other is not None:
                raise RuntimeError(
                    MSG_OTHER.format(self.members[rank], failed_action, other)
                )

    def folder(self, directory: Path, token: str) -> Path:
        """Return the folder for the parts of a save before it is published."""
        return directory / f"{PARTS}{token}"

    def part(self, directory: Path, token: str, rank: int) -> Path:
        """Return the folder into which a rank writes its part."""
        return self.folder(directory, token) / f"rank-{rank:05}"


def run_together(
    work: Callable[[], _Result], group: Ranks | None, failed_action: str
) -> _Result:
    """Return the result of this rank's part of the work; raise an error of any rank on all.

    Args:
        work: the part of the work of this rank.
        group: the ranks that work together; None if there is one process.
        failed_action: the words for the error of another rank, such as "could not export".

    Raises:
        Exception: the error of this rank.
        RuntimeError: another rank has an error, or has ended.
    """
    if group is None:
        return work()
    error: Exception | None = None
    result: Any = None
    try:
        result = work()
    except Exception as caught:  # noqa: BLE001 (all ranks raise it)
        error = caught
    try:
        group.raise_together(error, failed_action)
    finally:
        # The error's traceback refers to this frame, which holds the work.
        error = None
    found: _Result = result
    return found


def ranks(group: Any = None) -> Ranks | None:
    """Return the ranks of a group; None if this process is the only one.

    Args:
        group: the process group. Default: all processes.

    Raises:
        ValueError: this process is not in the group, or the group was destroyed.
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
    """Return the process group of a ``process_group=`` argument, a group or a mesh.

    Raises:
        TypeError: the argument is neither.
        ValueError: this process is not in the group.
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
    # On ranks outside of the group, torch's new_group returns a number.
    shown = f" ({', '.join(map(str, members))})" if members else ""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    raise ValueError(MSG_OUTSIDE.format(rank, world, shown))


def _group_of_ranks(members: list[int]) -> Any:
    """Return a group of the ranks of a multi-dimensional mesh; only these call."""
    if len(members) == torch.distributed.get_world_size():
        return None
    return torch.distributed.new_group(sorted(members), use_local_synchronization=True)


def new_token() -> str:
    """Return a unique name for a save, which contains the name of this process."""
    return f"{_rust.process_name()}.{uuid.uuid4().hex[:12]}"


def begin_parts(directory: Path, token: str) -> None:
    """Create the folder for the parts of a save."""
    (directory / f"{PARTS}{token}").mkdir(parents=True)


def refuse_unshared(
    directory: Path, turn: Turn, *, is_known: bool, is_staging: bool = False
) -> None:
    """Check that the folder for parts of rank 0 is visible, within some seconds.

    Args:
        directory: the folder of the steps.
        turn: the turn of the save, which says whether ranks should share the folder.
        is_known: whether an earlier save has already checked it.
        is_staging: whether the steps live in an object store.

    Raises:
        OSError: the folder is not visible, so ranks have different folders of one name;
            or ranks share a folder in spite of ``shared=False``.
    """
    if is_known:
        return
    limit = time.monotonic() + SEEN_WITHIN
    while turn.rank and f"{PARTS}{turn.token}" not in _names(directory):
        if time.monotonic() > limit:
            hostname = socket.gethostname()
            rank = turn.members[turn.rank]
            message = MSG_STAGING if is_staging else MSG_UNSHARED
            raise OSError(message.format(directory, rank, hostname, turn.host))
        time.sleep(0.01)
    here = turn.ranks.here if turn.ranks is not None else 0
    others = turn.processes[here:] if here else []
    for name in _names(directory):
        if name.startswith(PARTS) and name[len(PARTS) :].partition(".")[0] in others:
            raise OSError(MSG_SHARED.format(directory))


def _names(directory: Path) -> set[str]:
    # Listing the directory makes a network file system ask its server.
    try:
        return {path.name for path in directory.iterdir()}
    except FileNotFoundError:
        return set()


def sweep_parts(directory: Path, tokens: Iterable[str]) -> None:
    """Delete the parts of failed saves: all parts except those of ``tokens``.

    Parts of another running process are kept: it may train in the same folder.
    """
    kept = {PARTS + token for token in tokens}
    own_process = _rust.process_name()
    for name in _names(directory):
        owner = name.removeprefix(PARTS).partition(".")[0]
        token = name.removesuffix(FAILED)
        if (
            name.startswith(PARTS)
            and token not in kept
            and (
                owner == own_process
                or "." not in name[1:]
                or _rust.process_has_ended(owner)
            )
        ):
            path = directory / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


class Publication(NamedTuple):
    """A step that rank 0 publishes, with the part that this rank wrote."""

    step: Step
    part: Path
    publisher: str
    """The name of the process of rank 0."""
    rank: int
    """The global rank that publishes."""

    def wait(self, limit: float) -> None:
        """Wait until the step is visible to this process.

        Raises:
            OSError: rank 0 failed or ended, or the wait took more than ``limit``
                seconds.
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
            # After the process has ended, look once more.
            has_ended = _rust.process_has_ended(self.publisher) or (
                is_moved and parts.name not in _names(folder)
            )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _is_there(self) -> bool:
        """Return whether this step or a later one is visible."""
        saved = Steps(self.step.path.parent).saved()
        return any(step.order >= self.step.order for step in saved)


def mark_failed(part: Path, error: object) -> None:
    """Write a file that tells waiting ranks why a part will not come.

    Args:
        part: the folder of the part, or the folder of all parts if the step failed.
        error: the cause.
    """
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.with_name(part.name + FAILED).write_text(f"{error}", encoding="utf-8")
    except OSError:
        # The disk may be the cause. Then rank 0 fails as well, or its wait times out.
        pass


def _why_failed(part: Path) -> str | None:
    """Return why a part will not come; None if it may still come."""
    mark = part.with_name(part.name + FAILED)
    # Listing the directory makes a network file system ask its server.
    if mark.name not in _names(part.parent):
        return None
    try:
        return mark.read_text(encoding="utf-8")
    except OSError:
        return ""


def rank_file(rank: int) -> str:
    """Return the name of the file that describes the part of a rank."""
    return f"rank-{rank:05}.json"
