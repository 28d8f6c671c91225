"""Loops over leaves that the compiler need not interpret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import has_torch_function_unary as is_special
from torch.overrides import has_torch_function_variadic as any_special

from tensordict.primitives.common import _call

if TYPE_CHECKING:
    from collections.abc import Callable


def on_plain(
    held: dict[str, Any],
    op: str | Callable[..., Any],
    args: tuple[Any, ...],
    tail: int,
    k: int,
) -> tuple[dict[str, Any], list[str]]:
    """Call ``op`` on each plain tensor of ``held``, and list the other keys.

    ``op``, ``args``, ``tail`` and ``k`` are the arguments of
    :func:`tensordict.primitives.map_leaves.map_leaves`. Nested tensors, and values that
    take part in torch's functions, are not plain: the result has None in their places.
    An entry may also be a tuple of tensors, with which ``op`` is called as a whole.
    """
    results: dict[str, Any] = {}
    others: list[str] = []
    for key, value in [*held.items()]:
        leaves = value if type(value) is tuple else (value,)
        if not leaves or any_special(*leaves) or leaves[0].is_nested:
            results[key] = None
            others.append(key)
        else:
            results[key] = _call(value, op, args, tail, k)
    return results, others


def special_keys(held: dict[str, Any], is_used: bool = False) -> list[str]:  # noqa: ARG001
    """Return the keys of values that take part in torch's functions: no plain tensors.

    ``held`` must be the caller's own dictionary. With ``is_used``, the compiler makes
    graph inputs of all tensors at once, as it would have to later.
    """
    values = [*held.values()]
    if not any_special(*values):
        return []
    return [key for key, value in held.items() if is_special(value)]


def picked(held: dict[str, Any], keys: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return the entries of ``held`` at ``keys``, in order; None if one is missing."""
    entries: dict[str, Any] = {}
    for key in keys:
        if key.__class__ is not str or key not in held:
            return None
        entries[key] = held[key]
    return entries


def all_begin_with(held: dict[str, Any], size: torch.Size) -> bool:
    """Return whether all entries are plain tensors whose shapes start with ``size``."""
    for value in held.values():
        if (
            value.__class__ is not torch.Tensor
            or value.is_nested
            or value.shape[: len(size)] != size
        ):
            return False
    return True
