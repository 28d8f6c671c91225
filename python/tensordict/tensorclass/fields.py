"""The fields that a class body declares, and the ``__init__`` made from them."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import sys
import types
import typing
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from tensordict import _rust
from tensordict.primitives import classes
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.tensorclass.access import FieldAccess
from tensordict.tensorclass.reserved import RESERVED

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "OPTIONS",
    "declared_again",
    "own_annotations",
    "prepare",
    "resolved_annotation",
    "scalars_of",
]

OPTIONS = (
    "autocast",
    "nocast",
    "frozen",
    "tensor_only",
    "shadow",
    "skip_post_init_on_rebuild",
)
"""The flags of a tensorclass. Each is stored as a class attribute ``_<flag>``."""

MSG_RESERVED = (
    "Attribute name {} can't be used with @tensorclass or TensorClass, as "
    "tensorclasses have a member of that name. To allow it, pass shadow=True "
    "(@tensorclass(shadow=True) or TensorClass['shadow'])."
)
MSG_AUTOCAST = "autocast is exclusive with nocast."
MSG_TENSOR_ONLY = "tensor_only and autocast or nocast are exclusive features."
MSG_TENSOR_TYPES = "tensor_only requires types to be Tensor, Tensor-subtypes or None."
MSG_ORDER = "non-default argument {!r} follows default argument"
MSG_TWICE = "The key {} is already set in kwargs"
MSG_TOO_MANY = "{}.__init__() takes {} positional arguments but {} were given"
MSG_REQUIRED = "{}.__init__() did not set the required field {!r}"

_SCALARS: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (float, int),
    bool: (bool,),
    complex: (complex,),
}
"""The annotations of scalar fields, and the types of values that stay as they are."""

_UNSET: Any = type("_Unset", (), {"__repr__": lambda _: "<factory>"})()
"""The default in a signature of an argument with a default factory."""


def prepare(
    cls: Any,
    options: dict[str, bool],
    cast_filter: Any = None,
    kw_only: bool = False,
) -> None:
    """Turn ``cls``, a new subclass of the tensorclass base, into a class with fields.

    Raises:
        AttributeError: a field has the name of an attribute, and ``shadow`` is not set.
        TypeError: options exclude one another, or an annotation is not allowed.
    """
    for name, value in options.items():
        setattr(cls, f"_{name}", bool(value))
    if cast_filter is not None:
        cls._cast_filter = staticmethod(cast_filter)
    if cls._autocast and cls._nocast:
        raise TypeError(MSG_AUTOCAST)
    if cls._tensor_only and (cls._autocast or cls._nocast):
        raise TypeError(MSG_TENSOR_ONLY)
    annotations = own_annotations(cls)
    _check_names(cls, annotations)
    _undo_preparation(cls, annotations)
    own_init = cls.__dict__.get("__init__")
    has_text = bool(cls.__dict__.get("__doc__"))
    # A field without a default must not find one in an inherited attribute of the same
    # name, such as a method or the property of an inherited field.
    for name in annotations:
        if name not in cls.__dict__:
            setattr(cls, name, dataclasses.field())
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    cls.__dataclass_fields__ = _DataclassFields(cls.__dataclass_fields__)
    _restore_inherited(cls)
    if "__hash__" not in cls.__dict__:
        cls.__hash__ = _frozen_hash if cls._frozen else None
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = _hints(cls)
    cls.__expected_keys__ = set(fields)
    cls.__ordered_fields__ = tuple(fields)
    cls._type_hints = hints
    cls._scalar_fields = {
        name: scalars for name in fields if (scalars := scalars_of(hints[name]))
    }
    cls._list_fields = frozenset(
        name for name in fields if not cls._autocast and _is_of_lists(hints[name])
    )
    cls._tensorclass_fields = {
        name: nested
        for name in fields
        if (nested := _tensorclass_of(hints[name])) is not None
    }
    if cls._tensor_only and not all(
        _is_tensor_type(hints[name]) or _is_unknown(field, hints[name])
        for name, field in fields.items()
    ):
        raise TypeError(MSG_TENSOR_TYPES)
    takes_tensors_as_they_are = not (cls._autocast or cls._frozen)
    cls.__plain_fields__ = (
        frozenset(fields) if takes_tensors_as_they_are else frozenset()
    )
    for name in fields:
        setattr(cls, name, property(_getter(name), _setter(name)))
    classes.announce(cls, "tensorclass")
    if own_init is not None:
        cls.__init__ = _wrapped_init(cls, own_init)
    else:
        cls.__init__ = _generated_init(cls)
    if not has_text:
        cls.__doc__ = f"{cls.__name__}{inspect.signature(cls)}"


class _DataclassFields(dict[str, Any]):
    """The dataclass fields of a class; an instance has three init variables more.

    ``dataclasses.replace`` also passes on the batch size, device and names of an
    instance if they are among its fields. Other functions do not count init variables
    as fields.
    """

    def __get__(self, instance: object, owner: object = None) -> dict[str, Any]:
        return self if instance is None else {**_OWN_VARIABLES, **self}


def _init_variable(name: str) -> dataclasses.Field[Any]:
    variable: Any = dataclasses.field(default=None, kw_only=True)
    variable.name, variable.type = name, Any
    variable._field_type = dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]
    return variable


_OWN_VARIABLES = {
    name: _init_variable(name) for name in ("batch_size", "device", "names")
}


def _undo_preparation(cls: Any, annotations: dict[str, Any]) -> None:
    """Undo an earlier preparation of the class as a tensorclass or dataclass."""
    prepared = cls.__dict__.get("__dataclass_fields__")
    if prepared is None:
        return
    own_init = cls.__dict__.get("__init__")
    if own_init is not None:
        # Go back to the `__init__` of the class body.
        del cls.__init__
        if hasattr(own_init, "__wrapped__"):
            cls.__init__ = own_init.__wrapped__
        elif not (cls.__dataclass_params__.init or hasattr(own_init, "__signature__")):
            cls.__init__ = own_init
    for name in annotations:
        setattr(cls, name, declared_again(prepared[name]))


def declared_again(field: dataclasses.Field[Any]) -> Any:
    """Return a declaration like ``field``, for a class body."""
    declared = dataclasses.field(
        init=field.init, kw_only=field.kw_only, metadata=field.metadata
    )
    declared.default = field.default
    declared.default_factory = field.default_factory
    return declared


def _restore_inherited(cls: type) -> None:
    """Use inherited ``__repr__`` and ``__eq__`` instead of those that dataclasses make.

    They are set on the class itself, so that a later ``@dataclass`` does not replace
    them.
    """
    for name in ("__repr__", "__eq__"):
        methods = (vars(base)[name] for base in cls.__mro__ if name in vars(base))
        setattr(cls, name, next(each for each in methods if not _is_generated(each)))


def _is_generated(function: Any) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and code.co_qualname.startswith("__create_fn__")


def _check_names(cls: Any, annotations: dict[str, Any]) -> None:
    if cls._shadow:
        return
    for name in annotations:
        if name in RESERVED:
            raise AttributeError(MSG_RESERVED.format(name))


def _hints(cls: type) -> dict[str, Any]:
    """Return the type of each annotation; Any for a text that cannot be resolved."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if "__dataclass_fields__" in base.__dict__:
            for name, annotation in own_annotations(base).items():
                hint = resolved_annotation(annotation, base)
                is_pseudo = (
                    isinstance(hint, dataclasses.InitVar)
                    or typing.get_origin(hint) is ClassVar
                )
                hints[name] = Any if is_pseudo else hint
    return hints


