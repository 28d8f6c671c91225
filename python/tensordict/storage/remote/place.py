"""An object, or a folder of objects, in a store."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from tensordict.storage.locations import scheme_of
from tensordict.storage.remote.errors import naming
from tensordict.storage.remote.latency import timed
from tensordict.storage.remote.options import SCHEMES, obstore, split_url, store_of
from tensordict.storage.remote.reopening import own_store
from tensordict.storage.remote.runtime import check_process

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Found", "Place", "is_remote", "place_of"]

MSG_MEMORY: Final = (
    "A place in memory:// cannot be sent to another process, whose memory is its own: use a "
    "store that both reach."
)
MSG_STORE_OPTIONS: Final = (
    "storage_options are those of a URL, and {store} is a store already: give it the "
    "options when it is made."
)


class Found(NamedTuple):
    """An object that a store has."""

    name: str
    """Its path from the place that was asked."""
    size: int
    e_tag: str | None
    """The text that another version of the object does not have, if the store has such."""
    modified: dt.datetime | None = None
    """The time of the version, for stores without tags."""

    @classmethod
    def of(cls, meta: Any, name: str = "") -> Self:
        """Make the description of an object from the metadata in an answer."""
        return cls(name, meta["size"], meta["e_tag"], meta["last_modified"])


@dataclass(frozen=True, eq=False)
class Place:
    """An object, or a folder of objects, in a store.

    Attributes:
        url: how messages call it.
        root: its path in the store; empty for all of that.
        options: the options of the store.
    """

    url: str
    root: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _base: str | None = field(default=None, repr=False)
    _given: Any = field(default=None, repr=False)

    @property
    def store(self) -> Any:
        """The store of ``obstore``, for calls of that library.

        Raises:
            RuntimeError: this process is the child of one that made requests, and cannot
                make any, or the place is in the memory of that.
        """
        is_child = check_process()
        if is_child and self.is_in_memory:
            raise RuntimeError(MSG_MEMORY)
        if self._given is not None:
            return own_store(self._given) if is_child else self._given
        return store_of(str(self._base), self.options, self.url)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.root.rpartition("/")[2]

    @property
    def is_in_memory(self) -> bool:
        """Return whether it is in the memory of this process."""
        return self._base == "memory://" or (
            self._given is not None and type(self._given).__name__ == "MemoryStore"
        )

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Self:
        """Return the place of a name below this one."""
        url = f"{self.url.rstrip('/')}/{name}"
        return type(self)(url, self.key(name), self.options, self._base, self._given)

    @property
    def parent(self) -> Self:
        """The folder that it is in."""
        url = self.url.rstrip("/").rpartition("/")[0]
        root = self.root.rpartition("/")[0]
        return type(self)(url, root, self.options, self._base, self._given)

    def reach(self, path: str) -> Self:
        """Return the place of a path from here, which may go up by ``../``."""
        place = self
        while path.startswith("../"):
            place, path = place.parent, path[3:]
        return place / path

    def key(self, name: str = "") -> str:
        """Return the path in the store of a name below this place, or of this place."""
        return "/".join(part for part in (self.root, name) if part)

    def head(self, name: str = "") -> Found:
        """Ask for size and tag of an object.

        Raises:
            FileNotFoundError: there is none.
        """
        with naming(self / name if name else self):
            found = obstore(self).head(self.store, self.key(name))
        return Found.of(found, name)

    def exists(self, name: str = "") -> bool:
        """Return whether there is an object of this name."""
        try:
            self.head(name)
        except FileNotFoundError:
            return False
        return True

    def get(self, name: str = "") -> bytes:
        """Read an object."""
        return self.get_with_tag(name)[0]

    def get_with_tag(self, name: str = "") -> tuple[bytes, Found]:
        """Read an object, with its size and tag in the same request."""
        store = self.store
        with naming(self / name if name else self):
            with timed(store):
                answer = obstore(self).get(store, self.key(name))
            meta = answer.meta
            content = bytes(answer.bytes())
        return content, Found.of(meta, name)

    def put(self, name: str, content: Any, **how: Any) -> str | None:
        """Write an object, and return its tag.

        Args:
            name: its name below this place.
            content: bytes, a buffer, a file, or an iterator of buffers.
            **how: what ``obstore.put`` takes: ``mode="create"`` refuses to replace one,
                ``mode={"e_tag": tag}`` replaces the version that has the tag.

        Raises:
            FileExistsError: there is one, and it was not to be replaced.
            RuntimeError: there is another version than the one to replace.
        """
        with naming(self / name if name else self):
            made = obstore(self).put(self.store, self.key(name), content, **how)
        return made.get("e_tag")

    def list(self, name: str = "") -> Iterator[Found]:
        """List all objects below a name: a folder, at any depth.

        Raises:
            OSError: the store lists nothing, as HTTP servers.
        """
        below = self.key(name)
        cut = len(self.root) + 1 if self.root else 0
        with naming(self / name if name else self):
            for part in obstore(self).list(self.store, below or None):
                for found in part:
                    yield Found.of(found, found["path"][cut:])

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        keys = [self.key(name) for name in names]
        if keys:
            with naming(self):
                obstore(self).delete(self.store, keys)

    def __reduce__(
        self,
    ) -> tuple[type[Self], tuple[str, str, dict[str, Any], str | None, Any]]:
        if self.is_in_memory:
            raise TypeError(MSG_MEMORY)
        fields = self.url, self.root, dict(self.options), self._base, self._given
        return type(self), fields


def is_remote(path: object) -> bool:
    """Return whether a path is in an object store: a URL, or a store of ``obstore``.

    A URL of another scheme is none: who takes a path refuses it.
    """
    scheme = scheme_of(path)
    if scheme is not None:
        return scheme.lower() in SCHEMES
    return isinstance(path, Place) or type(path).__module__.startswith("obstore")


def place_of(path: Any, storage_options: Mapping[str, Any] | None = None) -> Place:
    """Make the place of a URL, or of a store with its prefix. Nothing is asked of it yet.

    Args:
        path: a URL, a store of ``obstore``, or a place.
        storage_options: the keys of ``obstore``: of a store (``aws_region``), of its client
            (``allow_http``), ``client_options``, ``retry_config``.

    Raises:
        ImportError: ``obstore`` is not installed.
        ValueError: the scheme or an option is not known.

    Examples:
        >>> place = place_of("memory://runs/a")
        >>> place.root, (place / "meta.json").url
        ('runs/a', 'memory://runs/a/meta.json')
        >>> _ = place.put("meta.json", b"{}")
        >>> place.get("meta.json"), [found.name for found in place.list()]
        (b'{}', ['meta.json'])
    """
    if isinstance(path, Place):
        return path
    if scheme_of(path) is None:
        obstore(path)
        if storage_options:
            raise ValueError(MSG_STORE_OPTIONS.format(store=path))
        prefix = getattr(path, "prefix", None)
        text = f"{type(path).__name__}({prefix or ''!s})"
        return Place(text, "", {}, None, path)
    url = os.fsdecode(path)
    if "://" not in url:
        # ``pathlib.Path`` drops a slash.
        url = url.replace(":/", "://", 1)
    base, root = split_url(url)
    place = Place(url.rstrip("/"), root, dict(storage_options or {}), base)
    # Now: an option that is refused is an error of the call that gave it.
    store_of(base, place.options, url)
    return place
