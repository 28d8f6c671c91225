"""Views of the keys, values and items of a tensordict."""

from __future__ import annotations

from collections.abc import (
    Callable,
    ItemsView,
    Iterator,
    KeysView,
    ValuesView,
)
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import TYPE_CHECKING, Any, overload

from tensordict import _rust
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["KeyViewsOps", "listed_items", "listed_keys", "listed_values"]

_StringKeys = _rust.StringKeys
"""A live view of the direct keys of a tensordict, like ``dict.keys()``."""

# A native class cannot derive from a Python class, so it gets the set methods here.
for _name in (
    *("__le__", "__lt__", "__gt__", "__ge__", "__eq__", "__hash__", "isdisjoint"),
    *("__and__", "__rand__", "__or__", "__ror__"),
    *("__sub__", "__rsub__", "__xor__", "__rxor__"),
):
    setattr(_StringKeys, _name, vars(AbstractSet)[_name])
setattr(_StringKeys, "_from_iterable", vars(KeysView)["_from_iterable"])  # noqa: B010
KeysView.register(_StringKeys)


class _TensorDictKeysView:
    """A live view of the keys of a tensordict, nested ones included."""

    def __init__(
        self,
        tensordict: CollectionProtocol,
        include_nested: bool,
        leaves_only: bool,
        is_leaf: Callable[[type], bool] | None,
        sort: bool = False,
    ) -> None:
        self.tensordict = tensordict
        self.include_nested = include_nested
        self.leaves_only = leaves_only
        self.is_leaf = is_leaf
        self.sort = sort

    def _list(self) -> list[NestedKeyLike]:
        keys = _rust.walk(
            self.tensordict,
            0,
            bool(self.include_nested),
            bool(self.leaves_only),
            self.is_leaf,
        )
        if self.sort:
            keys.sort(key=_sorting_key)
        return keys

    def __iter__(self) -> Iterator[NestedKeyLike]:
        return iter(self._list())

    def __len__(self) -> int:
        # `list(view)` calls this first, so it must be cheap: values are counted instead
        # of making keys. In a class that is not dense, values may have to be made, and
        # the leaves of a ragged stack cannot be; there, keys are counted.
        td = self.tensordict
        is_dense = td._is_dense and (
            not self.include_nested
            or all([collection._is_dense for collection in _rust.containers(td)])
        )
        found = _rust.walk(
            td,
            1 if is_dense else 0,
            bool(self.include_nested),
            bool(self.leaves_only),
            self.is_leaf,
        )
        return len(found)

    def __contains__(self, key: object) -> bool:
        if not self.include_nested:
            path = _rust.unravel_key_to_tuple(key)
            if len(path) > 1:
                return False
        return _rust.contains(self.tensordict, key)

    def __repr__(self) -> str:
        return f"dict_keys({list(self)})"


_TensorDictKeysView.__module__ = "tensordict._td"


def _sorting_key(key: NestedKeyLike) -> str:
    return key if isinstance(key, str) else ".".join(key)


def _sorting_key_of_pair(pair: tuple[NestedKeyLike, Any]) -> str:
    return _sorting_key(pair[0])


def listed_keys(
    td: CollectionProtocol,
    include_nested: Any,
    leaves_only: Any,
    is_leaf: Callable[[Any], bool] | None,
    sort: Any,
) -> Any:
    """Return the result of :meth:`keys` for arguments that are not the defaults."""
    if include_nested or leaves_only or is_leaf is not None:
        return _TensorDictKeysView(td, include_nested, leaves_only, is_leaf, sort)
    return sorted(td._sample_entries())


def listed_values(
    td: CollectionProtocol,
    include_nested: Any,
    leaves_only: Any,
    is_leaf: Callable[[Any], bool] | None,
    sort: object,
) -> Any:
    """Return the result of :meth:`values` for arguments that are not the defaults."""
    if sort:
        if td._is_dense and not include_nested and not leaves_only:
            entries = td._entries()
            return [entries[key] for key in sorted(entries)]
        pairs = _rust.walk(td, 2, bool(include_nested), bool(leaves_only), is_leaf)
        pairs.sort(key=_sorting_key_of_pair)
        return iter([value for _, value in pairs])
    try:
        return iter(_rust.walk(td, 1, bool(include_nested), bool(leaves_only), is_leaf))
    except RecursionError:
        raise
    except RuntimeError:
        read = _one_by_one(td, include_nested, leaves_only, is_leaf)
        return (value for _, value in read)


def listed_items(
    td: CollectionProtocol,
    include_nested: Any,
    leaves_only: Any,
    is_leaf: Callable[[Any], bool] | None,
    sort: object,
) -> Any:
    """Return the result of :meth:`items` for arguments that are not the defaults.

    This is a list for the sorted direct items, and for all leaves unsorted if ``td`` is
    dense; otherwise it is an iterator.
    """
    if td._is_dense and not include_nested and not leaves_only:
        direct = td._entries().items()
        return sorted(direct, key=itemgetter(0)) if sort else iter(direct)
    try:
        pairs = _rust.walk(td, 2, bool(include_nested), bool(leaves_only), is_leaf)
    except RecursionError:
        raise
    except RuntimeError:
        if sort:
            raise
        return _one_by_one(td, include_nested, leaves_only, is_leaf)
    if sort:
        pairs.sort(key=_sorting_key_of_pair if include_nested else itemgetter(0))
        is_list = not include_nested and not leaves_only
    else:
        is_list = include_nested and leaves_only
    return pairs if is_list and td._is_dense else iter(pairs)


