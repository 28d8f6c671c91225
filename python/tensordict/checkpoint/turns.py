"""The position of a save in the order of all saves, and the fields of a step."""

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

MSG_METRIC = "The metric {!r} must be a number, got {!r}."


class Announcement(NamedTuple):
    """The fields of a :class:`Turn` that rank 0 announces."""

    token: str
    order: int
    is_free: bool
    before: tuple[int, int] | None
    host: str


class Turn(NamedTuple):
    """The position of a save in the order of all saves, on which the ranks agreed."""

    ranks: Ranks | None
    """The ranks that save together; None if there is one process."""
    is_later: bool
    """Whether the step is written in the background."""
    there: list[Step]
    """The existing steps, as rank 0 listed them."""
    processes: list[str]
    """The process names of all ranks."""
    token: str
    order: int
    is_free: bool
    """Whether the save may start. False: it is skipped, since another save is running."""
    before: tuple[int, int] | None
    """The number and order of the step to whose files unchanged tensors are linked."""
    host: str
    """The host name of rank 0."""
    kept: int | None = None
    """The order of the newest step in all folders, if there are several folders."""

    @property
    def rank(self) -> int:
        """The index of this process among the ranks."""
        return 0 if self.ranks is None else self.ranks.rank

    @property
    def process(self) -> str:
        """The name of the process that publishes the step."""
        return self.processes[0] if self.processes else _rust.process_name()

    @property
    def members(self) -> tuple[int, ...]:
        """The global numbers of the ranks."""
        return (0,) if self.ranks is None else self.ranks.members

    def places(self, directory: Path) -> tuple[Path | None, list[Part]]:
        """Return the folder for this rank's part, and on rank 0 the parts of the others.

        Rank 0 writes into the step itself, so its folder is None. It collects the other
        parts.
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
        TypeError: a metric is not a number.
    """
    fields = {"time": time.time(), "metrics": _numbers(metrics)}
    if rng:
        fields["rng"] = Encoder("rng").encode(random_states())
    return fields


def _numbers(metrics: Mapping[str, float] | None) -> Any:
    numbers = {}
    for name, value in dict(metrics or {}).items():
        if isinstance(value, torch.Tensor):
            value = value.detach()
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise TypeError(MSG_METRIC.format(name, value)) from None
    return Encoder("metrics").encode(numbers)
