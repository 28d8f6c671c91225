"""Checks of all writes at an index, entry by entry, before the first write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives import special
from tensordict.primitives.arrays import as_tensor
from tensordict.primitives.checks import holds_values, inside
from tensordict.primitives.common import not_a_value
from tensordict.primitives.errors import at_key, locked_error
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.tree import new

if TYPE_CHECKING:
    from tensordict.primitives.protocol import BatchIndex

MSG_INDEXED_SIZE = (
    "indexed destination TensorDict batch size is {} (batch_size = {}, index={}), "
    "which differs from the source batch size {}"
)


def fit_source(batch_size: torch.Size, index: Any, size: torch.Size, value: Any) -> Any:
    """Return ``value`` with a batch size that fits ``size``, which the index gives.

    If its entries do not have that size, it is expanded, as a tensor would be.
    """
    source = value.batch_size
    if source == size or (source and size[-len(source) :] == source):
        return value
    misfit = RuntimeError(MSG_INDEXED_SIZE.format(size, batch_size, index, source))
    if len(source) >= len(size) and source[: len(size)] != size:
        # Tensors raise an error below. Non-tensor data would take any size, so check
        # it.
        entries = value._entries().values()
        if any(getattr(entry, "_is_non_tensor", False) for entry in entries):
            raise misfit
    if isinstance(index, tuple) and len(index) == 2 and index[1] is ...:
        index = index[0]
    is_flag = isinstance(index, torch.Tensor) and not index.dim() and size[:1] == (1,)
    if batch_size and (
        index is None or index is True or (is_flag and index.dtype is torch.bool)
    ):
        # The index selects everything.
        return value.expand(size)
    sized = value.copy()
    try:
        sized.batch_size = size
    except RuntimeError:
        if not _broadcasts(source, size):
            raise misfit from None
        while value.batch_dims > len(size):
            value = value[0]
        return value.expand(size)
    return sized


def _broadcasts(source: torch.Size, size: torch.Size) -> bool:
    """Return whether a value of shape ``source`` broadcasts to ``size``."""
    spare = max(len(source) - len(size), 0)
    kept = source[spare:]
    ends = size[len(size) - len(kept) :]
    return all([length == 1 for length in source[:spare]]) and all(
        [length in (1, end) for length, end in zip(kept, ends, strict=True)]
    )


def plan_fill(
    td: CollectionProtocol,
    at: Any,
    size: torch.Size,
    k: int,
    value: object,
    writes: list[tuple[Any, str, Any, Any]],
) -> None:
    """Append each entry of ``td`` and its value to ``writes``, or raise an error."""
    for key, entry in list(td._entries().items()):
        if isinstance(entry, CollectionProtocol) and entry._is_dense:
            plan_fill(entry, at, size, k, value, writes)
            continue
        if holds_values(entry):
            is_number = isinstance(value, (int, float, complex))
            item = torch.as_tensor(value) if is_number else value
            entry._check_item(size, item, at)
            writes.append((td, key, entry, item))
            continue
        if not isinstance(value, (int, float, complex, torch.Tensor)):
            raise not_a_value(key, entry, value)
        if not isinstance(entry, CollectionProtocol):
            special.check_write(entry, value, at, size, k)
        writes.append((td, key, entry, value))


def plan_collection(
    td: CollectionProtocol,
    at: BatchIndex,
    size: Any,
    k: int,
    value: Any,
    writes: list[tuple[Any, str, Any, Any]],
    fresh: list[tuple[Any, str, Any]],
) -> None:
    """Append each entry of ``value`` and its place to ``writes``, or raise an error.

    Entries that ``td`` lacks are made, and appended to ``fresh``.
    """
    for key, item in list(value._entries().items()):
        entry = td._get_entry(key, NO_DEFAULT)
        if entry is NO_DEFAULT:
            if td.is_locked:
                raise locked_error(td)
            entry_size = size[-value.batch_dims :] if value.batch_dims else size
            fresh.append((td, key, preallocated(td, at, entry_size, k, item)))
        elif isinstance(entry, CollectionProtocol):
            if holds_values(entry):
                entry_size = torch.Size([*size, *entry.batch_size[k:]])
                entry._check_item(entry_size, item, at)
                writes.append((td, key, entry, item))
            elif holds_values(item):
                raise not_a_value(key, entry, item)
            elif isinstance(item, CollectionProtocol) and entry._is_dense:
                entry_size = torch.Size([*size, *entry._batch_size[k:]])
                try:
                    item = fit_source(entry._batch_size, at, entry_size, item)
                    plan_collection(entry, at, size, k, item, writes, fresh)
                except RuntimeError as error:
                    raise at_key(error, key) from None
            else:
                writes.append((td, key, entry, item))
        elif isinstance(item, CollectionProtocol):
            raise not_a_value(key, entry, item)
        else:
            try:
                special.check_write(entry, item, at, size, k)
            except RuntimeError as error:
                raise at_key(error, key) from None
            writes.append((td, key, entry, item))


def preallocated(
    td: CollectionProtocol, at: BatchIndex, size: torch.Size, k: int, item: Any
) -> Any:
    """Make an entry for ``td``: zeros, except for ``item`` at the index.

    ``size`` has as many dims as ``item`` has batch dims.
    """
    batch_size, extra = td.batch_size, len(size)
    device = td.device
    if not isinstance(item, CollectionProtocol):
        kept = special.resized(item, torch.Size([*batch_size[:k]]))
        if kept is not None:
            return kept
        shape = torch.Size([*batch_size[:k], *item.shape[extra:]])
        entry = item.new_zeros(shape, device=device)
        entry[at] = item
        return entry
    if holds_values(item):
        entry_size = torch.Size([*batch_size[:k], *item.batch_size[extra:]])
        made = item._preallocated(at, entry_size)
        if device is not None:
            made._device = device
        return made
    if not item._is_dense:
        plain = inside(item)
        if plain is item:
            return preallocated(td, at, size, k, item.to_tensordict())
        cls: Any = type(item)
        return cls._from_tensordict(preallocated(td, at, size, k, plain))
    entries = {
        key: preallocated(td, at, size, k, child)
        for key, child in list(item._tensordict.items())
    }
    entry_size = torch.Size([*batch_size[:k], *item._batch_size[extra:]])
    names = td.names if td._has_names() else None
    if names is not None:
        names = [*names[:k], *[None] * (len(entry_size) - k)]
    return new(type(item), entries, entry_size, device, names)


def is_common(number: Any) -> bool:
    """Return whether every dtype can represent a number."""
    return isinstance(number, bool) or abs(number) < 128


def fill_fitting(
    td: CollectionProtocol, number: object, writes: list[tuple[Any, Any]]
) -> bool:
    """Append each leaf of ``td`` with a number; return whether all are plain."""
    for entry in list(td._tensordict.values()):
        if is_plain(entry):
            writes.append((entry, number))
        elif (
            not isinstance(entry, CollectionProtocol)
            or not entry._is_dense
            or not fill_fitting(entry, number, writes)
        ):
            return False
    return True


def is_place(part: Any) -> bool:
    """Return whether an index item is a number, a slice, None or positions."""
    kind = type(part)
    if kind is torch.Tensor:
        return bool(part.dim()) and part.dtype in (torch.int64, torch.bool)
    if kind is list:
        return bool(part) and all([type(position) is int for position in part])
    return part is None or kind in (int, bool, slice)


def pair_fitting(
    td: Any,
    source: CollectionProtocol,
    size: torch.Size,
    k: int,
    casts: bool,
    writes: list[tuple[Any, Any]],
    of_class: bool = True,
    values: list[tuple[Any, Any]] | None = None,
) -> bool:
    """Append each leaf of ``td`` and its value in ``source``; return whether all fit.

    With ``of_class``, all tensordicts must have one class. If ``values`` is passed,
    non-tensor entries and their new values are appended to it.
    """
    td_size = td._batch_size
    if (of_class and type(source) is not type(td)) or len(td_size) < k:
        return False
    if source._batch_size != size + td_size[k:]:
        return False
    for key, item in list(source._tensordict.items()):
        entry = td._tensordict.get(key)
        if isinstance(entry, torch.Tensor) and isinstance(item, torch.Tensor):
            if not is_plain(entry) or not is_plain(item) or entry.dim() < k:
                return False
            if item.shape != size + entry.shape[k:]:
                return False
            if not casts and item.dtype != entry.dtype:
                return False
            writes.append((entry, item))
            continue
        is_nested = isinstance(entry, CollectionProtocol)
        if values is not None and is_nested and entry._can_put(item):
            values.append((entry, item))
            continue
        if not all(
            [
                isinstance(part, CollectionProtocol) and part._is_dense
                for part in (entry, item)
            ]
        ):
            return False
        nested: Any = item
        if of_class and type(entry) is not type(td):
            return False
        if not pair_fitting(entry, nested, size, k, casts, writes, of_class, values):
            return False
    return True


def is_plain(value: object) -> bool:
    """Return whether a value is a tensor that is indexed along its first dims."""
    return special.has_index(value)


def filled_with(value: object) -> Any:
    """Convert a value to fill entries with: to a tensor if possible."""
    if value is None or isinstance(
        value, (CollectionProtocol, torch.Tensor, int, float, complex)
    ):
        return value
    try:
        return as_tensor(value)
    except (RuntimeError, TypeError, ValueError):
        return value
