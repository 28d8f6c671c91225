"""A collection whose entries are on a Redis server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.store.common import device_of
from tensordict.containers.store.constructors import StoreConstructors
from tensordict.containers.store.encoding import Meta, decode, encode
from tensordict.containers.store.partial import PartialReads, expanded, sample
from tensordict.containers.store.server import Server
from tensordict.containers.store.tensorclasses import name_of_class
from tensordict.containers.store.tree import KEY_SEPARATOR, Tree
from tensordict.containers.store.writes import (
    Snapshot,
    build,
    collect,
    keys_below,
    nested_names,
)
from tensordict.primitives.checks import is_branch
from tensordict.primitives.common import MSG_INPLACE, _InplaceWriteError
from tensordict.primitives.errors import missing_key
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tensordict.containers.dense import TensorDict


__all__ = ["TensorDictStore"]


class TensorDictStore(StoreConstructors, PartialReads):  # type: ignore[misc]
    """A collection whose entries are on a Redis server, or on a compatible server.

    The server holds each tensor as one string of bytes, with its shape and dtype. An
    entry that is read is a copy. Each call asks the server once. The writes of one call
    are one transaction, so another process sees all of them or none. A nested
    collection is a store that reads and writes on the same server. An index of the
    batch dims reads or writes only the bytes of its rows. Operations return ordinary
    collections.

    The data stays on the server after :meth:`close`, and after the process ends, until
    :meth:`clear_redis`. Another process opens it with :meth:`from_store`.

    Non-tensor data is stored as JSON if JSON reproduces the same value, and otherwise
    as a pickle, which each read unpickles. Connect only to a server that you trust, or
    pass ``allow_pickle=False``.

    Args:
        backend: the name of the server software in texts: ``"redis"``, ``"dragonfly"``.
        host: the name of the server.
        port: the port of the server.
        db: the number of the database.
        unix_socket_path: a local socket, instead of host and port.
        prefix: the beginning of all keys on the server.
        batch_size: the leading dims ``[*B]`` that all entries share.
        device: the device to which tensors are read. None: the CPU, and the collection
            has no device.
        client: a ``redis.Redis`` to use instead of an address, or a
            ``redis.asyncio.Redis`` whose settings are used.
        td_id: the name of the store on the server. Default: a new one.
        cache_metadata: whether shapes and dtypes are cached, so that an entry is read
            in one round trip. Each read compares the cache with the server.
        **redis_kwargs: further arguments of ``redis.Redis``, such as ``password``,
            ``ssl`` and ``ssl_ca_certs``; and ``allow_pickle``.

    Raises:
        ModuleNotFoundError: the package ``redis`` is not installed.
        redis.exceptions.ConnectionError: the server, which the message names, cannot be
            reached.

    ``docs/guide/stores.md`` has examples::

        store = TensorDictStore(batch_size=[100])
        store["obs"] = torch.zeros(100, 84)
        store[:2]["obs"]  # reads two rows
        reader = TensorDictStore.from_store(td_id=store._td_id)  # in another process
        store.clear_redis()
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
        batch_size: Sequence[int] | None = None,
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
        self._fill(server, torch.Size(batch_size or ()), device_of(device))
        server.write({}, commands=self._header())

    def _fill(
        self,
        server: Server,
        batch_size: torch.Size,
        device: torch.device | None,
        prefix: str = "",
        names: list[str | None] | None = None,
        lock_of: Any = None,
    ) -> Self:
        self._server = server
        self._prefix = prefix
        self._size = batch_size
        self._reads_to = device
        self._names = names
        self._lock_of = lock_of
        return self

    def _header(self, cls: type | None = None) -> list[tuple[Any, ...]]:
        """Make the commands that write the metadata of the entire store."""
        server = self._server
        device = "" if self._reads_to is None else str(self._reads_to)
        commands: list[tuple[Any, ...]] = [
            ("SET", server.key("__batch_size__"), json.dumps(list(self._size))),
            ("SET", server.key("__device__"), device),
        ]
        if cls is not None:
            name = name_of_class(cls)
            commands.append(("SET", server.key("__tensorclass__"), name))
        return commands

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments that reopen the store, not its entries."""
        state = (self._size, self._reads_to, self._prefix, self._names)
        return _reopen, (type(self), self._server.opening(), state, self._is_locked)

    def _clone_structure(self) -> Self:
        return self._opened(
            self._server, self._size, self._reads_to, self._prefix, self._names
        )

    # State ----------------------------------------------------------------------------

    @property
    def _batch_size(self) -> torch.Size:
        return self._size

    @_batch_size.setter
    def _batch_size(self, size: torch.Size) -> None:
        self._size = size
        if self._prefix:
            self._record(batch_size=list(size))
        else:
            self._server.write({}, commands=self._header())

    @property
    def _device(self) -> torch.device | None:
        return self._reads_to

    @_device.setter
    def _device(self, device: torch.device | None) -> None:
        self._reads_to = device
        if not self._prefix:
            self._server.write({}, commands=self._header())

    @property
    def _td_dim_names(self) -> list[str | None] | None:
        return self._names

    @_td_dim_names.setter
    def _td_dim_names(self, names: list[str | None] | None) -> None:
        self._names = names
        self._record(names=names)

    def _record(self, **fields: object) -> None:
        """Write fields to the record of this collection on the server."""
        record = self._server.tree().extra.get(self._prefix, {})
        self._server.write({}, extra={self._prefix: {**record, **fields}})

    def _own_state(self) -> tuple[torch.Size, list[str | None] | None]:
        return self._size, self._names

    # Reading --------------------------------------------------------------------------

    def _path(self, *key: str) -> str:
        return self._server.path_to(self._prefix, key)

    def _decoded(self, path: str, meta: Meta, data: bytes | None) -> Any:
        return decode(path, meta, data, self, self._server.allow_pickle)

    def _child(self, key: str, tree: Tree) -> Self:
        """Make the nested store at a key."""
        path = self._path(key)
        record = tree.extra.get(path, {})
        size = torch.Size(record.get("batch_size", self._size))
        names = nested_names(record, self._names, len(size))
        return self._opened(
            self._server, size, self._reads_to, path, names, lock_of=self
        )

    def _loaded(
        self,
        choose: Callable[[dict[str, Meta]], Iterable[str]],
        is_fresh: bool = True,
    ) -> tuple[Any, Any]:
        """Read all descriptions below, and the values at the paths of ``choose``."""
        prefix = self._prefix

        def wanted(tree: Tree) -> list[str]:
            return list(choose(tree.below(prefix)))

        tree, data = self._server.read_data(wanted, is_fresh)
        metas = tree.below(prefix)
        return tree, {
            key: self._decoded_below(path, metas[path], data, tree)
            for key, path in keys_below(prefix, metas).items()
            if path in data
        }

    def _decoded_below(
        self, path: str, meta: Meta, data: dict[str, Any], tree: Tree
    ) -> Any:
        if meta.has_rows:
            return self._decoded(path, meta, data[path])
        # Non-tensor data has the batch size of the nested collection that holds it.
        parent = path.rpartition(KEY_SEPARATOR)[0]
        owner = self
        start = len(self._prefix) + 1 if self._prefix else 0
        for part in parent[start:].split(KEY_SEPARATOR):
            if part:
                owner = owner._child(part, tree)
        return owner._decoded(path, meta, data[path])

    def _built(self, leaves: dict[tuple[str, ...], Any], tree: Tree) -> TensorDict:
        records = keys_below(self._prefix, tree.records_below(self._prefix))
        extra = {key: tree.extra[path] for key, path in records.items()}
        return build(leaves, extra, (self._size, self._reads_to, self._names))

    def _shown_as_is(self) -> TensorDict:
        tree, leaves = self._loaded(lambda metas: metas)
        return self._built(leaves, tree)

    def _blank(self) -> TensorDict:
        return self._sampled(torch.empty, False)

    def _in_memory(self) -> CollectionProtocol:
        return self._shown()

    def _sampled_whole(self) -> TensorDict:
        return self._sampled(expanded)

    def _sampled(self, make: Callable[..., torch.Tensor], is_fresh: bool = True) -> Any:
        """Make a plain collection with tensors from ``make``; read other entries."""
        tree, leaves = self._loaded(_not_tensors, is_fresh)
        for key, path in keys_below(self._prefix, tree.below(self._prefix)).items():
            if key not in leaves:
                leaves[key] = sample(tree.metas[path], make, self)
        return self._built(dict(sorted(leaves.items())), tree)

    def _entries(self) -> dict[str, Any]:
        return self._direct(lambda metas: metas)

    def _sample_entries(self) -> dict[str, Any]:
        return self._direct(_not_tensors)

    def _direct(
        self, choose: Callable[[dict[str, Meta]], Iterable[str]]
    ) -> dict[Any, Any]:
        """Return the direct entries: values, tensor stand-ins and nested stores."""
        start = len(self._prefix) + 1 if self._prefix else 0

        def direct(metas: dict[str, Meta]) -> list[str]:
            direct_metas = {
                path: meta
                for path, meta in metas.items()
                if KEY_SEPARATOR not in path[start:]
            }
            return list(choose(direct_metas))

        tree, values = self._loaded(direct)
        entries: dict[str, Any] = {}
        for key, path in keys_below(self._prefix, tree.below(self._prefix)).items():
            if len(key) > 1:
                entries.setdefault(key[0], None)
            elif key in values:
                entries[key[0]] = values[key]
            else:
                entries[key[0]] = sample(tree.metas[path], expanded, self)
        for key in keys_below(self._prefix, tree.records_below(self._prefix)):
            entries.setdefault(key[0], None)
        return {
            key: self._child(key, tree) if value is None else value
            for key, value in sorted(entries.items())
        }

    def _get_entry(self, key: str, default: object) -> Any:
        return self._look_up(key, default, True)

    def _sample_entry(self, key: str) -> Any:
        return self._look_up(key, NO_DEFAULT, False)

    def _look_up(self, key: str, default: object, reads: bool) -> Any:
        """Return one entry; read the values of a tensor only if ``reads`` is true.

        The cached descriptions are tried first. The server is asked for an entry that
        is not among them.
        """
        try:
            path = self._path(key)
        except KeyError:
            return default
        server = self._server
        for read_tree in (server.last_tree, server.tree):
            tree = read_tree()
            meta = tree.metas.get(path)
            if meta is None:
                if tree.has_below(path):
                    return self._child(key, tree)
                continue
            if meta.is_tensor and not reads:
                return sample(meta, expanded, self)
            tree, data = server.read_data(
                lambda tree: [path] if path in tree.metas else []
            )
            if path in data:
                return self._decoded(path, tree.metas[path], data[path])
        return default

    # Writing --------------------------------------------------------------------------

    def _write(
        self,
        entries: dict[str, Any],
        removed: Iterable[str],
        extra: dict[str, Any],
        commands: Sequence[tuple[Any, ...]] = (),
    ) -> None:
        for path in entries:
            # A key that contains the separator becomes a nested key on the server.
            self._server.path_to("", path.split(KEY_SEPARATOR))
        encoded = {path: encode(path, value) for path, value in entries.items()}
        self._server.write(encoded, list(removed), extra, commands)

    def _set_entry(self, key: str, value: object) -> None:
        path = self._path(key)
        entries: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        collect(path, value, self._own_state(), entries, extra)
        tree = self._server.last_tree()
        below = [path, *tree.below(path)]
        old_records = dict.fromkeys([path, *tree.records_below(path)])
        old_records = {
            record_path: None
            for record_path in old_records
            if record_path in tree.extra
        }
        removed = [
            old_path
            for old_path in below
            if old_path in tree.metas and old_path not in entries
        ]
        self._write(entries, removed, {**old_records, **extra})

    def _del_entry(self, key: str) -> None:
        path = self._path(key)
        tree = self._server.last_tree()
        removed = [path, *tree.below(path)]
        records = [
            record_path
            for record_path in (path, *tree.records_below(path))
            if record_path in tree.extra
        ]
        self._server.write({}, removed, dict.fromkeys(records))

    def _set_path(
        self,
        path: tuple[str, ...],
        value: object,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        key = path[0]
        if len(path) > 1:
            super()._set_path(
                path, value, inplace, non_blocking, validated, ignore_lock
            )
            return
        if inplace is not False:
            present = self._sample_entry(key)
            if present is NO_DEFAULT:
                if inplace is None:
                    raise missing_key(self, key)
            else:
                is_collection = isinstance(value, (CollectionProtocol, dict))
                if is_branch(present) and is_collection and inplace is None:
                    value = _rust.validate(self, key, value, non_blocking)
                    present.update_(value, non_blocking=non_blocking)
                    return
                self._write_into(key, present, value, non_blocking)
                return
        if not validated:
            value = _rust.validate(self, key, value, non_blocking)
        if not ignore_lock:
            self._check_takes_entries()
        self._set_entry(key, value)

    def _write_into(
        self, key: str, present: Any, value: object, non_blocking: bool
    ) -> None:
        is_collection = isinstance(value, (CollectionProtocol, dict))
        if isinstance(present, CollectionProtocol) or is_collection:
            super()._write_into(key, present, value, non_blocking)
            if not is_branch(present):
                self._set_entry(key, present)
            return
        value = _rust.fit_inplace(self, key, value, present)
        if not value.numel():
            return
        try:
            written = torch.empty_like(present).copy_(value)
        except RuntimeError as error:
            raise _InplaceWriteError(MSG_INPLACE.format(key, self)) from error
        self._set_entry(key, written)

    def _store_leaves(self, values: list[Any]) -> None:
        tree = self._server.last_tree()
        metas = keys_below(self._prefix, tree.below(self._prefix))
        paths = [path for path in metas.values() if tree.metas[path].is_tensor]
        self._write(dict(zip(paths, values, strict=True)), (), {})

    def _store_snapshot(self, snapshot: Snapshot) -> None:
        changed, gone, news = snapshot.changes()
        plain = snapshot.plain
        with self._server.batch():
            if plain.batch_size != self._size:
                self._batch_size = plain.batch_size
            names = list(plain.names) if plain._has_names() else None
            if names != self._names:
                self._td_dim_names = names
            entries = {self._path(key): value for key, value in changed.items()}
            extra = {self._path(key): record for key, record in news.items()}
            self._write(entries, [self._path(key) for key in gone], extra)

    def empty(self, *args: object, **kwargs: object) -> Any:
        """Return an ordinary collection like this one, without leaves."""
        return self._sampled(expanded).empty(*args, **kwargs)

    def clear_redis(self) -> None:
        """Delete the store from the server. A nested collection deletes its entries.

        The connection stays open, so that new entries can be written.
        """
        tree = self._server.tree()
        removed = list(tree.below(self._prefix))
        records = dict.fromkeys(tree.records_below(self._prefix))
        commands: list[tuple[Any, ...]] = []
        if not self._prefix:
            commands = [("DEL", *map(self._server.key, HEADER))]
        self._server.write({}, removed, records, commands)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(\n"
            f"    keys={list(self._held_keys())},\n"
            f"    batch_size={self._size},\n"
            f"    device={self._reads_to},\n"
            f"    backend={self._server.backend!r},\n"
            f"    td_id={self._td_id!r})"
        )


TensorDictStore.__module__ = "tensordict.store._store"

HEADER = (
    "__batch_size__",
    "__device__",
    "__keys__",
    "__nested__",
    "__tensorclass__",
)
"""The keys of a store on the server that do not belong to an entry."""


def _reopen(
    cls: Any, opening: dict[str, Any], state: tuple[Any, ...], is_locked: bool
) -> Any:
    size, device, prefix, names = state
    made = cls._opened(Server(**opening), size, device, prefix, names)
    made._is_locked = is_locked
    return made


def _not_tensors(metas: dict[str, Meta]) -> list[str]:
    return [path for path, meta in metas.items() if not meta.is_tensor]
