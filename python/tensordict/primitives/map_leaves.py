"""Call a torch function on each leaf and build the result."""

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
    """A collection of the same structure with ``op`` called on every leaf.

    ``op`` is the name of a method of the leaves, called as ``leaf.op(*args)``, or a
    callable, called as ``op(leaf, *args)``. With ``tail`` 1 the first argument is a
    shape to which the leaf's dims from ``k`` on are appended, with ``tail`` 2 a
    permutation to which the dim numbers from ``k`` on are, with ``tail`` 3 one to which
    a 1 is for each of those.

    ``prefix`` is the root's new batch size (None: all keep theirs). ``names`` is True
    (all keep theirs), None (nobody has any), a list (the root's new ones; nested ones
    append theirs from dim ``k`` on), or a tuple that gives for each dim of ``prefix``
    the old dim whose name it takes, -1 for none: every collection applies it to its own
    names. With ``lock`` the result of a locked collection is locked;
    where there is a ``prefix``, so is that of a nested one which is locked on its own.
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
    # Without names before, there are some only if a list gives them, and nothing but a
    # list is equal to a list of names.
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
    """:func:`map_leaves` of a leaf that is no plain tensor."""
    args = with_tail(value, args, tail, k)
    return mapped(value, op, args, None if prefix is None else size)
