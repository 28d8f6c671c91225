"""One item of an index: what it is, and the tensor that it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

MSG_NO_BATCH_DIMS = (
    "indexing a tensordict with td.batch_dims==0 is not permitted. Got index {}."
)
MSG_OUT_OF_BOUNDS = "index {} is out of bounds for dimension {} with size {}"
MSG_TOO_MANY = "too many indices for tensor of dimension {}"
MSG_BAD_INDEX = (
    "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables "
    "are valid indices (got {})"
)
MSG_INDEX_DTYPE = "tensors used as indices must be long, int, byte or bool tensors"
MSG_NUMPY_BOOL = (
    "A NumPy bool scalar is not a valid index, got {!r}. Use a Python bool or a "
    "boolean tensor instead."
)

_INDEX_DTYPES = (torch.int64, torch.int32)
_MASK_DTYPES = (torch.bool, torch.uint8)
_WHOLE = slice(None)


def _is_whole(item: Any) -> bool:
    return (
        isinstance(item, slice)
        and item.start is None
        and item.stop is None
        and item.step is None
    )


def _index_tensor(item: Any) -> torch.Tensor:
    """A sequence or an array as the tensor that indexes with it."""
    if isinstance(item, torch.Tensor):
        tensor = item
    elif isinstance(item, np.ndarray):
        tensor = torch.as_tensor(item)
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
    if tensor.dtype not in _INDEX_DTYPES and tensor.dtype not in _MASK_DTYPES:
        raise IndexError(MSG_INDEX_DTYPE)
    return tensor
