"""Refuse what a part of a collection cannot do; do what it does differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.elsewhere import (
    MSG_INPLACE,
    MSG_ONLY_VIEW,
    MSG_SHAPE,
    KeptElsewhere,
    Refusal,
    refused,
)
from tensordict.containers.source_view import SourceView
from tensordict.primitives import options as options_primitives
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.parts import load_part, plan_part, saved_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensordict._rust import SavedTensors
    from tensordict.primitives.protocol import NestedKeyLike
    from tensordict.storage.paths import SavedPath

__all__ = ["ViewDifferences"]

MSG_NAMES = (
    "Names of a subtensordict cannot be modified. Instantiate it as a TensorDict first."
)
MSG_MEMMAP = "Converting a sub-tensordict values to memmap cannot be done."
MSG_SHARE = "Casting a sub-tensordict values to shared memory cannot be done."
MSG_DETACH = "Detaching a sub-tensordict in-place cannot be done."
MSG_TO_INPLACE = "Cannot send a _SubTensorDict instance to device/dtype inplace"


class ViewDifferences(SourceView, KeptElsewhere):  # type: ignore[misc]
    """The methods that a part of a collection refuses, or has in its own way."""

    memmap_: Any = refused(MSG_MEMMAP)
    share_memory_: Any = refused(MSG_SHARE)
    detach_: Any = refused(MSG_DETACH)

    def to(self, *args: object, **kwargs: object) -> Any:
        """Copy what the part shows, then move it. See ``TensorDict.to``.

        With a collection to take device and dtype from, nothing is copied that stays as
        it is.

        Raises:
            TypeError: ``inplace`` is true: a part does not own its leaves.
        """
        if kwargs.get("inplace"):
            raise TypeError(MSG_TO_INPLACE)
        if (
            len(args) == 1
            and isinstance(args[0], (str, torch.device))
            and torch.device(args[0]) == self.device
        ):
            return self._remember(self, "to", args, kwargs)
        if args and isinstance(args[0], CollectionProtocol):
            result = self._shown().to(*args, **kwargs)
            if self.is_locked:
                _rust.lock_tree(result)
        else:
            result = self.to_tensordict().to(*args, **kwargs)
        return self._remember(result, "to", args, kwargs)

    def view(self, *shape: Any, **kwargs: Any) -> Self:
        """Read the part as another dtype; a shape has to be the one that it has.

        Raises:
            RuntimeError: the shape is another one. Use :meth:`reshape`.
        """
        given = shape[0] if shape and isinstance(shape[0], (list, tuple)) else shape
        is_lazy = options_primitives.lazy_legacy()
        if not is_lazy and -1 in (*given, *kwargs.get("size", ())):
            raise Refusal(MSG_ONLY_VIEW).of(self, "view")
        return super().view(*shape, **kwargs)

    def unflatten(
        self, dim: int, unflattened_size: Sequence[int], *, inplace: bool = False
    ) -> Any:
        """Split one batch dim into several, in an ordinary collection."""
        if inplace:
            raise Refusal(MSG_INPLACE, NotImplementedError).of(self, "unflatten")
        result = self._shown().unflatten(dim, unflattened_size)
        if self.is_locked:
            _rust.lock_tree(result)
        return self._remember(result, "unflatten", (dim, unflattened_size), {})

    def permute(self, *args: object, **kwargs: object) -> Self:
        """Refused outside of the lazy mode: make an ordinary collection of it first."""
        if not options_primitives.lazy_legacy():
            raise Refusal(MSG_SHAPE).of(self, "permute")
        return super().permute(*args, **kwargs)

    def atleast_1d(self) -> Self:
        """Refused where it has fewer dims."""
        return self._with_ndim(1)

    def atleast_2d(self) -> Self:
        """Refused where it has fewer dims."""
        return self._with_ndim(2)

    def atleast_3d(self) -> Self:
        """Refused where it has fewer dims."""
        return self._with_ndim(3)

    def _with_ndim(self, ndim: int) -> Self:
        if ndim > len(self._batch_size):
            raise Refusal(MSG_SHAPE).of(self, "unsqueeze")
        return self._remember(self, f"atleast_{ndim}d", (), {})

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Regroup the entries. See ``TensorDict.unflatten_keys``.

        The result is a part of a copy of the parent, whose leaves it has; of the parent
        itself if ``inplace``.
        """
        result = self if inplace else self._clone_structure()
        result._source.unflatten_keys(separator, True)
        return self._remember(result, "unflatten_keys", (separator,), {})

    def split_keys(
        self,
        *key_sets: Iterable[NestedKeyLike],
        inplace: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Deal the entries out. See ``TensorDict.split_keys``.

        The rest is a part of a copy of the structure of the parent, whose leaves it has.
        """
        whole = self if inplace else self._clone_structure()
        return super(ViewDifferences, whole).split_keys(
            *key_sets, inplace=True, **kwargs
        )

    def rename_(self, *names: str | None, **rename_map: str | None) -> Self:
        """Refused: the names are those of the parent."""
        if names and names != (None,) and not rename_map:
            raise RuntimeError(MSG_NAMES)
        return super().rename_(*names, **rename_map)

    def rename_key_(
        self, old_key: NestedKeyLike, new_key: NestedKeyLike, safe: bool = False
    ) -> Self:
        """Rename an entry of the collection of which this is a part."""
        self._source.rename_key_(old_key, new_key, safe=safe)
        return self

    # Files --------------------------------------------------------------------------

    def is_empty(self) -> bool:
        """Return whether the collection of which this is a part has no leaf."""
        return self._source.is_empty()

    def auto_batch_size_(
        self, batch_dims: int | None = None, keep_compliant_size: bool = False
    ) -> Self:
        """Refused unless the entries share no more dims than there are.

        Nested collections count with their batch size, which is that of the parent.
        """
        shapes = [value.shape for value in self._entries().values()]
        if shapes:
            dims = enumerate(zip(*shapes, strict=False))
            shortest = min(map(len, shapes))
            end = next((dim for dim, sizes in dims if len({*sizes}) > 1), shortest)
            if batch_dims is not None:
                end = max(min(end, batch_dims), 0)
            self.batch_size = list(shapes[0][:end])
        return self

    def _save_plan(self, plan: object, level: int) -> None:
        plan_part(self, plan, level)

    def _saved(self, leaves: SavedTensors, directory: object, inplace: bool) -> Self:
        return saved_part(self, leaves, directory)

    def _unlock_saved(self) -> Self:
        self._source._unlock_saved()
        self._is_memmap = False
        return self

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: object) -> Self:
        return load_part(cls, directory, options)

    def _take_loaded(self, loaded: CollectionProtocol) -> Self:
        # Its entries are those of the collection it belongs to, which keeps them.
        return self.update_(loaded)
