"""Private methods of tensordict 0.15 that other programs call.

Each is a few lines over public methods; this package itself calls none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.primitives import special
from tensordict.primitives.checks import (
    default_is_leaf,
    is_non_tensor,
    is_tensor_collection,
)
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["ClientOps"]

MSG_BATCH_SIZE = (
    "batch_size are incongruent, got value with shape {}, -- expected {} for key {!r}."
)
MSG_DEVICE = "devices are incongruent, got value with device {}, -- expected {}. The key is {!r}."


class ClientOps(CollectionProtocol):
    """Lists and checks of entries under the names that other programs call."""

    @property
    def _has_non_tensor(self) -> bool:
        """Return whether there is non-tensor data at any depth."""
        return any(is_non_tensor(value) for _, value in self._listed(nested=True))

    def _check_batch_size(self, *, raise_exception: bool = True) -> bool:
        """Return whether the shapes of all entries start with the batch size.

        Raises:
            RuntimeError: a shape does not, and ``raise_exception`` is True.
        """
        size = self.batch_size
        for key, value in list(self.items()):
            if is_non_tensor(value):
                continue
            if not special.fits(value, size):
                if not raise_exception:
                    return False
                raise RuntimeError(MSG_BATCH_SIZE.format(value.shape, size, key))
            if is_tensor_collection(value):
                fits = value._check_batch_size(raise_exception=raise_exception)
                if not fits:
                    return False
        return True

    def _check_device(self, *, raise_exception: bool = True) -> bool:
        """Return whether all entries are on the tensordict's device, if it has one.

        Raises:
            RuntimeError: an entry is elsewhere, and ``raise_exception`` is True.
        """
        expected = self.device
        if expected is None:
            return True
        for key, value in self._listed(nested=True):
            if value.device not in (expected, None):
                if not raise_exception:
                    return False
                raise RuntimeError(MSG_DEVICE.format(value.device, expected, key))
        return True

    def _values_list(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        collapse: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        sorting_keys: Sequence[NestedKeyLike] | None = None,
    ) -> list[Any]:
        """Return the values as a list; a lazy stack gives its members' values.

        Args:
            include_nested: also list the values of nested tensordicts.
            leaves_only: list leaves only.
            collapse: list one stacked value for each key of a lazy stack.
            is_leaf: called with a type; True for leaves. Default: all types but
                tensordicts.
            sorting_keys: the keys of the values to list, in this order.
        """
        return self._items_list(
            include_nested,
            leaves_only,
            collapse=collapse,
            is_leaf=is_leaf,
            sorting_keys=sorting_keys,
        )[1]

    def _items_list(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        collapse: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        sorting_keys: Sequence[NestedKeyLike] | None = None,
        default: object = None,
    ) -> tuple[list[Any], list[Any]]:
        """Return the keys and the values as two lists.

        Args:
            include_nested: see :meth:`_values_list`.
            leaves_only: see :meth:`_values_list`.
            collapse: see :meth:`_values_list`.
            is_leaf: see :meth:`_values_list`.
            sorting_keys: see :meth:`_values_list`.
            default: the value for a missing key of ``sorting_keys``.
        """
        if sorting_keys is not None:
            found = [self.get(key, default) for key in sorting_keys]
            return list(sorting_keys), found
        pairs: Iterable[tuple[Any, Any]]
        if collapse:
            pairs = self.items(include_nested, leaves_only, is_leaf)
        else:
            pairs = self._listed(include_nested)
            if leaves_only:
                a_leaf = is_leaf or default_is_leaf
                pairs = [pair for pair in pairs if a_leaf(type(pair[1]))]
        pairs = list(pairs)
        return [key for key, _ in pairs], [value for _, value in pairs]

    def _listed(self, nested: bool) -> Iterator[tuple[Any, Any]]:
        """Yield the pairs of key and value, each followed by its nested pairs."""
        for key, value in list(self.items()):
            yield key, value
            if nested and isinstance(value, CollectionProtocol):
                inner: Any = value
                for below, item in inner._listed(nested):
                    path = below if isinstance(below, tuple) else (below,)
                    yield (key, *path), item
