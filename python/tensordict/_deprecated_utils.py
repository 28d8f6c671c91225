"""Small helpers that were public once: what the deprecated names of modules give.

Nothing here is used by the package. The table :data:`UTILS` and its neighbours name,
for each module, its deprecated names, what they give, and what to use instead.
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
    """A dictionary whose missing values are made from their key."""

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


def _unravel_keys(*keys: object) -> Any:
    """The flat form of a key, or of each of several."""
    from tensordict._rust import unravel_key

    if len(keys) == 1:
        return unravel_key(keys[0])
    return tuple(unravel_key(key) for key in keys)


def _int_generator(seed: int) -> int:
    """A number from 0 to 9,999, always the same for a seed."""
    from tensordict.distributed.tags import pseudo_random

    return pseudo_random(seed)


def _infer_size_impl(shape: list[int], numel: int) -> list[int]:
    """``shape`` with its -1 replaced by what makes ``numel`` elements."""
    found = None
    known = 1
    for position, length in enumerate(shape):
        if length == -1:
            if found is not None:
                msg = "only one dimension can be inferred"
                raise RuntimeError(msg)
            found = position
        elif length < 0:
            msg = (
                f"invalid shape dimensions in {list(shape)}: sizes must be non-negative "
                "or -1"
            )
            raise RuntimeError(msg)
        else:
            known *= length
    out = list(shape)
    if found is not None and known and numel % known == 0:
        out[found] = numel // known
    elif found is not None or known != numel:
        msg = f"invalid shape {list(shape)} for a batch of {numel} elements"
        raise RuntimeError(msg)
    return out


def _convert_ellipsis_to_idx(idx: object, batch_size: Sequence[int]) -> Any:
    """The index with its ellipsis written out as full slices."""
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
    at = next(number for number, part in enumerate(idx) if part is Ellipsis)
    return (*idx[:at], *[slice(None)] * missing, *idx[at + 1 :])


def _cache(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method of a collection whose answer holds while it is locked."""

    @functools.wraps(fun)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        _ = self.is_locked
        return fun(self, *args, **kwargs)

    return method


