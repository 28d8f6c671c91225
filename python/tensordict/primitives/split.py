"""Splitting of each leaf into parts, and a tensordict of each part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.primitives import special
from tensordict.primitives.common import (
    NO_TAIL,
    _spliced_names,
    _spliced_size,
)
from tensordict.primitives.leaf_loops import on_plain
from tensordict.primitives.lock import lock_tree
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.tree import new

if TYPE_CHECKING:
    import torch


def split_leaves(
    td: CollectionProtocol,
    op: Any,
    args: tuple[Any, ...],
    prefixes: list[torch.Size],
    names: Any = True,
    lock: bool = False,
    k: int = -1,
) -> list[Any]:
    """Call an ``op`` that returns a sequence on each leaf; return tensordicts.

    ``prefixes`` has the batch size of each part; its length is the number of parts.
    """
    if not td._is_dense:
        return td._split_leaves(op, args, prefixes, names, lock, k)
    old_size, old_names, device = td._batch_size, td._td_dim_names, td._device
    if k < 0:
        k = len(old_size)
    sizes = prefixes
    if len(old_size) != k:
        sizes = [_spliced_size(old_size, prefix, k, names) for prefix in prefixes]
    locked = lock and td._is_locked
    held = td._tensordict.copy()
    columns, others = on_plain(held, op, args, NO_TAIL, k)
    for key in others:
        value = held[key]
        if isinstance(value, CollectionProtocol):
            alone = lock and not locked
            parts: Any = split_leaves(value, op, args, prefixes, names, alone, k)
        else:
            parts = special.split(value, op, args, sizes)
        columns[key] = parts
    rows: Any = [()] * len(sizes)
    if columns:
        rows = zip(*columns.values(), strict=True)
    is_named = old_names is not None or (
        names is not True and names is not None and names == [*names]
    )
    results = []
    for size, row in zip(sizes, rows, strict=True):
        entries: dict[str, Any] = {}
        # The cheapest way to fill a dictionary in compiled code.
        entries.update(zip(columns, row, strict=False))
        new_names = _spliced_names(old_names, names, k, size) if is_named else None
        results.append(new(td.__class__, entries, size, device, new_names))
    if locked:
        for result in results:
            lock_tree(result)
    return results
