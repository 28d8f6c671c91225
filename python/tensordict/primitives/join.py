"""Stacking and concatenation of tensordicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import has_torch_function_variadic as any_special

from tensordict.primitives import special
from tensordict.primitives.common import NO_TAIL
from tensordict.primitives.errors import absent_key, at_key, keyed
from tensordict.primitives.leaf_loops import on_plain
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.tree import new

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["cat", "stack"]

MSG_EXCLUSIVE = (
    "The sets of keys in the tensordicts to stack are exclusive. Consider using "
    "`LazyStackedTensorDict.maybe_dense_stack` instead."
)
MSG_STACK_SHAPES = (
    "The shapes of the tensors to stack is incompatible: {} vs {} for key {}. Use "
    "`lazy_stack` to keep entries of different shapes, or `pad_sequence` to pad them."
)
MSG_STACK_BATCH = (
    "stacking tensordicts requires them to have congruent batch sizes, got "
    "td[{}].batch_size={} and td[0].batch_size={}"
)
MSG_CAT_KEYS = (
    "tensordict {} has keys {} but tensordict 0 has keys {}; all tensordicts must have "
    "the same keys"
)
MSG_STACK_KIND = (
    "'Tensor' object has no attribute 'batch_size': the entry {!r} is a tensordict in "
    "one of the tensordicts and a tensor in another."
)


def stack(tds: Any, dim: int) -> Any:
    """Stack ``tds`` along ``dim`` into a new tensordict of the type of the first.

    ``dim`` counts from 0 to the number of batch dims.

    Raises:
        AttributeError: an entry is nested in one tensordict and a tensor in another.
        RuntimeError: batch sizes, keys or shapes differ.
    """
    first = tds[0]
    if not first._is_dense:
        return first._stack_all(tds, dim)
    batch_size, first_entries = first._batch_size, first._tensordict
    order = [*first_entries]
    all_entries: list[Any] = []
    columns: list[Any] = []
    named = False
    for td in tds:
        if td._is_dense:
            # Attributes cost less to compile than properties and methods.
            td_size, entries = td._batch_size, td._tensordict
            named = named or td._td_dim_names is not None
        else:
            td_size, entries = td.batch_size, td._entries_to_join()
            named = named or td._has_names()
        if td_size != batch_size:
            raise RuntimeError(
                MSG_STACK_BATCH.format(len(all_entries), td_size, batch_size)
            )
        if len(entries) != len(first_entries):
            raise _exclusive("", [*all_entries, entries])
        all_entries.append(entries)
        if [*entries] == order:
            columns.append([*entries.values()])
    size = torch.Size([*batch_size[:dim], len(tds), *batch_size[dim:]])
    if len(columns) == len(all_entries):
        groups: Any = zip(*columns, strict=True)
    else:
        groups = _groups(order, all_entries, _exclusive)
    grouped: dict[str, Any] = {}
    grouped.update(zip(order, groups, strict=False))
    try:
        joined, others = on_plain(grouped, torch.stack, (dim,), NO_TAIL, 0)
    except RuntimeError:
        joined, others = {}, order  # one of the groups does not fit
    for key in others:
        group = grouped[key]
        if not any_special(*group):
            try:
                joined[key] = torch.stack(group, dim)
            except RuntimeError as error:
                raise _not_stacked(key, group, error) from None
        elif _are_collections(group):
            try:
                joined[key] = stack(group, dim)
            except RuntimeError as error:
                raise at_key(error, key) from None
        else:
            joined[key] = _stack_entry(key, group, dim, size)
    names = None
    if named:
        names = first.names
        if all([td.names == names for td in tds]):
            names = [*names[:dim], None, *names[dim:]]
        else:
            names = None
    return new(first.__class__, joined, size, first._device, names)


def _groups(order: list[str], all_entries: list[dict[str, Any]], missing: Any) -> Any:
    """Yield the entries of each key; ``missing`` makes the error of a missing entry."""

    def group(key: str) -> tuple[Any, ...]:
        try:
            return tuple([entries[key] for entries in all_entries])
        except KeyError:
            raise missing(key, all_entries) from None

    return map(group, order)


def _exclusive(_key: str, all_entries: list[dict[str, Any]]) -> RuntimeError:
    """Make the error of differing keys, which names those of the first difference."""
    first = {*all_entries[0]}
    for position, entries in enumerate(all_entries):
        other = {*entries}
        if other != first:
            differences = []
            if first - other:
                differences.append(f"lacks the keys {sorted(first - other)}")
            if other - first:
                differences.append(f"has the additional keys {sorted(other - first)}")
            return RuntimeError(
                f"{MSG_EXCLUSIVE} Compared with tensordict 0, tensordict {position} "
                f"{' and '.join(differences)}."
            )
    return RuntimeError(MSG_EXCLUSIVE)


def _are_collections(group: Sequence[Any]) -> bool:
    return all([isinstance(item, CollectionProtocol) for item in group])


def _stack_entry(key: str, group: Sequence[Any], dim: int, size: torch.Size) -> Any:
    if any([isinstance(item, CollectionProtocol) for item in group]):
        first = group[0].shape
        for item in group:
            if item.shape != first:
                msg = MSG_STACK_SHAPES.format(item.shape, first, key)
                raise keyed(RuntimeError(msg), key)
        raise AttributeError(MSG_STACK_KIND.format(key))
    try:
        return special.joined(group, dim, size, torch.stack)
    except RuntimeError as error:
        raise _not_stacked(key, group, error) from None


def _not_stacked(key: str, group: Sequence[Any], error: RuntimeError) -> RuntimeError:
    """Make the error of leaves that :func:`torch.stack` refuses; name the key."""
    for item in group:
        kind = special.kind_of(item)
        if kind is not None and kind.msg_stack is not None:
            return RuntimeError(kind.msg_stack.format(key))
    shape = group[0].shape
    for item in group:
        if item.shape != shape:
            msg = MSG_STACK_SHAPES.format(item.shape, shape, key)
            return keyed(RuntimeError(msg), key)
    return error


def cat(tds: Any, dim: int) -> CollectionProtocol:
    """Concatenate ``tds`` along ``dim`` into a new tensordict of the type of the first.

    ``dim`` counts from 0 and is a batch dim.

    Raises:
        KeyError: the keys differ.
        RuntimeError: shapes differ in another dim than ``dim``.
    """
    first = tds[0]
    if not first._is_dense:
        return first._cat_all(tds, dim)
    batch_size, device = first._batch_size, first._device
    first_entries = first._tensordict
    order = [*first_entries]
    all_entries: list[Any] = []
    columns: list[Any] = []
    length = 0
    for td in tds:
        if td._is_dense:
            td_size, entries = td._batch_size, td._tensordict
        else:
            result = td._cat_with_entries(tds, dim)
            if result is not None:
                return result
            td_size, entries = td.batch_size, td._entries_to_join()
        if td_size != batch_size:
            _check_cat(batch_size, td_size, dim, len(all_entries))
        length += td_size[dim] if dim < len(td_size) else 0
        if len(entries) != len(first_entries):
            raise _cat_keys(len(all_entries), entries, first_entries)
        all_entries.append(entries)
        if [*entries] == order:
            columns.append([*entries.values()])
        if device is not None and td.device != device:
            device = None
    size = batch_size
    if dim < len(batch_size):
        # Without this dim in its batch size, a nested tensordict keeps it: leaves join.
        size = torch.Size([*batch_size[:dim], length, *batch_size[dim + 1 :]])
    if len(columns) == len(all_entries):
        groups: Any = zip(*columns, strict=True)
    else:
        groups = _groups(order, all_entries, _no_cat_key)
    grouped: dict[str, Any] = {}
    grouped.update(zip(order, groups, strict=False))
    joined, others = on_plain(grouped, torch.cat, (dim,), NO_TAIL, 0)
    for key in others:
        group = grouped[key]
        if _are_collections(group):
            try:
                joined[key] = cat(group, dim)
            except RuntimeError as error:
                raise at_key(error, key) from None
        else:
            joined[key] = _cat_entry(key, group, dim, size)
    names = None if first._td_dim_names is None else first.names
    return new(first.__class__, joined, size, device, names)


def _cat_entry(key: str, group: Sequence[Any], dim: int, size: torch.Size) -> Any:
    if any([isinstance(item, CollectionProtocol) for item in group]):
        raise AttributeError(MSG_STACK_KIND.format(key))
    return special.joined(group, dim, size, torch.cat)


def _no_cat_key(key: str, all_entries: list[dict[str, Any]]) -> KeyError:
    position = [key in entries for entries in all_entries].index(False)
    return _cat_keys(position, all_entries[position], all_entries[0])


def _cat_keys(position: int, other: dict[str, Any], first: dict[str, Any]) -> KeyError:
    return absent_key(MSG_CAT_KEYS.format(position, sorted(other), sorted(first)))


def _check_cat(first: torch.Size, size: torch.Size, dim: int, position: int) -> None:
    if len(size) != len(first):
        # Nested tensordicts may have different numbers of dims: the leaves decide.
        if dim < len(size):
            return
        msg = (
            "Tensors must have same number of dimensions: got "
            f"{len(first)} and {len(size)}"
        )
        raise RuntimeError(msg)
    for at, (length, expected) in enumerate(zip(size, first, strict=True)):
        if at != dim and length != expected:
            msg = (
                f"Sizes of tensors must match except in dimension {dim}. Expected "
                f"size {expected} but got size {length} for tensor number {position} "
                "in the list."
            )
            raise RuntimeError(msg)
