"""Values that processes share: ``share_memory_`` and ``share_non_tensor=True``.

The cells of such values are a :class:`SharedCells`: a sequence over slots of a file without
a name, which ``_rust.SharedValues`` reads and writes. One file holds all values of a
collection. A forked process inherits it, and :mod:`multiprocessing` hands it over by its
descriptor; it is gone when no process holds it. A value that a process has read stays in
its memory until the slot says that there is another one.
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
    "This value was set by another process before it was shared, and cannot be sent: it "
    "cannot be pickled. Set one that can."
)

NOT_SENT = b""
"""The content of a slot whose value cannot be pickled."""


class SharedCells(Sequence[Any]):
    """Cells that are slots of a file, each of which any process can write.

    Args:
        source: the file.
        start: the slot of the first cell.
        length: how many cells there are.
        known: the values that the slots have now, if this process has them.
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
        # The generation of a slot, and its value then.
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
        known = self._known.get(place)
        if known is not None and known[0] == self._source.generation(slot):
            return known[1]
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
        """Pickle as a part of a file, which only :mod:`multiprocessing` can send."""
        return SharedCells, (self._source, self._start, self._length)


def share_columns(columns: list[Any]) -> None:
    """Let the values of some containers be seen by the processes that they are sent to.

    Those that are shared already stay so. A value that cannot be pickled is seen by
    this process and those forked from it, until there is another one.

    Raises:
        OSError: there is not enough memory, or there are too many open files.
    """
    # One that is an entry several times is one.
    columns = list({id(each): each for each in columns}.values())
    columns = [each for each in columns if not isinstance(each._cells, SharedCells)]
    # Containers that share cells, as views of a stack do, go on sharing them.
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
    except Exception:  # noqa: BLE001 - what a value's own pickling raises
        return NOT_SENT


def _encoded(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _decoded(content: bytes) -> Any:
    if content == NOT_SENT:
        raise RuntimeError(MSG_NOT_SENT)
    # Written by a process that was given the descriptor, as this one was.
    return pickle.loads(content)  # noqa: S301


# Sending -------------------------------------------------------------------------------


def _reduce_source(source: _rust.SharedValues) -> tuple[Any, ...]:
    return _rebuild_source, (reduction.DupFd(source.fileno()),)


def _rebuild_source(duplicate: Any) -> _rust.SharedValues:
    return _rust.SharedValues.from_descriptor(duplicate.detach())


_OF_THIS_PROCESS = frozenset({"_last_op", "_lock_parents_weakrefs"})


def _reduce_held(held: Any) -> Any:
    if not isinstance(held.__dict__.get("_cells"), SharedCells):
        return held.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    state = held.__dict__.items()
    state = {name: value for name, value in state if name not in _OF_THIS_PROCESS}
    return _rebuild_held, (type(held), state)


def _rebuild_held(cls: Any, state: dict[str, Any]) -> Any:
    held = cls.__new__(cls)
    held.__dict__.update(state)
    return held


def install(*classes: type) -> None:
    """Register how values are sent to other processes, shared or not."""
    reduction.register(_rust.SharedValues, _reduce_source)
    for cls in classes:
        ForkingPickler.register(cls, _reduce_held)
