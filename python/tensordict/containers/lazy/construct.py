"""Making lazy stacks: checks of the members, and :func:`lazy_stack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from tensordict import _rust
from tensordict.containers.lazy.formats import as_nested, as_padded
from tensordict.primitives import classes
from tensordict.primitives.lazy import first_misfit, members_with_more
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.containers.collection import TensorDictBase
    from tensordict.containers.lazy.stack import LazyStackedTensorDict
    from tensordict.tensorclass.base import TensorClass

C = TypeVar("C", bound="TensorClass")

__all__ = [
    "check_members",
    "checked_dim",
    "fill_state",
    "have_own_keys",
    "lazy_stack",
    "merged_batch_size",
    "nested_stacks",
    "stack_size",
]

MSG_NEW_SIZE = (
    "Batch sizes in tensordicts differs: stack has batch_size={}, new_value has "
    "batch_size={}."
)
MSG_MEMBER_TYPE = (
    "Expected all inputs to be TensorDictBase instances but got {} instead."
)
MSG_SIZES = (
    "batch sizes in tensordicts differs, LazyStackedTensorDict cannot be created. Got "
    "td[0].batch_size={} and td[i].batch_size={}. If the length match and you wish to "
    "stack these tensordicts, set strict_shape to False."
)
MSG_DEVICES = "devices differ, got {} and {}"
MSG_STACK_DIM = "Stack dim {} is too big for batch size {}."
MSG_NEGATIVE_DIM = "Couldn't infer stack dim from negative value, got stack_dim={}"
MSG_OUT_SIZE = (
    "out.batch_size and stacked batch size must match, got out.batch_size={} and "
    "batch_size={}"
)


def fill_state(
    stack: Any, members: list[Any], dim: int, size: torch.Size, name: str | None
) -> None:
    """Set the state of a new stack, under the attribute names of tensordict 0.15."""
    stack._is_locked = None
    stack.stack_dim = dim
    stack._batch_size = size
    stack.tensordicts = members
    stack._hook_out = None
    stack._hook_in = None
    if name is not None:
        stack._td_dim_name = name


def checked_dim(members: list[Any], stack_dim: int) -> int:
    """Return the stack dim counted from the front.

    Raises:
        RuntimeError: the dim is out of range, or devices differ.
        TypeError: a member is not a collection.
    """
    check_members(members)
    size = members[0].batch_size
    dim = stack_dim + len(size) + 1 if stack_dim < 0 else stack_dim
    if dim < 0:
        raise RuntimeError(MSG_NEGATIVE_DIM.format(stack_dim))
    if dim > len(size):
        raise RuntimeError(MSG_STACK_DIM.format(dim, torch.Size([*size, len(members)])))
    return dim


def check_members(members: list[Any]) -> None:
    """Raise an error if a member is not a collection, or its device differs."""
    misfit = first_misfit(members)
    if misfit is None:
        return
    for member in members:
        if not isinstance(member, CollectionProtocol):
            # The published package fails earlier for the first member, with this error.
            kind = AttributeError if member is members[0] else TypeError
            raise kind(MSG_MEMBER_TYPE.format(type(member)))
    devices = members[0].device, members[misfit].device
    raise RuntimeError(MSG_DEVICES.format(*devices))


def merged_batch_size(members: list[Any], dim: int) -> torch.Size:
    """Return the batch size of a stack, with -1 for dims in which members differ.

    Raises:
        RuntimeError: the members' numbers of dims differ, or ``dim`` is out of range.
    """
    size = _rust.merged_size(members, dim)
    if size is None:
        first = members[0].batch_size
        for member in members:
            if len(member.batch_size) != len(first):
                raise RuntimeError(MSG_SIZES.format(first, member.batch_size))
        raise RuntimeError(
            MSG_STACK_DIM.format(dim, torch.Size([*first, len(members)]))
        )
    return size


def stack_size(members: list[Any], dim: int, strict: bool) -> torch.Size:
    """Return the batch size of a stack.

    Raises:
        RuntimeError: the members' numbers of dims differ; or ``strict`` is true and
            their batch sizes differ.
    """
    if strict:
        first = members[0].batch_size
        for member in members:
            if member.batch_size != first:
                raise RuntimeError(MSG_SIZES.format(first, member.batch_size))
    return merged_batch_size(members, dim)


def have_own_keys(members: list[Any], leaves_only: bool) -> bool:
    """Return whether some members lack keys or leaves, nested or not, of others."""
    if _have_same_keys(members):
        return False
    first: list[Any] | None = None
    for member in members:
        keys = _rust.walk(member, 0, True, leaves_only)
        if first is None:
            first = keys
        elif keys != first and set(keys) != set(first):
            return True
    return any(member._has_exclusive_keys for member in members if not member._is_dense)


def _have_same_keys(members: list[Any]) -> bool:
    """Return whether all members are dense and have the same keys, nested or not."""
    kinds: set[type[CollectionProtocol]] = set(map(type, members))
    if not all(kind._is_dense for kind in kinds):
        return False
    common = _rust.common_keys(members)
    if members_with_more(members, len(common)):
        return False
    for key in common:
        values = _rust.member_values(members, (key,))
        if values is None:
            return False
        branches = [
            issubclass(kind, CollectionProtocol) and not kind._is_non_tensor
            for kind in set(map(type, values))
        ]
        if any(branches) and not (all(branches) and _have_same_keys(values)):
            return False
    return True


def nested_stacks(
    parts: list[Any], dim: int, shape: tuple[int, ...], names: Sequence[str | None]
) -> Any:
    """Stack the parts along ``dim`` into the dims ``shape``, in nested stacks."""
    if len(shape) == 1:
        return parts[0]._stack_lazily(parts, dim, names[0])
    step = len(parts) // shape[0]
    inner = [
        nested_stacks(parts[start : start + step], dim, shape[1:], names[1:])
        for start in range(0, len(parts), step)
    ]
    return inner[0]._stack_lazily(inner, dim, names[0])


@overload
def lazy_stack(
    input: Sequence[C], dim: int = ..., *, out: C | None = ..., **kwargs: object
) -> C: ...
@overload
def lazy_stack(
    input: Sequence[TensorDictBase],
    dim: int = ...,
    *,
    out: None = ...,
    **kwargs: object,
) -> LazyStackedTensorDict: ...
@overload
def lazy_stack(
    input: Any, dim: int = ..., *, out: Any = ..., **kwargs: object
) -> Any: ...
@classes.provided
def lazy_stack(input: Any, dim: int = 0, *, out: Any = None, **kwargs: Any) -> Any:
    """Stack collections along a new batch dim without copying them.

    Args:
        input: the collections; or tensors, which :func:`torch.stack` stacks.
        dim: the new dim.
        out: a collection to write into, which is returned.
        **kwargs: ``stack_dim_name`` and ``strict_shape``, see
            :class:`LazyStackedTensorDict`. For tensors, the formats of its ``get``.

    Raises:
        RuntimeError: ``input`` is empty, or the batch sizes do not fit.

    Examples:
        >>> members = [TensorDict(a=torch.zeros(n)) for n in (2, 3)]
        >>> stack = lazy_stack(members)
        >>> stack[0] is members[0]
        True
        >>> stack.get_item_shape("a")
        torch.Size([2, -1])
    """
    items = input
    if not len(items):
        msg = "items cannot be empty"
        raise RuntimeError(msg)
    first = items[0]
    if isinstance(first, torch.Tensor):
        return _stack_tensors(list(items), dim, out, kwargs)
    if not isinstance(first, CollectionProtocol):
        raise TypeError(MSG_MEMBER_TYPE.format(type(first)))
    members = list(items)
    if dim < 0:
        # A dim that is still negative counts from the end once more, in `checked_dim`.
        check_members(members)
        dim += first.batch_dims + 1
    at = checked_dim(members, dim)
    size = stack_size(members, at, bool(kwargs.get("strict_shape", False)))
    if out is not None:
        if out.batch_size != size:
            raise RuntimeError(MSG_OUT_SIZE.format(out.batch_size, size))
        from tensordict.containers.lazy.stack import LazyStackedTensorDict

        return out.update(LazyStackedTensorDict._of(members, at), inplace=True)
    name = kwargs.get("stack_dim_name")
    return first._stack_lazily(members, at, name)


MSG_TENSORS = (
    "Failed to stack tensors within a tensordict. To stack tensors of different shapes, "
    "pass as_padded_tensor=True, as_nested_tensor=True or as_list=True. Check the "
    "TensorDict.lazy_stack documentation!"
)


def _stack_tensors(
    values: list[Any], dim: int, out: Any, kwargs: dict[str, Any]
) -> list[Any] | torch.Tensor:
    if kwargs.get("as_list"):
        return values
    if kwargs.get("as_nested_tensor"):
        return as_nested(values, kwargs.get("layout"))
    if kwargs.get("as_padded_tensor"):
        padding = kwargs.get("padding_value", 0)
        return as_padded(values, padding, kwargs.get("padding_side", "right"))
    try:
        return torch.stack(values, dim, out=out)
    except RuntimeError:
        if any(value.shape != values[0].shape for value in values):
            raise RuntimeError(MSG_TENSORS) from None
        raise


lazy_stack.__module__ = "tensordict._td_functions"
