"""One version of an object, or of several that make a file, and what is read of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensordict.storage.remote.errors import MSG_CHANGED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.storage.remote.cache import BlockCache
    from tensordict.storage.remote.manifests import Manifest
    from tensordict.storage.remote.place import Found, Place
    from tensordict.storage.remote.segments import Segments

__all__ = ["PiecedObject", "RemoteObject", "objects_of"]

MSG_SHORT: Final = (
    "The object {url} has {found} bytes, and the metadata says {needed}: it was cut or "
    "replaced, save it again."
)


@dataclass(eq=False)
class RemoteObject:
    """One version of an object: another one is an error and not mixed into what is read.

    Attributes:
        place: where it is.
        size: its bytes, if known.
        e_tag: the text that another version does not have; None as long as it is not known,
            and of stores that have none.
        cache: where blocks of it are kept that were read.
        block_name: the name of this version in the cache, once it has one.
        modified: the time of the version, if the store has no tags.
    """

    place: Place
    size: int | None = None
    e_tag: str | None = None
    cache: BlockCache | None = field(default=None, repr=False)
    block_name: str | None = field(default=None, repr=False)
    modified: Any = field(default=None, repr=False)

    @property
    def is_known(self) -> bool:
        """Return whether the version is known: its tag, or the time of a store without tags."""
        return self.e_tag is not None or self.modified is not None

    def note(self, found: Found) -> None:
        """Take the version that a store has described."""
        self.size, self.e_tag = found.size, found.e_tag
        self.modified = found.modified if found.e_tag is None else None

    def check(self, found: Found) -> None:
        """Compare with the description of the object in an answer of the store.

        Raises:
            RuntimeError: the answer is of another version.
        """
        tag, size = found.e_tag, found.size
        if self.e_tag is None:
            self.e_tag = tag
        is_same = tag is None or tag == self.e_tag
        if tag is None:
            self.modified = self.modified or found.modified
            is_same = found.modified == self.modified
        if not is_same or (self.size is not None and size != self.size):
            raise RuntimeError(MSG_CHANGED.format(url=self.place))
        self.size = size

    def require(self, needed: int) -> None:
        """Refuse an object that is known to be too short.

        Raises:
            RuntimeError: it is.
        """
        if self.size is not None and self.size < needed:
            message = MSG_SHORT.format(url=self.place, found=self.size, needed=needed)
            raise RuntimeError(message)

    def without_cache(self) -> RemoteObject:
        """Return the same object, of which nothing is kept on the local disk."""
        return type(self)(self.place, self.size, self.e_tag)

    def spread(self, wanted: Segments) -> Iterator[Segments]:
        """Give segments of this object as segments of the objects in the store."""
        yield wanted


class PiecedObject(RemoteObject):
    """A file whose bytes are runs of several objects, one behind the other.

    Args:
        place: the file, for messages.
        pieces: for each run: the object, and position and number of the bytes in that.
    """

    def __init__(
        self, place: Place, pieces: list[tuple[RemoteObject, int, int]]
    ) -> None:
        self.pieces: list[tuple[RemoteObject, int, int]] = [
            piece for piece in pieces if piece[2]
        ]
        sizes = [size for _, _, size in self.pieces]
        super().__init__(place, sum(sizes))
        self._stops = np.cumsum(sizes, dtype=np.int64)
        self._starts = self._stops - np.array(sizes, np.int64)

    def without_cache(self) -> RemoteObject:
        """Return the same file, of which nothing is kept on the local disk."""
        pieces = [
            (source.without_cache(), start, size) for source, start, size in self.pieces
        ]
        return PiecedObject(self.place, pieces)

    def spread(self, wanted: Segments) -> Iterator[Segments]:
        """Give segments of this file as segments of the objects that hold the bytes."""
        if not len(wanted.starts):
            return
        stops = wanted.starts + wanted.lengths
        self.require(int(stops.max()))
        first = np.searchsorted(self._starts, wanted.starts, "right") - 1
        counts = np.searchsorted(self._starts, stops - 1, "right") - first
        at = np.repeat(np.arange(len(counts)), counts)
        inside = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        piece = first[at] + inside
        starts = np.maximum(wanted.starts[at], self._starts[piece])
        lengths = np.minimum(stops[at], self._stops[piece]) - starts
        places = wanted.places[at] + starts - wanted.starts[at]
        order = np.argsort(piece, kind="stable")
        numbers, begins = np.unique(piece[order], return_index=True)
        for number, chosen in zip(
            numbers.tolist(), np.split(order, begins[1:]), strict=True
        ):
            source, start, _ = self.pieces[number]
            shift = start - int(self._starts[number])
            yield type(wanted)(
                source,
                starts[chosen] + shift,
                lengths[chosen],
                wanted.out,
                places[chosen],
            )


def objects_of(
    place: Place, manifest: Manifest, cache: BlockCache | None = None
) -> dict[str, RemoteObject]:
    """Return the objects that hold the files of a save, by the names of the files.

    Args:
        place: the save.
        manifest: its manifest.
        cache: where blocks of them are kept that were read.
    """
    found: dict[str, RemoteObject] = {}
    shared: dict[str, RemoteObject] = {}
    for name, (key, size) in manifest.objects.items():
        found[name] = RemoteObject(place.reach(key), size, cache=cache)
    for name, runs in manifest.pieces.items():
        pieces = []
        for key, start, size in runs:
            if key not in shared:
                shared[key] = RemoteObject(place.reach(key), cache=cache)
            pieces.append((shared[key], start, size))
        found[name] = PiecedObject(place / name, pieces)
    return found
