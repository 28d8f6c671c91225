"""Items of an index: their kinds, and their tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from tensordict.primitives.arrays import as_tensor

MSG_NO_BATCH_DIMS = (
    "indexing a tensordict with td.batch_dims==0 is not permitted. Got index {}."
)
MSG_BROADCAST = (
    "shape mismatch: indexing tensors could not be broadcast together with shapes {}"
)
MSG_OUT_OF_BOUNDS = "index {} is out of bounds for dimension {} with size {}"
MSG_TOO_MANY = "too many indices for tensor of dimension {}"
MSG_NOT_ENOUGH = "Not enough dimensions in TensorDict for index provided."
MSG_BAD_INDEX = (
    "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables "
    "are valid indices (got {})"
)
MSG_INDEX_TYPE = "Invalid index type: {}."
MSG_FIRST_CLASS = (
    "Cannot index a lazy stacked tensordict along the stack dimension with a first-class "
    "dimension index. Consider consolidating the tensordict first using "
    "`tensordict.contiguous()`."
)
MSG_FRACTIONS = "list indices must be integers or slices, not float"
MSG_INDEX_DTYPE = "tensors used as indices must be long, int, byte or bool tensors"
MSG_NUMPY_BOOL = (
    "A NumPy bool scalar is not a valid index, got {!r}. Use a Python bool or a "
    "boolean tensor instead."
)

_MASK_DTYPES = (torch.bool, torch.uint8)
_WHOLE = slice(None)
_INDEX_TYPES = (
    int, slice, range, list, tuple, str, bytes, np.generic, np.ndarray, torch.Tensor,
    type(None), type(Ellipsis),
)  # fmt: skip


def _is_whole(item: object) -> bool:
    return (
        isinstance(item, slice)
        and item.start is None
        and item.stop is None
        and item.step is None
    )


def _index_tensor(item: object) -> torch.Tensor:
    """Convert a sequence or an array to an index tensor."""
    if isinstance(item, torch.Tensor):
        # The native gather reads positions of int64.
        tensor = item.to(torch.int64) if item.dtype == torch.int32 else item
    elif isinstance(item, np.ndarray):
        tensor = as_tensor(item)
        if tensor.dtype != torch.bool:
            tensor = tensor.to(torch.int64)
    elif isinstance(item, range):
        tensor = torch.arange(item.start, item.stop, item.step)
    elif isinstance(item, (list, tuple)):
        try:
            tensor = torch.tensor(item)
        except ValueError as error:
            raise TypeError(str(error)) from None
        if tensor.dtype != torch.bool:
            tensor = tensor.to(torch.int64)
    elif isinstance(item, np.bool_):
        raise IndexError(MSG_NUMPY_BOOL.format(item))
    else:
        raise IndexError(MSG_BAD_INDEX.format(type(item).__name__))
    if tensor.dtype not in (torch.int64, *_MASK_DTYPES):
        raise IndexError(MSG_INDEX_DTYPE)
    return tensor


def is_first_class(item: object) -> bool:
    """Return whether an item is a first-class dim, which names and removes one dim."""
    module = sys.modules.get("functorch.dim")
    return module is not None and isinstance(item, module.Dim)


def sorted_out(index: object) -> tuple[list[Any], int, int]:
    """Return the items of an index, the number of dims used, and the ellipsis' place.

    Sequences and arrays become tensors; scalar masks and NumPy numbers become Python
    values. The place is -1 without an ellipsis.

    Raises:
        IndexError: an item is no index.
        RuntimeError: there are two ellipses.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    used, ellipsis_at = 0, -1
    for position, item in enumerate(items):
        if item is Ellipsis:
            if ellipsis_at >= 0:
                msg = "An index can only have one ellipsis at most."
                raise RuntimeError(msg)
            ellipsis_at = position
        elif item is None or isinstance(item, bool):
            continue
        elif isinstance(item, slice):
            used += 1
        elif isinstance(item, (int, np.integer, torch.SymInt)):
            items[position] = int(item) if isinstance(item, np.integer) else item
            used += 1
        elif is_first_class(item):
            used += 1
        elif isinstance(item, (str, bytes)):
            # This is an error, but an error about the number of items comes first.
            used += 1
        else:
            item = _index_tensor(item)
            if item.dim() == 0:
                # A scalar tensor selects, and a scalar mask adds a dim, as in torch.
                if item.dtype in _MASK_DTYPES:
                    items[position] = bool(item)
                    continue
                used += 1
            else:
                used += item.dim() if item.dtype in _MASK_DTYPES else 1
            items[position] = item
    return items, used, ellipsis_at


