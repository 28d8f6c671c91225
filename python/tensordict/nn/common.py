"""Modules of tensors that read from a tensordict and write to it."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensordict import _rust
from tensordict._deprecated_utils import NN_COMMON
from tensordict._established import established_names
from tensordict.containers.collection import TensorDictBase
from tensordict.containers.dense import TensorDict
from tensordict.functional import make_tensordict
from tensordict.nn.base import (
    NestedKey,
    TensorDictModuleBase,
    _OutKeysSelect,  # noqa: F401 - pickles name it here
    is_tdmodule_compatible,  # noqa: F401 - an established name
    module_text,
)
from tensordict.nn.dispatching import SINK, dispatch
from tensordict.nn.settings import SKIP, has_results
from tensordict.primitives.common import value_of
from tensordict.primitives.deprecation import warn_caller, warn_deprecated
from tensordict.primitives.errors import absent_key
from tensordict.primitives.module_calls import plain_inputs, plain_outputs, trace_as
from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "TensorDictModule",
    "TensorDictModuleBase",
    "TensorDictModuleWrapper",
    "WrapModule",
    "as_tensordict_module",
    "dispatch",
    "make_tensordict",
]


MSG_NOT_CALLABLE = (
    "Module {module} if type {type} is not callable. Typical accepted types are nn.Module "
    "or TensorDictModule. If you need to call a specific method from your module, pass "
    "the `method` keyword argument to the TensorDictModule constructor."
)
MSG_INPLACE = (
    "The only accepted valued for inplace is `None`, `True`, `False`, or `'empty'`. Got "
    "inplace={inplace} instead."
)
MSG_MISSING = (
    "Some tensors that are necessary for the module call may not have not been found in "
    "the input tensordict: the following inputs are None: {{{keys}}}. {module} reads "
    "in_keys={in_keys}, the tensordict has {present}. Set the entries before the call, or "
    "give the module other in_keys. With strict=True, a missing entry raises an error "
    "before the call."
)


# A module of tensors ------------------------------------------------------------------


class _Function:
    """A function that is pickled by value with cloudpickle."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __deepcopy__(self, memo: object) -> _Function:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle  # type: ignore[import-untyped]

        return _unpickled, (cloudpickle.dumps(self.function),)


def _unpickled(data: bytes) -> _Function:
    return _Function(pickle.loads(data))  # noqa: S301 - inside of another pickle


