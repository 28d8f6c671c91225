"""Saves that go on in the background: who waits for them, and when they are lost.

The threads that write are native and touch no Python object, so a fork does them no harm
and the interpreter may end around them. It does not, though: at its exit they are waited for.
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
    """Writes steps, in the call or after it, one after the other.

    Args:
        how: the most threads, whether a step is durable, whether it has checksums.
    """

    def __init__(self, how: tuple[int, bool, bool]) -> None:
        self.how = how
        self._staging: Any = None
        self._pending: list[tuple[Step, Any]] = []
        _WRITERS.add(self)

    def write(self, plan: Plan) -> None:
        """Write a step and return when it is there."""
        _rust.save_step(plan.arguments(), self.how, _rust.SaveProgress())

    def write_later(self, plan: Plan, step: Step) -> Any:
        """Copy the values of a step, and return; a thread writes it.

        Returns:
            The save, whose ``wait()`` waits for it.
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
        """The steps that are not there yet, or not durable."""
        return [step for step, save in self._pending if not save.is_done()]

    def is_busy(self) -> bool:
        """Return whether a step is being written."""
        return bool(self.pending())

    def raise_errors(self) -> None:
        """Forget what has ended, and raise why one failed.

        Raises:
            OSError: its files could not be written.
        """
        while self._pending and self._pending[0][1].is_done():
            _, save = self._pending.pop(0)
            if not self._pending:
                _KEPT.discard(self)
            save.raise_error()

    def wait(self) -> None:
        """Wait for all steps, and raise why one failed."""
        for _, save in list(self._pending):
            save.wait()
        self.raise_errors()

    def num_staged_bytes(self) -> int:
        """The bytes of staging memory that are kept."""
        return 0 if self._staging is None else self._staging.num_bytes()

    def forget(self) -> None:
        """Forget steps that another process writes: the one that this was forked from."""
        self._pending.clear()
        self._staging = None


# A checkpointer that nobody holds any more has its steps written nevertheless.
_KEPT: set[Writer] = set()


def _finish() -> None:
    errors = []
    for writer in list(_KEPT):
        try:
            writer.wait()
        except Exception as error:  # noqa: BLE001 (the others are waited for, too)
            errors.append(error)
    if errors:
        raise errors[0]


def _forget() -> None:
    _KEPT.clear()
    for writer in list(_WRITERS):
        writer.forget()


atexit.register(_finish)
os.register_at_fork(after_in_child=_forget)