def own_annotations(cls: type) -> dict[str, Any]:
    """Return the annotations in the body of ``cls``, also those of names defined later.

    From Python 3.14 on, annotations are evaluated lazily, so that a class may name
    itself or a later class (:pep:`649`). Such a name is returned as a ``ForwardRef``.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(
            cls, format=annotationlib.Format.FORWARDREF
        )
    return inspect.get_annotations(cls)


def resolved_annotation(
    annotation: object, cls: type, *, qualified: bool = False
) -> Any:
    """Resolve an annotation in the body of ``cls``; return Any if that fails.

    If ``qualified`` is true, ``NotRequired`` and similar qualifiers are kept.
    """
    if _is_class(annotation):
        return annotation
    scope = vars(sys.modules.get(cls.__module__, types))
    holder: Any = type("_Holder", (), {"__annotations__": {"hint": annotation}})
    # Only use classes of the body: a field may have the name of a type.
    body_classes = {k: v for k, v in vars(cls).items() if isinstance(v, type)}
    names = {**_names_around(cls), **body_classes, cls.__name__: cls}
    try:
        hints = typing.get_type_hints(holder, scope, names, include_extras=qualified)
        return hints["hint"]
    except Exception:  # noqa: BLE001 - an annotation can raise anything
        return Any


def _names_around(cls: type) -> dict[str, Any]:
    """Return the local names of the functions around ``cls``, for its annotations.

    Python keeps no scope with an annotation that is a text. But these functions are
    still running while the class is made, so their frames have the names.
    """
    around = cls.__qualname__.split(".<locals>.")[:-1]
    functions = {".<locals>.".join(around[:end]) for end in range(1, len(around) + 1)}
    local_names: dict[str, Any] = {}
    frame = sys._getframe() if functions else None
    while frame is not None:
        is_around = frame.f_code.co_qualname in functions
        if is_around and frame.f_globals.get("__name__") == cls.__module__:
            local_names = {**frame.f_locals, **local_names}
            functions.discard(frame.f_code.co_qualname)
        frame = frame.f_back
    return local_names


def scalars_of(hint: object) -> tuple[type, ...]:
    """Return the types of numbers that a field keeps as they are; empty for none.

    A field that may also hold a tensor converts numbers to tensors.
    """
    options = _options_of(hint)
    tensors = (torch.Tensor, np.ndarray, CollectionProtocol)
    if not all(map(_is_class, options)) or any(
        option is object or issubclass(option, tensors) for option in options
    ):
        return ()
    return tuple(kind for option in options for kind in _SCALARS.get(option, ()))


def _is_of_lists(hint: object) -> bool:
    """Return whether an annotation names only lists, or optional lists."""
    options = [typing.get_origin(option) or option for option in _options_of(hint)]
    return bool(options) and all(
        option in (list, collections.abc.Sequence, collections.abc.MutableSequence)
        for option in options
    )


def _options_of(hint: object) -> list[Any]:
    """Return the types of a union except None; for another annotation, itself."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return [hint]
    return [arg for arg in typing.get_args(hint) if arg is not type(None)]


