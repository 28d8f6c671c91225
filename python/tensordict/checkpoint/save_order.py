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
from tensordict.checkpoint.turns import Announcement, Turn

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
                    begin_parts(self.directory, said.token)
            except OSError as failed:
                if found is None:
                    raise
                error = failed
        if found is None:
            turn = Turn(found, is_later, there, [], *said)
        else:
            try:
                turn = self._agreed_turn(number, found, is_later, there, said, error)
            except Exception:
                self._sweep_failed(found)
                raise
        if turn.is_free:
            self._last_order = turn.order
        return turn

    def _agreed_turn(
        self,
        number: int,
        group: Ranks,
        is_later: bool,
        there: list[Step],
        said: Announcement | None,
        error: Exception | None,
    ) -> Turn:
        """Agree on the turn with all ranks, of which the first of each folder says one."""
        is_first = group.rank == 0
        told, processes = group.introduce(
            (is_first, said, [step[:2] for step in there]), f"save({number})"
        )
        firsts = [(each, steps) for is_first, each, steps in told if is_first]
        if any(each is None for each, _ in firsts):
            group.raise_together(error)
        own: Announcement = told[0][1]
        kept: int | None = None
        if group.here:
            common = set.intersection(*(set(steps) for _, steps in firsts))
            # Another folder may not get the new step.
            kept = max((order for _, order in common), default=None)
        agreed = own._replace(
            order=max(each.order for each, _ in firsts),
            is_free=all(each.is_free for each, _ in firsts),
        )
        return Turn(group, is_later, there, processes, *agreed, kept)

    def _sharer(self, group: Ranks | None) -> Sharer:
        """Return what divides steps over ranks; it remembers how the last one was."""
        if self._last_sharer is None or self._last_sharer.ranks != group:
            self._last_sharer = Sharer(group)
        return self._last_sharer

    def _announcement(self, there: list[Step], is_free: bool) -> Announcement:
        """Return what rank 0 tells all."""
        orders = [self._last_order, *(each.order for each in there)]
        if self._mirror is not None:
            orders.append(self._mirror.last_order())
        # Nothing moves or goes until this step is there, unless another is on its way.
        before = there[-1][:2] if there and not self._writer.pending() else None
        order = max(orders) + 1
        return Announcement(new_token(), order, is_free, before, socket.gethostname())

    def _sweep_failed(self, group: Ranks) -> None:
        """Remove the parts of a save that came to nothing, and those of others before."""
        if group.rank == 0:
            sweep_parts(self.directory, self._pending_tokens())

    def _sweep_parts(self, turn: Turn) -> None:
        """Remove the parts of all saves but this one and those on their way."""
        if turn.ranks is None and self._is_swept:
            return
        self._is_swept = True
        pending = self._pending_tokens()
        sweep_parts(self.directory, [*pending, turn.token])
        self._tokens = {turn.order: turn.token} | {
            each: known for each, known in self._tokens.items() if known in pending
        }

    def _pending_tokens(self) -> list[str]:
        """Return the tokens of saves that are on their way."""
        orders = [step.order for step in self._writer.pending()]
        return [self._tokens[each] for each in orders if each in self._tokens]

    def _retired(self, turn: Turn, new: Step) -> list[Step]:
        """The steps that go when a new one is there."""
        if self._is_remote:
            # They go when this one is up.
            return []
        known = {step.number: step for step in [*turn.there, *self._writer.pending()]}
        known.pop(new.number, None)
        ordered = sorted(known.values(), key=lambda step: step.order)
        found = retired([*ordered, new], self.keep, self.keep_every)
        staying = {turn.kept, *(step.order for step in self._uploading())}
        return [step for step in found if step.order not in staying]

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
