"""The two places of a checkpointer's steps: a local folder and an object store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.mirror import Mirror, staging_folder
from tensordict.checkpoint.reading import StepFiles
from tensordict.checkpoint.uploading import SharedUpload
from tensordict.storage.locations import local
from tensordict.storage.remote.copied import followed_steps
from tensordict.storage.remote.place import is_remote, place_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.checkpoint.background import Writer
    from tensordict.checkpoint.distributed import Publication
    from tensordict.checkpoint.steps import Step, Steps
    from tensordict.checkpoint.turns import Turn

__all__ = ["Mirroring"]

MSG_MIRROR = "mirror must be the URL of a folder in an object store, got {!r}."
MSG_BOTH = (
    "mirror= copies the steps of a local directory to an object store, but the steps of {} "
    "are in an object store already: leave out mirror=."
)
MSG_STAGING = "staging= is for steps in an object store, but {!r} is a local directory: leave it out."


class Mirroring:
    """The base class of ``Checkpointer`` that finds and opens steps at both places."""

    directory: Path
    keep: int | None
    keep_every: int | None
    durable: bool
    num_threads: int
    rank_timeout: float
    _steps: Steps
    _writer: Writer
    _mirror: Mirror | None
    _published: list[Publication]

    def _place(
        self,
        directory: Any,
        mirror: Any,
        staging: Any,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        """Set the places of the steps: a folder, a store, or both.

        Raises:
            ValueError: the arguments cannot be combined.
        """
        self._mirror = None
        if not is_remote(directory):
            directory = followed_steps(local(directory)) or directory
        if not is_remote(directory):
            if staging is not None:
                raise ValueError(MSG_STAGING.format(directory))
            self.directory = Path(local(directory)).absolute()
            if mirror is None:
                return
            if not is_remote(mirror):
                raise ValueError(MSG_MIRROR.format(mirror))
            place = place_of(mirror, storage_options)
        elif mirror is not None:
            raise ValueError(MSG_BOTH.format(directory))
        else:
            place = place_of(directory, storage_options)
            folder = staging_folder(place) if staging is None else Path(local(staging))
            self.directory = folder.absolute()
        is_home = is_remote(directory)
        self._mirror = Mirror(
            place, self.directory, self.keep, self.keep_every, is_home=is_home
        )

    @property
    def _is_remote(self) -> bool:
        """Whether the steps live in a store; the local folder only stages them."""
        return self._mirror is not None and self._mirror.is_home

    def _upload(self, step: Step, save: Any, turn: Turn) -> None:
        """Upload a step, after ``save`` has written it if that runs in the background.

        Each rank uploads the files that it wrote.
        """
        mirror = self._mirror
        if mirror is None:
            return
        shared = None
        if turn.ranks is not None:
            timeout = self.rank_timeout
            shared = SharedUpload(self.directory, step.number, turn, timeout)
        publication = self._published[-1] if turn.rank else None

        def until_there() -> None:
            if save is not None:
                save.wait()
            if publication is not None:
                publication.wait(self.rank_timeout)

        if save is not None or not mirror.is_home:
            mirror.upload_later(step, until_there, shared)
            return
        try:
            mirror.wait()
            until_there()
            mirror.upload(step, shared)
        except BaseException as error:
            if shared is not None:
                shared.give_up(error)
            raise

    def _uploading(self) -> list[Step]:
        """Return the steps that must stay here until they are uploaded."""
        return [] if self._mirror is None else self._mirror.pending()

    def _is_busy(self) -> bool:
        """Return whether the previous step is not complete at its place yet."""
        return self._writer.is_busy() or (self._is_remote and bool(self._uploading()))

    def _wait_for_steps(self) -> None:
        """Wait until all steps are complete at their place.

        Raises:
            OSError: a step could not be written.
        """
        self._writer.wait()
        if self._mirror is not None and self._mirror.is_home:
            self._mirror.wait()

    def _durable_steps(self) -> list[Step]:
        """Return the steps that survive a power cut, in the order of their saves."""
        if self._mirror is not None and self._mirror.is_home:
            return self._mirror.steps.saved()
        pending = {step.order for step in self._writer.pending()}
        steps = [step for step in self._steps.saved() if step.order not in pending]
        if self.durable and steps:
            self._steps.sync()
        if self._mirror is None:
            return steps
        try:
            remote = self._mirror.steps.saved()
        except OSError:
            if not steps:
                raise
            return steps
        local_numbers = {step.number for step in steps}
        others = [step for step in remote if step.number not in local_numbers]
        return sorted([*others, *steps], key=lambda step: (step.order, step.number))

    def _find(self, number: int | None) -> Step:
        """Return a step by its number, or the last saved step, from either place.

        Raises:
            FileNotFoundError: there is no such step.
        """
        if self._mirror is None:
            return self._steps.find(number)
        if self._mirror.is_home:
            return self._mirror.steps.find(number)
        for step in reversed(self._durable_steps()):
            if number in (None, step.number):
                return step
        return self._steps.find(number)

    def _open(self, step: Step, *, is_shown: bool = False) -> StepFiles:
        """Return the files of a step.

        Args:
            step: the step.
            is_shown: whether tensors of a store stay there until they are used.
        """
        if self._mirror is None or isinstance(step.path, Path):
            return StepFiles(step.path, self.num_threads)
        return self._mirror.open(step.path, self.num_threads, is_shown=is_shown)
