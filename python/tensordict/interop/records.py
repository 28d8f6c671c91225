"""Instances of dataclasses and models of pydantic, made of collections.

The other way round :meth:`TensorDict.from_any` goes, at any depth.
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
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["to_dataclass", "to_pydantic"]

MSG_CLASS = "{asked} expects {kind}, got {given!r}."
MSG_FIELDS = (
    "{asked} got the entries {extra} at {where}, which {cls} has no fields for. Select the "
    "fields first, or exclude these."
)
MSG_MISSING = "{asked} misses the entries {missing} at {where}, fields of {cls}."
MSG_NESTED = (
    "{asked} got a collection at {key!r}, where the field of {cls} is annotated {hint}: "
    "annotate it with a dataclass, a model, a named tuple, a dict or a collection."
)


def to_dataclass(td: CollectionProtocol, cls: type) -> Any:
    """Make an instance of a dataclass, with the entries of a collection as its fields.

    The annotations of the class say what a field becomes: a nested collection an instance
    of a dataclass, of a model, of a named tuple or a dict; a tensor stays one, or becomes
    an array of NumPy, a number or a list.

    Args:
        td: a collection. Its batch size goes; the shapes of its tensors say it.
        cls: a dataclass.

    Raises:
        ValueError: an entry has no field, or a field without a default no entry.
        TypeError: ``cls`` is no dataclass; a nested collection has no class to become.

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
    """Make an instance of a model of pydantic, which validates the values.

    The annotations of the model say what a field becomes, as for :func:`to_dataclass`.

    Args:
        td: a collection. Its batch size goes; the shapes of its tensors say it.
        cls: a subclass of ``pydantic.BaseModel``.

    Raises:
        ValueError: an entry has no field, or a field without a default no entry;
            ``pydantic.ValidationError``, which is one, where a value does not fit.
        TypeError: ``cls`` is no model; a nested collection has no class to become.
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
    """An instance of a dataclass, a model or a named tuple of the entries of ``td``."""
    hints = _hints(cls)
    entries = dict(td.items())
    names, takes_more = _names(cls)
    fields, optional = set(names), {name for name, free in names.items() if free}
    more = [key for key in entries if key not in fields]
    where = repr(path_of(path)) if path else "the root"
    if more and not takes_more:
        raise ValueError(
            MSG_FIELDS.format(asked=asked, extra=more, where=where, cls=cls.__name__)
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
        # By the names that a file or a service gives them, where there are such.
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
    later = [field.name for field in dataclasses.fields(cls) if not field.init]
    make: Any = cls
    made = make(**{name: value for name, value in values.items() if name not in later})
    for name in later:
        if name in values:
            object.__setattr__(made, name, values[name])
    return made


def _hints(cls: Any) -> dict[str, Any]:
    """The annotations of the fields, as text where a name in one is not known here."""
    if _is_model(cls):
        fields = cls.__pydantic_fields__
        return {name: field.annotation for name, field in fields.items()}
    try:
        return typing.get_type_hints(cls)
    except NameError:
        # The class may be defined in a function.
        return dict(cls.__annotations__)


def _names(cls: Any) -> tuple[dict[str, bool], bool]:
    """The fields, with whether they may be missing, and whether others are taken."""
    if _is_model(cls):
        fields = cls.__pydantic_fields__
        free = {name: not field.is_required() for name, field in fields.items()}
        return free, cls.model_config.get("extra") == "allow"
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
    """The classes that an annotation names: those of a union, without parameters."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _choices(typing.get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [one for each in typing.get_args(hint) for one in _choices(each)]
    return [hint if origin is None else origin]


def _value(
    asked: str, path: tuple[str, ...], value: object, hint: object, cls: type
) -> Any:
    """An entry as its field is annotated."""
    if isinstance(hint, str) and not isinstance(value, CollectionProtocol):
        hint = Any
    choices = _choices(hint)
    classes = [each for each in choices if isinstance(each, type)]
    if isinstance(value, CollectionProtocol):
        if value._is_non_tensor:
            held: Any = value
            return held.data if held._is_one else held.tolist()
        for each in classes:
            if issubclass(each, CollectionProtocol):
                return value
            if (
                _is_model(each)
                or dataclasses.is_dataclass(each)
                or is_namedtuple_class(each)
            ):
                return _instance(asked, path, value, each)
            if issubclass(each, dict):
                return value.to_dict()
            if issubclass(each, tuple):
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
    if any(issubclass(each, torch.Tensor) for each in classes):
        return value
    if Any in choices or object in choices:
        return value
    if any(issubclass(each, np.ndarray) for each in classes):
        return value.detach().cpu().numpy()
    if any(issubclass(each, tuple) for each in classes):
        return tuple(value.tolist())
    plain = (bool, int, float, complex, list, np.generic)
    if any(issubclass(each, plain) for each in classes):
        return value.tolist()
    return value
