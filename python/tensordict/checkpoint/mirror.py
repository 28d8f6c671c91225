"""Upload the steps of a checkpointer to an object store in the background."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tensordict.checkpoint.remote_files import RemoteStepFiles, ShownStepFiles
from tensordict.checkpoint.remote_steps import RemoteSteps
from tensordict.checkpoint.steps import Steps, read_meta, retired, step_name
from tensordict.storage.remote.publishing import (
    files_below,
    in_threads,
    upload_file,
    upload_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.checkpoint.steps import Step
    from tensordict.checkpoint.uploading import SharedUpload
    from tensordict.storage.remote.place import Place

__all__ = ["Mirror", "staging_folder"]

MSG_NOT_THERE: Final = "the step could not be written to {}"

_MIRRORS: weakref.WeakSet[Mirror] = weakref.WeakSet()


def staging_folder(place: Place) -> Path:
    """Return the local folder for steps of a place: the same in all processes."""
    name = hashlib.sha256(str(place).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"tensordict-steps-{os.getuid()}" / name


class _Waiting(NamedTuple):
    """A step that waits for its upload."""

    step: Step
    until_there: Callable[[], object]
    shared: SharedUpload | None


class Mirror:
    """The upload of a folder's steps to a store, in order; it deletes old steps there.

    Args:
        place: the place of the steps in the store.
        folder: the folder on this machine.
        keep: the number of latest steps to keep in the store, as in ``Checkpointer``.
        keep_every: also keep the steps whose number is a multiple of this.
        is_home: whether the store is the only place of the steps. Then only the last
            step stays on this machine, since the next step may share files with it.
    """

    def __init__(
        self,
        place: Place,
        folder: Path,
        keep: int | None,
        keep_every: int | None,
        *,
        is_home: bool,
    ) -> None:
        self.place = place
        self.folder = folder
        self.keep = keep
        self.keep_every = keep_every
        self.is_home = is_home
        self.steps: RemoteSteps = RemoteSteps(place)
        self._objects: dict[Any, str] = {}
        self._queue: deque[_Waiting] = deque()
        self._changed: threading.Condition = threading.Condition()
        self._is_running: bool = False
        self._error: Exception | None = None
        self._lock: threading.RLock = threading.RLock()
        self._last_order: int | None = None
        _MIRRORS.add(self)

    def last_order(self) -> int:
        """Return the order of the last step in the store, cached; -1 if there is none."""
        if self._last_order is None:
            self._last_order = max(
                (step.order for step in self.steps.saved()), default=-1
            )
        return self._last_order

    def upload(self, step: Step, shared: SharedUpload | None = None) -> None:
        """Upload a step, or this rank's part of it; rank 0 then deletes superfluous steps.

        Args:
            step: the step.
            shared: the upload of several ranks together, if there are several.

        Raises:
            OSError: the store could not be written to. Older steps are still there.
        """
        if shared is None:
            self._upload(step, None)
            return
        error: BaseException | None = None
        try:
            if shared.rank:
                self._upload_part(step, shared)
            else:
                self._upload(step, shared)
        except BaseException as caught:
            error = caught
            raise
        finally:
            (shared.finish if shared.rank else shared.end)(error)
        if shared.rank:
            shared.wait_for_step()

    def _upload_part(self, step: Step, shared: SharedUpload) -> None:
        """Upload the files that this rank wrote."""
        place = self.place / step_name(step.number)
        calls = [
            (place, step.path / name, key) for name, key in shared.own_objects().items()
        ]
        in_threads(partial(upload_file, is_own=self.is_home), calls)

    def _upload(self, step: Step, shared: SharedUpload | None) -> None:
        with self._lock:
            remote_steps = self.steps.saved()
            name = step_name(step.number)
            files = files_below(step.path)
            known_keys = {
                file: self._objects.get(_identity(path)) for file, path in files.items()
            }
            references = {
                file: key.removeprefix(f"{name}/")
                if key.startswith(f"{name}/")
                else f"../{key}"
                for file, key in known_keys.items()
                if key is not None and self.steps.has(key)
            }
            kept = self.steps.referenced(step.number)
            own_keys = [
                key.partition("/")[2] for key in kept if key.startswith(f"{name}/")
            ]
            identities = {file: _identity(path) for file, path in files.items()}
            objects = upload_folder(
                step.path,
                self.place / name,
                references=references,
                kept=own_keys,
                helpers=shared,
                is_own=self.is_home,
            )
            self._objects = {
                identities[file]: key[3:] if key.startswith("../") else f"{name}/{key}"
                for file, key in objects.items()
            }
            others = [each for each in remote_steps if each.number != step.number]
            superfluous = retired([*others, step], self.keep, self.keep_every)
            if superfluous:
                self.steps.retire([each.number for each in superfluous])
            if self.is_home:
                self._remove_before(step)

    def _remove_before(self, step: Step) -> None:
        """Remove the local steps that were saved before an uploaded one."""
        for each in Steps(self.folder).saved():
            if each.order < step.order:
                shutil.rmtree(each.path, ignore_errors=True)

    def upload_later(
        self,
        step: Step,
        until_there: Callable[[], object],
        shared: SharedUpload | None = None,
    ) -> None:
        """Upload a step in a thread, after it is complete.

        Args:
            step: the step.
            until_there: waits until the step is complete on this machine.
            shared: the upload of several ranks together, if there are several.
        """
        with self._changed:
            self._queue.append(_Waiting(step, until_there, shared))
            if not self._is_running:
                self._is_running = True
                # Not a daemon thread: the interpreter waits for it at exit.
                thread = threading.Thread(target=self._run, name="tensordict-mirror")
                thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                step, until_there, shared = self._queue[0]
            try:
                until_there()
                if _is_there(step):
                    self.upload(step, shared)
                elif shared is not None:
                    shared.give_up(OSError(MSG_NOT_THERE.format(step.path)))
            except Exception as error:  # noqa: BLE001 (the next call raises it)
                self._error = error
                if shared is not None:
                    shared.give_up(error)
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()

    def pending(self) -> list[Step]:
        """Return the steps that are not in the store yet."""
        with self._changed:
            return [waiting.step for waiting in self._queue]

    def raise_error(self) -> None:
        """Raise the error of a failed upload, once.

        Raises:
            OSError: the store could not be written to.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait until all steps are in the store, and raise the error of a failed upload."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue)
        self.raise_error()

    def open(self, place: Any, num_threads: int, *, is_shown: bool) -> RemoteStepFiles:
        """Return the files of a step in the store, as ``Checkpointer._open``."""
        return (ShownStepFiles if is_shown else RemoteStepFiles)(place, num_threads)

    def forget(self) -> None:
        """Forget the pending uploads after a fork: the parent process does them."""
        self._changed = threading.Condition()
        self._lock = threading.RLock()
        self._queue.clear()
        self._is_running = False


def _is_there(step: Step) -> bool:
    """Return whether a step is complete on this machine; if not, its writer raises why."""
    try:
        return bool(read_meta(step.path)["order"] == step.order)
    except (OSError, RuntimeError, ValueError):
        return False


def _identity(path: Path) -> tuple[int, int, int, int]:
    """Return an identity of a file that its hard links share."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _finish() -> None:
    errors = []
    for mirror in list(_MIRRORS):
        try:
            mirror.wait()
        except Exception as error:  # noqa: BLE001 (wait for the other mirrors, too)
            errors.append(error)
    if errors:
        raise errors[0]


def _forget() -> None:
    for mirror in list(_MIRRORS):
        mirror.forget()


atexit.register(_finish)
os.register_at_fork(after_in_child=_forget)
