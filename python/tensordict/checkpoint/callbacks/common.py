"""The base class of the callbacks: which steps to save, and when to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict.checkpoint.checkpointer import Checkpointer

__all__ = ["LoopCheckpoint"]


class LoopCheckpoint:
    """A callback that saves steps of a training loop and sets random states on a resume.

    Args:
        checkpointer: the checkpointer that saves the steps.
        every_n_steps: the number of optimizer steps between two saves.
        **items: more items to save and restore, by name.
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
        """Return whether the process was asked to end, with the same answer on all ranks.

        The ranks communicate only if the checkpointer handles SIGTERM.
        """
        if not self.checkpointer.handle_sigterm:
            return self.checkpointer.preempted
        return self.checkpointer.reached_preemption(step)

    def _set_random_states(self) -> None:
        """Set the random states of the step that the loop resumes from, once."""
        if self._random_step is not None:
            self.checkpointer.restore_random_states(self._random_step)
            self._random_step = None
