"""Splitting along batch dimensions."""

from __future__ import annotations

import operator
from typing import Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict._rust import split_leaves, unbind
from tensordict.primitives.dim_numbers import batch_dim, from_front
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["SplittingOps"]

MSG_RANGE = "Dimension out of range (expected to be in range of [-{}, {}], but got {})"
MSG_SPLIT_TYPE = "split(): argument 'split_size' must be int or list of ints"
MSG_SPLIT_POSITIVE = "TensorDict.split: split_size must be positive, got {}."
MSG_SPLIT_SUM = (
    "split_with_sizes expects split_sizes to sum exactly to {} (input tensor's size at "
    "dimension {}), but got split_sizes={}"
)
MSG_SPLIT_NEGATIVE = (
    "split_with_sizes expects split_sizes have only non-negative entries, but got "
    "split_sizes={}"
)
MSG_TENSOR_SPLIT = (
    "indices_or_sections must be an integer, a list of integers, or a 1D tensor of "
    "integers"
)


class SplittingOps(CollectionProtocol):
    """Splitting along batch dimensions. All leaves of the parts are views."""

    def split(self, split_size: int | list[int], dim: int = 0) -> tuple[Self, ...]:
        """Split along a batch dimension, as :func:`torch.split`.

        Args:
            split_size: the size of each part except the last, or a list of all sizes.
            dim: the batch dimension.

        Raises:
            IndexError: ``dim`` is no batch dimension.
            RuntimeError: the sum of the sizes is not the size of the dimension.
            TypeError: ``split_size`` is neither a number nor a sequence of numbers.
            ValueError: ``split_size`` is a number that is not positive.

        Examples:
            >>> td = TensorDict({"a": torch.arange(5)}, batch_size=[5])
            >>> [piece["a"].tolist() for piece in td.split(2)]
            [[0, 1], [2, 3], [4]]
            >>> [piece.batch_size for piece in td.split([1, 4])]
            [torch.Size([1]), torch.Size([4])]
        """
        # An attribute costs less to compile than a property.
        batch_size = self._batch_size if self._is_dense else self.batch_size
        at, sizes, prefixes = split_plan(batch_size, split_size, dim)
        results = split_leaves(
            self, "split_with_sizes", (sizes, at), prefixes, True, True, -1
        )
        return self._parts(results) if self._is_locked else tuple(results)

    def _parts(self, results: list[Any]) -> tuple[Any, ...]:
        if self._is_locked and (self._is_memmap or self._is_shared):
            for result in results:
                _rust.keep_storage(self, result)
        return tuple(results)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """Split along a batch dimension into at most ``chunks`` parts of equal size.

        As :func:`torch.chunk`: the last part may be smaller, and there may be fewer
        parts.

        Raises:
            IndexError: ``dim`` is no batch dimension.
            ValueError: ``chunks`` is not positive.

        Examples:
            >>> td = TensorDict({"a": torch.arange(5)}, batch_size=[5])
            >>> [piece["a"].tolist() for piece in td.chunk(2)]
            [[0, 1, 2], [3, 4]]
        """
        if chunks < 1:
            msg = f"chunks must be a strictly positive integer, got {chunks}."
            raise ValueError(msg)
        at = batch_dim(dim, self.batch_size)
        length = self.batch_size[at]
        if not length:
            return self.split([0] * chunks, at)
        return self.split(operator.index(-(length // -chunks)), at)

    def tensor_split(
        self,
        indices_or_sections: int | list[int] | tuple[int, ...] | torch.Tensor,
        dim: int = 0,
    ) -> tuple[Self, ...]:
        """Split along a batch dimension into a number of parts, or at indices.

        As :func:`torch.tensor_split`.

        Args:
            indices_or_sections: the number of parts, whose sizes differ by at most one;
                or the indices at which parts begin.
            dim: the batch dimension.

        Raises:
            IndexError: ``dim`` is no batch dimension.
            ValueError: the number of parts is not positive, or ``indices_or_sections``
                has another type.

        Examples:
            >>> td = TensorDict({"a": torch.arange(5)}, batch_size=[5])
            >>> [piece["a"].tolist() for piece in td.tensor_split([1, 3])]
            [[0], [1, 2], [3, 4]]
        """
        batch_size = self.batch_size
        at = batch_dim(dim, batch_size)
        length = batch_size[at]
        where = indices_or_sections
        if isinstance(where, torch.Tensor):
            where = where.tolist()
        if isinstance(where, int):
            if where <= 0:
                msg = (
                    "tensor_split: number of sections must be greater than 0, but was "
                    f"{where}"
                )
                raise ValueError(msg)
            small, larger = divmod(length, where)
            # A list too large for memory raises here, before any work.
            sizes = [small + 1] * larger + [small] * (where - larger)
            return self.split(sizes, at)
        if not isinstance(where, (list, tuple)):
            raise ValueError(MSG_TENSOR_SPLIT)
        before, after = batch_size[:at], batch_size[at + 1 :]
        prefixes = []
        for start, stop in zip((0, *where), (*where, length), strict=True):
            size = len(range(length)[start:stop])
            prefixes.append(torch.Size([*before, size, *after]))
        return self._parts(
            split_leaves(
                self, "tensor_split", (tuple(where), at), prefixes, True, True, -1
            )
        )

    def unbind(self, dim: int) -> tuple[Self, ...]:
        """Return the rows along a batch dimension, without that dimension.

        As :func:`torch.unbind`. The rows are unlocked, except for rows of memory-mapped or
        shared memory.

        Raises:
            IndexError: ``dim`` is no batch dimension.

        Examples:
            >>> td = TensorDict({"a": torch.arange(3)}, batch_size=[3])
            >>> [piece["a"].item() for piece in td.unbind(0)]
            [0, 1, 2]
        """
        results = unbind(self, dim)
        return self._parts(results) if self._is_locked else tuple(results)

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """Return ``length`` rows from ``start`` on along a batch dimension.

        As :func:`torch.narrow`.

        Raises:
            IndexError: ``dim`` is no batch dimension, or ``start`` is out of range.
            RuntimeError: the rows go beyond the end, or ``length`` is negative.

        Examples:
            >>> td = TensorDict({"a": torch.arange(5)}, batch_size=[5])
            >>> td.narrow(0, 1, 3)["a"].tolist()
            [1, 2, 3]
        """
        batch_size = self.batch_size
        ndim = len(batch_size)
        at = from_front(dim, ndim)
        if at < 0 or at >= ndim:
            raise IndexError(MSG_RANGE.format(ndim, ndim - 1, at))
        dim_size = batch_size[at]
        start = int(start)
        if length < 0:
            msg = "narrow(): length must be non-negative."
            raise RuntimeError(msg)
        if not -dim_size <= start <= dim_size:
            msg = (
                "start out of range (expected to be in range of "
                f"[-{dim_size}, {dim_size}], but got {start})"
            )
            raise IndexError(msg)
        begin = start + dim_size if start < 0 else start
        if begin + length > dim_size:
            msg = f"start ({begin}) + length ({length}) exceeds dimension size ({dim_size})."
            raise RuntimeError(msg)
        sizes = list(batch_size)
        sizes[at] = length
        size = torch.Size(sizes)
        result = _rust.map_leaves(
            self, "narrow", (at, begin, length), size, True, 0, True, -1
        )
        if self._is_locked and (self._is_memmap or self._is_shared):
            _rust.keep_storage(self, result)
        return result


SplitPlan = tuple[int, list[int], list[torch.Size]]


def split_plan(batch_size: torch.Size, split_size: object, dim: int) -> SplitPlan:
    """Return the dim counted from the front, and each part's length and batch size."""
    return _split_plan(batch_size, split_size, dim)


def _split_plan(batch_size: torch.Size, split_size: object, dim: int) -> SplitPlan:
    at = batch_dim(dim, batch_size)
    length = batch_size[at]
    if isinstance(split_size, int):
        if split_size <= 0 and (split_size < 0 or length):
            raise ValueError(MSG_SPLIT_POSITIVE.format(split_size))
        count = length // split_size if split_size else 0
        sizes = [split_size] * count
        if count * split_size < length or not length:
            sizes.append(length - count * split_size)
    else:
        sizes = _split_sizes(split_size, at, length)
    before, after = batch_size[:at], batch_size[at + 1 :]
    return at, sizes, [torch.Size([*before, size, *after]) for size in sizes]


TRACED = ((split_plan, _split_plan),)
"""Functions for :mod:`tensordict.compile.registration`: with known arguments, the plan
is a constant of the compiled code."""


def _split_sizes(split_size: Any, at: int, length: int) -> list[int]:
    try:
        sizes = split_size.tolist() if hasattr(split_size, "tolist") else split_size
        sizes = [int(n) if isinstance(n, np.integer) else n for n in sizes]
    except TypeError:
        raise TypeError(MSG_SPLIT_TYPE) from None
    if not all(isinstance(size, int) for size in sizes):
        raise TypeError(MSG_SPLIT_TYPE)
    if not sizes:
        msg = "Insufficient number of elements in split_size."
        raise RuntimeError(msg)
    if any(size < 0 for size in sizes):
        raise RuntimeError(MSG_SPLIT_NEGATIVE.format(sizes))
    if sum(sizes) != length:
        raise RuntimeError(MSG_SPLIT_SUM.format(length, at, sizes))
    return sizes
