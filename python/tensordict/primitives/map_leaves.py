"""Calls of a torch function on each leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.primitives.common import (
    NO_TAIL,
    _spliced_names,
    _spliced_size,
    with_tail,
)
from tensordict.primitives.leaf_loops import on_plain
from tensordict.primitives.lock import lock_tree
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import mapped
from tensordict.primitives.tree import new

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def map_leaves(
    td: CollectionProtocol,
    op: Any,
    args: tuple[Any, ...] = (),
    prefix: torch.Size | None = None,
    names: Any = True,
    tail: int = NO_TAIL,
    lock: bool = False,
    k: int = -1,
) -> Any:
    """Return a tensordict of the same structure with ``op`` called on every leaf.

    ``op`` is the name of a method of the leaves, called as ``leaf.op(*args)``, or a
    callable, called as ``op(leaf, *args)``. ``tail`` extends the first argument for
    each
    leaf: with 1 it is a shape, and the leaf's dims from ``k`` on are appended; with 2 a
    permutation, and the dim numbers from ``k`` on are appended; with 3 a 1 is appended
    for each of these dims.

    ``prefix`` is the root's new batch size (None: all keep theirs). ``names`` is True
    (all keep theirs), None (all lose theirs), a list (the root's new names; nested
    tensordicts append theirs from dim ``k`` on), or a tuple with the old dim for each
    dim of ``prefix`` whose name it takes (-1: none), applied by every tensordict to its
    own names. With ``lock``, the result of a locked tensordict is locked; if ``prefix``
    is passed, so is the result of a nested tensordict that is locked by itself.
    """
    if not td._is_dense:
        return td._map_leaves(op, args, prefix, names, tail, lock, k)
    size, old_names = td._batch_size, td._td_dim_names
    if k >= 0:
        if prefix is not None:
            size = prefix if len(size) == k else _spliced_size(size, prefix, k, names)
    elif tail or prefix is not None or names is not True:
        k = len(size)
        size = size if prefix is None else prefix
    locked = lock and td._is_locked
    held = td._tensordict.copy()
    entries, others = on_plain(held, op, args, tail, k)
    if others:
        alone = lock and not locked and prefix is not None
        below = (op, args, prefix, names, tail, alone, k)
        for key in others:
            value = held[key]
            if isinstance(value, CollectionProtocol):
                entries[key] = map_leaves(value, *below)
            else:
                entries[key] = _map_unusual(value, size, *below)
    # Without old names, only a list gives names. Comparing with a list finds out
    # whether `names` is one.
    if old_names is not None or (
        names is not True and names is not None and names == [*names]
    ):
        old_names = _spliced_names(old_names, names, k, size)
    result = new(td.__class__, entries, size, td._device, old_names)
    if locked:
        lock_tree(result)
    return result


def _map_unusual(
    value: torch.Tensor,
    size: torch.Size,
    op: str | Callable[..., Any],
    args: tuple[Any, ...],
    prefix: torch.Size | None,
    names: object,  # noqa: ARG001
    tail: int,
    lock: bool,  # noqa: ARG001
    k: int,
) -> Any:
    """Do :func:`map_leaves` on a leaf that is no plain tensor."""
    args = with_tail(value, args, tail, k)
    return mapped(value, op, args, None if prefix is None else size)
