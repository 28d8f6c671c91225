"""Conversion of numbers, arrays and sequences to tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.primitives import classes
from tensordict.primitives.arrays import tensor_over
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from tensordict.containers.dense import TensorDict

__all__ = ["tensor_of", "tensor_of_sequence"]

MSG_CONVERSION = (
    "TensorDict conversion only supports tensorclasses, tensordicts, numeric scalars "
    "and tensors. Got {}"
)
_NUMERIC_KINDS = "biufc"


_STACKABLE = (int, float, np.generic, torch.Tensor, list, tuple, CollectionProtocol)


def tensor_of(value: object, device: torch.device | None = None) -> Any:
    """Convert a number or an array to a tensor; return None for another value.

    Integers become int64, floats the default dtype; NumPy scalars and arrays keep their
    dtype. Memory of an array is shared as in :func:`.tensor_over`. A structured array
    becomes a tensordict.
    """
    if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic):
        try:
            return torch.tensor(value, device=device)
        except (RuntimeError, OverflowError, ValueError) as error:
            raise ValueError(MSG_CONVERSION.format(type(value))) from error
    if isinstance(value, np.ndarray):
        return _tensor_of_array(value, device)
    if isinstance(value, np.generic) and value.dtype.kind in _NUMERIC_KINDS:
        return torch.as_tensor(value, device=device)
    if isinstance(value, (list, tuple)):
        return tensor_of_sequence(value, device)
    return None


def _tensor_of_array(
    value: np.ndarray[Any, Any], device: torch.device | str | int | None
) -> TensorDict | torch.Tensor | None:
    if value.dtype.names is not None:
        return classes.TensorDict.from_struct_array(value)
    if value.dtype.kind not in _NUMERIC_KINDS:
        return None
    made = tensor_over(value)
    return made if device is None else made.to(device)


def tensor_of_sequence(
    value: Any, device: torch.device | None = None
) -> torch.Tensor | None:
    """Convert a list or tuple of numbers or tensors to a tensor; None if impossible.

    A list gives torch's default dtypes, a tuple NumPy's. A tuple inside a list is no
    number, and neither is a NumPy scalar, unless it is also a Python float.
    """
    if value and not isinstance(value[0], _STACKABLE):
        # Usually a column of strings: one item that is no number is enough.
        return None
    flat = list(_scalars(value))
    if any(isinstance(item, (torch.Tensor, CollectionProtocol)) for item in flat):
        return _stacked(value)
    numbers = (int, float, np.generic) if isinstance(value, tuple) else (int, float)
    if any(isinstance(item, complex) or not isinstance(item, numbers) for item in flat):
        return None
    try:
        if isinstance(value, tuple):
            return torch.as_tensor(np.asarray(value), device=device)
        return torch.tensor(value, device=device)
    except (RuntimeError, OverflowError, ValueError) as error:
        if any(isinstance(item, int) and not _fits_int64(item) for item in flat):
            raise ValueError(MSG_CONVERSION.format(type(value))) from error
        # The rows have different lengths.
        return None


def _scalars(value: Any) -> Any:
    for item in value:
        if isinstance(item, list) or (
            isinstance(item, tuple) and isinstance(value, tuple)
        ):
            yield from _scalars(item)
        else:
            yield item


def _fits_int64(value: int) -> bool:
    return -(2**63) <= value < 2**63


def _stacked(value: Any) -> Any:
    """Stack tensors as they are nested in lists; return None if they do not fit."""
    parts = [
        _stacked(item) if isinstance(item, (list, tuple)) else item for item in value
    ]
    kind: Any = torch.Tensor
    if isinstance(parts[0], CollectionProtocol):
        kind = CollectionProtocol
    if any(not isinstance(part, kind) for part in parts):
        return None
    if any(part.shape != parts[0].shape for part in parts):
        return None
    return torch.stack(parts)
