"""Making tensorclasses from dataclasses, and instances from dataclass instances."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tensordict.primitives.checks import is_tensorclass
from tensordict.tensorclass.decorator import tensorclass
from tensordict.tensorclass.fields import declared_again

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["from_dataclass"]

MSG_INPUT = "Expected a obj input, got a {} input instead."


def from_dataclass(
    obj: object,
    *,
    dest_cls: type | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    batch_size: Sequence[int] | None = None,
    frozen: bool = False,
    autocast: bool = False,
    nocast: bool = False,
    inplace: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    device: torch.device | str | int | None = None,
) -> Any:
    """Convert a dataclass to a tensorclass, or an instance to an instance.

    Args:
        obj: a dataclass, or an instance of a dataclass. A tensorclass is returned as it
            is.
        dest_cls: the tensorclass of the instance. Default: a new class with the fields
            of the dataclass, whose name has ``_tc`` appended.
        auto_batch_size: whether the batch size is the leading dims that all fields
            share.
        batch_dims: the largest number of batch dims for ``auto_batch_size``.
        batch_size: the batch size.
        frozen: see :func:`tensorclass`.
        autocast: see :func:`tensorclass`.
        nocast: see :func:`tensorclass`.
        inplace: whether the new class keeps the name and the methods of the dataclass.
        shadow: see :func:`tensorclass`.
        tensor_only: see :func:`tensorclass`.
        device: the device to which all fields are moved.

    Raises:
        TypeError: ``obj`` is neither a dataclass nor an instance of one.

    Examples:
        >>> import dataclasses
        >>> @dataclasses.dataclass
        ... class Point:
        ...     x: torch.Tensor
        >>> point = from_dataclass(Point(torch.ones(2)), auto_batch_size=True)
        >>> type(point).__name__, point.batch_size
        ('Point_tc', torch.Size([2]))
    """
    if not dataclasses.is_dataclass(obj):
        raise TypeError(MSG_INPUT.format(type(obj)))
    options = {
        "frozen": frozen,
        "autocast": autocast,
        "nocast": nocast,
        "shadow": shadow,
        "tensor_only": tensor_only,
    }
    if isinstance(obj, type):
        return obj if is_tensorclass(obj) else _class_of(obj, inplace, options)
    target_class: Any = dest_cls
    if target_class is None:
        target_class = _class_of(type(obj), False, options)
    values = {
        field.name: _plain(getattr(obj, field.name))
        for field in dataclasses.fields(obj)
    }
    if not is_tensorclass(target_class):
        return target_class._from_entries(values, batch_size=batch_size, device=device)
    instance = target_class(**values, batch_size=batch_size, device=device)
    if auto_batch_size and batch_size is None:
        instance.auto_batch_size_(batch_dims)
    return instance


def _class_of(cls: Any, inplace: bool, options: dict[str, bool]) -> Any:
    """Make the tensorclass with the fields of a dataclass."""
    name = cls.__name__ if inplace else f"{cls.__name__}_tc"
    namespace = dict(vars(cls)) if inplace else {"__module__": cls.__module__}
    namespace.pop("__dict__", None)
    namespace.pop("__weakref__", None)
    namespace["__annotations__"] = {
        field.name: field.type for field in dataclasses.fields(cls)
    }
    for field in dataclasses.fields(cls):
        namespace[field.name] = declared_again(field)
    for member in ("__dataclass_fields__", "__dataclass_params__", "__init__"):
        namespace.pop(member, None)
    make: Any = tensorclass
    return make(**options)(type(name, (), namespace))


def _plain(value: object) -> Any:
    """Convert a nested dataclass instance to the dictionary of its fields."""
    if dataclasses.is_dataclass(value) and not (
        isinstance(value, type) or is_tensorclass(value)
    ):
        return dataclasses.asdict(value)
    return value


from_dataclass.__module__ = "tensordict.tensorclass"
