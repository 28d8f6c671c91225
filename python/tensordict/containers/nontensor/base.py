"""Define what all entries that hold no tensors have in common."""

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

__all__ = ["MSG_REDUCED", "NonTensorOps", "expands_to", "release"]

MSG_WRITTEN_SIZE = (
    "indexed destination TensorDict batch size is {} (batch_size = {}, index={}), which "
    "differs from the source batch size {}"
)
MSG_OTHER_SIZE = "other of batch size {} cannot be expanded to the batch size {}."
MSG_NO_NON_TENSOR = "All tensordicts must be non-tensors."
MSG_NO_SIZE = (
    "All tensordicts must be non-tensors: one value is stacked with others, and a "
    "collection of entries has no attribute 'data' to be one of them."
)
MSG_NO_ENTRIES = "A {} has no entries: {!r} cannot be set."
MSG_REDUCED = (
    "{0} requires this object to be cast to a regular TensorDict: a {1} has a value of "
    "its own for each element, which nothing can reduce. Leave it out first, with "
    "filter_non_tensor_data()."
)
MSG_UNEXPECTED = "Unexpected type {}"
MSG_PART_OF_SAVE = (
    "Cannot update a leaf NonTensorDataBase from a memmaped parent NonTensorStack. To "
    "update this leaf node, please update the NonTensorStack with the proper index."
)


