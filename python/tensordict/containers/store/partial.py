"""Reading and writing only the bytes of the rows at an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.store.common import StoreBase
from tensordict.containers.store.ranges import Rows
from tensordict.containers.store.scripts import get_pieces
from tensordict.containers.store.tree import KEY_SEPARATOR, Tree
from tensordict.containers.store.writes import collect, keys_below
from tensordict.primitives.checks import is_branch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.containers.store.encoding import Meta
    from tensordict.primitives.protocol import CollectionProtocol, NestedKeyLike

__all__ = ["PartialReads", "expanded", "sample"]


class PartialReads(StoreBase):
    """The part of a store that reads and writes rows at an index of the batch dims."""

    _size: torch.Size
    _prefix: str
    _reads_to: torch.device | None

    if TYPE_CHECKING:

        def _path(self, *key: str) -> str: ...
        def _built(self, leaves: dict[tuple[str, ...], Any], tree: Tree) -> Any: ...
        def _decoded_below(
            self, path: str, meta: Meta, data: dict[str, Any], tree: Tree
        ) -> Any: ...

    def _rows(self, index: object) -> Rows | None:
        """Return the rows at an index, or None if the index exceeds the batch dims."""
        try:
            return Rows(self._size, index)
        except (IndexError, TypeError, ValueError):
            return None

    def _get_index(self, index: Any) -> Any:
        if _rust.index_plan(self._size, index) is None:
            return self
        rows = self._rows(index)
        if rows is None or self._server.in_batch:
            return self._shown()[index]
        prefix = self._prefix
        ndim = len(self._size)

        def plan(tree: Tree) -> list[tuple[Any, ...]]:
            commands = []
            for path, meta in tree.below(prefix).items():
                key = self._server.data_key(path)
                if not meta.has_rows:
                    commands.append(("GET", key))
                else:
                    pieces = rows.pieces(_row_bytes(meta, ndim))
                    commands.append(get_pieces(key, pieces))
            return commands

        tree, answers = self._server.read(plan)
        metas = tree.below(prefix)
        data = dict(zip(metas, answers, strict=True))
        leaves_by_key: dict[tuple[str, ...], Any] = {}
        parts = []
        for key, path in keys_below(prefix, metas).items():
            meta = metas[path]
            if not meta.has_rows:
                leaves_by_key[key] = self._decoded_below(path, meta, data, tree)
            else:
                leaves_by_key[key] = sample(meta, expanded, self)
                parts.append(rows.read(path, data[path], meta, ndim, self._reads_to))
        # Indexing a plain collection gives the result's structure and the index errors.
        shown = self._built(leaves_by_key, tree)[index]
        values = iter(parts)
        leaves = [
            leaf if type(leaf) is not torch.Tensor else next(values)
            for leaf in _rust.leaves(shown)
        ]
        return _rust.rebuild(shown, leaves, True, False)

    def get_at(self, key: NestedKeyLike, *args: object, **kwargs: object) -> Any:
        """Read the part of an entry at an index, and nothing else of it.

        See ``TensorDict.get_at``.
        """
        if len(args) == 1 and not kwargs:
            part = self._part(key, args[0])
            if part is not None:
                return part
        return super().get_at(key, *args, **kwargs)

    def _part(self, key: object, index: object) -> torch.Tensor | None:
        """Read only the part of a tensor; return None if that is impossible."""
        keys = _rust.unravel_key_to_tuple(key)
        rows = self._rows(index)
        if not keys or rows is None or self._server.in_batch:
            return None
        path = self._path(*keys)
        ndim = len(self._size)

        def plan(tree: Tree) -> list[tuple[Any, ...]]:
            meta = tree.metas.get(path)
            if meta is None or not meta.has_rows:
                return []
            pieces = rows.pieces(_row_bytes(meta, ndim))
            return [get_pieces(self._server.data_key(path), pieces)]

        tree, answers = self._server.read(plan)
        if not answers:
            return None
        return rows.read(path, answers[0], tree.metas[path], ndim, self._reads_to)

    def _write_index(self, index: object, value: object) -> None:
        if not self._write_rows(index, value):
            super()._write_index(index, value)

    def _write_rows(self, index: object, value: Any) -> bool:
        """Write tensors into the rows at an index; return whether that was possible."""
        rows = self._rows(index)
        if rows is None or self._server.in_batch or not is_branch(value):
            return False
        entries: dict[str, Any] = {}
        if value.batch_size != rows.shape:
            return False
        collect("", value, (value.batch_size, None), entries, {})
        if not all(type(tensor) is torch.Tensor for tensor in entries.values()):
            return False
        return self._write_parts(rows, entries)

    def _write_parts(self, rows: Rows, entries: dict[str, torch.Tensor]) -> bool:
        """Write tensors into rows of existing entries; return whether it was done."""
        ndim = len(self._size)
        done = True

        def plan(tree: Tree) -> list[tuple[str, int, Any]]:
            nonlocal done
            pieces: list[tuple[str, int, Any]] = []
            for key, value in entries.items():
                path = self._path(key)
                meta = tree.metas.get(path)
                if meta is None or not meta.has_rows:
                    done = False
                    return []
                stored_shape: Any = meta.shape
                shape = torch.Size([*rows.shape, *stored_shape[ndim:]])
                pieces += rows.written(path, value.expand(shape), meta, ndim)
            return pieces

        self._server.write_pieces(plan)
        return done

    def set_at_(
        self,
        key: NestedKeyLike,
        value: object,
        index: object,
        *,
        non_blocking: bool = False,
    ) -> Self:
        """Write a tensor into a part of an entry, and send only that part.

        See ``TensorDict.set_at_``.
        """
        keys = _rust.unravel_key_to_tuple(key)
        rows = self._rows(index)
        if (
            keys
            and rows is not None
            and type(value) is torch.Tensor
            and not self._server.in_batch
            and self._write_parts(rows, {KEY_SEPARATOR.join(keys): value})
        ):
            return self
        with self._rewriting() as plain:
            plain.set_at_(key, value, index, non_blocking=non_blocking)
        return self


def sample(
    meta: Meta, make: Callable[..., torch.Tensor], owner: CollectionProtocol
) -> Any:
    """Call ``make`` with the shape and dtype of an entry."""
    shape: Any = meta.shape
    tensor = make(torch.Size(shape), dtype=meta.dtype, device=owner.device)
    kind = meta.kind
    return tensor if kind is None else kind.of_plain(tensor, owner.batch_size)


def expanded(shape: torch.Size, **options: Any) -> torch.Tensor:
    """Make a tensor of a shape that uses the memory of one element."""
    return torch.zeros((), **options).expand(shape)


def _row_bytes(meta: Meta, ndim: int) -> int:
    shape: Any = meta.shape
    dtype: Any = meta.dtype
    return torch.Size(shape[ndim:]).numel() * dtype.itemsize
