"""Calls of a module with tensors instead of a tensordict."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Protocol, cast, overload

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.nn.settings import DISPATCH
from tensordict.primitives.deprecation import warn_deprecated
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["dispatch"]

SINK = "_"
"""The output key whose output is dropped."""

MSG_TWICE = (
    "Duplicated argument in args and kwargs. The input {key!r} of {module} was passed by "
    "position and by name: pass it once."
)

MSG_FUNCTION = (
    "The in keys must be passed to dispatch when func is not a method but a function. Pass "
    "its keys: dispatch(source=['x'], dest=['y'])."
)


class _Dispatch:
    """A decorator: a method of a tensordict can also be called with its tensors.

    The method can be called with a tensordict, with the inputs in order, or with the
    inputs by name. The name of a nested key is its parts joined by ``separator``. A
    call with tensors returns the output, or a tuple of the outputs. A function can be
    decorated too, if ``source`` and ``dest`` are lists of keys.

    Args:
        separator: the text between the parts of a nested key.
        source: the input keys, or the name of the attribute that holds them.
        dest: the output keys, or the name of the attribute that holds them.
        auto_batch_size: whether the tensordict that is made of the tensors gets their
            common leading shape as batch size. If false, its batch size is empty.

    Raises:
        RuntimeError: the first parameter of the method is not named ``tensordict``, an
            input is passed twice, or ``source`` or ``dest`` of a function is no list of
            keys.
        KeyError: the method did not write an output key.

    Examples:
        >>> from tensordict.nn import TensorDictModuleBase
        >>> class Sum(TensorDictModuleBase):
        ...     in_keys = ["x", ("n", "y")]
        ...     out_keys = ["z"]
        ...
        ...     @dispatch
        ...     def forward(self, tensordict):
        ...         return tensordict.set("z", tensordict["x"] + tensordict["n", "y"])
        >>> Sum()(torch.ones(2), n_y=torch.ones(2))
        tensor([2., 2.])
    """

    __qualname__ = "dispatch"

    DEFAULT_SEPARATOR = "_"
    DEFAULT_SOURCE = "in_keys"
    DEFAULT_DEST = "out_keys"

    def __new__(
        cls,
        separator: object = DEFAULT_SEPARATOR,
        source: str | Sequence[Any] = DEFAULT_SOURCE,  # noqa: ARG004
        dest: str | Sequence[Any] = DEFAULT_DEST,  # noqa: ARG004
        auto_batch_size: bool = True,  # noqa: ARG004
    ) -> Any:
        """Return the decorator; for ``@dispatch`` without arguments, the method."""
        if callable(separator):
            return cls()(separator)
        return super().__new__(cls)

    def __init__(
        self,
        separator: str = DEFAULT_SEPARATOR,
        source: str | Sequence[Any] = DEFAULT_SOURCE,
        dest: str | Sequence[Any] = DEFAULT_DEST,
        auto_batch_size: bool = True,
    ) -> None:
        self.separator = separator
        self.source = source
        self.dest = dest
        self.auto_batch_size = auto_batch_size

    def get_source(self, func: object, self_func: object) -> Any:
        """Return the input keys for a call on an instance; deprecated."""
        warn_deprecated("dispatch.get_source")
        return _keys_of(self_func, self.source)

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method, which takes a tensordict or tensors."""
        parameters = list(inspect.signature(func).parameters)
        if parameters[:1] == ["tensordict"]:
            return self._decorate_function(func)
        if len(parameters) < 2 or parameters[1] != "tensordict":
            found = parameters[1] if len(parameters) > 1 else "none"
            msg = (
                "the first argument of the wrapped function must be named 'tensordict'. "
                f"Got {found} instead."
            )
            raise RuntimeError(msg)
        return self._decorate_method(func)

    def _decorate_function(self, func: Callable[..., Any]) -> Callable[..., Any]:
        if isinstance(self.source, str) or isinstance(self.dest, str):
            raise RuntimeError(MSG_FUNCTION)
        method = self._decorate_method(lambda _, *args, **kwargs: func(*args, **kwargs))

        @functools.wraps(func)
        def function(*args: object, **kwargs: object) -> Any:
            return method(func, *args, **kwargs)

        return function

    def _decorate_method(self, func: Callable[..., Any]) -> Callable[..., Any]:
        separator, source, dest = self.separator, self.source, self.dest
        auto_batch_size = self.auto_batch_size

        @functools.wraps(func)
        def method(_self: object, *args: object, **kwargs: object) -> Any:
            first = args[0] if args else kwargs.get("tensordict")
            if isinstance(first, CollectionProtocol) or not DISPATCH.get():
                return func(_self, *args, **kwargs)
            in_keys = _keys_of(_self, source)
            entries, args, kwargs = _gather(_self, in_keys, separator, args, kwargs)
            td: Any = TensorDict(entries)
            if auto_batch_size:
                td.auto_batch_size_()
            try:
                result = func(_self, td, *args, **kwargs)
                out_keys = _keys_of(_self, dest)
                outputs = tuple([result[key] for key in out_keys if key != SINK])
            except KeyError as error:
                _explain_missing(_self, in_keys, dest, td, error)
                raise
            return outputs[0] if len(outputs) == 1 else outputs

        return method


_Dispatch.__name__ = "dispatch"
_Dispatch.__module__ = "tensordict.nn.common"


class _Decorator(Protocol):
    """The type of :class:`dispatch` for type checkers: with or without arguments."""

    @overload
    def __call__(self, method: Callable[..., Any], /) -> Callable[..., Any]: ...
    @overload
    def __call__(
        self,
        separator: str = ...,
        source: str | Sequence[Any] = ...,
        dest: str | Sequence[Any] = ...,
        auto_batch_size: bool = ...,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


dispatch: _Decorator = cast("Any", _Dispatch)


def _keys_of(module: object, keys: object) -> Any:
    """Return the keys, or the attribute of ``module`` that ``keys`` names."""
    return getattr(module, keys) if isinstance(keys, str) else keys


def _gather(
    module: object,
    in_keys: Sequence[Any],
    separator: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[dict[Any, Any], tuple[Any, ...], dict[str, Any]]:
    """Sort the arguments of a call into entries and other arguments.

    Returns:
        The entries by key, the other positional arguments and the other keyword
        arguments.
    """
    entries = dict(zip(in_keys, args, strict=False))
    other_kwargs = dict(kwargs)
    for key in in_keys:
        name = key if isinstance(key, str) else separator.join(key)
        if name in other_kwargs:
            if key in entries:
                msg = MSG_TWICE.format(key=name, module=type(module).__name__)
                raise RuntimeError(msg)
            entries[key] = other_kwargs.pop(name)
    return entries, args[len(in_keys) :], other_kwargs


def _explain_missing(
    module: object,
    in_keys: Sequence[Any],
    dest: object,
    td: CollectionProtocol,
    error: BaseException,
) -> None:
    """Add to a ``KeyError`` the inputs or outputs that are missing."""
    missing = [key for key in in_keys if not _rust.contains(td, key)]
    name = type(module).__name__
    if missing:
        note = (
            f"{name} was called without {missing}: it reads {list(in_keys)}. Pass these"
        )
        error.add_note(f"{note} by position or by name, or in a tensordict.")
    else:
        out_keys = getattr(module, dest, None) if isinstance(dest, str) else dest
        error.add_note(f"{name} got all inputs, but did not write all of {out_keys}.")


def is_contained(td: CollectionProtocol, keys: Sequence[Any]) -> bool:
    """Return whether a tensordict contains all of ``keys``."""
    return all([_rust.contains(td, key) for key in keys])
