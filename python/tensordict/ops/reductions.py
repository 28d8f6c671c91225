"""Reductions over batch dimensions, feature dimensions or all elements."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import torch

from tensordict import _rust
from tensordict.ops.reducing import (
    MSG_FEATURE,
    cumulative,
    extremum,
    is_feature,
    one_quantile,
    prod,
    quantile,
    reduce_leaves,
    reduce_one,
    reduced_shape,
    rekeyed,
    truth,
)
from tensordict.primitives.common import MSG_OUT_BATCH_SIZE
from tensordict.primitives.errors import MSG_LOCKED, locked_error
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.special import resized

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReductionsOps"]

NO_DIMS = torch.Size([])

Dims = int | tuple[int, ...] | Literal["feature"] | None

MSG_OUT_GRAD = (
    "logsumexp(): functions with out=... arguments don't support automatic "
    "differentiation, but one of the arguments requires grad."
)
MSG_DIM_LOGSUMEXP = (
    "The dimension {} is incompatible with a tensordict with batch_size {}."
)


class ReductionsOps(CollectionProtocol):
    """Reductions.

    All reductions read ``dim`` in the same way, for a batch size ``[*B]`` and leaves of
    shape ``[*B, *F]``:

    - an int or a tuple of ints: these batch dimensions. The result has the other batch
      dimensions with their names (with ``keepdim``, the reduced ones have size 1).
    - not passed, or None: all elements. Each leaf becomes one number, and the batch
    size
      ``[]``.
    - ``"feature"``: the feature dimensions ``[*F]`` of each leaf. The batch size stays.

    With ``reduce=True``, the leaves are concatenated first, and the result is one
    tensor. They are concatenated along ``dim`` (their other dimensions must agree),
    flattened if all elements are reduced, or along the flattened feature dimensions for
    ``dim="feature"``. A negative ``dim`` then counts from the last dimension of the
    leaves, not of the batch size.

    ``key_transform`` renames the entries of the result: it is called with the key of
    each entry at its level and returns the new key, which may be nested.

    Results are unlocked.

    Examples:
        >>> td = TensorDict(a=torch.ones(2, 3, 4), b=torch.ones(2, 3), batch_size=[2, 3])
        >>> td.sum(0)["a"].shape
        torch.Size([3, 4])
        >>> td.sum()["a"]
        tensor(24.)
        >>> td.sum(dim="feature")["a"].shape
        torch.Size([2, 3])
        >>> td.sum(reduce=True)
        tensor(30.)
        >>> td.sum(key_transform=lambda key: key + "_sum")["b_sum"]
        tensor(6.)
    """

    # Sums and moments --------------------------------------------------------------

    @overload
    def sum(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[False] | None = ...,
        key_transform: Callable[[Any], Any] | None = ...,
    ) -> Self: ...
    @overload
    def sum(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[True],
        key_transform: Callable[[Any], Any] | None = ...,
    ) -> torch.Tensor: ...
    def sum(
        self,
        dim: Dims = NO_DEFAULT,
        keepdim: bool = NO_DEFAULT,  # type: ignore[assignment]
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
        key_transform: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Sum the elements.

        Args:
            dim: the dimensions to reduce; see :class:`ReductionsOps`.
            keepdim: keep reduced dimensions with size 1.
            dtype: the dtype to cast leaves to first.
            reduce: reduce all leaves together to one tensor.
            key_transform: called with each key; returns the key in the result.

        Raises:
            IndexError: ``dim`` is no batch dimension.
            ValueError: ``reduce`` is True and there are no leaves.
        """
        options = {} if dtype is None else {"dtype": dtype}
        return reduce_leaves(
            self, torch.sum, options, dim, keepdim, reduce, key_transform
        )

    @overload
    def mean(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[False] | None = ...,
        key_transform: Callable[[Any], Any] | None = ...,
    ) -> Self: ...
    @overload
    def mean(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[True],
        key_transform: Callable[[Any], Any] | None = ...,
    ) -> torch.Tensor: ...
    def mean(
        self,
        dim: Dims = NO_DEFAULT,
        keepdim: bool = NO_DEFAULT,  # type: ignore[assignment]
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
        key_transform: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Compute the mean. Leaves must be of floats, or ``dtype`` must be passed.

        The arguments are the same as in :meth:`sum`.
        """
        options = {} if dtype is None else {"dtype": dtype}
        return reduce_leaves(
            self, torch.mean, options, dim, keepdim, reduce, key_transform
        )

    @overload
    def nansum(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[False] | None = ...,
    ) -> Self: ...
    @overload
    def nansum(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[True],
    ) -> torch.Tensor: ...
    def nansum(
        self,
        dim: Dims = NO_DEFAULT,
        keepdim: bool = NO_DEFAULT,  # type: ignore[assignment]
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
    ) -> Any:
        """Sum the elements that are not NaN. Arguments as in :meth:`sum`."""
        options = {} if dtype is None else {"dtype": dtype}
        return reduce_leaves(self, torch.nansum, options, dim, keepdim, reduce)

    @overload
    def nanmean(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[False] | None = ...,
    ) -> Self: ...
    @overload
    def nanmean(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[True],
    ) -> torch.Tensor: ...
    def nanmean(
        self,
        dim: Dims = NO_DEFAULT,
        keepdim: bool = NO_DEFAULT,  # type: ignore[assignment]
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
    ) -> Any:
        """Compute the mean of elements that are not NaN. Arguments as in :meth:`sum`."""
        options = {} if dtype is None else {"dtype": dtype}
        return reduce_leaves(self, torch.nanmean, options, dim, keepdim, reduce)

    @overload
    def prod(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[False] | None = ...,
    ) -> Self: ...
    @overload
    def prod(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[True],
    ) -> torch.Tensor: ...
    def prod(
        self,
        dim: Dims = NO_DEFAULT,
        keepdim: bool = NO_DEFAULT,  # type: ignore[assignment]
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
    ) -> Any:
        """Multiply the elements. Arguments as in :meth:`sum`."""
        options = {} if dtype is None else {"dtype": dtype}
        return reduce_leaves(self, prod, options, dim, keepdim, reduce, name="prod")

    @overload
    def std(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        correction: int = ...,
        reduce: Literal[False] | None = ...,
        key_transform: Callable[[Any], Any] | None = ...,
    ) -> Self: ...
    @overload
    def std(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        correction: int = ...,
        reduce: Literal[True],
        key_transform: Callable[[Any], Any] | None = ...,
    ) -> torch.Tensor: ...
    def std(
        self,
        dim: Dims = NO_DEFAULT,
        keepdim: bool = NO_DEFAULT,  # type: ignore[assignment]
        *,
        correction: int = 1,
        reduce: bool | None = None,
        key_transform: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Compute the standard deviation.

        Args:
            dim: the dimensions to reduce; see :class:`ReductionsOps`.
            keepdim: keep reduced dimensions with size 1.
            correction: subtracted from the number of values in the divisor.
            reduce: reduce all leaves together to one tensor.
            key_transform: called with each key; returns the key in the result.
        """
        options = {"correction": correction}
        return reduce_leaves(
            self, torch.std, options, dim, keepdim, reduce, key_transform
        )

    @overload
    def var(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        correction: int = ...,
        reduce: Literal[False] | None = ...,
        key_transform: Callable[[Any], Any] | None = ...,
    ) -> Self: ...
    @overload
    def var(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        correction: int = ...,
        reduce: Literal[True],
        key_transform: Callable[[Any], Any] | None = ...,
    ) -> torch.Tensor: ...
    def var(
        self,
        dim: Dims = NO_DEFAULT,
        keepdim: bool = NO_DEFAULT,  # type: ignore[assignment]
        *,
        correction: int = 1,
        reduce: bool | None = None,
        key_transform: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Compute the variance. Arguments as in :meth:`std`."""
        options = {"correction": correction}
        return reduce_leaves(
            self, torch.var, options, dim, keepdim, reduce, key_transform
        )

    @overload
    def quantile(
        self,
        q: float | torch.Tensor,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        interpolation: str = ...,
        reduce: Literal[False] | None = ...,
        key_transform: Callable[[Any], Any] | None = ...,
    ) -> Self: ...
    @overload
    def quantile(
        self,
        q: float | torch.Tensor,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        interpolation: str = ...,
        reduce: Literal[True],
        key_transform: Callable[[Any], Any] | None = ...,
    ) -> torch.Tensor: ...
    def quantile(
        self,
        q: float | torch.Tensor,
        dim: Dims = NO_DEFAULT,
        keepdim: bool = NO_DEFAULT,  # type: ignore[assignment]
        *,
        interpolation: str = "linear",
        reduce: bool | None = None,
        key_transform: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Compute quantiles.

        Args:
            q: a number from 0 to 1, or a tensor of N such numbers. With a tensor, the
                result has a new first batch dimension of size N. (If all elements are
                reduced, only the leaves have it, and the batch size is ``[]``.)
            dim: the dimensions to reduce; see :class:`ReductionsOps`.
            keepdim: keep reduced dimensions with size 1.
            interpolation: the choice between two values, as in :func:`torch.quantile`.
            reduce: reduce all leaves together to one tensor.
            key_transform: called with each key; returns the key in the result.

        Examples:
            >>> td = TensorDict(a=torch.arange(5.0), batch_size=[5])
            >>> td.quantile(0.5, 0)["a"]
            tensor(2.)
            >>> td.quantile(torch.tensor([0.25, 0.75]), 0)["a"]
            tensor([1., 3.])
        """
        is_plain = interpolation == "linear" and not reduce and key_transform is None
        if is_plain and type(q) is float and type(dim) is int:
            return one_quantile(self, q, dim, keepdim is True)
        op = functools.partial(quantile, q=q)
        options = {"interpolation": interpolation}
        first = q.shape if isinstance(q, torch.Tensor) else torch.Size([])
        return reduce_leaves(
            self, op, options, dim, keepdim, reduce, key_transform, "quantile", first
        )

    # Extrema ---------------------------------------------------------------------------

    def max(
        self,
        dim: Any = NO_DEFAULT,
        keepdim: bool = False,
        *,
        reduce: bool | None = None,
        return_indices: bool = True,
    ) -> Any:
        """Return the largest values and their indices.

        Args:
            dim: a batch dimension. Default: reduce each leaf to its largest value.
            keepdim: keep the reduced dimension with size 1.
            reduce: reduce all leaves together.
            return_indices: also return the indices. Only used with ``dim``.

        Returns:
            With ``dim``, a named tuple ``(values, indices)`` of two tensordicts (of two
            tensors if ``reduce`` is True); otherwise the values only.

        Examples:
            >>> td = TensorDict(a=torch.tensor([1.0, 5.0, 3.0]), batch_size=[3])
            >>> td.max(0).indices["a"]
            tensor(1)
            >>> td.max()["a"]
            tensor(5.)
        """
        return extremum(self, "max", dim, keepdim, reduce, return_indices)

    def min(
        self,
        dim: Any = NO_DEFAULT,
        keepdim: bool = False,
        *,
        reduce: bool | None = None,
        return_indices: bool = True,
    ) -> Any:
        """Return the smallest values and their indices. Arguments as in :meth:`max`."""
        return extremum(self, "min", dim, keepdim, reduce, return_indices)

    @overload
    def amax(
        self,
        dim: object = ...,
        keepdim: bool = ...,
        *,
        reduce: Literal[False] | None = ...,
    ) -> Self: ...
    @overload
    def amax(
        self,
        dim: object = ...,
        keepdim: bool = ...,
        *,
        reduce: Literal[True],
    ) -> torch.Tensor: ...
    def amax(
        self,
        dim: Any = NO_DEFAULT,
        keepdim: bool = False,
        *,
        reduce: bool | None = None,
    ) -> Any:
        """Return the largest values.

        Args:
            dim: the batch dimensions. Default: reduce each leaf to its largest value.
            keepdim: keep reduced dimensions with size 1.
            reduce: reduce all leaves together to one tensor.
        """
        if is_feature(dim) and not reduce:
            raise RuntimeError(MSG_FEATURE.format("amax"))
        return reduce_leaves(self, torch.amax, {}, dim, keepdim, reduce)

    @overload
    def amin(
        self,
        dim: object = ...,
        keepdim: bool = ...,
        *,
        reduce: Literal[False] | None = ...,
    ) -> Self: ...
    @overload
    def amin(
        self,
        dim: object = ...,
        keepdim: bool = ...,
        *,
        reduce: Literal[True],
    ) -> torch.Tensor: ...
    def amin(
        self,
        dim: Any = NO_DEFAULT,
        keepdim: bool = False,
        *,
        reduce: bool | None = None,
    ) -> Any:
        """Return the smallest values. Arguments as in :meth:`amax`."""
        if is_feature(dim) and not reduce:
            raise RuntimeError(MSG_FEATURE.format("amin"))
        return reduce_leaves(self, torch.amin, {}, dim, keepdim, reduce)

    def cummax(
        self, dim: int, *, reduce: bool | None = None, return_indices: bool = True
    ) -> Any:
        """Return the cumulative maximum along a batch dimension.

        Args:
            dim: the batch dimension.
            reduce: concatenate the leaves along ``dim`` first.
            return_indices: also return the indices.

        Returns:
            A named tuple ``(values, indices)``, or the values only.
        """
        return cumulative(self, "cummax", dim, reduce, return_indices)

    def cummin(
        self, dim: int, *, reduce: bool | None = None, return_indices: bool = True
    ) -> Any:
        """Return the cumulative minimum along a batch dimension.

        The arguments are the same as in :meth:`cummax`.
        """
        return cumulative(self, "cummin", dim, reduce, return_indices)

    # Booleans
    # --------------------------------------------------------------------------

    @overload
    def all(self, dim: None = None) -> bool: ...
    @overload
    def all(self, dim: int) -> Self: ...
    def all(self, dim: int | None = None) -> Any:
        """Return whether all elements are true (not zero).

        Args:
            dim: a batch dimension, or None to reduce all elements to one bool.

        Returns:
            A bool; with ``dim``, a tensordict of booleans without that dimension.

        Raises:
            RuntimeError: ``dim`` is no batch dimension.

        Examples:
            >>> td = TensorDict(a=torch.tensor([True, False]), batch_size=[2])
            >>> td.all()
            False
            >>> td.any(0)["a"]
            tensor(True)
        """
        if dim is not None:
            return truth(self, "all", dim)
        return _rust.truth(self, "all")

    @overload
    def any(self, dim: None = None) -> bool: ...
    @overload
    def any(self, dim: int) -> Self: ...
    def any(self, dim: int | None = None) -> Any:
        """Return whether any element is true (not zero). Argument as in :meth:`all`."""
        if dim is not None:
            return truth(self, "any", dim)
        return _rust.truth(self, "any")

    # Norms -----------------------------------------------------------------------------

    def norm(
        self,
        *,
        out: Any = None,
        dtype: torch.dtype | None = None,
        key_transform: Callable[[Any], Any] | None = None,
    ) -> Self:
        """Compute the Euclidean norm of each leaf.

        The result is locked if this tensordict is locked and ``key_transform`` is not
        passed.

        Args:
            out: a tensordict to update with the norms; it is returned.
            dtype: the dtype to cast leaves to first.
            key_transform: called with each key; returns the key in the result.

        Raises:
            NotImplementedError: a leaf is of integers, and ``dtype`` was not passed.
            RuntimeError: ``out`` has batch dimensions; the norms have none.

        Examples:
            >>> td = TensorDict(a=torch.tensor([3.0, 4.0]), batch_size=[2])
            >>> td.norm()["a"]
            tensor(5.)
        """
        leaves = _rust.leaves(self)
        values: Any = leaves
        if leaves:
            # torch parses one argument faster than three.
            if dtype is None:
                values = torch._foreach_norm(leaves)
            else:
                values = torch._foreach_norm(leaves, 2, dtype)
        if {*map(type, leaves)} - {torch.Tensor}:
            values = [
                value if (kept := resized(leaf, NO_DIMS)) is None else kept
                for leaf, value in zip(leaves, values, strict=True)
            ]
        lock = key_transform is None
        result = _rust.rebuild_as(self, values, None, NO_DIMS, lock)
        if key_transform is not None:
            result = rekeyed(result, key_transform)
        if out is not None and out.batch_size:
            raise RuntimeError(MSG_LOCKED if out.is_locked else MSG_OUT_BATCH_SIZE)
        return result if out is None else out.update(result)

    def logsumexp(
        self,
        dim: object = None,
        keepdim: bool = False,
        *,
        out: Any = None,
    ) -> Self:
        """Compute the logarithm of the sum of exponentials.

        Args:
            dim: the batch dimensions. Default: all of them, but not the feature
                dimensions.
            keepdim: keep reduced dimensions with size 1.
            out: a tensordict whose leaves are overwritten; missing entries are added.
                It is returned.

        Raises:
            RuntimeError: ``out`` is locked or has another batch size; or a leaf
                requires grad, which ``out`` does not support.
            ValueError: ``dim`` is no batch dimension.
        """
        ndim = len(self.batch_size)
        if type(dim) is int and -ndim <= dim < ndim and out is None:
            if not keepdim:
                return _rust.reduce_dim(self, "logsumexp", dim)
            return reduce_one(self, torch.logsumexp, {}, dim, keepdim=True)
        dims = range(ndim) if dim is None else dim
        if not isinstance(dims, (tuple, list, range)):
            dims = (dims,)
        for each in dims:
            if not -ndim <= each < ndim:
                raise ValueError(MSG_DIM_LOGSUMEXP.format(each, self.batch_size))
        dims = tuple(each % ndim for each in dims)
        prefix, names = reduced_shape(self.batch_size, dims, keepdim)
        if out is not None and torch.is_grad_enabled():
            leaves = [*_rust.leaves(self), *_rust.leaves(out)]
            if any(leaf.requires_grad for leaf in leaves):
                raise RuntimeError(MSG_OUT_GRAD)
        result = _rust.map_leaves(self, "logsumexp", (dims, keepdim), prefix, names)
        if out is None:
            return result
        if out.is_locked:
            raise locked_error(out)
        return out.update(result, inplace=True)
