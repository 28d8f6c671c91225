"""Walks over a view: they are done on an ordinary tensordict of what it shows."""

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
    """Walks that are done on an ordinary tensordict of what a view shows.

    Their results are ordinary tensordicts, locked as the view is where that is asked for.
    """

    def _shown(self) -> Any:
        """An ordinary tensordict of what the view shows, down to the last entry."""
        raise NotImplementedError

    def _shown_as_is(self) -> Any:
        """Show the entries as :meth:`_shown` does, with the values of the source."""
        return self._shown()

    def _as_dense(self) -> Any:
        return self._shown()

    def _refuse(self, op: object) -> None:
        """Raise where ``op`` is an operation that the view does not take."""

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
    """Walks over what has entries of its own: they are put into an ordinary tensordict."""

    def _shown(self) -> Any:
        """Put the entries into an ordinary tensordict, all the way down.

        Values take the names of the dims, as what is stored in a container does.
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
        """Take back as many of the leaves as there are: see :meth:`_store_leaves`."""
        raise NotImplementedError

    def _writes_through(self) -> bool:
        return True

    def _hang(self, key: str, value: object) -> None:
        self._set_entry(key, value)


def _shown(td: CollectionProtocol) -> Any:
    return td._shown_as_is() if isinstance(td, PlainWalks) else td
