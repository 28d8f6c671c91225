"""Writes into several members that leave all of them as they were where one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives.checks import is_branch

if TYPE_CHECKING:
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Undoing"]


class Undoing:
    """A block of writes into collections, which are as they were where it fails.

    A copy of the collections is the price, so that plain writes, which can be checked
    before the first of them, and a single one, which is done in one step, do without.
    """

    def __init__(self, targets: list[Any]) -> None:
        unique = {id(target): target for target in targets}
        self._held = [(target, _taken(target)) for target in unique.values()]

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with torch.no_grad():
                for target, held in self._held:
                    _put_back(target, held)


def _members(td: CollectionProtocol) -> list[Any] | None:
    """The members of a stack of collections that are no values."""
    return None if td._is_non_tensor else getattr(td, "tensordicts", None)


def _taken(td: CollectionProtocol) -> list[Any] | dict[str, tuple[Any, Any]]:
    """Each entry of a collection with a copy of it."""
    members = _members(td)
    if members is not None:
        return [_taken(member) for member in members]
    held: dict[str, tuple[Any, Any]] = {}
    for key, entry in list(td._entries().items()):
        is_nested = is_branch(entry)
        held[key] = entry, _taken(entry) if is_nested else entry.clone()
    return held


def _put_back(td: Any, held: Any) -> None:
    if isinstance(held, list):
        for member, own in zip(_members(td) or (), held, strict=True):
            _put_back(member, own)
        return
    now = dict(td._entries())
    for key in now:
        if key not in held:
            td._del_entry(key)
    for key, (entry, copy) in held.items():
        if isinstance(copy, (dict, list)):
            _put_back(entry, copy)
        elif isinstance(entry, torch.Tensor):
            entry.data.copy_(copy)
        else:
            entry = copy
        if now.get(key) is not entry:
            td._set_entry(key, entry)
