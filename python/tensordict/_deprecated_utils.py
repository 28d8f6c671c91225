"""The values of deprecated names: small helpers that were public once.

The package does not use them. For each module, :data:`UTILS` or another table maps its
deprecated names to their values and their replacements.
"""

from __future__ import annotations

import collections
import functools
import importlib
import json
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tensordict.primitives.deprecation import strtobool, warn_caller
from tensordict.primitives.errors import locked_error

__all__ = [
    "NN_COMMON",
    "NN_DISTRIBUTIONS",
    "NN_PARAMS",
    "NN_PROBABILISTIC",
    "NN_TRUNCATED_NORMAL",
    "NN_UTILS",
    "TENSORDICT",
    "TESTING",
    "TOP",
    "UTILS",
]

USE_NESTED_KEY = "isinstance(key, tensordict.NestedKey) (which rejects lists and accepts nested tuples)"
USE_NESTED_KEYS = (
    "isinstance(key, tensordict.NestedKey) on each key (which rejects lists and accepts "
    "nested tuples)"
)
NESTED_TENSOR_ERROR = (
    "The PyTorch version isn't compatible with nested tensors. Please upgrade to a more "
    "recent version."
)

_NUMPY_DTYPES = {
    np.dtype(name): getattr(torch, name)
    for name in (
        "bool",
        "complex128",
        "complex64",
        "float16",
        "float32",
        "float64",
        "int16",
        "int32",
        "int64",
        "int8",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    )
}


class _KeyDependentDefaultDict(collections.defaultdict[Any, Any]):
    """A dictionary that makes a missing value from its key."""

    def __init__(self, fun: Callable[[Any], Any]) -> None:
        super().__init__()
        self.fun = fun

    def __missing__(self, key: object) -> Any:
        self[key] = value = self.fun(key)
        return value


def _is_nested_key(key: object) -> bool:
    """Return whether a key is a string, or a non-empty sequence of strings."""
    if isinstance(key, str):
        return True
    if not key or not isinstance(key, (tuple, list)):
        return False
    return all(isinstance(part, str) for part in key)


def _is_seq_of_nested_key(seq: object) -> bool:
    """Return whether all items of a sequence are nested keys."""
    return isinstance(seq, Sequence) and all(map(_is_nested_key, seq))


def _unravel_keys(
    *keys: object,
) -> str | tuple[str, ...] | tuple[str | tuple[str, ...], ...]:
    """Return the flat form of a key, or of each of several keys."""
    from tensordict._rust import unravel_key

    if len(keys) == 1:
        return unravel_key(keys[0])
    return tuple(unravel_key(key) for key in keys)


def _int_generator(seed: int) -> int:
    """Return a number from 0 to 9,999 that is determined by a seed."""
    from tensordict.distributed.tags import pseudo_random

    return pseudo_random(seed)


def _infer_size_impl(shape: list[int], numel: int) -> list[int]:
    """Return ``shape`` with -1 replaced by the size that makes ``numel`` elements."""
    inferred_dim = None
    product = 1
    for position, length in enumerate(shape):
        if length == -1:
            if inferred_dim is not None:
                msg = "only one dimension can be inferred"
                raise RuntimeError(msg)
            inferred_dim = position
        elif length < 0:
            msg = (
                f"invalid shape dimensions in {list(shape)}: sizes must be non-negative "
                "or -1"
            )
            raise RuntimeError(msg)
        else:
            product *= length
    out = list(shape)
    if inferred_dim is not None and product and numel % product == 0:
        out[inferred_dim] = numel // product
    elif inferred_dim is not None or product != numel:
        msg = f"invalid shape {list(shape)} for a batch of {numel} elements"
        raise RuntimeError(msg)
    return out


def _convert_ellipsis_to_idx(idx: object, batch_size: Sequence[int]) -> Any:
    """Return the index with its ellipsis replaced by full slices."""
    if idx is Ellipsis:
        idx = (...,)
    if not isinstance(idx, tuple) or not any(part is Ellipsis for part in idx):
        return idx
    if sum(part is Ellipsis for part in idx) > 1:
        msg = "An index can only have one ellipsis at most."
        raise RuntimeError(msg)
    used = 0
    for part in idx:
        if part is None or part is Ellipsis:
            continue
        masked = getattr(part, "dtype", None) in (torch.bool, np.dtype("bool"))
        used += part.ndim if masked else 1
    missing = len(batch_size) - used
    if missing < 0:
        msg = "Not enough dimensions in TensorDict for index provided."
        raise RuntimeError(msg)
    ellipsis_at = next(number for number, part in enumerate(idx) if part is Ellipsis)
    return (*idx[:ellipsis_at], *[slice(None)] * missing, *idx[ellipsis_at + 1 :])


