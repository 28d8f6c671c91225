"""Offer what clients of tensordict 0.15 call under names that are not public.

Each is a few lines over the public methods; the package itself uses none of them.
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
    """Lists of entries and checks of them, by the names that clients know."""

    @property
    def _has_non_tensor(self) -> bool:
        """Return whether there is non-tensor data at any depth."""
        return any(is_non_tensor(value) for _, value in self._listed(nested=True))

    def _check_batch_size(self, *, raise_exception: bool = True) -> bool:
        """Return whether the shapes of all entries start with the batch size.

        Raises:
            RuntimeError: one does not, unless ``raise_exception`` is false.
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
            RuntimeError: one is not, unless ``raise_exception`` is false.
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
        """The values as a list; those of lazy stacks are the values of the members.

        Args:
            include_nested: whether values of nested tensordicts are listed.
            leaves_only: whether only leaves are.
            collapse: whether a lazy stack has one value for each key instead.
            is_leaf: what a leaf is. Default: all but collections.
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
        """The keys and the values as two lists. Arguments as of :meth:`_values_list`.

        Args:
            include_nested: see there.
            leaves_only: see there.
            collapse: see there.
            is_leaf: see there.
            sorting_keys: see there.
            default: what stands for a key of ``sorting_keys`` that is missing.
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
        """The pairs of key and value, those of nested tensordicts after each."""
        for key, value in list(self.items()):
            yield key, value
            if nested and is_tensor_collection(value) and not is_non_tensor(value):
                for below, item in value._listed(nested):
                    path = below if isinstance(below, tuple) else (below,)
                    yield (key, *path), item
