"""Methods of views that work on an ordinary tensordict with the entries of the view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.ops.batch import with_named_values
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

__all__ = ["PlainEntries", "PlainWalks"]


class PlainWalks(CollectionProtocol):
    """Methods that visit all entries, on an ordinary tensordict of a view's entries.

    Results are ordinary tensordicts. If the caller asks for the lock to be kept, the
    result of a locked view is locked.
    """

    def _shown(self) -> Any:
        """Return an ordinary tensordict of the view's entries, nested ones included."""
        raise NotImplementedError

    def _shown_as_is(self) -> Any:
        """Return the entries like :meth:`_shown`, with the values of the source."""
        return self._shown()

    def _as_dense(self) -> Any:
        return self._shown()

    def _refuse(self, op: object) -> None:
        """Raise an error if the view does not support the operation ``op``."""

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
        self._refuse(op)
        shown = self._shown()
        result = _rust.map_leaves(shown, op, args, prefix, names, tail, False, k)
        if lock and self.is_locked:
            _rust.lock_tree(result)
        return result

    def _split_leaves(
        self,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        prefixes: list[torch.Size],
        names: object,
        lock: bool,
        k: int,
    ) -> list[Any]:
        shown = self._shown_as_is()
        results = _rust.split_leaves(shown, op, args, prefixes, names, False, k)
        if lock and self.is_locked:
            for result in results:
                _rust.lock_tree(result)
        return results

    def _rebuild(self, values: Iterator[Any], lock: bool) -> Any:
        shown = self._shown()
        leaves = [next(values) for _ in _rust.leaves(shown)]
        return _rust.rebuild(shown, leaves, True, False)

    def _stack_all(self, tds: Sequence[Any], dim: int) -> Any:
        return _rust.stack([_shown(td) for td in tds], dim)

    def _cat_all(self, tds: Sequence[Any], dim: int) -> Any:
        return _rust.cat([_shown(td) for td in tds], dim)


class PlainEntries(PlainWalks):
    """Methods that visit all entries of a collection with its own ``_entries``."""

    def _shown(self) -> Any:
        """Copy the entries into an ordinary tensordict, nested ones included.

        Nested collections take over the dim names, like values that are set.
        """
        return with_named_values(self._shown_as_is())

    def _shown_as_is(self) -> Any:
        entries = {
            key: value._shown_as_is() if isinstance(value, PlainEntries) else value
            for key, value in self._entries().items()
        }
        return self._with_entries(entries)

    def _as_source(self) -> Any:
        return self._shown()

    def _leaves(self, out: list[Any]) -> None:
        for value in self._entries().values():
            if isinstance(value, CollectionProtocol):
                value._leaves(out)
            else:
                out.append(value)

    def _store_leaves(self, values: list[Any]) -> None:
        self._store_from(iter(values))

    def _store_from(self, values: Iterator[Any]) -> None:
        """Store one of the values in each leaf: see :meth:`_store_leaves`."""
        raise NotImplementedError

    def _writes_through(self) -> bool:
        return True

    def _hang(self, key: str, value: object) -> None:
        self._set_entry(key, value)


def _shown(td: CollectionProtocol) -> Any:
    return td._shown_as_is() if isinstance(td, PlainWalks) else td
