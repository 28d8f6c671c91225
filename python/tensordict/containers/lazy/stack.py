"""The lazy stack, which keeps its members separate and stacks entries when read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from tensordict import _rust
from tensordict.containers.collection import TensorDictBase
from tensordict.containers.dense import TensorDict
from tensordict.containers.fixed_size import FixedSize
from tensordict.containers.lazy import indexing, shapes
from tensordict.containers.lazy.access import ReadingOps
from tensordict.containers.lazy.apply import CombiningOps
from tensordict.containers.lazy.construct import (
    MSG_NEGATIVE_DIM,
    MSG_NEW_SIZE,
    MSG_STACK_DIM,
    checked_dim,
    fill_state,
    have_own_keys,
    lazy_stack,
    merged_batch_size,
    nested_stacks,
    stack_size,
)
from tensordict.containers.lazy.set import WritingOps
from tensordict.ops.batch import MSG_NAMES_LENGTH, BatchOps
from tensordict.ops.locking import LockingOps
from tensordict.primitives import classes
from tensordict.primitives.checks import is_branch
from tensordict.primitives.copy import member_paths
from tensordict.primitives.dim_numbers import from_front
from tensordict.primitives.dims import remember
from tensordict.primitives.errors import locked_error
from tensordict.primitives.index_items import refuse_fractions, refuse_types
from tensordict.primitives.lazy import first_misfit
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import is_shared
from tensordict.storage import describing, safetensors_levels
from tensordict.storage import source as sources
from tensordict.storage.stacks import (
    load_stack,
    plan_stack,
    saved_stack,
    take_loaded,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from tensordict._rust import SavedTensors
    from tensordict.storage.paths import SavedPath


__all__ = ["LazyStackedTensorDict", "lazy_stack"]

MSG_GIVEN_SIZE = "batch_size does not match self.batch_size: {} vs {}."
MSG_NAMES = "Not all dim names match, got {} and {}."


MSG_KEYS = (
    "Cannot save the lazy stack {} as safetensors: its members have different keys. "
    "Give every member the same keys first."
)

MSG_NAMES = "Not all dim names match, got {} and {}."


MSG_NEW_TYPE = "Expected new value to be TensorDictBase instance but got {} instead."

MSG_NEW_DEVICE = "Devices differ: stack has device={}, new value has device={}."


@classes.provided
class LazyStackedTensorDict(  # type: ignore[misc] # as TensorDictBase
    CombiningOps,
    ReadingOps,
    WritingOps,
    FixedSize,
    TensorDictBase,
):
    """A stack of separate collections, its members; entries are stacked when read.

    ``stack[i]`` is the ``i``-th member itself, and a write to the stack is a write to
    the members. Entries may differ in shape between members; such dims are shown as -1.
    Members may also differ in keys: an entry that some members lack is hidden, and
    listed under ``exclusive_fields`` in the text of the stack.

    Args:
        *tensordicts: the members. Without members the stack is empty; :meth:`append`
            fills it.
        stack_dim: the dim along which members are stacked.
        hook_out: deprecated: a function that is called with each entry that is read.
        hook_in: deprecated: a function that is called with each entry that is written.
        batch_size: the batch size of the stack, checked if given. For an empty stack,
            the batch size of future members.
        device: the device of an empty stack.
        names: the names of an empty stack.
        stack_dim_name: the name of the stack dim.
        strict_shape: if true, the batch sizes of all members must be equal. If false,
            only their numbers of dims must be equal.

    Raises:
        RuntimeError: batch sizes or devices differ, or ``stack_dim`` is out of range.
        TypeError: a member is not a collection.

    Examples:
        >>> members = [TensorDict(a=torch.zeros(n)) for n in (2, 3)]
        >>> stack = LazyStackedTensorDict(*members, stack_dim=0)
        >>> stack[1] is members[1]
        True
        >>> stack.get("a", as_padded_tensor=True).shape
        torch.Size([2, 3])
    """

    _is_dense: ClassVar[bool] = False

    def __init__(
        self,
        *tensordicts: object,
        stack_dim: int = 0,
        hook_out: Callable[[Any], Any] | None = None,
        hook_in: Callable[[Any], Any] | None = None,
        batch_size: Sequence[int] | None = None,
        device: torch.device | None = None,
        names: Sequence[str] | None = None,
        stack_dim_name: str | None = None,
        strict_shape: bool = False,
    ) -> None:
        members = list(tensordicts)
        if members:
            dim = checked_dim(members, stack_dim)
            size = stack_size(members, dim, strict_shape)
            if batch_size is not None and torch.Size(batch_size) != size:
                raise RuntimeError(MSG_GIVEN_SIZE.format(torch.Size(batch_size), size))
        else:
            rest = list(batch_size or ())
            dim = stack_dim + len(rest) + 1 if stack_dim < 0 else stack_dim
            if dim < 0:
                raise RuntimeError(MSG_NEGATIVE_DIM.format(stack_dim))
            if dim > len(rest) and rest:
                raise RuntimeError(MSG_STACK_DIM.format(dim, torch.Size([*rest, 0])))
            names = None if batch_size is None else names
            if names is not None and len(names) != len(rest):
                raise ValueError(MSG_NAMES_LENGTH.format(list(names), len(rest)))
            size = torch.Size([*rest[:dim], 0, *rest[dim:]])
        fill_state(self, members, dim, size, stack_dim_name)
        self._hook_out, self._hook_in = hook_out, hook_in
        if not members and device is not None:
            self.__dict__["_device"] = torch.device(device)
        if not members and names is not None:
            self.__dict__["_member_names"] = list(names)

    @classmethod
    def _of(cls, members: list[Any], dim: int, name: str | None = None) -> Self:
        """Make a stack of members that are known to fit."""
        stack = cls.__new__(cls)
        size = merged_batch_size(members, dim)
        fill_state(stack, members, dim, size, name)
        return stack

    def _like(self, members: list[Any]) -> Self:
        """Make a stack of other members, with this class, dim and name."""
        if not members:
            copy = type(self).__new__(type(self))
            fill_state(copy, [], self.stack_dim, self._batch_size, self._td_dim_name)
            copy.__dict__["_device"] = self.__dict__.get("_device")
            return copy
        return type(self)._of(members, self.stack_dim, self._td_dim_name)

    @classmethod
    def lazy_stack(
        cls, input: object, dim: int = 0, *, out: object = None, **kwargs: object
    ) -> Any:
        """Stack collections lazily: see :func:`tensordict.lazy_stack`."""
        return lazy_stack(input, dim, out=out, **kwargs)

    @classmethod
    def from_dict(
        cls, input_dict: Any, *args: object, **kwargs: Any
    ) -> LazyStackedTensorDict:
        """Make a stack of collections from the values at ``"0"``, ``"1"``, and so on.

        Raises:
            KeyError: one of these keys is missing.
        """
        values = [input_dict[str(at)] for at in range(len(input_dict))]
        members = [TensorDict.from_dict(value, *args, **kwargs) for value in values]
        return lazy_stack(members)

    @classmethod
    def from_list(cls, input: Any, *args: object, **kwargs: Any) -> Any:
        """Make a stack of collections from the items of a list."""
        input = list(input)
        if not input:
            return cls(stack_dim=0)
        return TensorDict.from_list(input, *args, **{**kwargs, "lazy": True})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, also one of tensordict 0.15, and its lock."""
        state = dict(state)
        locked = state.pop("_is_locked", None)
        for name in ("_last_op", "_last_op_queue", "_lock_parents_weakrefs"):
            state.pop(name, None)
        self.__dict__.update(_is_locked=None)
        self.__dict__.update(state)
        if locked:
            self.lock_()

    # Members ---------------------------------------------------------------------

    @property
    def hook_out(self) -> Callable[[Any], Any] | None:
        """The function that is called with each entry that is read; deprecated."""
        return self._hook_out

    @hook_out.setter
    def hook_out(self, hook: Callable[[Any], Any] | None) -> None:
        self._hook_out = hook

    @property
    def hook_in(self) -> Callable[[Any], Any] | None:
        """The function that is called with each entry that is written; deprecated."""
        return self._hook_in

    @hook_in.setter
    def hook_in(self, hook: Callable[[Any], Any] | None) -> None:
        self._hook_in = hook

    # State, which the members hold --------------------------------------------------

    @property
    def _device(self) -> torch.device | None:
        if not self.tensordicts:
            return self.__dict__.get("_device")
        first: torch.device | None = self.tensordicts[0].device
        if first is None or first_misfit(self.tensordicts) is None:
            return first
        # A member was moved separately, so the devices differ.
        return None

    @_device.setter
    def _device(self, value: torch.device | None) -> None:
        if not self.tensordicts:
            self.__dict__["_device"] = value
        for member in self.tensordicts:
            member._device = value

    @property
    def _td_dim_names(self) -> list[str | None] | None:
        # Names of members, and the name of the stack dim, go to results of the stack.
        if self.tensordicts and not self._has_names():
            return None
        return self._own_names()

    @_td_dim_names.setter
    def _td_dim_names(self, value: list[str | None] | None) -> None:
        if value is None:
            self._td_dim_name = None
            for member in self.tensordicts:
                member._td_dim_names = None
            return
        rest = list(value)
        self._td_dim_name = rest.pop(self.stack_dim)
        kept = rest if any(name is not None for name in rest) else None
        for member in self.tensordicts:
            member._td_dim_names = None if kept is None else list(kept)

    def _own_names(self) -> list[str | None] | None:
        """Return the names of all dims, including the stack dim, or None."""
        dim_name = self._td_dim_name
        if not self.tensordicts:
            rest: list[str | None] | None = self.__dict__.get("_member_names")
            if dim_name is None and rest is None:
                return None
            if rest is None:
                rest = [None] * (len(self._batch_size) - 1)
            return [*rest[: self.stack_dim], dim_name, *rest[self.stack_dim :]]
        # If members disagree on a name, it is None here; `names` raises an error.
        first = list(self.tensordicts[0].names)
        for member in self.tensordicts:
            if member.names != first:
                pairs = zip(first, member.names, strict=True)
                first = [name if name == other else None for name, other in pairs]
        names = [*first[: self.stack_dim], dim_name, *first[self.stack_dim :]]
        return names if any(name is not None for name in names) else None

    @property
    def names(self) -> list[str | None]:
        """A name or None for each batch dim. See ``TensorDict.names``.

        Raises:
            ValueError: members have different names.
        """
        if self.tensordicts:
            first = self.tensordicts[0].names
            for member in self.tensordicts:
                if member.names != first:
                    raise ValueError(MSG_NAMES.format(first, member.names))
        own_names = self._own_names()
        return [None] * len(self._batch_size) if own_names is None else list(own_names)

    @names.setter
    def names(self, value: Sequence[str | None] | None) -> None:
        if value is not None and len(value) <= self.stack_dim:
            ndim = len(self._batch_size)
            raise IndexError(MSG_NAMES_LENGTH.format(list(value), ndim))
        BatchOps.names.fset(self, value)  # type: ignore[attr-defined]

    def _has_names(self) -> bool:
        if not self.tensordicts:
            return self._own_names() is not None
        return any(member._has_names() for member in self.tensordicts)

    @property
    def is_locked(self) -> bool:
        """Return whether the stack, or each of its members, is locked."""
        # Older versions of Dynamo cannot call the property of a new stack.
        return self._flag("_is_locked")

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        LockingOps.is_locked.fset(self, value)  # type: ignore[attr-defined]

    @property
    def _is_locked(self) -> bool:
        return self._flag("_is_locked")

    @_is_locked.setter
    def _is_locked(self, value: bool) -> None:
        self.__dict__["_is_locked"] = value

    @property
    def _is_memmap(self) -> bool:
        return self._flag("_is_memmap")

    @_is_memmap.setter
    def _is_memmap(self, value: bool) -> None:
        self.__dict__["_is_memmap"] = value

    @property
    def _is_shared(self) -> bool:
        return self._flag("_is_shared")

    @_is_shared.setter
    def _is_shared(self, value: bool) -> None:
        self.__dict__["_is_shared"] = value

    def _flag(self, name: str) -> bool:
        """Return whether the stack, or each of its members, has the flag."""
        if self.__dict__.get(name):
            return True
        members = self.tensordicts
        for member in members:
            if not getattr(member, name):
                return False
        return len(members) > 0

    def _common_size(self, *args: object) -> torch.Size:
        """Return the batch size: a nested stack keeps its own batch size."""
        return self._batch_size

    def _clear_device(self) -> None:
        """Do nothing: each member has its own device."""

    @property
    def _has_exclusive_keys(self) -> bool:  # type: ignore[override]
        """Whether some members have leaves, nested or not, that others lack."""
        return have_own_keys(self.tensordicts, True)

    # Indexing ------------------------------------------------------------------------

    def _plan(self, index: object) -> indexing.Plan | None:
        stack_dim = self.stack_dim
        if isinstance(index, list) and not stack_dim:
            refuse_fractions(index)
        try:
            return indexing.plan_index(
                self._batch_size, stack_dim, len(self.tensordicts), index
            )
        except IndexError as error:
            refuse_types(index, stack_dim, error)
            raise

    def _get_index(self, index: object) -> Any:
        return self._index(index)

    def _index(self, index: object) -> Any:
        if type(index) is int and self.stack_dim == 0:
            members = self.tensordicts
            if -len(members) <= index < len(members):
                return members[index]
        plan = self._plan(index)
        members = self.tensordicts
        if plan is None:
            return (
                LazyStackedTensorDict._of(
                    list(members), self.stack_dim, self._td_dim_name
                )
                if members
                else self
            )
        try:
            parts = [
                members[member] if at is None else members[member]._get_index(at)
                for member, at in plan.picks
            ]
        except RuntimeError:
            split = indexing.without_new_dims(index, self._batch_size)
            if split is None:
                raise
            # A nested tensor cannot get a new first dim: stack this stack instead.
            rest, places = split
            result = self._index(rest)
            for place in places:
                result = result._stack_lazily([result], place, None)
            return result
        if plan.dim is None:
            return parts[0]
        if not parts:
            return self._empty_at(index, plan)
        if plan.copies:
            parts = [_copied(part) for part in parts]
        if plan.to_front is not None:
            start, count = plan.to_front
            moved = tuple(range(start, start + count))
            parts = [part.movedim(moved, tuple(range(count))) for part in parts]
        result = nested_stacks(parts, plan.dim, plan.shape, self._names_at(index, plan))
        if self.is_locked and not result.is_locked:
            _rust.lock_tree(result)
        return result

    def _names_at(self, index: object, plan: indexing.Plan) -> Sequence[str | None]:
        """Return the names of the dims into which an index turns the stack dim."""
        if plan.keeps_name:
            return [self._td_dim_name]
        names = self._own_names()
        if plan.dim is None or names is None or -1 in self._batch_size:
            return [None] * len(plan.shape)
        # An index with several tensors, or dims: use the names of a dense collection.
        size, dim = self._batch_size, plan.dim
        indexed = _rust.index(_rust.new(TensorDict, {}, size, None, names), index)
        return indexed.names[dim : dim + len(plan.shape)]

    def _empty_at(self, index: object, plan: indexing.Plan) -> Any:
        """Return a dense collection without elements, if an index selects no member."""
        if not self.tensordicts or any(leaf.is_nested for leaf in _rust.leaves(self)):
            # Several nested tensors cannot be joined densely, so return an empty stack.
            size = list(_rust.index_shape(self._batch_size, index))
            at = size.index(0) if 0 in size else plan.dim or 0
            return LazyStackedTensorDict(
                stack_dim=at, batch_size=[*size[:at], *size[at + 1 :]]
            )
        first = self.tensordicts[0]
        if isinstance(first, LazyStackedTensorDict) and first._has_exclusive_keys:
            keys = [member_paths(member) for member in self.tensordicts]
            if all(member_keys == keys[0] for member_keys in keys):
                return self._with_dims_exchanged(first)._index(index)
        first = first.select(*self._keys_of_all())
        stack = LazyStackedTensorDict._of([first], self.stack_dim, self._td_dim_name)
        try:
            dense = stack.contiguous()
            if first._is_dense:
                dense = _rust.new(
                    type(first),
                    dense._tensordict,
                    dense._batch_size,
                    dense._device,
                    dense._td_dim_names,
                )
        except RuntimeError:
            if not isinstance(first, LazyStackedTensorDict):
                raise
            # The members differ in shape, so they stay in a lazy stack.
            return self._with_dims_exchanged(first)._index(index)
        names = self._own_names()
        if names is not None and any(names):
            dense.names = names
        size = list(dense.batch_size)
        size[self.stack_dim] = len(self.tensordicts)
        return _rust.index(dense.expand(size), index)

    def _keys_of_all(self) -> list[Any]:
        """Return the keys, also nested, of the first member that all members have."""
        keys: list[Any] = self._common_keys()
        if not have_own_keys(self.tensordicts, True):
            return keys
        below: dict[str, list[Any]] = {key: [] for key in keys}
        for key in _rust.walk(self, 0, True, False):
            entry = _rust.get(self.tensordicts[0], key, None)
            # Count the entries of a nested collection, or the collection if it is
            # empty.
            is_nested = isinstance(entry, CollectionProtocol)
            if not is_nested or not entry._held_keys():
                below[key if isinstance(key, str) else key[0]].append(key)
        return [path for key, paths in below.items() for path in paths or [key]]

    def _with_dims_exchanged(self, first: Any) -> LazyStackedTensorDict:
        """Exchange the two stack dims of a stack of equal stacks."""
        count, dim, inner = len(self.tensordicts), self.stack_dim, first.stack_dim
        members = [
            LazyStackedTensorDict._of(
                [member] * count, dim - (inner < dim), self._td_dim_name
            )
            for member in first.tensordicts
        ]
        at = inner + (dim <= inner)
        return LazyStackedTensorDict._of(members, at, first._td_dim_name)

    def permute(self, *args: object, **kwargs: object) -> Any:
        """Reorder the batch dims. The result is always a new stack.

        See ``TensorDict.permute``.
        """
        result = super().permute(*args, **kwargs)
        if result is not self:
            return result
        copy = self._like(list(self.tensordicts))
        return remember(self, copy, "permute", args, kwargs)

    def view(self, *shape: Any, size: Any = None, batch_size: Any = None) -> Any:
        """View the stack in another shape. For -1, return a new stack of the members.

        See ``TensorDict.view``.
        """
        result = super().view(*shape, size=size, batch_size=batch_size)
        shape_given = shape[0] if len(shape) == 1 else size
        is_open = shape_given == -1 or (
            isinstance(shape_given, (list, tuple)) and [*shape_given] == [-1]
        )
        if result is not self or not is_open:
            return result
        copy = self._like(list(self.tensordicts))
        copy._td_dim_name = None
        return remember(self, copy, "view", shape, {"size": size} if size else {})

    def atleast_1d(self) -> Self:
        """Add a leading batch dim if there is none."""
        return self._with_ndim(1)

    def atleast_2d(self) -> Self:
        """Add leading batch dims until there are two."""
        return self._with_ndim(2)

    def atleast_3d(self) -> Self:
        """Add leading batch dims until there are three."""
        return self._with_ndim(3)

    def _with_ndim(self, ndim: int) -> Any:
        result: Any = self
        while len(result.batch_size) < ndim:
            result = result.unsqueeze(0)
        return remember(self, result, f"atleast_{ndim}d", (), {})

    def to_lazystack(self, dim: int = 0) -> Any:
        """Return a stack along ``dim``; this stack itself if that is its stack dim."""
        ndim = len(self._batch_size)
        at = from_front(dim, ndim)
        if at == self.stack_dim:
            return self
        stack = super().to_lazystack(dim)
        stack._td_dim_name = None
        return stack

    # Dense copies ----------------------------------------------------------------------

    def _as_dense(self) -> Any:
        """Return a dense collection of the stacked entries, nested ones included."""
        if self._hook_out is None:
            stacked = _rust.stacked_members(
                self.tensordicts, self.stack_dim, TensorDict
            )
            if stacked is not None:
                return stacked
        entries = self._entries(False)
        for key, value in entries.items():
            if isinstance(value, LazyStackedTensorDict):
                entries[key] = value._as_dense()
            elif is_branch(value):
                # A stack of tensorclasses: stack its fields.
                entries[key] = value.contiguous()
        return self._with_entries(entries)

    def _replace_content(self, result: CollectionProtocol) -> Self:
        if self.is_locked:
            raise locked_error(self)
        shapes.take_over(self, result)
        return self

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Any:
        """Stack the entries of all members, in an ordinary, unlocked collection."""
        if inplace:
            return super().contiguous(canonical=canonical, inplace=True)
        return self._as_dense()

    def is_contiguous(self) -> bool:
        """Return False: entries are stacked when they are read."""
        return False

    def densify(self, layout: torch.layout = torch.strided) -> Any:
        """Stack each entry, as a nested tensor if members differ in shape.

        If some members lack an entry, empty tensors stand in for it.

        Args:
            layout: the layout of nested tensors: ``torch.strided`` or ``torch.jagged``.

        Raises:
            NotImplementedError: shapes differ, and the stack dim is not the first dim.

        Examples:
            >>> stack = lazy_stack([TensorDict(a=torch.ones(n)) for n in (1, 2)])
            >>> stack.densify(layout=torch.jagged)["a"].offsets().tolist()
            [0, 1, 3]
        """
        return shapes.densified(self, layout)

    # Files ----------------------------------------------------------------------------

    def _save_plan(self, plan: object, level: int) -> None:
        plan_stack(self, plan, level)

    def _saved(self, leaves: SavedTensors, directory: object, inplace: bool) -> Any:
        return saved_stack(self, leaves, directory, inplace)

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: object) -> Any:
        return load_stack(cls, directory, options)

    def _take_loaded(self, loaded: CollectionProtocol) -> Any:
        return take_loaded(self, loaded)

    def _shape_fields(self) -> dict[str, str | None]:
        return {"stack_dim_name": json.dumps(self._td_dim_name)}

    # Printing -------------------------------------------------------------------------

    def _repr_entries(self) -> list[tuple[str, Any]]:
        return shapes.printed_entries(self)

    def _nested_class(self, key: str, value: object) -> type[Any]:
        return type(shapes.first_entry(self, key))

    def _repr_parts(self) -> list[str]:
        from tensordict.containers.lazy import display

        return display.long_parts(self, super()._repr_parts())

    def _repr_compact(self) -> str:
        from tensordict.containers.lazy import display

        return display.compact(self)

    def _repr_exclusive(self) -> list[tuple[int, list[tuple[str, Any]]]]:
        from tensordict.containers.lazy import display

        return display.exclusive_entries(self)

    def _repr_head(self) -> list[str]:
        return [*super()._repr_head(), f"stack_dim={self.stack_dim}"]

    def _describe(self, rows: Iterator[Any]) -> Any:
        name = type(self).__name__
        dim, dim_name = self.stack_dim, self._td_dim_name
        return describing.describe_stack(name, self.tensordicts, dim, dim_name, rows)

    def _described_child(self, name: str) -> Any:
        return self.tensordicts[int(name)]

    @classmethod
    def _from_description(
        cls, level: dict[str, Any], source: Any, path: Any
    ) -> CollectionProtocol:
        members = sources.members_of(level, source, path)
        fields = level["cls_metadata"]
        dim, dim_name = fields["stack_dim"], fields["stack_dim_name"]
        stack = (
            cls._of(members, dim, dim_name)
            if members
            else _empty_stack(cls, dim, dim_name)
        )
        return sources.locked_as(stack, fields)

    def _put_leaves(self, leaves: Iterator[Any]) -> None:
        for member in self.tensordicts:
            member._put_leaves(leaves)

    def _to_level(self, writer: Any, path: tuple[str, ...]) -> dict[str, Any]:
        _leaf_keys(self, f"at {path}" if path else "at the root")
        names = [member.names for member in self.tensordicts]
        for others in names:
            if others != names[0]:
                raise ValueError(MSG_NAMES.format(names[0], others))
        level = safetensors_levels.stack_to_level(self, writer, path)
        keys = level.pop("keys")
        level["stack_dim"] = self.stack_dim
        if self._td_dim_name is not None:
            level["stack_dim_name"] = self._td_dim_name
        level["keys"] = keys
        return level

    @classmethod
    def _from_level(
        cls,
        level: dict[str, Any],
        reader: Any,
        path: str | os.PathLike[str],
        is_part: bool = False,
    ) -> Any:
        """Make the stack of a saved level. Its members are views of stacked tensors."""
        dense = reader.collection(level, path, is_part=True)
        dim = level["stack_dim"]
        # The published package only writes the stack dim's name among the other names.
        names = level.get("names")
        dim_name = level.get("stack_dim_name", names and names[dim])
        members = list(dense.unbind(dim))
        return (
            cls._of(members, dim, dim_name)
            if members
            else _empty_stack(cls, dim, dim_name)
        )

    def append(self, tensordict: CollectionProtocol) -> None:
        """Add a member at the end.

        Raises:
            RuntimeError: the stack is locked.
            TypeError: ``tensordict`` is not a collection.
            ValueError: its batch size or device differs from the other members'.

        Examples:
            >>> stack = LazyStackedTensorDict(stack_dim=0)
            >>> stack.append(TensorDict(a=torch.zeros(3)))
            >>> stack.batch_size
            torch.Size([1])
        """
        self.insert(len(self.tensordicts), tensordict)

    def insert(self, index: int, tensordict: CollectionProtocol) -> None:
        """Insert a member before the member at ``index``. See :meth:`append`."""
        self._refuse_locked()
        if not isinstance(tensordict, CollectionProtocol):
            raise TypeError(MSG_NEW_TYPE.format(type(tensordict)))
        self._add(index, [tensordict])

    def extend(self, tensordict: Any) -> None:
        """Add members at the end: a list of collections, or the members of a stack."""
        self._refuse_locked()
        if isinstance(tensordict, LazyStackedTensorDict) and (
            tensordict.stack_dim == self.stack_dim
        ):
            added = list(tensordict.tensordicts)
        elif isinstance(tensordict, CollectionProtocol):
            added = list(tensordict.unbind(self.stack_dim))
        else:
            added = list(tensordict)
        if not all(isinstance(member, CollectionProtocol) for member in added):
            raise TypeError(MSG_NEW_TYPE.format([type(member) for member in added]))
        self._add(len(self.tensordicts), added)

    def _refuse_locked(self) -> None:
        if self.is_locked and (self.tensordicts or self.__dict__.get("_is_locked")):
            raise locked_error(self)

    def _add(self, index: int, added: list[Any]) -> None:
        if not added:
            return
        # The new members are compared with the first one only, so that an append is
        # cheap.
        first = self.tensordicts[0] if self.tensordicts else added[0]
        for member in added:
            if member.device != first.device:
                raise ValueError(MSG_NEW_DEVICE.format(first.device, member.device))
            if member.batch_size != first.batch_size and not self._fits_member(member):
                message = MSG_NEW_SIZE.format(first.batch_size, member.batch_size)
                raise ValueError(message)
        dim = self.stack_dim
        if self.tensordicts:
            size = list(self._batch_size)
            # The caller may have added members to the list directly.
            size[dim] = len(self.tensordicts) + len(added)
            self._batch_size = torch.Size(size)
        elif dim > len(first.batch_size):
            raise RuntimeError(MSG_STACK_DIM.format(dim, first.batch_size))
        else:
            self._batch_size = merged_batch_size(added, dim)
        # In place, so that other references to the list see the new members.
        self.tensordicts[index:index] = added

    def _fits_member(self, member: Any) -> bool:
        """Return whether a member differs only in dims that are ragged already."""
        size = list(self._batch_size)
        del size[self.stack_dim]
        member_size = member.batch_size
        return len(member_size) == len(size) and all(
            length in (-1, other)
            for length, other in zip(size, member_size, strict=True)
        )


