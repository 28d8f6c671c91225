"""The methods that all collections on a server share."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import torch

from tensordict import _rust
from tensordict.containers.elsewhere import (
    MSG_ONLY_VIEW,
    KeptOutside,
    Refusal,
    on_a_copy,
)
from tensordict.containers.store.writes import Snapshot
from tensordict.primitives.protocol import NO_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.containers.store.server import Server
    from tensordict.primitives.protocol import CollectionProtocol, NestedKeyLike

__all__ = ["StoreBase", "device_of"]

MSG_UNSUPPORTED = Refusal(
    "Cannot call {name} on a {owner}. Call `to_tensordict()` first.",
    NotImplementedError,
)


def device_of(device: Any) -> torch.device | None:
    """Convert an argument to a ``torch.device`` or None."""
    return None if device is None else torch.device(device)


class StoreBase(KeptOutside):
    """A collection that reads its entries from a server and writes them there.

    An entry that is read is a copy. Operations in place write their results to the
    server; other operations return ordinary collections.
    """

    _is_dense: ClassVar[bool] = False

    _server: Server
    _lock_of: Any = None
    """The store whose lock also locks this nested collection."""

    # Locks ---------------------------------------------------------------------------

    @property
    def _is_locked(self) -> bool:
        parent = self._lock_of
        return self.__dict__.get("_locked", False) or (
            parent is not None and parent._is_locked
        )

    @_is_locked.setter
    def _is_locked(self, value: bool) -> None:
        self.__dict__["_locked"] = value

    @property
    def _lock_parents_weakrefs(self) -> tuple[Any, ...]:  # type: ignore[override]
        parent = self._lock_of
        return () if parent is None or not parent._is_locked else (weakref.ref(parent),)

    def _lock_tree(self, parents: object = ()) -> None:
        self._is_locked = True

    def _after_unlock(self) -> None:
        self._is_locked = False

    def _containers(self, out: list[Any]) -> None:
        # Nested collections are made at each read, and share the lock of this one.
        out.append(self)

    def _children(self) -> list[Any]:
        return []

    # Reading and writing --------------------------------------------------------------

    def _blank(self) -> Any:
        """Return the entries like :meth:`_shown_as_is`, with uninitialized tensors."""
        raise NotImplementedError

    def _snapshot(self, plain: CollectionProtocol) -> Any:
        """Record a plain collection of the entries, to find later changes in it."""
        return Snapshot(plain)

    def _store_snapshot(self, snapshot: Any) -> None:
        """Write the changes of a recorded plain collection to the server."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _rewriting(self, blank: bool = False) -> Iterator[Any]:
        """Yield a plain collection of the entries, and write its changes at the end.

        An error in the block writes nothing. If ``blank`` is true, tensors are not
        read: for operations that overwrite entire tensors.
        """
        plain = self._blank() if blank else self._shown_as_is()
        snapshot = self._snapshot(plain)
        if self.is_locked:
            plain.lock_()
        yield plain
        self._store_snapshot(snapshot)

    def _as_plain(self) -> CollectionProtocol:
        return self._shown()

    def _leaves(self, out: list[Any]) -> None:
        out += _rust.leaves(self._shown_as_is())

    def _leaf_batch_dims(self, out: list[int]) -> None:
        self._shown_as_is()._leaf_batch_dims(out)

    def _align_leaves(self, other: object, out: list[Any], is_complete: bool) -> bool:
        return self._shown_as_is()._align_leaves(other, out, is_complete)

    def _spread(self, operand: torch.Tensor) -> list[torch.Tensor]:
        return self._shown_as_is()._spread(operand)

    def _copy_into(self, source: object, keys: object, non_blocking: bool) -> None:
        try:
            with self._rewriting(blank=True) as plain:
                _rust.copy_into(plain, source, keys, non_blocking)
        except KeyError:
            # Another process may have added the missing entry: read the tree again.
            self._server.tree()
            with self._rewriting(blank=True) as plain:
                _rust.copy_into(plain, source, keys, non_blocking)

    def update(  # type: ignore[override]
        self,
        input_dict_or_td: object = None,
        clone: bool = False,
        inplace: bool = False,
        **kwargs: object,
    ) -> Self:
        """Merge another collection or a mapping. See ``TensorDict.update``.

        All entries are written in one transaction: another process sees all or none.
        """
        if input_dict_or_td is self:
            return self
        with self._rewriting(blank=True) as plain:
            plain.update(input_dict_or_td, clone, inplace, **kwargs)
        return self

    def update_at_(self, *args: object, **kwargs: object) -> Self:
        """Write values at an index. See ``TensorDict.update_at_``."""
        with self._rewriting() as plain:
            plain.update_at_(*args, **kwargs)
        return self

    def clear(self) -> Self:  # type: ignore[override]
        """Remove all entries. The empty store stays on the server."""
        with self._server.batch():
            super().clear()
        return self

    def del_(self, key: NestedKeyLike) -> Self:
        """Remove an entry, if it exists.

        See ``TensorDict.del_``.
        """
        try:
            return super().del_(key)
        except KeyError:
            return self

    def popitem(self) -> tuple[str, Any]:
        """Remove the last entry, and return its key and value."""
        with self._server.batch():
            return super().popitem()

    def _replace_content(self, result: object) -> NoReturn:
        name = "an operation that replaces tensors in place"
        raise MSG_UNSUPPORTED.of(self, name)

    # Copies ---------------------------------------------------------------------------

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Copy all entries, read in one transaction, to a plain collection."""
        return self._shown_as_is().to_tensordict(retain_none=retain_none)

    def to_dict(self, **kwargs: object) -> Any:
        """Return nested dictionaries of copies. See ``TensorDict.to_dict``."""
        return self._shown_as_is().to_dict(**kwargs)

    def to_local(self) -> Any:
        """Return a plain copy. Use :meth:`to_tensordict`, which does the same."""
        return self.to_tensordict()

    def contiguous(self, *args: object, **kwargs: object) -> Any:
        """Copy all entries to a plain collection."""
        return self._shown()

    select: Any = on_a_copy(inplace=MSG_UNSUPPORTED)
    exclude: Any = on_a_copy(inplace=MSG_UNSUPPORTED)
    split_keys: Any = on_a_copy(inplace=MSG_UNSUPPORTED)
    masked_select: Any = on_a_copy(inplace=MSG_UNSUPPORTED)
    to: Any = on_a_copy()
    replace: Any = on_a_copy()
    memmap_like: Any = on_a_copy()

    def _apply_nest(self, fn: object, *others: object, **kwargs: object) -> Any:
        return self._shown()._apply_nest(fn, *others, **kwargs)

    def _apply_with(
        self,
        fn: Any,
        others: tuple[Any, ...] = (),
        batch_size: object = None,
        device: object = NO_DEFAULT,
        names: Any = NO_DEFAULT,
        inplace: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        options = (batch_size, device, names, inplace, *args)
        if not inplace:
            return super()._apply_with(fn, others, *options, **kwargs)
        with self._rewriting() as plain:
            result = plain._apply_with(fn, others, *options, **kwargs)
        return None if result is None else self

    def _write_index(self, index: object, value: object) -> None:
        with self._rewriting() as plain:
            _rust.set_index(plain, index, value)

    def view(self, *shape: Any, **kwargs: Any) -> Any:
        """View the entries as another dtype.

        Raises:
            RuntimeError: a shape is given. Use :meth:`reshape`.
        """
        if shape and isinstance(shape[0], torch.dtype):
            return self._shown().view(*shape, **kwargs)
        raise Refusal(MSG_ONLY_VIEW).of(self, "view")

    def is_memmap(self) -> bool:
        """Return False: a server's entries are not memory-mapped."""
        return False

    def is_shared(self) -> bool:
        """Return False: a server's entries are not in shared memory."""
        return False

    def _save_plan(self, plan: object, level: int) -> None:
        self._shown()._save_plan(plan, level)

    # Connections ---------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection to the server. The entries stay there.

        Later reads and writes of this object raise an error; ``from_store`` opens the
        store again. A client that was passed as ``client`` stays open.
        """
        self._server.close()

    def clear_redis(self) -> None:
        """Delete the store from the server. A nested collection deletes its entries.

        The connection stays open, so that new entries can be written.
        """
        raise NotImplementedError

    def __reduce_ex__(self, protocol: object) -> str | tuple[Any, ...]:
        """Pickle the arguments that reopen the store, not its entries."""
        return self.__reduce__()
