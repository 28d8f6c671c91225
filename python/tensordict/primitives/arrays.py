"""Tensors over the memory of arrays, or over a copy of constant arrays.

torch has no constant tensors. So read-only arrays, and arrays of a library whose arrays
never change, are copied. A large array over a mapped file is mapped again instead, so
that pages are copied only when they are written to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensordict import _rust

__all__ = ["as_tensor", "is_constant", "refuse_masked", "tensor_over"]

MSG_MASKED = (
    "{count} elements of a masked array of shape {shape} are masked, and a tensor has no "
    "mask: pass array.filled(value), or array.data and ~array.mask as two entries."
)

_LARGE = 2**24
"""Mapped arrays of at least this many bytes are mapped again; others are copied."""


def as_tensor(value: object, device: torch.device | None = None) -> torch.Tensor:
    """Call ``torch.as_tensor``, but copy constant memory.

    Raises:
        ValueError: an array has masked elements.
    """
    if not torch.compiler.is_compiling():
        if isinstance(value, np.ndarray):
            value = tensor_over(value)
        elif is_constant(value):
            # torch would share the memory even if it is told to copy.
            value = torch.as_tensor(value).clone()
    return torch.as_tensor(value, device=device)


def tensor_over(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Make a tensor over the memory of an array, if torch can use and write to it.

    Raises:
        TypeError: torch lacks the dtype.
        ValueError: elements are masked.
    """
    if type(array) is not np.ndarray:
        refuse_masked(array)
        array = np.asarray(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    size = array.itemsize
    if any(step < 0 or step % size for step in array.strides):
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    mapped = _mapped_again(array) if array.nbytes >= _LARGE else None
    return torch.from_numpy(array.copy()) if mapped is None else mapped


def refuse_masked(value: object) -> None:
    """Raise an error for an array with masked elements, also inside a sequence.

    Raises:
        ValueError: elements are masked.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        count = int(np.ma.getmaskarray(value).sum())
        raise ValueError(MSG_MASKED.format(count=count, shape=value.shape))
    if isinstance(value, (list, tuple)):
        for item in value:
            refuse_masked(item)


def is_constant(value: object) -> bool:
    """Return whether ``value`` is an array that its library treats as constant."""
    if isinstance(value, np.ndarray):
        return not value.flags.writeable
    kind = getattr(sys.modules.get("jax"), "Array", None)
    return kind is not None and isinstance(value, kind)


def _mapped_again(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    """Map the file of a read-only array privately; None if it is over no file."""
    reach = array.itemsize
    for step, count in sorted(zip(array.strides, array.shape, strict=True)):
        if count > 1:
            if step < reach:
                return None  # A write to one element would change others, too.
            reach += step * (count - 1)
    found = _file_of(array.__array_interface__["data"][0], reach)
    if found is None:
        return None
    path, start = found
    try:
        whole = _rust.map_file(path, "uint8", [start + reach], "r")
    except (OSError, RuntimeError, ValueError):
        return None
    memory = whole.as_subclass(torch.Tensor).numpy()[start:]
    return torch.from_numpy(
        np.ndarray(array.shape, array.dtype, memory, strides=array.strides)
    )


def _file_of(first: int, length: int) -> tuple[str, int] | None:
    """Return the file that read-only memory is mapped from, and its offset there.

    Return None if the path leads to another file by now.
    """
    try:
        with Path("/proc/self/maps").open(encoding="utf-8") as lines:
            for line in lines:
                span, access, offset, _, inode, *path = line.rstrip("\n").split(None, 5)
                low, high = (int(each, 16) for each in span.split("-"))
                if not low <= first < high:
                    continue
                is_constant = "w" not in access and first + length <= high
                if is_constant and Path(*path).stat().st_ino == int(inode):
                    return path[0], int(offset, 16) + first - low
                return None
    except (OSError, ValueError):
        pass
    return None
