"""Tests for kinds of values and classes: tensordict, tensorclass, leaf, dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import torch

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from typing import TypeGuard

    from typing_extensions import TypeIs

    from tensordict.containers.collection import TensorCollection

__all__ = [
    "default_is_leaf",
    "holds_values",
    "inside",
    "is_bool",
    "is_branch",
    "is_floating",
    "is_inexact",
    "is_integer",
    "is_leaf_nontensor",
    "is_non_tensor",
    "is_tensor_collection",
    "is_tensorclass",
]


@overload
def is_tensor_collection(datatype: type) -> bool: ...
@overload
def is_tensor_collection(datatype: object) -> TypeIs[TensorCollection]: ...
def is_tensor_collection(datatype: type | Any) -> bool:
    """Return whether a value or a class is a tensordict of any class.

    Examples:
        >>> is_tensor_collection(TensorDict()), is_tensor_collection(torch.zeros(1))
        (True, False)
    """
    if isinstance(datatype, type):
        return issubclass(datatype, CollectionProtocol)
    return isinstance(datatype, CollectionProtocol)


def _is_tensorclass(cls: type) -> bool:
    """Return whether a class is a tensorclass."""
    return bool(getattr(cls, "_is_tensorclass", False))


def is_tensorclass(obj: type | Any) -> bool:
    """Return whether a value or a class is a tensorclass.

    Examples:
        >>> is_tensorclass(TensorDict())
        False
    """
    return _is_tensorclass(obj if isinstance(obj, type) else type(obj))


def is_branch(value: object) -> TypeGuard[CollectionProtocol]:
    """Return whether a value is a tensordict with entries, not non-tensor data."""
    return isinstance(value, CollectionProtocol) and not value._is_non_tensor


def holds_values(value: object) -> TypeGuard[Any]:
    """Return whether a value is non-tensor data."""
    return isinstance(value, CollectionProtocol) and value._is_non_tensor


def inside(value: Any) -> Any:
    """Return the tensordict inside a tensorclass; return other values unchanged."""
    is_one = is_tensorclass(value) and not value._is_non_tensor
    return value._tensordict if is_one else value


def _is_non_tensor(cls: type) -> bool:
    """Return whether a class is one of non-tensor data."""
    return bool(getattr(cls, "_is_non_tensor", False))


def is_non_tensor(data: object) -> bool:
    """Return whether a value is non-tensor data.

    Examples:
        >>> is_non_tensor(TensorDict())
        False
    """
    return _is_non_tensor(type(data))


def default_is_leaf(cls: type) -> bool:
    """Return whether a class is one of leaves: any class but tensordicts.

    Examples:
        >>> default_is_leaf(torch.Tensor), default_is_leaf(TensorDict)
        (True, False)
    """
    return not issubclass(cls, CollectionProtocol)


def is_leaf_nontensor(cls: type) -> bool:
    """Return whether a class is one of leaves, where non-tensor data counts as a leaf.

    Examples:
        >>> is_leaf_nontensor(torch.Tensor), is_leaf_nontensor(TensorDict)
        (True, False)
    """
    if issubclass(cls, CollectionProtocol):
        return _is_non_tensor(cls)
    return issubclass(cls, torch.Tensor)


def is_inexact(*args: Any) -> bool:
    """Return whether the dtype is floating point or complex.

    Raises:
        AttributeError: the value has no single dtype, for example a tensordict of
            several.

    Examples:
        >>> is_inexact(torch.zeros(1)), is_inexact(torch.zeros(1, dtype=torch.int64))
        (True, False)
    """
    dtype = args[-1].dtype
    return bool(dtype.is_floating_point or dtype.is_complex)


def is_floating(*args: Any) -> bool:
    """Return whether the dtype of a tensor or a tensordict is floating point.

    Raises:
        AttributeError: the value has no single dtype, for example a tensordict of
            several.

    Examples:
        >>> is_floating(torch.zeros(1)), is_floating(torch.zeros(1).bool())
        (True, False)
    """
    return bool(args[-1].dtype.is_floating_point)


def is_integer(*args: Any) -> bool:
    """Return whether the dtype is an integer dtype; bool is none.

    Raises:
        AttributeError: the value has no single dtype, for example a tensordict of
            several.

    Examples:
        >>> is_integer(torch.zeros(1).int()), is_integer(torch.zeros(1).bool())
        (True, False)
    """
    dtype = args[-1].dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def is_bool(*args: Any) -> bool:
    """Return whether the dtype of a tensor or a tensordict is bool.

    Raises:
        AttributeError: the value has no single dtype, for example a tensordict of
            several.

    Examples:
        >>> is_bool(torch.zeros(1).bool())
        True
    """
    return bool(args[-1].dtype is torch.bool)


is_tensor_collection.__module__ = "tensordict.base"
default_is_leaf.__module__ = is_leaf_nontensor.__module__ = "tensordict.base"
for _function in (
    is_tensorclass,
    is_non_tensor,
    is_inexact,
    is_floating,
    is_integer,
    is_bool,
):
    _function.__module__ = "tensordict.utils"


def _NESTED_TENSORS_AS_LISTS(val: type) -> bool:
    """Return whether a class is one of leaves; as ``is_leaf`` it enters lazy stacks.

    The members of a lazy stack are then walked one by one, with their numbers as keys.
    """
    return default_is_leaf(val)
