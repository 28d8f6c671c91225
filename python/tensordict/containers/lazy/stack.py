"""A stack of containers that are kept apart: entries are stacked when they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from tensordict import _rust
from tensordict.collection import TensorDictBase
from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy import indexing, shapes
from tensordict.containers.lazy.combining import CombiningOps
from tensordict.containers.lazy.files import FilesOps
from tensordict.containers.lazy.formats import (
    as_nested,
    as_padded,
    stack_leaves,
)
from tensordict.containers.lazy.keys import StackKeysOps
from tensordict.containers.lazy.members import MembersOps
from tensordict.interop.twins import MSG_LOCKED
from tensordict.metatensor import MetaTensor
from tensordict.ops import access
from tensordict.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.storage.stacks import (
    load_stack,
    plan_stack,
    saved_stack,
    take_loaded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tensordict.protocol import NestedKeyLike

__all__ = ["LazyStackedTensorDict", "lazy_stack"]

MSG_MEMBER_TYPE = (
    "Expected all inputs to be TensorDictBase instances but got {} instead."
)
MSG_NEW_TYPE = "Expected new value to be TensorDictBase instance but got {} instead."
MSG_SIZES = (
    "batch sizes in tensordicts differs, LazyStackedTensorDict cannot be created. Got "
    "td[0].batch_size={} and td[i].batch_size={}. If the length match and you wish to "
    "stack these tensordicts, set strict_shape to False."
)
MSG_NEW_SIZE = (
    "Batch sizes in tensordicts differs: stack has batch_size={}, new_value has "
    "batch_size={}."
)
MSG_DEVICES = "devices differ, got {} and {}"
MSG_STACK_DIM = "Stack dim {} is too big for batch size {}."
MSG_NEGATIVE_DIM = "Couldn't infer stack dim from negative value, got stack_dim={}"
MSG_GIVEN_SIZE = "batch_size does not match self.batch_size: {} vs {}."
MSG_BATCH_SIZE = (
    "Received a new batch size {} with an existing batch_size {} in a lazy TD. "
    "Modifying the batch size of a lazy representation of a tensordict is not "
    "permitted. Consider instantiating the tensordict first by calling `td = "
    "td.to_tensordict()` before resetting the batch size."
)
MSG_NAMES = "Not all dim names match, got {} and {}."
MSG_OUT_SIZE = (
    "out.batch_size and stacked batch size must match, got out.batch_size={} and "
    "batch_size={}"
)
MSG_KEYWORD = "{}._get_str() got an unexpected keyword argument {!r}"
MSG_NESTED_DIM = (
    "Because nested tensors can only be stacked along their first dimension, "
    "LazyStackedTensorDict.get_nestedtensor can only be called when the stack_dim is 0."
)
FORMATS = frozenset(
    {
        "as_list",
        "as_padded_tensor",
        "as_nested_tensor",
        "padding_side",
        "padding_value",
        "layout",
    }
)
"""What ``get`` takes besides the key and a default."""


class LazyStackedTensorDict(
    StackKeysOps, CombiningOps, MembersOps, FilesOps, TensorDictBase
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
    _nests_alike: ClassVar[bool] = True

    tensordicts: list[Any]
    stack_dim: int
    _td_dim_name: str | None = None
    _hook_out: Callable[[Any], Any] | None = None
    _hook_in: Callable[[Any], Any] | None = None

    def __init__(
        self,
        *tensordicts: Any,
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
            dim = _checked_dim(members, stack_dim)
            size = _stack_size(members, dim, strict_shape)
            if batch_size is not None and torch.Size(batch_size) != size:
                raise RuntimeError(MSG_GIVEN_SIZE.format(torch.Size(batch_size), size))
        else:
            rest = list(batch_size or ())
            dim = stack_dim + len(rest) + 1 if stack_dim < 0 else stack_dim
            size = torch.Size([*rest[:dim], 0, *rest[dim:]])
        _fill(self, members, dim, size, stack_dim_name)
        self._hook_out, self._hook_in = hook_out, hook_in
        if not members and device is not None:
            self.__dict__["_device"] = torch.device(device)

    @classmethod
    def _of(cls, members: list[Any], dim: int, name: str | None = None) -> Self:
        """A stack of members that are known to fit."""
        stack = cls.__new__(cls)
        size = _merged_size(members, dim)
        _fill(stack, members, dim, size, name)
        return stack

    def _like(self, members: list[Any]) -> Self:
        """A stack of other members, of the class, dim and name of this one."""
        if not members:
            copy = type(self).__new__(type(self))
            _fill(copy, [], self.stack_dim, self._batch_size, self._td_dim_name)
            copy.__dict__["_device"] = self.__dict__.get("_device")
            return copy
        return type(self)._of(members, self.stack_dim, self._td_dim_name)

    @classmethod
    def lazy_stack(
        cls, input: Any, dim: int = 0, *, out: Any = None, **kwargs: Any
    ) -> Any:
        """Stack collections lazily: see :func:`tensordict.lazy_stack`."""
        return lazy_stack(input, dim, out=out, **kwargs)

    @classmethod
    def from_dict(cls, input_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """A stack of the collections made of the values at ``"0"``, ``"1"``, and so on.

        Raises:
            KeyError: one of them is missing.
        """
        values = [input_dict[str(at)] for at in range(len(input_dict))]
        members = [TensorDict.from_dict(each, *args, **kwargs) for each in values]
        return lazy_stack(members)

    @classmethod
    def from_list(cls, input: Any, *args: Any, **kwargs: Any) -> Any:
        """A stack of the collections made of the items of a list."""
        return TensorDict.from_list(input, *args, **{**kwargs, "lazy": True})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a pickle, ours or the published release's; lock it again."""
        state = dict(state)
        locked = state.pop("_is_locked", None)
        for name in ("_last_op", "_last_op_queue", "_lock_parents_weakrefs"):
            state.pop(name, None)
        self.__dict__.update(_is_locked=None)
        self.__dict__.update(state)
        if locked:
            self.lock_()

    # Members ---------------------------------------------------------------------

    def append(self, tensordict: Any) -> None:
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

    def insert(self, index: int, tensordict: Any) -> None:
        """Add a member before the one at ``index``. See :meth:`append`."""
        if not isinstance(tensordict, CollectionProtocol):
            raise TypeError(MSG_NEW_TYPE.format(type(tensordict)))
        self._add(index, [tensordict])

    def extend(self, tensordict: Any) -> None:
        """Add several members at the end: a list of them, or those of another stack."""
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

    def _add(self, index: int, added: list[Any]) -> None:
        if self.is_locked and (self.tensordicts or self.__dict__.get("_is_locked")):
            raise RuntimeError(MSG_LOCKED)
        if not added:
            return
        # Nothing here looks at the members there are: a stack grows by many appends.
        known = self.tensordicts[0] if self.tensordicts else added[0]
        for each in added:
            if each.batch_size != known.batch_size and not self._takes(each):
                message = MSG_NEW_SIZE.format(known.batch_size, each.batch_size)
                raise ValueError(message)
        _check_members([known, *added])
        dim = self.stack_dim
        if self.tensordicts:
            size = list(self._batch_size)
            size[dim] += len(added)
            self._batch_size = torch.Size(size)
        elif dim > len(known.batch_size):
            raise RuntimeError(MSG_STACK_DIM.format(dim, known.batch_size))
        else:
            self._batch_size = _merged_size(added, dim)
        # In place: whoever holds the list sees the new members.
        self.tensordicts[index:index] = added

    def _takes(self, member: Any) -> bool:
        """Whether a member differs from the others only where those differ, too."""
        size = list(self._batch_size)
        del size[self.stack_dim]
        own = member.batch_size
        return len(own) == len(size) and all(
            length in (-1, other) for length, other in zip(size, own, strict=True)
        )

    @property
    def hook_out(self) -> Callable[[Any], Any] | None:
        """What is called with entries that are read; deprecated."""
        return self._hook_out

    @hook_out.setter
    def hook_out(self, hook: Callable[[Any], Any] | None) -> None:
        self._hook_out = hook

    @property
    def hook_in(self) -> Callable[[Any], Any] | None:
        """What is called with entries that are written; deprecated."""
        return self._hook_in

    @hook_in.setter
    def hook_in(self, hook: Callable[[Any], Any] | None) -> None:
        self._hook_in = hook

    # State, which is that of the members -------------------------------------------

    @property
    def _device(self) -> torch.device | None:
        if not self.tensordicts:
            return self.__dict__.get("_device")
        return self.tensordicts[0].device

    @_device.setter
    def _device(self, value: Any) -> None:
        if not self.tensordicts:
            self.__dict__["_device"] = value
        for member in self.tensordicts:
            member._device = value

    @property
    def _td_dim_names(self) -> list[str | None] | None:  # type: ignore[override]
        own = self._td_dim_name
        if not self.tensordicts:
            if own is None:
                return None
            rest: list[str | None] = [None] * (len(self._batch_size) - 1)
            return [*rest[: self.stack_dim], own, *rest[self.stack_dim :]]
        named = [member for member in self.tensordicts if member._has_names()]
        if not named and own is None:
            return None
        first = self.tensordicts[0].names
        for member in self.tensordicts:
            if member.names != first:
                raise ValueError(MSG_NAMES.format(first, member.names))
        return [*first[: self.stack_dim], own, *first[self.stack_dim :]]

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

    def _has_names(self) -> bool:
        return self._td_dim_name is not None or any(
            member._has_names() for member in self.tensordicts
        )

    @property
    def _is_locked(self) -> bool:  # type: ignore[override]
        return self._flag("_is_locked")

    @_is_locked.setter
    def _is_locked(self, value: bool | None) -> None:
        self.__dict__["_is_locked"] = value

    @property
    def _is_memmap(self) -> bool:  # type: ignore[override]
        return self._flag("_is_memmap")

    @_is_memmap.setter
    def _is_memmap(self, value: bool) -> None:
        self.__dict__["_is_memmap"] = value

    @property
    def _is_shared(self) -> bool:  # type: ignore[override]
        return self._flag("_is_shared")

    @_is_shared.setter
    def _is_shared(self, value: bool) -> None:
        self.__dict__["_is_shared"] = value

    def _flag(self, name: str) -> bool:
        """Whether the stack is marked so, or all of its members are."""
        if self.__dict__.get(name):
            return True
        members = self.tensordicts
        return bool(members) and all(getattr(member, name) for member in members)

    @property
    def batch_size(self) -> torch.Size:
        """The batch size, -1 in dims where those of members differ. It stays as it is."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        if not isinstance(value, (list, tuple)) or tuple(value) != self._batch_size:
            raise RuntimeError(MSG_BATCH_SIZE.format(value, self._batch_size))

    def _resize_batch(self, size: torch.Size) -> None:
        if size != self._batch_size:
            raise RuntimeError(MSG_BATCH_SIZE.format(size, self._batch_size))

    def _clear_device(self) -> None:
        """No effect: each member has its own device."""

    @property
    def _has_exclusive_keys(self) -> bool:  # type: ignore[override]
        """Whether members have keys that not all of them have, here or nested."""
        members = self.tensordicts
        if not members:
            return False
        first = _key_set(members[0])
        return any(_key_set(member) != first for member in members[1:])

    # Reading -----------------------------------------------------------------------

    def _common_keys(self) -> list[str]:
        """The keys that all members have, in the order of the first."""
        return _rust.common_keys(self.tensordicts)

    def _group(self, key: str) -> list[Any] | None:
        """The entries of all members at a direct key; None where one has none."""
        return _rust.member_values(self.tensordicts, (key,))

    def _stacked(self, key: str, values: list[Any]) -> Any:
        """The entries of all members as one."""
        first = values[0]
        if isinstance(first, CollectionProtocol):
            value = first._stack_lazily(values, self.stack_dim, self._td_dim_name)
        else:
            value = stack_leaves(key, values, self.stack_dim)
        hook = self._hook_out
        return value if hook is None else hook(value)

    def _entries(self) -> dict[str, Any]:
        entries = {}
        for key in self._common_keys():
            values = self._group(key)
            if values is not None:
                entries[key] = self._stacked(key, values)
        return entries

    def _get_entry(self, key: str, default: Any) -> Any:
        values = self._group(key)
        return default if values is None else self._stacked(key, values)

    def _sample_entries(self) -> dict[str, Any]:
        entries = {}
        for key in self._common_keys():
            # Of a leaf any will do, containers have to be seen as a stack.
            value = self.tensordicts[0]._sample_entry(key)
            if isinstance(value, CollectionProtocol):
                values = self._group(key)
                value = value if values is None else self._sampled(values)
            entries[key] = value
        return entries

    def _sample_entry(self, key: str) -> Any:
        values = self._group(key)
        return NO_DEFAULT if values is None else self._sampled(values)

    def _sampled(self, values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, CollectionProtocol):
            return first._stack_lazily(values, self.stack_dim, self._td_dim_name)
        return first

    def _children(self) -> list[Any]:
        return list(self.tensordicts)

    def get(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any:
        """The entry at a nested key, or ``default`` where not all members have it.

        Args:
            key: a nested key.
            *args: ``default``, by position. Without it a missing entry is None.
            **kwargs: ``default``, and how an entry is read whose members differ in
                shape: ``as_list=True`` gives them in a list; ``as_padded_tensor=True`` a
                tensor filled up with ``padding_value`` (0) on the ``padding_side``
                (``"right"``); ``as_nested_tensor=True`` a nested tensor of the
                ``layout`` (``torch.jagged``).

        Raises:
            RuntimeError: the entries of members differ in shape, and none of these is
                given.

        Examples:
            >>> stack = lazy_stack([TensorDict(a=torch.ones(n)) for n in (1, 2)])
            >>> stack.get("a", as_padded_tensor=True, padding_value=-1)
            tensor([[ 1., -1.],
                    [ 1.,  1.]])
            >>> stack.get("missing", 0)
            0
        """
        if len(args) > 1:
            raise TypeError(access.MSG_ONE_DEFAULT)
        if "default" in kwargs:
            default = kwargs.pop("default")
        else:
            default = args[0] if args else access.DEFAULT_OF_GET
        if not kwargs:
            return self._read(key, default)
        return self._get_formatted(key, default, kwargs)

    def __getitem__(self, index: Any) -> Any:
        """The stacked entry at a nested key, or the part of the stack at an index."""
        if isinstance(index, str) or (
            isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
        ):
            return self._read(index, NO_DEFAULT)
        return self._get_index(index)

    def _read(self, key: Any, default: Any) -> Any:
        """The entry at a nested key: a nested leaf without the stacks on the way."""
        path = _rust.unravel_key_to_tuple(key)
        if path and self._hook_out is None:
            values = _rust.member_values(self.tensordicts, path)
            if values is not None and isinstance(values[0], torch.Tensor):
                return stack_leaves(key, values, self.stack_dim)
        if default is NO_DEFAULT:
            return _rust.getitem(self, path or key)
        return _rust.get(self, key, default)

    def _get_formatted(self, key: Any, default: Any, kwargs: dict[str, Any]) -> Any:
        for name in kwargs:
            if name not in FORMATS:
                raise TypeError(MSG_KEYWORD.format(type(self).__name__, name))
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            return _rust.get(self, key, default)
        parent: Any = self
        for part in path[:-1]:
            parent = parent._get_entry(part, NO_DEFAULT)
            if not isinstance(parent, LazyStackedTensorDict):
                return _rust.get(self, key, default)
        values = parent._group(path[-1])
        if values is None or isinstance(values[0], CollectionProtocol):
            return _rust.get(self, key, default)
        if kwargs.get("as_list"):
            return values
        if kwargs.get("as_padded_tensor"):
            padding = kwargs.get("padding_value", 0)
            side = kwargs.get("padding_side", "right")
            return as_padded(values, parent.stack_dim, padding, side)
        if kwargs.get("as_nested_tensor"):
            return as_nested(values, kwargs.get("layout"))
        return parent._stacked(path[-1], values)

    def _get_str(self, key: str, default: Any = NO_DEFAULT, **kwargs: Any) -> Any:
        if not kwargs:
            return _rust.get(self, key, default)
        return self._get_formatted(key, default, kwargs)

    def _get_tuple(
        self, key: tuple[str, ...], default: Any = NO_DEFAULT, **kwargs: Any
    ) -> Any:
        return self._get_str(key, default, **kwargs)  # type: ignore[arg-type]

    def get_nestedtensor(
        self,
        key: NestedKeyLike,
        default: Any = NO_DEFAULT,
        *,
        layout: torch.layout | None = None,
    ) -> Any:
        """The entry at a nested key as a nested tensor, a strided one by default.

        Raises:
            RuntimeError: the stack dim is not the first.
        """
        if self.stack_dim != 0:
            raise RuntimeError(MSG_NESTED_DIM)
        form = torch.strided if layout is None else layout
        kwargs = {"as_nested_tensor": True, "layout": form}
        return self._get_formatted(key, default, kwargs)

    def get_item_shape(self, key: NestedKeyLike) -> torch.Size:
        """The shape of the entry at ``key``, -1 in dims where members differ.

        Nothing is stacked for it.

        Raises:
            KeyError: not all members have such an entry.
        """
        meta = self._meta(key)
        return meta.shape

    def _meta(self, key: NestedKeyLike) -> Any:
        """What is known of an entry without stacking it; a container as it is."""
        path = _rust.unravel_key_to_tuple(key)
        parent: Any = self
        for part in path[:-1]:
            parent = parent._sample_entry(part)
            if not isinstance(parent, LazyStackedTensorDict):
                return _rust.get(self, key)
        values = parent._group(path[-1]) if path else None
        if values is None:
            return _rust.get(self, key, NO_DEFAULT)
        if isinstance(values[0], CollectionProtocol):
            return parent._sampled(values)
        return MetaTensor._of_stack(values, parent.stack_dim)

    def is_empty(self) -> bool:
        """Whether no member has a leaf."""
        return all(member.is_empty() for member in self.tensordicts)

    def __iter__(self) -> Iterator[Any]:
        """The members where they are stacked along the first dim, else parts of them."""
        if self.stack_dim == 0:
            return iter(list(self.tensordicts))
        return super().__iter__()

    # Indexing ------------------------------------------------------------------------

    def _plan(self, index: Any) -> indexing.Plan | None:
        return indexing.plan_index(
            self._batch_size, self.stack_dim, len(self.tensordicts), index
        )

    def _get_index(self, index: Any) -> Any:
        return self._index(index)

    def _index(self, index: Any) -> Any:
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
        parts = [
            members[member] if at is None else members[member]._get_index(at)
            for member, at in plan.picks
        ]
        if plan.dim is None:
            return parts[0]
        if not parts:
            return self._empty_at(index, plan)
        if plan.to_front is not None:
            start, count = plan.to_front
            moved = tuple(range(start, start + count))
            parts = [part.movedim(moved, tuple(range(count))) for part in parts]
        name = self._td_dim_name if plan.keeps_name else None
        return _nest(parts, plan.dim, plan.shape, name)

    def _empty_at(self, index: Any, plan: indexing.Plan) -> Any:
        """What an index gives that takes no member: a dense container without elements."""
        if not self.tensordicts:
            return LazyStackedTensorDict(stack_dim=plan.dim or 0)
        first = self.tensordicts[0].select(*self._common_keys())
        one = LazyStackedTensorDict._of([first], self.stack_dim, self._td_dim_name)
        dense = one.contiguous()
        size = list(dense.batch_size)
        size[self.stack_dim] = len(self.tensordicts)
        return _rust.index(dense.expand(size), index)

    def permute(self, *args: Any, **kwargs: Any) -> Any:
        """Reorder the batch dims: always a new stack. See ``TensorDict.permute``."""
        result = super().permute(*args, **kwargs)
        if result is not self:
            return result
        copy = self._like(list(self.tensordicts))
        return self._remember(copy, "permute", args, kwargs)

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
        at = dim + ndim if dim < 0 else dim
        return self if at == self.stack_dim else super().to_lazystack(dim)

    def _stack_members(self) -> Any:
        if not self.tensordicts:
            return self._as_dense()
        return _rust.stack(self.tensordicts, self.stack_dim)

    # Dense copies ----------------------------------------------------------------------

    def _as_dense(self) -> Any:
        """A dense container of the entries stacked, down to the last."""
        if self._td_dim_name is None and self._hook_out is None:
            stacked = _rust.stacked_members(
                self.tensordicts, self.stack_dim, TensorDict
            )
            if stacked is not None:
                return stacked
        entries = self._entries()
        for key, value in entries.items():
            if isinstance(value, LazyStackedTensorDict):
                entries[key] = value._as_dense()
        return self._with_entries(entries)

    def _with_entries(self, entries: dict[str, Any]) -> Any:
        return _rust.new(
            TensorDict, entries, self._batch_size, self._device, self._td_dim_names
        )

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Any:
        """Stack every entry that all members have: an ordinary container, unlocked."""
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

    def _save_plan(self, plan: Any, level: int) -> None:
        plan_stack(self, plan, level)

    def _saved(
        self, leaves: Iterator[torch.Tensor], directory: Any, inplace: bool
    ) -> Any:
        return saved_stack(self, leaves, directory, inplace)

    @classmethod
    def _load_tree(cls, directory: Path, options: Any) -> Any:
        return load_stack(cls, directory, options)

    def _take_loaded(self, loaded: Any) -> None:
        take_loaded(self, loaded)

    # How it prints -----------------------------------------------------------------------

    def _repr_entries(self) -> list[tuple[str, Any]]:
        return shapes.printed_entries(self)

    def _repr_parts(self) -> list[str]:
        from tensordict.containers.lazy import display

        return display.long_parts(self, super()._repr_parts())

    def _repr_compact(self) -> str:
        from tensordict.containers.lazy import display

        return display.compact(self)

    def _repr_head(self) -> list[str]:
        return [*super()._repr_head(), f"stack_dim={self.stack_dim}"]


def _fill(
    stack: Any, members: list[Any], dim: int, size: torch.Size, name: str | None
) -> None:
    """Give a new stack its state: the keys of an instance of the published release."""
    stack._is_locked = None
    stack.stack_dim = dim
    stack._batch_size = size
    stack.tensordicts = members
    stack._hook_out = None
    stack._hook_in = None
    if name is not None:
        stack._td_dim_name = name


def _checked_dim(members: list[Any], stack_dim: int) -> int:
    """The stack dim counted from the front.

    Raises:
        RuntimeError: there is no such dim, or devices differ.
        TypeError: a member is no collection.
    """
    _check_members(members)
    size = members[0].batch_size
    dim = stack_dim + len(size) + 1 if stack_dim < 0 else stack_dim
    if dim < 0:
        raise RuntimeError(MSG_NEGATIVE_DIM.format(stack_dim))
    if dim > len(size):
        raise RuntimeError(MSG_STACK_DIM.format(dim, torch.Size([*size, len(members)])))
    return dim


def _check_members(members: list[Any]) -> None:
    misfit = _rust.first_misfit(members)
    if misfit is None:
        return
    for member in members:
        if not isinstance(member, CollectionProtocol):
            raise TypeError(MSG_MEMBER_TYPE.format(type(member)))
    devices = members[0].device, members[misfit].device
    raise RuntimeError(MSG_DEVICES.format(*devices))


def _merged_size(members: list[Any], dim: int) -> torch.Size:
    size = _rust.merged_size(members, dim)
    if size is None:
        first = members[0].batch_size
        for member in members:
            if len(member.batch_size) != len(first):
                raise RuntimeError(MSG_SIZES.format(first, member.batch_size))
        raise RuntimeError(
            MSG_STACK_DIM.format(dim, torch.Size([*first, len(members)]))
        )
    return size


def _stack_size(members: list[Any], dim: int, strict: bool) -> torch.Size:
    """The batch size of a stack.

    Raises:
        RuntimeError: those of the members differ in length, or at all if ``strict``.
    """
    if strict:
        first = members[0].batch_size
        for member in members:
            if member.batch_size != first:
                raise RuntimeError(MSG_SIZES.format(first, member.batch_size))
    return _merged_size(members, dim)


def _key_set(td: Any) -> set[Any]:
    return set(_rust.walk(td, 0, True, False)) if td._is_dense else set(td.keys(True))


def _nest(parts: list[Any], dim: int, shape: tuple[int, ...], name: Any) -> Any:
    """The parts stacked along ``dim`` in the dims of ``shape``, the outermost first."""
    if len(shape) == 1:
        return parts[0]._stack_lazily(parts, dim, name)
    step = len(parts) // shape[0]
    inner = [
        _nest(parts[start : start + step], dim, shape[1:], None)
        for start in range(0, len(parts), step)
    ]
    return inner[0]._stack_lazily(inner, dim, None)


def lazy_stack(input: Any, dim: int = 0, *, out: Any = None, **kwargs: Any) -> Any:
    """Stack collections along a new batch dim without copying them.

    Args:
        input: the collections, or tensors, which are stacked by :func:`torch.stack`.
        dim: the new dim.
        out: the collection to write into, and to return.
        **kwargs: ``stack_dim_name`` and ``strict_shape``, as of
            :class:`LazyStackedTensorDict`; of tensors the formats of its ``get``.

    Raises:
        RuntimeError: ``input`` is empty, or batch sizes do not fit.

    Examples:
        >>> members = [TensorDict(a=torch.zeros(n)) for n in (2, 3)]
        >>> stack = lazy_stack(members)
        >>> stack[0] is members[0]
        True
        >>> stack.get_item_shape("a")
        torch.Size([2, -1])
    """
    items = input
    if not len(items):
        msg = "items cannot be empty"
        raise RuntimeError(msg)
    first = items[0]
    if isinstance(first, torch.Tensor):
        return _stack_tensors(list(items), dim, out, kwargs)
    if not isinstance(first, CollectionProtocol):
        raise TypeError(MSG_MEMBER_TYPE.format(type(first)))
    members = list(items)
    at = _checked_dim(members, dim)
    size = _stack_size(members, at, bool(kwargs.get("strict_shape", False)))
    if out is not None:
        if out.batch_size != size:
            raise RuntimeError(MSG_OUT_SIZE.format(out.batch_size, size))
        return out.update(LazyStackedTensorDict._of(members, at), inplace=True)
    name = kwargs.get("stack_dim_name")
    return first._stack_lazily(members, at, name)


MSG_TENSORS = (
    "Failed to stack tensors within a tensordict. To stack tensors of different shapes, "
    "pass as_padded_tensor=True, as_nested_tensor=True or as_list=True. Check the "
    "TensorDict.lazy_stack documentation!"
)


def _stack_tensors(values: list[Any], dim: int, out: Any, kwargs: Any) -> Any:
    if kwargs.get("as_list"):
        return values
    if kwargs.get("as_padded_tensor"):
        padding = kwargs.get("padding_value", 0)
        return as_padded(values, dim, padding, kwargs.get("padding_side", "right"))
    if kwargs.get("as_nested_tensor"):
        return as_nested(values, kwargs.get("layout"))
    try:
        return torch.stack(values, dim, out=out)
    except RuntimeError:
        if any(value.shape != values[0].shape for value in values):
            raise RuntimeError(MSG_TENSORS) from None
        raise


LazyStackedTensorDict.__module__ = "tensordict._lazy"
lazy_stack.__module__ = "tensordict._td_functions"
