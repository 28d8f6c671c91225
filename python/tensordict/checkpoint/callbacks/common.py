"""Settings that the callbacks of all loops share, such as folder and interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict.checkpoint.checkpointer import Checkpointer

__all__ = ["LoopCheckpoint"]


class LoopCheckpoint:
    """Save steps of somebody's loop, and set the random states of the one it goes on from.

    Args:
        checkpointer: where steps are saved.
        every_n_steps: after how many steps of the optimizer one is saved.
        **items: what else is saved and restored.
    """

    checkpointer: Checkpointer
    every_n_steps: int
    items: dict[str, Any]

    def __init__(
        self, checkpointer: Checkpointer, every_n_steps: int, **items: Any
    ) -> None:
        self.checkpointer = checkpointer
        self.every_n_steps = every_n_steps
        self.items = items
        self._random_step: int | None = None

    def _is_time(self, step: int) -> bool:
        return step % self.every_n_steps == 0

    def _is_asked(self, step: int) -> bool:
        """Return whether a process was asked to end: the same answer on all ranks.

        Ranks tell each other where the signal is noted at all.
        """
        if not self.checkpointer.handle_sigterm:
            return self.checkpointer.preempted
        return self.checkpointer.reached_preemption(step)

    def _set_random_states(self) -> None:
        """Set those of the step that the loop goes on from, once."""
        if self._random_step is not None:
            self.checkpointer.restore_random_states(self._random_step)
            self._random_step = None
