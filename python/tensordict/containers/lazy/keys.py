"""The keys of a stack, and what is done with them: each member does its part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.lazy.state import StackState
from tensordict.ops.key_views import _sorting_key, _TensorDictKeysView
from tensordict.ops.keys import set_default
from tensordict.primitives.checks import is_leaf_nontensor
from tensordict.primitives.common import MSG_BAD_KEY, MSG_MEMBERSHIP
from tensordict.primitives.errors import locked_error, missing_path
from tensordict.primitives.metatensor import MetaTensor
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["StackKeysOps"]

MSG_EXCLUSIVE = "the method {} cannot complete when there are exclusive keys."
MSG_DELETE = "Key {} not found in any of the stacked tensordicts."


class _LazyStackedTensorDictKeysView(_TensorDictKeysView):
    """The keys that all members of a stack have: a live view."""

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
            # Nested collections that make no stack are looked into one by one.
            members = self.tensordict.tensordicts
            return all(_rust.contains(member, path) for member in members)


_LazyStackedTensorDictKeysView.__module__ = "tensordict._lazy"


class StackKeysOps(StackState):
    """The keys of a stack, and what is done with them."""

    def _listed(self, nested: bool) -> Iterator[tuple[Any, Any]]:
        if self._is_non_tensor:
            return
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
        """The keys that all members have. See ``TensorDict.keys``."""
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
        """The same as :meth:`keys`; deprecated."""
        return self.keys(include_nested, leaves_only, is_leaf, sort=sort)

    @property
    def sorted_keys(self) -> list[str]:
        """The direct keys, sorted."""
        return sorted(self.keys())

    def _member_paths(self) -> Any:
        members = self.tensordicts
        if not self._has_exclusive_keys:
            members = members[:1]
        paths = (
            _rust.walk(member, 0, True, True, is_leaf_nontensor) for member in members
        )
        return dict.fromkeys(key for keys in paths for key in keys)

    def _refuse_exclusive(self, method: str) -> None:
        if self._has_exclusive_keys:
            raise RuntimeError(MSG_EXCLUSIVE.format(method))

    # Choosing --------------------------------------------------------------------------

    def select(
        self,
        *keys: NestedKeyLike,
        inplace: bool = False,
        strict: bool = True,
        as_tensordict: bool = False,
    ) -> Self:
        """Keep only the entries at ``keys``, in every member. See ``TensorDict.select``."""
        if inplace and self.is_locked:
            raise locked_error(self)
        members = [each.select(*keys, strict=strict) for each in self.tensordicts]
        if not inplace:
            return self._like(members)
        for each in self.tensordicts:
            each.select(*keys, inplace=True, strict=strict)
        return self

    def exclude(self, *keys: NestedKeyLike, inplace: bool = False) -> Self:
        """Drop the entries at ``keys`` from every member. See ``TensorDict.exclude``."""
        if inplace and self.is_locked:
            raise locked_error(self)
        members = [each.exclude(*keys, inplace=inplace) for each in self.tensordicts]
        return self if inplace else self._like(members)

    def empty(self, recurse: bool = False, **kwargs: Any) -> Any:
        """A stack of as many members without entries. See ``TensorDict.empty``."""
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
        return self._like([each.empty(recurse, **inner) for each in members])

    def filter_non_tensor_data(self) -> Self:
        """A stack of the tensors alone."""
        return self._like([each.filter_non_tensor_data() for each in self.tensordicts])

    def filter_empty_(self) -> Self:
        """Drop the nested collections without leaves from every member."""
        for each in self.tensordicts:
            each.filter_empty_()
        return self

    def non_tensor_items(self, include_nested: bool = False) -> tuple[Any, ...]:
        """The pairs of key and value of the non-tensor entries that all members have."""
        found: list[Any] = []
        for key, value in self._sample_entries().items():
            if not isinstance(value, CollectionProtocol):
                continue
            if value._is_non_tensor:
                found.append((key, value))
            elif include_nested:
                found += [
                    ((key, *((name,) if isinstance(name, str) else name)), inner)
                    for name, inner in value.non_tensor_items(True)
                ]
        return tuple(found)

    def entry_class(self, key: NestedKeyLike) -> type:
        """The type of the entry at ``key``, not stacked; ``NoneType`` if there is none.

        Of an entry that not all members have it is that of the first member.
        """
        if not _rust.contains(self, key):
            if not self.tensordicts:
                return type(None)
            kind: type = self.tensordicts[0].entry_class(key)
            return type(self) if kind is self._plain_type else kind
        meta = self._meta(key)
        return meta._class if isinstance(meta, MetaTensor) else type(meta)

    def rename_keys(self, *args: object, **kwargs: object) -> Self:
        """A stack with entries of every member renamed. See ``TensorDict.rename_keys``."""
        return self._like(
            [each.rename_keys(*args, **kwargs) for each in self.tensordicts]
        )

    def split_keys(self, *key_sets: Any, **kwargs: object) -> tuple[Any, ...]:
        """Several stacks of the entries of several sets of keys. See ``TensorDict``.

        A member gives what it has: a key that some members have is no error.
        """
        members = self.tensordicts
        if kwargs.get("inplace"):
            for each in members:
                if each.is_locked:
                    raise locked_error(each)
        is_strict = kwargs.pop("strict", True)
        default = kwargs.pop("default", None)
        sets = [list(keys) for keys in key_sets]
        missing = [[key for key in keys if not _is_held(members, key)] for keys in sets]
        for key in (key for keys in missing for key in keys if is_strict):
            _rust.getitem(self, _rust.unravel_key_to_tuple(key))
        rows = _once(
            members, lambda each: each.split_keys(*sets, strict=False, **kwargs)
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
        """Take the entries at ``keys`` out of every member. See ``TensorDict.separates``.

        Raises:
            KeyError: not all members have one of them; then nothing is taken out.
            RuntimeError: a member is locked.
        """
        if not self.tensordicts:
            return super().separates(  # type: ignore[misc]
                *keys, default=default, strict=strict, filter_empty=filter_empty
            )
        held = dict.fromkeys(map(_rust.unravel_key_to_tuple, keys))
        parents = {path[:end] for path in held for end in range(len(path))}
        for member in self.tensordicts:
            for path in parents:
                holder = _rust.get(member, path, None) if path else member
                if isinstance(holder, CollectionProtocol) and holder.is_locked:
                    raise locked_error(holder)
        missing = [key for key in held if not _rust.contains(self, key)]
        for key in missing if strict and default is NO_DEFAULT else ():
            _rust.getitem(self, key)
        taken = _once(
            self.tensordicts,
            lambda each: each.separates(*held, strict=False, filter_empty=filter_empty),
        )
        result = self._like(taken)
        for key in missing if default is not NO_DEFAULT else ():
            set_default(result, key, default)
        return result

    # Regrouping ------------------------------------------------------------------------

    def flatten_keys(
        self,
        separator: str = ".",
        inplace: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> Self:
        """All leaves of every member under joined keys. See ``TensorDict.flatten_keys``.

        Raises:
            RuntimeError: members have keys of their own; or ``inplace`` is set and the
                stack is locked.
        """
        self._refuse_exclusive("flatten_keys")
        if inplace and self.is_locked:
            raise locked_error(self)
        return self._regrouped("flatten_keys", separator, inplace, is_leaf)

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Nest the entries of every member. See ``TensorDict.unflatten_keys``.

        Raises:
            RuntimeError: members have keys of their own; or ``inplace`` is set, the stack
                is locked, and there is something to nest.
        """
        self._refuse_exclusive("unflatten_keys")
        return self._regrouped("unflatten_keys", separator, inplace)

    def _regrouped(
        self, method: str, separator: str, inplace: bool, *more: object
    ) -> Any:
        members = [
            getattr(each, method)(separator, False, *more) for each in self.tensordicts
        ]
        result: Any = self
        if inplace:
            for each in self.tensordicts:
                getattr(each, method)(separator, True, *more)
        else:
            result = self._like(members)
        return self._remember(result, method, (separator,), {})

    def rename_key_(
        self, old_key: NestedKeyLike, new_key: NestedKeyLike, safe: bool = False
    ) -> Self:
        """Rename an entry in every member. See ``TensorDict.rename_key_``.

        Raises:
            KeyError: a member does not have it.
        """
        for each in (self, *self.tensordicts):
            if each.is_locked:
                raise locked_error(each)
        for each in self.tensordicts:
            each.copy().unlock_().rename_key_(old_key, new_key, safe=safe)
        for each in self.tensordicts:
            # A member that is there twice is renamed once.
            if _rust.contains(each, old_key):
                each.rename_key_(old_key, new_key, safe=safe)
        return self

    # Removing --------------------------------------------------------------------------

    def popitem(self) -> tuple[NestedKeyLike, Any]:
        """Remove and return the last entry that all members have.

        Raises:
            KeyError: there is none.
            RuntimeError: the stack is locked.
        """
        keys = self._common_keys()
        if self.is_locked or not keys:
            return super().popitem()  # type: ignore[misc]
        return keys[-1], self.pop(keys[-1])

    def del_(self, key: NestedKeyLike) -> Self:
        """Remove an entry from every member that has it.

        Raises:
            KeyError: none has it.
            RuntimeError: the stack is locked.
            ValueError: the key runs through a leaf.
        """
        if self.is_locked:
            raise locked_error(self)
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise KeyError(MSG_BAD_KEY.format(key))
        holders = [each for each in self.tensordicts if _rust.contains(each, path)]
        if not holders:
            for each in self.tensordicts:
                if len(path) > 1 and _rust.contains(each, path[:-1]):
                    each.del_(path)  # Tells a key that runs through a leaf.
            raise missing_path(self, path, MSG_DELETE.format(key).rstrip("."))
        for each in holders:
            # A member may be there twice.
            if _rust.contains(each, path):
                each.del_(path)
        return self

    def clear(self) -> Self:
        """Remove all entries of all members.

        Raises:
            RuntimeError: the stack is locked.
        """
        if self.is_locked:
            raise locked_error(self)
        for each in self.tensordicts:
            each.clear()
        return self

    def is_non_tensor(self, key: NestedKeyLike) -> bool:
        """Return whether the entry at a nested key is non-tensor data."""
        value = self._meta(key)
        return isinstance(value, CollectionProtocol) and value._is_non_tensor

    # Conversions --------------------------------------------------------------------------

    def to_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """A dictionary of the stacked entries. See ``TensorDict.to_dict``.

        Of members that differ in shape it has a list of the entries.

        Raises:
            RuntimeError: members have keys of their own.
        """
        self._refuse_exclusive("to_dict")
        return super().to_dict(*args, **kwargs)

    def _rows_or_entries(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in self._common_keys():
            try:
                found[key] = self._get_entry(key, None)
            except RuntimeError:
                found[key] = [each._rows_or_entries()[key] for each in self.tensordicts]
        return found

    def to_namedtuple(self, dest_cls: type | None = None) -> Any:
        """A named tuple of the stacked entries. See ``TensorDict.to_namedtuple``.

        Raises:
            RuntimeError: members have keys of their own.
        """
        self._refuse_exclusive("to_namedtuple")
        return super().to_namedtuple(dest_cls)

    def state_dict(self, *args: object, **kwargs: object) -> Any:
        """The stacked entries for a module's state. See ``TensorDict.state_dict``.

        Raises:
            RuntimeError: members have keys of their own.
        """
        self._refuse_exclusive("state_dict")
        return super().state_dict(*args, **kwargs)  # type: ignore[misc]


def _once(members: list[Any], take: Callable[[Any], Any]) -> list[Any]:
    """Call ``take`` once for each different member; return a result for each place."""
    given = {id(each): take(each) for each in {id(m): m for m in members}.values()}
    return [given[id(each)] for each in members]


def _is_held(members: list[Any], key: NestedKeyLike) -> bool:
    """Return whether some member has an entry; members refuse what is no key."""
    path = _rust.unravel_key_to_tuple(key)
    return not path or any(_rust.contains(each, path) for each in members)
