"""One version of an object, and what is read of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tensordict.storage.remote.errors import MSG_CHANGED

if TYPE_CHECKING:
    from tensordict.storage.remote.cache import BlockCache
    from tensordict.storage.remote.place import Place

__all__ = ["RemoteObject"]

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
    """

    place: Place
    size: int | None = None
    e_tag: str | None = None
    cache: BlockCache | None = field(default=None, repr=False)

    def check(self, meta: Any) -> None:
        """Compare with what the store says of the object that it answers with.

        Raises:
            RuntimeError: it is another version.
        """
        tag, size = meta["e_tag"], meta["size"]
        if self.e_tag is None:
            self.e_tag = tag
        is_same = tag is None or tag == self.e_tag
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
