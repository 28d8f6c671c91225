"""Checkpoints of several ranks: each writes its part, and rank 0 publishes the step.

Modules and optimizers belong to all ranks, and each writes a share of them. Everything
else (loaders, random states, plain data) is each rank's own. What ranks tell each other goes through ``torch.distributed`` in the
call, never in the background: there rank 0 waits for directories to appear.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Ranks", "mark_failed", "rank_file", "ranks", "sweep_parts"]

PARTS = ".parts-"

MSG_OTHER = "Rank {} {}: {}"


class Ranks(NamedTuple):
    """The ranks of a run, of which this process is one."""

    rank: int
    world: int

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks."""
        found: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(found, value)
        return found

    def agree(self, value: object) -> Any:
        """Return the value of rank 0, on all ranks."""
        return self.gather(value if self.rank == 0 else None)[0]

    def introduce(self, value: object) -> tuple[Any, list[str]]:
        """Return the value of rank 0, and the names of all processes, on all ranks."""
        found = self.gather((value, _rust.process_name()))
        return found[0][0], [name for _, name in found]

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


def sweep_parts(directory: Path, tokens: Iterable[str]) -> None:
    """Delete the parts of saves that came to nothing: all but those of these tokens."""
    kept = {PARTS + token for token in tokens}
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(PARTS) and name not in kept:
            shutil.rmtree(directory / name, ignore_errors=True)


def mark_failed(part: Path) -> None:
    """Say that a part will not come, to rank 0 that waits for it."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.with_name(part.name + ".failed").touch()
    except OSError:
        # The disk may be what failed: then rank 0 meets it, too, or gives up in time.
        pass


def rank_file(rank: int) -> str:
    """The name of the file that describes the part of a rank."""
    return f"rank-{rank:05}.json"
