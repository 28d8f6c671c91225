"""Cast the value of a field by its annotation, under ``autocast``."""

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
"""Annotations whose subclasses are cast, too: True is no int, np.float64 no float."""

MSG_CAST = "Failed to cast the value {} to the type annotation {}."


def cast_field(tc: Any, name: str, value: object) -> tuple[Any, bool]:
    """The value of a field in the type of its annotation, and whether that settles it.

    It does where the annotation is a class: then the value is stored as it is, without
    making a tensor of it. Values of that class, those that ``cast_filter`` refuses, and
    dictionaries where no collection is asked for, stay what they are.
    """
    cls = type(tc)
    hint = cls._type_hints.get(name, Any)
    if not isinstance(hint, type) or hint is Any or typing.get_origin(hint):
        return value, False
    if cls._cast_filter is not None and not cls._cast_filter(name):
        return value, False
    if getattr(value, "_is_non_tensor", False):
        # An entry of another collection, which is a value already.
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
            made = as_tensor(value, inner.device)
            return made if isinstance(made, hint) else make(made), True
        except TypeError as error:
            raise TypeError(MSG_CAST.format(name, hint)) from error
    if issubclass(hint, CollectionProtocol):
        if is_tensorclass(hint) and isinstance(value, CollectionProtocol):
            made = make.from_tensordict(value.clone(False))
        elif is_tensorclass(hint) and isinstance(value, dict):
            made = make.from_dict(value)
        else:
            made = make(value)
        made.batch_size = inner.batch_size
        return made, True
    if hint is np.ndarray:
        return np.asarray(value), True
    return make(value), True


def as_dicts(value: object) -> Any:
    """Make nested dictionaries of a mapping of any type; leave any other value as it is."""
    if isinstance(value, CollectionProtocol) or not isinstance(value, Mapping):
        return value
    return {key: as_dicts(item) for key, item in value.items()}


def are_rows(items: list[Any], size: Sequence[int]) -> bool:
    """Return whether a list has an item per row of a batch of ``size``.

    Without batch dims it is a column of its own, unless it has numbers or nothing at all.
    """
    if size:
        return shape_of_lists(items)[: len(size)] == list(size)
    return bool(items) and not all(map(_is_of_numbers, items))


def _is_of_numbers(item: object) -> bool:
    if isinstance(item, list):
        return all(map(_is_of_numbers, item))
    return isinstance(item, (bool, int, float))
