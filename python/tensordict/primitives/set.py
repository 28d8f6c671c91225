"""Validation and storing of a value as an entry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict.primitives.common import MSG_BATCH_MISMATCH
from tensordict.primitives.errors import bad_key, below, keyed, locked_error
from tensordict.primitives.nested_key import unravel_key_to_tuple
from tensordict.primitives.protocol import (
    CollectionProtocol,
)
from tensordict.primitives.special import fits, leading_shape, resized

MSG_SCALAR = (
    " Python scalars are stored as 0-dim tensors: to store a scalar in a tensordict "
    "with a non-empty batch size, expand it to the batch size or wrap it in "
    "NonTensorData (in a tensorclass, the nocast option stores scalars as they are)."
)


def check_batch(td: CollectionProtocol, key: object, value: torch.Tensor) -> None:
    """Raise an error if a tensor does not have the batch size as its leading dims."""
    batch_size = td.batch_size
    if batch_size and not fits(value, batch_size):
        shape: Any = leading_shape(value)
        msg = MSG_BATCH_MISMATCH.format(batch_size, shape, key)
        if not shape:
            msg += MSG_SCALAR
        raise keyed(RuntimeError(msg), key)


def validate(td: Any, key: str, value: Any, non_blocking: bool = False) -> Any:
    """Return ``value`` in the form to store in ``td``, or raise an error.

    A tensor must have the batch size as its leading dims; it is moved to the device.
    ``td._fit_collection`` fits a tensordict. ``td._convert_value`` converts any other
    value.
    """
    if not isinstance(value, torch.Tensor):
        if isinstance(value, CollectionProtocol):
            return td._fit_collection(key, value, non_blocking)
        value = td._convert_value(key, value, non_blocking)
        if isinstance(value, CollectionProtocol):
            return value
    # An attribute costs less to compile than a property.
    is_dense = td._is_dense
    batch_size = td._batch_size if is_dense else td.batch_size
    kept = resized(value, batch_size)
    if kept is not None:
        value = kept
    elif batch_size and (
        value.is_nested or value.shape[: len(batch_size)] != batch_size
    ):
        check_batch(td, key, value)
    device = td._device if is_dense else td.device
    if device is not None and value.device != device:
        value = value.to(device, non_blocking=non_blocking)
    return value


def set_entry(
    td: Any,
    key: str,
    value: object,
    inplace: bool | None = False,
    non_blocking: bool = False,
    validated: bool = False,
    ignore_lock: bool = False,
) -> None:
    """Store ``value`` at a nested key. Missing levels are created.

    ``inplace=True`` writes into an existing entry, and stores the value if there is
    none; None does the same, but a missing entry is an error (``set_``). A locked
    tensordict only allows writes into existing entries.
    """
    if key.__class__ is str:
        if inplace is False and td._is_dense:
            is_collection = False
            # A tensor that fits needs no other function, which Dynamo would enter.
            if not validated and (
                td._device is not None
                or value.__class__ is not Tensor
                or value.is_nested
                or value.shape[: len(td._batch_size)] != td._batch_size
            ):
                value = validate(td, key, value, non_blocking)
                is_collection = isinstance(value, CollectionProtocol)
            if td._is_locked and not ignore_lock:
                raise locked_error(td)
            if is_collection:
                td._hang(key, value)
            else:
                td._tensordict[key] = value
            return
        path: tuple[str, ...] = (key,)
    else:
        path = unravel_key_to_tuple(key)
        if not path:
            raise bad_key(key)
    try:
        td._set_path(path, value, inplace, non_blocking, validated, ignore_lock)
    except RuntimeError as error:
        if len(path) > 1:
            below(error, path[:-1])
        raise
