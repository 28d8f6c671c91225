"""One index for a chain of plain indices: pickles of views of mapped tensors need it."""

from __future__ import annotations

import operator
from typing import Any

import torch

__all__ = ["one_index"]


def one_index(tensor: Any) -> Any:
    """Return one index into the whole file that gives the view, ``None`` for the whole file."""
    chain = tensor._index_chain
    if not chain:
        return None
    source, item = chain
    if not source:
        # None means "no index", so the index None becomes a tuple.
        return (None,) if item is None else item
    items = [item]
    while source:
        source, item = source
        items.append(item)
    items.reverse()
    return _compose(tuple(tensor._parent_shape), items)


def _compose(shape: tuple[int, ...], items: list[Any]) -> tuple[Any, ...]:
    """Compose plain indices, applied one after the other, into one index.

    For each dim of the file, ``picked`` holds an int if an index has removed the dim, and a range
    of positions otherwise.
    """
    picked: list[int | range] = [range(size) for size in shape]
    # For each dim of the view so far: the dim of the file, or None for a new dim.
    dims: list[int | None] = list(range(len(shape)))
    for item in items:
        parts = list(item) if isinstance(item, tuple) else [item]
        num_taken = sum(part is not None and part is not Ellipsis for part in parts)
        if Ellipsis in [part for part in parts if not isinstance(part, torch.Tensor)]:
            place = next(i for i, part in enumerate(parts) if part is Ellipsis)
            parts[place : place + 1] = [slice(None)] * (len(dims) - num_taken)
            # torch accepts further ellipses, which stand for no dims.
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
    """Return the index that picks these positions and orders the dims like ``dims``."""
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