def _empty_stack(cls: Any, dim: int, dim_name: str | None) -> Any:
    """Make a stack without members."""
    return cls(stack_dim=dim, stack_dim_name=dim_name)


def _leaf_keys(
    td: CollectionProtocol, place: str
) -> frozenset[tuple[tuple[str, ...], bool]]:
    """Return the keys of all leaves, each with whether it is non-tensor data.

    Stacking the members drops a leaf that only some members have.

    Raises:
        TypeError: the members of a stack differ in their leaves.
    """
    if not td._is_dense and hasattr(td, "tensordicts"):
        keys_of_members = [_leaf_keys(member, place) for member in td.tensordicts]
        if any(keys != keys_of_members[0] for keys in keys_of_members):
            raise TypeError(MSG_KEYS.format(place))
        return keys_of_members[0] if keys_of_members else frozenset()
    keys: set[tuple[tuple[str, ...], bool]] = set()
    for key, value in td._entries().items():
        if is_branch(value):
            inner = _leaf_keys(value, place)
            keys.update(((key, *below), is_value) for below, is_value in inner)
        else:
            keys.add(((key,), not isinstance(value, torch.Tensor)))
    return frozenset(keys)


def _copied(part: CollectionProtocol) -> Any:
    """Return a copy of a part; unbatched tensors are shared, as at any tensor index."""
    copy = part.clone()
    leaves = _rust.leaves(part)
    if not any(map(is_shared, leaves)):
        return copy
    pairs = zip(leaves, _rust.leaves(copy), strict=True)
    return _rust.rebuild(
        copy, [leaf if is_shared(leaf) else new for leaf, new in pairs]
    )


LazyStackedTensorDict.__module__ = "tensordict._lazy"
