"""Non-tensor data in shared memory: ``share_memory_`` and ``share_non_tensor=True``.

The cells are a :class:`SharedCells`: a sequence over slots of an unnamed file, which
``_rust.SharedValues`` reads and writes. One file holds all values of a collection. A
forked process inherits it, and :mod:`multiprocessing` sends its descriptor. The file is
removed when no process holds it. A process caches a value that it has read until the
slot has a new one.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from tensordict import _rust

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SharedCells", "install", "share_columns"]

MSG_NOT_SENT = (
    "This value was set by another process before it was shared. It cannot be pickled, so "
    "it cannot be sent to this process. Set a value that can be pickled."
)

NOT_SENT = b""
"""The content of a slot if its value cannot be pickled."""


class SharedCells(Sequence[Any]):
    """Cells that are slots of a file, which any process can write.

    Args:
        source: the file.
        start: the slot of the first cell.
        length: the number of cells.
        known: the present values of the slots, if this process has them.
    """

    __slots__ = ("_known", "_length", "_source", "_start")

    def __init__(
        self,
        source: _rust.SharedValues,
        start: int,
        length: int,
        known: Iterable[Any] = (),
    ) -> None:
        self._source = source
        self._start = start
        self._length = length
        # For each cell, the generation of its slot and the value of that generation.
        self._known: dict[int, tuple[int, Any]] = {}
        for place, value in enumerate(known):
            self._known[place] = source.generation(start + place), value

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(self._length))]
        place = self._place(place)
        slot = self._start + place
        cached = self._known.get(place)
        if cached is not None and cached[0] == self._source.generation(slot):
            return cached[1]
        generation, content = self._source.read(slot)
        value = _decoded(content)
        self._known[place] = generation, value
        return value

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(self._length))

    def __setitem__(self, place: int, value: object) -> None:
        place = self._place(place)
        generation = self._source.write(self._start + place, _encoded(value))
        self._known[place] = generation, value

    def _place(self, place: int) -> int:
        length = self._length
        if not -length <= place < length:
            raise IndexError(place)
        return place % length

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a part of the file, which only :mod:`multiprocessing` can send."""
        return SharedCells, (self._source, self._start, self._length)


def share_columns(columns: list[Any]) -> None:
    """Move the values of some collections to shared memory.

    Collections that are already shared stay so. A value that cannot be pickled is
    visible only to this process and its forks, until a new value is set.

    Raises:
        OSError: there is not enough memory, or too many files are open.
    """
    # The same collection may be an entry several times.
    columns = list({id(column): column for column in columns}.values())
    columns = [
        column for column in columns if not isinstance(column._cells, SharedCells)
    ]
    # Collections that share cells, such as views of a stack, continue to share them.
    lists = {id(column._cells): column._cells for column in columns}
    contents = [_sent(value) for cells in lists.values() for value in cells]
    if not contents:
        return
    source = _rust.SharedValues(contents)
    start = 0
    shared = {}
    for number, cells in lists.items():
        shared[number] = SharedCells(source, start, len(cells), cells)
        start += len(cells)
    for column in columns:
        column._cells = shared[id(column._cells)]


def _sent(value: object) -> bytes:
    try:
        return _encoded(value)
    except Exception:  # noqa: BLE001 - a value's pickling can raise anything
        return NOT_SENT


def _encoded(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _decoded(content: bytes) -> Any:
    if content == NOT_SENT:
        raise RuntimeError(MSG_NOT_SENT)
    # Only processes of this program have the descriptor, so the pickle is trusted.
    return pickle.loads(content)  # noqa: S301


# Sending ------------------------------------------------------------------------------


def _reduce_source(source: _rust.SharedValues) -> tuple[Any, ...]:
    return _rebuild_source, (reduction.DupFd(source.fileno()),)


def _rebuild_source(duplicate: Any) -> _rust.SharedValues:
    return _rust.SharedValues.from_descriptor(duplicate.detach())


_OF_THIS_PROCESS = frozenset({"_last_op", "_lock_parents_weakrefs"})


def _reduce_held(data: Any) -> Any:
    if not isinstance(data.__dict__.get("_cells"), SharedCells):
        return data.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    state = data.__dict__.items()
    state = {name: value for name, value in state if name not in _OF_THIS_PROCESS}
    return _rebuild_held, (type(data), state)


def _rebuild_held(cls: Any, state: dict[str, Any]) -> Any:
    data = cls.__new__(cls)
    data.__dict__.update(state)
    return data


def install(*classes: type) -> None:
    """Register how :mod:`multiprocessing` sends non-tensor data."""
    reduction.register(_rust.SharedValues, _reduce_source)
    for cls in classes:
        ForkingPickler.register(cls, _reduce_held)
