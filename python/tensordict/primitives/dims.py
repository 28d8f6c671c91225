"""Moving, adding, removing and reducing of batch dims.

All functions but the last three take the arguments of a method, and as ``call`` a tuple
``(name, args, kwargs)``, which a ``with`` statement on the result undoes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from tensordict.primitives.common import DIMS_TAIL, NO_TAIL, SHAPE_TAIL
from tensordict.primitives.dim_numbers import (
    batch_dim,
    from_front,
)
from tensordict.primitives.lock import keep_storage
from tensordict.primitives.map_leaves import map_leaves
from tensordict.primitives.split import split_leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.primitives.protocol import CollectionProtocol

MSG_TRANSPOSE = "dim0 and dim1 must be within the range of the number of dimensions."
MSG_PERMUTATION_RANGE = (
    "Received an permutation order incompatible with the tensordict shape."
)
MSG_PERMUTATION = (
    "Cannot compute the permutation, got dims={} but expected a permutation of {}."
)
MSG_UNSQUEEZE = (
    "unsqueezing is allowed for dims comprised between `-td.batch_dims - 1` and "
    "`td.batch_dims` only. Got dim={} with a batch size of {}."
)
MSG_DIM = "Incompatible dim {} for tensordict with batch dims {}."
MSG_FLATTEN_END = "Incompatible end_dim {} for tensordict with shape {}."
MSG_FLATTEN_ORDER = "The end dimension must be greater or equal to the start dim."
MSG_RANGE = "Dimension out of range (expected to be in range of [-{}, {}], but got {})"

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def _moved(
    td: CollectionProtocol,
    op: str,
    args: tuple[Any, ...],
    size: torch.Size,
    order: tuple[int, ...],
    tail: int,
    call: Call,
) -> Any:
    """Call ``op`` on every leaf; ``order`` has the old dim of each new one, or -1."""
    result = map_leaves(td, op, args, size, order, tail, True, -1)
    if td._is_locked and (td._is_memmap or td._is_shared):
        keep_storage(td, result)
    return remember(td, result, *call)


def remember(
    td: CollectionProtocol,
    result: Any,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Note on ``result`` that it is ``td.name(*args, **kwargs)``; return it."""
    result._last_op = (name, args, kwargs, ref(td))
    return result


def unsqueeze(td: CollectionProtocol, dim: int, call: Call) -> Any:
    """Add a batch dim of size 1 at ``dim``."""
    batch_size = td.batch_size
    ndim = len(batch_size)
    at = from_front(dim, ndim + 1)
    if not 0 <= at <= ndim:
        raise RuntimeError(MSG_UNSQUEEZE.format(dim, batch_size))
    size = torch.Size([*batch_size[:at], 1, *batch_size[at:]])
    order = (*range(at), -1, *range(at, ndim))
    return _moved(td, "unsqueeze", (at,), size, order, NO_TAIL, call)


def squeeze(td: CollectionProtocol, dim: int | None, call: Call) -> Any:
    """Remove the batch dim ``dim`` if it has size 1; with None, all such dims."""
    batch_size = td.batch_size
    ndim = len(batch_size)
    if dim is None:
        order = tuple(at for at in range(ndim) if batch_size[at] != 1)
        gone: Any = tuple(at for at in range(ndim) if batch_size[at] == 1)
        if gone:
            # Removing several dims gives a result that does not count as mapped or
            # shared.
            size = torch.Size([batch_size[at] for at in order])
            result = map_leaves(td, "squeeze", (gone,), size, order, NO_TAIL, True, -1)
            return remember(td, result, *call)
    else:
        gone = batch_dim(dim, batch_size)
        order = (*range(gone), *range(gone + 1, ndim))
        if batch_size[gone] != 1:
            return remember(td, td, *call)
    if len(order) == ndim:
        return remember(td, td, *call)
    size = torch.Size([batch_size[at] for at in order])
    return _moved(td, "squeeze", (gone,), size, order, NO_TAIL, call)


