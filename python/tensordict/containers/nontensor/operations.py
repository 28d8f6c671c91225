"""Apply operations on leaves to the positions of non-tensor data."""

from __future__ import annotations

from typing import Any

import torch

from tensordict.primitives.common import _call
from tensordict.primitives.operations import MOVES_ELEMENTS, name_of

__all__ = [
    "MSG_REDUCED",
    "has_tensors",
    "leaf_call",
    "moves_elements",
]

MSG_REDUCED = (
    "{0} requires this object to be cast to a regular TensorDict: a {1} has a value of "
    "its own for each element, which nothing can reduce. Leave it out first, with "
    "filter_non_tensor_data()."
)


def has_tensors(index: Any) -> bool:
    """Whether there is a tensor among the items of an index."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) for part in parts)


def moves_elements(op: Any) -> bool:
    """Whether an operation on leaves moves elements, rather than compute with them."""
    return name_of(op) in MOVES_ELEMENTS


def leaf_call(
    op: Any, args: tuple[Any, ...], tail: int, k: int, part: int | None = None
) -> Any:
    """An operation on leaves as a function of the positions of values alone."""

    def call(positions: torch.Tensor) -> Any:
        result = _call(positions, op, args, tail, k)
        return result if part is None else result[part]

    return call