class NonTensorOps(ComparingOps):
    """A container without entries: a batch of values that no operation looks into.

    Values are kept in *cells*, a list that several containers can share: an element
    that was taken of a stack writes to the stack that it was taken of, as a view of a
    tensor does. A subclass says which cells are its own, and for shape operations which
    of them become which elements of the result (:meth:`_moved`).
    """

    _is_dense: ClassVar[bool] = False
    _is_non_tensor: ClassVar[bool] = True

    _is_one: ClassVar[bool] = True
    """True where all elements share one value."""

    _fits_any_size: ClassVar[bool] = False
    """True of one value that can be written at any index."""

    _cells: list[Any]

    _saved_in: Any = None
    """The stack that this is a part of, if that one has its values in files."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Make a subclass as it is: it declares no fields."""
        object.__init_subclass__(**kwargs)

    if TYPE_CHECKING:

        @property
        def data(self) -> Any: ...  # noqa: D102 - for annotations only

    # Declared by subclasses --------------------------------------------------------

    def _value(self) -> Any:
        """Return what reading the entry by key gives: the bare value, or a list."""
        raise NotImplementedError

    def _moved(
        self,
        op: object,
        args: tuple[Any, ...],
        size: torch.Size,
        tail: int = 0,
        k: int = -1,
    ) -> Any:
        """Make the collection of batch size ``size`` whose elements are moved by ``op``.

        ``op`` is an operation on leaves that copies, drops or reorders elements.
        """
        raise NotImplementedError

    def _moved_parts(
        self, op: object, args: tuple[Any, ...], sizes: list[torch.Size], k: int
    ) -> list[Any]:
        """Make the collections of some sizes into which ``op`` splits this one."""
        raise NotImplementedError

    def _twin(self) -> Any:
        """A container of its own with the same values."""
        raise NotImplementedError

    def _source_twin(self) -> Any:
        """A container of its own, as a new collection that is made of another one has it."""
        made = self._twin()
        made._device = None
        return made._named(None)

    def _deep_twin(self) -> Any:
        """A container of its own with copies of the values."""
        made = self._twin()
        made._cells = copied(made._cells, not self._is_one)
        return made

    # Writing cells ---------------------------------------------------------------------

    def _has_files(self) -> bool:
        """Tell whether the values are in the files of a save, which writes reach."""
        return self._is_memmap and self._memmap_prefix is not None

    def _check_cells(self, *new: object) -> None:
        """Raise where these values cannot be written here.

        Raises:
            RuntimeError: this is a part of a stack that has its values in files.
        """
        whole = self._saved_in
        if whole is not None and whole._has_files():
            raise RuntimeError(MSG_PART_OF_SAVE)
        if self._has_files():
            safe_pickle.check_content(new)

    def _check_source(self, value: object) -> None:
        """Check a value, or a collection of values, as :meth:`_check_cells` does."""
        if self._has_files() or self._saved_in is not None:
            new = value._flat() if isinstance(value, NonTensorOps) else (value,)
            self._check_cells(*new)

    def _put_cells(self, places: Sequence[int], new: Sequence[Any]) -> None:
        """Set the cells at some places, and what the files of a save say of them."""
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
        own = self._batch_size
        if k < 0:
            k = len(own)
        elif k > len(own):
            # All dims of each leaf, those of its features too.
            self._check_reduces(op, REDUCES)
        size = _spliced_size(own, prefix, k)
        if moves_elements(op):
            result = self._moved(op, args, size, tail, k)
        elif name_of(op) == "_pad_leaf" and not any(args[0]):
            return self
        elif name_of(op) == "_pad_leaf":
            result = self._padded(op, args[0], size)
        elif name_of(op).startswith("new_"):
            result = self._resized(op, size)
        elif size == own:
            self._check_reduces(op)
            result = self._deep_twin() if op in COPIES else self._twin()
        else:
            result = self._reduced(op, size)
        if not isinstance(result, NonTensorOps):
            # Nothing is left of the values.
            result._td_dim_names = _spliced_names(self._td_dim_names, names, k, size)
            return result
        result = self._followed(result, names, k, size)
        name = name_of(op)
        is_new = name == "flip" or (name in SPREADS and size != own)
        if lock and self._is_locked and (result._is_one or not is_new):
            _rust.lock_tree(result)
        return result

    def _followed(self, result: Any, names: Any, k: int, size: torch.Size) -> Any:
        """``result`` of an operation, with the names and the stack dim of this."""
        result._named(_spliced_names(self._td_dim_names, names, k, size))
        if not isinstance(names, tuple):
            result._follow(self, None)
            return result
        dims = (*names, *range(k, len(self._batch_size)))
        result._follow(self, dims)
        return self._as_row(result, dims)

    def _follow(self, source: object, dims: tuple[int, ...] | None) -> None:
        """Take the stack dim of ``source``, of whose dims this has those in ``dims``.

        Args:
            source: what this was made of.
            dims: a dim of ``source`` for each of this, -1 for a new one. None where each
                dim stands for itself, if there are as many.
        """

    def _padded(self, op: object, pads: object, size: torch.Size) -> Any:
        """The values with None around them."""
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
        own = self._batch_size
        if k < 0:
            k = len(own)
        sizes = [_spliced_size(own, prefix, k) for prefix in prefixes]
        if moves_elements(op):
            made = self._moved_parts(op, args, sizes, k)
        else:
            made = [self._reduced(op, size) for size in sizes]
        results = []
        for result, size in zip(made, sizes, strict=True):
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
        """This, which has no leaf to call ``fn`` with, or one of the size asked for.

        None where its values cannot have that size: they are left out.
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
        """One with these values and a batch size; None where they cannot have it."""
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
        """The values of this where ``condition`` is true, and those of ``other`` elsewhere.

        Args:
            condition: bool, broadcast to the batch size from the left.
            other: one of the same batch size. Anything else has no values: this is the
                result.
            out: one whose values are replaced, and which is returned.
            pad: has no effect.
            update_batch_size: has no effect.
        """
        result = self._chosen(condition, other)
        result._device = self._device
        return result if out is None else out.update(result)

    @on_real_tensors
    def _chosen(self, condition: torch.Tensor, other: object) -> Any:
        if not isinstance(other, NonTensorOps):
            made = self._twin()
            if self._is_locked:
                made._lock_tree()
            return made
        if self._is_one and other._is_one and is_interchangeable(self.data, other.data):
            # Whatever the mask says: the compiler cannot look at it.
            return self._twin()
        size = self._batch_size
        theirs: Any = other
        if theirs.batch_size != size:
            if not expands_to(theirs.batch_size, size):
                sizes = list(theirs.batch_size), list(size)
                raise ValueError(MSG_OTHER_SIZE.format(*sizes))
            theirs = theirs._broadcast(size) if theirs._is_one else theirs.expand(size)
        mask = condition
        while mask.dim() < len(size):
            mask = mask.unsqueeze(-1)
        mask = mask.expand(size).flatten()
        kept = mask.tolist()
        for source, is_all in ((self, all(kept)), (theirs, not any(kept))):
            if kept and is_all and source._is_one:
                return source._twin()
        pairs = zip(kept, self._flat(), theirs._flat(), strict=True)
        flat = [mine if keep else its for keep, mine, its in pairs]
        stack = self._non_tensor_stack_type._of_cells(flat, size, self._device)
        stack._follow(self, None)
        return stack

    def _flat(self) -> list[Any]:
        """The values row by row. Not to be changed: it may be the list of cells."""
        raise NotImplementedError

    def _reduced(self, op: object, size: torch.Size) -> Any:
        """The values where an operation computes with leaves to make fewer of them.

        Raises:
            RuntimeError: there is one for each element.
        """
        self._check_reduces(op)
        return self._resized(op, size)

    def _resized(self, op: object, size: torch.Size) -> Any:
        """Return what stands here in a new collection of other content."""
        if self._is_one:
            return self._fitted(size)
        return self._plain_type({}, size, device=self._device)

    def _new_tensors_from(self, data: Any, options: dict[str, Any]) -> Any:
        return self._resized(None, data.batch_size)

    def _check_reduces(self, op: object, refused: frozenset[str] = SUMS) -> None:
        """Raise where an operation computes one value of the values of the elements."""
        name = name_of(op)
        if name in refused and not self._is_one:
            raise RuntimeError(MSG_REDUCED.format(name, type(self).__name__))

    def _leaves(self, out: list[Any]) -> None:
        """Add nothing: there is no tensor."""

    def _rebuild(self, values: object, lock: bool) -> Any:
        result = self._twin()
        if lock and self._is_locked:
            _rust.lock_tree(result)
        return result

    def _store_leaves(self, values: list[Any]) -> None:
        """Take nothing back: there is no tensor."""

    def _drop_empty(self) -> None:
        """Take nothing out: what there is is the value."""

    def _rebuild_as(self, values: object, cls: Any, size: Any) -> Any:
        if size is None or size == self._batch_size:
            result = self._twin()
            # A result of another class than this collection has no names either.
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
            # All of it, as one of its own with the same elements.
            everything = tuple(range(len(self._batch_size)))
            plan = (..., self._batch_size, everything)
        at, size, dims = plan
        result = self._moved(selected, (at,), size)
        old = self._td_dim_names
        result._follow(self, dims)
        result._named(_spliced_names(old, dims, len(self._batch_size), size))
        return self._part_of_row(result, at)

    def _part_of_row(self, result: object, at: object) -> Any:
        """``result`` of an index, as one value where that selects one row of this."""
        return result

    def _as_row(self, result: object, dims: tuple[int, ...]) -> Any:
        """``result``, of whose dims those in ``dims`` are of this, or as one value."""
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
        """Return what a state dict holds: the value, or a list of them."""
        return self._value()

    # Files ---------------------------------------------------------------------------

    def _put_leaves(self, leaves: Iterator[Any]) -> None:
        """Do nothing: there are none."""

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
        """This, which was loaded, as an entry of a container of this size and device.

        Its first dims have the names of those of the container.
        """
        if self._device is None:
            self._device = device
        if names is not None:
            rest = len(self.batch_size) - len(size)
            self._named([*names, *([None] * rest)])
        return self

    # Shared memory -------------------------------------------------------------------

    def _columns(self) -> list[Any]:
        """The containers whose cells hold the values: this one."""
        return [self]

    def _share_all(self, columns: list[Any]) -> None:
        """Put the values of some containers, this one among them, in shared memory."""
        share_columns(columns)

    # Writing at an index ---------------------------------------------------------------

    def _check_item(self, size: torch.Size, value: object, at: object = ...) -> None:
        """Raise where ``value`` cannot be written at an index, of shape ``size``."""
        self._check_source(value)
        if isinstance(value, NonTensorOps) and (
            value._fits_any_size or (value._is_one and not value.batch_size)
        ):
            return
        if not isinstance(value, CollectionProtocol):
            is_written = isinstance(value, (torch.Tensor, int, float))
            if is_written and self.batch_size and not size.numel():
                own = getattr(value, "shape", torch.Size([]))
                raise RuntimeError(
                    MSG_WRITTEN_SIZE.format(size, self.batch_size, at, own)
                )
            return
        own = value.batch_size
        if own == size and not value._is_non_tensor and value.is_empty():
            return
        if own != size and not (value._is_non_tensor and expands_to(own, size)):
            raise RuntimeError(MSG_WRITTEN_SIZE.format(size, self.batch_size, at, own))
        if not value._is_non_tensor:
            raise RuntimeError(MSG_UNEXPECTED.format(type(value)))

    def _check_unlocked(self) -> None:
        if self._is_locked:
            raise locked_error(self)

    # Consequences of having no tensors -----------------------------------------------

    def is_empty(self) -> bool:
        """Tell whether there is nothing in it: never, it holds values."""
        return False

    def empty(
        self,
        recurse: bool = False,
        *,
        batch_size: object = None,
        device: object = NO_DEFAULT,
        names: object = NO_DEFAULT,
    ) -> Any:
        """A container of its own with the same values: it has no entries to leave out.

        Its batch size is the one asked for where these values can have that.
        """
        if batch_size is not None:
            batch_size = as_size(batch_size)
            if batch_size == self._batch_size:
                # With its names.
                batch_size = None
        made = self._apply_nest(None, batch_size=batch_size, device=device, names=names)
        if made is None:
            made = self._apply_nest(None, device=device)
        return made

    def clear(self) -> Self:
        """Do nothing: there are no entries."""
        self._check_unlocked()
        return self

    def set_non_tensor(self, key: object, value: object) -> Self:
        """Set the value, under the key ``"data"``."""
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
        """Add elements without a value, which is None, around those of the batch dims.

        See :meth:`TensorDictBase.pad`. This itself where nothing is added.
        """
        if not any(pad_size):
            return self
        this: Any = self
        return TensorCollection.pad(this, pad_size, value, inplace, safe)

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """This itself: as an entry of a collection it is copied with that."""
        return self

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Any:
        """A container of its own with the same values; this itself if ``inplace``."""
        return self if inplace else self._twin()

    def _stack_all(self, tds: Sequence[Any], dim: int) -> Any:
        from tensordict.containers.nontensor.joining import stack_values

        return stack_values(tds, dim)

    def _stack_lazily(
        self, members: list[Any], dim: int, name: str | None, is_shown: bool = False
    ) -> Any:
        """One stack of values, which writes to the members that have one value.

        With ``is_shown`` it shows the entries of the members of a lazy stack.
        """
        if any(not member._is_non_tensor for member in members):
            return super()._stack_lazily(members, dim, name)
        from tensordict.containers.nontensor.joining import shown_together

        return shown_together(members, dim, is_shown)

    def _write_held(
        self, holder: Any, key: str, at: object, value: object, as_stack: bool = False
    ) -> None:
        """Write at an index of this entry of ``holder``, which then has the result.

        With ``as_stack`` it becomes a stack, unless it is in files or shared memory.
        """
        written: Any = self._written_at(at, value)
        if as_stack and not (written._is_memmap or written._is_shared):
            written = written.maybe_to_stack()
        if written is not self:
            holder._set_entry(key, written)

    def _entries_to_join(self) -> dict[str, Any]:
        # Its values would be lost.
        raise RuntimeError(MSG_NO_NON_TENSOR)

    def _cat_with_entries(self, tds: Sequence[Any], dim: int) -> Any:
        """The concatenation of collections with entries and of values, this among them."""
        raise RuntimeError(MSG_NO_NON_TENSOR)

    def _cat_all(self, tds: Sequence[Any], dim: int) -> Any:
        from tensordict.containers.nontensor.joining import cat_values

        return cat_values(tds, dim)


def _plan_of(values: Any, index: Any) -> Any:
    """The plan of an index into a container of values."""
    return _rust.index_plan(values._batch_size, index, values)


def release(cls: type, base: type, *without: type) -> None:
    """Have ``cls`` inherit from ``base`` what it would inherit from ``without``.

    For a class that is a kind of another by name, and keeps its state in its own way.
    """
    for other in without:
        for name in vars(other):
            owner = next(each for each in cls.__mro__ if name in vars(each))
            if owner is other and hasattr(base, name):
                setattr(cls, name, inspect.getattr_static(base, name))


def expands_to(size: torch.Size, target: torch.Size) -> bool:
    """Tell whether torch expands a tensor of one size to the other."""
    pairs = zip(reversed(size), reversed(target), strict=False)
    return len(size) <= len(target) and all(mine in (1, its) for mine, its in pairs)
