"""Casts to dtypes, and the dtype of a tensordict."""

# The bodies are filled by decorators; see families.py.
# mypy: disable-error-code="empty-body"
# pyright: reportReturnType=false

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, Self

import torch

from tensordict import _rust
from tensordict.ops.families import casting
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["DtypeOps"]

CastFilter = Callable[[tuple[str, ...], torch.Tensor], builtins.bool]

MSG_QUANTIZED = (
    "TensorDictBase.{0}() is deprecated and will be removed in TensorDict 0.18. Use "
    "td.apply(lambda x: torch.quantize_per_tensor(x, scale, zero_point, torch.{0})) "
    "instead."
)


class DtypeOps(CollectionProtocol):
    """Casts.

    Each method returns a tensordict of the same structure, batch size, device, names
    and lock, whose leaves have the new dtype. A leaf that has the dtype already is
    shared. ``cast_filter`` is called with the path of each leaf, a tuple, and the leaf;
    only leaves for which it returns True are cast.

    Examples:
        >>> td = TensorDict(a=torch.zeros(2), n=TensorDict(b=torch.ones(2)), batch_size=[2])
        >>> td.double().dtype
        torch.float64
        >>> td.double(cast_filter=lambda path, leaf: path == ("a",))["n", "b"].dtype
        torch.float32
    """

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of all leaves, or None if dtypes differ or there are no leaves."""
        dtypes = {leaf.dtype for leaf in _rust.leaves(self)}
        return dtypes.pop() if len(dtypes) == 1 else None

    def is_floating_point(self) -> builtins.bool:
        """Return whether all leaves have a floating-point dtype."""
        return all(leaf.is_floating_point() for leaf in _rust.leaves(self))

    def type(self, dst_type: object, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to a dtype or a tensor type. The result is unlocked.

        Args:
            dst_type: a dtype, or another argument of :meth:`torch.Tensor.type`.
            cast_filter: called with a path and a leaf; True to cast the leaf.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2))
            >>> td.type(torch.int16)["a"].dtype
            torch.int16
        """
        if cast_filter is not None:
            return self._cast_where(dst_type, cast_filter)
        return _rust.map_leaves(self, "type", (dst_type,))

    def _cast_where(self, dtype: Any, cast_filter: CastFilter) -> Self:
        """Cast the leaves that ``cast_filter`` accepts. The result is unlocked."""

        def cast(path: object, leaf: torch.Tensor) -> torch.Tensor:
            key = path if isinstance(path, tuple) else (path,)
            return leaf.type(dtype) if cast_filter(key, leaf) else leaf

        return self._apply_with(
            cast, named=True, nested_keys=True, filter_empty=False, checked=True
        )

    @casting(torch.bool)
    def bool(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to booleans, ``torch.bool``."""

    @casting(torch.float32)
    def float(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 32-bit floats, ``torch.float32``."""

    @casting(torch.float64)
    def double(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 64-bit floats, ``torch.float64``."""

    @casting(torch.float16)
    def half(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 16-bit floats, ``torch.float16``."""

    @casting(torch.bfloat16)
    def bfloat16(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 16-bit floats with the range of 32-bit ones, ``torch.bfloat16``."""

    @casting(torch.float16)
    def float16(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 16-bit floats, ``torch.float16``."""

    @casting(torch.float32)
    def float32(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 32-bit floats, ``torch.float32``."""

    @casting(torch.float64)
    def float64(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 64-bit floats, ``torch.float64``."""

    @casting(torch.int32)
    def int(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 32-bit integers, ``torch.int32``."""

    @casting(torch.int8)
    def int8(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 8-bit integers, ``torch.int8``."""

    @casting(torch.int16)
    def int16(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 16-bit integers, ``torch.int16``."""

    @casting(torch.int32)
    def int32(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 32-bit integers, ``torch.int32``."""

    @casting(torch.int64)
    def int64(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 64-bit integers, ``torch.int64``."""

    @casting(torch.uint8)
    def uint8(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 8-bit unsigned integers, ``torch.uint8``."""

    @casting(torch.uint16)
    def uint16(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 16-bit unsigned integers, ``torch.uint16``."""

    @casting(torch.uint32)
    def uint32(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 32-bit unsigned integers, ``torch.uint32``."""

    @casting(torch.uint64)
    def uint64(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to 64-bit unsigned integers, ``torch.uint64``."""

    @casting(torch.complex32)
    def complex32(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to complex numbers of two 16-bit floats, ``torch.complex32``."""

    @casting(torch.complex64)
    def complex64(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to complex numbers of two 32-bit floats, ``torch.complex64``."""

    @casting(torch.complex128)
    def complex128(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to complex numbers of two 64-bit floats, ``torch.complex128``."""

    # Deprecated ------------------------------------------------------------------

    def qint8(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to ``torch.qint8``. Deprecated: it never worked without a scale."""
        warn_caller(MSG_QUANTIZED.format("qint8"), DeprecationWarning)
        return self.type(torch.qint8, cast_filter=cast_filter)

    def quint8(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to ``torch.quint8``. Deprecated: it never worked without a scale."""
        warn_caller(MSG_QUANTIZED.format("quint8"), DeprecationWarning)
        return self.type(torch.quint8, cast_filter=cast_filter)

    def qint32(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to ``torch.qint32``. Deprecated: it never worked without a scale."""
        warn_caller(MSG_QUANTIZED.format("qint32"), DeprecationWarning)
        return self.type(torch.qint32, cast_filter=cast_filter)

    def quint4x2(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast to ``torch.quint4x2``. Deprecated: it never worked without a scale."""
        warn_caller(MSG_QUANTIZED.format("quint4x2"), DeprecationWarning)
        return self.type(torch.quint4x2, cast_filter=cast_filter)
