"""The functions that compute the reductions of :mod:`tensordict.ops.reductions`.

They read the common arguments and choose the computation: over one batch dim (the
fastest), over other dims, or over all leaves concatenated.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives.checks import is_branch, is_tensorclass
from tensordict.primitives.dim_numbers import dim_number
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.special import is_shared, resized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.containers.collection import TensorCollection

DEFAULT_OPTIONS = {"correction": 1}
"""The default options of ``std`` and ``var``."""
ALL_DIMS = 64
"""More than the number of batch dims of any tensordict: ``map_leaves`` removes all."""
MSG_DIM = "Incompatible dim {} for tensordict with batch dims {}."
MSG_DIM_ALL = (
    "dim must be greater than or equal to -tensordict.batch_dims and smaller than "
    "tensordict.batch_dims"
)
MSG_NO_LEAVES = (
    "{}(reduce=True) reduces the tensor leaves together, and this tensordict has no "
    "tensor leaves."
)
MSG_FEATURE = (
    "{0}(dim='feature') needs reduce=True: the extremum of each leaf's own feature "
    "dims has no one index."
)
MSG_FEATURE_KEEPDIM = "dim='feature' is incompatible with keepdim=True."
MSG_ONE_DIM = "{}() takes one dim, got {!r}."


# Arguments -------------------------------------------------------------------------------


def is_feature(dim: object) -> bool:
    """Return whether an argument names the feature dims."""
    return isinstance(dim, str) and dim == "feature"


def _batch_dims(dim: object, ndim: int) -> tuple[int, ...]:
    """Return the batch dims that an argument names, counted from the front.

    Raises:
        IndexError: a number is no batch dim.
        TypeError: ``dim`` is neither an int nor a sequence of ints.
    """
    dims = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    out = []
    for each in dims:
        if isinstance(each, bool):
            msg = f"dim must be an int, not {each}"
            raise TypeError(msg)
        position = dim_number(each)
        if not -ndim <= position < ndim:
            raise IndexError(MSG_DIM.format(position, ndim))
        out.append(position + ndim if position < 0 else position)
    return tuple(out)


def reduced_shape(
    size: Sequence[int], dims: tuple[int, ...], keepdim: object
) -> tuple[torch.Size, Any]:
    """Return the batch size after a reduction, and the dims whose names it keeps."""
    if keepdim:
        kept = [1 if dim in dims else length for dim, length in enumerate(size)]
        return torch.Size(kept), True
    rest = tuple(dim for dim in range(len(size)) if dim not in dims)
    return torch.Size([size[dim] for dim in rest]), rest


def _with_features_last(leaf: torch.Tensor, ndim: int) -> torch.Tensor:
    """Flatten the dims of ``leaf`` from ``ndim`` on into one."""
    if leaf.dim() == ndim:
        return leaf.unsqueeze(-1)
    return leaf.flatten(ndim)


def _joined(td: CollectionProtocol, dim: Any, name: str) -> torch.Tensor:
    """Concatenate all leaves along ``dim``: an int, ``"feature"`` or None.

    Raises:
        ValueError: there are no leaves.
        RuntimeError: the leaves' other dims differ.
    """
    leaves = _rust.leaves(td)
    if not leaves:
        raise ValueError(MSG_NO_LEAVES.format(name))
    if dim is None:
        return torch.cat([leaf.reshape(-1) for leaf in leaves])
    if dim == "feature":
        ndim = len(td.batch_size)
        return torch.cat([_with_features_last(leaf, ndim) for leaf in leaves], -1)
    return torch.cat(leaves, dim)


# Reducing --------------------------------------------------------------------------------


def reduce_leaves(
    td: Any,
    op: Callable[..., torch.Tensor],
    options: dict[str, Any],
    dim: Any,
    keepdim: Any,
    reduce: bool | None,
    key_transform: Callable[[Any], Any] | None = None,
    name: str = "",
    first: torch.Size = torch.Size([]),  # noqa: B008
) -> Any:
    """Reduce the leaves to one value for each slice.

    ``op(leaf)`` reduces all elements, ``op(leaf, dims, keepdim)`` some dims. ``first``
    are the dims that ``op`` adds before all others.
    """
    if type(dim) is int and not reduce and not first and key_transform is None:
        if keepdim is not True and (not options or options == DEFAULT_OPTIONS):
            return _rust.reduce_dim(td, _NAMES[op], dim)
        return reduce_one(td, op, options, dim, keepdim is True)
    keep = keepdim is not NO_DEFAULT and bool(keepdim)
    everything = dim is NO_DEFAULT or dim is None or (type(dim) is tuple and not dim)
    if options:
        op = functools.partial(op, **options)
    if is_feature(dim) and keep:
        raise TypeError(MSG_FEATURE_KEEPDIM)
    if reduce:
        if everything:
            return op(_joined(td, None, name or _name_of(op)))
        if is_feature(dim):
            return op(_joined(td, "feature", name or _name_of(op)), -1)
        dims = dim if isinstance(dim, (tuple, list)) else (dim,)
        joined = _joined(td, dims[0], name or _name_of(op))
        return op(joined, tuple(dims), keepdim=keep)
    if everything:
        if keep:
            result = _keep_all_dims(td, op, first)
        else:
            size = torch.Size([])
            result = _rust.map_leaves(td, op, (), size, None, 0, False, ALL_DIMS)
    elif is_feature(dim):
        for collection in _rust.containers(td):
            collection._check_reduces(op)
        values = [
            leaf if is_shared(leaf) else op(_with_features_last(leaf, ndim), -1)
            for leaf, ndim in zip(
                _rust.leaves(td), _rust.leaf_batch_dims(td), strict=True
            )
        ]
        result = _rust.rebuild(td, values)
        for held in _rust.containers(result):
            held._check_reduces(name or _name_of(op))
        if first:
            _prepend_dims(result, first)
    else:
        size = td.batch_size
        dims = _batch_dims(dim, len(size))
        prefix, names = reduced_shape(size, dims, keep)
        if first:
            prefix = first + prefix
            names = tuple(range(len(size))) if names is True else names
            names = (*[-1] * len(first), *names)
        if keep:
            op = functools.partial(op, keepdim=True)
        result = _rust.map_leaves(td, op, (dims,), prefix, names)
    return result if key_transform is None else rekeyed(result, key_transform)


def reduce_one(
    td: CollectionProtocol,
    op: Callable[..., torch.Tensor],
    options: dict[str, Any],
    dim: int,
    keepdim: bool,
) -> Any:
    """Reduce one batch dim: the common case, with the least work for each leaf."""
    dim, prefix, names = _one_reduced(td.batch_size, dim, keepdim)
    if not options or options == DEFAULT_OPTIONS:
        # The method's default for `correction` is 1, so the dim alone is enough.
        args: tuple[Any, ...] = (dim,)
        if keepdim:
            args = (dim, True, True) if options else (dim, True)
        return _rust.map_leaves(td, _NAMES[op], args, prefix, names)
    if keepdim:
        options = {**options, "keepdim": True}
    return _rust.map_leaves(td, functools.partial(op, **options), (dim,), prefix, names)


def _one_reduced(
    size: torch.Size, dim: int, keepdim: bool
) -> tuple[int, torch.Size, Any]:
    """Return ``dim`` from the front, the reduced batch size, and the named dims.

    Raises:
        IndexError: ``dim`` is no batch dim.
    """
    ndim = len(size)
    if not -ndim <= dim < ndim:
        raise IndexError(MSG_DIM.format(dim, ndim))
    if dim < 0:
        dim += ndim
    if keepdim:
        return dim, torch.Size([*size[:dim], 1, *size[dim + 1 :]]), True
    return dim, size[:dim] + size[dim + 1 :], (*range(dim), *range(dim + 1, ndim))


def one_quantile(
    td: CollectionProtocol, q: float, dim: int, keepdim: bool
) -> CollectionProtocol:
    """Compute one quantile along one batch dim: the common case, by torch's method."""
    dim, prefix, names = _one_reduced(td.batch_size, dim, keepdim)
    return _rust.map_leaves(td, "quantile", (q, dim, keepdim), prefix, names)


