"""Making stores from collections, mappings and schemas, and opening existing stores."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.containers.store.common import device_of
from tensordict.containers.store.encoding import fields_of
from tensordict.containers.store.opened import OpenedStore
from tensordict.containers.store.server import Server
from tensordict.containers.store.tensorclasses import class_named
from tensordict.containers.store.writes import collect
from tensordict.primitives.checks import is_tensorclass
from tensordict.primitives.errors import KeyMessageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensordict.containers.store.lazy import LazyStackedTensorDictStore


__all__ = ["MSG_NO_STORE", "StoreConstructors"]

MSG_NO_STORE = "No {} with td_id={!r} found at {} (prefix={!r})."
MSG_SCHEMA = (
    "The schema gives the entry {!r} as {!r}. Pass a pair: the shape after the batch "
    "dims, and the dtype."
)


class StoreConstructors(OpenedStore):
    """The class methods that make or open a store."""

    if TYPE_CHECKING:

        def _header(self, cls: type | None = None) -> list[tuple[Any, ...]]: ...
        def _write(
            self,
            entries: dict[str, Any],
            removed: Iterable[str],
            extra: dict[str, Any],
            commands: Sequence[tuple[Any, ...]] = (),
        ) -> None: ...

    @classmethod
    def from_tensordict(
        cls,
        td: Any,
        *,
        backend: str = "redis",
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        unix_socket_path: str | None = None,
        prefix: str = "tensordict",
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ) -> LazyStackedTensorDictStore | Self:
        """Copy a collection to a new store, in one round trip.

        Args:
            td: the collection. The server also records the class of a tensorclass, and
                :meth:`from_store` returns that class.
            backend: see the class.
            host: see the class.
            port: see the class.
            db: see the class.
            unix_socket_path: see the class.
            prefix: see the class.
            device: the device to which tensors are read. Default: the device of ``td``.
            **kwargs: further arguments of the class, such as ``client`` and ``td_id``.

        Returns:
            A store, or a :class:`LazyStackedTensorDictStore` for a lazy stack.
        """
        address: dict[str, Any] = {
            "backend": backend,
            "host": host,
            "port": port,
            "db": db,
            "unix_socket_path": unix_socket_path,
            "prefix": prefix,
        }
        if isinstance(td, LazyStackedTensorDict):
            from tensordict.containers.store.lazy import LazyStackedTensorDictStore

            return LazyStackedTensorDictStore.from_lazy_stack(
                td, device=device, **address, **kwargs
            )
        server = Server(**address, **kwargs)
        device = td.device if device is None else device_of(device)
        return cls._uploaded(server, td, device)

    @classmethod
    def _uploaded(cls, server: Server, td: Any, device: torch.device | None) -> Self:
        """Make a store with copies of a collection's entries."""
        kind = type(td) if is_tensorclass(td) else None
        plain = td._tensordict if kind is not None else td
        names = list(td.names) if td._has_names() else None
        store = cls._opened(server, td.batch_size, device, names=names)
        entries: dict[str, Any] = {}
        extra: dict[str, Any] = {} if names is None else {"": {"names": names}}
        collect("", plain, (td.batch_size, names), entries, extra)
        store._write(entries, (), extra, store._header(kind))
        return store

    @classmethod
    def from_dict(  # type: ignore[override]
        cls,
        input_dict: Any,
        *,
        backend: str = "redis",
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        unix_socket_path: str | None = None,
        prefix: str = "tensordict",
        auto_batch_size: bool = False,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | None = None,
        batch_dims: int | None = None,
        names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> LazyStackedTensorDictStore | Self:
        """Copy a mapping to a new store. See ``TensorDict.from_dict`` and the class."""
        td = TensorDict.from_dict(
            input_dict,
            auto_batch_size=auto_batch_size,
            batch_size=batch_size,
            device=device,
            batch_dims=batch_dims,
            names=names,
        )
        return cls.from_tensordict(
            td,
            backend=backend,
            host=host,
            port=port,
            db=db,
            unix_socket_path=unix_socket_path,
            prefix=prefix,
            **kwargs,
        )

    @classmethod
    def from_schema(  # type: ignore[override]
        cls,
        schema: dict[Any, tuple[Any, torch.dtype]],
        *,
        batch_size: Sequence[int] | None = None,
        backend: str = "redis",
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        unix_socket_path: str | None = None,
        prefix: str = "tensordict",
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ) -> Self:
        """Make a store of zeros. The server allocates them.

        Args:
            schema: a pair of shape ``[*F]`` and dtype for each key. Keys may be nested.
                An entry has the shape ``[*B, *F]``.
            batch_size: the batch size ``[*B]``.
            backend: see the class.
            host: see the class.
            port: see the class.
            db: see the class.
            unix_socket_path: see the class.
            prefix: see the class.
            device: see the class.
            **kwargs: further arguments of the class, such as ``client`` and ``td_id``.

        Raises:
            TypeError: an item of the schema is not a pair of a shape and a dtype.
        """
        server = Server(
            backend=backend,
            host=host,
            port=port,
            db=db,
            unix_socket_path=unix_socket_path,
            prefix=prefix,
            **kwargs,
        )
        size = torch.Size(batch_size or ())
        store = cls._opened(server, size, device_of(device))
        commands = store._header()
        for key, item in schema.items():
            path = server.path_to("", _rust.unravel_key_to_tuple(key))
            try:
                shape, dtype = item
                fields = fields_of([*size, *shape], dtype)
                count = torch.Size([*size, *shape]).numel() * dtype.itemsize
            except (AttributeError, TypeError, ValueError):
                raise TypeError(MSG_SCHEMA.format(key, item)) from None
            data, meta = server.data_key(path), server.meta_key(path)
            commands.append(("SET", data, b""))
            if count:
                commands.append(("SETRANGE", data, count - 1, b"\0"))
            flat = [part for pair in fields.items() for part in pair]
            commands.append(("HSET", meta, *flat))
            commands.append(("SADD", server.key("__keys__"), path))
        server.write({}, commands=commands)
        return store

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
        tensorclass_cls: type | str | None = None,
        **kwargs: Any,
    ) -> Any:
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
            tensorclass_cls: the tensorclass to wrap the store in, or its path
                ``"module.ClassName"``. Default: the class that the server records, if
                any.
            **kwargs: further arguments of the class, such as ``client``.

        Returns:
            A store, or a tensorclass around it.

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
        header = ("__batch_size__", "__device__", "__tensorclass__")
        tree, size, device_name, kind = server.read_header(*header)
        if size is None:
            where = (cls.__name__, td_id, server.address, prefix)
            raise KeyMessageError(MSG_NO_STORE.format(*where))
        if device is None and device_name:
            device = device_name.decode()
        names = tree.extra.get("", {}).get("names")
        store = cls._opened(
            server, torch.Size(json.loads(size)), device_of(device), names=names
        )
        if tensorclass_cls is None and kind is not None:
            tensorclass_cls = kind.decode()
        if tensorclass_cls is None:
            return store
        return class_named(tensorclass_cls)._from_tensordict(store)
