"""The protocol of collections, implemented with the collection of the fields."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

from tensordict import _rust
from tensordict.ops.display import DisplayOps, describe_fields
from tensordict.primitives.checks import inside
from tensordict.primitives.common import value_of
from tensordict.tensorclass.making import Making, around

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["OverCollection"]


def _forwarded(name: str, *, is_settable: bool = True) -> Any:
    """Make a property for the attribute ``name`` of the collection inside."""

    def read(self: Any) -> Any:
        return getattr(self._tensordict, name)

    def write(self: Any, value: object) -> None:
        setattr(self._tensordict, name, value)

    return property(read, write if is_settable else None)


def _is_none(value: Any) -> bool:
    """Return whether an entry is the value None, which stands for an unset field."""
    return value_of(value) is None


class OverCollection(Making):
    """The protocol of collections, implemented with the collection inside."""

    _batch_size = _forwarded("_batch_size")
    _device = _forwarded("_device")
    _td_dim_names = _forwarded("_td_dim_names")
    _is_memmap = _forwarded("_is_memmap")
    _is_shared = _forwarded("_is_shared")
    _memmap_prefix = _forwarded("_memmap_prefix")
    _is_locked = _forwarded("_is_locked")
    _lock_parents_weakrefs = _forwarded("_lock_parents_weakrefs", is_settable=False)

    # Entries --------------------------------------------------------------------------

    def _entries(self) -> dict[str, Any]:
        return self._tensordict._entries()

    def _get_entry(self, key: str, default: object) -> Any:
        return self._tensordict._get_entry(key, default)

    def _set_entry(self, key: str, value: object) -> None:
        if _is_none(value):
            self._unset_field(key)
        else:
            self._tensordict._set_entry(key, value)

    def _del_entry(self, key: str) -> None:
        self._tensordict._del_entry(key)

    def _make_child(self) -> Any:
        return self._tensordict._make_child()

    def _child_type(self) -> type[Any]:
        return self._tensordict._child_type()

    def _with_entries(self, entries: dict[str, Any]) -> Self:
        inner = self._tensordict
        if inner._is_dense:
            changed = _rust.new(
                type(inner),
                entries,
                inner._batch_size,
                inner._device,
                inner._td_dim_names,
            )
        else:
            changed = inner._with_entries(entries)
        return self._from_tensordict(changed)

    def _like(self, members: list[Any]) -> Self:
        # The members of a stack are plain collections.
        return self._from_tensordict(self._tensordict._like(members))

    def _writes_through(self) -> bool:
        return self._tensordict._writes_through()

    def _holders(self) -> list[Any]:
        return self._tensordict._holders()

    def _containers(self, out: list[Any]) -> None:
        _rust.containers(self._tensordict, out)

    def _children(self) -> list[Any]:
        return self._tensordict._children()

    def _sample_entries(self) -> dict[str, Any]:
        return self._tensordict._sample_entries()

    def _sample_entry(self, key: str) -> Any:
        return self._tensordict._sample_entry(key)

    def _update_parts(self, source: object, is_copy: bool = False) -> list[Any] | None:
        if not is_copy:
            self._check_mapping(source)
        return self._tensordict._update_parts(inside(source), is_copy)

    def _lazy_stack(self) -> Any:
        return self._tensordict._lazy_stack()

    def _align_leaves(self, other: object, out: list[Any], is_complete: bool) -> bool:
        return self._tensordict._align_leaves(inside(other), out, is_complete)

    def _leaf_batch_dims(self, out: list[int]) -> None:
        self._tensordict._leaf_batch_dims(out)

    def _spread(self, operand: torch.Tensor) -> list[torch.Tensor]:
        return self._tensordict._spread(operand)

    def _check_takes_entries(self) -> None:
        self._tensordict._check_takes_entries()

    def _write_into(self, *args: object) -> None:
        self._tensordict._write_into(*args)

    def _write_at(self, key: str, target: object, index: object, value: object) -> None:
        self._tensordict._write_at(key, target, index, value)

    # Operations on all leaves ---------------------------------------------------------

    def _map_leaves(self, *args: Any) -> Self:
        return around(type(self), _rust.map_leaves(self._tensordict, *args))

    def _split_leaves(self, *args: Any) -> list[Self]:
        return [
            around(type(self), part)
            for part in _rust.split_leaves(self._tensordict, *args)
        ]

    def _leaves(self, out: list[Any]) -> None:
        _rust.leaves(self._tensordict, out)

    def _taken(self, values: Iterator[Any]) -> list[Any]:
        """Take as many of the iterator's values as there are leaves."""
        iterator = iter(values)
        return [next(iterator) for _ in _rust.leaves(self._tensordict)]

    def _rebuild(self, values: Any, lock: bool) -> Self:
        leaves = self._taken(values)
        return around(type(self), _rust.rebuild(self._tensordict, leaves, True, lock))

    def _drop_empty(self) -> None:
        self._tensordict._drop_empty()

    def _rebuild_as(self, values: Any, cls: type, size: object) -> Self:
        leaves = self._taken(values)
        return around(type(self), _rust.rebuild_as(self._tensordict, leaves, cls, size))

    def _clone_structure(self) -> Self:
        return around(type(self), _rust.clone_structure(self._tensordict))

    def _index(self, index: object) -> Any:
        return around(type(self), self._tensordict._get_index(index))

    def _write_index(self, index: object, value: object) -> None:
        self._tensordict._write_index(index, value)

    # Joining --------------------------------------------------------------------------

    def _joined(self, tds: Sequence[CollectionProtocol], joined: Any) -> Any:
        """Wrap the result of joining, unless inputs are of other tensorclasses."""
        cls = type(self)
        same = all(
            isinstance(td, cls) or issubclass(cls, type(td))
            for td in tds
            if isinstance(td, Making)
        )
        return self._from_tensordict(joined) if same else joined

    def _stack_all(self, tds: Sequence[CollectionProtocol], dim: int) -> Any:
        return self._joined(tds, _rust.stack([inside(td) for td in tds], dim))

    def _cat_all(self, tds: Sequence[CollectionProtocol], dim: int) -> Any:
        return self._joined(tds, _rust.cat([inside(td) for td in tds], dim))

    def _stack_lazily(
        self, members: list[Any], dim: int, name: str | None, is_shown: bool = False
    ) -> Any:
        if any(type(member) is not type(self) for member in members):
            return super()._stack_lazily(members, dim, name, is_shown)
        inner = [member._tensordict for member in members]
        return around(type(self), inner[0]._stack_lazily(inner, dim, name))

    def _as_dense(self) -> Any:
        return self._tensordict._as_dense()

    def _as_plain(self) -> Self:
        return self._clone_structure()

    @property
    def stack_dim(self) -> int:
        """The dim of a lazy stack along which its members are stacked."""
        return self._tensordict.stack_dim

    @property
    def tensordicts(self) -> list[Any]:
        """The members of a lazy stack, as plain collections."""
        return self._tensordict.tensordicts

    def is_empty(self) -> bool:
        """Return whether there is no leaf."""
        return self._tensordict.is_empty()

    # Views, locks and writes ----------------------------------------------------------

    def _as_source(self) -> Any:
        return self._tensordict._as_source()

    def _get_sub_tensordict(self, idx: object) -> Any:
        return around(type(self), self._tensordict._get_sub_tensordict(idx))

    def _lock_tree(self, parents: tuple[Any, ...]) -> None:
        _rust.lock_tree(self._tensordict, parents)

    def _store_leaves(self, values: list[Any]) -> None:
        self._tensordict._store_leaves(values)

    def _hang(self, key: str, value: object) -> None:
        if _is_none(value):
            self._unset_field(key)
        else:
            self._tensordict._hang(key, value)

    def _set_path(
        self,
        path: tuple[str, ...],
        value: object,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        _rust.set_entry(
            self._tensordict,
            path,
            value,
            inplace,
            non_blocking,
            validated,
            ignore_lock,
        )

    def _apply_nest(self, fn: object, *others: object, **kwargs: object) -> Any:
        others = tuple(inside(other) for other in others)
        kwargs["out"] = inside(kwargs.get("out"))
        result = self._tensordict._apply_nest(fn, *others, **kwargs)
        if result is self._tensordict:
            return self
        return None if result is None else self._from_tensordict(result)

    def _refined(self, names: list[str | None], is_fresh: bool = False) -> Any:
        inner = self._tensordict._refined(names, is_fresh)
        return self if inner is self._tensordict else around(type(self), inner)

    def _resize_batch(self, size: torch.Size) -> None:
        self._tensordict._resize_batch(size)

    def _resized(self, op: object, size: torch.Size) -> Self:
        return around(type(self), self._tensordict._resized(op, size))

    def _new_tensors_from(self, data: object, options: dict[str, Any]) -> Self:
        return around(
            type(self), self._tensordict._new_tensors_from(inside(data), options)
        )

    def _replace_content(self, result: object) -> Self:
        self._tensordict._replace_content(inside(result))
        return self

    # Printing -------------------------------------------------------------------------

    def _repr_parts(self) -> list[str]:
        # Take properties from the collection inside: fields may have the same names.
        properties = DisplayOps._repr_properties(self._tensordict)
        return [*describe_fields(self._repr_entries()), *properties]

    def _nested_class(self, key: str, value: object) -> type[Any]:
        return self._tensordict._nested_class(key, value)

    def _repr_head(self) -> list[str]:
        return DisplayOps._repr_head(self._tensordict)

    def _repr_entries(self) -> list[tuple[str, Any]]:
        entries = self._tensordict._repr_entries()
        names = {name for name, _ in entries}
        missing = [name for name in self._field_names() if name not in names]
        declared: Any = type(self)
        hidden = {
            field.name for field in dataclasses.fields(declared) if not field.repr
        }
        printed = [*entries, *((name, None) for name in missing)]
        return [(name, value) for name, value in printed if name not in hidden]
