"""Conversion of Python values to entries: mappings, tuples, dataclasses, arrays, ..."""

from __future__ import annotations

import dataclasses
import numbers
import sys
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tensordict.primitives import classes
from tensordict.primitives.arrays import as_tensor, is_constant, tensor_over
from tensordict.primitives.common import as_size
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["convert", "is_namedtuple", "is_namedtuple_class"]

NON_NESTED = "<NON_NESTED>"
"""The prefix of keys under which :meth:`from_pytree` stores other than string keys."""

_PLAIN = frozenset({str, int, float, bool, complex, bytes, type(None)})
"""Types whose values are never converted."""

MSG_CONFLICT = (
    "Conflicting batch sizes in {}: batch_size and auto_batch_size cannot be both "
    "specified. Pass one of them."
)
MSG_SAME_TEXT = (
    "The mapping has the key {0!r} both as a string and as a number, and number keys "
    "become strings in a tensordict."
)
MSG_PLACE = " (in the mapping at {!r})"


def convert(
    obj: Any,
    *,
    cls: type | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: Any = None,
    batch_size: Any = None,
) -> Any:
    """Convert a value to a tensordict or a tensor; return other values unchanged."""
    if type(obj) in _PLAIN or isinstance(obj, (torch.Tensor, CollectionProtocol)):
        return obj
    owner: Any = classes.TensorDict if cls is None else cls
    if isinstance(obj, Mapping):
        auto = auto_batch_size and batch_size is None
        return owner.from_dict(
            obj,
            auto_batch_size=auto or None,
            batch_dims=batch_dims if auto else None,
            batch_size=batch_size,
            device=device,
        )
    if isinstance(obj, np.ndarray):
        if obj.dtype.names is None:
            return obj
        return owner.from_struct_array(
            obj,
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims if auto_batch_size else None,
            device=device,
        )
    size_options = (auto_batch_size, batch_dims, batch_size)
    if is_namedtuple(obj):
        sizes = size_arguments("from_namedtuple", *size_options)
        return classes.TensorDict._from_entries(obj._asdict(), **sizes, device=device)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        fields = dataclasses.fields(obj)
        return classes.TensorDict._from_entries(
            {field.name: getattr(obj, field.name) for field in fields},
            **size_arguments("from_dataclass", *size_options),
            device=device,
        )
    if isinstance(obj, tuple):
        return classes.TensorDict._from_entries(
            {str(number): item for number, item in enumerate(obj)},
            **size_arguments("from_tuple", *size_options),
            device=device,
        )
    if isinstance(obj, list):
        if _is_uniform(obj) is not None:
            return torch.tensor(obj, device=device)
        return CollectionProtocol._non_tensor_stack_type.from_list(obj)
    if _is_pydantic(obj):
        return classes.TensorDict._from_entries(
            dict(iter(obj)), **size_arguments("from_any", *size_options), device=device
        )
    if library := _frame_of(obj):
        auto = auto_batch_size and batch_size is None
        return getattr(owner, f"from_{library}")(
            obj,
            auto_batch_size=auto,
            batch_dims=batch_dims if auto else None,
            batch_size=batch_size,
            device=device,
        )
    if hasattr(type(obj), "__dlpack__"):
        return _shared_by_dlpack(obj, device)
    return obj


def _frame_of(value: object) -> str | None:
    """Return the library of the data frame ``value``, or None, without importing it."""
    for library in ("pandas", "polars"):
        kind = getattr(sys.modules.get(library), "DataFrame", None)
        if isinstance(kind, type) and isinstance(value, kind):
            return library
    return None


