"""The order of saves: which step is next, superfluous, or a source of links."""

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
    """The base class of ``Checkpointer`` that orders its saves."""

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
        """Handle a running save by ``when_busy``; return whether the new save may start."""
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
        """Agree on the position of a save in the order of all saves; rank 0 chooses it."""
        error: Exception | None = None
        announcement: Any = None
        saved_steps: list[Step] = []
        if found is None or found.rank == 0:
            try:
                is_free = self._is_free(is_later) if is_free is None else is_free
                saved_steps = self._steps.saved()
                announcement = self._announcement(saved_steps, is_free)
                if found is not None and is_free:
                    begin_parts(self.directory, announcement.token)
            except OSError as caught:
                if found is None:
                    raise
                error = caught
        if found is None:
            turn = Turn(found, is_later, saved_steps, [], *announcement)
        else:
            try:
                turn = self._agreed_turn(
                    number, found, is_later, saved_steps, announcement, error
                )
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
        saved_steps: list[Step],
        announcement: Announcement | None,
        error: Exception | None,
    ) -> Turn:
        """Agree on the turn with all ranks; the first rank of each folder proposes one."""
        is_first = group.rank == 0
        answers, processes = group.introduce(
            (is_first, announcement, [step[:2] for step in saved_steps]),
            f"save({number})",
        )
        firsts = [
            (proposal, steps) for is_first, proposal, steps in answers if is_first
        ]
        if any(proposal is None for proposal, _ in firsts):
            group.raise_together(error)
        chosen: Announcement = answers[0][1]
        kept: int | None = None
        if group.here:
            common = set.intersection(*(set(steps) for _, steps in firsts))
            # Another folder may not get the new step, so keep the newest step of all
            # folders.
            kept = max((order for _, order in common), default=None)
        agreed = chosen._replace(
            order=max(proposal.order for proposal, _ in firsts),
            is_free=all(proposal.is_free for proposal, _ in firsts),
        )
        return Turn(group, is_later, saved_steps, processes, *agreed, kept)

    def _sharer(self, group: Ranks | None) -> Sharer:
        """Return the sharer, which remembers how the last step was divided over ranks."""
        if self._last_sharer is None or self._last_sharer.ranks != group:
            self._last_sharer = Sharer(group)
        return self._last_sharer

    def _announcement(self, saved_steps: list[Step], is_free: bool) -> Announcement:
        """Return the announcement of rank 0 to all ranks."""
        orders = [self._last_order, *(each.order for each in saved_steps)]
        if self._mirror is not None:
            orders.append(self._mirror.last_order())
        # The last step's files cannot be moved or deleted meanwhile, unless a save is
        # pending.
        before = (
            saved_steps[-1][:2] if saved_steps and not self._writer.pending() else None
        )
        order = max(orders) + 1
        return Announcement(new_token(), order, is_free, before, socket.gethostname())

    def _sweep_failed(self, group: Ranks) -> None:
        """Remove the parts of this failed save, and of earlier failed saves."""
        if group.rank == 0:
            sweep_parts(self.directory, self._pending_tokens())

    def _sweep_parts(self, turn: Turn) -> None:
        """Remove the parts of all saves except this one and pending ones."""
        if turn.ranks is None and self._is_swept:
            return
        self._is_swept = True
        pending = self._pending_tokens()
        sweep_parts(self.directory, [*pending, turn.token])
        self._tokens = {turn.order: turn.token} | {
            order: token for order, token in self._tokens.items() if token in pending
        }

    def _pending_tokens(self) -> list[str]:
        """Return the tokens of pending saves."""
        orders = [step.order for step in self._writer.pending()]
        return [self._tokens[order] for order in orders if order in self._tokens]

    def _retired(self, turn: Turn, new: Step) -> list[Step]:
        """Return the steps to delete when a new step is complete."""
        if self._is_remote:
            # They are deleted after the upload of the new step.
            return []
        steps_by_number = {
            step.number: step for step in [*turn.there, *self._writer.pending()]
        }
        steps_by_number.pop(new.number, None)
        ordered = sorted(steps_by_number.values(), key=lambda step: step.order)
        superfluous = retired([*ordered, new], self.keep, self.keep_every)
        staying = {turn.kept, *(step.order for step in self._uploading())}
        return [step for step in superfluous if step.order not in staying]

    def _before(self, turn: Turn) -> tuple[Path, dict[str, Any]] | None:
        """Return the step whose files may be linked, and its description."""
        if self._last is not None:
            last, meta = self._last
            existing = [*turn.there, *self._writer.pending()]
            orders = [(step.number, step.order) for step in existing]
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
