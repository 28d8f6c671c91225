"""Opening, copying and renaming, for stores of both kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tensordict import _rust
from tensordict.containers.store.common import StoreBase
from tensordict.primitives.errors import missing_key
from tensordict.primitives.protocol import NO_DEFAULT

if TYPE_CHECKING:
    import torch

    from tensordict.containers.store.server import Server
    from tensordict.primitives.protocol import CollectionProtocol, NestedKeyLike

__all__ = ["OpenedStore"]


class OpenedStore(StoreBase):
    """A store with its own address, which is not a view of another store."""

    _reads_to: torch.device | None

    if TYPE_CHECKING:

        def _fill(self, *args: Any, **kwargs: Any) -> Self: ...
        @classmethod
        def _uploaded(cls, server: Server, td: object, device: Any) -> Self: ...
        def _clone_structure(self) -> Self: ...
        def _path(self, *key: str) -> str: ...

    def _in_memory(self) -> CollectionProtocol:
        """Read the entire store to a collection in memory of the matching kind."""
        raise NotImplementedError

    def _sampled_whole(self) -> Any:
        """Return a plain collection of stand-ins for the entries, without values."""
        raise NotImplementedError

    def entry_class(self, key: NestedKeyLike) -> type:
        """Return the type of an entry.

        A nested collection of a :class:`TensorDictStore` is a store. A nested
        collection of a stack is read as a copy in memory, and has the type of that
        copy.
        """
        value: Any = self
        for part in _rust.unravel_key_to_tuple(key):
            found = value._sample_entry(part)
            if found is NO_DEFAULT:
                raise missing_key(value, part)
            value = found
        return type(value)

    @classmethod
    def _opened(cls, *args: object, **kwargs: object) -> Self:
        return cls.__new__(cls)._fill(*args, **kwargs)

    @property
    def _td_id(self) -> str:
        """The name of the store on its server, for :meth:`from_store`."""
        return self._server.td_id

    def _clear_device(self) -> None:
        self._device = None

    def clone(self, recurse: bool = True, **kwargs: object) -> Self:
        """Copy the store to a new one on the same server.

        Args:
            recurse: whether the entries are copied. If false, the result is another
                object of the same store.
            **kwargs: none are supported.
        """
        if kwargs:
            msg = f"clone() got an unexpected keyword argument {next(iter(kwargs))!r}"
            raise TypeError(msg)
        if not recurse:
            return self._clone_structure()
        return self._uploaded(self._server.sibling(), self._in_memory(), self._reads_to)

    def rename_key_(
        self, old_key: NestedKeyLike, new_key: NestedKeyLike, safe: bool = False
    ) -> Self:
        """Rename an entry, or all entries below a nested key, on the server.

        See ``TensorDict.rename_key_``.
        """
        sampled = self._sampled_whole()
        if _rust.get(sampled, old_key, None) is None:
            return self
        if self.is_locked:
            sampled.lock_()
        sampled.rename_key_(old_key, new_key, safe=safe)
        old = self._path(*_rust.unravel_key_to_tuple(old_key))
        new = self._path(*_rust.unravel_key_to_tuple(new_key))
        if old != new:
            self._server.rename(old, new)
        return self