def _is_class(hint: object) -> bool:
    return isinstance(hint, type) and typing.get_origin(hint) is None


def _tensorclass_of(hint: object) -> Any:
    """Return the tensorclass that an annotation names, also as optional; or None."""
    options = _options_of(hint)
    if len(options) != 1 or not getattr(options[0], "_is_tensorclass", False):
        return None
    return None if options[0]._is_non_tensor else options[0]


def _is_unknown(field: Any, hint: Any) -> bool:
    """Return whether an annotation is a text that cannot be resolved yet."""
    return hint is Any and isinstance(field.type, str) and "Any" not in field.type


def _is_tensor_type(hint: object) -> bool:
    """Return whether an annotation allows only tensors, collections and None."""
    if hint is None or hint is type(None):
        return True
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return all(map(_is_tensor_type, typing.get_args(hint)))
    return isinstance(hint, type) and issubclass(
        hint, (torch.Tensor, CollectionProtocol)
    )


def _frozen_hash(self: Any) -> int:
    return hash(tuple(getattr(self, name) for name in type(self).__dataclass_fields__))


def _getter(name: str) -> Callable[..., Any]:
    def getter(self: Any) -> Any:
        return _rust.get_field(name, self)

    getter.__name__ = name
    _rust.read_natively(getter)
    return getter


