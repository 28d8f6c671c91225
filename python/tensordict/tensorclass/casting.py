"""Casting the value of a field to its annotation, under ``autocast``."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tensordict.primitives.arrays import as_tensor
from tensordict.primitives.checks import is_tensorclass
from tensordict.primitives.common import shape_of_lists
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["are_rows", "as_dicts", "cast_field"]

_EXACT = frozenset({bool, int, float, complex, str})
"""Annotations that need the exact type: True is cast to int, np.float64 to float."""

MSG_CAST = "Failed to cast the value {} to the type annotation {}."


def cast_field(tc: Any, name: str, value: object) -> tuple[Any, bool]:
    """Cast the value of a field to its annotation; also return whether it is final.

    A final value is stored as it is, without conversion to a tensor. The value is final
    if the annotation is a class. A value that has the class already, and a dictionary
    for an annotation that is no collection, are final and not cast. A value that
    ``cast_filter`` refuses is neither cast nor final.
    """
    cls = type(tc)
    hint = cls._type_hints.get(name, Any)
    if not isinstance(hint, type) or hint is Any or typing.get_origin(hint):
        return value, False
    if cls._cast_filter is not None and not cls._cast_filter(name):
        return value, False
    if getattr(value, "_is_non_tensor", False):
        # An entry of another collection is non-tensor data already.
        return value, True
    is_fitting = type(value) is hint if hint in _EXACT else isinstance(value, hint)
    if is_fitting:
        return value, True
    inner = tc._tensordict
    make: Any = hint
    if isinstance(value, dict) and not issubclass(hint, CollectionProtocol):
        return value, True
    if issubclass(hint, torch.Tensor):
        try:
            cast = as_tensor(value, inner.device)
            return cast if isinstance(cast, hint) else make(cast), True
        except TypeError as error:
            raise TypeError(MSG_CAST.format(name, hint)) from error
    if issubclass(hint, CollectionProtocol):
        if is_tensorclass(hint) and isinstance(value, CollectionProtocol):
            cast = make.from_tensordict(value.clone(False))
        elif is_tensorclass(hint) and isinstance(value, dict):
            cast = make.from_dict(value)
        else:
            cast = make(value)
        cast.batch_size = inner.batch_size
        return cast, True
    if hint is np.ndarray:
        return np.asarray(value), True
    return make(value), True


def as_dicts(value: object) -> Any:
    """Convert a mapping of any type to nested dictionaries; return any other value."""
    if isinstance(value, CollectionProtocol) or not isinstance(value, Mapping):
        return value
    return {key: as_dicts(item) for key, item in value.items()}


def are_rows(items: list[Any], size: Sequence[int]) -> bool:
    """Return whether a list has an item for each row of a batch of ``size``.

    Without batch dims, a list counts as rows unless it is empty or all items are
    numbers.
    """
    if size:
        return shape_of_lists(items)[: len(size)] == list(size)
    return bool(items) and not all(map(_is_of_numbers, items))


def _is_of_numbers(item: object) -> bool:
    if isinstance(item, list):
        return all(map(_is_of_numbers, item))
    return isinstance(item, (bool, int, float))
