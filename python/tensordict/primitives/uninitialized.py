"""Stacks of uninitialized tensors of lazy modules.

A lazy module sets the shapes of its parameters at its first call.
:meth:`TensorDict.from_modules` of several such modules gives one tensor for all of
them. It gets its shape at the first call under :func:`torch.vmap`: the called module
sets the shape of one row, and all rows are made. Each row gets its own random numbers,
even with ``randomness="same"``.
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
    """One uninitialized parameter for several lazy modules."""

    batch_size: torch.Size

    def materialize(
        self, shape: Any, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        """Initialize the parameters of all modules, each of this shape."""
        super().materialize((*self.batch_size, *shape), device, dtype)


class _BatchedUninitializedBuffer(UninitializedBuffer):
    """One uninitialized buffer for several lazy modules."""

    batch_size: torch.Size

    def materialize(
        self, shape: Any, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        """Initialize the buffers of all modules, each of this shape."""
        super().materialize((*self.batch_size, *shape), device, dtype)


class _Row:
    """A row of an uninitialized stack in a mapped function; initializes all rows."""

    whole: Any
    place: tuple[int, int]

    def materialize(
        self, shape: Any, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        if is_lazy(self.whole):
            self.whole.materialize(shape, device, dtype)
        native: Any = torch._C
        row = native._functorch._add_batch_dim(self.whole, *self.place)
        # The module refers to this object, so turn it into the row.
        native._swap_tensor_impl(self, row)
        self.__class__ = self.cls_to_become  # type: ignore[attr-defined]


_DRAWS = {
    getattr(torch.Tensor, name)
    for name in (
        "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_",
        "random_", "uniform_",
    )
}  # fmt: skip
"""The methods that fill a tensor with random numbers."""

_STARTED = {
    torch.Tensor.__getitem__,
    torch.Tensor.detach,
    torch.Tensor.new_empty,
    torch.Tensor.view,
}
"""Methods whose result is another tensor that a module fills to initialize a row."""

_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


class _FreshRow(torch.Tensor):
    """A row that was just made, which its module fills with initial values.

    Each row is filled separately, even if the mapped function draws the same random
    numbers in each call: otherwise all modules would start with the same values.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        row = args[0] if args else kwargs.get("tensor")
        draws = func in _DRAWS or getattr(func, "__module__", "") == nn.init.__name__
        if func == _DATA:
            # torch has no `data` of a mapped tensor.
            func = torch.Tensor.detach
        with torch._C.DisableTorchFunctionSubclass():
            if draws and _is_mapped_alike(row):
                for member in _members(row):
                    if args:
                        func(member, *args[1:], **kwargs)
                    else:
                        func(**{**kwargs, "tensor": member})
                return row
            result = func(*args, **kwargs)
            return result.as_subclass(_FreshRow) if func in _STARTED else result


def _is_mapped_alike(row: object) -> bool:
    """Return whether a tensor is mapped by a function with the same random numbers."""
    native: Any = torch._C._functorch
    interpreter = native.peek_interpreter_stack()
    return bool(
        native.is_batchedtensor(row)
        and native.maybe_get_level(row) == interpreter.level()
        and interpreter.key() == native.TransformType.Vmap
        and native.CVmapInterpreterPtr(interpreter).randomness()
        == native.RandomnessType.Same
    )


def _members(row: object) -> tuple[torch.Tensor, ...]:
    """Return the tensors of all modules, of which a mapped function sees one row."""
    native: Any = torch._C._functorch
    whole: torch.Tensor = native.get_unwrapped(row)
    with torch.no_grad():
        return whole.unbind(native.maybe_get_bdim(row))


class _FreshParameter(_FreshRow, nn.Parameter):
    pass


class _RowParameter(_Row, nn.UninitializedParameter):
    cls_to_become = _FreshParameter


class _RowBuffer(_Row, UninitializedBuffer):
    pass


def stack_uninitialized(tensors: tuple[Any, ...]) -> torch.Tensor:
    """Make one tensor for the uninitialized tensors of several lazy modules.

    Raises:
        RuntimeError: some of the tensors have a shape.
    """
    if not all(map(is_lazy, tensors)):
        raise RuntimeError(MSG_MIXED)
    first = tensors[0]
    # torch's annotation is the constructor of an initialized parameter.
    parameter: Any = _BatchedUninitializedParameter
    like: Any = {"device": first.device, "dtype": first.dtype}
    stacked: Any
    if isinstance(first, nn.Parameter):
        stacked = parameter(first.requires_grad, **like)
    else:
        stacked = _BatchedUninitializedBuffer(**like)
    stacked.batch_size = torch.Size([len(tensors)])
    return stacked


def has_uninitialized(leaves: Iterable[Any]) -> bool:
    """Return whether one of ``leaves`` is an uninitialized tensor of a lazy module."""
    # Dynamo cannot trace torch's own function for this.
    return any(isinstance(leaf, _UNINITIALIZED) for leaf in leaves)


def _add_batch_dim(leaf: torch.Tensor, dim: int, level: int) -> Any:
    """Do functorch's function of this name, also on an uninitialized tensor."""
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
