"""The connection to a Redis server, and one store's keys on it.

Every call sends its commands in one message. Reads are of one moment (``MULTI``), and so
are writes: another process sees all entries of an update or none.
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
    "The connection to the {} server at {} is lost, and a second try failed, too: {} "
    "(of what this call writes, the server has nothing or all)"
)
MSG_CLOSED = (
    "This store was closed with close(). Open it again with from_store(td_id={!r})."
)
MSG_TEXT = (
    "The client decodes answers to text (decode_responses=True), but entries are bytes. "
    "Give a client without it."
)
MSG_KEY = "A store needs keys that are not empty, got {!r}."
MSG_CHANGING = (
    "The entries of the store {!r} at {} change faster than they can be read: {} tries "
    "found others each time."
)

_TRIES = 100
"""The most times that a call starts again because another process has changed entries."""


class Server:
    """One store on one server.

    Args:
        backend: what the server is called in texts.
        host: its name.
        port: its port.
        db: the number of the database.
        unix_socket_path: a socket of this machine, instead of host and port.
        prefix: what the keys of all stores start with.
        client: a client of ``redis`` to use, or one of ``redis.asyncio`` whose settings
            are used.
        td_id: which store.
        cache_metadata: whether the descriptions of entries are kept here.
        allow_pickle: whether values may be unpickled.
        options: what else ``redis.Redis`` takes: ``password``, ``ssl`` and the like.

    Attributes:
        address: how errors name the server.
        is_stack: whether entries are of a stack, and may have offsets.
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
        where: dict[str, Any] = {"host": host, "port": port}
        if unix_socket_path is not None:
            where = {"unix_socket_path": unix_socket_path}
        self.settings: dict[str, Any] = {**where, "db": db, **options}
        self._client = _client_of(client, self.settings)
        self._is_own = client is None
        found = self._client.connection_pool.connection_kwargs
        if client is not None:
            self.settings = _settings_of(found)
        if found.get("decode_responses"):
            raise ValueError(MSG_TEXT)
        place = found.get("path") or f"{found.get('host')}:{found.get('port')}"
        self.address: str = f"{place} db={found.get('db', 0)}"
        self._known: Tree | None = None
        self._local = threading.local()

    def sibling(self, td_id: str | None = None) -> Server:
        """Another store on the same server, over the same connections."""
        made = Server.__new__(Server)
        made.__dict__.update(self.__dict__)
        made.td_id = uuid.uuid4().hex if td_id is None else td_id
        made._known = None
        made._local = threading.local()
        return made

    def opening(self) -> dict[str, Any]:
        """Give the arguments that open the store again."""
        return {
            **self.settings,
            "backend": self.backend,
            "prefix": self.prefix,
            "td_id": self.td_id,
            "cache_metadata": self.cache_metadata,
            "allow_pickle": self.allow_pickle,
        }

    def close(self) -> None:
        """Close the connections that were opened for this store."""
        client, self._client = self._client, None
        if client is not None and self._is_own:
            client.close()
            client.connection_pool.disconnect()

    # Names -------------------------------------------------------------------------

    def key(self, suffix: str) -> str:
        """Make a key of this store on the server."""
        return f"{self.prefix}:{{{self.td_id}}}:{suffix}"

    def data_key(self, path: str) -> str:
        """Make the key of the bytes of an entry."""
        return self.key(f"d:{path}")

    def meta_key(self, path: str) -> str:
        """Make the key of the description of an entry."""
        return self.key(f"m:{path}")

    def _keys_of(self, paths: Iterable[str], data: bool) -> Iterator[str]:
        """List the keys on the server of entries, or all but those of their bytes."""
        for path in paths:
            yield self.meta_key(path)
            if data:
                yield self.data_key(path)
            if self.is_stack:
                yield self.data_key(f"{path}:idx")

    def path_to(self, prefix: str, parts: Sequence[str]) -> str:
        """Make the path of an entry on the server.

        Raises:
            KeyError: a part is empty.
        """
        path = KEY_SEPARATOR.join(parts)
        if "" in path.split(KEY_SEPARATOR):
            raise KeyMessageError(MSG_KEY.format(path))
        return f"{prefix}{KEY_SEPARATOR}{path}" if prefix else path

    # Commands ------------------------------------------------------------------------

    def run(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in one message, to be done in one piece; their answers.

        All of them are such that doing them twice is doing them once: a connection that
        is lost is opened again, and they are sent once more.

        Raises:
            redis.exceptions.ConnectionError: the server cannot be reached; it is named.
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

    def _learn(self, text: bytes) -> Tree:
        known = self._known
        tree = known if known is not None and known.text == text else Tree.parse(text)
        self._known = tree
        return tree

    def tree(self) -> Tree:
        """Read what the entries are now; in a batch, with what it is going to write."""
        batch = self._batch
        if batch is not None:
            return batch.tree(self.known())
        return self._learn(self.run(self._describing())[0])

    def known(self) -> Tree:
        """Give what the entries were when they were last read or written."""
        known = self._known
        if known is None or not self.cache_metadata:
            known = self._learn(self.run(self._describing())[0])
        return known

    def read(
        self, plan: Callable[[Tree], list[tuple[Any, ...]]]
    ) -> tuple[Tree, list[Any]]:
        """Send the commands that ``plan`` gives for what the entries are.

        They are sent with what is known and the question whether that still holds, so
        one message is enough but for the first.

        Raises:
            RuntimeError: the entries change all the time.
        """
        tree = self._known if self.cache_metadata else None
        for _ in range(_TRIES):
            commands = [] if tree is None else plan(tree)
            text, *answers = self.run(self._describing(), *commands)
            if tree is not None and text == tree.text:
                return tree, answers
            tree = self._learn(text)
            if not plan(tree):
                return tree, []
        raise RuntimeError(MSG_CHANGING.format(self.td_id, self.address, _TRIES))

    def read_header(self, *names: str) -> tuple[Any, ...]:
        """Read what the entries are, and strings that are there for the whole store."""
        keys = map(self.key, names)
        text, found = self.run(self._describing(), ("MGET", *keys))
        return self._learn(text), *found

    def read_data(
        self, choose: Callable[[Tree], list[str]], is_fresh: bool = True
    ) -> tuple[Tree, dict[str, bytes | None]]:
        """Read the descriptions of all entries, and the bytes of those that ``choose`` names.

        Where nothing is chosen of what is known, and ``is_fresh`` is false, the server is
        not asked.
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
        known = None if is_fresh else self.known()
        if known is not None and not missing(known):
            tree = known
        else:
            tree, answers = self.read(plan)
        paths = missing(tree)
        found = dict(zip(paths, answers[0], strict=True)) if paths else {}
        if batch is None:
            return tree, found
        shown = batch.tree(tree)
        for path in choose(shown):
            if path in batch.writes:
                found[path] = bytes(batch.writes[path].data)
        return shown, found

    # Writing -------------------------------------------------------------------------

    def write(
        self,
        entries: dict[str, Encoded],
        removed: Sequence[str] = (),
        extra: dict[str, Any] | None = None,
        commands: Sequence[tuple[Any, ...]] = (),
    ) -> None:
        """Write and remove entries, all at once.

        Args:
            entries: the new entries by path.
            removed: the paths that are to be gone.
            extra: what is known of collections; None for what is no longer.
            commands: what else is done at the same time.
        """
        extra = {} if extra is None else extra
        batch = self._batch
        if batch is not None:
            batch.add(entries, removed, extra, commands)
            return
        gone = [path for path in removed if path not in entries]
        todo: list[tuple[Any, ...]] = []
        if gone:
            todo.append(("DEL", *self._keys_of(gone, True)))
            todo.append(("SREM", self.key("__keys__"), *gone))
        if entries:
            # Fields that only the old entry had would be left.
            todo.append(("DEL", *self._keys_of(entries, False)))
            flat: list[Any] = []
            for path, entry in entries.items():
                flat += [self.data_key(path), entry.data]
                if entry.offsets is not None:
                    flat += [self.data_key(f"{path}:idx"), entry.offsets]
            todo.append(("MSET", *flat))
            todo += [
                ("HSET", self.meta_key(path), *_flat(entry.fields))
                for path, entry in entries.items()
            ]
            todo.append(("SADD", self.key("__keys__"), *entries))
        nested = self.key("__nested__")
        dropped = [path for path, value in extra.items() if value is None]
        if dropped:
            todo.append(("HDEL", nested, *dropped))
        kept = {path: json.dumps(v) for path, v in extra.items() if v is not None}
        if kept:
            todo.append(("HSET", nested, *_flat(kept)))
        todo += commands
        if todo:
            self._learn(self.run(*todo, self._describing())[-1])

    def rename(self, old: str, new: str) -> None:
        """Give an entry, and all below it, another path; what is at that one is gone."""
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
        known = [p for p in (old, *tree.records_below(old)) if p in tree.extra]
        extra: dict[str, Any] = dict.fromkeys(known)
        extra.update({new + path[len(old) :]: tree.extra[path] for path in known})
        keys = self.key("__keys__")
        commands: list[tuple[Any, ...]] = []
        if moved:
            commands = [
                ("EVAL", RENAME, 0, *names),
                ("SREM", keys, *moved),
                ("SADD", keys, *moved.values()),
            ]
        gone = [path for path in replaced if path not in moved]
        self.write({}, gone, extra, commands)

    def write_pieces(self, plan: Callable[[Tree], list[tuple[str, int, Any]]]) -> None:
        """Write pieces of entries: pairs of path and first byte, and the bytes.

        The server compares what the entries are with what ``plan`` was told, and
        writes nothing where another process has changed it; then it is planned again.

        Raises:
            RuntimeError: the entries change all the time.
        """
        tree = self.known()
        for _ in range(_TRIES):
            flat: list[Any] = []
            for path, first, data in plan(tree):
                if len(data):
                    flat += [self.data_key(path), first, data]
            if not flat:
                return
            keys = (self.key("__keys__"), self.key("__nested__"), self.meta_key(""))
            found = self.run(("EVAL", WRITE_PIECES, 3, *keys, tree.text, *flat))[0]
            if not isinstance(found, bytes):
                return
            tree = self._learn(found)
        raise RuntimeError(MSG_CHANGING.format(self.td_id, self.address, _TRIES))

    # Batches -------------------------------------------------------------------------

    @property
    def _batch(self) -> _Batch | None:
        return getattr(self._local, "batch", None)

    @property
    def in_batch(self) -> bool:
        """Return whether writes of this thread wait for the end of a block."""
        return self._batch is not None

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Collect the writes of a block and send them at its end; none after an error.

        Reads in the block see them.
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
    """Writes that wait."""

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
        """Tell what the entries are going to be."""
        if not (self.writes or self.removed or self.extra):
            return tree
        made = Tree.__new__(Tree)
        made.text = b""
        metas = {p: m for p, m in tree.metas.items() if p not in self.removed}
        metas.update({p: Meta(p, e.fields) for p, e in self.writes.items()})
        made.metas = dict(sorted(metas.items()))
        extra = {**tree.extra, **self.extra}
        made.extra = {path: value for path, value in extra.items() if value is not None}
        return made


def _flat(fields: dict[str, Any]) -> list[Any]:
    return [item for pair in fields.items() for item in pair]


_OF_SETTINGS = ("host", "port", "db", "username", "password")


def _settings_of(found: dict[str, Any]) -> dict[str, Any]:
    """Find the arguments of the client of which a pool has these settings, for pickles."""
    kept = {name: found[name] for name in _OF_SETTINGS if found.get(name) is not None}
    if found.get("path") is not None:
        kept["unix_socket_path"] = found["path"]
    secure = {n: v for n, v in found.items() if n.startswith("ssl_")}
    return {**kept, **({"ssl": True, **secure} if secure else {})}


def _client_of(client: object, settings: dict[str, Any]) -> Any:
    """Make a client that waits for answers, and leaves trying again to :class:`Server`."""
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
    given = {**pool.connection_kwargs, "retry": Retry(NoBackoff(), 0)}
    return redis.Redis(
        connection_pool=redis.ConnectionPool(connection_class=kind, **given)
    )
