"""Reading a lazy stack: its keys, stacked entries, other formats, and metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import torch

from tensordict import _rust
from tensordict.containers.lazy.construct import check_members
from tensordict.containers.lazy.formats import (
    as_nested,
    as_padded,
    check_tensors,
    stack_leaves,
)
from tensordict.ops import access
from tensordict.ops.key_views import _sorting_key, _TensorDictKeysView
from tensordict.ops.keys import set_default
from tensordict.primitives.checks import holds_values, inside, is_branch
from tensordict.primitives.common import MSG_MEMBERSHIP
from tensordict.primitives.dims import remember
from tensordict.primitives.errors import bad_key, locked_error, missing_path
from tensordict.primitives.lazy import first_misfit
from tensordict.primitives.metatensor import MetaTensor
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol, StackProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.containers.dense import TensorDict
    from tensordict.primitives.entry import Entry
    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike

    T = TypeVar("T")
    from collections.abc import Callable

__all__ = ["ReadingOps", "StackState"]

MSG_KEYWORD = "{}._get_str() got an unexpected keyword argument {!r}"
MSG_NESTED_DIM = (
    "Because nested tensors can only be stacked along their first dimension, "
    "LazyStackedTensorDict.get_nestedtensor can only be called when the stack_dim is 0."
)
MSG_NESTED_ROWS = (
    "Cannot build a nested tensor from entries that are nested tensors themselves: the "
    "members of this stack are stacks. Pass as_list=True or as_padded_tensor=True."
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
"""The keyword arguments of ``get`` that choose a format."""


MSG_EXCLUSIVE = "the method {} cannot complete when there are exclusive keys."

MSG_DELETE = "Key {} not found in any of the stacked tensordicts."


class _LazyStackedTensorDictKeysView(_TensorDictKeysView):
    """A live view of the keys that all members of a stack have."""

    tensordict: Any

    def _list(self) -> list[NestedKeyLike]:
        if self.include_nested or self.leaves_only:
            return super()._list()
        keys: list[Any] = self.tensordict._common_keys()
        return sorted(keys, key=_sorting_key) if self.sort else keys

    def __len__(self) -> int:
        return len(self._list())

    def __contains__(self, key: object) -> bool:
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise TypeError(MSG_MEMBERSHIP)
        if len(path) > 1 and not self.include_nested:
            return False
        if self.leaves_only:
            return (path if len(path) > 1 else path[0]) in self._list()
        try:
            return _rust.contains(self.tensordict, path)
        except RuntimeError:
            # Nested collections that cannot be stacked are searched one by one.
            members = self.tensordict.tensordicts
            return all(_rust.contains(member, path) for member in members)


_LazyStackedTensorDictKeysView.__module__ = "tensordict._lazy"


class StackState(StackProtocol):
    """The state of a lazy stack, which the classes in this folder read and write."""

    _td_dim_name: str | None = None
    """The name of the stack dim."""

    _hook_out: Callable[[Any], Any] | None = None
    _hook_in: Callable[[Any], Any] | None = None

    if TYPE_CHECKING:
        # Declarations only: the other classes of this folder define these methods.

        @classmethod
        def _of(cls, members: list[Any], dim: int, name: str | None = None) -> Self: ...
        def _as_dense(self) -> Any: ...
        def _common_keys(self) -> list[str]: ...
        def _from_dict_at(self, index: object, value: object) -> Any: ...
        def _group(self, key: str) -> list[Any] | None: ...
        def _holds_stacks(self) -> bool: ...
        def _index(self, index: object) -> Any: ...
        def _is_ragged(self, key: str) -> bool: ...
        def _like(self, members: list[Any]) -> Self: ...
        def _meta(self, key: Any) -> Any: ...
        def _own_names(self) -> list[str | None] | None: ...
        def _parts(self, results: list[Any]) -> tuple[Any, ...]: ...
        def _parts_at(self, *args: Any) -> list[tuple[Any, Any, Any]]: ...
        def _parts_of(self, other: object) -> list[Any] | None: ...
        def _plan(self, index: object) -> Any: ...
        def _seen(self, key: str) -> list[Any] | None: ...
        def _value_parts(self, value: object) -> list[Any]: ...
        def _write_ragged(self, key: str, index: Any, value: object) -> None: ...


class ReadingOps(StackState):
    """Reading the keys and entries of a stack."""

    # Reading -----------------------------------------------------------------------

    def _common_keys(self) -> list[str]:
        """Return the keys that all members have, in the order of the first member."""
        return _rust.common_keys(self.tensordicts)

    def _group(self, key: str) -> list[Any] | None:
        """Return the entries of all members at a direct key; None if one is missing."""
        return _rust.member_values(self.tensordicts, (key,))

    def _stacked(self, key: str, values: list[Any], is_shown: bool = True) -> Any:
        """Stack the entries of all members.

        If ``is_shown`` is false the result is stored, so values may be set in part of a
        row.
        """
        first = values[0]
        if isinstance(first, CollectionProtocol):
            check_members(values)
            name = self._td_dim_name
            value = first._stack_lazily(values, self.stack_dim, name, is_shown)
        else:
            value = stack_leaves(key, values, self.stack_dim)
        hook = self._hook_out
        return value if hook is None else hook(value)

    def _entries(self, is_shown: bool = True) -> dict[str, Any]:
        entries = {}
        for key in self._common_keys():
            values = self._group(key)
            if values is not None:
                entries[key] = self._stacked(key, values, is_shown)
        return entries

    def _get_entry(self, key: str, default: object) -> Any:
        values = self._group(key)
        return default if values is None else self._stacked(key, values)

    def _sample_entries(self) -> dict[str, Any]:
        entries = {}
        for key in self._common_keys():
            # The first member's leaf is a sample, but collections must be a stack.
            value = self.tensordicts[0]._sample_entry(key)
            if isinstance(value, CollectionProtocol):
                values = self._seen(key)
                value = value if values is None else self._sampled(values)
            entries[key] = value
        return entries

    def _held_keys(self) -> dict[str, Any]:
        return dict.fromkeys(self._common_keys())

    def _sample_entry(self, key: str) -> Any:
        values = self._seen(key)
        return NO_DEFAULT if values is None else self._sampled(values)

    def _holds_stacks(self) -> bool:
        """Return whether some member is not dense, so that reading it may stack."""
        kinds: set[type[CollectionProtocol]] = set(map(type, self.tensordicts))
        return not all(kind._is_dense for kind in kinds)

    def _seen(self, key: str) -> list[Any] | None:
        """Return entries like :meth:`_group`, but only metadata of stacked leaves."""
        if not self._holds_stacks():
            return self._group(key)
        values = []
        for member in self.tensordicts:
            value = member._seen_entry(key)
            if value is NO_DEFAULT:
                return None
            values.append(value)
        return values

    def _seen_entry(self, key: str) -> Any:
        """Return an entry to inspect; stacked leaves are a :class:`MetaTensor`."""
        values = self._seen(key)
        if values is None:
            return NO_DEFAULT
        if any(isinstance(value, CollectionProtocol) for value in values):
            return self._sampled(values)
        return MetaTensor._of_stack(values, self.stack_dim)

    def _sampled(self, values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, CollectionProtocol):
            if first_misfit(values) is not None:
                for value in values:
                    if not isinstance(value, CollectionProtocol):
                        # The entry is a collection in some members and a leaf in
                        # others.
                        return value
            return first._stack_lazily(values, self.stack_dim, self._td_dim_name)
        return first

    def _children(self) -> list[Any]:
        return list(self.tensordicts)

    @overload
    def get(self, key: NestedKeyLike) -> Entry: ...
    @overload
    def get(self, key: NestedKeyLike, default: T) -> Entry | T: ...
    @overload
    def get(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any: ...
    def get(self, key: NestedKeyLike, *args: object, **kwargs: object) -> Any:
        """Return the entry at a nested key, or ``default`` if some member lacks it.

        Args:
            key: a nested key.
            *args: ``default`` as a positional argument. Without a default, a missing
                entry is None.
            **kwargs: ``default``, and the format of an entry whose members differ in
                shape. ``as_list=True`` returns a list of the members' entries.
                ``as_padded_tensor=True`` returns a tensor whose first dim is the
                members, padded with ``padding_value`` (0) on the ``padding_side``
                (``"right"``). ``as_nested_tensor=True`` returns a nested tensor of the
                ``layout`` (``torch.jagged``).

        Raises:
            RuntimeError: the members' entries differ in shape, and no format is given.

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

    @overload
    def __getitem__(self, index: int) -> TensorDict: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, index: BatchIndex) -> Self: ...
    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> Entry: ...
    @overload
    def __getitem__(self, index: object) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        """Return the stacked entry at a nested key, or the part at an index."""
        if isinstance(index, str) or (
            isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
        ):
            return self._read(index, NO_DEFAULT)
        return self._get_index(index)

    def _read(self, key: NestedKeyLike, default: object) -> Any:
        """Return the entry at a nested key.

        Stack no collections on the way to a leaf.
        """
        path = _rust.unravel_key_to_tuple(key)
        if path and self._hook_out is None:
            stacked = _rust.stacked_values(self.tensordicts, path, self.stack_dim)
            if stacked is not None:
                return stacked
            values = _rust.member_values(self.tensordicts, path)
            if values is not None and isinstance(values[0], torch.Tensor):
                return stack_leaves(key, values, self.stack_dim)
        if default is NO_DEFAULT:
            return _rust.getitem(self, path or key)
        return _rust.get(self, key, default)

    def _get_formatted(
        self, key: NestedKeyLike, default: object, kwargs: dict[str, Any]
    ) -> Any:
        for name in kwargs:
            if name not in FORMATS:
                raise TypeError(MSG_KEYWORD.format(type(self).__name__, name))
        return self._read_formatted(key, default, kwargs)

    def _read_formatted(
        self, key: NestedKeyLike, default: object, kwargs: dict[str, Any]
    ) -> Any:
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            return _rust.get(self, key, default)
        parent: Any = self
        for at, part in enumerate(path[:-1]):
            if isinstance(parent._sample_entry(part), torch.Tensor):
                # The key leads through a leaf: any member raises the right error.
                return _rust.get(parent.tensordicts[0], path[at:], default)
            parent = inside(parent._get_entry(part, NO_DEFAULT))
            if not isinstance(parent, ReadingOps):
                return _rust.get(self, key, default)
        seen = parent._seen(path[-1])
        if seen is None or isinstance(seen[0], CollectionProtocol):
            return _rust.get(self, key, default)
        values = parent._formatted_group(path[-1], kwargs)
        if kwargs.get("as_list"):
            return values
        if kwargs.get("as_nested_tensor") or kwargs.get("as_padded_tensor"):
            check_tensors(path[-1], values)
        if kwargs.get("as_nested_tensor"):
            return as_nested(values, kwargs.get("layout"))
        if kwargs.get("as_padded_tensor"):
            padding = kwargs.get("padding_value", 0)
            side = kwargs.get("padding_side", "right")
            return as_padded(values, padding, side)
        return parent._stacked(path[-1], values)

    def _formatted_group(self, key: str, kwargs: dict[str, Any]) -> list[Any] | None:
        """Return all members' leaves at a direct key, with nested stacks formatted.

        Raises:
            ValueError: the rows of a nested tensor would be nested tensors.
        """
        if kwargs.get("stacked") or not self._holds_stacks():
            return self._group(key)
        if not any(isinstance(member, ReadingOps) for member in self.tensordicts):
            return self._group(key)
        if not (kwargs.get("as_list") or kwargs.get("as_padded_tensor")) and kwargs.get(
            "as_nested_tensor"
        ):
            raise ValueError(MSG_NESTED_ROWS)
        return [
            member._get_formatted((key,), NO_DEFAULT, kwargs)
            if isinstance(member, ReadingOps)
            else member._get_entry(key, NO_DEFAULT)
            for member in self.tensordicts
        ]

    def _get_str(self, key: str, default: object = NO_DEFAULT, **kwargs: object) -> Any:
        if not kwargs:
            return _rust.get(self, key, default)
        return self._get_formatted(key, default, kwargs)

    def _get_tuple(
        self, key: tuple[str, ...], default: object = NO_DEFAULT, **kwargs: object
    ) -> Any:
        return self._get_str(key, default, **kwargs)  # type: ignore[arg-type]

    def get_nestedtensor(
        self,
        key: NestedKeyLike,
        default: object = NO_DEFAULT,
        *,
        layout: torch.layout | None = None,
    ) -> Any:
        """Return the entry at a nested key as a nested tensor, strided by default.

        Raises:
            RuntimeError: the stack dim is not the first dim.
        """
        if self.stack_dim != 0:
            raise RuntimeError(MSG_NESTED_DIM)
        form = torch.strided if layout is None else layout
        # If members are stacks, their stacked entries are the rows.
        kwargs = {"as_nested_tensor": True, "layout": form, "stacked": True}
        return self._read_formatted(key, default, kwargs)

    def get_item_shape(self, key: NestedKeyLike) -> torch.Size:
        """Return the shape of the entry at ``key``, with -1 where members differ.

        The entry is not stacked.

        Raises:
            KeyError: some member lacks the entry.
        """
        meta = self._meta(key)
        return meta.shape

    def _meta(self, key: NestedKeyLike) -> Any:
        """Return an entry's metadata without stacking.

        A collection is returned itself.
        """
        path = _rust.unravel_key_to_tuple(key)
        parent: Any = self
        for part in path[:-1]:
            parent = inside(parent._sample_entry(part))
            if not isinstance(parent, ReadingOps):
                return _rust.get(self, key)
        value = parent._seen_entry(path[-1]) if path else NO_DEFAULT
        return _rust.get(self, key, NO_DEFAULT) if value is NO_DEFAULT else value

    def is_empty(self) -> bool:
        """Return whether no member has a leaf."""
        return all(member.is_empty() for member in self.tensordicts)

    def __iter__(self) -> Iterator[TensorDict]:  # type: ignore[override]
        """Iterate over the first dim; if that is the stack dim, over the members."""
        if self.stack_dim == 0:
            return iter(list(self.tensordicts))
        return super().__iter__()  # type: ignore[return-value]

    def _listed(self, nested: bool) -> Iterator[tuple[Any, Any]]:
        for number, member in enumerate(self.tensordicts):
            for key, value in member._listed(nested):
                path = key if isinstance(key, tuple) else (key,)
                yield (str(number), *path), value

    def _check_batch_size(self, *, raise_exception: bool = True) -> bool:
        return all(
            member._check_batch_size(raise_exception=raise_exception)
            for member in self.tensordicts
        )

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return the keys that all members have. See ``TensorDict.keys``."""
        return _LazyStackedTensorDictKeysView(
            self, include_nested, leaves_only, is_leaf, sort
        )

    def valid_keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return :meth:`keys`; deprecated."""
        return self.keys(include_nested, leaves_only, is_leaf, sort=sort)

    @property
    def sorted_keys(self) -> list[str]:
        """The direct keys, sorted."""
        return sorted(self.keys())

    def _refuse_exclusive(self, method: str) -> None:
        if self._has_exclusive_keys:
            raise RuntimeError(MSG_EXCLUSIVE.format(method))

    # Choosing -------------------------------------------------------------------------

    def select(
        self,
        *keys: NestedKeyLike,
        inplace: bool = False,
        strict: bool = True,
        as_tensordict: bool = False,
    ) -> Self:
        """Keep only the entries at ``keys``, in each member.

        See ``TensorDict.select``.
        """
        if inplace and self.is_locked:
            raise locked_error(self)
        members = [member.select(*keys, strict=strict) for member in self.tensordicts]
        if not inplace:
            return self._like(members)
        for member in self.tensordicts:
            member.select(*keys, inplace=True, strict=strict)
        return self

    def exclude(self, *keys: NestedKeyLike, inplace: bool = False) -> Self:
        """Drop the entries at ``keys`` from each member. See ``TensorDict.exclude``."""
        if inplace and self.is_locked:
            raise locked_error(self)
        members = [
            member.exclude(*keys, inplace=inplace) for member in self.tensordicts
        ]
        return self if inplace else self._like(members)

    def empty(self, recurse: bool = False, **kwargs: Any) -> Any:
        """Return a stack of as many members without entries.

        See ``TensorDict.empty``.
        """
        unset = (None, NO_DEFAULT)
        changes = {key for key, value in kwargs.items() if value not in unset}
        members = self.tensordicts
        size, dim = kwargs.get("batch_size"), self.stack_dim
        if size is not None and tuple(size) == tuple(self._batch_size):
            size = None
        if size is not None:
            size = torch.Size(size)
            if len(size) <= dim or size[dim] != len(members):
                members = []
        if not changes and not members:
            return self._like([])
        if changes - {"device", "batch_size"} or not members:
            return super().empty(recurse, **kwargs)
        inner = {key: kwargs[key] for key in kwargs if key == "device"}
        if size is not None:
            inner["batch_size"] = [*size[:dim], *size[dim + 1 :]]
        return self._like([member.empty(recurse, **inner) for member in members])

    def filter_non_tensor_data(self) -> Self:
        """Return a stack of the members without non-tensor data."""
        return self._like(
            [member.filter_non_tensor_data() for member in self.tensordicts]
        )

    def filter_empty_(self) -> Self:
        """Drop nested collections without leaves from each member."""
        for member in self.tensordicts:
            member.filter_empty_()
        return self

    def non_tensor_items(self, include_nested: bool = False) -> tuple[Any, ...]:
        """Return pairs of key and non-tensor entry that all members have."""
        pairs: list[Any] = []
        for key, value in self._sample_entries().items():
            if holds_values(value):
                pairs.append((key, value))
            elif include_nested and is_branch(value):
                pairs += [
                    ((key, *((name,) if isinstance(name, str) else name)), inner)
                    for name, inner in value.non_tensor_items(True)
                ]
        return tuple(pairs)

    def entry_class(self, key: NestedKeyLike) -> type:
        """Return the type of the entry at ``key`` without stacking it.

        If some members lack the entry, the first member's type is returned. If the
        stack is empty, the type is ``NoneType``.
        """
        if not _rust.contains(self, key):
            if not self.tensordicts:
                return type(None)
            kind: type = self.tensordicts[0].entry_class(key)
            return type(self) if kind is self._plain_type else kind
        meta = self._meta(key)
        return meta._class if isinstance(meta, MetaTensor) else type(meta)

    def rename_keys(self, *args: object, **kwargs: object) -> Self:
        """Return a stack with renamed entries. See ``TensorDict.rename_keys``."""
        return self._like(
            [member.rename_keys(*args, **kwargs) for member in self.tensordicts]
        )

    def split_keys(self, *key_sets: Any, **kwargs: object) -> tuple[Any, ...]:
        """Return a stack for each set of keys. See ``TensorDict.split_keys``.

        A key that only some members have is no error: these members contribute it.
        """
        members = self.tensordicts
        if kwargs.get("inplace"):
            for member in members:
                if member.is_locked:
                    raise locked_error(member)
        is_strict = kwargs.pop("strict", True)
        default = kwargs.pop("default", None)
        sets = [list(keys) for keys in key_sets]
        missing = [[key for key in keys if not _is_held(members, key)] for keys in sets]
        for key in (key for keys in missing for key in keys if is_strict):
            _rust.getitem(self, _rust.unravel_key_to_tuple(key))
        rows = _for_each_distinct(
            members, lambda member: member.split_keys(*sets, strict=False, **kwargs)
        )
        parts = [self._like(list(group)) for group in zip(*rows, strict=True)]
        if default is not None and default is not NO_DEFAULT:
            for part, keys in zip(parts, missing, strict=False):
                for key in keys:
                    part.set(key, default)
        if kwargs.get("inplace") and parts:
            parts[-1] = self
        return tuple(parts)

    def separates(
        self,
        *keys: NestedKeyLike,
        default: object = NO_DEFAULT,
        strict: bool = True,
        filter_empty: bool = True,
    ) -> Self:
        """Move the entries at ``keys`` to a new stack. See ``TensorDict.separates``.

        Raises:
            KeyError: some member lacks an entry. Then no entry is moved.
            RuntimeError: a member is locked.
        """
        if not self.tensordicts:
            return super().separates(  # type: ignore[misc]
                *keys, default=default, strict=strict, filter_empty=filter_empty
            )
        paths = dict.fromkeys(map(_rust.unravel_key_to_tuple, keys))
        parents = {path[:end] for path in paths for end in range(len(path))}
        for member in self.tensordicts:
            for path in parents:
                holder = _rust.get(member, path, None) if path else member
                if isinstance(holder, CollectionProtocol) and holder.is_locked:
                    raise locked_error(holder)
        missing = [key for key in paths if not _rust.contains(self, key)]
        for key in missing if strict and default is NO_DEFAULT else ():
            _rust.getitem(self, key)
        members = _for_each_distinct(
            self.tensordicts,
            lambda member: member.separates(
                *paths, strict=False, filter_empty=filter_empty
            ),
        )
        result = self._like(members)
        for key in missing if default is not NO_DEFAULT else ():
            set_default(result, key, default)
        return result

    # Regrouping -----------------------------------------------------------------------

    def flatten_keys(
        self,
        separator: str = ".",
        inplace: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> Self:
        """Join the nested keys of each member. See ``TensorDict.flatten_keys``.

        Raises:
            RuntimeError: members differ in their keys, or ``inplace`` is true and the
                stack is locked.
        """
        self._refuse_exclusive("flatten_keys")
        if inplace and self.is_locked:
            raise locked_error(self)
        return self._regrouped("flatten_keys", separator, inplace, is_leaf)

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Nest the entries of each member. See ``TensorDict.unflatten_keys``.

        Raises:
            RuntimeError: members differ in their keys, or ``inplace`` is true, the
                stack is locked, and there are keys to nest.
        """
        self._refuse_exclusive("unflatten_keys")
        return self._regrouped("unflatten_keys", separator, inplace)

    def _regrouped(
        self, method: str, separator: str, inplace: bool, *more: object
    ) -> Any:
        members = [
            getattr(member, method)(separator, False, *more)
            for member in self.tensordicts
        ]
        result: Any = self
        if inplace:
            for member in self.tensordicts:
                getattr(member, method)(separator, True, *more)
        else:
            result = self._like(members)
        return remember(self, result, method, (separator,), {})

    def rename_key_(
        self, old_key: NestedKeyLike, new_key: NestedKeyLike, safe: bool = False
    ) -> Self:
        """Rename an entry in each member. See ``TensorDict.rename_key_``.

        Raises:
            KeyError: a member lacks the entry.
        """
        for member in (self, *self.tensordicts):
            if member.is_locked:
                raise locked_error(member)
        for member in self.tensordicts:
            member.copy().unlock_().rename_key_(old_key, new_key, safe=safe)
        for member in self.tensordicts:
            # The same member may occur twice: rename its entry once.
            if _rust.contains(member, old_key):
                member.rename_key_(old_key, new_key, safe=safe)
        return self

    # Removing -------------------------------------------------------------------------

    def popitem(self) -> tuple[NestedKeyLike, Any]:
        """Remove and return the last entry that all members have.

        Raises:
            KeyError: there is no such entry.
            RuntimeError: the stack is locked.
        """
        keys = self._common_keys()
        if self.is_locked or not keys:
            return super().popitem()  # type: ignore[misc]
        return keys[-1], self.pop(keys[-1])

    def del_(self, key: NestedKeyLike) -> Self:
        """Remove an entry from each member that has it.

        Raises:
            KeyError: no member has the entry.
            RuntimeError: the stack is locked.
            ValueError: the key leads through a leaf.
        """
        if self.is_locked:
            raise locked_error(self)
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise bad_key(key)
        holders = [
            member for member in self.tensordicts if _rust.contains(member, path)
        ]
        if not holders:
            for member in self.tensordicts:
                if len(path) > 1 and _rust.contains(member, path[:-1]):
                    member.del_(path)  # Raises the error for a key through a leaf.
            raise missing_path(self, path, MSG_DELETE.format(key).rstrip("."))
        for member in holders:
            # The same member may occur twice.
            if _rust.contains(member, path):
                member.del_(path)
        return self

    def clear(self) -> Self:
        """Remove all entries of all members.

        Raises:
            RuntimeError: the stack is locked.
        """
        if self.is_locked:
            raise locked_error(self)
        for member in self.tensordicts:
            member.clear()
        return self

    def is_non_tensor(self, key: NestedKeyLike) -> bool:
        """Return whether the entry at a nested key is non-tensor data."""
        value = self._meta(key)
        return holds_values(value)

    # Conversions ----------------------------------------------------------------------

    def to_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return a dictionary of the stacked entries. See ``TensorDict.to_dict``.

        An entry whose members differ in shape becomes a list.

        Raises:
            RuntimeError: members differ in their keys.
        """
        self._refuse_exclusive("to_dict")
        return super().to_dict(*args, **kwargs)

    def _rows_or_entries(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for key in self._common_keys():
            try:
                entries[key] = self._get_entry(key, None)
            except RuntimeError:
                entries[key] = [
                    member._rows_or_entries()[key] for member in self.tensordicts
                ]
        return entries

    def to_namedtuple(self, dest_cls: type | None = None) -> Any:
        """Return a named tuple of the stacked entries.

        See ``TensorDict.to_namedtuple``.

        Raises:
            RuntimeError: members differ in their keys.
        """
        self._refuse_exclusive("to_namedtuple")
        return super().to_namedtuple(dest_cls)

    def state_dict(self, *args: object, **kwargs: object) -> Any:
        """Return the stacked entries as a module's state.

        See ``TensorDict.state_dict``.

        Raises:
            RuntimeError: members differ in their keys.
        """
        self._refuse_exclusive("state_dict")
        return super().state_dict(*args, **kwargs)  # type: ignore[misc]


def _for_each_distinct(members: list[Any], take: Callable[[Any], Any]) -> list[Any]:
    """Call ``take`` once for each distinct member; return a result for each member."""
    results = {
        id(member): take(member) for member in {id(m): m for m in members}.values()
    }
    return [results[id(member)] for member in members]


def _is_held(members: list[Any], key: NestedKeyLike) -> bool:
    """Return whether some member has an entry, or ``key`` is not a valid key."""
    path = _rust.unravel_key_to_tuple(key)
    return not path or any(_rust.contains(member, path) for member in members)
