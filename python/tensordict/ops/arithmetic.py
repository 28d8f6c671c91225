"""Arithmetic with an operand: ``add``, ``mul_``, ``clamp``, ``lerp``, the operators."""

# The bodies are filled by decorators; see families.py.
# mypy: disable-error-code="empty-body"
# pyright: reportReturnType=false

from __future__ import annotations

import functools
import operator
from typing import Any, NoReturn, Self

import torch

from tensordict import _rust
from tensordict.ops.families import (
    elementwise_scaled,
    elementwise_scaled_inplace,
    elementwise_with,
    elementwise_with_inplace,
    leafwise,
)
from tensordict.ops.operands import NUMBERS, OF_LEAVES, combine, combine_inplace
from tensordict.primitives.common import refused_first
from tensordict.primitives.errors import absent_key
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["ArithmeticOps"]

MSG_MIXED_BOUNDS = (
    "Mixed tensordict and non-tensordict min/max values are not authorized."
)
MSG_NO_BOUND = "clamp() with min/max=None isn't implemented with specified output."
MSG_OUT_KEYS = (
    "out must have the keys of the result: it lacks {} and has the extra keys {}."
)


def _subtract_from(values: list[torch.Tensor], operand: Any) -> list[torch.Tensor]:
    """Compute ``operand - value`` with the sign of zero that a subtraction gives."""
    if type(operand) is list:
        return list(map(torch.rsub, values, operand))
    if isinstance(operand, torch.Tensor) and not operand.requires_grad:
        # Pass a number, as the foreach functions do: a tensor would promote dtypes.
        operand = operand.item()
    return [torch.rsub(value, operand) for value in values]


