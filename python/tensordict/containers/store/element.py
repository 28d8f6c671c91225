"""A member of a lazy stack on a server: a view that reads and writes there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from tensordict import _rust
from tensordict.containers.store.common import StoreBase
from tensordict.containers.store.encoding import Meta, bytes_of, tensor_of_bytes
from tensordict.containers.store.scripts import get_pieces
from tensordict.containers.store.stacked import Leaf, encode_members
from tensordict.containers.store.writes import build, collect, keys_below
from tensordict.primitives.errors import locked_error
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from tensordict.containers.dense import TensorDict
    from tensordict.containers.store.encoding import Encoded
    from tensordict.containers.store.lazy import LazyStackedTensorDictStore
    from tensordict.containers.store.tree import Tree
    from tensordict.containers.store.writes import Snapshot

__all__ = ["_StoreStackElementView"]

MSG_DELETE = (
    "Cannot delete keys from a stack element view. Delete from the parent "
    "LazyStackedTensorDictStore instead."
)
MSG_STATE = (
    "The {} of a stack element view belongs to all members of the stack. Set it on the "
    "parent LazyStackedTensorDictStore instead."
)


class _StoreStackElementView(StoreBase):
    """A member of a lazy stack on a server. An entry is read only when it is asked for.

    A new entry becomes zeros in the other members; a locked stack refuses it. Existing
    entries keep their shapes.

    Args:
        stack: the store.
        number: the index of the member in the stack.
    """

    def __init__(self, stack: LazyStackedTensorDictStore, number: int) -> None:
        self._stack = stack
        self._number = number
        self._server = stack._server

    @property
    def _batch_size(self) -> torch.Size:
        return self._stack._inner_batch_size

    @_batch_size.setter
    def _batch_size(self, size: torch.Size) -> None:
        if size != self._batch_size:
            raise RuntimeError(MSG_STATE.format("batch size"))

    @property
    def _device(self) -> torch.device | None:
        return self._stack._reads_to

    @_device.setter
    def _device(self, device: torch.device | None) -> None:
        if device != self._device:
            raise RuntimeError(MSG_STATE.format("device"))

    @property
    def _td_dim_names(self) -> list[str | None] | None:
        names = self._stack._names
        if names is None:
            return None
        rest = list(names)
        del rest[self._stack._stack_dim]
        return rest if any(name is not None for name in rest) else None

    @_td_dim_names.setter
    def _td_dim_names(self, names: list[str | None] | None) -> None:
        if names != self._td_dim_names:
            raise RuntimeError(MSG_STATE.format("names"))

    # Reading --------------------------------------------------------------------------

    def _leaf(self, path: str, meta: Meta) -> Leaf:
        return self._stack._leaf(path, meta)

    def _read(self, paths: Any) -> tuple[Tree, dict[str, Any]]:
        """Read the entries at the paths that the function ``paths`` chooses."""
        number = self._number

        def plan(tree: Tree) -> list[tuple[Any, ...]]:
            commands = []
            for path in paths(tree):
                meta = tree.metas[path]
                leaf = self._leaf(path, meta)
                key = self._server.data_key(path)
                piece = leaf.piece(number) if meta.is_tensor else None
                if piece is None:
                    commands.append(("GET", key))
                else:
                    commands.append(get_pieces(key, [piece]))
            return commands

        tree, answers = self._server.read(plan)
        values = {}
        for path, data in zip(paths(tree), answers, strict=True):
            meta = tree.metas[path]
            if not meta.is_tensor:
                stacked = self._stack._value(path, meta, data)
                values[path] = stacked.unbind(self._stack._stack_dim)[number]
                continue
            leaf = self._leaf(path, meta)
            if leaf.piece(number) is None:
                values[path] = leaf.members(data, self._device)[number]
            else:
                dtype: Any = meta.dtype
                shape = leaf.shape_of(number)
                values[path] = tensor_of_bytes(path, data, shape, dtype, self._device)
        return tree, values

    def _built(self, values: dict[str, Any], prefix: str = "") -> Any:
        leaves = {key: values[path] for key, path in keys_below(prefix, values).items()}
        state = (self._batch_size, self._device, self._td_dim_names)
        return build(leaves, {}, state)

    def _shown_as_is(self) -> TensorDict:
        return self._built(self._read(lambda tree: list(tree.metas))[1])

    def _blank(self) -> TensorDict:
        return self._shown_as_is()

    def _entries(self) -> dict[str, Any]:
        return dict(self._shown_as_is()._entries())

    def _sample_entries(self) -> dict[str, Any]:
        return self._entries()

    def _get_entry(self, key: str, default: object) -> Any:
        def chosen(tree: Tree) -> list[str]:
            return [key] if key in tree.metas else list(tree.below(key))

        _, values = self._read(chosen)
        if key in values:
            return values[key]
        return self._built(values, key) if values else default

    # Writing --------------------------------------------------------------------------

    def _take(self, source: CollectionProtocol) -> None:
        """Write the entries of a collection into this member."""
        entries: dict[str, Any] = {}
        collect("", source, (source.batch_size, None), entries, {})
        self._write(entries)

    def _write(self, entries: dict[str, Any]) -> None:
        """Write leaves by path: existing ones in place, new ones for all members."""
        tree = self._server.tree()
        new = {path: value for path, value in entries.items() if path not in tree.metas}
        if new and self._stack.is_locked:
            raise locked_error(self._stack)
        replaced: dict[str, Any] = {}
        parts: dict[str, torch.Tensor] = {}
        for path, value in entries.items():
            if path in new:
                replaced[path] = self._new(path, value)
            elif type(value) is torch.Tensor and tree.metas[path].is_tensor:
                leaf = self._leaf(path, tree.metas[path])
                value.expand(leaf.shape_of(self._number))
                parts[path] = value
            else:
                replaced[path] = self._replaced(path, value)
        if parts:
            self._server.write_pieces(lambda tree: self._pieces(tree, parts))
        if replaced:
            self._server.write(replaced)

    def _pieces(self, tree: Tree, parts: dict[str, Any]) -> list[tuple[str, int, Any]]:
        pieces: list[tuple[str, int, Any]] = []
        for path, value in parts.items():
            meta = tree.metas[path]
            leaf = self._leaf(path, meta)
            dtype: Any = meta.dtype
            filled = value.expand(leaf.shape_of(self._number)).to(dtype)
            piece = leaf.piece(self._number)
            if piece is not None:
                pieces.append((path, piece[0], bytes_of(filled)))
            else:
                rows = leaf.rows_of(self._number)
                pieces += rows.written(path, filled, meta, self._stack._stack_dim + 1)
        return pieces

    def _new(self, path: str, value: Any) -> Encoded:
        if type(value) is torch.Tensor:
            filler: Any = torch.zeros_like(value)
        else:
            filler = value._non_tensor_type(None, batch_size=value.batch_size)
        values = [filler] * self._stack._count
        values[self._number] = value
        return encode_members(path, values)

    def _replaced(self, path: str, value: object) -> Encoded:
        stacked = self._stack._get_entry(path, NO_DEFAULT)
        values = list(stacked.unbind(self._stack._stack_dim))
        values[self._number] = value
        return encode_members(path, values)

    def _store_snapshot(self, snapshot: Snapshot) -> None:
        changed, gone, _ = snapshot.changes()
        if gone:
            raise RuntimeError(MSG_DELETE)
        self._write(changed)

    def _set_entry(self, key: str, value: object) -> None:
        entries: dict[str, Any] = {}
        above = (self._batch_size, None)
        collect(self._server.path_to("", (key,)), value, above, entries, {})
        self._write(entries)

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
            if plain.is_locked:
                plain.unlock_()
            plain._set_path(path, value, inplace, non_blocking, validated, ignore_lock)

    def _store_leaves(self, values: list[Any]) -> None:
        tree = self._server.last_tree()
        keys = keys_below("", tree.metas).values()
        paths = [path for path in keys if tree.metas[path].is_tensor]
        self._write(dict(zip(paths, values, strict=True)))

    def _del_entry(self, key: str) -> NoReturn:
        raise RuntimeError(MSG_DELETE)

    def rename_key_(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise an error: all members have the same keys."""
        raise RuntimeError(MSG_DELETE)

    def entry_class(self, key: Any) -> type:
        """Return the type of an entry as it is read; nested collections are copies."""
        return type(_rust.get(self, key))

    def clone(self, recurse: bool = True, **kwargs: object) -> Any:
        """Copy the entries to an ordinary collection."""
        return self._shown().clone(recurse, **kwargs)

    def _clone_structure(self) -> Any:
        return self._shown()

    def empty(self, *args: object, **kwargs: object) -> Any:
        """Return an ordinary collection like this one, without leaves."""
        return self._built({}).empty(*args, **kwargs)

    def close(self) -> None:
        """Do nothing: the stack owns the connection."""

    def clear_redis(self) -> NoReturn:
        """Raise an error: all members have the same keys."""
        raise RuntimeError(MSG_DELETE)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store and the index of the member."""
        return _StoreStackElementView, (self._stack, self._number)

    def __repr__(self) -> str:
        return (
            f"_StoreStackElementView(\n"
            f"    parent_td_id={self._server.td_id!r},\n"
            f"    element_idx={self._number},\n"
            f"    keys={list(self._held_keys())},\n"
            f"    batch_size={self._batch_size},\n"
            f"    device={self._device})"
        )


_StoreStackElementView.__module__ = "tensordict.store._store"
