"""Batch size and dimension names."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self, overload

import torch

from tensordict import _rust
from tensordict.primitives.checks import holds_values, is_branch
from tensordict.primitives.errors import at_key, keyed
from tensordict.primitives.protocol import CollectionProtocol, PartsProtocol
from tensordict.primitives.special import fits, leading_shape, resized

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BatchOps"]

MSG_INCOMPATIBLE = (
    "the {} {} has shape {} which is incompatible with the batch-size {}."
)
MSG_NAMES_LENGTH = (
    "the length of the dimension names must equate the tensordict batch_dims "
    "attribute. Got {} for batch_dims {}."
)
MSG_REFINE = "refine_names: cannot coerce TensorDict names {} with {}."
MSG_UNKNOWN_NAMES = (
    "Some names to be renamed were not part of the tensordict names: {} vs {}."
)

MSG_NO_NAMES = "Neither a name map nor a name list was passed. Only one is accepted."


class BatchOps(CollectionProtocol):
    """Batch size and dimension names."""

    # Sizes -----------------------------------------------------------------------

    @property
    @_rust.call_natively
    def batch_size(self) -> torch.Size:
        """The batch size: the leading dimensions ``[*B]`` that all entries share.

        Assign any shape that all entries start with. Nested tensordicts whose batch
        size does not start with the new one get it, too. A new dimension has no name.

        Raises:
            RuntimeError: an entry does not have the new batch size as its leading
                dimensions. Then nothing changes.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4)}, batch_size=[3])
            >>> td.batch_size = [3, 4]
            >>> td.batch_size
            torch.Size([3, 4])
        """
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: Sequence[int]) -> None:
        size = value if type(value) is torch.Size else torch.Size(value)
        if not self._is_dense or size != self._batch_size:
            self._set_batch_size(size)

    def _set_batch_size(self, size: torch.Size) -> None:
        changed: list[Any] = []
        _collect_resized(self, size, changed)
        for td in changed:
            td._resize_batch(size)
        if self._has_names():
            self.names = self.names

    def _resize_batch(self, size: torch.Size) -> None:
        """Set a batch size that fits; cut or extend the names to its length."""
        names = self._td_dim_names
        if names is not None:
            names = [*names, *[None] * len(size)][: len(size)]
            self._td_dim_names = names if _has_any(names) else None
        self._batch_size = size
        if self._is_dense:
            for key, value in list(self._tensordict.items()):
                kept = None if type(value) is torch.Tensor else resized(value, size)
                if kept is not None:
                    self._tensordict[key] = kept

    @property
    @_rust.call_natively
    def shape(self) -> torch.Size:
        """The batch size: see :attr:`batch_size`."""
        return self.batch_size

    @shape.setter
    def shape(self, value: Sequence[int]) -> None:
        self.batch_size = value

    @overload
    def size(self, dim: None = None) -> torch.Size: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> torch.Size | int:
        """Return the batch size or one of its dimensions, as :meth:`torch.Tensor.size`.

        Raises:
            IndexError: ``dim`` is out of range.

        Examples:
            >>> TensorDict(batch_size=[3, 4]).size(-1)
            4
        """
        return self.batch_size if dim is None else self.batch_size[dim]

    @property
    @_rust.call_natively
    def batch_dims(self) -> int:
        """The number of batch dimensions."""
        return len(self.batch_size)

    @property
    @_rust.call_natively
    def ndim(self) -> int:
        """The number of batch dimensions."""
        return len(self.batch_size)

    def dim(self) -> int:
        """Return the number of batch dimensions."""
        return len(self.batch_size)

    def ndimension(self) -> int:
        """Return the number of batch dimensions."""
        return len(self.batch_size)

    def numel(self) -> int:
        """Return the product of the batch size, at least 1.

        Examples:
            >>> TensorDict(batch_size=[3, 4]).numel()
            12
        """
        numel = self.batch_size.numel()
        return numel if numel > 0 else 1

    @property
    def depth(self) -> int:
        """The number of levels of nested tensordicts above the deepest leaf.

        Examples:
            >>> TensorDict({"a": {"b": {"c": torch.zeros(())}}}).depth
            2
        """
        return max(_depth_of(self), 0)

    def auto_batch_size_(
        self, batch_dims: int | None = None, keep_compliant_size: bool = False
    ) -> Self:
        """Set the largest batch size that all entries share, also in nested ones.

        A nested tensordict without entries does not limit the result. Its batch size is
        cut to ``batch_dims``; if it does not start with the batch size of its parent,
        it is replaced by the parent's.

        Args:
            batch_dims: the most dimensions of a batch size. Default: no limit.
            keep_compliant_size: let nested tensordicts keep a batch size that starts
                with the one found for them.

        Returns:
            This tensordict.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4, 5), "b": torch.zeros(3, 4)})
            >>> td.auto_batch_size_().batch_size
            torch.Size([3, 4])
            >>> td.auto_batch_size_(batch_dims=1).batch_size
            torch.Size([3])
        """
        sizes: list[tuple[Any, torch.Size]] = []
        BatchOps._common_size(self, batch_dims, keep_compliant_size, sizes)
        for td, size in sizes:
            # A non-tensor stack has a fixed number of dims, one per level of lists.
            if td is self or not isinstance(td, self._non_tensor_stack_type):
                td._resize_batch(size)
        return self

    def _common_size(
        self, limit: int | None, keep: bool, sizes: list[tuple[Any, torch.Size]]
    ) -> torch.Size | None:
        """Append each nested tensordict and this one with the batch size it can take.

        Return the batch size of this one; None if it contains no leaf.
        """
        common: Sequence[int] | None = None
        spare: Sequence[int] | None = None
        without_leaves: list[int] = []
        for value in list(self._entries().values()):
            if isinstance(value, CollectionProtocol):
                start = len(sizes)
                nested: Any = value
                size = nested._common_size(limit, keep, sizes)
                if size is None and nested._is_non_tensor and len(nested.batch_size):
                    # Non-tensor data has no leaf, so its batch size is the limit.
                    size = nested.batch_size
                inner_size = sizes[-1][1] if size is None else size
                is_kept = keep and value.batch_size[: len(inner_size)] == inner_size
                if size is None:
                    if is_kept:
                        sizes[-1] = (value, value.batch_size)
                    spare = inner_size if spare is None else _shared(spare, inner_size)
                    without_leaves += range(start, len(sizes))
                    continue
                if is_kept and len(sizes) > start:
                    sizes.pop()
            else:
                size = leading_shape(value)
                if size is None:
                    continue
            # Most shapes are equal, so one comparison is enough.
            if common is None:
                common = size
            elif size != common:
                common = _shared(common, size)
        told = spare if common is None else common
        if told is None:
            sizes.append((self, self.batch_size[:limit] if limit else self.batch_size))
            return None
        size = torch.Size(told if limit is None else told[: max(limit, 0)])
        for at in without_leaves:
            inner, inner_size = sizes[at]
            if inner_size[: len(size)] != size:
                sizes[at] = (inner, size)
        sizes.append((self, size))
        return None if common is None else size

    # Names -----------------------------------------------------------------------

    @property
    def names(self) -> list[str | None]:
        """The name of each batch dimension, or None for a dimension without a name.

        Nested tensordicts take the names for the dimensions that they share. Assign
        None to remove all names.

        Raises:
            ValueError: the number of names is not the number of batch dimensions; or a
                name repeats, here or in a nested tensordict. Then nothing changes.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4)}, [3, 4], names=["time", None])
            >>> td.names
            ['time', None]
            >>> td[0].names
            [None]
        """
        if self._td_dim_names is None:
            return [None] * len(self.batch_size)
        return list(self._td_dim_names)

    @names.setter
    def names(self, value: Sequence[str | None] | None) -> None:
        ndim = len(self.batch_size)
        if value is None:
            names: list[str | None] = [None] * ndim
        else:
            names = list(value)
            dict.fromkeys(names)  # raises for a name that is not hashable
            if not ndim:
                # Without batch dims, any names are accepted and dropped.
                names = []
            if len(names) != ndim:
                raise ValueError(MSG_NAMES_LENGTH.format(names, ndim))
        if not _has_any(names):
            collections = _rust.containers(self)
            if all([td._is_dense and td._td_dim_names is None for td in collections]):
                return
        changed: list[tuple[Any, list[str | None]]] = []
        _collect_renamed(self, names, ndim, (), changed)
        for td, own in changed:
            td._td_dim_names = own if _has_any(own) else None
            if isinstance(td, PartsProtocol):
                td._note()

    def _has_names(self) -> bool:
        """Return whether any batch dim has a name."""
        return self._td_dim_names is not None

    def _check_names(self, names: list[str | None]) -> None:
        """Raise an error if this tensordict cannot have ``names``."""

    def refine_names(self, *names: Any) -> Self:
        """Name the batch dimensions that have no name, in place.

        As :meth:`torch.Tensor.refine_names`: ``...`` stands for dimensions that keep
        their names.

        Raises:
            RuntimeError: a dimension has another name already.
            IndexError: there are more names than batch dimensions.
            ValueError: there are fewer names than batch dimensions.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4)}, batch_size=[3, 4])
            >>> td.refine_names(..., "time").names
            [None, 'time']
        """
        current = self.names
        refined = list(names)
        if Ellipsis in refined:
            at = refined.index(Ellipsis)
            _check_refined(current, refined[:at], names)
            after = len(refined) - at - 1
            stop = len(current) - after
            if stop < at:
                msg = "list index out of range"
                raise IndexError(msg)
            rest = refined[at + 1 :]
            refined = [*refined[:at], *current[at:stop], *rest]
            refined = [None if name is Ellipsis else name for name in refined]
        elif len(refined) > len(current):
            _check_refined(current, refined[: len(current)], names)
            msg = "list index out of range"
            raise IndexError(msg)
        _check_refined(current, refined, names)
        self.names = refined
        return self

    def rename(self, *names: str | None, **rename_map: str | None) -> Self:
        """Return a tensordict with other dimension names that shares the leaves.

        Args:
            *names: a name for each batch dimension, or one None to remove all names.
            **rename_map: from old names to new names, instead of ``names``.

        Raises:
            ValueError: both kinds of arguments were passed, or none; an old name is
                missing; or names repeat.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4)}, [3, 4], names=["x", "y"])
            >>> td.rename(x="time").names
            ['time', 'y']
        """
        if not names and not rename_map:
            raise ValueError(MSG_NO_NAMES)
        return self.clone(recurse=False).rename_(*names, **rename_map)

    def rename_(self, *names: str | None, **rename_map: str | None) -> Self:
        """Set other dimension names in place: see :meth:`rename`."""
        if names and rename_map:
            msg = "Passed both a name map and a name list. Only one is accepted."
            raise ValueError(msg)
        if not names and not rename_map and self.batch_dims:
            raise ValueError(MSG_NO_NAMES)
        if rename_map:
            current = self.names
            if not set(rename_map).issubset(current):
                raise ValueError(MSG_UNKNOWN_NAMES.format(rename_map.keys(), current))
            self.names = [
                name if name is None else rename_map.get(name, name) for name in current
            ]
        else:
            self.names = None if len(names) == 1 and names[0] is None else names
        return self


def _check_refined(current: list[Any], refined: list[Any], names: Any) -> None:
    for old, name in zip(current, refined, strict=False):
        if old is not None and old != name:
            raise RuntimeError(MSG_REFINE.format(current, list(names)))


def _has_any(names: list[Any]) -> bool:
    return names.count(None) < len(names)


def _sample_items(td: CollectionProtocol) -> list[tuple[str, Any]]:
    """Return samples of the direct entries: only shapes are needed, no file is read."""
    held = td._sample_entries() if isinstance(td, PartsProtocol) else td._entries()
    return list(held.items())


def _collect_resized(
    td: CollectionProtocol, size: torch.Size, changed: list[Any]
) -> None:
    """Append ``td`` and nested ones that must take ``size``; raise if one cannot."""
    ndim = len(size)
    for key, value in _sample_items(td):
        if isinstance(value, CollectionProtocol):
            if value.batch_size[:ndim] != size:
                try:
                    _collect_resized(value, size, changed)
                except RuntimeError as error:
                    raise at_key(error, key) from None
        elif value.shape[:ndim] != size and not fits(value, size):
            name = type(value).__name__
            msg = MSG_INCOMPATIBLE.format(name, key, value.shape, size)
            raise keyed(RuntimeError(msg), key)
    changed.append(td)


def _collect_renamed(
    td: Any,
    names: list[str | None],
    ndim: int,
    path: tuple[str, ...],
    changed: list[tuple[Any, list[str | None]]],
) -> None:
    """Append ``td`` and nested ones with their names; raise if names repeat."""
    depth = len(td.batch_size)
    td_names = [*names, *td.names[ndim:]] if depth > ndim else names[:depth]
    if len({*td_names, None}) + td_names.count(None) != len(td_names) + 1:
        where = f" for the nested tensordict at key {path}" if path else ""
        msg = f"Some dimension names are non-unique: {td_names}{where}."
        raise ValueError(msg)
    td._check_names(td_names)
    changed.append((td, td_names))
    stack = None if td._is_dense else td._lazy_stack()
    if stack is not None:
        rest = [*td_names[: stack.stack_dim], *td_names[stack.stack_dim + 1 :]]
        for member in stack.tensordicts:
            _collect_renamed(member, rest, len(rest), path, changed)
        return
    for key, value in _sample_items(td):
        if type(value) is not torch.Tensor and isinstance(value, CollectionProtocol):
            _collect_renamed(value, names, ndim, (*path, key), changed)


def _shared(first: Sequence[int], second: Sequence[int]) -> Sequence[int]:
    """Return the leading dims that two shapes have in common."""
    for at, (length, other) in enumerate(zip(first, second, strict=False)):
        if length != other:
            return first[:at]
    return first[: min(len(first), len(second))]


def _depth_of(td: CollectionProtocol) -> int:
    """Count the tensordicts above the deepest leaf; return -1 if there is no leaf."""
    depth = -1
    for value in td._sample_entries().values():
        below = 0
        if not isinstance(value, torch.Tensor) and (is_branch(value)):
            below = _depth_of(value)
            if below >= 0:
                below += 1
        depth = max(depth, below)
    return depth


def with_named_values(td: CollectionProtocol) -> Any:
    """Give the non-tensor entries of the new ``td`` its dimension names.

    An entry that has other names keeps them.
    """
    for collection in _rust.containers(td) if td._has_names() else ():
        for key, value in list(collection._entries().items()):
            if holds_values(value):
                with contextlib.suppress(RuntimeError):
                    collection._set_entry(key, value._refined(collection.names))
    return td
