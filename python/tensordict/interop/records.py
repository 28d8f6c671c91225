"""Conversion of tensordicts to instances of dataclasses and pydantic models.

:meth:`TensorDict.from_any` converts them back, at any depth.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Union

import numpy as np
import torch

from tensordict.interop.leaves import check_collection, extra, path_of
from tensordict.ops.python_values import is_namedtuple_class
from tensordict.primitives.checks import holds_values
from tensordict.primitives.common import python_value
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["to_dataclass", "to_pydantic"]

MSG_CLASS = "{asked} expects {kind}, got {given!r}."
MSG_FIELDS = (
    "{asked} got the entries {extra} at {where}, which {cls} has no fields for. Select the "
    "fields first, or exclude these entries."
)
MSG_MISSING = (
    "{asked} found no entries {missing} at {where}, which {cls} has as fields without "
    "default. Set them first."
)
MSG_NESTED = (
    "{asked} got a tensordict at {key!r}, but the field of {cls} is annotated {hint}: "
    "annotate it with a dataclass, a model, a named tuple, a dict or a tensordict."
)


def to_dataclass(td: CollectionProtocol, cls: type) -> Any:
    """Make an instance of a dataclass from the entries of a tensordict.

    The annotations of the class decide the type of a field. A nested tensordict becomes
    a dataclass, a pydantic model, a named tuple or a dict. A tensor stays a tensor, or
    becomes a NumPy array, a number or a list.

    Args:
        td: the tensordict. Its batch size is dropped.
        cls: a dataclass.

    Raises:
        ValueError: an entry has no field, or a field without a default has no entry.
        TypeError: ``cls`` is not a dataclass, or the field of a nested tensordict has
            another annotation.

    Examples:
        >>> @dataclasses.dataclass
        ... class Point:
        ...     x: torch.Tensor
        ...     tag: str = ""
        >>> from tensordict import TensorDict
        >>> to_dataclass(TensorDict.from_any(Point(torch.ones(2), "a")), Point)
        Point(x=tensor([1., 1.]), tag='a')
    """
    check_collection(td, "to_dataclass")
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        msg = MSG_CLASS.format(asked="to_dataclass", kind="a dataclass", given=cls)
        raise TypeError(msg)
    return _instance("to_dataclass", (), td, cls)


def to_pydantic(td: CollectionProtocol, cls: type) -> Any:
    """Make an instance of a pydantic model from the entries of a tensordict.

    Pydantic validates the values. The annotations of the model decide the type of a
    field, as in :func:`to_dataclass`.

    Args:
        td: the tensordict. Its batch size is dropped.
        cls: a subclass of ``pydantic.BaseModel``.

    Raises:
        ValueError: an entry has no field, a field without a default has no entry, or a
            value is invalid (``pydantic.ValidationError`` is a subclass).
        TypeError: ``cls`` is not a model, or the field of a nested tensordict has
            another annotation.
        ImportError: pydantic is not installed.

    Examples:
        >>> import pydantic
        >>> from tensordict import TensorDict
        >>> class Point(pydantic.BaseModel):
        ...     x: list[float]
        ...     n: int
        >>> td = TensorDict.from_any(Point(x=[1.0, 2.0], n=3))
        >>> td["n"], to_pydantic(td, Point)
        (tensor(3), Point(x=[1.0, 2.0], n=3))
    """
    check_collection(td, "to_pydantic")
    pydantic = extra("pydantic", "to_pydantic", "pip install pydantic")
    if not (isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)):
        msg = MSG_CLASS.format(
            asked="to_pydantic", kind="a subclass of pydantic.BaseModel", given=cls
        )
        raise TypeError(msg)
    return _instance("to_pydantic", (), td, cls)


def _is_model(cls: type) -> bool:
    return isinstance(cls, type) and isinstance(
        getattr(cls, "__pydantic_fields__", None), dict
    )


def _instance(
    asked: str, path: tuple[str, ...], td: CollectionProtocol, cls: Any
) -> Any:
    """Make an instance of a dataclass, a model or a named tuple from ``td``."""
    hints = _hints(cls)
    entries = dict(td.items())
    names, allows_extra = _names(cls)
    fields, optional = (
        set(names),
        {name for name, has_default in names.items() if has_default},
    )
    extra_keys = [key for key in entries if key not in fields]
    where = repr(path_of(path)) if path else "the root"
    if extra_keys and not allows_extra:
        raise ValueError(
            MSG_FIELDS.format(
                asked=asked, extra=extra_keys, where=where, cls=cls.__name__
            )
        )
    missing = sorted(fields - optional - set(entries))
    if missing:
        raise ValueError(
            MSG_MISSING.format(
                asked=asked, missing=missing, where=where, cls=cls.__name__
            )
        )
    values = {
        key: _value(asked, (*path, key), value, hints.get(key, Any), cls)
        for key, value in entries.items()
    }
    if _is_model(cls):
        # Pydantic validates by alias, unless the model allows field names.
        declared = cls.__pydantic_fields__
        by_name = cls.model_config.get("populate_by_name") or cls.model_config.get(
            "validate_by_name"
        )
        if not by_name:
            aliases = {name: declared[name].validation_alias for name in declared}
            values = {
                alias if isinstance(alias := aliases.get(name), str) else name: value
                for name, value in values.items()
            }
        return cls.model_validate(values)
    if not dataclasses.is_dataclass(cls):
        return cls(**values)
    no_init = [field.name for field in dataclasses.fields(cls) if not field.init]
    make: Any = cls
    instance = make(**{key: values[key] for key in values if key not in no_init})
    for name in no_init:
        if name in values:
            object.__setattr__(instance, name, values[name])
    return instance


def _hints(cls: Any) -> dict[str, Any]:
    """Return the annotations of the fields, as text if they cannot be evaluated."""
    if _is_model(cls):
        fields = cls.__pydantic_fields__
        return {name: field.annotation for name, field in fields.items()}
    try:
        return typing.get_type_hints(cls)
    except NameError:
        # The class is defined in a function and refers to local names.
        return dict(cls.__annotations__)


def _names(cls: Any) -> tuple[dict[str, bool], bool]:
    """Return whether each field may be missing, and whether extras are allowed."""
    if _is_model(cls):
        fields = cls.__pydantic_fields__
        is_optional = {name: not field.is_required() for name, field in fields.items()}
        return is_optional, cls.model_config.get("extra") == "allow"
    if dataclasses.is_dataclass(cls):
        none = dataclasses.MISSING
        return {
            field.name: not field.init
            or field.default is not none
            or field.default_factory is not none
            for field in dataclasses.fields(cls)
        }, False
    return {name: name in cls._field_defaults for name in cls._fields}, False


def _choices(hint: object) -> list[Any]:
    """Return the classes in an annotation: the members of a union."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _choices(typing.get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [cls for arg in typing.get_args(hint) for cls in _choices(arg)]
    return [hint if origin is None else origin]


