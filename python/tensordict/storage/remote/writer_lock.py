"""One writer of rows at a time at a place in a store."""

from __future__ import annotations

import json
import socket
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tensordict import _rust
from tensordict.storage.remote.publishing import LOCK, put_switch, record_of, switch_at

if TYPE_CHECKING:
    from tensordict.storage.remote.place import Place

__all__ = ["PlaceLock"]

MSG_TAKEN: Final = (
    "Another writer has {} open. Give each process a part of its own: DatasetWriter(url, "
    "part=...)."
)

_ATTEMPTS: Final = 5

_held: set[str] = set()
"""The tokens of the writers of this process that are open."""


class PlaceLock:
    """The lock of a place, until it is released or the process ends.

    A writer on this machine keeps others out. Nobody here can tell whether one on another
    machine still runs: a new writer takes its lock, and of the two the second one to publish
    gets an error.

    Args:
        place: the folder of the dataset.

    Raises:
        RuntimeError: another writer of this machine has it.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._token = uuid.uuid4().hex
        content = record_of([], token=self._token)
        for _ in range(_ATTEMPTS):
            before = switch_at(place, LOCK)
            if before is not None and _is_held(before[0]):
                break
            try:
                put_switch(place, LOCK, content, before)
            except FileExistsError:
                continue
            _held.add(self._token)
            return
        raise RuntimeError(MSG_TAKEN.format(place))

    def release(self) -> None:
        """Let others write."""
        if self._token not in _held:
            return
        self.forget()
        # A lock that stays is that of a writer that has ended.
        with suppress(Exception):
            found = switch_at(self.place, LOCK)
            if found is not None and self._token in found[0].decode():
                self.place.delete([LOCK])

    def forget(self) -> None:
        """Let others write, without a request: they find that the writer has ended."""
        _held.discard(self._token)


def _is_held(content: bytes) -> bool:
    """Return whether the writer of a lock runs, as far as this machine can tell."""
    try:
        holder: dict[str, Any] = json.loads(content)
    except ValueError:
        return False
    if holder.get("host") != socket.gethostname():
        return False
    if holder.get("process") == _rust.process_name():
        return holder.get("token") in _held
    return not _rust.process_has_ended(str(holder.get("process")))
