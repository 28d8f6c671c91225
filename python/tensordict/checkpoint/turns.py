"""The place of a save in the order of all, and what a step says beside its items."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from tensordict import _rust
from tensordict.checkpoint.randomness import random_states
from tensordict.storage.encoding import Encoder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.steps import Step

__all__ = ["Announcement", "Part", "Turn", "step_fields"]

Part: TypeAlias = "tuple[str, str]"
"""The folder of a part, and the name of the process that writes it."""

MSG_METRIC = "The metric {!r} is a number, got {!r}."


class Announcement(NamedTuple):
    """The fields of a :class:`Turn` that rank 0 tells all."""

    token: str
    order: int
    is_free: bool
    before: tuple[int, int] | None
    host: str


class Turn(NamedTuple):
    """The place of a save in the order of all, as the ranks agreed on it."""

    ranks: Ranks | None
    """The ranks that save together; None for a process alone."""
    is_later: bool
    """True if it is written in the background."""
    there: list[Step]
    """The steps that are there, which rank 0 has listed."""
    processes: list[str]
    """The names of the processes of all ranks."""
    token: str
    order: int
    is_free: bool
    """False if the save is skipped, since the one before is not done."""
    before: tuple[int, int] | None
    """The number and order of the step to whose files unchanged tensors are linked."""
    host: str
    """The name of the machine of rank 0."""
    kept: int | None = None
    """The order of the newest step that is in all folders, where there are several."""

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return 0 if self.ranks is None else self.ranks.rank

    @property
    def process(self) -> str:
        """The name of the process that publishes the step."""
        return self.processes[0] if self.processes else _rust.process_name()

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of the ranks among all."""
        return (0,) if self.ranks is None else self.ranks.members

    def places(self, directory: Path) -> tuple[Path | None, list[Part]]:
        """Return where the part of this rank goes, and those of others.

        Rank 0 writes into the step itself, and needs to know of the others.
        """
        if self.ranks is None:
            return None, []
        count = self.ranks.here or self.ranks.world
        folders = [
            self.ranks.part(directory, self.token, rank) for rank in range(count)
        ]
        if self.rank:
            return folders[self.rank], []
        return None, list(zip(map(str, folders), self.processes, strict=False))[1:]


def step_fields(metrics: Mapping[str, float] | None, *, rng: bool) -> dict[str, Any]:
    """Return the time, the metrics and the random states of a step.

    Raises:
        TypeError: a metric is no number.
    """
    fields = {"time": time.time(), "metrics": _numbers(metrics)}
    if rng:
        fields["rng"] = Encoder("rng").encode(random_states())
    return fields


def _numbers(metrics: Mapping[str, float] | None) -> Any:
    found = {}
    for name, value in dict(metrics or {}).items():
        if isinstance(value, torch.Tensor):
            value = value.detach()
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            raise TypeError(MSG_METRIC.format(name, value)) from None
    return Encoder("metrics").encode(found)