def _cache(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method whose result is valid while the tensordict is locked."""

    @functools.wraps(fun)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        _ = self.is_locked
        return fun(self, *args, **kwargs)

    return method


def _erase_cache(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method that invalidates cached results."""

    @functools.wraps(fun)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        return fun(self, *args, **kwargs)

    return method


def _lock_blocked(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method that raises an error if the tensordict is locked."""

    @functools.wraps(func)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        if self.is_locked:
            raise locked_error(self)
        return func(self, *args, **kwargs)

    return method


def deprecated(
    what: str, *, removal: str, replacement: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function whose calls warn that it is deprecated.

    Args:
        what: the function's name for users.
        removal: the version that removes the function.
        replacement: the replacement, if there is one.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def warning(*args: object, **kwargs: object) -> Any:
            warn_caller(_message(what, removal, replacement), DeprecationWarning)
            return function(*args, **kwargs)

        return warning

    return decorate


def deprecated_attributes(
    module: str, attributes: Mapping[str, tuple[Any, str | None]], *, removal: str
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose deprecated names warn.

    Args:
        module: the name of the module.
        attributes: from names to their value and replacement.
        removal: the version that removes the names.
    """

    def attribute(name: str) -> Any:
        if name not in attributes:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value, replacement = attributes[name]
        message = _message(f"{module}.{name}", removal, replacement)
        warn_caller(message, DeprecationWarning)
        return value

    return attribute


def warn_deprecated_env_var(
    name: str, value: str, *, removal: str, replacement: str | None = None
) -> None:
    """Warn about a deprecated environment variable."""
    message = _message(f"{name}={value}", removal, replacement)
    warn_caller(message)


def _message(what: str, removal: str, replacement: str | None) -> str:
    message = f"{what} is deprecated and will be removed in {removal}."
    return f"{message} Use {replacement} instead." if replacement else message


class _Backend:
    """The holder of the JSON module that :func:`_json_dumps` uses."""

    module: Any = json


def _get_json_backend() -> Any:
    """Return the module that writes JSON."""
    return _Backend.module


def _set_json_backend(backend: str) -> None:
    """Set the module that writes JSON: ``"json"`` or ``"orjson"``."""
    if backend not in ("json", "orjson"):
        msg = "Backend must be either 'json' or 'orjson'"
        raise ValueError(msg)
    _Backend.module = importlib.import_module(backend)


def _json_dumps(data: object, **kwargs: object) -> str:
    """Return ``data`` as JSON text."""
    text = _Backend.module.dumps(data, **kwargs)
    return text.decode() if isinstance(text, bytes) else str(text)


class _BufferLegacy(torch.nn.Buffer):
    """A buffer, like :class:`torch.nn.Buffer`."""


def _attribute_of(module: str, name: str) -> Callable[[], Any]:
    """Return a function that imports a module and returns an attribute of it."""

    def value() -> Any:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            # `hasattr` expects an AttributeError.
            msg = f"{name} needs {module}, which is not installed."
            raise AttributeError(msg) from error

    return value


def _value(value: object) -> Callable[[], Any]:
    return lambda: value


Table = dict[str, tuple[Callable[[], Any], str | None]]

UTILS: Table = {
    "BufferLegacy": (_value(_BufferLegacy), None),
    "KeyDependentDefaultDict": (_value(_KeyDependentDefaultDict), None),
    "NESTED_TENSOR_ERR": (_value(NESTED_TENSOR_ERROR), None),
    "NUMPY_TO_TORCH_DTYPE_DICT": (_value(_NUMPY_DTYPES), None),
    "TORCH_TO_NUMPY_DTYPE_DICT": (
        _value({value: key for key, value in _NUMPY_DTYPES.items()}),
        None,
    ),
    "cache": (_value(_cache), None),
    "convert_ellipsis_to_idx": (_value(_convert_ellipsis_to_idx), None),
    "erase_cache": (_value(_erase_cache), None),
    "get_json_backend": (_value(_get_json_backend), None),
    "implement_for": (_attribute_of("pyvers", "implement_for"), "pyvers.implement_for"),
    "infer_size_impl": (_value(_infer_size_impl), None),
    "int_generator": (_value(_int_generator), None),
    "is_namedtuple": (
        _attribute_of("tensordict.ops.python_values", "is_namedtuple"),
        None,
    ),
    "is_namedtuple_class": (
        _attribute_of("tensordict.ops.python_values", "is_namedtuple_class"),
        None,
    ),
    "is_nested_key": (_value(_is_nested_key), USE_NESTED_KEY),
    "is_seq_of_nested_key": (_value(_is_seq_of_nested_key), USE_NESTED_KEYS),
    "json_dumps": (_value(_json_dumps), "json.dumps or orjson.dumps"),
    "lock_blocked": (_value(_lock_blocked), None),
    "prod": (_value(math.prod), "math.prod"),
    "set_json_backend": (_value(_set_json_backend), None),
    "strtobool": (_value(strtobool), None),
    "unravel_keys": (_value(_unravel_keys), "unravel_key or unravel_key_list"),
}
"""The deprecated names of ``tensordict.utils``."""

TENSORDICT: Table = {
    name: UTILS[name]
    for name in (
        "cache",
        "convert_ellipsis_to_idx",
        "erase_cache",
        "implement_for",
        "infer_size_impl",
        "int_generator",
        "is_nested_key",
        "is_seq_of_nested_key",
        "lock_blocked",
    )
}
"""The deprecated names of ``tensordict.tensordict``."""


def _implements_for_tdparam(
    torch_function: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the handler of a torch function for parameters."""

    def decorator(func: Callable[..., Any]) -> Callable[..., Any]:
        _attribute_of("tensordict.interop.torch_functions", "TD_HANDLED_FUNCTIONS")()[
            torch_function
        ] = func
        return func

    return decorator


NN_PARAMS: Table = {
    "TDPARAM_HANDLED_FUNCTIONS": (
        _attribute_of("tensordict.interop.torch_functions", "TD_HANDLED_FUNCTIONS"),
        None,
    ),
    "implements_for_tdparam": (_value(_implements_for_tdparam), None),
}
"""The deprecated names of ``tensordict.nn.params``."""

_PYTREE = "torch.utils._pytree"
_MODULES = "tensordict.nn.functional_modules"
TOP: Table = {
    "Any": (_value(Any), "typing.Any"),
    "Context": (_attribute_of(_PYTREE, "Context"), "torch.utils._pytree.Context"),
    "Dict": (_value(typing.Dict), "typing.Dict"),  # noqa: UP006
    "List": (_value(typing.List), "typing.List"),  # noqa: UP006
    "MappingKey": (
        _attribute_of(_PYTREE, "MappingKey"),
        "torch.utils._pytree.MappingKey",
    ),
    "PYTREE_REGISTERED_LAZY_TDS": (
        _attribute_of("tensordict._pytree", "PYTREE_REGISTERED_LAZY_TDS"),
        f"{_MODULES}.PYTREE_REGISTERED_LAZY_TDS",
    ),
    "PYTREE_REGISTERED_TDS": (
        _attribute_of("tensordict._pytree", "PYTREE_REGISTERED_TDS"),
        f"{_MODULES}.PYTREE_REGISTERED_TDS",
    ),
    "Tuple": (_value(typing.Tuple), "typing.Tuple"),  # noqa: UP006
    "cls": (
        _attribute_of("tensordict", "LazyStackedTensorDict"),
        "tensordict.LazyStackedTensorDict",
    ),
    "defaultdict": (_value(collections.defaultdict), "collections.defaultdict"),
    "implement_for": UTILS["implement_for"],
    "is_batchedtensor": (
        _attribute_of("torch._C._functorch", "is_batchedtensor"),
        "torch._C._functorch.is_batchedtensor",
    ),
    "is_compiling": (
        _attribute_of("torch.compiler", "is_compiling"),
        "torch.compiler.is_compiling",
    ),
    "register_pytree_node": (
        _attribute_of(_PYTREE, "register_pytree_node"),
        "torch.utils._pytree.register_pytree_node",
    ),
    "torch": (_value(torch), "torch"),
}
"""The deprecated names of ``tensordict``."""

TESTING: Table = {
    "MyDistData": (_attribute_of("tensordict._testing", "MyDistData"), None)
}
"""The deprecated names of ``tensordict.testing``."""

NN_UTILS: Table = {"StrEnum": (_attribute_of("enum", "StrEnum"), None)}
"""The deprecated names of ``tensordict.nn.utils``."""

NN_COMMON: Table = {
    name: (_attribute_of("torch._functorch.make_functional", name), f"functorch.{name}")
    for name in ("FunctionalModule", "FunctionalModuleWithBuffers")
}
"""The deprecated names of ``tensordict.nn.common``."""


def _deterministic_register() -> Any:
    """Return the table of deterministic samples by class of distribution."""
    return _attribute_of("tensordict.nn.distributions.deterministic", "register")()()


NN_PROBABILISTIC: Table = {
    "DETERMINISTIC_REGISTER": (
        _deterministic_register,
        "a deterministic_sample attribute on the distribution",
    ),
}
"""The deprecated names of ``tensordict.nn.probabilistic``."""


def _distributions_by_name() -> dict[str, Any]:
    """Return distributions and modules of their parameters by lower-case name."""
    from tensordict.nn import distributions

    classes = (
        distributions.NormalParamExtractor,
        distributions.AddStateIndependentNormalScale,
        distributions.Delta,
        distributions.OneHotCategorical,
    )
    return {cls.__name__.lower(): cls for cls in classes}


NN_DISTRIBUTIONS: Table = {"distributions_maps": (_distributions_by_name, None)}
"""The deprecated names of ``tensordict.nn.distributions``."""

NN_TRUNCATED_NORMAL: Table = {
    "CONST_SQRT_2": (_value(math.sqrt(2)), None),
    "CONST_INV_SQRT_2": (_value(1 / math.sqrt(2)), None),
    "CONST_INV_SQRT_2PI": (_value(1 / math.sqrt(2 * math.pi)), None),
    "CONST_LOG_INV_SQRT_2PI": (_value(-0.5 * math.log(2 * math.pi)), None),
    "CONST_LOG_SQRT_2PI_E": (_value(0.5 * math.log(2 * math.pi * math.e)), None),
}
"""The deprecated names of ``tensordict.nn.distributions.truncated_normal``."""
