"""Formats that read entries of members with different shapes as one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence

from tensordict.primitives import special
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["as_nested", "as_padded", "check_tensors", "stack_leaves"]

MSG_STACK = (
    "Failed to stack tensors within a tensordict under the key {!r}: their shapes are "
    "{}. To read them, pass as_padded_tensor=True, as_nested_tensor=True or "
    "as_list=True to get()."
)
MSG_NESTED_ROWS = (
    "Cannot build a nested tensor from entries that are nested tensors themselves: the "
    "members of this stack are stacks, or hold nested tensors. Pass as_list=True."
)
MAX_PADDING = 2**24
"""The largest integer up to which all common dtypes are exact."""

MSG_MIXED = (
    "The entry {!r} is a tensor in some members of the lazy stack and a collection in "
    "others, so it has no stacked form. Read the entry of each member instead."
)
MSG_PADDING_SIDE = "Expected padding_side to be one of left or right, but got {}."


def check_tensors(key: object, values: Sequence[Any]) -> None:
    """Raise an error if the entries of some members are collections."""
    if any(isinstance(value, CollectionProtocol) for value in values):
        raise RuntimeError(MSG_MIXED.format(key))


def stack_leaves(key: object, values: list[torch.Tensor], dim: int) -> torch.Tensor:
    """Stack tensors along ``dim``.

    Raises:
        RuntimeError: the shapes differ.
    """
    first = values[0]
    if any(map(special.kind_of, values)):
        check_tensors(key, values)
    try:
        joined: torch.Tensor = special.joined(values, dim, None, torch.stack)
    except RuntimeError:
        shapes = list(dict.fromkeys(value.shape for value in values))
        if len(shapes) > 1 or special.kind_of(first):
            raise RuntimeError(MSG_STACK.format(key, shapes)) from None
        raise
    return joined


def as_padded(values: list[torch.Tensor], padding: float, side: str) -> torch.Tensor:
    """Stack tensors, each padded to the largest size of each dim.

    The rows are the first dim, as in a nested tensor, whatever the stack dim is.
    """
    if side not in ("left", "right"):
        raise RuntimeError(MSG_PADDING_SIDE.format(side))
    first = values[0]
    shapes = [value.shape for value in values]
    if all(shape == first.shape for shape in shapes):
        return torch.stack(values)
    if _differ_in_first_dim(values, padding):
        # torch has one call for the commonest case.
        return pad_sequence(values, True, padding, side)
    if any(len(shape) != len(first.shape) for shape in shapes):
        msg = (
            f"Cannot pad tensors of different numbers of dims, got the shapes {shapes}."
        )
        raise RuntimeError(msg)
    goal = [max(lengths) for lengths in zip(*shapes, strict=True)]
    dtype = first.dtype
    for value in values:
        dtype = torch.promote_types(dtype, value.dtype)
    out = first.new_full((len(values), *goal), padding, dtype=dtype)
    for row, value in zip(out.unbind(0), values, strict=True):
        for at, length in enumerate(value.shape):
            start = goal[at] - length if side == "left" else 0
            row = row.narrow(at, start, length)
        row.copy_(value)
    return out


def _differ_in_first_dim(values: list[torch.Tensor], padding: float) -> bool:
    """Return whether tensors of one dtype and device differ in their first dim only."""
    first = values[0]
    if not isinstance(padding, (int, float)) or not abs(padding) < MAX_PADDING:
        return False
    if not first.dim():
        return False
    inner, dtype, device = first.shape[1:], first.dtype, first.device
    return all(
        value.dim()
        and value.shape[1:] == inner
        and value.dtype is dtype
        and value.device == device
        for value in values
    )


def as_nested(values: list[torch.Tensor], layout: torch.layout | None) -> torch.Tensor:
    """Make a nested tensor with the tensors as rows, jagged by default."""
    if layout is None:
        layout = torch.jagged
    if any(special.rows(value) is not None for value in values):
        raise ValueError(MSG_NESTED_ROWS)
    return torch.nested.as_nested_tensor(values, layout=layout)
