"""Saves in the background: how they are waited for, and when they are forgotten.

The threads that write are native and touch no Python object, so a fork does not harm
them. They would also survive the end of the interpreter; an exit handler waits for them
first.
"""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING, Any

from tensordict import _rust

if TYPE_CHECKING:
    from tensordict.checkpoint.steps import Step
    from tensordict.checkpoint.writing import Plan

__all__ = ["Writer"]

_WRITERS: weakref.WeakSet[Writer] = weakref.WeakSet()


class Writer:
    """A writer of steps, one after the other, in the call or in the background.

    Args:
        how: the most threads, whether a step is durable, whether it has checksums.
    """

    def __init__(self, how: tuple[int, bool, bool]) -> None:
        self.how = how
        self._staging: Any = None
        self._pending: list[tuple[Step, Any]] = []
        _WRITERS.add(self)

    def write(self, plan: Plan) -> None:
        """Write a step, and return when it is complete."""
        _rust.save_step(plan.arguments(), self.how, _rust.SaveProgress())

    def write_later(self, plan: Plan, step: Step) -> Any:
        """Copy the values of a step and return; a native thread writes the copy.

        Returns:
            A handle of the save, with ``wait()``, ``is_done()`` and ``raise_error()``.
        """
        if self._staging is None:
            self._staging = _rust.StagingMemory()
        after = self._pending[-1][1] if self._pending else None
        progress = _rust.SaveProgress()
        save = self._staging.save(plan.arguments(), self.how, after, progress)
        self._pending.append((step, save))
        _KEPT.add(self)
        return save

    def pending(self) -> list[Step]:
        """Return the steps that are not complete yet, or not durable yet."""
        return [step for step, save in self._pending if not save.is_done()]

    def is_busy(self) -> bool:
        """Return whether a step is being written."""
        return bool(self.pending())

    def raise_errors(self) -> None:
        """Forget the saves that have ended, and raise the error of the first that failed.

        Raises:
            OSError: the files of a step could not be written.
        """
        while self._pending and self._pending[0][1].is_done():
            _, save = self._pending.pop(0)
            if not self._pending:
                _KEPT.discard(self)
            save.raise_error()

    def wait(self) -> None:
        """Wait for all saves, and raise the error of the first that failed."""
        for _, save in list(self._pending):
            save.wait()
        self.raise_errors()

    def num_staged_bytes(self) -> int:
        """Return the number of bytes of staging memory."""
        return 0 if self._staging is None else self._staging.num_bytes()

    def forget(self) -> None:
        """Forget the pending saves after a fork: the parent process writes them."""
        self._pending.clear()
        self._staging = None


# Writers with pending saves. They stay alive here until their steps are written, also
# if the checkpointer is garbage-collected before.
_KEPT: set[Writer] = set()


def _finish() -> None:
    errors = []
    for writer in list(_KEPT):
        try:
            writer.wait()
        except Exception as error:  # noqa: BLE001 (wait for the other writers, too)
            errors.append(error)
    if errors:
        raise errors[0]


def _forget() -> None:
    _KEPT.clear()
    for writer in list(_WRITERS):
        writer.forget()


atexit.register(_finish)
os.register_at_fork(after_in_child=_forget)