def _one_by_one(
    td: CollectionProtocol,
    include_nested: object,
    leaves_only: object,
    is_leaf: Callable[[Any], bool] | None,
    prefix: tuple[str, ...] = (),
) -> Iterator[tuple[NestedKeyLike, Any]]:
    """Yield the pairs of :func:`listed_items`, reading each value on demand.

    An entry of a lazy stack whose members differ in shape cannot be read. The error is
    raised when the iteration reaches that entry; the pairs before it are yielded.
    """
    for key in list(td._sample_entries()):
        value = td._get_entry(key, NO_DEFAULT)
        path = (*prefix, key)
        name: NestedKeyLike = path if prefix else key
        if isinstance(value, CollectionProtocol):
            if not leaves_only or (is_leaf is not None and is_leaf(type(value))):
                yield name, value
            if include_nested:
                yield from _one_by_one(value, True, leaves_only, is_leaf, path)
        elif not leaves_only or is_leaf is None or is_leaf(type(value)):
            yield name, value


class KeyViewsOps(CollectionProtocol):
    """Views of the keys, values and items of a tensordict."""

    @overload
    def keys(self) -> KeysView[str]: ...
    @overload
    def keys(
        self,
        include_nested: bool = ...,
        leaves_only: bool = ...,
        is_leaf: Callable[[type], bool] | None = ...,
        *,
        sort: bool = ...,
    ) -> Any: ...
    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return a view of the keys that follows changes, in the order of the entries.

        Args:
            include_nested: also list nested keys, as tuples, before the key of the
                tensordict that contains them.
            leaves_only: leave out the keys of nested tensordicts.
            is_leaf: called with a type; True for the types that ``leaves_only`` keeps.
                Default: all types but tensordicts.
            sort: sort the keys; nested keys compare as their parts joined by dots.

        Examples:
            >>> td = TensorDict({"b": torch.zeros(3), "a": {"c": torch.ones(3)}}, [3])
            >>> list(td.keys())
            ['b', 'a']
            >>> list(td.keys(include_nested=True))
            ['b', ('a', 'c'), 'a']
            >>> list(td.keys(include_nested=True, leaves_only=True))
            ['b', ('a', 'c')]
        """
        if include_nested or leaves_only or sort or is_leaf is not None:
            return listed_keys(self, include_nested, leaves_only, is_leaf, sort)
        return _rust.string_keys(self._sample_entries())

    def _ipython_key_completions_(self) -> list[str]:
        """Return the completions of ``td["<TAB>`` in IPython and notebooks."""
        return list(self.keys())

    @overload
    def values(self) -> ValuesView[Any]: ...
    @overload
    def values(
        self,
        include_nested: bool = ...,
        leaves_only: bool = ...,
        is_leaf: Callable[[type], bool] | None = ...,
        *,
        sort: bool = ...,
    ) -> Any: ...
    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return the values. The arguments are the same as in :meth:`items`.

        Examples:
            >>> td = TensorDict({"b": torch.zeros(3), "a": {"c": torch.ones(3)}}, [3])
            >>> [value.shape for value in td.values(True, True)]
            [torch.Size([3]), torch.Size([3])]
        """
        if include_nested or leaves_only or sort:
            return listed_values(self, include_nested, leaves_only, is_leaf, sort)
        try:
            return self._entries().values()
        except RuntimeError:
            return listed_values(self, False, False, None, False)

    @overload
    def items(self) -> ItemsView[str, Any]: ...
    @overload
    def items(
        self,
        include_nested: bool = ...,
        leaves_only: bool = ...,
        is_leaf: Callable[[type], bool] | None = ...,
        *,
        sort: bool = ...,
    ) -> Any: ...
    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return the pairs of key and value.

        By default this is a view that follows changes. With ``include_nested`` the
        pairs are listed at the call, so a loop over them may change the tensordict.

        Args:
            include_nested: also list the entries of nested tensordicts, with tuples as
                keys, after the tensordict that contains them.
            leaves_only: leave out nested tensordicts.
            is_leaf: called with a type; True for the types that ``leaves_only`` keeps.
                Default: all types but tensordicts.
            sort: sort by key; nested keys compare as their parts joined by dots.

        Examples:
            >>> td = TensorDict({"b": torch.zeros(3), "a": {"c": torch.ones(3)}}, [3])
            >>> [key for key, _ in td.items()]
            ['b', 'a']
            >>> [key for key, _ in td.items(include_nested=True)]
            ['b', 'a', ('a', 'c')]
        """
        if include_nested or leaves_only or sort:
            return listed_items(self, include_nested, leaves_only, is_leaf, sort)
        try:
            return self._entries().items()
        except RuntimeError:
            return listed_items(self, False, False, None, False)

    @property
    def sorted_keys(self) -> list[str]:
        """The direct keys in sorted order.

        Examples:
            >>> TensorDict({"b": torch.zeros(3), "a": torch.ones(3)}, [3]).sorted_keys
            ['a', 'b']
        """
        return sorted(self._sample_entries())