def _setter(name: str) -> Callable[..., Any]:
    """Make the setter that ``object.__setattr__`` calls, also for a frozen class."""

    def setter(self: Any, value: object) -> None:
        self._store_field(name, value)

    return setter


# The __init__ ------------------------------------------------------------------------

_OWN_ARGUMENTS = ("batch_size", "device", "names", "lock")
"""The arguments that each tensorclass has besides its fields."""


def _generated_init(cls: Any) -> Any:
    """Make an ``__init__`` with an argument for each field, and a collection's.

    Entries are set in the order of keyword arguments, then positional ones, then
    defaults. So the generated function takes ``*args`` and ``**values``.
    """
    passed_on = post_init_arguments(cls)
    fields = [
        field
        for field in cls.__dataclass_fields__.values()
        if field._field_type is not dataclasses._FIELD_CLASSVAR  # type: ignore[attr-defined]
        and (not _is_init_var(field) or field.name in passed_on)
    ]
    names = [field.name for field in fields]
    positional = [field.name for field in fields if field.init and not field.kw_only]
    arguments = {field.name for field in fields if field.init}
    # A field can replace an argument of the same name.
    collection_arguments = tuple(name for name in _OWN_ARGUMENTS if name not in names)
    defaults = {
        field.name: default
        for field in fields
        if (default := passed_on.get(field.name, field.default))
        is not dataclasses.MISSING
    }
    factories = {
        field.name: field.default_factory
        for field in fields
        if field.default_factory is not dataclasses.MISSING
    }
    for name, default in list(defaults.items()):
        if isinstance(default, torch.Tensor):
            factories[name] = _constant_default(defaults.pop(name))
    # In the order of the fields, which becomes the order of the entries.
    optional = tuple(name for name in names if name in defaults or name in factories)
    required = frozenset(arguments) - frozenset(optional)
    # If all arguments are given, no default is needed.
    complete = arguments if arguments.issuperset(optional) else None
    is_frozen = cls._frozen
    fill = _filler(
        names, positional, arguments, complete, required, optional, defaults, factories,
        tuple(passed_on), is_frozen,
    )  # fmt: skip
    if collection_arguments == _OWN_ARGUMENTS:
        # The number of arguments, if all of them can be positional; otherwise -1.
        num_all = len(positional) if complete == set(positional) else -1
        is_plain = sets_natively(cls) and not (
            passed_on or is_frozen or hasattr(cls, "__post_init__")
        )
        __init__ = _init_of(cls, fill, positional, complete, num_all, is_plain)
    else:
        __init__ = _init_without(collection_arguments, fill)

    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    __init__.__module__ = cls.__module__
    __init__.__annotations__ = {
        **{field.name: field.type for field in fields if field.init},
        "return": None,
    }
    __init__.__signature__ = _signature_of(fields)
    return __init__


def _constant_default(tensor: torch.Tensor) -> Callable[..., Any]:
    """Make a default factory for a tensor that the compiler treats as a constant."""

    def default() -> torch.Tensor:
        return tensor

    # `torch._dynamo.assume_constant_result` would do the same, but import the compiler.
    default._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return default


