"""Writes of values into entries at an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict.ops.merging import entry_path, goes_on, key_paths, restricted
from tensordict.primitives.arrays import refuse_masked
from tensordict.primitives.checks import holds_values, is_branch, is_leaf_nontensor
from tensordict.primitives.common import (
    check_number,
    not_a_value,
    refused_first,
)
from tensordict.primitives.convert import tensor_of
from tensordict.primitives.deprecation import warn_of_cast
from tensordict.primitives.errors import locked_error
from tensordict.primitives.index_items import fills, refuse_cast
from tensordict.primitives.index_writes import fit_source
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol, as_stack
from tensordict.primitives.special import is_shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.containers.collection import TensorCollection
    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike

__all__ = ["IndexWritesOps"]

MSG_FAST_COPY = (
    "copy_at_(..., fast=True) requires the optimized tensor-only copy path, but the "
    "source, destination, or index is not compatible. Use fast=False or update_at_ for "
    "the general update semantics."
)


class IndexWritesOps(CollectionProtocol):
    """Writes of values into entries at an index."""

    def set_at_(
        self,
        key: NestedKeyLike,
        value: object,
        index: BatchIndex,
        *,
        non_blocking: bool = False,
    ) -> Self:
        """Write ``value`` at an index of the entry at a nested key.

        As ``self.get(key)[index] = value``, but ``value`` may also be a list or an
        array.

        Raises:
            IndexError: ``key`` is no nested key.
            KeyError: the entry is missing.
            RuntimeError: the value's shape does not fit; or the index is a tensor, and
                the value's dtype does not fit.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3])
            >>> td.set_at_("a", 1.0, slice(1, None))["a"]
            tensor([0., 1., 1.])
        """
        path = entry_path(key)
        target = _rust.get(self, path)
        if isinstance(target, CollectionProtocol):
            if isinstance(value, dict):
                value = _rust.validate(self, key, value)
            if not target._is_non_tensor:
                target[index] = value
                return self
            warn_of_cast(value, path[-1])
            value = _as_entry(_rows_at(target, index, value))
            holder = self if len(path) == 1 else _rust.get(self, path[:-1])
            as_stack = not isinstance(value, torch.Tensor)
            held: Any = target
            held._write_held(holder, path[-1], index, value, as_stack)
            return self
        if isinstance(value, float):
            # If the index selects nothing, torch does not check the number's dtype.
            check_number([target], value, True)
        elif not isinstance(value, (torch.Tensor, bool, int, complex)):
            # A wrong index is reported before a wrong value.
            _rust.index_plan(target.shape, index)
            value = _tensor_of(value, target, key)
        parent: Any = self if len(path) == 1 else _rust.get(self, path[:-1])
        parent._write_at(path[-1], target, _index_of(parent, target, index), value)
        return self

    def _set_at_str(
        self,
        key: str,
        value: object,
        idx: BatchIndex,
        *,
        validated: bool,
        non_blocking: bool,
    ) -> Self:
        return self.set_at_(key, value, idx, non_blocking=non_blocking)

    def _set_at_tuple(
        self,
        key: tuple[str, ...],
        value: object,
        idx: BatchIndex,
        *,
        validated: bool,
        non_blocking: bool,
    ) -> Self:
        return self.set_at_(key, value, idx, non_blocking=non_blocking)

    def update_at_(
        self,
        input_dict_or_td: Mapping[Any, Any] | CollectionProtocol,
        idx: BatchIndex,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKeyLike] | None = None,
    ) -> Self:
        """Write the values of a tensordict or mapping at an index.

        Args:
            input_dict_or_td: the values, of the shape that indexing the entries gives.
            idx: an index of the batch dimensions.
            clone: has no effect: values are always copied.
            non_blocking: allow asynchronous copies between devices.
            keys_to_update: the keys to write. Default: all keys.

        Raises:
            KeyError: the entry for a value is missing. A missing entry of a nested
                tensordict is created instead, if the value comes in a tensordict.
            RuntimeError: a value does not fit at the index; then nothing is written.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 2)}, [3])
            >>> td.update_at_({"a": torch.ones(2)}, 1)["a"].sum(-1)
            tensor([0., 2., 0.])
        """
        source: Any = input_dict_or_td
        if keys_to_update is not None:
            paths = key_paths(keys_to_update)
            wanted = [path for path in paths if not goes_on(paths, path)]
            source = restricted(source, wanted)
        elif _rust.write_fitting(self, idx, source):
            return self
        writes: list[tuple[Any, str, torch.Tensor, Any, Any]] = []
        fresh: list[tuple[Any, str, Any]] = []
        _collect_writes(self, source, idx, idx, writes, fresh)
        for parent, name, target, at, value in refused_first(writes, 2):
            if isinstance(target, CollectionProtocol):
                value = _rows_at(target, at, value)
                held: Any = target
                held._write_held(parent, name, at, value)
                continue
            parent._write_at(name, target, at, value)
        for parent, name, made in fresh:
            if isinstance(made, CollectionProtocol):
                parent._hang(name, made)
            else:
                parent._set_entry(name, made)
        return self

    def copy_at_(
        self,
        tensordict: CollectionProtocol,
        idx: BatchIndex,
        non_blocking: bool = False,
        *,
        fast: bool = True,
    ) -> Self:
        """Copy all leaves of another tensordict to an index of this one.

        Args:
            tensordict: a tensordict with the leaves of this one.
            idx: integers, slices, None and ``...``; without ``fast``, any index.
            non_blocking: allow asynchronous copies between devices.
            fast: require a plain copy of tensors: both sides must be plain
                ``TensorDict`` objects, no views, lazy stacks or other classes.

        Raises:
            RuntimeError: ``fast`` is set, and the leaves or the index do not allow it.
        """
        if fast:
            is_plain = type(self) is self._plain_type and _is_plain_index(idx)
            if is_plain and _rust.write_fitting(self, idx, tensordict):
                return self
            idx, pairs = _plain_copy(self, tensordict, idx)
            for target, value in refused_first(pairs, 0):
                target[idx] = value
            return self
        if self._is_non_tensor and _writes_nothing(tensordict, True):
            return self
        return self.update_at_(tensordict, idx, non_blocking=non_blocking)


def _collect_writes(
    td: Any,
    source: Any,
    index: Any,
    caller_index: object,
    writes: list[tuple[Any, str, torch.Tensor, Any, Any]],
    fresh: list[tuple[Any, str, Any]],
    nested: bool = False,
) -> None:
    """Collect the leaves of ``td`` and the values to write, after checking each value.

    Entries that a nested tensordict lacks are created, as by assignment at an index.
    ``caller_index`` is the index as passed: torch treats a mask otherwise than
    positions.
    """
    # `_as_source`, since a tensorclass field may be named like the method `items`.
    is_collection = isinstance(source, CollectionProtocol)
    mapping = source._as_source() if is_collection else source
    for key, value in list(mapping.items()):
        if nested and is_collection and td._get_entry(key, NO_DEFAULT) is NO_DEFAULT:
            fresh.append((td, key, _zeros_with(td, source, key, index)))
            continue
        if _writes_nothing(value, nested):
            continue
        target = _rust.get(td, key)
        if not is_branch(target):
            path = _rust.unravel_key_to_tuple(key)
            parent = td if len(path) == 1 else _rust.get(td, path[:-1])
            at = _index_of(parent, target, index)
            if holds_values(target):
                target._check_item(_rust.index_shape(target.batch_size, index), value)
                checked = value
            else:
                checked = _checked_write(parent, target, value, at, caller_index, key)
            writes.append((parent, path[-1], target, at, checked))
        elif holds_values(value):
            raise not_a_value(key, target, value)
        elif isinstance(value, CollectionProtocol):
            # The index selects the nested tensordict's batch dims, not the leaves'
            # dims.
            plan = _rust.index_plan(target.batch_size, index)
            at = ... if plan is None else plan[0]
            size = target.batch_size if plan is None else plan[1]
            fit_source(target.batch_size, index, size, value)
            _collect_writes(target, value, at, caller_index, writes, fresh, True)
        elif isinstance(value, Mapping):
            _collect_writes(target, value, index, caller_index, writes, fresh, True)
        else:
            keys = target.keys(True, True, is_leaf=is_leaf_nontensor)
            spread = dict.fromkeys(keys, value)
            _collect_writes(target, spread, index, caller_index, writes, fresh)


def _index_of(td: TensorCollection, entry: Any, index: Any) -> Any:
    """Return the index for an entry of ``td``; ``...`` for an entry that rows share.

    Raises:
        IndexError: ``index`` is not valid for the batch dimensions.
    """
    if not is_shared(entry):
        return index
    _ = torch.zeros((), device=entry.device).expand(td.batch_size)[index]
    return ...


def _zeros_with(
    td: CollectionProtocol, source: CollectionProtocol, key: str, index: BatchIndex
) -> Any:
    """Make an entry for ``td``: zeros, and ``source``'s values at the index."""
    if td.is_locked:
        raise locked_error(td)
    made = td.empty()
    made[index] = source.select(key)
    return made._get_entry(key, None)


