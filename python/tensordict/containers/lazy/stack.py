"""A stack of collections that are kept apart: entries are stacked when read."""

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
from tensordict.primitives.dim_numbers import from_front
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
    "Cannot save the lazy stack {} as safetensors: its entries have different keys. Give "
    "every entry the same keys first."
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
    """A stack of collections that are kept apart, and stacked entry by entry when read.

    ``stack[i]`` is the ``i``-th member itself, and what is written to the stack is
    written to the members. Members may differ in the shapes of their entries, which then
    show as -1, and in their keys: an entry that not all have is hidden, and listed under
    ``exclusive_fields`` in the text of the stack.

    Args:
        *tensordicts: the members. None makes an empty stack, to be filled by
            :meth:`append`.
        stack_dim: the dim along which members are stacked.
        hook_out: called with what is read, deprecated.
        hook_in: called with what is written, deprecated.
        batch_size: that of the stack, checked if given; of an empty stack, that of the
            members to come.
        device: of an empty stack.
        names: of an empty stack.
        stack_dim_name: the name of the stack dim.
        strict_shape: whether the batch sizes of members must be equal, and not only
            their numbers of dims.

    Raises:
        RuntimeError: batch sizes or devices differ, or there is no such dim.
        TypeError: a member is no collection.

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
        """A stack of members that are known to fit."""
        stack = cls.__new__(cls)
        size = merged_batch_size(members, dim)
        fill_state(stack, members, dim, size, name)
        return stack

    def _like(self, members: list[Any]) -> Self:
        """A stack of other members, of the class, dim and name of this one."""
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
    def from_dict(cls, input_dict: Any, *args: object, **kwargs: Any) -> Any:
        """A stack of the collections made of the values at ``"0"``, ``"1"``, and so on.

        Raises:
            KeyError: one of them is missing.
        """
        values = [input_dict[str(at)] for at in range(len(input_dict))]
        members = [TensorDict.from_dict(each, *args, **kwargs) for each in values]
        return lazy_stack(members)

    @classmethod
    def from_list(cls, input: Any, *args: object, **kwargs: Any) -> Any:
        """A stack of the collections made of the items of a list."""
        input = list(input)
        if not input:
            return cls(stack_dim=0)
        return TensorDict.from_list(input, *args, **{**kwargs, "lazy": True})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a pickle, ours or one of tensordict 0.15; lock it again."""
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
        """The function that is called with entries that are read; deprecated."""
        return self._hook_out

    @hook_out.setter
    def hook_out(self, hook: Callable[[Any], Any] | None) -> None:
        self._hook_out = hook

    @property
    def hook_in(self) -> Callable[[Any], Any] | None:
        """The function that is called with entries that are written; deprecated."""
        return self._hook_in

    @hook_in.setter
    def hook_in(self, hook: Callable[[Any], Any] | None) -> None:
        self._hook_in = hook

    # State, which is that of the members -------------------------------------------

    @property
    def _device(self) -> torch.device | None:
        if not self.tensordicts:
            return self.__dict__.get("_device")
        first: torch.device | None = self.tensordicts[0].device
        if first is None or first_misfit(self.tensordicts) is None:
            return first
        # One was put on a device by itself.
        return None

    @_device.setter
    def _device(self, value: torch.device | None) -> None:
        if not self.tensordicts:
            self.__dict__["_device"] = value
        for member in self.tensordicts:
            member._device = value

    @property
    def _td_dim_names(self) -> list[str | None] | None:
        # Results of the stack take the name of its dim along with those of members.
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
        """The names of all dims, that of the stack dim among them; None without any."""
        own = self._td_dim_name
        if not self.tensordicts:
            rest: list[str | None] | None = self.__dict__.get("_member_names")
            if own is None and rest is None:
                return None
            if rest is None:
                rest = [None] * (len(self._batch_size) - 1)
            return [*rest[: self.stack_dim], own, *rest[self.stack_dim :]]
        # A dim that members call differently has no known name: `names` says so.
        first = list(self.tensordicts[0].names)
        for member in self.tensordicts:
            if member.names != first:
                pairs = zip(first, member.names, strict=True)
                first = [name if name == other else None for name, other in pairs]
        names = [*first[: self.stack_dim], own, *first[self.stack_dim :]]
        return names if any(name is not None for name in names) else None

    @property
    def names(self) -> list[str | None]:
        """A name or None per batch dim. See ``TensorDict.names``.

        Raises:
            ValueError: members have different names.
        """
        if self.tensordicts:
            first = self.tensordicts[0].names
            for member in self.tensordicts:
                if member.names != first:
                    raise ValueError(MSG_NAMES.format(first, member.names))
        own = self._own_names()
        return [None] * len(self._batch_size) if own is None else list(own)

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
        """Return whether it is locked as a whole, or all of its members are."""
        # An older Dynamo does not know the property of a new stack.
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
        """Return whether the stack is marked so, or all of its members are."""
        if self.__dict__.get(name):
            return True
        members = self.tensordicts
        for member in members:
            if not getattr(member, name):
                return False
        return len(members) > 0

    def _common_size(self, *args: object) -> torch.Size:
        """The batch size: within another collection a stack keeps its own."""
        return self._batch_size

    def _clear_device(self) -> None:
        """No effect: each member has its own device."""

    @property
    def _has_exclusive_keys(self) -> bool:  # type: ignore[override]
        """Return whether some members have tensors, nested or not, that others lack."""
        return have_own_keys(self.tensordicts, True)

    # Indexing ------------------------------------------------------------------------

    def _plan(self, index: object) -> indexing.Plan | None:
        own = self.stack_dim
        if isinstance(index, list) and not own:
            refuse_fractions(index)
        try:
            return indexing.plan_index(
                self._batch_size, own, len(self.tensordicts), index
            )
        except IndexError as error:
            refuse_types(index, own, error)
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
            found = indexing.without_new_dims(index, self._batch_size)
            if found is None:
                raise
            # Nothing goes before the first dim of a nested tensor: the stack stays whole.
            rest, places = found
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
        """The names of the dims that an index makes of the stack dim."""
        if plan.keeps_name:
            return [self._td_dim_name]
        names = self._own_names()
        if plan.dim is None or names is None or -1 in self._batch_size:
            return [None] * len(plan.shape)
        # Index tensors in several dims, or of several: as in an ordinary collection.
        size, dim = self._batch_size, plan.dim
        taken = _rust.index(_rust.new(TensorDict, {}, size, None, names), index)
        return taken.names[dim : dim + len(plan.shape)]

    def _empty_at(self, index: object, plan: indexing.Plan) -> Any:
        """Return the dense collection without elements at an index of no member."""
        if not self.tensordicts or any(leaf.is_nested for leaf in _rust.leaves(self)):
            # Nested tensors of several members are never one: without any, there is none.
            size = list(_rust.index_shape(self._batch_size, index))
            at = size.index(0) if 0 in size else plan.dim or 0
            return LazyStackedTensorDict(
                stack_dim=at, batch_size=[*size[:at], *size[at + 1 :]]
            )
        first = self.tensordicts[0]
        if isinstance(first, LazyStackedTensorDict) and first._has_exclusive_keys:
            keys = [list(each._member_paths()) for each in self.tensordicts]
            if all(own == keys[0] for own in keys):
                return self._turned(first)._index(index)
        first = first.select(*self._keys_of_all())
        one = LazyStackedTensorDict._of([first], self.stack_dim, self._td_dim_name)
        try:
            dense = one.contiguous()
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
            # Its members, which differ in shape, stay apart.
            return self._turned(first)._index(index)
        names = self._own_names()
        if names is not None and any(names):
            dense.names = names
        size = list(dense.batch_size)
        size[self.stack_dim] = len(self.tensordicts)
        return _rust.index(dense.expand(size), index)

    def _keys_of_all(self) -> list[Any]:
        """The entries of the first member that the others have, nested ones too."""
        keys: list[Any] = self._common_keys()
        if not have_own_keys(self.tensordicts, True):
            return keys
        below: dict[str, list[Any]] = {key: [] for key in keys}
        for key in _rust.walk(self, 0, True, False):
            entry = _rust.get(self.tensordicts[0], key, None)
            # Each entry of a nested collection counts, and an empty one itself.
            is_nested = isinstance(entry, CollectionProtocol)
            if not is_nested or entry._is_non_tensor or not entry._held_keys():
                below[key if isinstance(key, str) else key[0]].append(key)
        return [path for key, paths in below.items() for path in paths or [key]]

    def _turned(self, first: Any) -> LazyStackedTensorDict:
        """A stack of stacks, all like ``first``, with the inner dim as the outer one."""
        count, own, inner = len(self.tensordicts), self.stack_dim, first.stack_dim
        members = [
            LazyStackedTensorDict._of(
                [each] * count, own - (inner < own), self._td_dim_name
            )
            for each in first.tensordicts
        ]
        at = inner + (own <= inner)
        return LazyStackedTensorDict._of(members, at, first._td_dim_name)

    def permute(self, *args: object, **kwargs: object) -> Any:
        """Reorder the batch dims: always a new stack. See ``TensorDict.permute``."""
        result = super().permute(*args, **kwargs)
        if result is not self:
            return result
        copy = self._like(list(self.tensordicts))
        return self._remember(copy, "permute", args, kwargs)

    def view(self, *shape: Any, size: Any = None, batch_size: Any = None) -> Any:
        """See ``TensorDict.view``; of -1 alone a new stack of the same members."""
        result = super().view(*shape, size=size, batch_size=batch_size)
        asked = shape[0] if len(shape) == 1 else size
        is_open = asked == -1 or (isinstance(asked, (list, tuple)) and [*asked] == [-1])
        if result is not self or not is_open:
            return result
        copy = self._like(list(self.tensordicts))
        copy._td_dim_name = None
        return self._remember(copy, "view", shape, {"size": size} if size else {})

    def atleast_1d(self) -> Self:
        """Add a leading batch dim where there is none."""
        return self._with_ndim(1)

    def atleast_2d(self) -> Self:
        """Add leading batch dims until there are 2."""
        return self._with_ndim(2)

    def atleast_3d(self) -> Self:
        """Add leading batch dims until there are 3."""
        return self._with_ndim(3)

    def _with_ndim(self, ndim: int) -> Any:
        result: Any = self
        while len(result.batch_size) < ndim:
            result = result.unsqueeze(0)
        return self._remember(result, f"atleast_{ndim}d", (), {})

    def to_lazystack(self, dim: int = 0) -> Any:
        """A stack along ``dim``: this one where it is that."""
        ndim = len(self._batch_size)
        at = from_front(dim, ndim)
        if at == self.stack_dim:
            return self
        stack = super().to_lazystack(dim)
        stack._td_dim_name = None
        return stack

    def _stack_members(self) -> Any:
        if not self.tensordicts:
            return self._as_dense()
        return _rust.stack(self.tensordicts, self.stack_dim)

    # Dense copies ----------------------------------------------------------------------

    def _as_dense(self) -> Any:
        """A dense collection of the entries stacked, down to the last."""
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
                # Stacks of a class: of its fields the same.
                entries[key] = value.contiguous()
        return self._with_entries(entries)

    def _replace_content(self, result: CollectionProtocol) -> Self:
        if self.is_locked:
            raise locked_error(self)
        shapes.take_over(self, result)
        return self

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Any:
        """Stack every entry that all members have: an ordinary collection, unlocked."""
        if inplace:
            return super().contiguous(canonical=canonical, inplace=True)
        return self._as_dense()

    def is_contiguous(self) -> bool:
        """False: entries are stacked when they are read."""
        return False

    def densify(self, layout: torch.layout = torch.strided) -> Any:
        """Stack every entry, as a nested tensor where members differ in shape.

        An entry that only some members have is stacked with empty ones for the others.

        Args:
            layout: of the nested tensors: ``torch.strided`` or ``torch.jagged``.

        Raises:
            NotImplementedError: shapes differ, and the stack dim is not the first.

        Examples:
            >>> stack = lazy_stack([TensorDict(a=torch.ones(n)) for n in (1, 2)])
            >>> stack.densify(layout=torch.jagged)["a"].offsets().tolist()
            [0, 1, 3]
        """
        return shapes.densified(self, layout)

    # Files --------------------------------------------------------------------------------

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

    # Printing ----------------------------------------------------------------------------

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
    def _from_description(cls, level: dict[str, Any], source: Any, path: Any) -> Any:
        members = sources.members_of(level, source, path)
        fields = level["cls_metadata"]
        dim, dim_name = fields["stack_dim"], fields["stack_dim_name"]
        stack = (
            cls._of(members, dim, dim_name) if members else _hollow(cls, dim, dim_name)
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
        """The stack of a level: its parts are views of the stacked tensors."""
        dense = reader.collection(level, path, is_part=True)
        dim = level["stack_dim"]
        # The published release writes the name of the stack dim among the others alone.
        names = level.get("names")
        dim_name = level.get("stack_dim_name", names and names[dim])
        members = list(dense.unbind(dim))
        return (
            cls._of(members, dim, dim_name) if members else _hollow(cls, dim, dim_name)
        )

    def append(self, tensordict: CollectionProtocol) -> None:
        """Add a member at the end.

        Raises:
            RuntimeError: the stack is locked.
            TypeError: ``tensordict`` is no collection.
            ValueError: its batch size is not that of the members.

        Examples:
            >>> stack = LazyStackedTensorDict(stack_dim=0)
            >>> stack.append(TensorDict(a=torch.zeros(3)))
            >>> stack.batch_size
            torch.Size([1])
        """
        self.insert(len(self.tensordicts), tensordict)

    def insert(self, index: int, tensordict: CollectionProtocol) -> None:
        """Add a member before the one at ``index``. See :meth:`append`."""
        self._refuse_locked()
        if not isinstance(tensordict, CollectionProtocol):
            raise TypeError(MSG_NEW_TYPE.format(type(tensordict)))
        self._add(index, [tensordict])

    def extend(self, tensordict: Any) -> None:
        """Add several members at the end: a list of them, or those of another stack."""
        self._refuse_locked()
        if isinstance(tensordict, LazyStackedTensorDict) and (
            tensordict.stack_dim == self.stack_dim
        ):
            added = list(tensordict.tensordicts)
        elif isinstance(tensordict, CollectionProtocol):
            added = list(tensordict.unbind(self.stack_dim))
        else:
            added = list(tensordict)
        if not all(isinstance(each, CollectionProtocol) for each in added):
            raise TypeError(MSG_NEW_TYPE.format([type(each) for each in added]))
        self._add(len(self.tensordicts), added)

    def _refuse_locked(self) -> None:
        if self.is_locked and (self.tensordicts or self.__dict__.get("_is_locked")):
            raise locked_error(self)

    def _add(self, index: int, added: list[Any]) -> None:
        if not added:
            return
        # Nothing here looks at the members there are: a stack grows by many appends.
        known = self.tensordicts[0] if self.tensordicts else added[0]
        for each in added:
            if each.device != known.device:
                raise ValueError(MSG_NEW_DEVICE.format(known.device, each.device))
            if each.batch_size != known.batch_size and not self._fits_member(each):
                message = MSG_NEW_SIZE.format(known.batch_size, each.batch_size)
                raise ValueError(message)
        dim = self.stack_dim
        if self.tensordicts:
            size = list(self._batch_size)
            # Some may have been put into the list itself.
            size[dim] = len(self.tensordicts) + len(added)
            self._batch_size = torch.Size(size)
        elif dim > len(known.batch_size):
            raise RuntimeError(MSG_STACK_DIM.format(dim, known.batch_size))
        else:
            self._batch_size = merged_batch_size(added, dim)
        # In place: whoever holds the list sees the new members.
        self.tensordicts[index:index] = added

    def _fits_member(self, member: Any) -> bool:
        """Return whether a member differs from the others only where those differ."""
        size = list(self._batch_size)
        del size[self.stack_dim]
        own = member.batch_size
        return len(own) == len(size) and all(
            length in (-1, other) for length, other in zip(size, own, strict=True)
        )


def _hollow(cls: Any, dim: int, dim_name: str | None) -> Any:
    """A stack without members."""
    return cls(stack_dim=dim, stack_dim_name=dim_name)


def _leaf_keys(
    td: CollectionProtocol, place: str
) -> frozenset[tuple[tuple[str, ...], bool]]:
    """The keys of what is no collection, each with whether it is a value.

    What only some members of a stack have would be left out where they are stacked.

    Raises:
        TypeError: members of a stack differ in them.
    """
    if not td._is_dense and hasattr(td, "tensordicts"):
        found = [_leaf_keys(member, place) for member in td.tensordicts]
        if any(keys != found[0] for keys in found):
            raise TypeError(MSG_KEYS.format(place))
        return found[0] if found else frozenset()
    keys: set[tuple[tuple[str, ...], bool]] = set()
    for key, value in td._entries().items():
        is_collection = isinstance(value, CollectionProtocol)
        if is_collection and not value._is_non_tensor:
            inner = _leaf_keys(value, place)
            keys.update(((key, *below), is_value) for below, is_value in inner)
        else:
            keys.add(((key,), is_collection))
    return frozenset(keys)


def _copied(part: CollectionProtocol) -> Any:
    """A copy of a part; what has no batch dims is shared, as at an index of any tensor."""
    copy = part.clone()
    leaves = _rust.leaves(part)
    if not any(map(is_shared, leaves)):
        return copy
    pairs = zip(leaves, _rust.leaves(copy), strict=True)
    return _rust.rebuild(copy, [own if is_shared(own) else new for own, new in pairs])


LazyStackedTensorDict.__module__ = "tensordict._lazy"