def refuse_types(index: object, stack_dim: int, error: IndexError) -> None:
    """Raise an error for an item along the stack dim whose type is no index type.

    Raises:
        TypeError: the item's type is no index type, as for the index of a list.
    """
    refuse_first_class(index, stack_dim)
    items = index if isinstance(index, tuple) else (index,)
    kind = type(items[stack_dim]) if stack_dim < len(items) else int
    if not issubclass(kind, _INDEX_TYPES):
        raise TypeError(MSG_INDEX_TYPE.format(kind)) from error


def refuse_first_class(index: object, stack_dim: int | None = None) -> None:
    """Raise an error for a first-class dim at the stack dim (at any dim if it is None).

    Raises:
        ValueError: there is a first-class dim: a lazy stack has no tensor for it.
    """
    dim = 0
    for item in index if isinstance(index, tuple) else (index,):
        if is_first_class(item) and stack_dim in (None, dim):
            raise ValueError(MSG_FIRST_CLASS)
        dim += item is not None and not isinstance(item, bool)


def refuse_fractions(index: object) -> None:
    """Raise an error for numbers with fractions, which no list accepts as an index.

    Raises:
        TypeError: there is a fraction. An index tensor would cut it off.
    """
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, (float, np.floating)):
            raise TypeError(MSG_INDEX_TYPE.format(type(item)))
        if isinstance(item, list):
            is_fraction = float in set(map(type, item))
        else:
            is_fraction = isinstance(item, np.ndarray) and item.dtype.kind == "f"
        if is_fraction:
            raise TypeError(MSG_FRACTIONS)


def holds_text(index: tuple[Any, ...]) -> bool:
    """Return whether an index, or a tuple inside it, contains a string."""
    for item in index:
        if isinstance(item, str) or (isinstance(item, tuple) and holds_text(item)):
            return True
    return False


def refuse_text(items: list[Any]) -> None:
    """Raise a TypeError if an item of an index is a string."""
    for item in items:
        if isinstance(item, (str, bytes)):
            msg = f"new(): invalid data type '{type(item).__name__}'"
            raise TypeError(msg)


def fills(index: object, value: torch.Tensor) -> bool:
    """Return whether torch writes ``value`` as a number, into tensors of any dtype.

    torch does so with exactly one mask, next to any slices and numbers.
    """
    if value.numel() != 1 or value.device.type != "cpu":
        return False
    masks = 0
    for item in index if isinstance(index, tuple) else (index,):
        if item is None or item is ... or isinstance(item, (slice, np.integer)):
            continue
        if isinstance(item, int) and not isinstance(item, bool):
            continue
        if (
            isinstance(item, torch.Tensor)
            and not item.ndim
            and item.dtype not in _MASK_DTYPES
        ):
            continue
        if not _is_mask(item):
            return False
        masks += 1
    return masks == 1


def refuse_cast(index: object, entry: torch.Tensor, value: torch.Tensor) -> None:
    """Raise torch's error if ``value`` has another dtype and is not cast at ``index``.

    Writes at numbers and slices cast; writes at tensors do not, except for one number
    at a mask.
    """
    items, _, _ = sorted_out(index)
    if any(isinstance(item, torch.Tensor) and item.dim() for item in items):
        entry.new_empty(1)[[0]] = value.new_empty(1)


def _is_mask(item: object) -> bool:
    if isinstance(item, (torch.Tensor, np.ndarray)):
        return item.dtype in (torch.bool, np.bool_) and item.ndim > 0
    while isinstance(item, list) and item:
        item = item[0]
    return isinstance(item, bool)