def _name_of(op: Callable[..., Any]) -> str:
    return getattr(op, "func", op).__name__


def _keep_all_dims(
    td: CollectionProtocol, op: Callable[..., Any], first: torch.Size
) -> Any:
    """Reduce every leaf to one number and keep all dims with size 1."""

    def each(leaf: torch.Tensor) -> Any:
        if is_shared(leaf):
            shared: Any = leaf
            return resized(leaf, torch.Size([1] * len(shared.batch_size)))
        return op(leaf, tuple(range(leaf.dim())), keepdim=True)

    result = _rust.map_leaves(td, each)
    for collection in _rust.containers(result):
        ones = [1] * len(collection._batch_size)
        collection._batch_size = torch.Size(ones)
    if first:
        _prepend_dims(result, first)
    return result


def _prepend_dims(td: CollectionProtocol, first: torch.Size) -> None:
    """Put ``first`` before the batch sizes of a new result and its nested ones."""
    for collection in _rust.containers(td):
        collection._batch_size = torch.Size(first + collection._batch_size)
        names = collection._td_dim_names
        if names is not None:
            collection._td_dim_names = [*[None] * len(first), *names]


def rekeyed(td: Any, key_transform: Callable[[Any], Any]) -> Any:
    """Rename the keys of ``td``; if two entries get the same key, the last one stays.

    Raises:
        ValueError: a tensorclass has no field with a new key.
    """
    if is_tensorclass(td):
        return type(td).from_tensordict(rekeyed(td._tensordict, key_transform))
    if not td._is_dense:
        members = [rekeyed(member, key_transform) for member in td.tensordicts]
        name = td.names[td.stack_dim] if td._has_names() else None
        return td._stack_lazily(members, td.stack_dim, name)
    result = _rust.new(type(td), {}, td._batch_size, td._device, td._td_dim_names)
    for key, value in list(td._entries().items()):
        new_key = key_transform(key)
        if is_branch(value):
            value = rekeyed(value, key_transform)
        _rust.set_entry(result, new_key, value)
    return result


