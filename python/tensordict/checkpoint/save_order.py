"""The order of saves: which is next, what it makes superfluous, what is linked from before."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.distributed import (
    begin_parts,
    new_token,
    rank_file,
    sweep_parts,
)
from tensordict.checkpoint.shares import Sharer
from tensordict.checkpoint.steps import Step, Steps, read_meta, retired, step_name
from tensordict.checkpoint.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tensordict.checkpoint.background import Writer
    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.mirror import Mirror

__all__ = ["SaveOrder"]


class SaveOrder:
    """Finds the place of each save among all. It is a base of ``Checkpointer``."""

    directory: Path
    keep: int | None
    keep_every: int | None
    when_busy: str
    _steps: Steps
    _writer: Writer
    _is_swept: bool = False
    _last_order: int
    _tokens: dict[int, str]
    _last_sharer: Sharer | None
    _last: tuple[Step, dict[str, Any]] | None
    _mirror: Mirror | None
    _is_remote: bool
    _is_busy: Callable[[], bool]
    _uploading: Callable[[], list[Step]]
    _wait_for_steps: Callable[[], None]

    def _is_free(self, is_later: bool) -> bool:
        """Wait for the save before, if that is wished; whether this one is done."""
        self._writer.raise_errors()
        if self._mirror is not None:
            self._mirror.raise_error()
        if not self._is_busy():
            return True
        if self.when_busy == "skip":
            return False
        if self.when_busy == "wait" or not is_later:
            self._wait_for_steps()
        return True

    def _turn(
        self,
        number: int,
        found: Ranks | None,
        is_later: bool,
        is_free: bool | None = None,
    ) -> Turn:
        """Find the place of a save in the order of all, which rank 0 chooses."""
        error: Exception | None = None
        said: Any = None
        there: list[Step] = []
        if found is None or found.rank == 0:
            try:
                is_free = self._is_free(is_later) if is_free is None else is_free
                there = self._steps.saved()
                said = self._announcement(there, is_free)
                if found is not None and is_free:
                    begin_parts(self.directory, said[0])
            except OSError as failed:
                if found is None:
                    raise
                error = failed
        processes: list[str] = []
        if found is not None:
            try:
                said, processes = found.introduce(said, f"save({number})")
                if said is None:
                    found.raise_together(error)
            except Exception:
                self._sweep_failed(found)
                raise
        turn = Turn(found, is_later, there, processes, *said)
        if turn.is_free:
            self._last_order = turn.order
        return turn

    def _sharer(self, group: Ranks | None) -> Sharer:
        """Return what divides steps over ranks; it remembers how the last one was."""
        if self._last_sharer is None or self._last_sharer.ranks != group:
            self._last_sharer = Sharer(group)
        return self._last_sharer

    def _announcement(self, there: list[Step], is_free: bool) -> tuple[Any, ...]:
        """Return what rank 0 tells all: token, order, whether to save, last step."""
        orders = [self._last_order, *(each.order for each in there)]
        if self._mirror is not None:
            orders.append(self._mirror.last_order())
        # Nothing moves or goes until this step is there, unless another is on its way.
        before = there[-1][:2] if there and not self._writer.pending() else None
        order = max(orders) + 1
        return new_token(), order, is_free, before, socket.gethostname()

    def _sweep_failed(self, group: Ranks) -> None:
        """Remove the parts of a save that came to nothing, and those of others before."""
        if group.rank == 0:
            pending = [step.order for step in self._writer.pending()]
            known = [self._tokens[each] for each in pending if each in self._tokens]
            sweep_parts(self.directory, known)

    def _sweep_parts(self, turn: Turn) -> None:
        """Remove the parts of all saves but this one and those on their way."""
        if turn.ranks is None and self._is_swept:
            return
        self._is_swept = True
        pending = [self._tokens.get(each.order, "") for each in self._writer.pending()]
        sweep_parts(self.directory, [*pending, turn.token])
        self._tokens = {turn.order: turn.token} | {
            each: known for each, known in self._tokens.items() if known in pending
        }

    def _retired(self, there: list[Step], new: Step) -> list[Step]:
        """The steps that go when a new one is there."""
        if self._is_remote:
            # They go when this one is up.
            return []
        known = {step.number: step for step in [*there, *self._writer.pending()]}
        known.pop(new.number, None)
        ordered = sorted(known.values(), key=lambda step: step.order)
        gone = retired([*ordered, new], self.keep, self.keep_every)
        uploading = {step.order for step in self._uploading()}
        return [step for step in gone if step.order not in uploading]

    def _before(self, turn: Turn) -> tuple[Path, dict[str, Any]] | None:
        """The step whose files are linked where tensors did not change, of this rank's."""
        if self._last is not None:
            last, meta = self._last
            known = [*turn.there, *self._writer.pending()]
            orders = [(step.number, step.order) for step in known]
            if last[:2] in (orders if turn.rank == 0 else [turn.before]):
                return last.path, meta
        if turn.rank == 0:
            for step in reversed(turn.there):
                try:
                    return step.path, read_meta(step.path)
                except (OSError, RuntimeError, ValueError):
                    continue
            return None
        if turn.before is None:
            return None
        path = self.directory / step_name(turn.before[0])
        try:
            meta = read_meta(path, rank_file(turn.rank))
        except (OSError, RuntimeError, ValueError):
            return None
        return (path, meta) if meta["order"] == turn.before[1] else None
