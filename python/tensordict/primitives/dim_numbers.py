"""Checks of the numbers of batch dims."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["MSG_INCOMPATIBLE_DIM", "batch_dim", "dim_number", "from_front"]

MSG_INCOMPATIBLE_DIM = "Incompatible dim {} for tensordict with shape {}."


def dim_number(dim: object) -> int:
    """Return a dim as an int.

    Raises:
        TypeError: ``dim`` is no integer.
    """
    if type(dim) is int:
        return dim
    if isinstance(dim, str):
        msg = (
            "'str' object cannot be interpreted as an integer: a dim is a number, "
            f"and {dim!r} is a name. `td.names.index({dim!r})` gives the number."
        )
        raise TypeError(msg)
    try:
        return operator.index(dim)  # type: ignore[arg-type]
    except TypeError as error:
        msg = f"{error}: a dim is a number, got {dim!r:.50}."
        raise TypeError(msg) from None


def from_front(dim: object, ndim: int) -> int:
    """Return a dim counted from the front; the caller checks its range.

    Raises:
        TypeError: ``dim`` is no integer.
    """
    number = dim_number(dim)
    return number + ndim if number < 0 else number


def batch_dim(dim: object, batch_size: torch.Size) -> int:
    """Return a batch dim counted from the front.

    Raises:
        IndexError: ``dim`` is no batch dim.
        TypeError: ``dim`` is no integer.
    """
    ndim = len(batch_size)
    at = from_front(dim, ndim)
    if at < 0 or at >= ndim:
        raise IndexError(MSG_INCOMPATIBLE_DIM.format(at, batch_size))
    return at
