"""Computing with the positions of values."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MSG_INDEX",
    "dim_of_parts",
    "dims_taken",
    "is_view",
    "joined_dim",
    "on_real_tensors",
    "out_of_bounds",
    "taken",
]

MSG_INDEX = "index {} is out of bounds for the stack dim of size {}"


def on_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have ``function``, which computes with positions, do so under any dispatch mode.

    Values are where they are: under a ``FakeTensorMode`` positions must not be fake.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not _has_modes():
            return function(*args, **kwargs)
        with _disable_current_modes():
            return function(*args, **kwargs)

    return wrapper


def _has_modes() -> bool:
    """Whether a dispatch mode is on."""
    return bool(torch._C._len_torch_dispatch_stack())


def taken(cells: list[Any], places: torch.Tensor) -> list[Any]:
    """The values at some positions, row by row."""
    return list(map(cells.__getitem__, places.flatten().tolist()))


def dims_taken(item: Any) -> int:
    """How many dims an item of an index selects along."""
    if item is None or isinstance(item, bool):
        return 0
    is_mask = isinstance(item, torch.Tensor) and item.dtype is torch.bool
    return item.dim() if is_mask else 1


def dim_of_parts(old: torch.Size, new: torch.Size) -> int | None:
    """The stack dim where one dim of ``old`` is cut into several; None where not."""
    extra = len(new) - len(old)
    if extra < 1:
        return None
    pairs = enumerate(zip(old, new, strict=False))
    cut = next((at for at, pair in pairs if pair[0] != pair[1]), len(old) - 1)
    behind = cut + extra + 1
    if new[cut:behind].numel() != old[cut] or new[behind:] != old[cut + 1 :]:
        return None
    start = behind - 1
    while start > 1 and new[start - 1] == 1:
        start -= 1
    has_many = behind - 1 - start > 1 if new[behind - 1] != 1 else old[-2:] == (1, 1)
    if cut and has_many:
        # Several dims of length 1 in front of the rest count as dims of the first.
        return 0
    return cut + extra - 1


def joined_dim(old: torch.Size, new: torch.Size) -> int | None:
    """The first dim of ``new`` that joins several of ``old``; None without one."""
    extra = len(old) - len(new)
    for at, length in enumerate(new):
        behind = at + extra + 1
        if old[behind:] == new[at + 1 :] and old[at:behind].numel() == length:
            return at
        if old[at] != length:
            break
    return None


def out_of_bounds(places: torch.Tensor, length: int) -> IndexError:
    """The error of a position that is none among ``length`` of them."""
    at = next(at for at in places.flatten().tolist() if not -length <= at < length)
    return IndexError(MSG_INDEX.format(at, length))


def is_view(moved: torch.Tensor, places: torch.Tensor) -> bool:
    """Whether ``moved`` shows each element of ``places`` once at most, in its memory."""
    if moved.untyped_storage()._cdata != places.untyped_storage()._cdata:
        return False
    return all(
        stride or length < 2
        for stride, length in zip(moved.stride(), moved.shape, strict=True)
    )
