"""Reading and writing of the fields of tensorclasses, and construction of instances.

A tensorclass keeps its fields in one tensordict, its ``_tensordict``. These primitives
read and write attributes and construct instances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import has_torch_function_unary as is_special

from tensordict.primitives.common import as_size
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.set import set_entry
from tensordict.primitives.tree import new

if TYPE_CHECKING:
    from collections.abc import Sequence


def get_field(name: str, tc: Any) -> Any:
    """Return the value of a field; None if it is not set.

    Tensors and tensordicts are returned as they are; for non-tensor data, the Python
    object is returned.
    """
    inner = tc._tensordict
    if inner._is_dense:
        value = inner._tensordict.get(name)
    else:
        value = tc._read_field(name)
    if is_special(value) and not isinstance(value, torch.Tensor):
        return tc._value_of_entry(value)
    return value


def set_field(tc: Any, name: str, value: object) -> None:
    """Set an attribute: store a field as an entry; None removes the entry."""
    inner = tc.__dict__.get("_tensordict")
    if (
        isinstance(value, torch.Tensor)
        and name in tc.__plain_fields__
        and inner is not None
        and not inner.is_locked
    ):
        set_entry(inner, name, value)
    else:
        tc._set_attribute(name, value)


def wrap_fields(cls: Any, inner: Any) -> CollectionProtocol:
    """Make a tensorclass around the tensordict ``inner`` without calling ``__init__``.

    Raises:
        ValueError: ``inner`` is dense and has an entry that is no field.
    """
    if inner._is_dense and not cls.__expected_keys__.issuperset(inner._tensordict):
        cls._check_keys(inner)
    tc = cls.__new__(cls)
    object.__setattr__(tc, "_tensordict", inner)
    object.__setattr__(tc, "_non_tensordict", {})
    object.__setattr__(tc, "_is_initialized", True)
    return tc


def fill_fields(
    tc: Any,
    values: dict[str, Any],
    batch_size: Sequence[int],
    device: torch.device | str | int | None,
    names: object,
) -> None:
    """Give a new tensorclass its own tensordict with the given fields.

    A field whose value is None is left out.
    """
    # `init` without entries is inline here, and `set_entry` of tensors and strings
    # below: the compiler would enter functions for each field.
    size = as_size(batch_size)
    entries: dict[str, Any] = {}
    inner = new(
        CollectionProtocol._plain_type,
        entries,
        size,
        None if device is None else torch.device(device),
        None,
    )
    if names is not None:
        inner.names = names
    object.__setattr__(tc, "_tensordict", inner)
    object.__setattr__(tc, "_non_tensordict", {})
    object.__setattr__(tc, "_is_initialized", True)
    plain_fields, ndim = tc.__plain_fields__, len(size)
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and name in plain_fields:
            if (
                device is None
                and not is_special(value)
                and not value.is_nested
                and value.shape[:ndim] == size
            ):
                entries[name] = value
            else:
                set_entry(inner, name, value)
        elif (
            value.__class__ is str
            and names is None
            and name in plain_fields
            and not tc._tensor_only
        ):
            cls = CollectionProtocol._non_tensor_type
            entries[name] = cls._of([value], 0, size, inner._device)
        elif value is not None:
            tc._set_field_entry(name, value)
