"""Decorators that fill uniform methods.

Dozens of methods differ only in the torch function that they call. Each is written with
its signature and docstring and an empty body. A decorator of this module replaces the
body when the class is defined. The filled method is a plain function, so that a call
costs one Python frame.

:mod:`.operands` contains the slower paths, for an operand that is another tensordict or
a tensor and does not match the leaves yet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from tensordict import _rust
from tensordict._rust import foreach
from tensordict.ops.operands import (
    ForEach,
    Leaves,
    combine_inplace,
    compare_collections,
    is_number,
    one_for_all,
    with_collection,
    with_tensor,
    write_combined,
)
from tensordict.primitives.errors import not_an_operand
from tensordict.primitives.protocol import CollectionProtocol, as_stack
from tensordict.primitives.special import kind_of

__all__ = [
    "casting",
    "comparing",
    "elementwise",
    "elementwise_inplace",
    "elementwise_scaled",
    "elementwise_scaled_inplace",
    "elementwise_with",
    "elementwise_with_inplace",
    "leafwise",
    "mapping",
]

F = TypeVar("F", bound=Callable[..., Any])


def _with_metadata_of(method: Callable[..., Any], stub: F) -> F:
    """Give ``method`` the name, signature, annotations and docstring of ``stub``."""
    return functools.update_wrapper(method, stub)  # type: ignore[return-value]


def elementwise(op: ForEach) -> Callable[[F], F]:
    """Fill ``method(self)`` with ``op(leaves)``, a ``torch._foreach_*`` function."""

    def fill(stub: F) -> F:
        def method(self: Any) -> Any:
            return foreach(self, op)

        _rust.call_foreach_natively(method, False)
        return _with_metadata_of(method, stub)

    return fill


def elementwise_inplace(op: ForEach) -> Callable[[F], F]:
    """Fill ``method_(self)`` with ``op(leaves)``, which writes into the leaves."""

    def fill(stub: F) -> F:
        def method(self: Any) -> Any:
            _rust.foreach_inplace(self, op)
            return self

        return _with_metadata_of(method, stub)

    return fill


def mapping(op: str | Callable[..., Any]) -> Callable[[F], F]:
    """Fill ``method(self)`` with a call of ``op`` on each leaf."""

    def fill(stub: F) -> F:
        def method(self: Any) -> Any:
            return _rust.map_leaves(self, op, (), None, True, 0, True)

        return _with_metadata_of(method, stub)

    return fill


def elementwise_with(op: ForEach) -> Callable[[F], F]:
    """Fill ``method(self, other, default=None)`` with ``op(leaves, operand)``.

    ``op`` takes a list of leaves, and either a list of operands of the same length or
    one operand for all leaves. Names and lock are kept. Nested tensordicts without
    entries are dropped, unless the operand is a tensor with dims. The stub decides
    whether ``default`` is keyword-only.
    """

    def fill(stub: F) -> F:
        def method(self: Any, other: object, default: object = None) -> Any:
            result = foreach(self, op, (other,), True)
            return _combine(op, self, other, default) if result is None else result

        def by_keyword(self: Any, other: object, *, default: object = None) -> Any:
            result = foreach(self, op, (other,), True)
            return _combine(op, self, other, default) if result is None else result

        def plain(self: Any, other: object) -> Any:
            result = foreach(self, op, (other,), True)
            return _combine(op, self, other, None) if result is None else result

        for each in (method, by_keyword, plain):
            _rust.call_foreach_natively(each, True)
        if "default" in (stub.__kwdefaults__ or {}):
            return _with_metadata_of(by_keyword, stub)
        return _with_metadata_of(method if stub.__defaults__ else plain, stub)

    return fill


def _combine(
    op: ForEach, td: CollectionProtocol, other: object, default: object
) -> Any:
    """Compute ``op`` with an operand that does not match the leaves of ``td`` yet."""
    if isinstance(other, CollectionProtocol):
        return with_collection(op, td, other, default)
    if isinstance(other, torch.Tensor) and other.dim():
        return with_tensor(op, td, other)
    values = _rust.leaves(td)
    if values:
        try:
            values = op(values, one_for_all(other, values))
        except TypeError as error:
            raise not_an_operand(op, td, (other,), error) from None
    return _rust.rebuild(td, values, True, bool(values), bool(values))


def elementwise_scaled(op: ForEach, sign: int) -> Callable[[F], F]:
    """Fill a method with ``self + sign * alpha * other``."""

    def fill(stub: F) -> F:
        def method(
            self: Any, other: object, *, alpha: object = None, default: object = None
        ) -> Any:
            each = op
            if alpha is not None:
                each = _scaled(op, torch._foreach_add, sign, alpha, other)
            result = foreach(self, each, (other,), True)
            return _combine(each, self, other, default) if result is None else result

        _rust.call_foreach_natively(method, True)
        return _with_metadata_of(method, stub)

    return fill


def _scaled(
    op: ForEach, add: ForEach, sign: int, alpha: object, other: object
) -> ForEach:
    """Return ``op`` with its operand, which is made of ``other``, times ``alpha``.

    Only the forms for lists, and the addition of one tensor, take ``alpha``.
    """
    if isinstance(other, CollectionProtocol):
        # Its leaves are a list, so `partial` is enough and saves a Python call.
        return functools.partial(op, alpha=alpha)

    def scaled(values: Leaves, operand: Any) -> Any:
        if type(operand) is list:
            return op(values, operand, alpha=alpha)
        if isinstance(operand, torch.Tensor) and sign > 0:
            return add(values, operand, alpha=alpha)
        if isinstance(operand, torch.Tensor):
            return op(values, [operand] * len(values), alpha=alpha)
        return op(values, operand * alpha)

    return scaled


def elementwise_scaled_inplace(op: ForEach, sign: int) -> Callable[[F], F]:
    """Fill an in-place method with the sum of :func:`elementwise_scaled`."""

    def fill(stub: F) -> F:
        def method(self: Any, other: object, alpha: object = None) -> Any:
            if alpha is None and _rust.foreach_inplace(self, op, (other,)):
                return self
            each = op
            if alpha is not None:
                each = _scaled(op, torch._foreach_add_, sign, alpha, other)
            return combine_inplace(each, self, other)

        def by_keyword(self: Any, other: object, *, alpha: object = None) -> Any:
            if alpha is None and _rust.foreach_inplace(self, op, (other,)):
                return self
            return method(self, other, alpha)

        keyword = "alpha" in (stub.__kwdefaults__ or {})
        return _with_metadata_of(by_keyword if keyword else method, stub)

    return fill


def elementwise_with_inplace(op: ForEach) -> Callable[[F], F]:
    """Fill ``method_(self, other)`` with ``op(leaves, operand)``, in place."""

    def fill(stub: F) -> F:
        def method(self: Any, other: object) -> Any:
            if _rust.foreach_inplace(self, op, (other,)):
                return self
            return write_combined(op, self, other)

        return _with_metadata_of(method, stub)

    return fill


def leafwise(op: Callable[..., Any]) -> Callable[[F], F]:
    """Fill a method with a function of one leaf: see :func:`elementwise_with`."""

    def for_each(values: Leaves, operand: object) -> Leaves:
        if type(operand) is list and len(operand) == len(values):
            return list(map(op, values, operand))
        return [op(value, operand) for value in values]

    return elementwise_with(for_each)


_CASTS = {
    torch.bool: "bool",
    torch.float16: "half",
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bfloat16",
    torch.int8: "char",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long",
    torch.uint8: "byte",
    torch.complex64: "cfloat",
    torch.complex128: "cdouble",
}
"""Casts that are methods of tensors: several times faster than passing a dtype."""


def cast_of(dtype: torch.dtype) -> tuple[str, tuple[torch.dtype, ...]]:
    """Return the method name and the arguments that cast a leaf to ``dtype``."""
    return _cast_of(dtype)


def _cast_of(dtype: torch.dtype) -> tuple[str, tuple[torch.dtype, ...]]:
    method = _CASTS.get(dtype)
    return ("to", (dtype,)) if method is None else (method, ())


TRACED = ((cast_of, _cast_of),)
"""Functions for :mod:`tensordict.compile.registration`: for a known dtype, the lookup
is a constant of the compiled code."""


def cast_leaves(td: CollectionProtocol, dtype: torch.dtype) -> CollectionProtocol:
    """Cast the leaves of ``td``; leaves that have the dtype are shared."""
    return _rust.map_leaves(td, *cast_of(dtype), None, True, 0, True)


def casting(dtype: torch.dtype) -> Callable[[F], F]:
    """Fill ``method(self, *, cast_filter=None)`` with a cast of all leaves."""
    method_name, args = _cast_of(dtype)

    def fill(stub: F) -> F:
        def method(self: Any, *, cast_filter: object = None) -> Any:
            if cast_filter is not None:
                result = self._cast_where(dtype, cast_filter)
                if self.is_locked:
                    _rust.lock_tree(result)
                return result
            return _rust.map_leaves(self, method_name, args, None, True, 0, True)

        return _with_metadata_of(method, stub)

    return fill


def comparing(
    op: Callable[..., Any],
    operator: Callable[[Any, Any], Any],
    otherwise: bool,
) -> Callable[[F], F]:
    """Fill ``__op__(self, other)`` with ``op(leaf, operand)``, a comparison.

    The result is a plain, unlocked tensordict without names. ``operator`` is the
    function of :mod:`operator` for two entries if one is a tensordict. ``otherwise`` is
    the result if ``other`` cannot be compared.
    """

    def for_each(values: Leaves, operands: Leaves) -> Leaves:
        return list(map(op, values, operands))

    def fill(stub: F) -> F:
        def method(self: Any, other: object) -> Any:
            try:
                result = _rust.compare(self, op, other, self._plain_type)
            except RuntimeError:
                # Special entries that torch cannot compare are compared below.
                if not any(map(kind_of, _rust.leaves(self))):
                    raise
                result = None
            if result is not None:
                return result
            if isinstance(other, CollectionProtocol):
                return compare_collections(op, operator, self, other)
            if isinstance(other, torch.Tensor):
                if other.dim():
                    return with_tensor(for_each, self, other)
            elif isinstance(other, dict):
                if as_stack(self) is None:
                    other = self.from_dict_instance(other, batch_size=[])
                else:
                    other = self._plain_type(other, batch_size=self.batch_size)
                return compare_collections(op, operator, self, other)
            elif not is_number(other):
                return self._incomparable(stub.__name__, other, otherwise)
            values = [op(value, other) for value in _rust.leaves(self)]
            return _rust.rebuild_as(self, values, self._plain_type)

        return _with_metadata_of(method, stub)

    return fill
