"""A collection whose tensors are in an object store: see :class:`RemoteTensorDict`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import torch

from tensordict import _rust
from tensordict.containers.elsewhere import KeptOutside, on_a_copy, refused
from tensordict.containers.lazy.column_stack import ColumnStack
from tensordict.containers.lazy.ragged_column import RaggedColumn
from tensordict.containers.lazy.stack import LazyStackedTensorDict
from tensordict.containers.remote.row_filler import RowFiller
from tensordict.containers.remote.taking import RemoteCells, remote_leaves, take
from tensordict.primitives import classes
from tensordict.primitives.checks import is_branch
from tensordict.primitives.common import more_refs
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.storage.remote.rows import rows_of_index
from tensordict.storage.remote.tensor import READ_LIMIT, check_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["RemoteTensorDict", "is_dense", "shown_as"]

MSG_READ_ONLY: Final = (
    "A RemoteTensorDict cannot be written to ({what}): what is in the store stays as it is. "
    "Take rows (td[rows]) or a copy with td.to_tensordict(), or write a new save."
)
MSG_REFUSED: Final = (
    "Cannot call `{name}` on a {owner}: its entries are in an object store. Take rows "
    "(td[rows]) or a copy with td.to_tensordict() first."
)


class _Unread:
    """A stand-in for values that are in the store."""

    def __repr__(self) -> str:
        return "<in the store>"


UNREAD = _Unread()


def shown_as(template: Any, limit: int) -> Any:
    """Show a collection of remote tensors as one that reads all entries at once."""
    if template._is_non_tensor:
        return template
    inner = template
    if not template._is_dense and "_tensordict" in template.__dict__:
        inner = template._tensordict
    shown = RemoteTensorDict._of(inner, limit)
    return shown if inner is template else type(template)._from_tensordict(shown)


def is_dense(td: Any) -> bool:
    """Return whether a collection in a store has dense tensordicts of tensors alone."""
    return isinstance(td, RemoteTensorDict) and _is_dense(td._template)


def _is_dense(template: Any) -> bool:
    if not template._is_dense:
        return False
    values = template._tensordict.values()
    return all(isinstance(value, torch.Tensor) or _is_dense(value) for value in values)


@classes.provided
class RemoteTensorDict(KeptOutside):
    """A collection whose tensors are in an object store, and are read when they are used.

    :meth:`TensorDict.load_memmap` makes one of a URL. Its batch size, and the shapes and
    dtypes of its entries, are known. ``td[rows]`` reads those rows of all entries at once, to
    an ordinary collection; ``td["a"]`` is a tensor that reads what it is indexed with. What
    needs all entries, such as ``td + 1``, reads all of them up to the ``read_limit`` of the
    load, and is an error beyond it. :meth:`to_tensordict` reads all of them, however many.

    Nothing is ever written to the store.
    """

    _is_dense: ClassVar[bool] = False

    _template: Any
    _limit: int
    _shown_children: dict[str, Any]
    _planned: Any = None

    contiguous: Any = on_a_copy()
    memmap_like: Any = on_a_copy()
    rename_key_: Any = refused(MSG_REFUSED)
    pop: Any = refused(MSG_REFUSED)
    popitem: Any = refused(MSG_REFUSED)
    clear: Any = refused(MSG_REFUSED)

    def __init__(self, *args: object, **kwargs: object) -> None:
        msg = (
            "A RemoteTensorDict is loaded: TensorDict.load_memmap('s3://bucket/data')."
        )
        raise TypeError(msg)

    @classmethod
    def _of(cls, template: Any, limit: int = READ_LIMIT) -> Self:
        made = cls.__new__(cls)
        made._template = template
        made._limit = limit
        made._shown_children = {}
        made._batch_size = template.batch_size
        made._device = template.device
        made._td_dim_names = list(template.names) if template._has_names() else None
        made.__dict__["_is_locked"] = True
        return made

    def __reduce__(self) -> Any:
        template = self._template
        if isinstance(template, ColumnStack):
            packed = template._columns, template._rows
            return _of_columns, (*packed, self._limit)
        return RemoteTensorDict._of, (template, self._limit)

    def __copy__(self) -> Self:
        return self._clone_structure()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._clone_structure()

    @property
    def urls(self) -> list[str]:
        """The objects that its entries are in, in their order.

        Examples:
            >>> import obstore, tempfile
            >>> from tensordict import TensorDict
            >>> td = TensorDict(a=torch.arange(3), batch_size=[3])
            >>> path = tempfile.mkdtemp() + "/data"
            >>> _ = td.memmap(path)
            >>> store = obstore.store.LocalStore(path)
            >>> [url.rpartition("/")[2] for url in TensorDict.load_memmap(store).urls]
            ['a.memmap']
        """
        return list(dict.fromkeys(leaf.url for leaf in remote_leaves(self._template)))

    # Reading --------------------------------------------------------------------------

    def _entries(self) -> dict[str, Any]:
        return {key: self._get_entry(key, None) for key in self._held_keys()}

    def _held_keys(self) -> dict[str, Any]:
        template = self._template
        if isinstance(template, ColumnStack) and not template._has_members:
            return dict.fromkeys(template._columns.entries)
        return dict.fromkeys(template._held_keys())

    def _get_entry(self, key: str, default: object) -> Any:
        child = self._shown_children.get(key)
        if child is not None:
            return child
        if key in self._ragged():
            chosen = self._template.select(key)
            return self._all_of(chosen, f"The entry {key!r}")[key]
        value = self._template._get_entry(key, default)
        if not is_branch(value):
            return value
        shown = shown_as(value, self._limit)
        if self._is_locked:
            _rust.lock_tree(shown, (*self._lock_parents_weakrefs, weakref.ref(self)))
        self._shown_children[key] = shown
        return shown

    @property
    def _is_stack(self) -> bool:
        """Return whether it is a lazy stack of members in the store."""
        stack = LazyStackedTensorDict
        is_stack = isinstance(self._template, stack)
        return is_stack and not isinstance(self._template, ColumnStack)

    def _ragged(self) -> dict[str, RaggedColumn]:
        """The columns of rows that differ in shape, which no tensor can show."""
        template = self._template
        if not isinstance(template, ColumnStack):
            return {}
        entries = template._columns.entries
        return {
            key: column
            for key, column in entries.items()
            if isinstance(column, RaggedColumn)
        }

    def _sample_entries(self) -> dict[str, Any]:
        return {key: self._sample_entry(key) for key in self._held_keys()}

    def _sample_entry(self, key: str) -> Any:
        column = self._ragged().get(key)
        if column is None and self._is_stack:
            # The sample of one member: a stack would read all members.
            return self._template._sample_entry(key)
        if column is None:
            return self._get_entry(key, NO_DEFAULT)
        if column.encoding is None:
            # Its type and number of rows are right, and it has no item.
            sizes = [len(column.table), *[0] * column.table.shape[1]]
            return torch.empty(sizes, dtype=column.values.dtype)
        return self._unread()

    def _unread(self) -> Any:
        """Make a stand-in for values that are not read."""
        return self._non_tensor_type._of([UNREAD], 0, self._batch_size, self._device)

    def _leaves(self, out: list[Any]) -> None:
        if self._is_stack:
            # The leaves of the members: stacked entries would be read.
            self._template._leaves(out)
        else:
            super()._leaves(out)

    def _align_leaves(self, other: Any, out: list[Any], is_complete: bool) -> bool:
        if self._is_stack:
            return bool(self._template._align_leaves(other, out, is_complete))
        return super()._align_leaves(other, out, is_complete)

    def _spread(self, operand: torch.Tensor) -> list[torch.Tensor]:
        spread: Any = self._template if self._is_stack else super()
        return list(spread._spread(operand))

    def _leaf_batch_dims(self, out: list[int]) -> None:
        dims: Any = self._template if self._is_stack else super()
        dims._leaf_batch_dims(out)

    def _save_plan(self, plan: object, level: int) -> None:
        self._planned = self._shown()
        self._planned._save_plan(plan, level)

    def _saved(self, leaves: Any, directory: Any, inplace: bool) -> Any:
        planned, self._planned = self._planned, None
        return planned._saved(leaves, directory, inplace)

    def _children(self) -> list[Any]:
        ragged = self._ragged()
        found = (
            self._get_entry(key, None) for key in self._held_keys() if key not in ragged
        )
        if self._is_stack:
            return []
        return [value for value in found if isinstance(value, CollectionProtocol)]

    def get(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any:
        """Read the entry at ``key``; rows that differ in shape in the form asked for."""
        if kwargs.keys() - {"default"}:
            chosen = self._template.select(key, strict=False)
            return self._all_of(chosen, f"The entry {key!r}").get(key, *args, **kwargs)
        return super().get(key, *args, **kwargs)

    def _all_of(self, template: Any, what: str) -> Any:
        """Read all of a collection, if that is not more than the limit."""
        leaves = list(remote_leaves(template))
        if leaves:
            check_limit(what, leaves, self._limit)
        return take(template)

    def _shown_as_is(self) -> Any:
        return self._all_of(self._template, "This operation")

    def _shown(self) -> Any:
        return self._shown_as_is()

    def _with_entries(self, entries: dict[str, Any]) -> Any:
        made = super()._with_entries(entries)
        made._device = self._device
        return made

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Read all entries to an ordinary collection, however large they are."""
        return take(self._template).to_tensordict(retain_none=retain_none)

    def _index(self, index: object) -> Any:
        found = rows_of_index(index, self._batch_size) if self._batch_size else None
        if found is None:
            return self._shown_as_is()[index]
        read = take(self._template, found.rows)
        is_picked = found.rest is None and not isinstance(index, slice)
        if is_picked and isinstance(read, ColumnStack):
            # The stack has members that were made, as one of files has.
            return read[torch.arange(len(found.rows))]
        return found.taken_from(read)

    def _picked(self, rows: np.ndarray[Any, Any]) -> Any:
        """Read rows to a collection of the kind of the save."""
        return take(self._template, rows)

    def _row_filler(self) -> RowFiller | None:
        """Return the reader of rows into memory that is used again.

        None if there is more in it than tensors in tensordicts.
        """
        return RowFiller.of(self._template)

    def _get_index(self, index: object) -> Any:
        return self._index(index)

    def get_at(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any:
        """Read a part of the entry at ``key``, and no more."""
        return super().get_at(key, *args, **kwargs)

    def select(
        self, *keys: NestedKeyLike, inplace: bool = False, strict: bool = True, **_: Any
    ) -> RemoteTensorDict:
        """Keep the entries at ``keys``: a remote collection of them. Nothing is read."""
        if inplace:
            raise RuntimeError(MSG_READ_ONLY.format(what="select(inplace=True)"))
        return self._like_template(self._template.select(*keys, strict=strict))

    def exclude(self, *keys: NestedKeyLike, inplace: bool = False) -> RemoteTensorDict:
        """Leave the entries at ``keys`` out: a remote collection. Nothing is read."""
        if inplace:
            raise RuntimeError(MSG_READ_ONLY.format(what="exclude(inplace=True)"))
        return self._like_template(self._template.exclude(*keys))

    def _like_template(self, template: Any) -> RemoteTensorDict:
        return RemoteTensorDict._of(template, self._limit)

    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        return bool(self._template.is_empty())

    def clone(self, recurse: bool = True, **_: object) -> Any:
        """Read all entries up to the limit; without ``recurse``, another remote one."""
        return self._shown() if recurse else self._clone_structure()

    def _clone_structure(self) -> Self:
        return self._of(self._template, self._limit)

    def _repr_entries(self) -> list[tuple[str, Any]]:
        # Nothing is read for a text.
        ragged = self._ragged()
        shown = []
        for key in sorted(self._held_keys()):
            value = self._unread() if key in ragged else self._sample_entry(key)
            cells = getattr(value, "_cells", None)
            shown.append(
                (key, self._unread() if isinstance(cells, RemoteCells) else value)
            )
        return shown

    def _lock_tree(self, parents: tuple[Any, ...] = ()) -> None:
        self._is_locked = True
        if parents:
            self._lock_parents_weakrefs = more_refs(
                self._lock_parents_weakrefs, parents
            )
        inner = (*parents, weakref.ref(self))
        for child in self._shown_children.values():
            _rust.lock_tree(child, inner)

    # Nothing is written -----------------------------------------------------------------

    def _refuse_write(self, what: str) -> Any:
        raise RuntimeError(MSG_READ_ONLY.format(what=what))

    def _set_path(self, path: tuple[str, ...], *args: Any, **kwargs: Any) -> None:
        key = path[0] if len(path) == 1 else path
        self._refuse_write(f"the entry {key!r}")

    def _set_entry(self, key: str, value: object) -> None:
        self._refuse_write(f"the entry {key!r}")

    def _check_entry(self, key: str, value: object) -> None:
        self._refuse_write(f"the entry {key!r}")

    def _del_entry(self, key: str) -> None:
        self._refuse_write(f"the entry {key!r}")

    def _make_child(self) -> Any:
        return self._refuse_write("a nested collection")

    def _store_from(self, values: Iterator[Any]) -> None:
        self._refuse_write("an operation in place")

    def _write_index(self, index: object, value: object) -> None:
        self._refuse_write("rows")

    def _copy_into(self, source: object, keys: object, non_blocking: bool) -> None:
        self._refuse_write("update_")

    def _resize_batch(self, size: torch.Size) -> None:
        self._refuse_write("batch_size")


def _of_columns(columns: Any, rows: range, limit: int) -> RemoteTensorDict:
    return RemoteTensorDict._of(ColumnStack.of_columns(columns, rows), limit)
