"""Views of another collection: the methods that both kinds of views share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tensordict.containers.fixed_size import FixedSize
from tensordict.containers.plain_walks import PlainWalks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["SourceView"]

MSG_INPLACE_KEYS = "Cannot call {} inplace on a lazy tensordict."


class SourceView(FixedSize, PlainWalks):
    """A view of another collection, the source, which holds the entries."""

    _source: Any
    """The collection that the view shows, whole or in part."""

    _msg_names: ClassVar[str]
    """The error message of an attempt to change the names."""

    @property
    def names(self) -> list[str | None]:
        """A name or None for each batch dim. They cannot be changed."""
        names = self._td_dim_names
        return [None] * len(self._batch_size) if names is None else list(names)

    @names.setter
    def names(self, value: Sequence[str | None] | None) -> None:
        new_names = [None] * len(self._batch_size) if value is None else list(value)
        if new_names != self.names:
            raise RuntimeError(self._msg_names)

    def select(
        self,
        *keys: NestedKeyLike,
        inplace: bool = False,
        strict: bool = True,
        as_tensordict: bool = False,
    ) -> Any:
        """Copy the entries at ``keys`` to an ordinary collection."""
        if inplace:
            raise RuntimeError(MSG_INPLACE_KEYS.format("select"))
        return self._shown().select(*keys, strict=strict).clone()

    def exclude(self, *keys: NestedKeyLike, inplace: bool = False) -> Any:
        """Copy all entries except those at ``keys`` to an ordinary collection."""
        if inplace:
            raise RuntimeError(MSG_INPLACE_KEYS.format("exclude"))
        return self._shown().exclude(*keys).clone()

    def flatten_keys(
        self,
        separator: str = ".",
        inplace: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> Any:
        """Return an ordinary collection with all leaves under flat, joined keys."""
        if inplace:
            raise RuntimeError(MSG_INPLACE_KEYS.format("exclude"))
        return super().flatten_keys(separator, is_leaf=is_leaf)

    def to_padded_tensor(
        self, padding: float = 0.0, mask_key: NestedKeyLike | None = None
    ) -> Any:
        """Return an ordinary collection with its ragged entries padded."""
        return self._shown().to_padded_tensor(padding, mask_key)

    # Files ----------------------------------------------------------------------------

    def is_memmap(self) -> bool:
        """Return whether the source is memory-mapped."""
        return self._source.is_memmap()

    def is_shared(self) -> bool:
        """Return whether the source is in shared memory."""
        return self._source.is_shared()

    def memmap_like(self, *args: object, **kwargs: object) -> Any:
        """Create files of zeros with the view's shapes, as an ordinary collection."""
        return self._shown().memmap_like(*args, **kwargs)

    def _shape_fields(self) -> dict[str, str | None]:
        return {}