def _writes_nothing(value: object, nested: bool) -> bool:
    """Return whether a nested value has nothing to write and needs no entry."""
    if isinstance(value, CollectionProtocol):
        return nested and not value._is_non_tensor and not _rust.leaves(value)
    if isinstance(value, Mapping):
        return all(_writes_nothing(item, True) for item in value.values())
    return False


def _plain_copy(td: Any, source: Any, index: BatchIndex) -> tuple[Any, list[Any]]:
    """Return the index for the leaves, and the pairs of target and value.

    Raises:
        RuntimeError: this is no plain copy, or the leaves of ``source`` do not have the
            shapes that the index gives.
    """
    plain = td._plain_type
    if type(source) is not plain or not (td._is_non_tensor or type(td) is plain):
        raise RuntimeError(MSG_FAST_COPY)
    for holder in (*_rust.containers(td), *_rust.containers(source)):
        if holder._is_non_tensor:
            # One value for all rows stays. A value for each row would have to be
            # written.
            is_plain = holder._is_one
        else:
            is_plain = holder._is_dense or not _rust.leaves(holder)
        if not is_plain:
            raise RuntimeError(MSG_FAST_COPY)
    if not td._is_non_tensor and not _are_plain(td, source):
        raise RuntimeError(MSG_FAST_COPY)
    leaves = list(source.items(True, leaves_only=True))
    if not leaves:
        return index, []
    if not _is_plain_index(index):
        raise RuntimeError(MSG_FAST_COPY)
    try:
        plan = _rust.index_plan(td.batch_size, index)
    except IndexError:
        raise RuntimeError(MSG_FAST_COPY) from None
    at = ... if plan is None else plan[0]
    pairs = []
    for key, value in leaves:
        target = _rust.get(td, key) if _rust.contains(td, key) else None
        if not isinstance(target, torch.Tensor) or value.shape != target[at].shape:
            raise RuntimeError(MSG_FAST_COPY)
        pairs.append((target, value))
    return at, pairs


