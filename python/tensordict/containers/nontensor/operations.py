"""What an operation on leaves means for values: which move, which would compute."""

from __future__ import annotations

from typing import Any

import torch

from tensordict.primitives.common import _call

__all__ = [
    "MSG_REDUCED",
    "REFUSED",
    "SPREADING",
    "SUMMING",
    "has_tensors",
    "leaf_call",
    "moves_elements",
    "name_of",
]

MOVING = frozenset(
    {
        "contiguous",
        "diagonal",
        "broadcast_to",
        "expand",
        "flatten",
        "flip",
        "gather",
        "index_select",
        "masked_select",
        "movedim",
        "narrow",
        "permute",
        "repeat",
        "repeat_interleave",
        "reshape",
        "roll",
        "rot90",
        "squeeze",
        "tile",
        "transpose",
        "unflatten",
        "unsqueeze",
        "view",
        "_gather",
        "_interleave_leaf",
        "_roll_flat",
        "chunk",
        "split",
        "split_with_sizes",
        "tensor_split",
        "unbind",
    }
)
"""The names of operations that move elements, where a batch size does not tell."""


SUMMING = frozenset(
    {"mean", "nanmean", "nansum", "prod", "quantile", "std", "sum", "var"}
)
"""The names of reductions that refuse a value for each element in a collection."""

REFUSED = SUMMING | {"amax", "amin", "cummax", "cummin", "max", "min"}
"""The names of reductions that a value for each element does not have itself."""

SPREADING = frozenset({"broadcast_to", "expand"})
"""The names of operations that make a new stack, which nothing has locked, of another."""

MSG_REDUCED = (
    "{0} requires this object to be cast to a regular TensorDict: a {1} has a value of "
    "its own for each element, which nothing can reduce. Leave it out first, with "
    "filter_non_tensor_data()."
)


def has_tensors(index: Any) -> bool:
    """Whether there is a tensor among the items of an index."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) for part in parts)


def name_of(op: Any) -> str:
    """The name of an operation, which is one or a function."""
    op = getattr(op, "func", op)
    return op if isinstance(op, str) else getattr(op, "__name__", str(op))


def moves_elements(op: Any) -> bool:
    """Whether an operation on leaves moves elements, rather than compute with them."""
    return name_of(op) in MOVING


def leaf_call(
    op: Any, args: tuple[Any, ...], tail: int, k: int, part: int | None = None
) -> Any:
    """An operation on leaves as a function of the positions of values alone."""

    def call(positions: torch.Tensor) -> Any:
        result = _call(positions, op, args, tail, k)
        return result if part is None else result[part]

    return call