def _filler(
    names: list[str],
    positional: list[str],
    arguments: set[str],
    complete: set[str] | None,
    required: frozenset[str],
    optional: tuple[str, ...],
    defaults: dict[str, Any],
    factories: dict[str, Any],
    init_vars: tuple[str, ...],
    is_frozen: bool,
) -> Callable[..., Any]:
    """Make the function that fills a new instance with the arguments of a call."""
    num_positional = len(positional)

    def fill(
        self: Any,
        args: tuple[Any, ...],
        values: dict[str, Any],
        batch_size: object,
        device: object,
        dim_names: object,
        lock: object,
    ) -> None:
        if args:
            if len(args) > num_positional:
                name = type(self).__qualname__
                msg = MSG_TOO_MANY.format(name, num_positional + 1, len(args) + 1)
                raise TypeError(msg)
            if values:
                for name, value in zip(positional, args, strict=False):
                    if name in values:
                        raise ValueError(MSG_TWICE.format(name))
                    values[name] = value
            else:
                values = dict(zip(positional, args, strict=False))
        further = None
        if values.keys() != complete:
            if not arguments.issuperset(values) or not required.issubset(values):
                further = _split_further(type(self), values, names, arguments, required)
            for name in optional:
                if name not in values:
                    values[name] = (
                        defaults[name] if name in defaults else factories[name]()
                    )
        init_values = [values.pop(name) for name in init_vars] if init_vars else ()
        if sets_natively(type(self)):
            _rust.fill_fields(self, values, batch_size, device, dim_names)
        else:
            _rust.fill_fields(self, {}, batch_size, device, dim_names)
            for name, value in values.items():
                setattr(self, name, value)
        if further:
            _set_further(self, further)
        if hasattr(type(self), "__post_init__"):
            self.__post_init__(*init_values)
        if lock or is_frozen:
            self._tensordict.lock_()

    return fill


def _init_of(
    cls: Any,
    fill: Any,
    positional: list[str],
    complete: set[str] | None,
    num_all: int,
    is_plain: bool,
) -> Any:
    """Make an ``__init__`` with all arguments of a collection."""

    def __init__(  # noqa: N807 - an attribute of a class
        self: Any,
        /,
        *args: Any,
        batch_size: Any = None,
        device: Any = None,
        names: Any = None,
        lock: Any = None,
        **values: Any,
    ) -> None:
        if args:
            is_complete = len(args) == num_all and not values
            if is_complete:
                values = dict(zip(positional, args))  # noqa: B905 - ``strict=`` is slower
                args = ()
        else:
            is_complete = values.keys() == complete
        if is_complete and is_plain and not lock and type(self) is cls:
            # The inlined body of `fill` for complete arguments.
            _rust.fill_fields(self, values, batch_size, device, names)
        else:
            fill(self, args, values, batch_size, device, names, lock)

    return __init__


def _init_without(collection_arguments: tuple[str, ...], fill: Any) -> Any:
    """Make an ``__init__`` for fields that have names of the collection's arguments."""

    def __init__(  # noqa: N807 - an attribute of a class
        self: Any, /, *args: Any, **values: Any
    ) -> None:
        arguments = {name: values.pop(name, None) for name in collection_arguments}
        fill(self, args, values, *map(arguments.get, _OWN_ARGUMENTS))

    return __init__


def sets_natively(cls: Any) -> bool:
    """Return whether the class does not override ``__setattr__``, or is frozen."""
    return cls._frozen or cls.__setattr__ is FieldAccess.__setattr__


def _is_init_var(field: dataclasses.Field[Any]) -> bool:
    return field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]


def post_init_arguments(cls: Any) -> dict[str, Any]:
    """Return the init variables that ``__post_init__`` takes, with their defaults.

    A default in the signature of ``__post_init__`` overrides the class's default. The
    class has no argument for an init variable without a parameter in ``__post_init__``.
    """
    fields = cls.__dataclass_fields__.values()
    declared = {field.name: field.default for field in fields if _is_init_var(field)}
    post_init = getattr(cls, "__post_init__", None)
    if not declared or post_init is None:
        return declared
    parameters = list(inspect.signature(post_init).parameters.values())[1:]
    if any(param.kind is inspect.Parameter.VAR_POSITIONAL for param in parameters):
        return declared
    return {
        name: default if param.default is inspect.Parameter.empty else param.default
        for (name, default), param in zip(declared.items(), parameters, strict=False)
    }


