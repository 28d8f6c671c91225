"""Choosing, renaming and regrouping entries."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.protocol import CollectionProtocol

if TYPE_CHECKING:
    from tensordict.protocol import NestedKeyLike

__all__ = ["KeysOps"]


class _StringKeys(KeysView[str]):
    """The direct keys of a container: a live view, as that of a dictionary."""

    def __init__(self, keys: Any) -> None:
        self._mapping = keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __contains__(self, key: Any) -> bool:
        if isinstance(key, str):
            return key in self._mapping
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise TypeError(_rust.MSG_MEMBERSHIP)
        return len(path) == 1 and path[0] in self._mapping

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dict_keys({list(self._mapping)}))"


_StringKeys.__module__ = "tensordict.utils"


class _TensorDictKeysView:
    """The keys of a container and of what is nested in it: a live view."""

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
            self.tensordict, 0, self.include_nested, self.leaves_only, self.is_leaf
        )
        if self.sort:
            keys.sort(key=_sorting_key)
        return keys

    def __iter__(self) -> Iterator[NestedKeyLike]:
        return iter(self._list())

    def __len__(self) -> int:
        return len(self._list())

    def __contains__(self, key: Any) -> bool:
        if not self.include_nested:
            path = _rust.unravel_key_to_tuple(key)
            if len(path) > 1:
                return False
        return _rust.contains(self.tensordict, key)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._list()},\n"
            f"    include_nested={self.include_nested},\n"
            f"    leaves_only={self.leaves_only})"
        )


_TensorDictKeysView.__module__ = "tensordict._td"


def _sorting_key(key: NestedKeyLike) -> str:
    return key if isinstance(key, str) else ".".join(key)


def _sorting_key_of_pair(pair: tuple[NestedKeyLike, Any]) -> str:
    return _sorting_key(pair[0])


class KeysOps(CollectionProtocol):
    """Choosing, renaming and regrouping entries."""

    # Keys, values, items ---------------------------------------------------------

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """The keys: a view that follows the container, in the order of its entries.

        Args:
            include_nested: also list the keys of nested containers, as tuples, before
                the key of the container that they are in.
            leaves_only: leave out the keys of containers.
            is_leaf: which types ``leaves_only`` keeps. Default: all but containers.
            sort: sort the keys, a nested one by its parts joined by dots.

        Examples:
            >>> td = TensorDict({"b": torch.zeros(3), "a": {"c": torch.ones(3)}}, [3])
            >>> list(td.keys())
            ['b', 'a']
            >>> list(td.keys(include_nested=True))
            ['b', ('a', 'c'), 'a']
            >>> list(td.keys(include_nested=True, leaves_only=True))
            ['b', ('a', 'c')]
        """
        if not include_nested and not leaves_only and is_leaf is None:
            if sort:
                return sorted(self._entries())
            return _StringKeys(self._entries().keys())
        return _TensorDictKeysView(self, include_nested, leaves_only, is_leaf, sort)

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """The values. Parameters as in :meth:`items`.

        Examples:
            >>> td = TensorDict({"b": torch.zeros(3), "a": {"c": torch.ones(3)}}, [3])
            >>> [value.shape for value in td.values(True, True)]
            [torch.Size([3]), torch.Size([3])]
        """
        if sort:
            pairs = _rust.walk(self, 2, include_nested, leaves_only, is_leaf)
            pairs.sort(key=_sorting_key_of_pair)
            return [value for _, value in pairs]
        if not include_nested and not leaves_only:
            return self._entries().values()
        return iter(_rust.walk(self, 1, include_nested, leaves_only, is_leaf))

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """The pairs of key and value.

        The direct items are a view that follows the container. Nested ones are listed
        when this is called, so that the container may be changed while they are used.

        Args:
            include_nested: also list what nested containers hold, after the
                container that it is in, with tuples as keys.
            leaves_only: leave out containers.
            is_leaf: which types ``leaves_only`` keeps. Default: all but containers.
            sort: sort by key, a nested one by its parts joined by dots.

        Examples:
            >>> td = TensorDict({"b": torch.zeros(3), "a": {"c": torch.ones(3)}}, [3])
            >>> [key for key, _ in td.items()]
            ['b', 'a']
            >>> [key for key, _ in td.items(include_nested=True)]
            ['b', 'a', ('a', 'c')]
        """
        if not include_nested and not leaves_only and not sort:
            return self._entries().items()
        pairs = _rust.walk(self, 2, include_nested, leaves_only, is_leaf)
        if sort:
            pairs.sort(key=_sorting_key_of_pair)
            return pairs
        return pairs if self.is_locked else iter(pairs)