def _erase_cache(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method of a collection after which nothing kept holds."""

    @functools.wraps(fun)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        return fun(self, *args, **kwargs)

    return method


def _lock_blocked(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method of a collection refuse a locked one."""

    @functools.wraps(func)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        if self.is_locked:
            raise locked_error(self)
        return func(self, *args, **kwargs)

    return method


def deprecated(
    what: str, *, removal: str, replacement: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make calls of the decorated function warn that it is on its way out.

    Args:
        what: the function, as users know it.
        removal: the version that will not have it.
        replacement: what to use instead.
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
    """The ``__getattr__`` of a module whose old names warn.

    Args:
        module: the name of the module.
        attributes: by name, the value and what to use instead.
        removal: the version that will not have them.
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
    """Warn of an environment variable that is on its way out."""
    message = _message(f"{name}={value}", removal, replacement)
    warn_caller(message)


def _message(what: str, removal: str, replacement: str | None) -> str:
    message = f"{what} is deprecated and will be removed in {removal}."
    return f"{message} Use {replacement} instead." if replacement else message


class _Backend:
    """The module that :func:`_json_dumps` uses."""

    module: Any = json


def _get_json_backend() -> Any:
    """The module that writes JSON."""
    return _Backend.module


def _set_json_backend(backend: str) -> None:
    """Choose the module that writes JSON, ``"json"`` or ``"orjson"``."""
    if backend not in ("json", "orjson"):
        msg = "Backend must be either 'json' or 'orjson'"
        raise ValueError(msg)
    _Backend.module = importlib.import_module(backend)


def _json_dumps(data: object, **kwargs: object) -> str:
    """``data`` as JSON text."""
    text = _Backend.module.dumps(data, **kwargs)
    return text.decode() if isinstance(text, bytes) else str(text)


class _BufferLegacy(torch.nn.Buffer):
    """A buffer, as :class:`torch.nn.Buffer` is one today."""


def _of(module: str, name: str) -> Callable[[], Any]:
    """The attribute of a module that is imported when the name is used."""

    def value() -> Any:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            # `hasattr` gets an answer.
            msg = f"{name} is a name of {module}, which is not installed."
            raise AttributeError(msg) from error

    return value


def _is(value: object) -> Callable[[], Any]:
    return lambda: value


Table = dict[str, tuple[Callable[[], Any], str | None]]

UTILS: Table = {
    "BufferLegacy": (_is(_BufferLegacy), None),
    "KeyDependentDefaultDict": (_is(_KeyDependentDefaultDict), None),
    "NESTED_TENSOR_ERR": (_is(NESTED_TENSOR_ERROR), None),
    "NUMPY_TO_TORCH_DTYPE_DICT": (_is(_NUMPY_DTYPES), None),
    "TORCH_TO_NUMPY_DTYPE_DICT": (
        _is({value: key for key, value in _NUMPY_DTYPES.items()}),
        None,
    ),
    "cache": (_is(_cache), None),
    "convert_ellipsis_to_idx": (_is(_convert_ellipsis_to_idx), None),
    "erase_cache": (_is(_erase_cache), None),
    "get_json_backend": (_is(_get_json_backend), None),
    "implement_for": (_of("pyvers", "implement_for"), "pyvers.implement_for"),
    "infer_size_impl": (_is(_infer_size_impl), None),
    "int_generator": (_is(_int_generator), None),
    "is_namedtuple": (_of("tensordict.ops.python_values", "is_namedtuple"), None),
    "is_namedtuple_class": (
        _of("tensordict.ops.python_values", "is_namedtuple_class"),
        None,
    ),
    "is_nested_key": (_is(_is_nested_key), USE_NESTED_KEY),
    "is_seq_of_nested_key": (_is(_is_seq_of_nested_key), USE_NESTED_KEYS),
    "json_dumps": (_is(_json_dumps), "json.dumps or orjson.dumps"),
    "lock_blocked": (_is(_lock_blocked), None),
    "prod": (_is(math.prod), "math.prod"),
    "set_json_backend": (_is(_set_json_backend), None),
    "strtobool": (_is(strtobool), None),
    "unravel_keys": (_is(_unravel_keys), "unravel_key or unravel_key_list"),
}
"""The names that ``tensordict.utils`` still answers."""

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
"""The names that ``tensordict.tensordict`` still answers."""


def _implements_for_tdparam(
    torch_function: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function the answer of parameters to a torch function."""

    def decorator(func: Callable[..., Any]) -> Callable[..., Any]:
        _of("tensordict.interop.torch_functions", "TD_HANDLED_FUNCTIONS")()[
            torch_function
        ] = func
        return func

    return decorator


NN_PARAMS: Table = {
    "TDPARAM_HANDLED_FUNCTIONS": (
        _of("tensordict.interop.torch_functions", "TD_HANDLED_FUNCTIONS"),
        None,
    ),
    "implements_for_tdparam": (_is(_implements_for_tdparam), None),
}
"""The names that ``tensordict.nn.params`` still answers."""

_PYTREE = "torch.utils._pytree"
_MODULES = "tensordict.nn.functional_modules"
TOP: Table = {
    "Any": (_is(Any), "typing.Any"),
    "Context": (_of(_PYTREE, "Context"), "torch.utils._pytree.Context"),
    "Dict": (_is(typing.Dict), "typing.Dict"),  # noqa: UP006
    "List": (_is(typing.List), "typing.List"),  # noqa: UP006
    "MappingKey": (_of(_PYTREE, "MappingKey"), "torch.utils._pytree.MappingKey"),
    "PYTREE_REGISTERED_LAZY_TDS": (
        _of("tensordict._pytree", "PYTREE_REGISTERED_LAZY_TDS"),
        f"{_MODULES}.PYTREE_REGISTERED_LAZY_TDS",
    ),
    "PYTREE_REGISTERED_TDS": (
        _of("tensordict._pytree", "PYTREE_REGISTERED_TDS"),
        f"{_MODULES}.PYTREE_REGISTERED_TDS",
    ),
    "Tuple": (_is(typing.Tuple), "typing.Tuple"),  # noqa: UP006
    "cls": (
        _of("tensordict", "LazyStackedTensorDict"),
        "tensordict.LazyStackedTensorDict",
    ),
    "defaultdict": (_is(collections.defaultdict), "collections.defaultdict"),
    "implement_for": UTILS["implement_for"],
    "is_batchedtensor": (
        _of("torch._C._functorch", "is_batchedtensor"),
        "torch._C._functorch.is_batchedtensor",
    ),
    "is_compiling": (
        _of("torch.compiler", "is_compiling"),
        "torch.compiler.is_compiling",
    ),
    "register_pytree_node": (
        _of(_PYTREE, "register_pytree_node"),
        "torch.utils._pytree.register_pytree_node",
    ),
    "torch": (_is(torch), "torch"),
}
"""The names that ``tensordict`` itself still answers."""

TESTING: Table = {"MyDistData": (_of("tensordict._testing", "MyDistData"), None)}
"""The names that ``tensordict.testing`` still answers."""

NN_UTILS: Table = {"StrEnum": (_of("enum", "StrEnum"), None)}
"""The names that ``tensordict.nn.utils`` still answers."""

NN_COMMON: Table = {
    name: (_of("torch._functorch.make_functional", name), f"functorch.{name}")
    for name in ("FunctionalModule", "FunctionalModuleWithBuffers")
}
"""The names that ``tensordict.nn.common`` still answers."""


def _deterministic_register() -> Any:
    """Register the deterministic sample of each class of distributions."""
    return _of("tensordict.nn.distributions.deterministic", "register")()()


NN_PROBABILISTIC: Table = {
    "DETERMINISTIC_REGISTER": (
        _deterministic_register,
        "a deterministic_sample attribute on the distribution",
    ),
}
"""The names that ``tensordict.nn.probabilistic`` still answers."""


def _distributions_by_name() -> dict[str, Any]:
    """Distributions and modules of their parameters by their names in lower case."""
    from tensordict.nn import distributions

    classes = (
        distributions.NormalParamExtractor,
        distributions.AddStateIndependentNormalScale,
        distributions.Delta,
        distributions.OneHotCategorical,
    )
    return {cls.__name__.lower(): cls for cls in classes}


NN_DISTRIBUTIONS: Table = {"distributions_maps": (_distributions_by_name, None)}
"""The names that ``tensordict.nn.distributions`` still answers."""

NN_TRUNCATED_NORMAL: Table = {
    "CONST_SQRT_2": (_is(math.sqrt(2)), None),
    "CONST_INV_SQRT_2": (_is(1 / math.sqrt(2)), None),
    "CONST_INV_SQRT_2PI": (_is(1 / math.sqrt(2 * math.pi)), None),
    "CONST_LOG_INV_SQRT_2PI": (_is(-0.5 * math.log(2 * math.pi)), None),
    "CONST_LOG_SQRT_2PI_E": (_is(0.5 * math.log(2 * math.pi * math.e)), None),
}
"""The names that ``tensordict.nn.distributions.truncated_normal`` still answers."""
