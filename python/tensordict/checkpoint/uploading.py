"""The ranks of a step that bring it up to a store together, each the files of its part.

Rank 0 decides the names of the objects and puts the manifest when all objects are there. The
ranks tell each other in a folder beside the steps, which they share: there rank 0 puts a list
of the objects, each other rank a mark when its own are up, and rank 0 another one at the end.
A mark has the error of a rank that failed.
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
"""The beginning of the name of the folder in which ranks tell each other."""

_OF_RANK: Final = re.compile(r"(?:.*-)?rank-([0-9]{5})(?:-[0-9]+-of-[0-9]+)?\.\w+")
_LONGEST_PAUSE: Final = 0.05

MSG_FAILED: Final = "The step {} is not in the store: rank {} could not bring up {}: {}"
MSG_ENDED: Final = "The step {} is not in the store: rank {} has not brought up {}, and its process has ended."
MSG_LATE: Final = (
    "The step {} is not in the store: rank {} has not brought up {} within {} seconds."
)


def rank_of_file(name: str) -> int:
    """Return the rank that writes a file of a step, by its name.

    Examples:
        >>> rank_of_file("model-rank-00002.safetensors"), rank_of_file("rank-00001.json")
        (2, 1)
        >>> rank_of_file("model-00001-of-00002.safetensors"), rank_of_file("meta.json")
        (0, 0)
    """
    found = _OF_RANK.fullmatch(name)
    return int(found[1]) if found else 0


class SharedUpload:
    """The upload of one step by several ranks, as one of them sees it.

    Args:
        folder: the folder of the steps, which the ranks share.
        number: the number of the step.
        turn: the turn of its save.
        timeout: how many seconds a rank waits for another one.
    """

    def __init__(self, folder: Path, number: int, turn: Turn, timeout: float) -> None:
        self.folder = folder
        self.number = number
        self.rank: int = turn.rank
        self.timeout = timeout
        self._members = turn.members
        self._processes = turn.processes
        self._own: Path = folder / f"{UPLOADS}{turn.token}"

    # On rank 0 ----------------------------------------------------------------------------

    def begin(self, objects: Mapping[str, str]) -> set[str]:
        """Tell the other ranks which objects they put, and return the files that stay.

        Args:
            objects: the objects by the names of the files.
        """
        self._own.mkdir(parents=True, exist_ok=True)
        replace_file(str(self._own / "objects.json"), json.dumps(dict(objects)))
        others = range(1, len(self._processes))
        return {name for name in objects if rank_of_file(name) not in others}

    def wait_for_others(self) -> None:
        """Wait until the objects of all ranks are up.

        Raises:
            OSError: one has failed or ended, or takes too long.
        """
        for rank in range(1, len(self._processes)):
            self._wait(f"rank-{rank:05}", rank, "its part")

    def end(self, error: BaseException | None) -> None:
        """Tell the other ranks that the step is there, or why it is not."""
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            self._mark("rank-00000", error)
            if error is None:
                # All ranks have brought this step up, and look at none before.
                self._sweep()
        except OSError:
            # The others notice when this process ends, or after the timeout.
            pass

    def _sweep(self) -> None:
        """Remove what was told of steps before, which no rank looks at any more."""
        process = _rust.process_name()
        for path in self.folder.glob(f"{UPLOADS}*"):
            owner = path.name.removeprefix(UPLOADS).partition(".")[0]
            if path != self._own and (
                owner == process or _rust.process_has_ended(owner)
            ):
                shutil.rmtree(path, ignore_errors=True)

    # On the other ranks -------------------------------------------------------------------

    def own_objects(self) -> dict[str, str]:
        """Return the objects that this rank puts, by the names of the files.

        Raises:
            OSError: rank 0 has failed or ended, or takes too long.
        """
        text = self._wait("objects.json", 0, "the step", is_mark=False)
        found: dict[str, str] = json.loads(text)
        return {
            name: key for name, key in found.items() if rank_of_file(name) == self.rank
        }

    def finish(self, error: BaseException | None) -> None:
        """Tell rank 0 that the objects of this rank are up, or why they are not."""
        self._own.mkdir(parents=True, exist_ok=True)
        self._mark(f"rank-{self.rank:05}", error)

    def wait_for_step(self) -> None:
        """Wait until the step is in the store.

        Raises:
            OSError: a rank has failed or ended, or rank 0 takes too long.
        """
        self._wait("rank-00000", 0, "the step")

    # ------------------------------------------------------------------------------------

    def give_up(self, error: BaseException) -> None:
        """Tell the others that this rank has failed, unless they know."""
        if self._text(f"rank-{self.rank:05}") is None:
            (self.finish if self.rank else self.end)(error)

    def _mark(self, name: str, error: BaseException | None) -> None:
        text = "" if error is None else f"{type(error).__name__}: {error}"
        replace_file(str(self._own / name), json.dumps({"error": text}))

    def _wait(self, name: str, rank: int, what: str, *, is_mark: bool = True) -> str:
        """Wait until another rank has put a file, and return its text.

        Raises:
            OSError: that rank, or rank 0, has failed, or its process has ended.
        """
        began, pause, has_ended = time.monotonic(), 0.001, False
        while True:
            failed = self._error_of("rank-00000") if rank == 0 else ""
            text = self._text(name)
            if text is not None and is_mark:
                failed = json.loads(text)["error"]
            about = self.number, self._members[rank], what
            if failed:
                raise OSError(MSG_FAILED.format(*about, failed))
            if text is not None:
                return text
            if has_ended:
                raise OSError(MSG_ENDED.format(*about))
            if time.monotonic() - began > self.timeout:
                raise TimeoutError(MSG_LATE.format(*about, self.timeout))
            # It is looked for once more behind the end of the process.
            has_ended = _rust.process_has_ended(self._processes[rank])
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _error_of(self, name: str) -> str:
        text = self._text(name)
        return "" if text is None else str(json.loads(text)["error"])

    def _text(self, name: str) -> str | None:
        # Listing the folder has a network file system ask the server.
        if name not in _names(self._own):
            return None
        return (self._own / name).read_text(encoding="utf-8")


def _names(folder: Path) -> Iterable[Any]:
    try:
        return {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return set()
