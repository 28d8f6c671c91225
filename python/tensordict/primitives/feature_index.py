"""Indices with more dims than the batch size, which index the features of leaves.

``td[:, 0]`` with batch size ``[3]`` takes the first feature of every row. If some
leaves lack this feature, or batch sizes of results would differ, the error of an index
with too many dims is raised. tensordict 0.15 warns that it will drop such indices; so
does this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives import special
from tensordict.primitives.checks import holds_values
from tensordict.primitives.common import check_number
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.index_items import (
    _MASK_DTYPES,
    MSG_NO_BATCH_DIMS,
    fills,
    holds_text,
    refuse_cast,
    sorted_out,
)
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.tree import new

if TYPE_CHECKING:
    from tensordict.primitives.protocol import BatchIndex

MSG_BEYOND = (
    "An index{} runs past the batch dims, and is used on the dims of the leaves instead. "
    "Starting with TensorDict 0.17, the default will change to raising an IndexError, as "
    "torch does for a tensor of the batch size. To {}."
)
READ_LEAVES = "index the leaves, write td.apply(lambda x: x[:, idx])"
WRITE_LEAVES = "write into the leaves, write for leaf in td.values(True, True): leaf[:, idx] = value"


def features_at(td: CollectionProtocol, index: object, error: IndexError) -> Any:
    """Return the dense ``td`` at ``index``, which raised ``error``; unlocked. Warn.

    Raises:
        IndexError: ``error``, if the index concerns batch dims only or slices features,
            if ``td`` has names, or if an entry lacks these features.
    """
    part = take_features(td, index, error)
    _warn("", READ_LEAVES)
    return part


def take_features(
    td: CollectionProtocol, index: object, error: IndexError, by_own_dims: bool = False
) -> Any:
    """Take features without a warning: see :func:`features_at`.

    With ``by_own_dims``, a nested tensordict with enough batch dims for the index is
    indexed along them.
    """
    ndim = len(td._batch_size)
    at = _reaching(index, ndim)
    if at is None or td._has_names() or _slices_features(at, ndim):
        raise error
    leaf = _first_leaf(td)
    if leaf is None:
        raise error
    try:
        # Numbers and tensors change the feature dims in the same way for all leaves.
        ndim = sum(map(_dims_used, at))
        plan: Any = _rust.index_plan(leaf.shape[:ndim], at)
        index_ndim = ndim if by_own_dims else None
        return _part(td, at, td._batch_size, plan[1], error, index_ndim)
    except IndexError:
        if by_own_dims:
            raise
        raise error from None


def fill_features(
    td: CollectionProtocol, index: object, value: object, error: IndexError
) -> None:
    """Write ``value``, a number or tensor, into every leaf of ``td`` at ``index``.

    Everything is checked before the first write.

    Raises:
        IndexError: ``error``, if the index concerns batch dims only or an entry has no
            features; torch's error, if a leaf lacks these features.
        RuntimeError: ``value`` does not fit.
    """
    ndim = len(td.batch_size)
    at = _reaching(index, ndim)
    if at is None or not isinstance(value, (int, float, complex, torch.Tensor)):
        if not ndim and not _rust.leaves(td):
            raise RuntimeError(MSG_NO_BATCH_DIMS.format(index)) from None
        raise error
    leaves: list[torch.Tensor] = []
    _gather(td, ndim, leaves, error)
    items = [_fitted(leaf, index, at, value) for leaf in leaves]
    if isinstance(value, (int, float)):
        check_number(leaves, value, True)
    for leaf, item in zip(leaves, items, strict=True):
        leaf[at] = item
    _warn(" written with td[index] = value", WRITE_LEAVES)


def _warn(how: str, advice: str) -> None:
    # The compiler cannot trace a warning.
    if not torch.compiler.is_compiling():
        warn_caller(MSG_BEYOND.format(how, advice))


def _reaching(index: object, ndim: int) -> tuple[Any, ...] | None:
    """Return the items of an index with more than ``ndim`` dims; None for any other."""
    if isinstance(index, tuple) and holds_text(index):
        return None
    items, used, ellipsis_at = sorted_out(index)
    return tuple(items) if used > ndim and ellipsis_at < 0 else None


def _dims_used(item: object) -> int:
    if isinstance(item, torch.Tensor):
        return item.dim() if item.dtype in _MASK_DTYPES else 1
    return 0 if item is None or isinstance(item, bool) else 1


def _slices_features(items: tuple[Any, ...], ndim: int) -> bool:
    dim = 0
    for item in items:
        if isinstance(item, slice) and dim >= ndim:
            return True
        dim += _dims_used(item)
    return False


def _first_leaf(td: CollectionProtocol) -> Any:
    for value in list(td._entries().values()):
        leaf = value
        if isinstance(value, CollectionProtocol):
            leaf = _first_leaf(value)
        elif special.is_shared(value):
            leaf = None
        if leaf is not None:
            return leaf
    return None


def _part(
    td: CollectionProtocol,
    at: object,
    batch_size: torch.Size,
    size: torch.Size,
    error: IndexError,
    index_ndim: int | None,
) -> Any:
    if (index_ndim is None and td._batch_size != batch_size) or td._has_names():
        raise error
    entries: dict[str, Any] = {}
    held: list[tuple[str, Any]] = list(td._tensordict.items())
    for key, value in held:
        if not isinstance(value, CollectionProtocol):
            entries[key] = special.at(value, at, size)
        elif index_ndim is not None and len(value.batch_size) >= index_ndim:
            entries[key] = value[at]
        elif value._is_dense:
            entries[key] = _part(value, at, batch_size, size, error, index_ndim)
        elif isinstance(value, value._non_tensor_type):
            # One value for all rows, whatever the number of rows.
            entries[key] = value._broadcast(size)
        elif value.batch_size == batch_size:
            nested: Any = value
            entries[key] = nested._index(at)
        else:
            raise error
    return new(type(td), entries, size, td._device, None)


def _gather(
    td: CollectionProtocol, ndim: int, leaves: list[torch.Tensor], error: IndexError
) -> None:
    for value in list(td._entries().values()):
        if isinstance(value, CollectionProtocol):
            # One value for all rows has no part that could be written.
            if value._lazy_stack() is not None or (ndim and holds_values(value)):
                raise error
            _gather(value, ndim, leaves, error)
        elif special.kind_of(value):
            raise error
        else:
            leaves.append(value)


def _fitted(leaf: torch.Tensor, index: object, at: BatchIndex, value: object) -> Any:
    """Return ``value`` in the form to write into ``leaf``, or raise torch's error."""
    place = leaf[at]
    if not isinstance(value, torch.Tensor):
        return value
    part = value
    while part.dim() > place.dim() and part.shape[0] == 1:
        part = part[0]
    part.expand(place.shape)
    if value.dtype != leaf.dtype:
        if fills(index, value):
            return value.to(leaf.dtype)
        refuse_cast(at, leaf, value)
    return value
