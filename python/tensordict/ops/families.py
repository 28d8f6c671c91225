"""The decorators that fill the uniform methods: a hundred functions, one body each.

Where dozens of methods differ only in the torch function they call, each is written
with its real signature and docstring and an empty body, and a decorator of this file
puts the body in when the class is made. The filled method is a plain function: a call
costs one Python frame.

The slower roads are in :mod:`.operands`: an operand that is another collection or a
tensor, and so has to be brought into line first.
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


def _filled(method: Callable[..., Any], stub: F) -> F:
    """``method`` with the name, signature, annotations and docstring of ``stub``."""
    return functools.update_wrapper(method, stub)  # type: ignore[return-value]


def elementwise(op: ForEach) -> Callable[[F], F]:
    """Fill ``method(self)`` with ``op(leaves)``, a ``torch._foreach_*`` function."""

    def fill(stub: F) -> F:
        def method(self: Any) -> Any:
            return foreach(self, op)

        _rust.call_foreach_natively(method, False)
        return _filled(method, stub)

    return fill


def elementwise_inplace(op: ForEach) -> Callable[[F], F]:
    """Fill ``method_(self)`` with ``op(leaves)``, which writes into the leaves."""

    def fill(stub: F) -> F:
        def method(self: Any) -> Any:
            _rust.foreach_inplace(self, op)
            return self

        return _filled(method, stub)

    return fill


def mapping(op: str | Callable[..., Any]) -> Callable[[F], F]:
    """Fill ``method(self)`` with ``op`` called on each leaf; there is no foreach form."""

    def fill(stub: F) -> F:
        def method(self: Any) -> Any:
            return _rust.map_leaves(self, op, (), None, True, 0, True)

        return _filled(method, stub)

    return fill


def elementwise_with(op: ForEach) -> Callable[[F], F]:
    """Fill ``method(self, other, default=None)`` with ``op(leaves, operand)``.

    ``op`` takes a list of leaves and either a list of as many operands, or one operand
    for all. Names and lock are kept; nested tensordicts that hold nothing are not, but
    where the operand is a tensor with dims. The stub says whether ``default`` is
    keyword-only.
    """

    def fill(stub: F) -> F:
        def method(self: Any, other: object, default: object = None) -> Any:
            result = foreach(self, op, (other,), True)
            return _with(op, self, other, default) if result is None else result

        def by_keyword(self: Any, other: object, *, default: object = None) -> Any:
            result = foreach(self, op, (other,), True)
            return _with(op, self, other, default) if result is None else result

        def plain(self: Any, other: object) -> Any:
            result = foreach(self, op, (other,), True)
            return _with(op, self, other, None) if result is None else result

        for each in (method, by_keyword, plain):
            _rust.call_foreach_natively(each, True)
        if "default" in (stub.__kwdefaults__ or {}):
            return _filled(by_keyword, stub)
        return _filled(method if stub.__defaults__ else plain, stub)

    return fill


def _with(op: ForEach, td: CollectionProtocol, other: object, default: object) -> Any:
    """``op`` with an operand that is not in line with ``td`` as it is."""
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
    """Build ``self + sign * alpha * other``: see :func:`elementwise_with`."""

    def fill(stub: F) -> F:
        def method(
            self: Any, other: object, *, alpha: object = None, default: object = None
        ) -> Any:
            each = op
            if alpha is not None:
                each = _scaled(op, torch._foreach_add, sign, alpha, other)
            result = foreach(self, each, (other,), True)
            return _with(each, self, other, default) if result is None else result

        _rust.call_foreach_natively(method, True)
        return _filled(method, stub)

    return fill


def _scaled(
    op: ForEach, add: ForEach, sign: int, alpha: object, other: object
) -> ForEach:
    """``op`` with its operand, which is made of ``other``, times ``alpha``.

    The foreach forms take ``alpha`` for lists, and the addition also for one tensor.
    """
    if isinstance(other, CollectionProtocol):
        # Its leaves are a list. One call of Python less than below.
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
    """Build the operation of :func:`elementwise_scaled` that writes into the leaves."""

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
        return _filled(by_keyword if keyword else method, stub)

    return fill


def elementwise_with_inplace(op: ForEach) -> Callable[[F], F]:
    """Fill ``method_(self, other)`` with ``op(leaves, operand)``, writing into the leaves."""

    def fill(stub: F) -> F:
        def method(self: Any, other: object) -> Any:
            if _rust.foreach_inplace(self, op, (other,)):
                return self
            return write_combined(op, self, other)

        return _filled(method, stub)

    return fill


def leafwise(op: Callable[..., Any]) -> Callable[[F], F]:
    """Build a method of a function of one leaf: see :func:`elementwise_with`."""

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
"""The casts that are methods: several times as fast as reading a dtype from arguments."""


def cast_of(dtype: torch.dtype) -> tuple[str, tuple[torch.dtype, ...]]:
    """The method that casts a leaf to ``dtype``, and its arguments."""
    return _cast_of(dtype)


def _cast_of(dtype: torch.dtype) -> tuple[str, tuple[torch.dtype, ...]]:
    method = _CASTS.get(dtype)
    return ("to", (dtype,)) if method is None else (method, ())


TRACED = ((cast_of, _cast_of),)
"""Functions for :mod:`tensordict.compile.registration`: a known dtype is not looked
up."""


def cast_leaves(td: CollectionProtocol, dtype: torch.dtype) -> Any:
    """``td`` with its leaves in ``dtype``; those that are stay the same tensors."""
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

        return _filled(method, stub)

    return fill


def comparing(
    op: Callable[..., Any],
    operator: Callable[[Any, Any], Any],
    otherwise: bool,
) -> Callable[[F], F]:
    """Fill ``__op__(self, other)`` with ``op(leaf, operand)``, a comparison.

    The result is a plain collection without names, never locked. ``operator`` is the
    function of :mod:`operator` for two entries of which one is a collection, and
    ``otherwise`` the answer where ``other`` is nothing to compare with.
    """

    def for_each(values: Leaves, operands: Leaves) -> Leaves:
        return list(map(op, values, operands))

    def fill(stub: F) -> F:
        def method(self: Any, other: object) -> Any:
            try:
                result = _rust.compare(self, op, other, self._plain_type)
            except RuntimeError:
                # Special entries that torch takes for different can be compared below.
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

        return _filled(method, stub)

    return fill