def prod(
    leaf: torch.Tensor,
    dims: Any = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply over several dims; torch multiplies over one dim at a time."""
    if dims is None:
        return torch.prod(leaf, dtype=dtype)
    if isinstance(dims, int):
        return torch.prod(leaf, dims, keepdim=keepdim, dtype=dtype)
    if len(set(dims)) != len(dims):
        msg = f"a dim appears multiple times in the list of dims {dims}"
        raise RuntimeError(msg)
    if not dims:
        # Over no dims: a new tensor of the same dtype as over dims.
        return torch.prod(leaf.unsqueeze(-1), -1, dtype=dtype)
    for dim in sorted(dims, reverse=True):
        leaf = torch.prod(leaf, dim, keepdim=keepdim, dtype=dtype)
    return leaf


def quantile(
    leaf: torch.Tensor,
    dims: Any = None,
    *,
    q: float | torch.Tensor,
    keepdim: bool = False,
    interpolation: str = "linear",
) -> torch.Tensor:
    """Compute quantiles over several dims; torch computes them over one dim."""
    if isinstance(dims, tuple) and len(dims) != 1:
        rest = [dim for dim in range(leaf.dim()) if dim not in dims]
        count = math.prod(leaf.shape[dim] for dim in dims)
        shape = [leaf.shape[dim] for dim in rest]
        flat = leaf.permute(*rest, *dims).reshape([*shape, count])
        result = torch.quantile(flat, q, -1, interpolation=interpolation)
        if keepdim:
            ahead = result.dim() - len(rest)
            for dim in sorted(dims):
                result = result.unsqueeze(dim + ahead)
        return result
    dim = dims[0] if isinstance(dims, tuple) else dims
    if dim is None:
        return torch.quantile(leaf, q, interpolation=interpolation)
    return torch.quantile(leaf, q, dim, keepdim=keepdim, interpolation=interpolation)


_NAMES: dict[Any, str] = {
    prod: "prod",
    torch.logsumexp: "logsumexp",
    **{
        getattr(torch, name): name
        for name in ("sum", "mean", "nansum", "nanmean", "std", "var", "amax", "amin")
    },
}
"""The name of the tensor method for each reduction."""


def _one_dim(td: CollectionProtocol, dim: object, name: str) -> int:
    """Return the single batch dim that an argument names.

    Raises:
        TypeError: the argument names several dims, or none.
        IndexError: the argument is an empty sequence.
    """
    if dim is None or dim is NO_DEFAULT:
        msg = f'{name}() missing 1 required positional arguments: "dim"'
        raise TypeError(msg)
    if isinstance(dim, (tuple, list)):
        if len(dim) != 1:
            error = TypeError if dim else IndexError
            raise error(MSG_ONE_DIM.format(name, dim))
        dim = dim[0]
    return _batch_dims(dim, len(td.batch_size))[0]


_RETURN_TYPES: dict[str, Any] = {
    "max": torch.return_types.max,
    "min": torch.return_types.min,
}


def extremum(
    td: Any,
    name: str,
    dim: Any,
    keepdim: bool,
    reduce: bool | None,
    return_indices: bool,
) -> Any:
    """Compute ``max`` or ``min``."""
    if dim is NO_DEFAULT or dim is None:
        if reduce:
            return getattr(_joined(td, None, name), name)()
        if keepdim:
            msg = f"{name}() takes keepdim only together with a dim."
            raise TypeError(msg)
        size = torch.Size([])
        return _rust.map_leaves(td, name, (), size, None, 0, False, ALL_DIMS)
    if reduce:
        if is_feature(dim):
            results = getattr(_joined(td, "feature", name), name)(-1, keepdim)
        else:
            results = getattr(_joined(td, dim, name), name)(dim, keepdim)
        return results if return_indices else results[0]
    if is_feature(dim):
        raise RuntimeError(MSG_FEATURE.format(name))
    may_be_empty = False
    if return_indices:
        td, may_be_empty = _without_values(td)
    at = dim if type(dim) is int else _one_dim(td, dim, name)
    if keepdim:
        at = _one_dim(td, at, name)
        prefix, names = reduced_shape(td.batch_size, (at,), keepdim)
        args = (at, keepdim)
        results = _rust.split_leaves(td, name, args, [prefix, prefix], names)
    else:
        results = _rust.extrema(td, name, at)
    if not return_indices:
        return results[0]
    if may_be_empty:
        for part in results:
            part._drop_empty()
    return _RETURN_TYPES[name](results)


def cumulative(
    td: Any,
    name: str,
    dim: Any,
    reduce: bool | None,
    return_indices: bool,
) -> Any:
    """Compute ``cummax`` or ``cummin``."""
    if is_feature(dim) and not reduce:
        raise RuntimeError(MSG_FEATURE.format(name))
    if reduce:
        joined = _joined(td, dim, name)
        results = getattr(joined, name)(-1 if is_feature(dim) else dim)
        return results if return_indices else results[0]
    may_be_empty = False
    if return_indices:
        td, may_be_empty = _without_values(td)
    at = dim if type(dim) is int else _one_dim(td, dim, name)
    results = _rust.extrema(td, name, at, True)
    if not return_indices:
        return results[0]
    if may_be_empty:
        for part in results:
            part._drop_empty()
    return getattr(torch.return_types, name)(results)


def truth(td: CollectionProtocol, name: str, dim: int) -> Any:
    """Compute ``all`` or ``any`` along one batch dim, as plain tensordicts.

    Raises:
        RuntimeError: ``dim`` is no batch dim.
    """
    ndim = len(td.batch_size)
    if isinstance(dim, bool) or not -ndim <= dim_number(dim) < ndim:
        raise RuntimeError(MSG_DIM_ALL)
    found = _rust.reduce_dim(td, name, dim)
    if {type(part) for part in _rust.containers(found)} == {td._plain_type}:
        return found
    return _plain(found)


def _plain(td: CollectionProtocol) -> Any:
    """Convert a new result and its nested tensordicts to the plain type."""
    held = td._entries()
    nested = {
        key: _plain(value)
        for key, value in held.items()
        if type(value) is not torch.Tensor and isinstance(value, CollectionProtocol)
    }
    if type(td) is td._plain_type or not td._is_dense:
        if nested and td._is_dense:
            td._tensordict.update(nested)
        return td
    return _rust.new(
        td._plain_type, {**held, **nested}, td._batch_size, td._device, td._td_dim_names
    )


def _without_values(td: TensorCollection) -> tuple[Any, bool]:
    """Return ``td`` without non-tensor entries, and whether it may have empty parts.

    Non-tensor data cannot be reduced. An empty nested tensordict has no entries at its
    deepest level.
    """
    if _rust.is_filled(td):
        return td, False
    if any(collection._is_non_tensor for collection in _rust.containers(td)):
        td = td.filter_non_tensor_data()
    return td, True
