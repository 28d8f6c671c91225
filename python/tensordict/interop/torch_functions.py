"""The torch functions that take tensordicts: a table from functions to handlers.

Most handlers call the method of the same name on their first argument. The others make
new leaves (``zeros_like``), take several tensordicts (``stack``, ``where``, the losses)
or compute gradients (``torch.autograd.grad``).
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from tensordict import _rust
from tensordict.ops.joining import cat_collections, stack_collections
from tensordict.ops.torch_dispatch import NATIVE_FORMS, TD_HANDLED_FUNCTIONS, Handler
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["TD_HANDLED_FUNCTIONS"]

# Functions whose handler calls the method of the same name.
_METHODS = """
abs abs_ acos acos_ add addcdiv addcmul asin asin_ atan atan_ atleast_1d atleast_2d
atleast_3d bitwise_and broadcast_to ceil ceil_ chunk clamp clamp_max clamp_max_
clamp_min clamp_min_ clone cos cos_ cosh cosh_ div erf erf_ erfc erfc_ exp exp_ expm1
expm1_ flatten flip fliplr flipud floor floor_ frac frac_ isfinite isnan isneginf
isposinf isreal lerp lgamma log log10 log10_ log1p log1p_ log2 log2_ log_ logical_and
masked_select maximum mean minimum moveaxis movedim mul narrow neg neg_ permute pow
reciprocal reciprocal_ repeat_interleave reshape roll rot90 round round_ rsub sigmoid
sigmoid_ sign sin sin_ sinh sinh_ split sqrt sqrt_ squeeze std sub sum swapaxes swapdims
tan tan_ tanh tanh_ tensor_split tile transpose trunc trunc_ unbind unflatten unsqueeze
var
"""


def _method_of(cls: type, name: str) -> Callable[..., Any]:
    """Return the method of that name, which a field of the class hides."""
    attributes = (vars(base).get(name) for base in cls.__mro__)
    return next(filter(callable, attributes))


def _by_method(name: str) -> Handler:
    """Return a handler that calls the method ``name`` of the first argument."""

    def handler(td: CollectionProtocol, *args: object, **kwargs: object) -> Any:
        if not isinstance(td, CollectionProtocol):
            msg = (
                f"torch.{name} takes a tensordict as its first argument, "
                f"got {type(td).__name__}."
            )
            raise TypeError(msg)
        method = getattr(td, name)
        if not callable(method):
            # A tensorclass may have a field of that name.
            method = partial(_method_of(type(td), name), td)
        return method(*args, **kwargs)

    handler.__name__ = name
    NATIVE_FORMS[handler] = sys.intern(name)
    return handler


def _handles(function: Callable[..., Any]) -> Callable[[Handler], Handler]:
    """Register the decorated handler for ``function``."""

    def register(handler: Handler) -> Handler:
        TD_HANDLED_FUNCTIONS[function] = handler
        return handler

    return register


for _name in _METHODS.split():
    TD_HANDLED_FUNCTIONS[getattr(torch, _name)] = _by_method(_name)


# Operators between a tensor and a tensordict --------------------------------------

# Eager Python calls the operator of the tensordict. Dynamo calls the method of the tensor,
# on either side, which leads here.
_OPERATORS = {
    "add": ("__add__", "__radd__"),
    "sub": ("__sub__", "__rsub__"),
    "mul": ("__mul__", "__rmul__"),
    "div": ("__truediv__", "__rtruediv__"),
    "__truediv__": ("__truediv__", "__rtruediv__"),
    "pow": ("__pow__", "__rpow__"),
    "remainder": ("__mod__", "__rmod__"),
    "__mod__": ("__mod__", "__rmod__"),
    "eq": ("__eq__", "__eq__"),
    "ne": ("__ne__", "__ne__"),
    "lt": ("__lt__", "__gt__"),
    "le": ("__le__", "__ge__"),
    "gt": ("__gt__", "__lt__"),
    "ge": ("__ge__", "__le__"),
    "__and__": ("__and__", "__rand__"),
    "__or__": ("__or__", "__ror__"),
    "__xor__": ("__xor__", "__rxor__"),
    "bitwise_and": ("__and__", "__rand__"),
    "bitwise_or": ("__or__", "__ror__"),
    "bitwise_xor": ("__xor__", "__rxor__"),
    "__eq__": ("__eq__", "__eq__"),
    "__ne__": ("__ne__", "__ne__"),
}


def _by_operator(direct: str, reflected: str) -> Handler:
    """Return the handler of an operator between a tensor and a tensordict."""

    def handler(left: object, right: object) -> Any:
        if isinstance(left, CollectionProtocol):
            return getattr(left, direct)(right)
        method = getattr(right, reflected, None)
        return NotImplemented if method is None else method(left)

    handler.__name__ = direct
    return handler


for _name, _pair in _OPERATORS.items():
    TD_HANDLED_FUNCTIONS[getattr(torch.Tensor, _name)] = _by_operator(*_pair)


# New leaves of the same shape ----------------------------------------------------


def _new_leaves(
    function: Callable[..., Any], td: CollectionProtocol, kwargs: dict[str, Any]
) -> Any:
    """Map ``function`` over the leaves.

    If ``kwargs`` has a device, the result has that device.
    """
    if kwargs:
        function = partial(function, **kwargs)
    device = kwargs.get("device")
    if device is None:
        return _rust.map_leaves(td, function, (), None, True, 0, True)
    result = _rust.map_leaves(td, function)
    for collection in _rust.containers(result):
        collection._device = torch.device(device)
    if td.is_locked:
        result.lock_()
    return result


def _like(function: Callable[..., Any]) -> None:
    """Register a handler for a ``*_like`` function of torch."""

    def handler(td: CollectionProtocol, **kwargs: object) -> CollectionProtocol:
        if kwargs:
            return _new_leaves(function, td, kwargs)
        return _rust.map_leaves(td, function, (), None, True, 0, True)

    handler.__name__ = function.__name__
    TD_HANDLED_FUNCTIONS[function] = handler
    NATIVE_FORMS[handler] = "like"


for _function in (
    torch.zeros_like,
    torch.ones_like,
    torch.empty_like,
    torch.rand_like,
    torch.randn_like,
):
    _like(_function)


def _filled(leaf: torch.Tensor, fill_value: Any, **kwargs: Any) -> torch.Tensor:
    return torch.full_like(leaf, fill_value, **kwargs)


@_handles(torch.full_like)
def _full_like(
    td: CollectionProtocol, fill_value: object, **kwargs: object
) -> CollectionProtocol:
    if kwargs:
        return _new_leaves(partial(_filled, fill_value=fill_value), td, kwargs)
    return _rust.map_leaves(td, torch.full_like, (fill_value,), None, True, 0, True)


# Several tensordicts -----------------------------------------------------------------


TD_HANDLED_FUNCTIONS[torch.stack] = stack_collections
TD_HANDLED_FUNCTIONS[torch.cat] = cat_collections
NATIVE_FORMS.update({stack_collections: "stack", cat_collections: "cat"})


@_handles(torch.gather)
def _gather(
    input: Any,
    dim: int,
    index: torch.Tensor,
    *,
    sparse_grad: bool = False,
    out: Any = None,
) -> Any:
    if sparse_grad:
        msg = "sparse_grad=True is not supported by torch.gather of a tensordict."
        raise NotImplementedError(msg)
    return input.gather(dim, index, out=out)


@_handles(torch.where)
def _where(
    condition: torch.Tensor,
    input: torch.Tensor,
    other: CollectionProtocol,
    *,
    out: object = None,
) -> Any:
    if isinstance(input, CollectionProtocol):
        return input.where(condition, other, out=out)
    return other.where(~condition, input, out=out)


NATIVE_FORMS[_where] = "where"


def _columns(td: CollectionProtocol) -> Iterator[tuple[str, ...]]:
    """Yield the keys of entries that are non-tensor data with one value per element."""
    for key, entry in td._entries().items():
        value: Any = entry
        if not isinstance(entry, CollectionProtocol):
            continue
        if isinstance(value, CollectionProtocol._non_tensor_stack_type):
            yield (key,)
            continue
        nested_keys = list(_columns(value))
        if nested_keys and sum(len(path) == 1 for path in nested_keys) == len(
            value._entries()
        ):
            yield (key,)
        else:
            yield from ((key, *rest) for rest in nested_keys)


def _loss(function: Callable[..., Any]) -> None:
    """Register a loss of two tensordicts: one value per leaf, matched by key."""

    def handler(
        input: torch.Tensor,
        target: CollectionProtocol,
        *args: object,
        reduction: str = "mean",
        **kwargs: object,
    ) -> Any:
        if not isinstance(input, CollectionProtocol) or not isinstance(
            target, CollectionProtocol
        ):
            msg = (
                f"{function.__name__} takes two tensordicts, got "
                f"{type(input).__name__} and {type(target).__name__}."
            )
            raise TypeError(msg)
        is_elementwise = reduction == "none"

        def loss(leaf: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return function(leaf, other, *args, reduction=reduction, **kwargs)

        if is_elementwise:
            return input._fast_apply(loss, target)
        if input._is_dense:
            # A loss without batch dims has no place for values per element.
            columns = list(_columns(input))
            if columns:
                collection: Any = input
                input = collection.exclude(*columns)
                if not input._entries():
                    return None
        return input._fast_apply(loss, target, batch_size=torch.Size([]))

    handler.__name__ = function.__name__
    TD_HANDLED_FUNCTIONS[function] = handler


for _loss_function in (
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
):
    _loss(_loss_function)


# Gradients ---------------------------------------------------------------------------


def _only(value: object, role: str) -> CollectionProtocol:
    """Return the single tensordict that ``value`` is or contains."""
    if isinstance(value, (tuple, list)):
        if len(value) != 1:
            msg = f"torch.autograd.grad for TensorDict only supports a single {role}"
            raise ValueError(msg)
        value = value[0]
    if not isinstance(value, CollectionProtocol):
        msg = (
            f"torch.autograd.grad for TensorDict only supports TensorDictBase as {role}"
        )
        raise ValueError(msg)
    return value


@_handles(torch.autograd.grad)
def _grad(outputs: Any, inputs: Any, grad_outputs: Any = None, **kwargs: Any) -> Any:
    outputs = _only(outputs, "output")
    inputs = _only(inputs, "input")
    if grad_outputs is not None:
        grad_outputs = _rust.leaves(_only(grad_outputs, "grad_output"))
    gradients = torch.autograd.grad(
        _rust.leaves(outputs), _rust.leaves(inputs), grad_outputs, **kwargs
    )
    result = _rust.rebuild(inputs, list(gradients))
    for collection in _rust.containers(result):
        for key, value in list(collection._entries().items()):
            if value is None:  # with allow_unused: the input is not in the graph
                collection._del_entry(key)
    if inputs.is_locked:
        result.lock_()
    return result
