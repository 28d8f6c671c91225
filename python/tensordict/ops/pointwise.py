"""Elementwise functions without an operand: ``exp``, ``abs_``, ``isnan`` and others."""

# The bodies are filled by decorators; see families.py.
# mypy: disable-error-code="empty-body"
# pyright: reportReturnType=false

from __future__ import annotations

from typing import Self

import torch

from tensordict import _rust
from tensordict.ops.arithmetic import ArithmeticOps
from tensordict.ops.comparison import ComparisonOps
from tensordict.ops.families import elementwise, elementwise_inplace, mapping

__all__ = ["PointwiseOps"]


class PointwiseOps(ArithmeticOps, ComparisonOps):
    """Elementwise functions without an operand.

    Each method calls the torch function of the same name on all leaves at once. The
    result has the same structure, batch size, device, names and lock, and new leaves. A
    method whose name ends in ``_`` writes into the leaves' memory instead and returns
    the tensordict itself, locked or not.

    Examples:
        >>> td = TensorDict(a=torch.tensor([1.0, 4.0]), batch_size=[2])
        >>> td.sqrt()["a"]
        tensor([1., 2.])
        >>> td.neg_() is td
        True
        >>> td["a"]
        tensor([-1., -4.])
    """

    @elementwise(torch._foreach_abs)
    def abs(self) -> Self:
        """Return the absolute value of every element, as :func:`torch.abs`."""

    @elementwise_inplace(torch._foreach_abs_)
    def abs_(self) -> Self:
        """Replace every element by its absolute value, in place."""

    @elementwise(torch._foreach_acos)
    def acos(self) -> Self:
        """Return the arccosine of every element, as :func:`torch.acos`."""

    @elementwise_inplace(torch._foreach_acos_)
    def acos_(self) -> Self:
        """Replace every element by its arccosine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_asin)
    def asin(self) -> Self:
        """Return the arcsine of every element, as :func:`torch.asin`."""

    @elementwise_inplace(torch._foreach_asin_)
    def asin_(self) -> Self:
        """Replace every element by its arcsine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_atan)
    def atan(self) -> Self:
        """Return the arctangent of every element, as :func:`torch.atan`."""

    @elementwise_inplace(torch._foreach_atan_)
    def atan_(self) -> Self:
        """Replace every element by its arctangent, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_ceil)
    def ceil(self) -> Self:
        """Round every element up, as :func:`torch.ceil`."""

    @elementwise_inplace(torch._foreach_ceil_)
    def ceil_(self) -> Self:
        """Round every element up, in place."""

    @elementwise(torch._foreach_cos)
    def cos(self) -> Self:
        """Return the cosine of every element, as :func:`torch.cos`."""

    @elementwise_inplace(torch._foreach_cos_)
    def cos_(self) -> Self:
        """Replace every element by its cosine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_cosh)
    def cosh(self) -> Self:
        """Return the hyperbolic cosine of every element, as :func:`torch.cosh`."""

    @elementwise_inplace(torch._foreach_cosh_)
    def cosh_(self) -> Self:
        """Replace every element by its hyperbolic cosine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_erf)
    def erf(self) -> Self:
        """Return the error function of every element, as :func:`torch.erf`."""

    @elementwise_inplace(torch._foreach_erf_)
    def erf_(self) -> Self:
        """Replace every element by its error function, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_erfc)
    def erfc(self) -> Self:
        """Return ``1 - erf(x)`` of every element, as :func:`torch.erfc`."""

    @elementwise_inplace(torch._foreach_erfc_)
    def erfc_(self) -> Self:
        """Replace every element by its complementary error function, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_exp)
    def exp(self) -> Self:
        """Return the exponential of every element, as :func:`torch.exp`."""

    @elementwise_inplace(torch._foreach_exp_)
    def exp_(self) -> Self:
        """Replace every element by its exponential, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_expm1)
    def expm1(self) -> Self:
        """Return ``exp(x) - 1`` of every element, as :func:`torch.expm1`."""

    @elementwise_inplace(torch._foreach_expm1_)
    def expm1_(self) -> Self:
        """Replace every element by ``exp(x) - 1``, exact near zero, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_floor)
    def floor(self) -> Self:
        """Round every element down, as :func:`torch.floor`."""

    @elementwise_inplace(torch._foreach_floor_)
    def floor_(self) -> Self:
        """Round every element down, in place."""

    @elementwise(torch._foreach_frac)
    def frac(self) -> Self:
        """Return the fractional part of every element, as :func:`torch.frac`."""

    @elementwise_inplace(torch._foreach_frac_)
    def frac_(self) -> Self:
        """Replace every element by its fractional part, in place."""

    @elementwise(torch._foreach_lgamma)
    def lgamma(self) -> Self:
        """Return ``log(abs(gamma(x)))`` of every element, as :func:`torch.lgamma`."""

    @elementwise_inplace(torch._foreach_lgamma_)
    def lgamma_(self) -> Self:
        """Replace every element by ``log(abs(gamma(x)))``, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_log)
    def log(self) -> Self:
        """Return the natural logarithm of every element, as :func:`torch.log`."""

    @elementwise_inplace(torch._foreach_log_)
    def log_(self) -> Self:
        """Replace every element by its natural logarithm, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_log10)
    def log10(self) -> Self:
        """Return the logarithm to base 10 of every element, as :func:`torch.log10`."""

    @elementwise_inplace(torch._foreach_log10_)
    def log10_(self) -> Self:
        """Replace every element by the logarithm to base 10, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_log1p)
    def log1p(self) -> Self:
        """Return ``log(1 + x)`` of every element, as :func:`torch.log1p`."""

    @elementwise_inplace(torch._foreach_log1p_)
    def log1p_(self) -> Self:
        """Replace every element by ``log(1 + x)``, exact near zero, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_log2)
    def log2(self) -> Self:
        """Return the logarithm to base 2 of every element, as :func:`torch.log2`."""

    @elementwise_inplace(torch._foreach_log2_)
    def log2_(self) -> Self:
        """Replace every element by the logarithm to base 2, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_neg)
    def neg(self) -> Self:
        """Return the negation of every element, as :func:`torch.neg`."""

    @elementwise_inplace(torch._foreach_neg_)
    def neg_(self) -> Self:
        """Replace every element by its negation, in place."""

    @elementwise(torch._foreach_reciprocal)
    def reciprocal(self) -> Self:
        """Return the reciprocal of every element, as :func:`torch.reciprocal`."""

    @elementwise_inplace(torch._foreach_reciprocal_)
    def reciprocal_(self) -> Self:
        """Replace every element by its reciprocal, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_round)
    def round(self) -> Self:
        """Round every element, halves to even, as :func:`torch.round`."""

    @elementwise_inplace(torch._foreach_round_)
    def round_(self) -> Self:
        """Round every element, halves to even, in place."""

    @elementwise(torch._foreach_sigmoid)
    def sigmoid(self) -> Self:
        """Return the logistic sigmoid of every element, as :func:`torch.sigmoid`."""

    @elementwise_inplace(torch._foreach_sigmoid_)
    def sigmoid_(self) -> Self:
        """Replace every element by its logistic sigmoid, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_sign)
    def sign(self) -> Self:
        """Return the sign of every element (-1, 0 or 1), as :func:`torch.sign`."""

    @elementwise_inplace(torch._foreach_sign_)
    def sign_(self) -> Self:
        """Replace every element by its sign (-1, 0 or 1), in place."""

    @elementwise(torch._foreach_sin)
    def sin(self) -> Self:
        """Return the sine of every element, as :func:`torch.sin`."""

    @elementwise_inplace(torch._foreach_sin_)
    def sin_(self) -> Self:
        """Replace every element by its sine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_sinh)
    def sinh(self) -> Self:
        """Return the hyperbolic sine of every element, as :func:`torch.sinh`."""

    @elementwise_inplace(torch._foreach_sinh_)
    def sinh_(self) -> Self:
        """Replace every element by its hyperbolic sine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_sqrt)
    def sqrt(self) -> Self:
        """Return the square root of every element, as :func:`torch.sqrt`."""

    @elementwise_inplace(torch._foreach_sqrt_)
    def sqrt_(self) -> Self:
        """Replace every element by its square root, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_tan)
    def tan(self) -> Self:
        """Return the tangent of every element, as :func:`torch.tan`."""

    @elementwise_inplace(torch._foreach_tan_)
    def tan_(self) -> Self:
        """Replace every element by its tangent, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_tanh)
    def tanh(self) -> Self:
        """Return the hyperbolic tangent of every element, as :func:`torch.tanh`."""

    @elementwise_inplace(torch._foreach_tanh_)
    def tanh_(self) -> Self:
        """Replace every element by its hyperbolic tangent, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_trunc)
    def trunc(self) -> Self:
        """Round every element towards zero, as :func:`torch.trunc`."""

    @elementwise_inplace(torch._foreach_trunc_)
    def trunc_(self) -> Self:
        """Round every element towards zero, in place."""

    @elementwise(torch._foreach_neg)
    def __neg__(self) -> Self:
        """Return :meth:`neg`."""

    @elementwise(torch._foreach_abs)
    def __abs__(self) -> Self:
        """Return :meth:`abs`."""

    @mapping("__invert__")
    def __invert__(self) -> Self:
        """Invert every bit, or every boolean.

        Raises:
            TypeError: a leaf is neither of integers nor of booleans.
        """

    # Tests of single elements ----------------------------------------------------

    @mapping("isfinite")
    def isfinite(self) -> Self:
        """Return for every element whether it is neither infinite nor NaN."""

    @mapping("isnan")
    def isnan(self) -> Self:
        """Return for every element whether it is NaN."""

    @mapping("isneginf")
    def isneginf(self) -> Self:
        """Return for every element whether it is negative infinity."""

    @mapping("isposinf")
    def isposinf(self) -> Self:
        """Return for every element whether it is positive infinity."""

    @mapping("isreal")
    def isreal(self) -> Self:
        """Return for every element whether it is real (has no imaginary part)."""

    # Along a dim, and zeros --------------------------------------------------------

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> Self:
        """Apply a softmax to every leaf along a batch dimension.

        Args:
            dim: a batch dimension; a negative number counts from the last one.
            dtype: the dtype to cast leaves to first. Default: no cast.

        Raises:
            IndexError: ``dim`` is no batch dimension.
            ValueError: ``dim`` is no number.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2, 4), batch_size=[2])
            >>> td.softmax(0)["a"][0]
            tensor([0.5000, 0.5000, 0.5000, 0.5000])
        """
        ndim = len(self.batch_size)
        if not isinstance(dim, int):
            msg = f"Expected dim of type int, got {type(dim)}."
            raise ValueError(msg)
        if not -ndim <= dim < ndim:
            msg = f"Incompatible dim {dim} for tensordict with shape {self.batch_size}."
            raise IndexError(msg)
        return _rust.map_leaves(self, "softmax", (dim % ndim, dtype))

    @elementwise_inplace(torch._foreach_zero_)
    def zero_(self) -> Self:
        """Fill every leaf with zeros, in place."""