def transpose(td: CollectionProtocol, dim0: int, dim1: int, call: Call) -> Any:
    """Swap two batch dims."""
    batch_size = td.batch_size
    ndim = len(batch_size)
    first, second = from_front(dim0, ndim), from_front(dim1, ndim)
    if not (0 <= first < ndim and 0 <= second < ndim):
        raise ValueError(MSG_TRANSPOSE)
    if first == second:
        return remember(td, td, *call)
    order = list(range(ndim))
    order[first], order[second] = second, first
    size = torch.Size([batch_size[dim] for dim in order])
    args = (first, second)
    return _moved(td, "transpose", args, size, tuple(order), NO_TAIL, call)


def permute(td: CollectionProtocol, dims: Sequence[int], call: Call) -> Any:
    """Reorder the batch dims."""
    plan = permutation_plan(td._batch_size if td._is_dense else td.batch_size, dims)
    if plan is None:
        return remember(td, td, *call)
    order, size = plan
    # `_moved` inline: each frame above an operation costs compilation time.
    result = map_leaves(td, "permute", (order,), size, order, DIMS_TAIL, True, -1)
    if td._is_locked and (td._is_memmap or td._is_shared):
        keep_storage(td, result)
    return remember(td, result, *call)


def permutation_plan(
    batch_size: torch.Size, dims: Sequence[int]
) -> tuple[tuple[int, ...], torch.Size] | None:
    """Return the old dim of each new one, and the new size; None for no change."""
    return _permutation_plan(batch_size, dims)


def _permutation_plan(
    batch_size: torch.Size, dims: Sequence[int]
) -> tuple[tuple[int, ...], torch.Size] | None:
    ndim = len(batch_size)
    order = tuple(dims)
    in_place = tuple(range(ndim))
    if order != in_place and tuple(sorted(order)) != in_place:
        order = _permutation(order, ndim)
    if order == in_place:
        return None
    return order, torch.Size([batch_size[dim] for dim in order])


