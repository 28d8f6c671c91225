"""Split items into tensors and other values, and rebuild them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from tensordict import TensorDict

if TYPE_CHECKING:
    from collections.abc import Iterator

TENSOR: Final = 0
ARRAY: Final = 1
OTHER: Final = 2

_CPU: Final = torch.device("cpu")


def flatten(item: Any, tensors: list[Tensor], others: list[Any]) -> Any:
    """Append the parts of ``item`` to the lists, and return its structure.

    Items of equal structure return equal values. Tuples, lists, dicts and plain
    TensorDicts are split. Tensors and numeric arrays are parts; everything else is one
    other value.
    """
    kind = type(item)
    if kind is Tensor:
        if item.layout is torch.strided and item.device == _CPU and not item.is_conj():
            tensors.append(item)
            return TENSOR
    elif kind is np.ndarray:
        if item.dtype.kind in "biufc" and item.dtype.isnative:
            array = np.ascontiguousarray(item).reshape(item.shape)
            if not array.flags.writeable:  # torch warns about read-only arrays
                array = array.copy()
            tensors.append(torch.from_numpy(array))
            return ARRAY
    elif kind is tuple or kind is list:
        return (kind, *[flatten(part, tensors, others) for part in item])
    elif kind is dict:
        keys = list(item)
        parts = [flatten(item[key], tensors, others) for key in keys]
        return (dict, tuple(keys), *parts)
    elif kind is TensorDict and item.device is None and not item._has_names():
        keys = list(item.keys())
        parts = [flatten(item.get(key), tensors, others) for key in keys]
        return (TensorDict, tuple(keys), tuple(item.batch_size), *parts)
    others.append(item)
    return OTHER


def unflatten(structure: Any, tensors: Iterator[Tensor], others: Iterator[Any]) -> Any:
    """Return the item with this structure and these parts."""
    if structure == TENSOR:
        return next(tensors)
    if structure == ARRAY:
        return next(tensors).numpy()
    if structure == OTHER:
        return next(others)
    kind = structure[0]
    if kind is dict:
        parts = [unflatten(part, tensors, others) for part in structure[2:]]
        return dict(zip(structure[1], parts, strict=True))
    if kind is TensorDict:
        parts = [unflatten(part, tensors, others) for part in structure[3:]]
        return TensorDict(
            dict(zip(structure[1], parts, strict=True)), batch_size=structure[2]
        )
    return kind([unflatten(part, tensors, others) for part in structure[1:]])
