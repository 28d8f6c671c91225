"""A lazy stack whose entries are on a Redis server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch

from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.containers.store.common import device_of
from tensordict.containers.store.constructors import MSG_NO_STORE
from tensordict.containers.store.dense import HEADER
from tensordict.containers.store.element import _StoreStackElementView
from tensordict.containers.store.encoding import Encoded, Meta, decode
from tensordict.containers.store.opened import OpenedStore
from tensordict.containers.store.server import Server
from tensordict.containers.store.stacked import Leaf, encode_members, encode_whole
from tensordict.containers.store.writes import build, collect, keys_below
from tensordict.primitives.checks import is_branch
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.containers.dense import TensorDict
    from tensordict.containers.store.tree import Tree


__all__ = ["LazyStackedTensorDictStore"]

MSG_NOT_LAZY = "Expected LazyStackedTensorDict, got {}"
MSG_NO_DICT = (
    "LazyStackedTensorDictStore.from_dict is not supported. Use "
    "LazyStackedTensorDictStore.from_lazy_stack(lazy_td, ...) instead."
)
MSG_KEYS = (
    "Some members of the stack lack the entries {}, but a store holds only entries of "
    "all members. Remove these entries, or add them to the other members."
)
MSG_SIZE = (
    "The batch size of a stack in a store follows from its {} members of batch size {}. "
    "It cannot become {}."
)

STACK_HEADER = (
    *HEADER,
    "__type__",
    "__count__",
    "__stack_dim__",
    "__inner_batch_size__",
)


class LazyStackedTensorDictStore(OpenedStore):
    """A lazy stack whose entries are on a Redis server.

    An entry may differ in shape between the members. The server holds each leaf as one
    string for all members. ``store[i]`` is a view of one member that reads and writes
    on the server. Any other read returns a copy, also of a nested collection: write
    with the full key. Operations return ordinary collections, or lazy stacks if members
    differ in shape.

    :class:`TensorDictStore` describes the server, the lifetime of the data, and
    ``close``.

    Args:
        backend: the name of the server software in texts.
        host: the name of the server.
        port: the port of the server.
        db: the number of the database.
        unix_socket_path: a local socket, instead of host and port.
        prefix: the beginning of all keys on the server.
        count: the number of members.
        stack_dim: the dim of the batch size along which the members are stacked.
        inner_batch_size: the batch size of each member.
        device: the device to which tensors are read. None: the CPU, and the collection
            has no device.
        client: a client of ``redis`` to use instead of an address.
        td_id: the name of the store on the server. Default: a new one.
        cache_metadata: see :class:`TensorDictStore`.
        **redis_kwargs: further arguments of ``redis.Redis``, and ``allow_pickle``.

    ``docs/guide/stores.md`` has examples::

        members = [TensorDict(x=torch.zeros(3)), TensorDict(x=torch.zeros(5))]
        store = lazy_stack(members).to_store()
        store[1]["x"].shape  # torch.Size([5])
    """

    def __init__(
        self,
        *,
        backend: str = "redis",
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        unix_socket_path: str | None = None,
        prefix: str = "tensordict",
        count: int,
        stack_dim: int = 0,
        inner_batch_size: Sequence[int],
        device: torch.device | str | int | None = None,
        client: object = None,
        td_id: str | None = None,
        cache_metadata: bool = True,
        **redis_kwargs: Any,
    ) -> None:
        server = Server(
            backend=backend,
            host=host,
            port=port,
            db=db,
            unix_socket_path=unix_socket_path,
            prefix=prefix,
            client=client,
            td_id=td_id,
            cache_metadata=cache_metadata,
            **redis_kwargs,
        )
        inner = torch.Size(inner_batch_size)
        self._fill(server, count, stack_dim, inner, device_of(device))
        server.write({}, commands=self._header())

    def _fill(
        self,
        server: Server,
        count: int,
        stack_dim: int,
        inner: torch.Size,
        device: torch.device | None,
        names: list[str | None] | None = None,
    ) -> Self:
        server.is_stack = True
        self._server = server
        self._count = count
        self._stack_dim = stack_dim
        self._inner_batch_size = inner
        self._reads_to = device
        self._names = names
        return self

    def _header(self) -> list[tuple[Any, ...]]:
        device = "" if self._reads_to is None else str(self._reads_to)
        values = {
            "__type__": "lazy_stack",
            "__count__": str(self._count),
            "__stack_dim__": str(self._stack_dim),
            "__inner_batch_size__": json.dumps(list(self._inner_batch_size)),
            "__device__": device,
        }
        return [("SET", self._server.key(k), v) for k, v in values.items()]

    # Constructors ---------------------------------------------------------------------

    @classmethod
    def from_lazy_stack(
        cls,
        lazy_td: object,
        *,
        backend: str = "redis",
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        unix_socket_path: str | None = None,
        prefix: str = "tensordict",
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ) -> Self:
        """Copy a lazy stack to a new store, in one round trip.

        Args:
            lazy_td: the lazy stack.
            backend: see the class.
            host: see the class.
            port: see the class.
            db: see the class.
            unix_socket_path: see the class.
            prefix: see the class.
            device: the device to which tensors are read. Default: the stack's device.
            **kwargs: further arguments of the class, such as ``client`` and ``td_id``.

        Raises:
            RuntimeError: some members lack entries that others have.
            TypeError: ``lazy_td`` is not a lazy stack, or an entry has several dtypes.
        """
        if not isinstance(lazy_td, LazyStackedTensorDict):
            raise TypeError(MSG_NOT_LAZY.format(type(lazy_td)))
        server = Server(
            backend=backend,
            host=host,
            port=port,
            db=db,
            unix_socket_path=unix_socket_path,
            prefix=prefix,
            **kwargs,
        )
        device = lazy_td.device if device is None else device_of(device)
        return cls._uploaded(server, lazy_td, device)

    @classmethod
    def _uploaded(cls, server: Server, stack: Any, device: object) -> Self:
        size = list(stack.batch_size)
        count = size.pop(stack.stack_dim)
        names = list(stack.names) if stack._has_names() else None
        store = cls._opened(
            server, count, stack.stack_dim, torch.Size(size), device, names
        )
        extra = {} if names is None else {"": {"names": names}}
        entries, more = _of_members(list(stack.tensordicts))
        server.write(entries, (), {**extra, **more}, store._header())
        return store

    @classmethod
    def from_tensordict(cls, td: Any, **kwargs: Any) -> Self:
        """Copy a lazy stack to a new store, like :meth:`from_lazy_stack`."""
        return cls.from_lazy_stack(td, **kwargs)

    @classmethod
    def from_dict(cls, input_dict: object, **kwargs: object) -> NoReturn:
        """Raise an error: a mapping has no members. Use :meth:`from_lazy_stack`."""
        raise NotImplementedError(MSG_NO_DICT)

    @classmethod
    def from_store(
        cls,
        *,
        backend: str = "redis",
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        unix_socket_path: str | None = None,
        prefix: str = "tensordict",
        td_id: str,
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ) -> Self:
        """Open a store that any process has written to the server.

        Args:
            backend: see the class.
            host: see the class.
            port: see the class.
            db: see the class.
            unix_socket_path: see the class.
            prefix: see the class.
            td_id: the name of the store: the attribute ``_td_id`` of its creator.
            device: the device to which tensors are read. Default: the creator's device.
            **kwargs: further arguments of the class, such as ``client``.

        Raises:
            KeyError: the server has no store with this name.
        """
        server = Server(
            backend=backend,
            host=host,
            port=port,
            db=db,
            unix_socket_path=unix_socket_path,
            prefix=prefix,
            td_id=td_id,
            **kwargs,
        )
        header = ("__count__", "__stack_dim__", "__inner_batch_size__", "__device__")
        tree, count, dim, inner, device_name = server.read_header(*header)
        if count is None or dim is None or inner is None:
            where = (cls.__name__, td_id, server.address, prefix)
            raise KeyMessageError(MSG_NO_STORE.format(*where))
        if device is None and device_name:
            device = device_name.decode()
        size = torch.Size(json.loads(inner))
        names = tree.extra.get("", {}).get("names")
        return cls._opened(server, int(count), int(dim), size, device_of(device), names)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments that reopen the store, not its entries."""
        state = (
            self._count,
            self._stack_dim,
            self._inner_batch_size,
            self._reads_to,
            self._names,
        )
        return _reopen, (type(self), self._server.opening(), state, self._is_locked)

    def _clone_structure(self) -> Self:
        return self._opened(
            self._server,
            self._count,
            self._stack_dim,
            self._inner_batch_size,
            self._reads_to,
            self._names,
        )

    # State ----------------------------------------------------------------------------

    @property
    def _batch_size(self) -> torch.Size:
        size = list(self._inner_batch_size)
        size.insert(self._stack_dim, self._count)
        return torch.Size(size)

    @_batch_size.setter
    def _batch_size(self, size: torch.Size) -> None:
        if size != self._batch_size:
            inner = list(self._inner_batch_size)
            raise RuntimeError(MSG_SIZE.format(self._count, inner, list(size)))

    def _set_batch_size(self, size: torch.Size) -> None:
        _checked_size(self, size)
        inner = list(size)
        if len(inner) > self._stack_dim and inner.pop(self._stack_dim) == self._count:
            self._inner_batch_size = torch.Size(inner)
            self._server.write({}, commands=self._header())
        else:
            self._batch_size = size

    @property
    def _device(self) -> torch.device | None:
        return self._reads_to

    @_device.setter
    def _device(self, device: torch.device | None) -> None:
        self._reads_to = device
        self._server.write({}, commands=self._header())

    @property
    def _td_dim_names(self) -> list[str | None] | None:
        return self._names

    @_td_dim_names.setter
    def _td_dim_names(self, names: list[str | None] | None) -> None:
        self._names = names
        self._server.write({}, extra={"": {"names": names}})

    # Reading --------------------------------------------------------------------------

    def _leaf(self, path: str, meta: Meta) -> Leaf:
        return Leaf(path, meta, self._count, self._stack_dim)

    def _read_all(self) -> tuple[Tree, dict[str, bytes | None]]:
        return self._server.read_data(lambda tree: list(tree.metas))

    def _value(  # type: ignore[override]
        self, path: str, meta: Meta, data: bytes | None
    ) -> Any:
        """Decode one entry of all members: a stacked tensor or non-tensor data."""
        if meta.is_tensor:
            return self._leaf(path, meta).whole(data, self._reads_to)
        return decode(path, meta, data, self, self._server.allow_pickle)

    def _stack(self) -> LazyStackedTensorDict:
        """Read the entire store as a lazy stack in memory."""
        tree, data = self._read_all()
        members: list[dict[tuple[str, ...], Any]] = [{} for _ in range(self._count)]
        for key, path in keys_below("", tree.metas).items():
            meta = tree.metas[path]
            parts: list[Any]
            if meta.is_tensor:
                parts = self._leaf(path, meta).members(data[path], self._reads_to)
            else:
                entry: Any = self._value(path, meta, data[path])
                parts = list(entry.unbind(self._stack_dim))
            for member, part in zip(members, parts, strict=True):
                member[key] = part
        names = self._names
        name = None
        if names is not None:
            names = list(names)
            name = names.pop(self._stack_dim)
        extra = {key: tree.extra[p] for key, p in keys_below("", tree.extra).items()}
        state = (self._inner_batch_size, self._reads_to, names)
        stacked_members = [build(member, extra, state) for member in members]
        return LazyStackedTensorDict(
            *stacked_members, stack_dim=self._stack_dim, stack_dim_name=name
        )

    def _shown_as_is(self) -> LazyStackedTensorDict | TensorDict:
        """Make an ordinary collection, or a lazy stack if members differ in shape."""
        tree, data = self._read_all()
        if not all(self._leaf(p, m).is_even for p, m in tree.metas.items()):
            return self._stack()
        leaves = {
            key: self._value(path, tree.metas[path], data[path])
            for key, path in keys_below("", tree.metas).items()
        }
        extra = {k: tree.extra[p] for k, p in keys_below("", tree.extra).items() if p}
        return build(leaves, _with_stack(extra, self), self._state())

    def _state(self) -> tuple[Any, Any, Any]:
        return self._batch_size, self._reads_to, self._names

    def _blank(self) -> LazyStackedTensorDict | TensorDict:
        return self._shown_as_is()

    def _entries(self) -> dict[str, Any]:
        return dict(self._shown_as_is()._entries())

    def _sample_entries(self) -> dict[str, Any]:
        return dict(self._sampled_whole()._entries())

    def _in_memory(self) -> LazyStackedTensorDict:
        return self._stack()

    def _path(self, *key: str) -> str:
        return self._server.path_to("", key)

    def _sampled_whole(self) -> TensorDict:
        tree = self._server.tree()
        leaves = {
            key: _sampled(self._leaf(path, tree.metas[path]), self)
            for key, path in keys_below("", tree.metas).items()
        }
        return build(leaves, {}, self._state())

    def _get_entry(self, key: str, default: object) -> Any:
        server = self._server

        def chosen(tree: Tree) -> list[str]:
            return [key] if key in tree.metas else list(tree.below(key))

        tree, data = server.read_data(chosen)
        if key in tree.metas:
            return self._value(key, tree.metas[key], data[key])
        leaves = {
            below: self._value(path, tree.metas[path], data[path])
            for below, path in keys_below(key, tree.below(key)).items()
        }
        if not leaves:
            return default
        return build(leaves, {}, self._state())

    def _sample_entry(self, key: str) -> Any:
        return self._sample_entries().get(key, NO_DEFAULT)

    def _element(self, index: object) -> _StoreStackElementView | None:
        """Return a view of the member at an index, or None for any other index."""
        if isinstance(index, tuple) and len(index) == 1:
            index = index[0]
        if type(index) is not int or self._stack_dim:
            return None
        if not -self._count <= index < self._count:
            msg = f"index {index} is out of bounds for dimension 0 with size {self._count}"
            raise IndexError(msg)
        return _StoreStackElementView(self, index % self._count)

    def _get_index(self, index: object) -> Any:
        element = self._element(index)
        return self._shown()[index] if element is None else element

    # Writing --------------------------------------------------------------------------

    def _write_index(self, index: object, value: object) -> None:
        element = self._element(index)
        if element is not None and isinstance(value, CollectionProtocol):
            element._take(value)
            return
        super()._write_index(index, value)

    def _snapshot(self, plain: CollectionProtocol) -> tuple[Any, Any]:
        return plain, _encoded(plain)

    def _store_snapshot(self, snapshot: Any) -> None:
        plain, before = snapshot
        after = _encoded(plain)
        names = list(plain.names) if plain._has_names() else None
        with self._server.batch():
            if names != self._names:
                self._td_dim_names = names
            self._server.write(
                {p: e for p, e in after.items() if _is_other(e, before.get(p))},
                [path for path in before if path not in after],
            )

    def _set_entry(self, key: str, value: object) -> None:
        self._store(self._server.path_to("", (key,)), value)

    def _store(self, path: str, value: object) -> None:
        entries = _entries_of(path, value)
        tree = self._server.last_tree()
        below = [path, *tree.below(path)]
        removed = [
            old_path
            for old_path in below
            if old_path in tree.metas and old_path not in entries
        ]
        self._server.write(entries, removed)

    def _del_entry(self, key: str) -> None:
        path = self._server.path_to("", (key,))
        tree = self._server.tree()
        below = [path, *tree.below(path)]
        self._server.write(
            {}, [old_path for old_path in below if old_path in tree.metas]
        )

    def _set_path(
        self,
        path: tuple[str, ...],
        value: object,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        with self._rewriting() as plain:
            if ignore_lock and plain.is_locked:
                plain.unlock_()
            plain._set_path(path, value, inplace, non_blocking, validated, ignore_lock)

    def _store_leaves(self, values: list[Any]) -> None:
        tree = self._server.last_tree()
        tensors = [p for p, m in sorted_metas(tree) if m.is_tensor]
        if all(self._leaf(path, tree.metas[path]).is_even for path in tensors):
            pairs = zip(tensors, values, strict=True)
            self._server.write({path: encode_whole(path, v) for path, v in pairs})
            return
        leaf_count = len(tensors)
        rows = [
            values[start : start + leaf_count]
            for start in range(0, len(values), leaf_count)
        ]
        self._server.write(
            {
                path: encode_members(path, [row[at] for row in rows])
                for at, path in enumerate(tensors)
            }
        )

    def empty(self, *args: object, **kwargs: object) -> Any:
        """Return an ordinary collection like this one, without leaves."""
        return build({}, {}, self._state()).empty(*args, **kwargs)

    def clear_redis(self) -> None:
        """Delete the store from the server. The connection stays open."""
        tree = self._server.tree()
        commands = [("DEL", *map(self._server.key, STACK_HEADER))]
        self._server.write({}, list(tree.metas), commands=commands)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(\n"
            f"    keys={list(self._held_keys())},\n"
            f"    batch_size={self._batch_size},\n"
            f"    count={self._count},\n"
            f"    stack_dim={self._stack_dim},\n"
            f"    device={self._reads_to},\n"
            f"    backend={self._server.backend!r},\n"
            f"    td_id={self._td_id!r})"
        )


LazyStackedTensorDictStore.__module__ = "tensordict.store._lazy"


def _reopen(
    cls: Any, opening: dict[str, Any], state: tuple[Any, ...], is_locked: bool
) -> Any:
    made = cls._opened(Server(**opening), *state)
    made._is_locked = is_locked
    return made


def sorted_metas(tree: Tree) -> list[tuple[str, Meta]]:
    """Return the path and description of each entry, sorted by nested key."""
    return [(path, tree.metas[path]) for path in keys_below("", tree.metas).values()]


def _of_members(members: list[Any]) -> tuple[dict[str, Encoded], dict[str, Any]]:
    """Encode the entries of all members; also return the records of collections."""
    entries_of_members: list[dict[str, Any]] = []
    extra: dict[str, Any] = {}
    for member in members:
        entries: dict[str, Any] = {}
        extra = {}
        names = list(member.names) if member._has_names() else None
        collect("", member, (member.batch_size, names), entries, extra)
        entries_of_members.append(entries)
    paths = {path: None for entries in entries_of_members for path in entries}
    lacking = [
        path
        for path in paths
        if not all(path in entries for entries in entries_of_members)
    ]
    if lacking:
        raise RuntimeError(MSG_KEYS.format(lacking))
    return {
        path: encode_members(path, [entries[path] for entries in entries_of_members])
        for path in paths
    }, extra


def _entries_of(path: str, value: Any) -> dict[str, Encoded]:
    """Encode the entries of a value that has the batch dims of the stack."""
    entries: dict[str, Any] = {}
    size = value.batch_size if is_branch(value) else torch.Size([])
    collect(path, value, (size, None), entries, {})
    return {
        entry_path: encode_whole(entry_path, item)
        for entry_path, item in entries.items()
    }


def _encoded(plain: CollectionProtocol) -> dict[str, Encoded]:
    """Encode the entries of an ordinary collection with a store's content."""
    if isinstance(plain, LazyStackedTensorDict):
        return _of_members(list(plain.tensordicts))[0]
    entries: dict[str, Any] = {}
    collect("", plain, (plain.batch_size, None), entries, {})
    # The data shares memory with the tensors, which the caller may overwrite: copy it.
    encoded = {path: encode_whole(path, value) for path, value in entries.items()}
    return {
        path: entry._replace(data=bytes(entry.data)) for path, entry in encoded.items()
    }


def _is_other(entry: Encoded, before: Encoded | None) -> bool:
    return before is None or (
        entry.fields != before.fields or bytes(entry.data) != bytes(before.data)
    )


def _sampled(leaf: Leaf, owner: CollectionProtocol) -> Any:
    """Return a stand-in for an entry, without its values."""
    meta = leaf.meta
    if not meta.is_tensor:
        return owner._non_tensor_type(None, batch_size=owner.batch_size)
    shape = list(leaf.shape_of(0)) if leaf.count else list(leaf._stored)[1:]
    shape.insert(leaf.dim, leaf.count)
    return torch.zeros((), dtype=meta.dtype, device=owner.device).expand(shape)


def _with_stack(
    extra: dict[tuple[str, ...], Any], store: LazyStackedTensorDictStore
) -> dict[Any, Any]:
    """Insert the stack dim into the recorded batch sizes of nested collections."""
    records = {}
    for key, record in extra.items():
        size = record.get("batch_size")
        if size is not None:
            size = list(size)
            size.insert(store._stack_dim, store._count)
            record = {**record, "batch_size": size}
        records[key] = record
    return records


def _checked_size(store: LazyStackedTensorDictStore, size: torch.Size) -> None:
    """Raise an error if the shape of an entry does not begin with ``size``."""
    shown = store._shown_as_is()
    shown.batch_size = size
