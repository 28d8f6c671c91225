"""The upload of a step by several ranks together.

Each rank uploads the files of its part. Rank 0 decides the names of the objects, and
writes the manifest after all objects are uploaded. The ranks communicate through files
in a folder next to the steps. Rank 0 writes a list of the objects into it, each other
rank a mark when its objects are uploaded, and rank 0 a mark at the end. The mark of a
rank that failed contains its error.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

from tensordict import _rust
from tensordict.storage.growing.publish import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tensordict.checkpoint.turns import Turn

__all__ = ["SharedUpload", "rank_of_file"]

UPLOADS: Final = ".uploads-"
"""The beginning of the name of the folder through which the ranks communicate."""

_OF_RANK: Final = re.compile(r"(?:.*-)?rank-([0-9]{5})(?:-[0-9]+-of-[0-9]+)?\.\w+")
_LONGEST_PAUSE: Final = 0.05

MSG_FAILED: Final = (
    "The step {} is not in the object store: rank {} could not upload {}: {}"
)
MSG_ENDED: Final = (
    "The step {} is not in the object store: the process of rank {} has ended without an "
    "upload of {}."
)
MSG_LATE: Final = "The step {} is not in the object store: rank {} has not uploaded {} within {} seconds."


def rank_of_file(name: str) -> int:
    """Return the rank that writes a file of a step, by the file's name.

    Examples:
        >>> rank_of_file("model-rank-00002.safetensors"), rank_of_file("rank-00001.json")
        (2, 1)
        >>> rank_of_file("model-00001-of-00002.safetensors"), rank_of_file("meta.json")
        (0, 0)
    """
    match = _OF_RANK.fullmatch(name)
    return int(match[1]) if match else 0


class SharedUpload:
    """The upload of one step by several ranks, seen from one of them.

    Args:
        folder: the folder of the steps, which the ranks share.
        number: the number of the step.
        turn: the turn of its save.
        timeout: the seconds that a rank waits for another.
    """

    def __init__(self, folder: Path, number: int, turn: Turn, timeout: float) -> None:
        self.folder = folder
        self.number = number
        self.rank: int = turn.rank
        self.timeout = timeout
        self._members = turn.members
        self._processes = turn.processes
        self._folder: Path = folder / f"{UPLOADS}{turn.token}"

    # On rank 0 ---------------------------------------------------------------------------

    def begin(self, objects: Mapping[str, str]) -> set[str]:
        """Publish the list of objects for the other ranks; return the files of this rank.

        Args:
            objects: the objects, by the names of the files.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(str(self._folder / "objects.json"), json.dumps(dict(objects)))
        others = range(1, len(self._processes))
        return {name for name in objects if rank_of_file(name) not in others}

    def wait_for_others(self) -> None:
        """Wait until the objects of all ranks are uploaded.

        Raises:
            OSError: a rank failed, ended, or took too long.
        """
        for rank in range(1, len(self._processes)):
            self._wait(f"rank-{rank:05}", rank, "its part")

    def end(self, error: BaseException | None) -> None:
        """Tell the other ranks that the step is in the store, or why it is not."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._mark("rank-00000", error)
            if error is None:
                # All ranks have uploaded this step, so no rank needs the files of
                # earlier steps.
                self._sweep()
        except OSError:
            # The other ranks notice when this process ends, or after the timeout.
            pass

    def _sweep(self) -> None:
        """Remove the folders of earlier uploads."""
        process = _rust.process_name()
        for path in self.folder.glob(f"{UPLOADS}*"):
            owner = path.name.removeprefix(UPLOADS).partition(".")[0]
            if path != self._folder and (
                owner == process or _rust.process_has_ended(owner)
            ):
                shutil.rmtree(path, ignore_errors=True)

    # On the other ranks ------------------------------------------------------------------

    def own_objects(self) -> dict[str, str]:
        """Return the objects that this rank uploads, by the names of the files.

        Raises:
            OSError: rank 0 failed, ended, or took too long.
        """
        text = self._wait("objects.json", 0, "the step", is_mark=False)
        objects: dict[str, str] = json.loads(text)
        return {
            name: key
            for name, key in objects.items()
            if rank_of_file(name) == self.rank
        }

    def finish(self, error: BaseException | None) -> None:
        """Tell rank 0 that the objects of this rank are uploaded, or why they are not."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._mark(f"rank-{self.rank:05}", error)

    def wait_for_step(self) -> None:
        """Wait until the step is in the store.

        Raises:
            OSError: a rank failed or ended, or rank 0 took too long.
        """
        self._wait("rank-00000", 0, "the step")

    # On all ranks ------------------------------------------------------------------------

    def give_up(self, error: BaseException) -> None:
        """Tell the other ranks that this rank failed, unless they know it already."""
        if self._text(f"rank-{self.rank:05}") is None:
            (self.finish if self.rank else self.end)(error)

    def _mark(self, name: str, error: BaseException | None) -> None:
        text = "" if error is None else f"{type(error).__name__}: {error}"
        replace_file(str(self._folder / name), json.dumps({"error": text}))

    def _wait(self, name: str, rank: int, what: str, *, is_mark: bool = True) -> str:
        """Wait until another rank has written a file, and return its text.

        Raises:
            OSError: that rank or rank 0 failed, or its process has ended.
        """
        began, pause, has_ended = time.monotonic(), 0.001, False
        while True:
            failed = self._error_of("rank-00000") if rank == 0 else ""
            text = self._text(name)
            if text is not None and is_mark:
                failed = json.loads(text)["error"]
            subject = self.number, self._members[rank], what
            if failed:
                raise OSError(MSG_FAILED.format(*subject, failed))
            if text is not None:
                return text
            if has_ended:
                raise OSError(MSG_ENDED.format(*subject))
            if time.monotonic() - began > self.timeout:
                raise TimeoutError(MSG_LATE.format(*subject, self.timeout))
            # After the process has ended, look once more.
            has_ended = _rust.process_has_ended(self._processes[rank])
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _error_of(self, name: str) -> str:
        text = self._text(name)
        return "" if text is None else str(json.loads(text)["error"])

    def _text(self, name: str) -> str | None:
        # Listing the directory makes a network file system ask its server.
        if name not in _names(self._folder):
            return None
        return (self._folder / name).read_text(encoding="utf-8")


def _names(folder: Path) -> Iterable[Any]:
    try:
        return {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return set()