def _value(
    asked: str, path: tuple[str, ...], value: object, hint: object, cls: type
) -> Any:
    """Convert an entry to the annotated type of its field."""
    if isinstance(hint, str) and not isinstance(value, CollectionProtocol):
        hint = Any
    choices = _choices(hint)
    classes = [candidate for candidate in choices if isinstance(candidate, type)]
    if holds_values(value):
        return python_value(value)
    if isinstance(value, CollectionProtocol):
        for candidate in classes:
            if issubclass(candidate, CollectionProtocol):
                return value
            if (
                _is_model(candidate)
                or dataclasses.is_dataclass(candidate)
                or is_namedtuple_class(candidate)
            ):
                return _instance(asked, path, value, candidate)
            if issubclass(candidate, dict):
                return value.to_dict()
            if issubclass(candidate, tuple):
                return tuple(dict(value.items()).values())
        if Any in choices or object in choices:
            return value
        raise TypeError(
            MSG_NESTED.format(
                asked=asked, key=path_of(path), cls=cls.__name__, hint=hint
            )
        )
    if not isinstance(value, torch.Tensor):
        return value
    if any(issubclass(candidate, torch.Tensor) for candidate in classes):
        return value
    if Any in choices or object in choices:
        return value
    if any(issubclass(candidate, np.ndarray) for candidate in classes):
        return value.detach().cpu().numpy()
    if any(issubclass(candidate, tuple) for candidate in classes):
        return tuple(value.tolist())
    plain = (bool, int, float, complex, list, np.generic)
    if any(issubclass(candidate, plain) for candidate in classes):
        return value.tolist()
    return value
