"""Sums, means, extrema and the like: over batch dims, over feature dims, over everything."""

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

    All of them read ``dim`` the same way, for a batch size ``[*B]`` and leaves of shape
    ``[*B, *F]``:

    - an int, or a tuple of them: these batch dims. The result has the batch size
      without them (or with 1 in their place, if ``keepdim``), and keeps the names of
      the others.
    - not given, or None: everything. Each leaf becomes one number, the batch size ``[]``.
    - ``"feature"``: the dims ``[*F]`` of each leaf. The batch size stays.

    With ``reduce=True`` the leaves are joined first and the result is one tensor: along
    ``dim`` (so leaves must agree in their other dims), flattened where everything is
    reduced, along the flattened feature dims for ``dim="feature"``. A negative ``dim``
    then counts from the last dim of the leaves, not of the batch.

    ``key_transform`` renames the entries of the result: it is called with each entry's
    own key (not its path) and gives the new one, a nested one if it likes.

    Results are never locked.

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
        """Sum.

        Args:
            dim: which dims; see the class.
            keepdim: whether reduced dims stay, with size 1.
            dtype: the dtype to which leaves are cast first.
            reduce: whether all leaves are reduced together, to one tensor.
            key_transform: gives the key of each entry of the result.

        Raises:
            IndexError: ``dim`` is no batch dim.
            ValueError: ``reduce`` is true and there are no leaves.
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
        """Take the mean. Leaves must be of floats, or ``dtype`` given.

        Parameters as in :meth:`sum`.
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
        """Sum, leaving out NaN. Parameters as in :meth:`sum`."""
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
        """Take the mean of what is not NaN. Parameters as in :meth:`sum`."""
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
        """Multiply. Parameters as in :meth:`sum`."""
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
        """Take the standard deviation.

        Args:
            dim: which dims; see the class.
            keepdim: whether reduced dims stay, with size 1.
            correction: what is subtracted from the number of values in the divisor.
            reduce: whether all leaves are reduced together, to one tensor.
            key_transform: gives the key of each entry of the result.
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
        """Take the variance. Parameters as in :meth:`std`."""
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
        """Take quantiles.

        Args:
            q: a number from 0 to 1, or a tensor of N of them: then the results of a
                reduction along dims have a first batch dim of size N. (Where everything
                is reduced, leaves have it and the batch size is still ``[]``.)
            dim: which dims; see the class.
            keepdim: whether reduced dims stay, with size 1.
            interpolation: how to choose between two values; as :func:`torch.quantile`.
            reduce: whether all leaves are reduced together, to one tensor.
            key_transform: gives the key of each entry of the result.

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
        """Take the greatest values, and where they are.

        Args:
            dim: one batch dim, or nothing for each leaf's greatest value.
            keepdim: whether the reduced dim stays, with size 1.
            reduce: whether all leaves are reduced together.
            return_indices: whether the places are given, too. Only with a ``dim``.

        Returns:
            With a ``dim`` a named tuple ``(values, indices)`` of two collections (of two
            tensors if ``reduce``), else the values alone.

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
        """Take the smallest values, and where they are. Parameters as in :meth:`max`."""
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
        """Take the greatest values.

        Args:
            dim: which batch dims; nothing for each leaf's greatest value.
            keepdim: whether reduced dims stay, with size 1.
            reduce: whether all leaves are reduced together, to one tensor.
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
        """Take the smallest values. Parameters as in :meth:`amax`."""
        if is_feature(dim) and not reduce:
            raise RuntimeError(MSG_FEATURE.format("amin"))
        return reduce_leaves(self, torch.amin, {}, dim, keepdim, reduce)

    def cummax(
        self, dim: int, *, reduce: bool | None = None, return_indices: bool = True
    ) -> Any:
        """Take the greatest value so far, along a batch dim.

        Args:
            dim: one batch dim.
            reduce: whether the leaves are joined along ``dim`` first.
            return_indices: whether the places are given, too.

        Returns:
            A named tuple ``(values, indices)``, or the values alone.
        """
        return cumulative(self, "cummax", dim, reduce, return_indices)

    def cummin(
        self, dim: int, *, reduce: bool | None = None, return_indices: bool = True
    ) -> Any:
        """Take the smallest value so far, along a batch dim.

        Parameters as in :meth:`cummax`.
        """
        return cumulative(self, "cummin", dim, reduce, return_indices)

    # Truth -----------------------------------------------------------------------------

    @overload
    def all(self, dim: None = None) -> bool: ...
    @overload
    def all(self, dim: int) -> Self: ...
    def all(self, dim: int | None = None) -> Any:
        """Say whether all elements are true (not zero).

        Args:
            dim: one batch dim, or None for one answer.

        Returns:
            A bool, or a collection of truth values with the batch size without ``dim``.

        Raises:
            RuntimeError: ``dim`` is no batch dim.

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
        """Say whether any element is true (not zero). Parameters as in :meth:`all`."""
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
        """Take the Euclidean norm of each leaf.

        The result is locked if this tensordict is, and its keys are not changed.

        Args:
            out: a collection that is updated with the norms and returned.
            dtype: the dtype to which leaves are cast first.
            key_transform: gives the key of each entry of the result.

        Raises:
            NotImplementedError: a leaf is of integers, and there is no ``dtype``.
            RuntimeError: ``out`` has batch dims, which the norms have not.

        Examples:
            >>> td = TensorDict(a=torch.tensor([3.0, 4.0]), batch_size=[2])
            >>> td.norm()["a"]
            tensor(5.)
        """
        leaves = _rust.leaves(self)
        values: Any = leaves
        if leaves:
            # Torch reads one argument faster than three.
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
        """Take the logarithm of the summed exponentials.

        Args:
            dim: the batch dims; None for all batch dims (not the feature dims).
            keepdim: whether reduced dims stay, with size 1.
            out: a collection into whose leaves the results are written, as torch does
                it, and which is returned. Those that it lacks are added.

        Raises:
            RuntimeError: ``out`` is locked, its batch size is another, or there are
                gradients, which ``out`` cannot have.
            ValueError: ``dim`` is no batch dim.
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
