"""A description of a save from its metadata alone.

No tensor is read, no class is imported, nothing is unpickled. So it works for saves that this
program cannot load, and says why.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from tensordict.storage import layouts
from tensordict.storage.foreign import MSG_NO_LAYOUT, explain
from tensordict.storage.layouts.interface import MSG_CUT_OFF, Entry
from tensordict.storage.locations import local

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Entry", "Survey", "survey"]


class Survey(NamedTuple):
    """The content of a save."""

    path: str
    layout: str
    entries: list[Entry]

    @property
    def num_bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(entry.num_bytes for entry in self.entries)

    @property
    def problems(self) -> list[str]:
        """The problems of the save, a line for each entry."""
        return [
            f"the entry {shown(entry.key)}: {entry.problem}"
            for entry in self.entries
            if entry.problem
        ]


def shown(key: tuple[str, ...]) -> str:
    """Return a key as messages show it."""
    return repr(key[0] if len(key) == 1 else key) if key else "of the root"


def survey(path: str | Path) -> Survey:
    """List the entries of a save of any layout.

    Raises:
        OSError: the save does not exist, or cannot be read.
        RuntimeError: the metadata of the save is invalid.
        ValueError: the file or directory is not a save.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> _ = TensorDict({"a": torch.zeros(3, 2), "n": {"b": torch.ones(3)}}).save(path)
        >>> [(entry.key, entry.dtype, entry.num_bytes) for entry in survey(path).entries]
        [((), None, 0), (('a',), 'float32', 24), (('n',), None, 0), (('n', 'b'), 'float32', 12)]
    """
    path = os.fspath(local(path))
    layout = layouts.find(path)
    if layout is not None:
        return Survey(path, layout.name, list(layout.inspect(path)))
    if not os.path.exists(path):
        raise FileNotFoundError(2, "No such file or directory", path)
    for layout in layouts.LAYOUTS:
        if layout.was_cut_off(path):
            cut_off = Entry((), "collection", problem=MSG_CUT_OFF)
            return Survey(path, layout.name, [cut_off])
    raise ValueError(f"{path} is not a save. {explain(path) or MSG_NO_LAYOUT}")