def _split_further(
    cls: Any,
    values: dict[str, Any],
    names: list[str],
    arguments: set[str],
    required: frozenset[str],
) -> dict[str, Any]:
    """Remove and return the ``values`` that are not arguments.

    Raises:
        TypeError: a required argument is missing.
    """
    further = {name: values.pop(name) for name in list(values) if name not in arguments}
    missing = [name for name in names if name in required and name not in values]
    if not missing:
        return further
    needed = f"{len(missing)} required positional argument"
    needed += f"{'s' * (len(missing) > 1)}: {', '.join(map(repr, missing))}"
    name = f"{cls.__qualname__}.__init__()"
    unknown_names = list(further)
    if not unknown_names:
        raise TypeError(f"{name} missing {needed}")
    extra = (
        f"an unexpected keyword argument {unknown_names[0]!r}"
        if len(unknown_names) == 1
        else f"unexpected keyword arguments {unknown_names}"
    )
    fields = sorted(cls._field_names())
    msg = f"{name} got {extra}. Its fields are {fields}. It is also missing {needed}."
    raise TypeError(msg)


def _signature_of(fields: list[Any]) -> inspect.Signature:
    """Return the signature of the class: the fields, then the collection's parameters.

    Raises:
        TypeError: a field without a default follows a field with one.
    """
    kinds = inspect.Parameter
    parameters = [kinds("self", kinds.POSITIONAL_OR_KEYWORD)]
    collection_parameters = _own_parameters()
    has_default = False
    for field in fields:
        if not field.init:
            continue
        collection_parameters.pop(field.name, None)
        default: Any = kinds.empty
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = _UNSET
        kind = kinds.KEYWORD_ONLY if field.kw_only else kinds.POSITIONAL_OR_KEYWORD
        if not field.kw_only:
            if default is kinds.empty and has_default:
                raise TypeError(MSG_ORDER.format(field.name))
            has_default = has_default or default is not kinds.empty
        parameters.append(
            kinds(field.name, kind, default=default, annotation=field.type)
        )
    parameters += collection_parameters.values()
    parameters.sort(key=lambda parameter: parameter.kind)
    return inspect.Signature(parameters, return_annotation=None)


def _set_further(tc: Any, values: dict[str, Any]) -> None:
    """Set the fields that are not arguments; raise an error for any other name."""
    for name, value in values.items():
        tc._check_field(name)
        _assign(tc, name, value)


def _assign(tc: Any, name: str, value: object) -> None:
    """Set a field, also of a frozen class."""
    if sets_natively(type(tc)):
        tc._store_field(name, value)
    else:
        setattr(tc, name, value)


def _wrapped_init(cls: Any, own_init: Any) -> Callable[..., Any]:
    """Wrap the ``__init__`` of the class body to set up the collection first."""

    @functools.wraps(own_init)
    def __init__(  # noqa: N807 - an attribute of a class
        self: Any,
        *args: Any,
        batch_size: Any = None,
        device: Any = None,
        names: Any = None,
        lock: Any = None,
        **kwargs: Any,
    ) -> None:
        _rust.fill_fields(self, {}, batch_size, device, names)
        own_init(self, *args, **kwargs)
        _fill_defaults(self)
        if lock or cls._frozen:
            self._tensordict.lock_()

    declared = inspect.signature(own_init)
    parameters = list(declared.parameters.values())
    declared_names = set(declared.parameters)
    parameters += [
        param for name, param in _own_parameters().items() if name not in declared_names
    ]
    parameters.sort(key=lambda parameter: parameter.kind)
    __init__.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
    return __init__


def _own_parameters() -> dict[str, inspect.Parameter]:
    """Return the parameters that each tensorclass has besides its fields."""
    kind = inspect.Parameter.KEYWORD_ONLY
    names = ("batch_size", "device", "names")
    return {name: inspect.Parameter(name, kind, default=None) for name in names}


def _fill_defaults(tc: Any) -> None:
    """Set the defaults of fields that a user's ``__init__`` did not set.

    Raises:
        TypeError: a field without a default is not set.
    """
    present = tc._tensordict._entries()
    for field in dataclasses.fields(tc):
        if field.name in present:
            continue
        if field.default is not dataclasses.MISSING:
            _assign(tc, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            _assign(tc, field.name, field.default_factory())
        else:
            raise TypeError(MSG_REQUIRED.format(type(tc).__qualname__, field.name))