def _divide_into(
    values: list[torch.Tensor], operand: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Compute ``operand / value`` in the same two steps as torch."""
    return torch._foreach_mul(torch._foreach_reciprocal(values), operand)


def _interpolate(
    values: list[torch.Tensor], end: object, weight: Any
) -> tuple[torch.Tensor, ...]:
    return torch._foreach_lerp(values, _per_leaf(values, end), weight)


def _interpolate_(values: list[torch.Tensor], end: object, weight: Any) -> Any:
    return torch._foreach_lerp_(values, _per_leaf(values, end), weight)


def _maximum_(values: list[torch.Tensor], operand: torch.Tensor) -> Any:
    return _write_or_copy(
        torch._foreach_maximum, torch._foreach_maximum_, values, operand
    )


def _minimum_(values: list[torch.Tensor], operand: torch.Tensor) -> Any:
    return _write_or_copy(
        torch._foreach_minimum, torch._foreach_minimum_, values, operand
    )


OF_LEAVES.update((_interpolate_, _maximum_, _minimum_))


def _write_or_copy(
    op: Any, op_: Any, values: list[torch.Tensor], operand: object
) -> Any:
    """Call ``op_``; with autograd, copy the results of ``op``: ``op_`` has no grad."""
    given = operand if type(operand) is list else [operand]
    if torch.is_grad_enabled() and any(
        [getattr(each, "requires_grad", False) for each in (*values, *given)]
    ):
        results = op(values, operand)
        for value, result in refused_first(list(zip(values, results, strict=True)), 0):
            value.copy_(result)
        return values
    return op_(values, operand)


def _per_leaf(values: list[torch.Tensor], operand: object) -> list[Any]:
    return operand if type(operand) is list else [operand] * len(values)


class ArithmeticOps(CollectionProtocol):
    """Arithmetic with an operand.

    The operand ``other`` may be

    - a number, or a tensor without dimensions: the same for all leaves;
    - a tensor of shape ``[*B]``, or one that broadcasts with the batch size ``[*B]``:
    it
      broadcasts from the left, over the feature dimensions ``[*F]`` of each leaf;
    - another tensordict: its entries are matched by key, in any order.

    The result has the structure, device, names and lock of this tensordict (if
    ``other`` is a tensor with dimensions, the result is unlocked). dtypes are promoted
    as in torch. If a key is missing from one of the two tensordicts, ``default``
    decides:

    - None, the default: raise a ``KeyError``;
    - ``"intersection"``: drop the entry;
    - a tensor or a number: use it in place of the missing leaf.

    A method whose name ends in ``_`` writes into the leaves' memory and returns the
    tensordict itself. It ignores additional entries of ``other``.

    Examples:
        >>> td = TensorDict(a=torch.ones(2, 3), b=torch.ones(2), batch_size=[2])
        >>> td.add(1)["b"]
        tensor([2., 2.])
        >>> (td * torch.tensor([2.0, 3.0]))["a"]
        tensor([[2., 2., 2.],
                [3., 3., 3.]])
        >>> list(td.mul(td.select("b"), default="intersection").keys())
        ['b']
    """

    # Addition and subtraction ------------------------------------------------------

    @elementwise_scaled(torch._foreach_add, 1)
    def add(
        self, other: object, *, alpha: float | None = None, default: object = None
    ) -> Self:
        """Add ``alpha * other`` to every leaf.

        Args:
            other: a number, a tensor or a tensordict.
            alpha: a factor of ``other``. Default: 1.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.

        Raises:
            KeyError: the keys differ and there is no ``default``.
            RuntimeError: ``other`` does not broadcast with the batch size.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2), batch_size=[2])
            >>> td.add(torch.tensor([1.0, 2.0]), alpha=10)["a"]
            tensor([10., 20.])
        """

    @elementwise_scaled_inplace(torch._foreach_add_, 1)
    def add_(self, other: object, *, alpha: float | None = None) -> Self:
        """Add ``alpha * other`` to every leaf, in place.

        Args:
            other: a number, a tensor or a tensordict.
            alpha: a factor of ``other``. Default: 1.

        Raises:
            KeyError: ``other`` lacks a key.
            RuntimeError: the result does not fit in a leaf's shape or dtype.
        """

    @elementwise_scaled(torch._foreach_sub, -1)
    def sub(
        self, other: object, *, alpha: float | None = None, default: object = None
    ) -> Self:
        """Subtract ``alpha * other`` from every leaf.

        Args:
            other: a number, a tensor or a tensordict.
            alpha: a factor of ``other``. Default: 1.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.

        Raises:
            KeyError: the keys differ and there is no ``default``.
            RuntimeError: ``other`` does not broadcast with the batch size.
        """

    @elementwise_scaled_inplace(torch._foreach_sub_, -1)
    def sub_(self, other: object, alpha: float | None = None) -> Self:
        """Subtract ``alpha * other`` from every leaf, in place.

        Args:
            other: a number, a tensor or a tensordict.
            alpha: a factor of ``other``. Default: 1.

        Raises:
            KeyError: ``other`` lacks a key.
            RuntimeError: the result does not fit in a leaf's shape or dtype.
        """

    def rsub(
        self, other: object, *, alpha: float | None = None, default: object = None
    ) -> Self:
        """Subtract every leaf, times ``alpha``, from ``other``.

        Args:
            other: a number, a tensor or a tensordict.
            alpha: a factor of this tensordict. Default: 1.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.

        Raises:
            KeyError: the keys differ and there is no ``default``.

        Examples:
            >>> td = TensorDict(a=torch.tensor([1.0, 2.0]), batch_size=[2])
            >>> td.rsub(1)["a"]
            tensor([ 0., -1.])
        """
        if alpha is None:
            return self._rsub(other, default=default)

        def op(values: list[torch.Tensor], operand: torch.Tensor) -> list[torch.Tensor]:
            if isinstance(operand, bool):
                operand = int(operand)  # torch cannot subtract from a bool
            return _subtract_from(list(torch._foreach_mul(values, alpha)), operand)

        return elementwise_with(op)(_method_stub)(self, other, default)

    @elementwise_with(_subtract_from)
    def _rsub(self, other: object, *, default: object = None) -> Self:
        """Subtract every leaf from ``other``."""

    # Products ------------------------------------------------------------------------

    @elementwise_with(torch._foreach_mul)
    def mul(self, other: object, *, default: object = None) -> Self:
        """Multiply every leaf by ``other``.

        Args:
            other: a number, a tensor or a tensordict.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.

        Raises:
            KeyError: the keys differ and there is no ``default``.
            RuntimeError: ``other`` does not broadcast with the batch size.
        """

    @elementwise_with_inplace(torch._foreach_mul_)
    def mul_(self, other: object) -> Self:
        """Multiply every leaf by ``other``, in place.

        Raises:
            KeyError: ``other`` lacks a key.
            RuntimeError: the result does not fit in a leaf's shape or dtype.
        """

    @elementwise_with(torch._foreach_div)
    def div(self, other: object, *, default: object = None) -> Self:
        """Divide every leaf by ``other``; integers give floats.

        Args:
            other: a number, a tensor or a tensordict.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.

        Raises:
            KeyError: the keys differ and there is no ``default``.
            RuntimeError: ``other`` does not broadcast with the batch size.
        """

    @elementwise_with_inplace(torch._foreach_div_)
    def div_(self, other: object) -> Self:
        """Divide every leaf by ``other``, in place.

        Raises:
            KeyError: ``other`` lacks a key.
            RuntimeError: the result does not fit in a leaf's shape or dtype.
        """

    @elementwise_with(torch._foreach_pow)
    def pow(self, other: object, *, default: object = None) -> Self:
        """Raise every leaf to the power of ``other``.

        Args:
            other: a number, a tensor or a tensordict.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.

        Raises:
            KeyError: the keys differ and there is no ``default``.
            RuntimeError: an integer leaf meets a negative integer power.
        """

    @elementwise_with_inplace(torch._foreach_pow_)
    def pow_(self, other: object) -> Self:
        """Raise every leaf to the power of ``other``, in place.

        Raises:
            KeyError: ``other`` lacks a key.
            RuntimeError: the result does not fit in a leaf's shape or dtype.
        """

    @leafwise(operator.mod)
    def mod(self, other: object) -> Self:
        """Take the remainder of every leaf by ``other``, with the divisor's sign."""

    # Bounds ----------------------------------------------------------------------------

    @elementwise_with(torch._foreach_maximum)
    def maximum(self, other: object, *, default: object = None) -> Self:
        """Return the larger of every element and ``other``.

        Args:
            other: a number, a tensor or a tensordict.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.
        """

    @elementwise_with_inplace(_maximum_)
    def maximum_(self, other: object) -> Self:
        """Replace every element by the larger of itself and ``other``, in place."""

    @elementwise_with(torch._foreach_minimum)
    def minimum(self, other: object, *, default: object = None) -> Self:
        """Return the smaller of every element and ``other``.

        Args:
            other: a number, a tensor or a tensordict.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.
        """

    @elementwise_with_inplace(_minimum_)
    def minimum_(self, other: object) -> Self:
        """Replace every element by the smaller of itself and ``other``, in place."""

    @elementwise_with(torch._foreach_clamp_min)
    def clamp_min(self, other: object, default: object = None) -> Self:
        """Return the larger of every element and ``other``, as :func:`torch.clamp_min`.

        Args:
            other: a number, a tensor or a tensordict.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.
        """

    @elementwise_with_inplace(torch._foreach_clamp_min_)
    def clamp_min_(self, other: object) -> Self:
        """Replace every element below ``other`` by ``other``, in place."""

    @elementwise_with(torch._foreach_clamp_max)
    def clamp_max(self, other: object, *, default: object = None) -> Self:
        """Return the smaller of every element and ``other``: :func:`torch.clamp_max`.

        Args:
            other: a number, a tensor or a tensordict.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.
        """

    @elementwise_with_inplace(torch._foreach_clamp_max_)
    def clamp_max_(self, other: object) -> Self:
        """Replace every element above ``other`` by ``other``, in place."""

    def clamp(
        self, min: object = None, max: object = None, *, out: object = None
    ) -> Self:
        """Limit every element to the range from ``min`` to ``max``.

        If both bounds are given, the result is unlocked.

        Args:
            min: the lower bound: a number, a tensor, a tensordict or None.
            max: the upper bound, of the same kind.
            out: a tensordict with the same keys; the result is written into its leaves.

        Raises:
            ValueError: one bound is a tensordict and the other is not; or ``out`` is
                passed without a bound.
            KeyError: a bound, or ``out``, lacks a key.

        Examples:
            >>> td = TensorDict(a=torch.tensor([-1.0, 0.5, 3.0]), batch_size=[3])
            >>> td.clamp(0, 1)["a"]
            tensor([0.0000, 0.5000, 1.0000])
        """
        if min is None:
            if max is None and out is not None:
                raise ValueError(MSG_NO_BOUND)
            result = self.clamp_max(max)
        elif max is None:
            result = self.clamp_min(min)
        elif isinstance(min, NUMBERS) and isinstance(max, NUMBERS):
            result = _rust.map_leaves(self, "clamp", (min, max))
        else:
            nested = isinstance(min, CollectionProtocol)
            if nested is not isinstance(max, CollectionProtocol):
                raise ValueError(MSG_MIXED_BOUNDS)
            result = combine(_clamp_each, self, min, max)
            if result.is_locked:
                result.unlock_()
        return result if out is None else _write_into_out(out, result)

    # Three operands ----------------------------------------------------------------------

    def lerp(self, end: object, weight: object) -> Self:
        """Interpolate linearly: ``self + weight * (end - self)``.

        Args:
            end: a tensordict or a tensor.
            weight: a number, a tensor or a tensordict.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2), batch_size=[2])
            >>> td.lerp(td + 1, 0.25)["a"]
            tensor([0.2500, 0.2500])
        """
        if isinstance(weight, NUMBERS) and not isinstance(end, NUMBERS):
            result = _rust.foreach(self, torch._foreach_lerp, (end, weight))
            if result is not None:
                return result
        return combine(_interpolate, self, end, weight)

    def lerp_(self, end: object, weight: object) -> Self:
        """Interpolate linearly, in place. See :meth:`lerp`."""
        return combine_inplace(_interpolate_, self, end, weight)

    def addcmul(self, other1: object, other2: object, *, value: object = 1) -> Self:
        """Add ``value * other1 * other2`` to every leaf.

        Args:
            other1: a tensordict or a tensor of shape ``[*B]``.
            other2: a tensordict or a tensor of shape ``[*B]``.
            value: a factor of the product.
        """
        op: Any = torch._foreach_addcmul
        if not isinstance(value, NUMBERS) or value != 1:
            op = functools.partial(op, value=value)
        result = _rust.foreach(self, op, (other1, other2))
        return combine(op, self, other1, other2) if result is None else result

    def addcmul_(self, other1: object, other2: object, *, value: Any = 1) -> Self:
        """Add ``value * other1 * other2`` to every leaf, in place."""

        def op(values: list[torch.Tensor], first: Any, second: Any) -> Any:
            return torch._foreach_addcmul_(values, first, second, value=value)

        return combine_inplace(op, self, other1, other2)

    def addcdiv(self, other1: object, other2: object, value: object = 1) -> Self:
        """Add ``value * other1 / other2`` to every leaf.

        Args:
            other1: a tensordict or a tensor of shape ``[*B]``.
            other2: a tensordict or a tensor of shape ``[*B]``.
            value: a factor of the quotient.

        Raises:
            RuntimeError: all three operands are integers.
        """
        op: Any = torch._foreach_addcdiv
        if not isinstance(value, NUMBERS) or value != 1:
            op = functools.partial(op, value=value)
        result = _rust.foreach(self, op, (other1, other2))
        return combine(op, self, other1, other2) if result is None else result

    def addcdiv_(self, other1: object, other2: object, *, value: Any = 1) -> Self:
        """Add ``value * other1 / other2`` to every leaf, in place."""

        def op(values: list[torch.Tensor], first: Any, second: Any) -> Any:
            return torch._foreach_addcdiv_(values, first, second, value=value)

        return combine_inplace(op, self, other1, other2)

    # Bits and booleans
    # --------------------------------------------------------------------

    @leafwise(torch.logical_and)
    def logical_and(self, other: object, *, default: object = None) -> Self:
        """Return for every element whether it and ``other`` are both true.

        Args:
            other: a tensor or a tensordict.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.
        """

    @leafwise(torch.bitwise_and)
    def bitwise_and(self, other: object, *, default: object = None) -> Self:
        """Return the bits that are set both in every element and in ``other``.

        Args:
            other: a number, a tensor or a tensordict.
            default: for keys that one of the two lacks: ``"intersection"`` or a value.

        Raises:
            NotImplementedError: a leaf is neither of integers nor of booleans.
        """

    # Operators --------------------------------------------------------------------------

    @elementwise_with(torch._foreach_add)
    def __add__(self, other: object) -> Self:
        """Return :meth:`add`."""

    @elementwise_with(torch._foreach_add)
    def __radd__(self, other: object) -> Self:
        """Return :meth:`add`."""

    @elementwise_with_inplace(torch._foreach_add_)
    def __iadd__(self, other: object) -> Self:
        """Return :meth:`add_`."""

    @elementwise_with(torch._foreach_sub)
    def __sub__(self, other: object) -> Self:
        """Return :meth:`sub`."""

    @elementwise_with(_subtract_from)
    def __rsub__(self, other: object) -> Self:
        """Return :meth:`rsub`."""

    @elementwise_with_inplace(torch._foreach_sub_)
    def __isub__(self, other: object) -> Self:
        """Return :meth:`sub_`."""

    @elementwise_with(torch._foreach_mul)
    def __mul__(self, other: object) -> Self:
        """Return :meth:`mul`."""

    @elementwise_with(torch._foreach_mul)
    def __rmul__(self, other: object) -> Self:
        """Return :meth:`mul`."""

    @elementwise_with_inplace(torch._foreach_mul_)
    def __imul__(self, other: object) -> Self:
        """Return :meth:`mul_`."""

    @elementwise_with(torch._foreach_div)
    def __truediv__(self, other: object) -> Self:
        """Return :meth:`div`."""

    @elementwise_with(_divide_into)
    def __rtruediv__(self, other: object) -> Self:
        """Divide ``other`` by every leaf."""

    @elementwise_with_inplace(torch._foreach_div_)
    def __itruediv__(self, other: object) -> Self:
        """Return :meth:`div_`."""

    @elementwise_with(torch._foreach_pow)
    def __pow__(self, other: object) -> Self:
        """Return :meth:`pow`."""

    def __rpow__(self, other: object) -> NoReturn:
        """Raise an error: the base of a power must be a tensordict."""
        msg = (
            "rpow isn't implemented for tensordict yet. Make sure both elements are "
            "wrapped in a tensordict for this to work."
        )
        raise NotImplementedError(msg)

    @elementwise_with_inplace(torch._foreach_pow_)
    def __ipow__(self, other: object) -> Self:
        """Return :meth:`pow_`."""

    @leafwise(operator.mod)
    def __mod__(self, other: object) -> Self:
        """Return :meth:`mod`."""

    @leafwise(operator.and_)
    def __and__(self, other: object) -> Self:
        """Return :meth:`bitwise_and`."""

    @leafwise(operator.and_)
    def __rand__(self, other: object) -> Self:
        """Return :meth:`bitwise_and`."""


def _method_stub(self: Any, other: object, default: object = None) -> Any:
    """Give a method that is filled on the fly its name and signature."""


def _clamp_each(
    values: list[torch.Tensor], low: object, high: object
) -> list[torch.Tensor]:
    lows, highs = _per_leaf(values, low), _per_leaf(values, high)
    return [
        torch.clamp(value, least, most)
        for value, least, most in zip(values, lows, highs, strict=True)
    ]


def _write_into_out(out: Any, result: CollectionProtocol) -> Any:
    """Write the leaves of ``result`` into the leaves of ``out``.

    Raises:
        KeyError: the two tensordicts have different keys.
    """
    mine, theirs = set(_rust.walk(result, 0, True, True)), set(out.keys(True, True))
    if mine != theirs:
        raise absent_key(MSG_OUT_KEYS.format(mine - theirs or {}, theirs - mine or {}))
    return combine_inplace(_copy_each, out, result)


def _copy_each(values: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    for value, source in zip(values, sources, strict=True):
        value.copy_(source)