class TensorDictModule(TensorDictModuleBase):
    """A module or function of tensors that reads from a tensordict and writes to it.

    Attributes that this class lacks are looked up in ``module``.

    Args:
        module: the module or function to call. It gets the inputs in the order of
            ``in_keys``.
        in_keys: the keys to read: a key, a list of keys, or a dictionary from the names
            of the parameters of ``module`` to keys. With a dictionary the inputs are
            passed as keyword arguments.
        out_keys: the keys to write: a key or a list of keys. An output under the key
            ``"_"`` is dropped. If a key is listed twice, the later output wins.
        out_to_in_map: the direction of a dictionary ``in_keys``. If false, it maps keys
            to parameter names. Default: parameter names to keys.
        inplace: if true, write to the input tensordict and return it. If false or None,
            write to a new tensordict without batch dims. If ``"empty"``, write to a new
            tensordict with the batch size and device of the input.
        method: the name of the method of ``module`` to call.
        method_kwargs: keyword arguments that are passed with each call.
        strict: whether a missing entry raises a ``KeyError`` before the call. If false,
            ``module`` gets None for it.
        get_kwargs: keyword arguments of ``get`` for reading the inputs, such as
            ``{"as_padded_tensor": True}``.

    Raises:
        ValueError: ``module`` is not callable, or the keys or ``inplace`` are invalid.

    Examples:
        >>> module = TensorDictModule(torch.add, ["x", ("n", "y")], [("n", "sum")])
        >>> td = TensorDict(x=torch.ones(2), n={"y": torch.ones(2)})
        >>> module(td)["n", "sum"]
        tensor([2., 2.])
        >>> module(x=torch.ones(2), n_y=torch.zeros(2))
        tensor([1., 1.])
    """

    _IN_KEY_ERR = "in_keys must be of type list, str or tuples of str, or dict."
    _OUT_KEY_ERR = "out_keys must be of type list, str or tuples of str."

    def __init__(
        self,
        module: Callable[..., Any],
        in_keys: NestedKey | list[NestedKey] | dict[Any, Any],
        out_keys: NestedKey | list[NestedKey],
        *,
        out_to_in_map: bool | None = None,
        inplace: bool | str | None = True,
        method: str | None = None,
        method_kwargs: dict[str, Any] | None = None,
        strict: bool = False,
        get_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(module, type) or (method is None and not callable(module)):
            msg = MSG_NOT_CALLABLE.format(module=module, type=type(module))
            raise ValueError(msg)
        if inplace not in (True, False, None, "empty"):
            raise ValueError(MSG_INPLACE.format(inplace=inplace))
        self._kwargs: list[str] | None = None
        if isinstance(in_keys, Mapping):
            if out_to_in_map is False:
                self._kwargs = list(in_keys.values())
                in_keys = list(in_keys)
            else:
                self._kwargs = list(in_keys)
                in_keys = list(in_keys.values())
        elif out_to_in_map is not None:
            warn_caller(
                "out_to_in_map is not None but is only used when in_key is a dictionary.",
                UserWarning,
            )
        self.out_keys: list[Any] = _as_keys(self, out_keys, self._OUT_KEY_ERR)
        self.in_keys: list[Any] = _as_keys(self, in_keys, self._IN_KEY_ERR)
        if SINK in self.in_keys:
            msg = 'key "_" is for ignoring output, it should not be used in input keys'
            warn_caller(msg, UserWarning)
        self.strict = strict
        self.module = module
        self.inplace = inplace
        self.method = method
        self.method_kwargs: dict[str, Any] = dict(method_kwargs or {})
        self._get_kwargs = dict(get_kwargs or {})

    @property
    def is_functional(self) -> bool:
        """Always false; deprecated."""
        warn_deprecated("TensorDictModule.is_functional")
        return False

    @property
    def device(self) -> torch.device:
        """The device of the first parameter, or the CPU; deprecated."""
        warn_caller(
            "TensorDictModule.device is deprecated and will be removed in TensorDict "
            "0.17. Modules may contain parameters and buffers on multiple devices",
            DeprecationWarning,
        )
        for parameter in self.parameters():
            return parameter.device
        return torch.device("cpu")

    def _write_to_tensordict(
        self,
        tensordict: CollectionProtocol,
        tensors: Sequence[Any],
        tensordict_out: Any = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> Any:
        """Write the outputs under their keys; return the tensordict they are in."""
        keys: Any = self._out_keys if out_keys is None else list(out_keys)
        if len(tensors) != len(keys):
            raise _wrong_output_count(self, tensors, keys)
        if tensordict_out is None:
            inplace = self.inplace
            if inplace is True:
                tensordict_out = tensordict
            elif inplace == "empty":
                tensordict_out = tensordict.empty()
            else:
                tensordict_out = TensorDict()
        is_plain = tensordict_out.__class__ is TensorDict
        for key, tensor in zip(keys, tensors, strict=True):
            if key == SINK:
                continue
            if not isinstance(tensor, (torch.Tensor, CollectionProtocol)):
                # A structure, such as the states of an LSTM, becomes one entry.
                tensor = TensorDict.from_any(tensor)
            try:
                if is_plain:
                    # `set` would be traced by the compiler for each module.
                    _rust.set_entry(tensordict_out, key, tensor, False)
                else:
                    tensordict_out.set(key, tensor)
            except Exception as error:
                _explain_output(self, error)
                raise
        return tensordict_out

    def _call_module(self, tensors: Sequence[Any], **kwargs: object) -> Any:
        """Call the module, or its method, with the inputs."""
        module: Any = self._modules.get("module")
        if module is None:
            module = self.module
        if self.method is not None:
            module = getattr(module, self.method)
        if self._kwargs is not None:
            kwargs.update(zip(self._kwargs, tensors, strict=True))
            return module(**kwargs, **self.method_kwargs)
        if self.method_kwargs:
            return module(*tensors, **kwargs, **self.method_kwargs)
        return module(*tensors, **kwargs)

    @dispatch(auto_batch_size=False)
    def forward(
        self,
        tensordict: Any = None,
        *args: object,
        tensordict_out: Any = None,
        **kwargs: object,
    ) -> Any:
        """Read the inputs, call the module and write the outputs.

        Args:
            tensordict: the input tensordict. Tensors by position or by name work too,
                see :class:`dispatch`.
            *args: an error if ``tensordict`` is a tensordict.
            tensordict_out: the tensordict to write the outputs to. Default: see
                ``inplace``.
            **kwargs: further keyword arguments of the module.

        Returns:
            The tensordict that holds the outputs. If the inputs were tensors: the
            output, or a tuple of outputs.

        Raises:
            KeyError: an entry is missing, and the module failed for it or ``strict`` is
                true.
            RuntimeError: the numbers of outputs and of ``out_keys`` differ.
            ValueError: there are more positional arguments than inputs.
        """
        if args:
            msg = (
                "Got a non-empty list of extra agruments, when none was expected. "
                f"{type(self).__name__} takes a tensordict, or {len(self.in_keys)} "
                "tensors."
            )
            raise ValueError(msg)
        skip = SKIP.get() if SKIP.by_thread else SKIP.value
        if skip and has_results(
            skip, self._in_keys, self._out_keys_apparent, tensordict
        ):
            return tensordict
        if self.strict:
            try:
                tensors = [tensordict[key] for key in self._in_keys]
            except KeyError as error:
                raise _missing_strictly(self, tensordict, error) from None
        else:
            tensors = _read(tensordict, self._in_keys, self._get_kwargs)
        try:
            outputs = self._call_module(tensors, **kwargs)
        except Exception as error:
            missing = _missing_among(self._in_keys, tensors)
            # If a None input caused the error, its message usually contains "None".
            if missing and "None" in str(error):
                raise _missing_inputs(self, missing, tensordict) from error
            _explain(self, tensors, error)
            raise
        return self._write_outputs(tensordict, outputs, tensordict_out)

    def _write_outputs(
        self,
        tensordict: CollectionProtocol,
        outputs: object,
        tensordict_out: CollectionProtocol,
    ) -> Any:
        """Write the outputs of one call of the module."""
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        elif not isinstance(outputs, tuple):
            outputs = self._as_outputs(outputs)
        return self._write_to_tensordict(tensordict, outputs, tensordict_out)

    def _as_outputs(self, outputs: object) -> tuple[Any, ...]:
        """Return the output of a module as a tuple, one element for each output key."""
        if outputs is None:
            return ()
        if isinstance(outputs, (dict, TensorDictBase)):
            result: Any = outputs
            keys = self._out_keys
            present = [key in result for key in keys]
            if keys and all(present):
                return tuple([result[key] for key in keys])
        return (outputs,)

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the wrapped module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            state = self.__dict__
            modules = state.get("_modules", {})
            if "module" in modules and not name.startswith("__"):
                return getattr(modules["module"], name)
            if "module" in state and not name.startswith("_"):
                # `module` is a plain function here. Its private attributes stay hidden.
                found = getattr(state["module"], name, None)
                if found is not None:
                    return found
            raise

    def __getstate__(self) -> dict[str, Any]:
        """Return the state; a plain function is pickled by value."""
        state = self.__dict__.copy()
        if "module" in state:
            state["module"] = _Function(state["module"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`__getstate__` returned."""
        state = dict(state)
        if isinstance(state.get("module"), _Function):
            state["module"] = state["module"].function
        super().__setstate__(state)

    def __repr__(self) -> str:
        """Return the text of the wrapped module and the keys."""
        modules = dict(self._modules)
        if "module" in self.__dict__:
            modules = {"module": self.__dict__["module"], **modules}
        return module_text(self, modules.items())


def _traced(module: Any, *args: Any, **kwargs: object) -> Any:
    """Run ``TensorDictModule.forward`` in the form that the compiler traces."""
    found = plain_inputs(module, args, kwargs, SKIP)
    if found is None:
        return _full_forward(module, *args, **kwargs)
    called, inputs = found
    outputs = called(*inputs)
    if plain_outputs(module, args[0], outputs):
        return args[0]
    return module._write_outputs(args[0], outputs, None)


_full_forward = trace_as(TensorDictModule.forward, _traced)


def _as_keys(module: object, keys: object, message: str) -> list[NestedKey]:
    message = f"{message} Got {keys!r} for {type(module).__name__}."
    if isinstance(keys, (str, tuple)):
        keys = [keys]
    if not isinstance(keys, MutableSequence):
        raise ValueError(message)
    try:
        return _rust.unravel_key_list(list(keys))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(message) from error


def _read(
    td: CollectionProtocol, keys: list[NestedKey], kwargs: dict[str, Any]
) -> list[Any]:
    """Read the inputs: None for a missing key, the Python object of non-tensor data."""
    is_plain = not kwargs and td.__class__ is TensorDict
    # Reading the dictionary of a plain tensordict spares the compiler a call per key.
    entries = td._tensordict if is_plain else {}
    values = []
    for key in keys:
        value = entries.get(key)
        if value is None:
            value = (
                _rust.get(td, key, None) if is_plain else td.get(key, None, **kwargs)
            )
        values.append(value if isinstance(value, torch.Tensor) else value_of(value))
    return values


def _missing_among(keys: Sequence[NestedKey], tensors: list[Any]) -> list[str]:
    """Return the keys of the missing inputs, as text."""
    pairs = zip(keys, tensors, strict=True)
    return [repr(key) for key, tensor in pairs if tensor is None]


def _wrong_output_count(
    module: object, tensors: Sequence[Any], keys: Any
) -> RuntimeError:
    """Return the error for a number of outputs that differs from the number of keys."""
    name, count = type(module).__name__, len(tensors)
    if count > len(keys):
        return RuntimeError(
            f"There are more tensors (len(tensors)={count}) than out_keys "
            f"(out_keys={keys}). {name} needs a key for each output: "
            'name it "_" to drop it.'
        )
    return RuntimeError(
        f"There are more out_keys than tensors. The module of {name} returned {count} "
        f"outputs for out_keys={keys}: several outputs are a tuple, or a dictionary "
        "with these keys."
    )


def _explain(module: Any, tensors: list[Any], error: BaseException) -> None:
    """Add to an error of the module its inputs and the shapes of its parameters."""
    read = ", ".join(
        f"{key!r} {_shape_of(tensor)}"
        for key, tensor in zip(module.in_keys, tensors, strict=True)
    )
    called = module.module
    name = _name_of(called)
    note = f"{type(module).__name__} called {name} with {read or 'no entries'}"
    if isinstance(called, nn.Module):
        shapes = [f"{name} {_shape_of(p)}" for name, p in called.named_parameters()]
        listed = ", ".join(shapes[:8]) + (", ..." if len(shapes) > 8 else "")
        note += f"; its parameters: {listed or 'none'}"
    note += "."
    missing = _missing_among(module.in_keys, tensors)
    if missing:
        note += (
            f" There is no {', '.join(missing)}: set it before the call, or give the "
            "module other in_keys."
        )
    error.add_note(note)


def _explain_output(module: torch.nn.Module, error: BaseException) -> None:
    """Add to an error of a write the module and the keys that it writes."""
    note = (
        f"{type(module).__name__} writes the outputs of {_name_of(module.module)} to "
        f"out_keys={module.out_keys_source}."
    )
    if isinstance(error, KeyError):
        note += (
            " A leaf has no entries below it: give the module other out_keys, or rename "
            "the leaf before the call."
        )
    error.add_note(note)


def _name_of(called: object) -> str:
    return getattr(called, "__name__", type(called).__name__)


def _shape_of(value: object) -> str:
    """Return the text of the shape of a tensor, or of the type of another value."""
    if isinstance(value, torch.Tensor):
        return f"of shape {list(value.shape)}"
    return f"of type {type(value).__name__}"


def _missing_inputs(
    module: torch.nn.Module, missing: list[str], td: CollectionProtocol
) -> KeyError:
    return absent_key(
        MSG_MISSING.format(
            keys=", ".join(missing),
            module=type(module).__name__,
            in_keys=module.in_keys,
            present=list(td.keys()),
        )
    )


def _missing_strictly(module: Any, td: Any, error: KeyError) -> KeyError:
    missing = [key for key in module.in_keys if not _rust.contains(td, key)]
    return absent_key(
        f"{error.args[0]}. {type(module).__name__} reads in_keys={module.in_keys} with "
        f"strict=True, and {missing} are not there. Set the entries before the call, or "
        "give the module other in_keys."
    )


# Wrappers -----------------------------------------------------------------------------


_FORWARDED_KEYS = {
    "_in_keys": "in_keys",
    "_out_keys": "out_keys_source",
    "_out_keys_apparent": "out_keys",
}


def keys_of(module: object, name: str, user: str) -> list[NestedKey]:
    """Return the ``in_keys`` or ``out_keys`` of a wrapped module.

    Args:
        module: the wrapped module.
        name: ``"in_keys"`` or ``"out_keys"``.
        user: the class that wraps it, for the error.

    Raises:
        AttributeError: the module has no such keys.
    """
    try:
        keys: list[NestedKey] = getattr(module, name)
    except AttributeError as error:
        error.add_note(
            f"{user} takes a module with in_keys and out_keys, got a "
            f"{type(module).__name__}. Wrap it: TensorDictModule(module, in_keys, out_keys)."
        )
        raise
    return keys


class TensorDictModuleWrapper(TensorDictModuleBase):
    """A module that forwards its calls, keys and attributes to another module.

    Args:
        td_module: the wrapped module.

    Examples:
        >>> inner = TensorDictModule(torch.abs, in_keys=["x"], out_keys=["y"])
        >>> TensorDictModuleWrapper(inner)(x=torch.tensor(-1.0))
        tensor(1.)
    """

    def __init__(self, td_module: TensorDictModuleBase) -> None:
        super().__init__()
        self.td_module = td_module

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the wrapped module, also its keys unless set here."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if "td_module" not in modules or name.startswith("__"):
                raise
            name = _FORWARDED_KEYS.get(name, name)
            if name in ("in_keys", "out_keys"):
                return keys_of(modules["td_module"], name, type(self).__qualname__)
            return getattr(modules["td_module"], name)

    @property
    def out_keys(self) -> list[NestedKey]:
        """The keys that the module writes; set, they are set on the wrapped module."""
        return self._out_keys_apparent

    @out_keys.setter
    def out_keys(self, value: Iterable[NestedKey]) -> None:
        self.td_module.out_keys = list(value)
        self._drop_selection()
        self.__dict__.pop("_out_keys_apparent", None)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Call the wrapped module."""
        # Read from `_modules`: the compiler would trace `__getattr__`.
        module: Any = self._modules["td_module"]
        result = module(*args, **kwargs)
        if isinstance(result, tuple) and "_out_keys_apparent" in self.__dict__:
            return self._selected_of(result)
        return result

    def _selected_of(self, outputs: tuple[Any, ...]) -> Any:
        """Return the selected outputs of a call with tensors."""
        keys = [key for key in self.td_module.out_keys if key != SINK]
        named = dict(zip(keys, outputs, strict=True))
        chosen = tuple([named[key] for key in self.out_keys if key != SINK])
        return chosen[0] if len(chosen) == 1 else chosen


class WrapModule(TensorDictModuleBase):
    """A module that calls a function of a tensordict.

    Args:
        func: a function that takes a tensordict and returns a tensordict.
        inplace: if true, update the input with the result of ``func`` and return the
            input.
        in_keys: the keys that ``func`` reads. They are information only. Default: none.
        out_keys: the keys that ``func`` writes. They are information only. Default:
            none.

    Examples:
        >>> module = WrapModule(lambda td: td.exclude("x"))
        >>> list(module(TensorDict(x=torch.zeros(1), y=torch.zeros(1))).keys())
        ['y']
    """

    in_keys: list[NestedKey] = []  # noqa: RUF012
    out_keys: list[NestedKey] = []  # noqa: RUF012

    def __init__(
        self,
        func: Callable[[Any], Any],
        *,
        inplace: bool = False,
        in_keys: list[NestedKey] | None = None,
        out_keys: list[NestedKey] | None = None,
    ) -> None:
        super().__init__()
        self.func = func
        if in_keys is not None:
            self.in_keys = in_keys
        if out_keys is not None:
            self.out_keys = out_keys
        self.inplace = inplace

    def forward(self, data: Any) -> Any:
        """Call the function."""
        result = self.func(data)
        if self.inplace and result is not data:
            return data.update(result)
        return result


class as_tensordict_module:  # noqa: N801 - a public name
    """A decorator that makes a function of tensors read from and write to a tensordict.

    Examples:
        >>> @as_tensordict_module(in_keys=["x"], out_keys=["y"])
        ... def double(x):
        ...     return x * 2
        >>> double(TensorDict(x=torch.ones(2)))["y"]
        tensor([2., 2.])
    """

    def __init__(
        self,
        *,
        in_keys: list[NestedKey] | NestedKey,
        out_keys: list[NestedKey] | NestedKey,
    ) -> None:
        self.in_keys = in_keys
        self.out_keys = out_keys

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which now takes a tensordict."""
        parameters = list(inspect_parameters(func))
        is_method = bool(parameters) and parameters[0] == "self"
        if is_method:

            @functools.wraps(func)
            def method(_self: object, *args: object, **kwargs: object) -> Any:
                bound = functools.partial(func, _self)
                module = TensorDictModule(bound, self.in_keys, self.out_keys)
                return module(*args, **kwargs)

            return method
        module = TensorDictModule(func, self.in_keys, self.out_keys)

        @functools.wraps(func)
        def function(*args: object, **kwargs: object) -> Any:
            return module(*args, **kwargs)

        return function


def inspect_parameters(func: Callable[..., Any]) -> Iterable[str]:
    """Return the names of the parameters of a function."""
    import inspect

    return inspect.signature(func).parameters


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__, NN_COMMON)
