"""Reads the part of an array at an index of the batch dimensions, and little more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from tensordict.storage.arrays.interface import Array

__all__ = ["read_part", "write_part"]

WHOLE = slice(None)
MSG_OUT_OF_BOUNDS = "index {} is out of bounds for dimension {} with size {}"


def read_part(array: Array, index: object) -> torch.Tensor:
    """Return ``array[index]``. The index has the form of :func:`_rust.index_plan`.

    Slices and ints read exactly their part. Positions along the first dimension read the rows at
    these positions, each once. Positions along another dimension read the range from the
    smallest to the largest position.
    """
    items = index if isinstance(index, tuple) else (index,)
    shape = array.shape
    if len(items) == 1 and type(items[0]) is slice:
        # A short way for loops over slices.
        box, rows, local = (*items, *(WHOLE,) * (len(shape) - 1)), None, None
    else:
        box, rows, local = _box(items, shape)
    data = array.read(box) if rows is None else array.read_rows(rows, box[1:])
    if not data.flags.c_contiguous:
        data = np.ascontiguousarray(data).reshape(data.shape)
    part = torch.from_numpy(data)
    return part if local is None else part[local]


def write_part(array: Array, index: object, value: torch.Tensor) -> None:
    """Assign ``array[index] = value``. ``value`` has the dtype of the file.

    If the index has positions, the range from the smallest to the largest is read, changed and
    written back.
    """
    items = index if isinstance(index, tuple) else (index,)
    box, local = _written_box(items, array.shape)
    sizes = [
        len(range(*item.indices(size)))
        for item, size in zip(box, array.shape, strict=True)
    ]
    if 0 in sizes:
        return
    if not any(isinstance(item, torch.Tensor) for item in local):
        target = torch.empty((), dtype=value.dtype).expand(sizes)[local]
        kept = value.expand(target.shape).reshape(sizes)
        array.write(box, kept.contiguous().numpy())
        return
    part = torch.from_numpy(np.ascontiguousarray(array.read(box)).reshape(sizes))
    part[local] = value
    array.write(box, part.numpy())


def _written_box(
    items: tuple[Any, ...], shape: tuple[int, ...]
) -> tuple[tuple[slice, ...], tuple[Any, ...]]:
    """Extend :func:`_box`: positions along the first dimension become the range between them."""
    box, rows, local = _box(items, shape)
    if local is None:
        return box, (WHOLE,)
    if rows is None:
        return box, local
    if not len(rows):
        return (slice(0, 0), *box[1:]), local
    start = int(rows[0])
    positions = torch.from_numpy(rows - start)
    at = next(i for i, item in enumerate(local) if item is not None)
    moved = positions[local[at]]
    first = slice(start, int(rows[-1]) + 1)
    return (first, *box[1:]), (*local[:at], moved, *local[at + 1 :])


def _box(
    items: tuple[Any, ...], shape: tuple[int, ...]
) -> tuple[tuple[slice, ...], np.ndarray[Any, Any] | None, tuple[Any, ...] | None]:
    """Return the slices to read, the rows to read if they are listed, and a second index.

    The second index selects the result from the part that was read. It is None if the part
    is the result.
    """
    box: list[slice] = []
    rows: np.ndarray[Any, Any] | None = None
    local: list[Any] = []
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        used = sum(_dims(item) for item in items)
        fill = (WHOLE,) * (len(shape) - used)
        items = (*items[:at], *fill, *items[at + 1 :])
    for item in items:
        if item is None:
            local.append(None)
            continue
        dim = len(box)
        size = shape[dim]
        if isinstance(item, slice):
            box.append(item)
            local.append(WHOLE)
        elif isinstance(item, int):
            if not -size <= item < size:
                raise IndexError(MSG_OUT_OF_BOUNDS.format(item, dim, size))
            start = item % size
            box.append(slice(start, start + 1))
            local.append(0)
        else:
            positions = _positions(item, dim, size)
            if not dim:
                rows, inverse = np.unique(positions.numpy(), return_inverse=True)
                box.append(WHOLE)
                local.append(torch.from_numpy(inverse.reshape(positions.shape)))
            elif positions.numel():
                first, last = int(positions.min()), int(positions.max())
                box.append(slice(first, last + 1))
                local.append(positions - first)
            else:
                box.append(slice(0, 0))
                local.append(positions)
    box += [WHOLE] * (len(shape) - len(box))
    is_all = all(item is WHOLE for item in local)
    return tuple(box), rows, None if is_all else tuple(local)


def _dims(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    is_mask = isinstance(item, torch.Tensor) and item.dtype is torch.bool
    return item.dim() if is_mask else 1


def _positions(item: object, dim: int, size: int) -> torch.Tensor:
    """Return the positions along a dimension, with negative ones counted from the end.

    Raises:
        IndexError: a position is out of range.
    """
    positions = torch.as_tensor(item).to(device="cpu", dtype=torch.int64)
    if positions.numel():
        low, high = int(positions.min()), int(positions.max())
        if low < -size or high >= size:
            wrong = low if low < -size else high
            raise IndexError(MSG_OUT_OF_BOUNDS.format(wrong, dim, size))
        if low < 0:
            positions = torch.where(positions < 0, positions + size, positions)
    return positions
