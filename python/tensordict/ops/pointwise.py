"""Functions of one value, elementwise: ``exp``, ``abs_``, ``isnan`` and their kin."""

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
    """Elementwise functions of one value.

    Each calls the torch function of its name on all leaves at once. The result has the
    same structure, batch size, device, names and lock; its leaves are new. A method
    whose name ends in ``_`` writes into the same storage instead and returns the
    collection itself, locked or not.

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
        """Take the absolute value of every element. As :func:`torch.abs`."""

    @elementwise_inplace(torch._foreach_abs_)
    def abs_(self) -> Self:
        """Replace every element by the absolute value, in place."""

    @elementwise(torch._foreach_acos)
    def acos(self) -> Self:
        """Take the arccosine of every element. As :func:`torch.acos`."""

    @elementwise_inplace(torch._foreach_acos_)
    def acos_(self) -> Self:
        """Replace every element by the arccosine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_asin)
    def asin(self) -> Self:
        """Take the arcsine of every element. As :func:`torch.asin`."""

    @elementwise_inplace(torch._foreach_asin_)
    def asin_(self) -> Self:
        """Replace every element by the arcsine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_atan)
    def atan(self) -> Self:
        """Take the arctangent of every element. As :func:`torch.atan`."""

    @elementwise_inplace(torch._foreach_atan_)
    def atan_(self) -> Self:
        """Replace every element by the arctangent, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_ceil)
    def ceil(self) -> Self:
        """Take the smallest whole number that is not less of every element. As :func:`torch.ceil`."""

    @elementwise_inplace(torch._foreach_ceil_)
    def ceil_(self) -> Self:
        """Replace every element by the smallest whole number that is not less, in place."""

    @elementwise(torch._foreach_cos)
    def cos(self) -> Self:
        """Take the cosine of every element. As :func:`torch.cos`."""

    @elementwise_inplace(torch._foreach_cos_)
    def cos_(self) -> Self:
        """Replace every element by the cosine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_cosh)
    def cosh(self) -> Self:
        """Take the hyperbolic cosine of every element. As :func:`torch.cosh`."""

    @elementwise_inplace(torch._foreach_cosh_)
    def cosh_(self) -> Self:
        """Replace every element by the hyperbolic cosine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_erf)
    def erf(self) -> Self:
        """Take the error function of every element. As :func:`torch.erf`."""

    @elementwise_inplace(torch._foreach_erf_)
    def erf_(self) -> Self:
        """Replace every element by the error function, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_erfc)
    def erfc(self) -> Self:
        """Take the complementary error function of every element. As :func:`torch.erfc`."""

    @elementwise_inplace(torch._foreach_erfc_)
    def erfc_(self) -> Self:
        """Replace every element by the complementary error function, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_exp)
    def exp(self) -> Self:
        """Take the exponential of every element. As :func:`torch.exp`."""

    @elementwise_inplace(torch._foreach_exp_)
    def exp_(self) -> Self:
        """Replace every element by the exponential, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_expm1)
    def expm1(self) -> Self:
        """Take the exponential minus one, exact near zero of every element. As :func:`torch.expm1`."""

    @elementwise_inplace(torch._foreach_expm1_)
    def expm1_(self) -> Self:
        """Replace every element by the exponential minus one, exact near zero, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_floor)
    def floor(self) -> Self:
        """Take the largest whole number that is not greater of every element. As :func:`torch.floor`."""

    @elementwise_inplace(torch._foreach_floor_)
    def floor_(self) -> Self:
        """Replace every element by the largest whole number that is not greater, in place."""

    @elementwise(torch._foreach_frac)
    def frac(self) -> Self:
        """Take the fractional part of every element. As :func:`torch.frac`."""

    @elementwise_inplace(torch._foreach_frac_)
    def frac_(self) -> Self:
        """Replace every element by the fractional part, in place."""

    @elementwise(torch._foreach_lgamma)
    def lgamma(self) -> Self:
        """Take the logarithm of the absolute value of the gamma function of every element. As :func:`torch.lgamma`."""

    @elementwise_inplace(torch._foreach_lgamma_)
    def lgamma_(self) -> Self:
        """Replace every element by the logarithm of the absolute value of the gamma function, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_log)
    def log(self) -> Self:
        """Take the natural logarithm of every element. As :func:`torch.log`."""

    @elementwise_inplace(torch._foreach_log_)
    def log_(self) -> Self:
        """Replace every element by the natural logarithm, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_log10)
    def log10(self) -> Self:
        """Take the logarithm to base 10 of every element. As :func:`torch.log10`."""

    @elementwise_inplace(torch._foreach_log10_)
    def log10_(self) -> Self:
        """Replace every element by the logarithm to base 10, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_log1p)
    def log1p(self) -> Self:
        """Take the natural logarithm of one plus the value, exact near zero of every element. As :func:`torch.log1p`."""

    @elementwise_inplace(torch._foreach_log1p_)
    def log1p_(self) -> Self:
        """Replace every element by the natural logarithm of one plus the value, exact near zero, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_log2)
    def log2(self) -> Self:
        """Take the logarithm to base 2 of every element. As :func:`torch.log2`."""

    @elementwise_inplace(torch._foreach_log2_)
    def log2_(self) -> Self:
        """Replace every element by the logarithm to base 2, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_neg)
    def neg(self) -> Self:
        """Take the negation of every element. As :func:`torch.neg`."""

    @elementwise_inplace(torch._foreach_neg_)
    def neg_(self) -> Self:
        """Replace every element by the negation, in place."""

    @elementwise(torch._foreach_reciprocal)
    def reciprocal(self) -> Self:
        """Take the reciprocal of every element. As :func:`torch.reciprocal`."""

    @elementwise_inplace(torch._foreach_reciprocal_)
    def reciprocal_(self) -> Self:
        """Replace every element by the reciprocal, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_round)
    def round(self) -> Self:
        """Take the nearest whole number, halves to even of every element. As :func:`torch.round`."""

    @elementwise_inplace(torch._foreach_round_)
    def round_(self) -> Self:
        """Replace every element by the nearest whole number, halves to even, in place."""

    @elementwise(torch._foreach_sigmoid)
    def sigmoid(self) -> Self:
        """Take the logistic sigmoid of every element. As :func:`torch.sigmoid`."""

    @elementwise_inplace(torch._foreach_sigmoid_)
    def sigmoid_(self) -> Self:
        """Replace every element by the logistic sigmoid, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_sign)
    def sign(self) -> Self:
        """Take the sign, as -1, 0 or 1 of every element. As :func:`torch.sign`."""

    @elementwise_inplace(torch._foreach_sign_)
    def sign_(self) -> Self:
        """Replace every element by the sign, as -1, 0 or 1, in place."""

    @elementwise(torch._foreach_sin)
    def sin(self) -> Self:
        """Take the sine of every element. As :func:`torch.sin`."""

    @elementwise_inplace(torch._foreach_sin_)
    def sin_(self) -> Self:
        """Replace every element by the sine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_sinh)
    def sinh(self) -> Self:
        """Take the hyperbolic sine of every element. As :func:`torch.sinh`."""

    @elementwise_inplace(torch._foreach_sinh_)
    def sinh_(self) -> Self:
        """Replace every element by the hyperbolic sine, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_sqrt)
    def sqrt(self) -> Self:
        """Take the square root of every element. As :func:`torch.sqrt`."""

    @elementwise_inplace(torch._foreach_sqrt_)
    def sqrt_(self) -> Self:
        """Replace every element by the square root, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_tan)
    def tan(self) -> Self:
        """Take the tangent of every element. As :func:`torch.tan`."""

    @elementwise_inplace(torch._foreach_tan_)
    def tan_(self) -> Self:
        """Replace every element by the tangent, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_tanh)
    def tanh(self) -> Self:
        """Take the hyperbolic tangent of every element. As :func:`torch.tanh`."""

    @elementwise_inplace(torch._foreach_tanh_)
    def tanh_(self) -> Self:
        """Replace every element by the hyperbolic tangent, in place.

        Raises:
            RuntimeError: the result does not fit in a leaf's dtype.
        """

    @elementwise(torch._foreach_trunc)
    def trunc(self) -> Self:
        """Take the whole part of every element. As :func:`torch.trunc`."""

    @elementwise_inplace(torch._foreach_trunc_)
    def trunc_(self) -> Self:
        """Replace every element by the whole part, in place."""

    @elementwise(torch._foreach_neg)
    def __neg__(self) -> Self:
        """Return :meth:`neg`."""

    @elementwise(torch._foreach_abs)
    def __abs__(self) -> Self:
        """Return :meth:`abs`."""

    @mapping("__invert__")
    def __invert__(self) -> Self:
        """Invert every bit, or every truth value.

        Raises:
            TypeError: a leaf is neither of integers nor of truth values.
        """

    # Questions of one value ------------------------------------------------------

    @mapping("isfinite")
    def isfinite(self) -> Self:
        """Say for every element whether it is neither infinite nor NaN."""

    @mapping("isnan")
    def isnan(self) -> Self:
        """Say for every element whether it is NaN."""

    @mapping("isneginf")
    def isneginf(self) -> Self:
        """Say for every element whether it is negative infinity."""

    @mapping("isposinf")
    def isposinf(self) -> Self:
        """Say for every element whether it is positive infinity."""

    @mapping("isreal")
    def isreal(self) -> Self:
        """Say for every element whether it is real (has no imaginary part)."""

    # Along a dim, and zeros --------------------------------------------------------

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> Self:
        """Apply a softmax to every leaf along one batch dim.

        Args:
            dim: a batch dim; negative ones count from the last batch dim.
            dtype: the dtype to which leaves are cast first. Default: their own.

        Raises:
            IndexError: ``dim`` is no batch dim.
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