def _are_plain(td: TensorCollection, source: Any) -> bool:
    """Return whether all tensordicts in ``source`` are plain in ``td``, or empty."""
    for key, value in list(source._entries().items()):
        held = td._get_entry(key, None) if is_branch(value) else None
        if not is_branch(held):
            continue
        if not (
            _are_plain(held, value)
            if type(held) is type(td)
            else not _rust.leaves(held)
        ):
            return False
    return True


def _is_plain_index(index: object) -> bool:
    """Return whether an index is made of numbers, slices, None and ellipses."""
    parts = index if isinstance(index, tuple) else (index,)
    return all([_is_plain_item(part) for part in parts])


def _is_plain_item(item: object) -> bool:
    if isinstance(item, torch.Tensor):
        return not item.shape and item.dtype is not torch.bool
    if isinstance(item, (int, slice, np.integer)):
        return not isinstance(item, bool)
    return item is None or item is ...


def _as_entry(value: object) -> Any:
    """Return ``value`` if it is an entry, else a tensor or array made of it."""
    if isinstance(value, (str, bytes, torch.Tensor, CollectionProtocol)):
        return value
    tensor = tensor_of(value)
    if tensor is None and isinstance(value, tuple):
        refuse_masked(value)
        tensor = np.asarray(value)
    return value if tensor is None else tensor


def _rows_at(target: CollectionProtocol, index: BatchIndex, value: object) -> Any:
    """Convert an array of strings for an index of non-tensor data to a column."""
    if not isinstance(value, np.ndarray):
        return value
    size = _rust.index_shape(target.batch_size, index)
    return target._non_tensor_type._rows_of(value, size)


def _tensor_of(value: object, target: torch.Tensor, key: object) -> torch.Tensor:
    """Convert ``value`` to a tensor that is written into the tensor at ``key``.

    Raises:
        AttributeError: ``value`` is neither a number nor an array.
    """
    tensor = value if isinstance(value, CollectionProtocol) else None
    if tensor is None:
        tensor = tensor_of(value, target.device)
    if not isinstance(tensor, torch.Tensor):
        raise not_a_value(key, target, tensor if tensor is not None else value)
    return tensor


def _checked_write(
    parent: CollectionProtocol,
    target: torch.Tensor,
    value: object,
    index: BatchIndex,
    caller_index: object,
    key: object,
) -> Any:
    """Return ``value`` in a form that ``index`` takes; raise the error of the write."""
    if not isinstance(value, (torch.Tensor, bool, int, float, complex)):
        value = _tensor_of(value, target, key)
    if isinstance(value, torch.Tensor):
        try:
            shape = target[index].shape
        except IndexError:
            # On this wrong index torch may first report the shape of the value.
            torch.empty(target.shape, dtype=target.dtype)[index] = value.cpu()
            raise
        if value.shape != shape and shape.numel():
            spare = value.dim() - len(shape)
            if spare > 0 and set(value.shape[:spare]) == {1}:
                value = value.reshape(value.shape[spare:])
            value.expand(shape)
        if value.dtype != target.dtype:
            if fills(caller_index, value):
                return value.to(target.dtype)
            stack = as_stack(parent)
            if stack is None or not stack._casts_at(index):
                refuse_cast(index, target, value)
    return value
