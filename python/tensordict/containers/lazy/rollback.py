"""Writes into several members that leave all members unchanged if one write fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives.checks import is_branch
from tensordict.primitives.protocol import as_stack

if TYPE_CHECKING:
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Undoing"]


class Undoing:
    """A block of writes into collections, which are restored if the block fails.

    The collections are copied first. Writes that can be checked in advance, and single
    writes, do not need this.
    """

    def __init__(self, targets: list[Any]) -> None:
        unique = {id(target): target for target in targets}
        self._held = [(target, _copies_of(target)) for target in unique.values()]

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with torch.no_grad():
                for target, copies in self._held:
                    _restore(target, copies)


def _members(td: CollectionProtocol) -> list[Any] | None:
    """Return the members of a lazy stack; None for other collections."""
    stack = as_stack(td)
    return None if stack is None else stack.tensordicts


def _copies_of(td: CollectionProtocol) -> list[Any] | dict[str, tuple[Any, Any]]:
    """Return each entry of a collection, with a copy of it."""
    members = _members(td)
    if members is not None:
        return [_copies_of(member) for member in members]
    copies: dict[str, tuple[Any, Any]] = {}
    for key, entry in list(td._entries().items()):
        is_nested = is_branch(entry)
        copies[key] = entry, _copies_of(entry) if is_nested else entry.clone()
    return copies


def _restore(td: Any, copies: Any) -> None:
    if isinstance(copies, list):
        for member, member_copies in zip(_members(td) or (), copies, strict=True):
            _restore(member, member_copies)
        return
    now = dict(td._entries())
    for key in now:
        if key not in copies:
            td._del_entry(key)
    for key, (entry, copy) in copies.items():
        if isinstance(copy, (dict, list)):
            _restore(entry, copy)
        elif isinstance(entry, torch.Tensor):
            entry.data.copy_(copy)
        else:
            entry = copy
        if now.get(key) is not entry:
            td._set_entry(key, entry)