def _permutation(dims: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Complete a permutation of ``ndim`` dims that counts from the end or is short."""
    order = []
    for dim in dims:
        at = from_front(dim, ndim)
        if not 0 <= at < ndim:
            raise ValueError(MSG_PERMUTATION_RANGE)
        order.append(at)
    count = len(order)
    if len(set(order)) != count or (count and max(order) >= count):
        raise ValueError(MSG_PERMUTATION.format(order, list(range(count))))
    return (*order, *range(count, ndim))


def movedim(td: CollectionProtocol, source: Any, destination: Any, call: Call) -> Any:
    """Move batch dims to other places."""
    ndim = len(td.batch_size)
    sources, targets = (
        dims if isinstance(dims, (tuple, list)) else (dims,)
        for dims in (source, destination)
    )
    num_sources, num_targets = len(sources), len(targets)
    if num_sources != num_targets:
        msg = (
            "movedim: source and destination must have the same number of "
            f"elements, got {num_sources} and {num_targets}"
        )
        raise ValueError(msg)
    sources = _dims_in_range(sources, ndim)
    targets = _dims_in_range(targets, ndim)
    for name, dims in (("source", sources), ("destination", targets)):
        if len(set(dims)) != len(dims):
            msg = f"movedim: repeated dim in {name}"
            raise RuntimeError(msg)
    rest = [dim for dim in range(ndim) if dim not in sources]
    order = [-1] * ndim
    for dim, place in zip(sources, targets, strict=True):
        order[place] = dim
    order = [rest.pop(0) if dim < 0 else dim for dim in order]
    return permute(td, tuple(order), call)


def _dims_in_range(dims: Sequence[int], ndim: int) -> list[int]:
    """Return dims counted from the front; raise torch's IndexError if out of range."""
    out = []
    for dim in dims:
        at = from_front(dim, ndim)
        if not 0 <= at < ndim:
            raise IndexError(MSG_RANGE.format(ndim, ndim - 1, dim))
        out.append(at)
    return out


def flatten(td: CollectionProtocol, start_dim: int, end_dim: int, call: Call) -> Any:
    """Join the batch dims from ``start_dim`` to ``end_dim`` into one."""
    batch_size = td.batch_size
    ndim = len(batch_size)
    start, end = from_front(start_dim, ndim), from_front(end_dim, ndim)
    if end < 0 and (ndim or (start_dim, end_dim) != (0, -1)):
        raise ValueError(MSG_FLATTEN_END.format(end, batch_size))
    if not ndim:
        if end_dim < start_dim and end_dim >= 0:
            raise ValueError(MSG_FLATTEN_ORDER)
        if not (-1 <= start_dim <= 0 and -1 <= end_dim <= 0):
            raise IndexError(MSG_RANGE.format(1, 0, start_dim or end_dim))
        size = torch.Size([1])
        result = map_leaves(td, "reshape", (size,), size, (-1,), SHAPE_TAIL, True, -1)
        return remember(td, result, *call)
    if end < start:
        raise ValueError(MSG_FLATTEN_ORDER)
    if end >= ndim:
        raise IndexError(MSG_RANGE.format(ndim, ndim - 1, end_dim))
    if start < 0:
        msg = "flatten() has invalid args: start_dim cannot come after end_dim"
        raise RuntimeError(msg)
    joined = math.prod(batch_size[start : end + 1])
    size = torch.Size([*batch_size[:start], joined, *batch_size[end + 1 :]])
    order = (*range(start), -1, *range(end + 1, ndim))
    args = (start, end)
    result = map_leaves(td, "flatten", args, size, order, NO_TAIL, True, -1)
    return remember(td, result, *call)


def at_least(td: CollectionProtocol, ndim: int, call: Call) -> Any:
    """Add leading batch dims of size 1 until there are ``ndim``."""
    batch_size = td.batch_size
    missing = ndim - len(batch_size)
    if missing <= 0:
        return remember(td, td, *call)
    size = torch.Size([*[1] * missing, *batch_size])
    order = (*[-1] * missing, *range(len(batch_size)))
    if missing == 1:
        result = map_leaves(td, "unsqueeze", (0,), size, order, NO_TAIL, True, -1)
    else:
        result = map_leaves(td, "reshape", (size,), size, order, SHAPE_TAIL, True, -1)
    if td._is_locked and (td._is_memmap or td._is_shared):
        keep_storage(td, result)
    return remember(td, result, *call)


def reduce_dim(td: CollectionProtocol, op: str, dim: int) -> Any:
    """Reduce the batch dim ``dim`` of every leaf by its method ``op``. Unlocked."""
    at, size, order = _without(td, dim)
    return map_leaves(td, op, (at,), size, order, NO_TAIL, False, -1)


def extrema(
    td: CollectionProtocol, op: str, dim: int, stays: bool = False
) -> list[Any]:
    """Return the two tensordicts that the method ``op`` of every leaf gives. Unlocked.

    With ``stays``, they keep the dim.
    """
    at, size, order = _without(td, dim)
    if stays:
        size = td.batch_size
        order = tuple(range(len(size)))
    return split_leaves(td, op, (at,), [size, size], order, False, -1)


def unbind(td: CollectionProtocol, dim: int) -> list[Any]:
    """Return the rows along a batch dim, without that dim. Unlocked."""
    plan = unbind_plan(td._batch_size if td._is_dense else td.batch_size, dim)
    return split_leaves(td, "unbind", *plan, False, -1)


UnbindPlan = tuple[tuple[int], list[torch.Size], tuple[int, ...]]


def unbind_plan(batch_size: torch.Size, dim: int) -> UnbindPlan:
    """Return the dim counted from the front, each part's size, and the other dims."""
    return _unbind_plan(batch_size, dim)


def _unbind_plan(batch_size: torch.Size, dim: int) -> UnbindPlan:
    ndim = len(batch_size)
    at = batch_dim(dim, batch_size)
    prefixes = [batch_size[:at] + batch_size[at + 1 :]] * batch_size[at]
    return (at,), prefixes, (*range(at), *range(at + 1, ndim))


def _without(
    td: CollectionProtocol, dim: int
) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Return a dim from the front, and the batch size and order of dims without it."""
    batch_size = td.batch_size
    ndim = len(batch_size)
    at = from_front(dim, ndim)
    if not 0 <= at < ndim:
        raise IndexError(MSG_DIM.format(dim, ndim))
    size = batch_size[:at] + batch_size[at + 1 :]
    return at, size, (*range(at), *range(at + 1, ndim))


TRACED = ((permutation_plan, _permutation_plan), (unbind_plan, _unbind_plan))
"""Functions for :mod:`tensordict.compile.registration`: with known arguments, the plan
is a constant of the compiled code."""
