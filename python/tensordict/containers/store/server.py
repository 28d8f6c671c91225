"""The connection to a Redis server, and the keys of one store on it.

Each call sends its commands in one message. Its reads and its writes are transactions
(``MULTI``): another process sees all entries of an update or none.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from typing import TYPE_CHECKING, Any

from tensordict.containers.store.encoding import Meta
from tensordict.containers.store.scripts import DESCRIBE, RENAME, WRITE_PIECES
from tensordict.containers.store.tree import KEY_SEPARATOR, Tree
from tensordict.primitives.errors import KeyMessageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tensordict.containers.store.encoding import Encoded

__all__ = ["Server"]

MSG_NO_REDIS = (
    "A store needs the Python package redis, which is not installed. Install it with "
    "`pip install redis`."
)
MSG_LOST = (
    "The connection to the {} server at {} was lost, and a second try failed: {} (the "
    "server has done all writes of this call, or none of them)"
)
MSG_CLOSED = (
    "This store was closed with close(). Open it again with from_store(td_id={!r})."
)
MSG_TEXT = (
    "The client decodes answers to text (decode_responses=True), but entries are bytes. "
    "Pass a client without decode_responses."
)
MSG_KEY = "The key {!r} has an empty part. A store needs keys without empty parts."
MSG_CHANGING = (
    "The entries of the store {!r} at {} change faster than they can be read: in each of "
    "{} tries, another process had changed them."
)

_TRIES = 100
"""The largest number of tries of a call while other processes change the entries."""


class Server:
    """One store on one server.

    Args:
        backend: the name of the server software in texts.
        host: the name of the server.
        port: the port of the server.
        db: the number of the database.
        unix_socket_path: a local socket, instead of host and port.
        prefix: the beginning of the keys of all stores.
        client: a client of ``redis`` to use, or one of ``redis.asyncio`` whose settings
            are used.
        td_id: the name of the store.
        cache_metadata: whether the descriptions of entries are cached.
        allow_pickle: whether values may be unpickled.
        options: further arguments of ``redis.Redis``: ``password``, ``ssl`` and others.

    Attributes:
        address: the name of the server in errors.
        is_stack: whether the store is a lazy stack, whose entries may have offsets.
    """

    is_stack = False

    def __init__(
        self,
        *,
        backend: str = "redis",
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        unix_socket_path: str | None = None,
        prefix: str = "tensordict",
        client: object = None,
        td_id: str | None = None,
        cache_metadata: bool = True,
        allow_pickle: bool = True,
        **options: object,
    ) -> None:
        self.backend: str = backend
        self.prefix: str = prefix
        self.td_id: str = uuid.uuid4().hex if td_id is None else td_id
        self.cache_metadata: bool = cache_metadata
        self.allow_pickle: bool = allow_pickle
        address: dict[str, Any] = {"host": host, "port": port}
        if unix_socket_path is not None:
            address = {"unix_socket_path": unix_socket_path}
        self.settings: dict[str, Any] = {**address, "db": db, **options}
        self._client = _client_of(client, self.settings)
        self._is_own = client is None
        connection = self._client.connection_pool.connection_kwargs
        if client is not None:
            self.settings = _settings_of(connection)
        if connection.get("decode_responses"):
            raise ValueError(MSG_TEXT)
        location = (
            connection.get("path")
            or f"{connection.get('host')}:{connection.get('port')}"
        )
        self.address: str = f"{location} db={connection.get('db', 0)}"
        self._last_tree: Tree | None = None
        self._local = threading.local()

    def sibling(self, td_id: str | None = None) -> Server:
        """Make another store on the same server, with the same connections."""
        server = Server.__new__(Server)
        server.__dict__.update(self.__dict__)
        server.td_id = uuid.uuid4().hex if td_id is None else td_id
        server._last_tree = None
        server._local = threading.local()
        return server

    def opening(self) -> dict[str, Any]:
        """Return the arguments that reopen the store."""
        return {
            **self.settings,
            "backend": self.backend,
            "prefix": self.prefix,
            "td_id": self.td_id,
            "cache_metadata": self.cache_metadata,
            "allow_pickle": self.allow_pickle,
        }

    def close(self) -> None:
        """Close the connections, unless the caller passed a client."""
        client, self._client = self._client, None
        if client is not None and self._is_own:
            client.close()
            client.connection_pool.disconnect()

    # Names -------------------------------------------------------------------------

    def key(self, suffix: str) -> str:
        """Return a key of this store on the server."""
        return f"{self.prefix}:{{{self.td_id}}}:{suffix}"

    def data_key(self, path: str) -> str:
        """Return the key of an entry's bytes."""
        return self.key(f"d:{path}")

    def meta_key(self, path: str) -> str:
        """Return the key of an entry's description."""
        return self.key(f"m:{path}")

    def _keys_of(self, paths: Iterable[str], data: bool) -> Iterator[str]:
        """Yield the keys of entries on the server; keys of bytes only if ``data``."""
        for path in paths:
            yield self.meta_key(path)
            if data:
                yield self.data_key(path)
            if self.is_stack:
                yield self.data_key(f"{path}:idx")

    def path_to(self, prefix: str, parts: Sequence[str]) -> str:
        """Return the path of an entry on the server.

        Raises:
            KeyError: a part of the key is empty.
        """
        path = KEY_SEPARATOR.join(parts)
        if "" in path.split(KEY_SEPARATOR):
            raise KeyMessageError(MSG_KEY.format(path))
        return f"{prefix}{KEY_SEPARATOR}{path}" if prefix else path

    # Commands ------------------------------------------------------------------------

    def run(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in one message and one transaction, and return the answers.

        If the connection is lost, it is reopened and the commands are sent once more.
        So doing a command twice must be the same as doing it once.

        Raises:
            redis.exceptions.ConnectionError: the server, which the message names,
                cannot be reached.
            redis.exceptions.ResponseError: the server refuses a command.
        """
        import redis

        lost = (redis.ConnectionError, redis.TimeoutError, OSError)
        failure: BaseException | None = None
        for _ in range(2):
            client = self._client
            if client is None:
                raise RuntimeError(MSG_CLOSED.format(self.td_id))
            try:
                with client.pipeline(transaction=len(commands) > 1) as pipeline:
                    for command in commands:
                        pipeline.execute_command(*command)
                    return pipeline.execute()
            except redis.AuthenticationError as error:
                failure = error
                break
            except lost as error:
                failure = error
                client.connection_pool.disconnect(inuse_connections=False)
        kind = type(failure) if isinstance(failure, redis.RedisError) else None
        raise (kind or redis.ConnectionError)(
            MSG_LOST.format(self.backend, self.address, failure)
        ) from failure

    def _describing(self) -> tuple[Any, ...]:
        keys = (self.key("__keys__"), self.key("__nested__"), self.meta_key(""))
        return ("EVAL", DESCRIBE, 3, *keys)

    def _update_tree(self, text: bytes) -> Tree:
        last = self._last_tree
        tree = last if last is not None and last.text == text else Tree.parse(text)
        self._last_tree = tree
        return tree

    def tree(self) -> Tree:
        """Read the tree of entries; in a batch, the tree after the batch's writes."""
        batch = self._batch
        if batch is not None:
            return batch.tree(self.last_tree())
        return self._update_tree(self.run(self._describing())[0])

    def last_tree(self) -> Tree:
        """Return the cached tree; read it if there is none, or if caching is off."""
        tree = self._last_tree
        if tree is None or not self.cache_metadata:
            tree = self._update_tree(self.run(self._describing())[0])
        return tree

    def read(
        self, plan: Callable[[Tree], list[tuple[Any, ...]]]
    ) -> tuple[Tree, list[Any]]:
        """Send the commands that ``plan`` makes for the tree of entries.

        The commands are sent together with a request for the present tree. If the
        cached tree is still valid, one message is enough; otherwise ``plan`` is called
        again.

        Raises:
            RuntimeError: other processes change the entries during each try.
        """
        tree = self._last_tree if self.cache_metadata else None
        for _ in range(_TRIES):
            commands = [] if tree is None else plan(tree)
            text, *answers = self.run(self._describing(), *commands)
            if tree is not None and text == tree.text:
                return tree, answers
            tree = self._update_tree(text)
            if not plan(tree):
                return tree, []
        raise RuntimeError(MSG_CHANGING.format(self.td_id, self.address, _TRIES))

    def read_header(self, *names: str) -> tuple[Any, ...]:
        """Read the tree of entries and the named values of the entire store."""
        keys = map(self.key, names)
        text, values = self.run(self._describing(), ("MGET", *keys))
        return self._update_tree(text), *values

    def read_data(
        self, choose: Callable[[Tree], list[str]], is_fresh: bool = True
    ) -> tuple[Tree, dict[str, bytes | None]]:
        """Read all descriptions, and the bytes of the entries that ``choose`` returns.

        If ``is_fresh`` is false and ``choose`` needs no bytes for the cached tree, the
        server is not asked.
        """
        batch = self._batch

        def missing(tree: Tree) -> list[str]:
            paths = choose(tree if batch is None else batch.tree(tree))
            if batch is None:
                return paths
            return [path for path in paths if path not in batch.writes]

        def plan(tree: Tree) -> list[tuple[Any, ...]]:
            paths = missing(tree)
            return [("MGET", *map(self.data_key, paths))] if paths else []

        answers: list[Any] = []
        last_tree = None if is_fresh else self.last_tree()
        if last_tree is not None and not missing(last_tree):
            tree = last_tree
        else:
            tree, answers = self.read(plan)
        paths = missing(tree)
        data = dict(zip(paths, answers[0], strict=True)) if paths else {}
        if batch is None:
            return tree, data
        shown = batch.tree(tree)
        for path in choose(shown):
            if path in batch.writes:
                data[path] = bytes(batch.writes[path].data)
        return shown, data

    # Writing -------------------------------------------------------------------------

    def write(
        self,
        entries: dict[str, Encoded],
        removed: Sequence[str] = (),
        extra: dict[str, Any] | None = None,
        commands: Sequence[tuple[Any, ...]] = (),
    ) -> None:
        """Write and remove entries in one transaction.

        Args:
            entries: the new entries by path.
            removed: the paths to remove.
            extra: the records of nested collections by path, None to remove a record.
            commands: further commands of the same transaction.
        """
        extra = {} if extra is None else extra
        batch = self._batch
        if batch is not None:
            batch.add(entries, removed, extra, commands)
            return
        removed_paths = [path for path in removed if path not in entries]
        all_commands: list[tuple[Any, ...]] = []
        if removed_paths:
            all_commands.append(("DEL", *self._keys_of(removed_paths, True)))
            all_commands.append(("SREM", self.key("__keys__"), *removed_paths))
        if entries:
            # Remove the old description, which may have other fields.
            all_commands.append(("DEL", *self._keys_of(entries, False)))
            flat: list[Any] = []
            for path, entry in entries.items():
                flat += [self.data_key(path), entry.data]
                if entry.offsets is not None:
                    flat += [self.data_key(f"{path}:idx"), entry.offsets]
            all_commands.append(("MSET", *flat))
            all_commands += [
                ("HSET", self.meta_key(path), *_flat(entry.fields))
                for path, entry in entries.items()
            ]
            all_commands.append(("SADD", self.key("__keys__"), *entries))
        nested = self.key("__nested__")
        dropped = [path for path, value in extra.items() if value is None]
        if dropped:
            all_commands.append(("HDEL", nested, *dropped))
        kept = {path: json.dumps(v) for path, v in extra.items() if v is not None}
        if kept:
            all_commands.append(("HSET", nested, *_flat(kept)))
        all_commands += commands
        if all_commands:
            self._update_tree(self.run(*all_commands, self._describing())[-1])

    def rename(self, old: str, new: str) -> None:
        """Move an entry, and all entries below it, to another path; replace entries."""
        tree = self.tree()
        paths = [path for path in (old, *tree.below(old)) if path in tree.metas]
        moved = {path: new + path[len(old) :] for path in paths}
        replaced = [path for path in (new, *tree.below(new)) if path in tree.metas]
        names: list[str] = []
        for before, after in moved.items():
            names += [self.data_key(before), self.data_key(after)]
            names += [self.meta_key(before), self.meta_key(after)]
            if self.is_stack:
                offsets = f"{before}:idx", f"{after}:idx"
                names += map(self.data_key, offsets)
        records = [p for p in (old, *tree.records_below(old)) if p in tree.extra]
        extra: dict[str, Any] = dict.fromkeys(records)
        extra.update({new + path[len(old) :]: tree.extra[path] for path in records})
        keys = self.key("__keys__")
        commands: list[tuple[Any, ...]] = []
        if moved:
            commands = [
                ("EVAL", RENAME, 0, *names),
                ("SREM", keys, *moved),
                ("SADD", keys, *moved.values()),
            ]
        overwritten = [path for path in replaced if path not in moved]
        self.write({}, overwritten, extra, commands)

    def write_pieces(self, plan: Callable[[Tree], list[tuple[str, int, Any]]]) -> None:
        """Write pieces of entries: path, first byte, and bytes.

        The server compares the present tree with the tree that ``plan`` received. If
        another process has changed it, nothing is written and ``plan`` is called again.

        Raises:
            RuntimeError: other processes change the entries during each try.
        """
        tree = self.last_tree()
        for _ in range(_TRIES):
            flat: list[Any] = []
            for path, first, data in plan(tree):
                if len(data):
                    flat += [self.data_key(path), first, data]
            if not flat:
                return
            keys = (self.key("__keys__"), self.key("__nested__"), self.meta_key(""))
            answer = self.run(("EVAL", WRITE_PIECES, 3, *keys, tree.text, *flat))[0]
            if not isinstance(answer, bytes):
                return
            tree = self._update_tree(answer)
        raise RuntimeError(MSG_CHANGING.format(self.td_id, self.address, _TRIES))

    # Batches -------------------------------------------------------------------------

    @property
    def _batch(self) -> _Batch | None:
        return getattr(self._local, "batch", None)

    @property
    def in_batch(self) -> bool:
        """Return whether this thread collects its writes in a :meth:`batch`."""
        return self._batch is not None

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Collect the writes of a block and send them at its end; none after an error.

        Reads in the block see the collected writes.
        """
        if self._batch is not None:
            yield
            return
        batch = self._local.batch = _Batch()
        try:
            yield
        finally:
            self._local.batch = None
        self.write(batch.writes, list(batch.removed), batch.extra, batch.commands)


class _Batch:
    """The collected writes of a block."""

    def __init__(self) -> None:
        self.writes: dict[str, Encoded] = {}
        self.removed: dict[str, None] = {}
        self.extra: dict[str, Any] = {}
        self.commands: list[tuple[Any, ...]] = []

    def add(
        self,
        entries: dict[str, Encoded],
        removed: Sequence[str],
        extra: dict[str, Any],
        commands: Sequence[tuple[Any, ...]],
    ) -> None:
        for path in removed:
            self.writes.pop(path, None)
            self.removed[path] = None
        for path in entries:
            self.removed.pop(path, None)
        self.writes.update(entries)
        self.extra.update(extra)
        self.commands += commands

    def tree(self, tree: Tree) -> Tree:
        """Return the tree after the collected writes."""
        if not (self.writes or self.removed or self.extra):
            return tree
        changed = Tree.__new__(Tree)
        changed.text = b""
        metas = {p: m for p, m in tree.metas.items() if p not in self.removed}
        metas.update({p: Meta(p, e.fields) for p, e in self.writes.items()})
        changed.metas = dict(sorted(metas.items()))
        extra = {**tree.extra, **self.extra}
        changed.extra = {
            path: value for path, value in extra.items() if value is not None
        }
        return changed


def _flat(fields: dict[str, Any]) -> list[Any]:
    return [item for pair in fields.items() for item in pair]


_SETTING_NAMES = ("host", "port", "db", "username", "password")


def _settings_of(pool_settings: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor arguments of a client, from the settings of its pool."""
    kept = {
        name: pool_settings[name]
        for name in _SETTING_NAMES
        if pool_settings.get(name) is not None
    }
    if pool_settings.get("path") is not None:
        kept["unix_socket_path"] = pool_settings["path"]
    secure = {n: v for n, v in pool_settings.items() if n.startswith("ssl_")}
    return {**kept, **({"ssl": True, **secure} if secure else {})}


def _client_of(client: object, settings: dict[str, Any]) -> Any:
    """Make a synchronous client without retries: :class:`Server` tries again itself."""
    try:
        import redis
    except ImportError:
        raise ModuleNotFoundError(MSG_NO_REDIS) from None
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    if client is None:
        return redis.Redis(**{"retry": Retry(NoBackoff(), 0), **settings})
    if isinstance(client, redis.Redis) or not hasattr(client, "connection_pool"):
        return client
    pool = client.connection_pool
    name = getattr(pool.connection_class, "__name__", "Connection")
    kind = getattr(redis, name, redis.Connection)
    pool_settings = {**pool.connection_kwargs, "retry": Retry(NoBackoff(), 0)}
    return redis.Redis(
        connection_pool=redis.ConnectionPool(connection_class=kind, **pool_settings)
    )
