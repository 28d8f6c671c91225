"""The protocol of a tensordict: the methods that :mod:`tensordict.ops` is written with.

The public methods live in :mod:`tensordict.ops`, one file for each topic, and use
tensordicts only through this protocol. The walks (over nested dictionaries, calling
torch on each leaf) are primitives in ``tensordict._rust``. Each has a Python function
of the same name in :mod:`tensordict.primitives`.

A *dense* tensordict (``_is_dense`` is true) keeps its state in four plain
attributes of its instance dictionary, which the primitives read and write
directly:

==================  =====================================================
``_tensordict``     ``dict[str, value]``: the entries
``_batch_size``     ``torch.Size``
``_device``         ``torch.device | None``
``_td_dim_names``   ``list[str | None] | None``: None if no dim has a name
==================  =====================================================

Further attributes are set only if they differ from their defaults, which are class
attributes: ``_is_locked``, ``_lock_parents_weakrefs``, ``_last_op``, ``_is_memmap``,
``_is_shared``, ``_memmap_prefix``.

Any other class overrides the methods of :class:`CollectionProtocol` that have the name
of a primitive. If a primitive meets such a tensordict, at the root or nested, it calls
that method with its own arguments instead of walking the tensordict.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from tensordict import _rust

if TYPE_CHECKING:
    import types
    import weakref
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    import numpy as np
    import torch

__all__ = [
    "KEEP",
    "NONE_IF_MISSING",
    "NO_DEFAULT",
    "CollectionProtocol",
    "NestedKeyLike",
    "PartsProtocol",
    "StackProtocol",
    "as_stack",
]

NestedKeyLike = str | tuple[Any, ...]

if TYPE_CHECKING:
    _Array: TypeAlias = torch.Tensor | np.ndarray[Any, Any] | list[int] | list[bool]
    _IndexPart: TypeAlias = int | slice | _Array | range | types.EllipsisType | None
    BatchIndex: TypeAlias = _IndexPart | tuple[_IndexPart, ...]
    """The types of an index along the batch dims, as far as types differ from those
    of a key."""
    _Dims: TypeAlias = int | tuple[int, ...]
    _IsLeaf: TypeAlias = Callable[[type], bool] | None


class _NoDefault(enum.IntEnum):
    """The type of :data:`NO_DEFAULT`, which marks an argument that was not passed."""

    ZERO = 0


NO_DEFAULT = _NoDefault.ZERO


class _Missing(enum.IntEnum):
    """The type of :data:`NONE_IF_MISSING`."""

    NONE = 0


NONE_IF_MISSING = _Missing.NONE
"""A default of ``get``: None for a missing entry, but an error below a leaf."""

MSG_REFINED = "refine_names: cannot coerce TensorDict names {} with {}."

KEEP = True
"""A value of ``names`` for primitives: each tensordict keeps its own names."""


class CollectionProtocol:
    """The operations that a class of tensordict provides to :mod:`tensordict.ops`.

    Dense tensordicts use the native primitives. For any other class, the primitives
    call the methods of this class.
    """

    # No `__dict__` here, but in a class of `containers`: compiled code sets the dictionary
    # of each tensordict that it makes, and guards all classes before the one with it.
    __slots__ = ()

    _is_dense: ClassVar[bool] = False
    """True if the primitives may read the four state attributes directly."""

    _plain_type: ClassVar[Any]
    """The dense class itself, not a subclass: the type of results of comparisons."""

    _non_tensor_type: ClassVar[Any]
    """The class of non-tensor data with one object for all rows."""

    _non_tensor_stack_type: ClassVar[Any]
    """The class of non-tensor data with one object for each row."""

    _is_non_tensor: ClassVar[bool] = False
    """True for non-tensor data: walks do not enter it."""

    _is_one: ClassVar[bool] = False
    """True for non-tensor data with one value that all rows share."""

    _printed_nested_as: str | None = None
    """The class name in the long printed form of a nested one; None for its own
    name."""

    _has_exclusive_keys: ClassVar[bool] = False
    """True for a lazy stack whose members have keys that others lack."""

    _is_locked: bool = False
    _is_memmap: bool = False
    _is_shared: bool = False
    _memmap_prefix: Any = None
    _last_op: tuple[Any, ...] | None = None
    _locked_schema: ClassVar[None] = None
    _consolidated: dict[str, Any] | None = None
    _lock_parents_weakrefs: list[weakref.ref[Any]] | tuple[()] = ()

    _tensordict: dict[str, Any]
    _batch_size: torch.Size
    _device: torch.device | None
    _td_dim_names: list[str | None] | None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Mark the class for torch and for walks, which detect special values by it."""
        return NotImplemented

    # Methods of other topics ------------------------------------------------
    if TYPE_CHECKING:
        # For annotations only: each of these methods lives in one file of ops/.

        @property
        def batch_size(self) -> torch.Size: ...
        @batch_size.setter
        def batch_size(self, value: Sequence[int]) -> None: ...
        @property
        def batch_dims(self) -> int: ...
        @property
        def device(self) -> torch.device | None: ...
        @device.setter
        def device(self, value: Any) -> None: ...
        @property
        def names(self) -> list[str | None]: ...
        @names.setter
        def names(self, value: Sequence[str | None] | None) -> None: ...
        @property
        def is_locked(self) -> bool: ...
        @is_locked.setter
        def is_locked(self, value: bool) -> None: ...
        def __iter__(self) -> Iterator[Self]: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __setitem__(self, index: object, value: object) -> None: ...

        def _apply_with(
            self,
            fn: Callable[..., Any],
            others: tuple[Any, ...] = (),
            batch_size: Sequence[int] | None = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any: ...
        def _as_plain(self) -> CollectionProtocol: ...
        def _check_takes_entries(self) -> None: ...
        @classmethod
        def _from_plain(
            cls, made: object, source: object = None
        ) -> CollectionProtocol: ...
        def _get_index(self, index: object) -> CollectionProtocol: ...
        def _has_names(self) -> bool: ...
        def _like(self, members: list[Any]) -> Any: ...
        def _new_tensors_from(
            self, data: object, options: dict[str, Any]
        ) -> CollectionProtocol: ...
        def _replace_content(self, result: CollectionProtocol) -> Any: ...
        def _repr_entries(self) -> list[tuple[str, Any]]: ...
        def _resized(self, op: object, size: torch.Size) -> Any: ...
        def _save_plan(self, plan: object, level: int) -> None: ...
        def _set_index(self, index: Any, value: object) -> None: ...
        def _set_path(
            self,
            path: tuple[str, ...],
            value: object,
            inplace: bool | None,
            non_blocking: bool,
            validated: bool,
            ignore_lock: bool,
        ) -> None: ...
        def _stack_lazily(
            self,
            members: list[Any],
            dim: int,
            name: str | None,
            is_shown: bool = False,
        ) -> Any: ...
        def _take_state(self, fields: dict[str, Any], is_one: bool) -> None: ...
        def _value(self) -> Any: ...

        def auto_batch_size_(
            self, batch_dims: int | None = None, keep_compliant_size: bool = False
        ) -> Self: ...
        def clone(self, recurse: bool = True) -> Any: ...
        def contiguous(self) -> CollectionProtocol: ...
        def del_(self, key: NestedKeyLike) -> Self: ...
        def densify(self, layout: torch.layout = ...) -> CollectionProtocol: ...
        def empty(
            self,
            recurse: bool = False,
            *,
            batch_size: Sequence[int] | None = None,
            device: torch.device | str | int | None = ...,
            names: Sequence[str | None] | None = ...,
        ) -> Any: ...
        def flatten_keys(
            self, separator: str = ".", inplace: bool = ..., is_leaf: _IsLeaf = ...
        ) -> CollectionProtocol: ...
        def from_dict_instance(
            self, input_dict: Mapping[Any, Any], *, batch_size: Sequence[int]
        ) -> CollectionProtocol: ...
        def get(self, key: NestedKeyLike, default: object = None) -> Any: ...
        def is_memmap(self) -> bool: ...
        def is_shared(self) -> bool: ...
        def is_empty(self) -> bool: ...
        def items(
            self,
            include_nested: bool = ...,
            leaves_only: bool = ...,
            is_leaf: _IsLeaf = ...,
        ) -> Any: ...
        def keys(
            self,
            include_nested: bool = ...,
            leaves_only: bool = ...,
            is_leaf: _IsLeaf = ...,
        ) -> Any: ...
        def lock_(self) -> Self: ...
        def movedim(self, source: _Dims, destination: _Dims) -> CollectionProtocol: ...
        def named_apply(
            self, fn: Callable[..., Any], *others: object, **kwargs: Any
        ) -> Any: ...
        def non_tensor_items(self, include_nested: bool = False) -> Any: ...
        def permute(self, *args: object, **kwargs: object) -> CollectionProtocol: ...
        def pop(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any: ...
        def reshape(self, *args: object, **kwargs: object) -> Any: ...
        def roll(
            self, shifts: _Dims, dims: _Dims | None = None
        ) -> CollectionProtocol: ...
        def rot90(
            self, k: int = 1, dims: tuple[int, int] = (0, 1)
        ) -> CollectionProtocol: ...
        def select(
            self, *keys: NestedKeyLike, inplace: bool = False, strict: bool = True
        ) -> Any: ...
        def set(
            self,
            key: NestedKeyLike,
            item: object,
            inplace: bool = False,
            **kwargs: Any,
        ) -> Self: ...
        def set_(self, key: NestedKeyLike, item: object) -> Self: ...
        def squeeze(self, *args: object, **kwargs: object) -> Any: ...
        def to_dict(
            self,
            *,
            retain_none: bool = True,
            convert_tensors: bool | Literal["numpy"] = False,
        ) -> Any: ...
        def to_namedtuple(self, dest_cls: type | None = None) -> Any: ...
        def to_pytree(self) -> Any: ...
        def to_tensordict(self, *, retain_none: bool | None = None) -> Any: ...
        def tolist(
            self, *, convert_tensors: bool | Literal["numpy"] = False
        ) -> Any: ...
        def unbind(self, dim: int) -> tuple[Any, ...]: ...
        def unflatten_keys(
            self, separator: str = ".", inplace: bool = False
        ) -> CollectionProtocol: ...
        def unlock_(self) -> Self: ...
        def unsqueeze(self, *args: object, **kwargs: object) -> Any: ...
        def update(
            self,
            input_dict_or_td: Any = None,
            clone: bool = False,
            inplace: bool = False,
            **kwargs: Any,
        ) -> Self: ...
        def update_(
            self,
            input_dict_or_td: Any = None,
            clone: bool = False,
            **kwargs: Any,
        ) -> Self: ...
        def view(self, *shape: Any, **kwargs: Any) -> CollectionProtocol: ...
        def where(
            self,
            condition: torch.Tensor,
            other: Any,
            *,
            out: Any = None,
            pad: Any = None,
        ) -> Any: ...

    # Reading ---------------------------------------------------------------

    def _entries(self) -> dict[str, Any]:
        """Return the direct entries in order; the live dictionary of a dense class."""
        raise NotImplementedError

    def _entries_to_join(self) -> dict[str, Any]:
        """Return the direct entries for a join with those of a dense tensordict.

        Raises:
            RuntimeError: the join would lose other content of this tensordict.
        """
        return self._entries()

    def _get_entry(self, key: str, default: object) -> Any:
        """Return the value of one direct entry, or ``default``."""
        raise NotImplementedError

    def _sample_entries(self) -> dict[str, Any]:
        """Return samples of the direct entries, for their types: leaves may be parts."""
        return self._entries()

    def _held_keys(self) -> dict[str, Any]:
        """Return a dictionary with the direct keys; its values have no meaning."""
        return self._sample_entries()

    def _sample_entry(self, key: str) -> Any:
        """Return one of :meth:`_sample_entries`, or ``NO_DEFAULT``."""
        return self._get_entry(key, NO_DEFAULT)

    def _seen_entry(self, key: str) -> Any:
        """Return a sample of an entry of the type that reading it gives."""
        return self._sample_entry(key)

    def _children(self) -> list[Any]:
        """Return the tensordicts that are direct entries of this one."""
        return [
            value
            for value in list(self._entries().values())
            if isinstance(value, CollectionProtocol)
        ]

    # Writing ---------------------------------------------------------------

    def _set_entry(self, key: str, value: object) -> None:
        """Store a validated value under a direct key, replacing the present one."""
        raise NotImplementedError

    def _check_entry(self, key: str, value: object) -> None:
        """Raise an error if :meth:`_set_entry` would refuse a validated value."""

    def _del_entry(self, key: str) -> None:
        """Remove one direct entry that exists."""
        raise NotImplementedError

    def _make_child(self) -> CollectionProtocol:
        """Return an empty tensordict of this class, size, device and names."""
        raise NotImplementedError

    def _with_entries(self, entries: dict[str, Any]) -> Any:
        """Return a tensordict around ``entries``, which are values of this one."""
        names = self._td_dim_names
        names = None if names is None else list(names)
        return _rust.new(
            self._plain_type, entries, self._batch_size, self._device, names
        )

    def _write_at(
        self,
        key: str,
        target: CollectionProtocol | torch.Tensor,
        index: BatchIndex,
        value: Any,
    ) -> None:
        """Write ``value`` at an index of ``target``, the value of the entry ``key``."""
        target[index] = value
        if self._writes_through():
            # `target` may be a copy of the entry, so store it.
            self._set_entry(key, target)

    def _as_source(self) -> Self:
        """Return the tensordict whose entries a new one made of this one gets."""
        return self

    def _writes_through(self) -> bool:
        """Return whether setting entries of a structure copy changes its source."""
        return False

    # Walks: one method per primitive, for classes that are not dense ----------

    def _map_leaves(
        self,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        prefix: torch.Size | None,
        names: object,
        tail: int,
        lock: bool,
        k: int,
    ) -> Self:
        """See :func:`tensordict.primitives.map_leaves.map_leaves`."""
        raise NotImplementedError

    def _split_leaves(
        self,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        prefixes: list[torch.Size],
        names: object,
        lock: bool,
        k: int,
    ) -> list[Self]:
        """See :func:`tensordict.primitives.split.split_leaves`."""
        raise NotImplementedError

    def _leaves(self, out: list[Any]) -> None:
        """Append every leaf to ``out``, depth first, in key order."""
        raise NotImplementedError

    def _holders(self) -> list[Any]:
        """Return this tensordict, and the ones that actually hold entries set in it."""
        return [self]

    def _containers(self, out: list[Any]) -> None:
        """Append the tensordicts that hold the state of this one and of nested ones."""
        out.append(self)
        for child in self._children():
            _rust.containers(child, out)

    def _after_unlock(self) -> None:
        """Do what is needed after this tensordict and all nested ones were unlocked."""

    def _rebuild(self, values: Iterator[Any], lock: bool) -> Self:
        """Return a tensordict of this structure with the leaves from ``values``."""
        raise NotImplementedError

    def _drop_empty(self) -> None:
        """Remove the nested tensordicts without entries from a new result."""
        for key, value in list(self._entries().items()):
            if isinstance(value, CollectionProtocol):
                value._drop_empty()
                if value.is_empty():
                    self._del_entry(key)

    def _rebuild_as(
        self, values: Iterator[Any], cls: Any, size: object
    ) -> CollectionProtocol:
        """See :func:`tensordict.primitives.align.rebuild_as`; ``values`` is an iterator."""
        built = self._rebuild(values, False)
        if not built._is_dense:
            return built
        return _rust.rebuild_as(built, _rust.leaves(built), cls, size)

    def _align_leaves(
        self, other: CollectionProtocol, out: list[Any], is_complete: bool
    ) -> bool:
        """Append the leaves of ``other`` in the order of :meth:`_leaves` if they match.

        Return whether they match. With ``is_complete``, also refuse non-tensor entries.
        """
        from tensordict.primitives.tree import _align_entries

        return _align_entries(self, other, is_complete, out)

    def _leaf_batch_dims(self, out: list[int]) -> None:
        """Append the number of batch dims of each leaf in the order of :meth:`_leaves`."""
        from tensordict.primitives.align import _entry_batch_dims

        _entry_batch_dims(self, out)

    def _lazy_stack(self) -> StackProtocol | None:
        """Return the lazy stack that this is or wraps; None for other classes."""
        return None

    def _incomparable(self, name: str, other: object, otherwise: bool) -> bool:
        """Return the result of operator ``name`` if ``other`` cannot be compared."""
        return otherwise

    def _check_reduces(self, op: object) -> None:
        """Raise an error if there is non-tensor data that ``op`` cannot reduce."""

    def _cat_with_entries(self, tds: Sequence[Any], dim: int) -> Any:
        """Concatenate ``tds`` if this class decides the result for a dense first one.

        Return None if it does not.
        """
        return None

    def _update_source(self, source: object) -> Any:
        """Return the source of an update with values of the types of the entries."""
        return source

    def _update_parts(self, source: object, is_copy: bool = False) -> list[Any] | None:
        """Split the source of an update by member, if this is a stack.

        With ``is_copy`` its values are copied into entries; others are left out.
        """
        return None

    def _spread(self, operand: torch.Tensor) -> list[torch.Tensor]:
        """Return for each leaf the part of ``operand`` ``[*B]`` that broadcasts."""
        out: list[torch.Tensor] = []
        dims = operand.dim()
        for value in list(self._entries().values()):
            if isinstance(value, CollectionProtocol):
                out += value._spread(operand)
            else:
                out.append(operand[(..., *(None,) * (value.dim() - dims))])
        return out

    def _clone_structure(self) -> Self:
        """Return a new tensordict, new at all levels, that shares the leaves."""
        raise NotImplementedError

    def _can_put(self, value: object) -> bool:
        """Return whether `_put` of non-tensor data surely accepts ``value``."""
        return False

    def _written_at(self, at: object, value: object) -> Self:
        """Write ``value`` at a planned index, and return the entry to store."""
        self[at] = value
        return self

    def _stated(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return further fields of a state dict, and the entries beside them."""
        return {}, self._entries()

    def _refined(
        self, names: list[str | None], is_fresh: bool = False
    ) -> CollectionProtocol:
        """Return this tensordict as an entry of a parent whose dims have ``names``.

        ``is_fresh`` says that it was just made for the parent, from another type.

        Raises:
            RuntimeError: this tensordict has other names.
        """
        present_names = self.names
        wanted = names + present_names[len(names) :]
        if present_names == wanted:
            return self
        if any(
            own is not None and own != new
            for own, new in zip(present_names, wanted, strict=True)
        ):
            raise RuntimeError(MSG_REFINED.format(present_names, wanted))
        renamed = self.clone(False)
        renamed.names = wanted
        return renamed

    def _nested_class(self, key: str, value: object) -> type[Any]:
        """Return the class that the short form names for a nested tensordict."""
        return type(value)

    def _repr_short(self) -> str | None:
        """Return the short form of an entry without nested entries, else None."""
        return None

    def _store_leaves(self, values: list[Any]) -> None:
        """Store the leaves that :meth:`_leaves` returned after writes into them.

        Only a class whose leaves are copies has to do anything.
        """
        position = 0
        for value in list(self._entries().values()):
            if isinstance(value, CollectionProtocol):
                count = len(_rust.leaves(value))
                value._store_leaves(values[position : position + count])
                position += count
            else:
                position += 1


class StackProtocol(CollectionProtocol):
    """The further methods of a lazy stack, which split arguments by member."""

    tensordicts: list[Any]
    """The members."""
    stack_dim: int
    """The batch dim along which the members are stacked."""

    def _lazy_stack(self) -> Self:
        return self

    def _member_operands(
        self, operands: Sequence[Any]
    ) -> list[tuple[Any, list[Any]]] | None:
        """Split the operands by member; return None if an operand cannot be split."""
        raise NotImplementedError

    def _parts_to_resize(self, source: CollectionProtocol) -> list[Any] | None:
        """Split a tensordict by member to take its batch sizes; None if impossible."""
        raise NotImplementedError

    def _resize_members(self, source: CollectionProtocol) -> None:
        """Take the members of a tensordict and their batch sizes."""
        raise NotImplementedError

    def _casts_at(self, index: object) -> bool:
        """Return whether a write at an index of tensors casts values."""
        raise NotImplementedError


class PartsProtocol(CollectionProtocol):
    """The further methods of tensordicts in files: access to parts of leaves."""

    __slots__ = ()

    def _part_at(self, key: str, index: object) -> Any:
        """Return the part of a leaf at a planned index; NO_DEFAULT if it is no leaf."""
        raise NotImplementedError

    def _write_part(self, key: str, index: object, value: object) -> None:
        """Write ``value`` into a leaf at a planned index."""
        raise NotImplementedError

    def _note(self) -> None:
        """Write batch size and names to the file, if it is writable."""
        raise NotImplementedError

    def _data_to_send(self) -> Any:
        """Return what another process gets instead of this; None for this itself."""
        raise NotImplementedError


def as_stack(td: CollectionProtocol) -> StackProtocol | None:
    """Return ``td`` if it is itself a lazy stack, else None."""
    stack = td._lazy_stack()
    return stack if stack is td else None


def entries_of(source: CollectionProtocol | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the direct entries of a tensordict or of a plain mapping."""
    if isinstance(source, CollectionProtocol):
        return source._entries()
    return source