def _is_pydantic(value: object) -> bool:
    """Return whether ``value`` is a pydantic model, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def _shared_by_dlpack(
    array: object, device: torch.device | str | int | None = None
) -> Any:
    """Share the memory of another library's array; return the array if torch cannot.

    An array that its library treats as constant is copied.
    """
    try:
        tensor = torch.utils.dlpack.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return array
    if is_constant(array):
        tensor = tensor.clone()
    return tensor if device is None else tensor.to(device)


def is_namedtuple(value: object) -> bool:
    """Return whether ``value`` is an instance of a named tuple."""
    return isinstance(value, tuple) and is_namedtuple_class(type(value))


def is_namedtuple_class(cls: type) -> bool:
    """Return whether ``cls`` is a class made by :func:`collections.namedtuple`."""
    if not (isinstance(cls, type) and issubclass(cls, tuple)):
        return False
    fields = getattr(cls, "_fields", None)
    return isinstance(fields, tuple) and all(isinstance(name, str) for name in fields)


def _is_uniform(values: list[Any]) -> tuple[Any, ...] | None:
    """Return shape and type of nested lists of numbers of one type, else None."""
    if not values:
        return (0, None)
    first = values[0]
    if isinstance(first, list):
        shapes = [
            _is_uniform(value) if isinstance(value, list) else None for value in values
        ]
        shape = shapes[0]
        if shape is None or any(other != shape for other in shapes):
            return None
        return (len(values), *shape)
    kind = type(first)
    if kind not in (int, float, bool, complex) and not (
        isinstance(first, np.generic) and first.dtype.kind in "iufc"
    ):
        return None
    if any(type(value) is not kind for value in values):
        return None
    return (len(values), kind)


def size_arguments(
    method: str, auto: bool | None, dims: int | None, size: Any
) -> dict[str, Any]:
    """Return the arguments for ``from_dict``; ``batch_dims`` alone is ignored.

    Raises:
        TypeError: both ``auto`` and ``size`` were passed.
    """
    if size is not None:
        if auto:
            raise TypeError(MSG_CONFLICT.format(method))
        return {"batch_size": as_size(size)}
    if not auto:
        return {}
    return {"auto_batch_size": True, "batch_dims": dims}


def field_entry(array: np.ndarray[Any, Any]) -> Any:
    """Convert a field of a structured array to an entry."""
    if array.dtype.names is not None:
        return classes.TensorDict.from_struct_array(array)
    if array.dtype.hasobject or array.dtype.kind not in "biufc":
        return array
    return tensor_over(array)


def with_columns(entries: Mapping[Any, Any]) -> dict[Any, Any]:
    """Convert arrays of strings to columns, whose shape counts for the batch size."""
    columns: dict[Any, Any] = {}
    rows_of = CollectionProtocol._non_tensor_type._rows_of
    for key, value in entries.items():
        if isinstance(value, np.ndarray):
            value = rows_of(value, value.shape)
        elif isinstance(value, Mapping) and not isinstance(value, CollectionProtocol):
            value = with_columns(value)
        columns[key] = value
    return columns


def entries_of_pytree(tree: Any) -> torch.Tensor | CollectionProtocol:
    """Convert nested dictionaries, lists and tuples to a tensordict."""
    if isinstance(tree, (torch.Tensor, CollectionProtocol)):
        return tree
    if isinstance(tree, (numbers.Number, np.generic, np.ndarray)):
        return as_tensor(tree)
    td = classes.TensorDict({}, [])
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if isinstance(key, str):
                td.set(key, entries_of_pytree(value))
            else:
                held = classes.TensorDict({"value": entries_of_pytree(value)}, [])
                held.set_non_tensor("key", key)
                td.set(f"{NON_NESTED}{uuid.uuid1()}", held)
    elif is_namedtuple(tree):
        for key, value in tree._asdict().items():
            td.set(key, entries_of_pytree(value))
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            td.set(str(number), entries_of_pytree(value))
    else:
        msg = f"Unknown type {type(tree)}."
        raise NotImplementedError(msg)
    td.set_non_tensor("_pytree_type", type(tree))
    return td


def with_text_keys(values: Mapping[Any, Any], error: KeyError) -> dict[Any, Any]:
    """Convert integer keys to strings: the states of optimizers have integer keys.

    Raises:
        KeyError: no key is an integer (``error`` with the path of the wrong key), or
            two keys give the same string.
    """
    if any(type(key) is int for key in values):
        by_text: dict[Any, Any] = {}
        for key, value in values.items():
            text = str(key) if type(key) is int else key
            if text in by_text:
                raise KeyMessageError(MSG_SAME_TEXT.format(text))
            by_text[text] = value
        return by_text
    path = _path_to_wrong_key(values)
    if not path:
        raise error
    text, _, _ = str(error.args[0]).partition(MSG_PLACE[:5])
    raise KeyMessageError(text + MSG_PLACE.format(path)) from None


def _path_to_wrong_key(values: Mapping[Any, Any]) -> tuple[str, ...]:
    """Find the path to a key that is neither string nor int in a nested mapping."""
    for key, value in values.items():
        if not isinstance(value, Mapping) or not isinstance(key, (str, int)):
            continue
        if all(isinstance(inner, (str, int, tuple)) for inner in value):
            below = _path_to_wrong_key(value)
            if not below:
                continue
            return (str(key), *below)
        return (str(key),)
    return ()


def numbered_type(cls: Any, values: Mapping[Any, Any]) -> Any:
    """Return the tensordict class for a mapping with integer keys, else ``cls``."""
    if cls is not classes.TensorDict or not all(type(key) is int for key in values):
        return cls
    return classes.NumberedTensorDict


def warn_batch_dims_ignored(
    method: str, batch_dims: int | None, auto_batch_size: bool, batch_size: object
) -> None:
    """Warn that a method ignores ``batch_dims``, as in tensordict 0.15."""
    if batch_dims is None or auto_batch_size:
        return
    advice = (
        "Pass auto_batch_size=True to get that result now, or drop batch_dims."
        if batch_size is None
        else "Drop batch_dims to keep today's result."
    )
    warn_caller(
        f"{method} ignores batch_dims={batch_dims} without auto_batch_size=True. Starting "
        "with TensorDict 0.17, the default will change to turning auto_batch_size on "
        f"when batch_dims is given, as from_dict does. {advice}"
    )
