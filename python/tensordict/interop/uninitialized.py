"""Tensors of several lazy modules, stacked before their shapes are known.

A lazy module sets the shapes of its parameters when it is called first. What
:meth:`TensorDict.from_modules` gives of several such modules has one tensor for all of them,
which gets its shape with the first call under :func:`torch.vmap`: the module that is called
sets the shape of one row, and all rows are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["_add_batch_dim", "has_uninitialized", "stack_uninitialized"]

MSG_MIXED = (
    "Only some of the modules have set the shapes of their parameters: a tensor without a "
    "shape cannot be stacked with others. Call all of the modules first, or none."
)


_UNINITIALIZED = (nn.UninitializedParameter, UninitializedBuffer)


class _BatchedUninitializedParameter(nn.UninitializedParameter):
    """A parameter for each of several lazy modules."""

    batch_size: torch.Size

    def materialize(
        self, shape: Any, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        """Make the parameters of all modules, each of which has this shape."""
        super().materialize((*self.batch_size, *shape), device, dtype)


class _BatchedUninitializedBuffer(UninitializedBuffer):
    """A buffer for each of several lazy modules."""

    batch_size: torch.Size

    def materialize(
        self, shape: Any, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        """Make the buffers of all modules, each of which has this shape."""
        super().materialize((*self.batch_size, *shape), device, dtype)


class _Row:
    """What a mapped function gets of such a tensor: a row, which makes all of them."""

    whole: Any
    place: tuple[int, int]

    def materialize(
        self, shape: Any, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        if is_lazy(self.whole):
            self.whole.materialize(shape, device, dtype)
        native: Any = torch._C
        row = native._functorch._add_batch_dim(self.whole, *self.place)
        # The module holds this object: it becomes the row.
        native._swap_tensor_impl(self, row)
        self.__class__ = self.cls_to_become  # type: ignore[attr-defined]


class _RowParameter(_Row, nn.UninitializedParameter):
    pass


class _RowBuffer(_Row, UninitializedBuffer):
    pass


def stack_uninitialized(tensors: tuple[Any, ...]) -> Any:
    """One tensor for those of several lazy modules.

    Raises:
        RuntimeError: some of the tensors have a shape.
    """
    if not all(map(is_lazy, tensors)):
        raise RuntimeError(MSG_MIXED)
    first = tensors[0]
    # torch is annotated with the constructor of a parameter that has values.
    parameter: Any = _BatchedUninitializedParameter
    like: Any = {"device": first.device, "dtype": first.dtype}
    made: Any
    if isinstance(first, nn.Parameter):
        made = parameter(first.requires_grad, **like)
    else:
        made = _BatchedUninitializedBuffer(**like)
    made.batch_size = torch.Size([len(tensors)])
    return made


def has_uninitialized(leaves: Iterable[Any]) -> bool:
    """Whether one of these is a tensor of a lazy module that has no shape yet."""
    # Dynamo cannot trace torch's own function for it.
    return any(isinstance(leaf, _UNINITIALIZED) for leaf in leaves)


def _add_batch_dim(leaf: Any, dim: int, level: int) -> Any:
    """The function of functorch of this name, also for a tensor that has no shape yet."""
    if not is_lazy(leaf):
        return torch._C._functorch._add_batch_dim(leaf, dim, level)
    parameter: Any = _RowParameter
    like: Any = {"device": leaf.device, "dtype": leaf.dtype}
    row: Any
    if isinstance(leaf, nn.Parameter):
        row = parameter(leaf.requires_grad, **like)
    else:
        row = _RowBuffer(**like)
    row.whole, row.place = leaf, (dim, level)
    return row
