"""The base class of all entries that hold Python objects."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from tensordict import _rust
from tensordict.containers.collection import TensorCollection
from tensordict.containers.nontensor.cells import LinkedCells
from tensordict.containers.nontensor.equality import (
    ComparingOps,
    copied,
    is_interchangeable,
)
from tensordict.containers.nontensor.positions import (
    moves_elements,
    on_real_tensors,
    places_listed,
    places_moved,
    selected,
)
from tensordict.containers.nontensor.shared import share_columns
from tensordict.primitives.common import (
    _spliced_names,
    _spliced_size,
    as_size,
    more_refs,
)
from tensordict.primitives.errors import KeyMessageError, locked_error
from tensordict.primitives.operations import (
    COPIES,
    REDUCES,
    SPREADS,
    SUMS,
    name_of,
)
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.storage import safe_pickle, safetensors_levels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

__all__ = ["MSG_REDUCED", "NonTensorOps", "expands_to", "release"]

MSG_WRITTEN_SIZE = (
    "indexed destination TensorDict batch size is {} (batch_size = {}, index={}), which "
    "differs from the source batch size {}"
)
MSG_OTHER_SIZE = "other of batch size {} cannot be expanded to the batch size {}."
MSG_NO_NON_TENSOR = "All tensordicts must be non-tensors."
MSG_NO_SIZE = (
    "All tensordicts must be non-tensors: one value is stacked with others, and a "
    "collection of entries has no attribute 'data' to stack with it."
)
MSG_NO_ENTRIES = "A {} has no entries: {!r} cannot be set."
MSG_REDUCED = (
    "{0} requires this object to be cast to a regular TensorDict: a {1} holds a value "
    "for each element, and values cannot be reduced. Leave it out first, with "
    "filter_non_tensor_data()."
)
MSG_UNEXPECTED = "Unexpected type {}"
MSG_PART_OF_SAVE = (
    "Cannot update a leaf NonTensorDataBase from a memmaped parent NonTensorStack. To "
    "update this leaf node, please update the NonTensorStack with the proper index."
)


class NonTensorOps(ComparingOps):
    """A collection without entries: a batch of values that operations do not look into.

    Values are stored in *cells*, a list that several collections can share. The part of
    a stack at an index writes to the stack's cells, like a view of a tensor. A subclass
    defines which cells belong to it. For shape operations, it defines which cells
    become which elements of the result (:meth:`_moved`).
    """

    _is_dense: ClassVar[bool] = False
    _is_non_tensor: ClassVar[bool] = True

    _is_one: ClassVar[bool] = True
    """True if all elements share one value."""

    _fits_any_size: ClassVar[bool] = False
    """True for one value that can be written at any index."""

    _cells: list[Any]

    _saved_in: Any = None
    """The stack with values in files that contains this part."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Skip what a tensorclass does here: subclasses declare no fields."""
        object.__init_subclass__(**kwargs)

    if TYPE_CHECKING:

        @property
        def data(self) -> Any: ...  # noqa: D102 - for annotations only

    # Declared by subclasses --------------------------------------------------------

    def _value(self) -> Any:
        """Return the result of reading the entry by key: the bare value, or a list."""
        raise NotImplementedError

    def _moved(
        self,
        op: object,
        args: tuple[Any, ...],
        size: torch.Size,
        tail: int = 0,
        k: int = -1,
    ) -> Any:
        """Make a collection of batch size ``size`` with the elements moved by ``op``.

        ``op`` is an operation on leaves that copies, drops or reorders elements.
        """
        raise NotImplementedError

    def _moved_parts(
        self, op: object, args: tuple[Any, ...], sizes: list[torch.Size], k: int
    ) -> list[Any]:
        """Make the collections of ``sizes`` into which ``op`` splits this one."""
        raise NotImplementedError

    def _twin(self) -> Any:
        """Return a new collection with the same values in new cells."""
        raise NotImplementedError

    def _source_twin(self) -> Any:
        """Return a new collection with the same values, without device and names."""
        twin = self._twin()
        twin._device = None
        return twin._named(None)

    def _deep_twin(self) -> Any:
        """Return a new collection with copies of the values."""
        twin = self._twin()
        twin._cells = copied(twin._cells, not self._is_one)
        return twin

    # Writing cells --------------------------------------------------------------------

    def _has_files(self) -> bool:
        """Return whether the values are in files, which writes then change."""
        return self._is_memmap and self._memmap_prefix is not None

    def _check_cells(self, *new: object) -> None:
        """Check that values can be written here.

        Raises:
            RuntimeError: this is a part of a stack with values in files.
        """
        stack = self._saved_in
        if stack is not None and stack._has_files():
            raise RuntimeError(MSG_PART_OF_SAVE)
        if self._has_files():
            safe_pickle.check_content(new)

    def _check_source(self, value: object) -> None:
        """Check a value, or a collection of values, like :meth:`_check_cells`."""
        if self._has_files() or self._saved_in is not None:
            new = value._flat() if isinstance(value, NonTensorOps) else (value,)
            self._check_cells(*new)

    def _put_cells(self, places: Sequence[int], new: Sequence[Any]) -> None:
        """Set the cells at ``places``, in the files of a save too."""
        self._check_cells(*new)
        if self._has_files():
            safe_pickle.rewrite(self, places, new)
            return
        cells = self._cells
        if isinstance(cells, LinkedCells):
            cells.put(places, new)
            return
        for place, value in zip(places, new, strict=True):
            cells[place] = value

    # The protocol --------------------------------------------------------------------

    def _entries(self) -> dict[str, Any]:
        return {}

    def _get_entry(self, key: str, default: object) -> Any:
        return default

    def _with_entries(self, entries: dict[str, Any]) -> Any:
        if entries:
            raise KeyMessageError(
                MSG_NO_ENTRIES.format(type(self).__name__, next(iter(entries)))
            )
        return self._twin()

    def _as_dense(self) -> Any:
        return self

    def _as_plain(self) -> Any:
        return self._twin()

    def _named(self, names: list[str | None] | None) -> Self:
        self._td_dim_names = names
        return self

    def _map_leaves(
        self,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        prefix: torch.Size | None,
        names: object,
        tail: int,
        lock: bool,
        k: int,
    ) -> Any:
        own_size = self._batch_size
        if k < 0:
            k = len(own_size)
        elif k > len(own_size):
            # `k` counts the dims of a leaf, feature dims included.
            self._check_reduces(op, REDUCES)
        size = _spliced_size(own_size, prefix, k)
        if moves_elements(op):
            result = self._moved(op, args, size, tail, k)
        elif name_of(op) == "_pad_leaf" and not any(args[0]):
            return self
        elif name_of(op) == "_pad_leaf":
            result = self._padded(op, args[0], size)
        elif name_of(op).startswith("new_"):
            result = self._resized(op, size)
        elif size == own_size:
            self._check_reduces(op)
            result = self._deep_twin() if op in COPIES else self._twin()
        else:
            result = self._reduced(op, size)
        if not isinstance(result, NonTensorOps):
            # The result has no values.
            result._td_dim_names = _spliced_names(self._td_dim_names, names, k, size)
            return result
        result = self._followed(result, names, k, size)
        name = name_of(op)
        is_new = name == "flip" or (name in SPREADS and size != own_size)
        if lock and self._is_locked and (result._is_one or not is_new):
            _rust.lock_tree(result)
        return result

    def _followed(self, result: Any, names: Any, k: int, size: torch.Size) -> Any:
        """Give the result of an operation this collection's names and stack dim."""
        result._named(_spliced_names(self._td_dim_names, names, k, size))
        if not isinstance(names, tuple):
            result._follow(self, None)
            return result
        dims = (*names, *range(k, len(self._batch_size)))
        result._follow(self, dims)
        return self._as_row(result, dims)

    def _follow(self, source: object, dims: tuple[int, ...] | None) -> None:
        """Take over the stack dim of ``source``.

        Args:
            source: the collection from which this one was made.
            dims: for each dim of this collection the dim of ``source``, or -1 for a new
                dim. None if the dims are the same.
        """

    def _padded(self, op: object, pads: object, size: torch.Size) -> Any:
        """Return the values with None around them."""
        flat = self._flat()
        count, args = len(flat), (pads, -1)
        layout, places = places_moved(count, None, self._batch_size, op, args, 0, -1)
        if places is None:
            places = places_listed(count, layout, size)
        values = [None if place < 0 else flat[place] for place in places]
        return self._non_tensor_stack_type._of_cells(values, size, self._device)

    def _split_leaves(
        self,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        prefixes: list[torch.Size],
        names: object,
        lock: bool,
        k: int,
    ) -> list[Any]:
        own_size = self._batch_size
        if k < 0:
            k = len(own_size)
        sizes = [_spliced_size(own_size, prefix, k) for prefix in prefixes]
        if moves_elements(op):
            parts = self._moved_parts(op, args, sizes, k)
        else:
            parts = [self._reduced(op, size) for size in sizes]
        results = []
        for result, size in zip(parts, sizes, strict=True):
            if not isinstance(result, NonTensorOps):
                results.append(result)
                continue
            result = self._followed(result, names, k, size)
            if lock and self._is_locked:
                _rust.lock_tree(result)
            results.append(result)
        return results

    def _apply_nest(
        self,
        fn: object,
        *others: object,
        batch_size: Any = None,
        device: Any = NO_DEFAULT,
        names: object = NO_DEFAULT,
        inplace: bool = False,
        out: object = None,
        **kwargs: object,
    ) -> Any:
        """Return a collection with the same values: no leaf is passed to ``fn``.

        Return None, which leaves the entry out, if the values cannot have
        ``batch_size``.
        """
        if inplace:
            return self
        if out is not None:
            return out
        result = self._twin() if batch_size is None else self._fitted(batch_size)
        if result is not None:
            if device is not NO_DEFAULT:
                result._device = None if device is None else torch.device(device)
            if names is not NO_DEFAULT:
                result.names = names
        return result

    def _fitted(self, size: torch.Size) -> Any:
        """Make a collection of the values and ``size``; None if impossible."""
        raise NotImplementedError

    def where(
        self,
        condition: torch.Tensor,
        other: object,
        *,
        out: Any = None,
        pad: object = None,
        update_batch_size: bool = False,
    ) -> Any:
        """Select values where ``condition`` is true, and values of ``other`` elsewhere.

        Args:
            condition: a boolean tensor, broadcast to the batch size from the left.
            other: non-tensor data of the same batch size. For anything else, the result
                has this collection's values.
            out: non-tensor data whose values are replaced, and which is returned.
            pad: ignored.
            update_batch_size: ignored.
        """
        result = self._chosen(condition, other)
        result._device = self._device
        return result if out is None else out.update(result)

    @on_real_tensors
    def _chosen(self, condition: torch.Tensor, other: object) -> Any:
        if not isinstance(other, NonTensorOps):
            twin = self._twin()
            if self._is_locked:
                twin._lock_tree()
            return twin
        if self._is_one and other._is_one and is_interchangeable(self.data, other.data):
            # The result is the same for every mask, which the compiler cannot look
            # into.
            return self._twin()
        size = self._batch_size
        other_data: Any = other
        if other_data.batch_size != size:
            if not expands_to(other_data.batch_size, size):
                sizes = list(other_data.batch_size), list(size)
                raise ValueError(MSG_OTHER_SIZE.format(*sizes))
            other_data = (
                other_data._broadcast(size)
                if other_data._is_one
                else other_data.expand(size)
            )
        mask = condition
        while mask.dim() < len(size):
            mask = mask.unsqueeze(-1)
        mask = mask.expand(size).flatten()
        kept = mask.tolist()
        for source, is_all in ((self, all(kept)), (other_data, not any(kept))):
            if kept and is_all and source._is_one:
                return source._twin()
        pairs = zip(kept, self._flat(), other_data._flat(), strict=True)
        flat = [mine if keep else its for keep, mine, its in pairs]
        stack = self._non_tensor_stack_type._of_cells(flat, size, self._device)
        stack._follow(self, None)
        return stack

    def _flat(self) -> list[Any]:
        """Return the values row by row. Do not change the list: it may be the cells."""
        raise NotImplementedError

    def _reduced(self, op: object, size: torch.Size) -> Any:
        """Return the values of an operation that reduces leaves to fewer elements.

        Raises:
            RuntimeError: there is a value for each element, so they cannot be reduced.
        """
        self._check_reduces(op)
        return self._resized(op, size)

    def _resized(self, op: object, size: torch.Size) -> Any:
        """Return this entry for a new collection of batch size ``size``."""
        if self._is_one:
            return self._fitted(size)
        return self._plain_type({}, size, device=self._device)

    def _new_tensors_from(self, data: Any, options: dict[str, Any]) -> Any:
        return self._resized(None, data.batch_size)

    def _check_reduces(self, op: object, refused: frozenset[str] = SUMS) -> None:
        """Raise an error if ``op`` would reduce a value for each element."""
        name = name_of(op)
        if name in refused and not self._is_one:
            raise RuntimeError(MSG_REDUCED.format(name, type(self).__name__))

    def _leaves(self, out: list[Any]) -> None:
        """Add no leaf: there are no tensors."""

    def _rebuild(self, values: object, lock: bool) -> Any:
        result = self._twin()
        if lock and self._is_locked:
            _rust.lock_tree(result)
        return result

    def _store_leaves(self, values: list[Any]) -> None:
        """Store no leaf: there are no tensors."""

    def _drop_empty(self) -> None:
        """Do nothing: there are no entries to remove."""

    def _rebuild_as(self, values: object, cls: Any, size: Any) -> Any:
        if size is None or size == self._batch_size:
            result = self._twin()
            # A result of another class does not take over the names.
            return result if cls is None else result._named(None)
        return self._resized(None, size)

    def _clone_structure(self) -> Any:
        return self._twin()

    def _lock_tree(self, parents: tuple[Any, ...] = ()) -> None:
        self._is_locked = True
        if parents:
            self._lock_parents_weakrefs = more_refs(
                self._lock_parents_weakrefs, parents
            )

    def _index(self, index: object) -> Any:
        plan = _plan_of(self, index)
        if plan is None:
            # The index selects everything: the result still is a new collection.
            everything = tuple(range(len(self._batch_size)))
            plan = (..., self._batch_size, everything)
        resolved_index, size, dims = plan
        result = self._moved(selected, (resolved_index,), size)
        old = self._td_dim_names
        result._follow(self, dims)
        result._named(_spliced_names(old, dims, len(self._batch_size), size))
        return self._part_of_row(result, resolved_index)

    def _part_of_row(self, result: object, at: object) -> Any:
        """Return ``result`` of an index as one value if the index selects one row."""
        return result

    def _as_row(self, result: object, dims: tuple[int, ...]) -> Any:
        """Return ``result`` as one value if its ``dims`` lie within one row."""
        return result

    def _get_index(self, index: object) -> Any:
        return self._index(index)

    def _set_entry(self, key: str, value: object) -> None:
        raise KeyMessageError(MSG_NO_ENTRIES.format(type(self).__name__, key))

    def _stated(self) -> tuple[dict[str, Any], dict[str, Any]]:
        data = self._stated_value()
        fields = {"data": data, "_metadata": None, "_is_non_tensor": True}
        return {"_type": type(self).__name__, "_non_tensor": fields}, {}

    def _stated_value(self) -> Any:
        """Return the content for a state dict: the value, or a list of values."""
        return self._value()

    # Files ---------------------------------------------------------------------------

    def _put_leaves(self, leaves: Iterator[Any]) -> None:
        """Do nothing: there are no leaves."""

    def _to_level(self, writer: object, path: tuple[str, ...]) -> dict[str, Any]:
        raise TypeError(safetensors_levels.MSG_ALONE)

    def _saved(self, leaves: Iterator[Any], directory: object, inplace: bool) -> Any:
        return safe_pickle.saved_values(self, directory, inplace)

    def _loaded_in(
        self,
        size: torch.Size,
        device: torch.device | None,
        names: list[str | None] | None,
    ) -> Self:
        """Return this loaded entry with the device and names of its collection.

        The names of the collection's dims become the names of the leading dims.
        """
        if self._device is None:
            self._device = device
        if names is not None:
            rest = len(self.batch_size) - len(size)
            self._named([*names, *([None] * rest)])
        return self

    # Shared memory -------------------------------------------------------------------

    def _columns(self) -> list[Any]:
        """Return the collections whose cells hold the values: this one."""
        return [self]

    def _share_all(self, columns: list[Any]) -> None:
        """Move the values of some collections, including this one, to shared memory."""
        share_columns(columns)

    # Writing at an index --------------------------------------------------------------

    def _check_item(self, size: torch.Size, value: object, at: object = ...) -> None:
        """Raise an error if ``value`` cannot be written to a part of shape ``size``."""
        self._check_source(value)
        if isinstance(value, NonTensorOps) and (
            value._fits_any_size or (value._is_one and not value.batch_size)
        ):
            return
        if not isinstance(value, CollectionProtocol):
            is_written = isinstance(value, (torch.Tensor, int, float))
            if is_written and self.batch_size and not size.numel():
                value_size = getattr(value, "shape", torch.Size([]))
                raise RuntimeError(
                    MSG_WRITTEN_SIZE.format(size, self.batch_size, at, value_size)
                )
            return
        value_size = value.batch_size
        if value_size == size and not value._is_non_tensor and value.is_empty():
            return
        if value_size != size and not (
            value._is_non_tensor and expands_to(value_size, size)
        ):
            raise RuntimeError(
                MSG_WRITTEN_SIZE.format(size, self.batch_size, at, value_size)
            )
        if not value._is_non_tensor:
            raise RuntimeError(MSG_UNEXPECTED.format(type(value)))

    def _check_unlocked(self) -> None:
        if self._is_locked:
            raise locked_error(self)

    # Methods that are trivial without tensors -----------------------------------------

    def is_empty(self) -> bool:
        """Return False: the values count as content."""
        return False

    def view(self, *shape: Any, **kwargs: Any) -> Any:
        """Return this collection for another batch size: see :meth:`TensorDict.view`."""
        if not shape or not isinstance(shape[0], torch.dtype):
            return super().view(*shape, **kwargs)
        size = kwargs.get("batch_size")
        return self._fitted(size) if self._is_one and size is not None else self

    def empty(
        self,
        recurse: bool = False,
        *,
        batch_size: object = None,
        device: object = NO_DEFAULT,
        names: object = NO_DEFAULT,
    ) -> Any:
        """Return a new collection with the same values: there are no entries to remove.

        The result has the batch size ``batch_size`` if the values can have it.
        """
        if batch_size is not None:
            batch_size = as_size(batch_size)
            if batch_size == self._batch_size:
                # `None` keeps the names.
                batch_size = None
        result = self._apply_nest(
            None, batch_size=batch_size, device=device, names=names
        )
        if result is None:
            result = self._apply_nest(None, device=device)
        return result

    def clear(self) -> Self:
        """Do nothing: there are no entries."""
        self._check_unlocked()
        return self

    def set_non_tensor(self, key: object, value: object) -> Self:
        """Set the value, under the key ``"data"``; other keys are an error."""
        if key in ("data", ("data",)):
            this: Any = self
            this.set("data", value)
            return self
        raise KeyMessageError(MSG_NO_ENTRIES.format(type(self).__name__, key))

    def pad(
        self,
        pad_size: Sequence[int],
        value: float = 0.0,
        inplace: bool = False,
        safe: bool = True,
    ) -> Any:
        """Add elements with the value None around the elements, along batch dims.

        See :meth:`TensorDictBase.pad`. If nothing is added, this collection is
        returned.
        """
        if not any(pad_size):
            return self
        this: Any = self
        return TensorCollection.pad(this, pad_size, value, inplace, safe)

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Return this entry itself; its collection copies it."""
        return self

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Any:
        """Return a new collection with the same values, or this one if ``inplace``."""
        return self if inplace else self._twin()

    def _stack_all(self, tds: Sequence[Any], dim: int) -> Any:
        from tensordict.containers.nontensor.joining import stack_values

        return stack_values(tds, dim)

    def _stack_lazily(
        self, members: list[Any], dim: int, name: str | None, is_shown: bool = False
    ) -> Any:
        """Make one stack of values, which writes to the members that hold them.

        If ``is_shown`` is true, the stack shows an entry of the members of a lazy
        stack.
        """
        if any(not member._is_non_tensor for member in members):
            return super()._stack_lazily(members, dim, name)
        from tensordict.containers.nontensor.joining import shown_together

        return shown_together(members, dim, is_shown)

    def _write_held(
        self, holder: Any, key: str, at: object, value: object, as_stack: bool = False
    ) -> None:
        """Write at an index of this entry of ``holder``, and store the result there.

        If ``as_stack`` is true, the entry becomes a stack, unless it is memory-mapped
        or in shared memory.
        """
        written: Any = self._written_at(at, value)
        if as_stack and not (written._is_memmap or written._is_shared):
            written = written.maybe_to_stack()
        if written is not self:
            holder._set_entry(key, written)

    def _entries_to_join(self) -> dict[str, Any]:
        # Joining as entries would lose the values.
        raise RuntimeError(MSG_NO_NON_TENSOR)

    def _cat_with_entries(self, tds: Sequence[Any], dim: int) -> NoReturn:
        """Concatenate collections with entries and values, including this one."""
        raise RuntimeError(MSG_NO_NON_TENSOR)

    def _cat_all(self, tds: Sequence[Any], dim: int) -> Any:
        from tensordict.containers.nontensor.joining import cat_values

        return cat_values(tds, dim)


def _plan_of(values: Any, index: Any) -> tuple[Any, torch.Size, tuple[int, ...]] | None:
    """Return the plan of an index into a collection of values."""
    return _rust.index_plan(values._batch_size, index, values)


def release(cls: type, base: type, *without: type) -> None:
    """Replace in ``cls`` the methods inherited from ``without`` by those of ``base``.

    Such a class inherits from another class for ``isinstance``, but stores its state
    differently.
    """
    for other in without:
        for name in vars(other):
            owner = next(each for each in cls.__mro__ if name in vars(each))
            if owner is other and hasattr(base, name):
                setattr(cls, name, inspect.getattr_static(base, name))


def expands_to(size: torch.Size, target: torch.Size) -> bool:
    """Return whether torch can expand a tensor of shape ``size`` to ``target``."""
    pairs = zip(reversed(size), reversed(target), strict=False)
    return len(size) <= len(target) and all(mine in (1, its) for mine, its in pairs)
