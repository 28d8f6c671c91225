"""Values compared, copied, and taken out of what holds them."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "bare",
    "copied",
    "has_elements",
    "is_interchangeable",
    "is_nothing",
    "same_value",
]

_ATOMIC = frozenset({bool, bytes, complex, float, int, str, type, type(None)})
"""Types of values that need no copy."""


def copied(held: Sequence[Any], is_lenient: bool = False) -> list[Any]:
    """Deep copies of values; of one that is there several times one copy.

    With ``is_lenient`` one that cannot be copied, such as a lock, stands for itself.

    Raises:
        TypeError: one cannot be copied.
    """
    if set(map(type, held)) <= _ATOMIC:
        return list(held)
    memo: dict[int, Any] = {}
    made = []
    for value in held:
        try:
            if isinstance(value, torch.Tensor) and id(value) not in memo:
                memo[id(value)] = value.clone()
            made.append(copy.deepcopy(value, memo))
        except Exception:
            if not is_lenient:
                raise
            made.append(value)
    return made


def same_value(first: Any, second: Any) -> bool:
    """Tell whether two values are equal; arrays and tensors where all their elements are."""
    if type(first) is not type(second) and (
        isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor)
    ):
        return False
    if isinstance(first, torch.Tensor):
        return first.shape == second.shape and bool((first == second).all())
    try:
        found = first == second
    except Exception:  # noqa: BLE001 - what a value's own comparison raises
        return False
    if isinstance(found, bool):
        return found
    try:
        return bool(found)
    except Exception:  # noqa: BLE001
        all_of = getattr(found, "all", None)
        shapes = getattr(first, "shape", None), getattr(second, "shape", None)
        if all_of is None or shapes[0] != shapes[1]:
            return False
        return bool(all_of())


def is_interchangeable(first: Any, second: Any) -> bool:
    """Tell whether nothing is lost where one value stands for both.

    They are equal, and so are their types, in what they hold too: 1, 1.0 and True are
    three values.
    """
    kind = type(first)
    if kind is not type(second) or not same_value(first, second):
        return False
    if kind is float or kind is complex:
        return repr(first) == repr(second)  # The sign of zero.
    if isinstance(first, dict):
        return is_interchangeable([*first.items()], [*second.items()])
    if isinstance(first, (list, tuple)):
        return all(map(is_interchangeable, first, second))
    if isinstance(first, (set, frozenset)):
        kinds = [{(type(item), item) for item in each} for each in (first, second)]
        return kinds[0] == kinds[1]
    return getattr(first, "dtype", None) == getattr(second, "dtype", None)


def has_elements(value: object) -> bool:
    """Tell whether ``value`` is an array of other than one element.

    Such a one is written at an index, whether the one there is equal or not: two of them
    have no one answer to whether they are.
    """
    return isinstance(value, (np.ndarray, torch.Tensor)) and math.prod(value.shape) != 1


def is_nothing(value: object) -> bool:
    """Tell whether a value is an empty collection, which writes nothing."""
    return (
        isinstance(value, CollectionProtocol)
        and not value._is_non_tensor
        and value.is_empty()
    )


def bare(value: Any) -> Any:
    """The value that a collection of one holds; what is no such collection as it is."""
    is_value = isinstance(value, CollectionProtocol) and value._is_non_tensor
    return value.data if is_value and value._is_one else value
