"""Operations on all members of a lazy stack, and stacks of their entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import has_torch_function_variadic as any_special

from tensordict.primitives.align import _rebuild_as
from tensordict.primitives.leaf_loops import special_keys
from tensordict.primitives.map_leaves import map_leaves
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.special import kind_of
from tensordict.primitives.tree import (
    _drop_empty,
    _rebuild,
    clone_structure,
    leaves,
    new,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def member_values(members: list[Any], path: tuple[str, ...]) -> list[Any] | None:
    """Return the entries of all members at ``path``; None if a member lacks it."""
    out = []
    for member in members:
        value = member
        for part in path:
            if not isinstance(value, CollectionProtocol):
                return None
            if value._is_dense:
                value = value._tensordict.get(part, NO_DEFAULT)
            else:
                value = value._get_entry(part, NO_DEFAULT)
            if value is NO_DEFAULT:
                return None
        out.append(value)
    return out or None


def stacked_values(
    members: list[Any], path: tuple[str, ...], dim: int
) -> torch.Tensor | None:
    """Stack the leaves of all members at ``path`` along ``dim`` to one tensor.

    Return None if that needs more than ``torch.stack``: a member lacks the entry, or
    has a tensordict or a special entry there, or shapes differ.
    """
    values = member_values(members, path)
    return None if values is None else _stacked_leaves(values, dim)


def _stacked_leaves(values: list[Any], dim: int) -> torch.Tensor | None:
    if any_special(*values) and any(
        [isinstance(value, CollectionProtocol) or kind_of(value) for value in values]
    ):
        return None
    shape = values[0].shape
    for value in values[1:]:
        if value.shape != shape:
            return None
    return torch.stack(values, dim)


def common_keys(members: list[Any]) -> list[str]:
    """Return the direct keys that all members have, in the order of the first."""
    if not members:
        return []
    keys = list(members[0]._held_keys())
    for member in members[1:]:
        entries = member._held_keys()
        keys = [key for key in keys if key in entries]
    return keys


def members_with_more(members: list[Any], num_common: int) -> list[int]:
    """Return the positions of members with direct keys that other members lack."""
    return [
        position
        for position, member in enumerate(members)
        if len(member._held_keys()) > num_common
    ]


def first_misfit(members: list[Any]) -> int | None:
    """Return the position of the first member that is no tensordict or does not fit.

    A member does not fit if its device is not that of the first member.
    """
    device: Any = None
    for position, member in enumerate(members):
        if not isinstance(member, CollectionProtocol):
            return position
        if position and member.device != device:
            return position
        if not position:
            device = member.device
    return None


def stacked_members(members: list[Any], dim: int, cls: type) -> Any:
    """Stack the entries that all members have along ``dim`` to a dense tensordict.

    Return None if that needs more than stacking tensors: members that are not dense or
    have names, or entries that differ in kind or shape.
    """
    if not members:
        return None
    if any(not each._is_dense or each._td_dim_names is not None for each in members):
        return None
    size = merged_size(members, dim)
    if size is None:
        return None
    entries = {}
    for key in common_keys(members):
        group = [member._tensordict[key] for member in members]
        nested = [isinstance(value, CollectionProtocol) for value in group]
        if all(nested):
            value = stacked_members(group, dim, cls)
            if value is None:
                return None
        elif any(nested):
            return None
        else:
            value = _stacked_leaves(group, dim)
            if value is None:
                return None
        entries[key] = value
    return new(cls, entries, size, members[0]._device, None)


def merged_size(members: list[Any], dim: int) -> torch.Size | None:
    """Return the batch size of the stack of ``members``, with -1 where they differ.

    Return None if the numbers of dims differ, or ``dim`` is out of range.
    """
    if not members:
        return None
    sizes = [
        member._batch_size if member._is_dense else member.batch_size
        for member in members
    ]
    first = sizes[0]
    merged = list(first)
    for size in sizes:
        if size == first:
            continue
        if len(size) != len(first):
            return None
        for at, length in enumerate(size):
            if length != merged[at]:
                merged[at] = -1
    if dim > len(merged):
        return None
    merged.insert(dim, len(members))
    return torch.Size(merged)


def member_leaves(members: list[Any], out: list[Any]) -> None:
    """Append every leaf of every member to ``out``, one member after the other."""
    for member in members:
        # For plain members, the compiler need not enter a function for each.
        held = member._tensordict.copy() if member._is_dense else None
        if held is None or special_keys(held, True):
            leaves(member, out)
        else:
            out += held.values()


def rebuilt_members(members: list[Any], values: Sequence[Any], cls: type) -> list[Any]:
    """Rebuild the members with new leaves from ``values``, as :func:`rebuild` does.

    With ``cls``, as :func:`rebuild_as` does.
    """
    iterator = iter(values)
    if cls is None:
        return [_rebuild(member, iterator, True) for member in members]
    return [_rebuild_as(member, iterator, cls, None) for member in members]


def map_members(
    members: list[Any],
    op: str | Callable[..., Any],
    args: tuple[Any, ...],
    prefix: torch.Size | None,
    names: Sequence[str | None] | None,
    tail: int,
    k: int,
    lock: bool = False,
) -> list[Any]:
    """Call :func:`map_leaves` for each member."""
    return [
        map_leaves(member, op, args, prefix, names, tail, lock, k) for member in members
    ]


def cloned_members(members: list[Any]) -> list[Any]:
    """Call :func:`clone_structure` for each member."""
    return [clone_structure(member) for member in members]


def drop_empty_of_members(members: list[Any]) -> None:
    """Drop nested tensordicts without entries from each of the new members."""
    for member in members:
        # Skip members that have only plain tensors.
        if not member._is_dense or special_keys(member._tensordict.copy()):
            _drop_empty(member)


# The primitives. The other functions exist in Python only.
__all__ = [
    "cloned_members",
    "common_keys",
    "map_members",
    "member_leaves",
    "member_values",
    "merged_size",
    "rebuilt_members",
    "stacked_members",
    "stacked_values",
]
