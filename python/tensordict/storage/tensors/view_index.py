"""One index for a chain of plain indices, as pickles of views of mapped tensors need."""

from __future__ import annotations

import operator
from typing import Any

import torch

__all__ = ["one_index"]


def one_index(tensor: Any) -> Any:
    """The index into the whole file that gives a view, however it was made."""
    chain = tensor._index_chain
    if not chain:
        return None
    source, item = chain
    if not source:
        # None means no index here, so the index None is given as a tuple.
        return (None,) if item is None else item
    items = [item]
    while source:
        source, item = source
        items.append(item)
    items.reverse()
    return _compose(tuple(tensor._parent_shape), items)


def _compose(shape: tuple[int, ...], items: list[Any]) -> tuple[Any, ...]:
    """Several plain indices, one after the other, as one.

    Follows each dim of the file: it is an int once it was indexed by one, a range of
    positions otherwise; a new dim is ``None``.
    """
    picked: list[int | range] = [range(size) for size in shape]
    # The dims of the view at this point: which dim of the file each is, None for new.
    dims: list[int | None] = list(range(len(shape)))
    for item in items:
        parts = list(item) if isinstance(item, tuple) else [item]
        num_taken = sum(part is not None and part is not Ellipsis for part in parts)
        if Ellipsis in [part for part in parts if not isinstance(part, torch.Tensor)]:
            place = next(i for i, part in enumerate(parts) if part is Ellipsis)
            parts[place : place + 1] = [slice(None)] * (len(dims) - num_taken)
            # torch takes more of them, for no dims.
            parts = [part for part in parts if part is not Ellipsis]
        kept: list[int | None] = []
        rest = iter(dims)
        for part in parts:
            if part is None:
                kept.append(None)
                continue
            dim = next(rest)
            if isinstance(part, slice):
                kept.append(dim)
                if dim is not None:
                    picked[dim] = picked[dim][part]  # type: ignore[index]
            elif dim is not None:
                picked[dim] = picked[dim][operator.index(part)]  # type: ignore[index]
        dims = [*kept, *rest]
    return tuple(_layout(picked, dims))


def _layout(picked: list[int | range], dims: list[int | None]) -> list[Any]:
    """The index that picks these positions and shows the dims in this order."""
    index: list[Any] = []
    file_dims = iter(range(len(picked)))
    for dim in dims:
        if dim is None:
            index.append(None)
            continue
        for passed in file_dims:
            index.append(_as_index(picked[passed]))
            if passed == dim:
                break
    index.extend(_as_index(picked[passed]) for passed in file_dims)
    return index


def _as_index(positions: int | range) -> int | slice:
    if isinstance(positions, int):
        return positions
    return slice(positions.start, max(positions.start, positions.stop), positions.step)
