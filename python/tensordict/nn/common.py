"""Modules that read their inputs from a collection and write their outputs to it."""

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
    "give the module other in_keys; with strict=True a missing entry is an error of its "
    "own."
)


# A module of tensors ------------------------------------------------------------------


class _Function:
    """A function that is pickled by value where pickle has no name for it."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __deepcopy__(self, memo: object) -> _Function:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle  # type: ignore[import-untyped]

        return _unpickled, (cloudpickle.dumps(self.function),)


def _unpickled(data: bytes) -> _Function:
    return _Function(pickle.loads(data))  # noqa: S301 - it is inside another pickle


class TensorDictModule(TensorDictModuleBase):
    """A module or function of tensors, which reads and writes a collection here.

    Attributes that this has not are those of the module inside.

    Args:
        module: what is called with the inputs, in order.
        in_keys: the entries to read: a key, a list of keys, or a dictionary from the
            module's parameters to the keys that they get, which are given by name.
        out_keys: where the outputs go: a key or a list of keys. What is for the key
            ``"_"`` is dropped. A key that is there twice has the last of its outputs.
        out_to_in_map: for a dictionary. True is as above; false reads it from the keys
            to the parameters.
        inplace: true writes to the input and gives it back; false writes to a new
            collection without batch dims; ``"empty"`` to an empty one like the input.
        method: the method of the module that is called.
        method_kwargs: further arguments of each call.
        strict: whether a missing entry is an error at once. Otherwise the module gets
            None, and the error says so if it fails.
        get_kwargs: arguments for reading, such as ``{"as_padded_tensor": True}``.

    Raises:
        ValueError: the module cannot be called, or the keys are no keys.

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
        """False; deprecated."""
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
        """Write the outputs of the module to their keys; the collection that has them."""
        keys: Any = self._out_keys if out_keys is None else list(out_keys)
        if len(tensors) != len(keys):
            raise _other_number(self, tensors, keys)
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
                # A structure, such as the states of an LSTM, is an entry as a whole.
                tensor = TensorDict.from_any(tensor)
            try:
                if is_plain:
                    # The compiler would follow `set` for each module.
                    _rust.set_entry(tensordict_out, key, tensor, False)
                else:
                    tensordict_out.set(key, tensor)
            except Exception as error:
                _explain_output(self, error)
                raise
        return tensordict_out

    def _call_module(self, tensors: Sequence[Any], **kwargs: object) -> Any:
        """Call the module, or its method, with the inputs in order."""
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
        """Read the inputs, call the module, write the outputs.

        Args:
            tensordict: the collection; or tensors by position or name, see
                :class:`dispatch`.
            *args: refused together with a collection.
            tensordict_out: where the outputs go.
            **kwargs: further arguments of the module.

        Raises:
            KeyError: an entry is missing, and the module cannot do without.
            RuntimeError: there are not as many outputs as output keys.
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
            # An error that None caused names it.
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
        """Write what the module gave."""
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        elif not isinstance(outputs, tuple):
            outputs = self._as_outputs(outputs)
        return self._write_to_tensordict(tensordict, outputs, tensordict_out)

    def _as_outputs(self, outputs: object) -> tuple[Any, ...]:
        """The output of a module that gave no tuple, as one."""
        if outputs is None:
            return ()
        if isinstance(outputs, (dict, TensorDictBase)):
            found: Any = outputs
            keys = self._out_keys
            present = [key in found for key in keys]
            if keys and all(present):
                return tuple([found[key] for key in keys])
        return (outputs,)

    def __getattr__(self, name: str) -> Any:
        """An attribute of the module inside."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            state = self.__dict__
            modules = state.get("_modules", {})
            if "module" in modules and not name.startswith("__"):
                return getattr(modules["module"], name)
            if "module" in state and not name.startswith("_"):
                # A plain function has no attributes that anybody asks this one for.
                found = getattr(state["module"], name, None)
                if found is not None:
                    return found
            raise

    def __getstate__(self) -> dict[str, Any]:
        """The state; a function that is no module is pickled by value."""
        state = self.__dict__.copy()
        if "module" in state:
            state["module"] = _Function(state["module"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of :meth:`__getstate__`."""
        state = dict(state)
        if isinstance(state.get("module"), _Function):
            state["module"] = state["module"].function
        super().__setstate__(state)

    def __repr__(self) -> str:
        """The module inside and the keys."""
        modules = dict(self._modules)
        if "module" in self.__dict__:
            modules = {"module": self.__dict__["module"], **modules}
        return module_text(self, modules.items())


def _traced(module: Any, *args: Any, **kwargs: object) -> Any:
    """Run the ``forward`` of a module of tensors as the compiler traces it."""
    found = plain_inputs(module, args, kwargs, SKIP)
    if found is None:
        return _whole(module, *args, **kwargs)
    called, inputs = found
    outputs = called(*inputs)
    if plain_outputs(module, args[0], outputs):
        return args[0]
    return module._write_outputs(args[0], outputs, None)


_whole = trace_as(TensorDictModule.forward, _traced)


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
    """The values of entries: None of a missing one, no wrapper of what is no tensor."""
    is_plain = not kwargs and td.__class__ is TensorDict
    # Direct entries are read without a function, which the compiler would enter
    # for each key.
    entries = td._tensordict if is_plain else {}
    found = []
    for key in keys:
        value = entries.get(key)
        if value is None:
            value = (
                _rust.get(td, key, None) if is_plain else td.get(key, None, **kwargs)
            )
        if not isinstance(value, torch.Tensor) and getattr(
            value, "_is_non_tensor", False
        ):
            value = td[key]
        found.append(value)
    return found


def _missing_among(keys: Sequence[NestedKey], tensors: list[Any]) -> list[str]:
    """The names of the inputs that were not there."""
    pairs = zip(keys, tensors, strict=True)
    return [repr(key) for key, tensor in pairs if tensor is None]


def _other_number(module: object, tensors: Sequence[Any], keys: Any) -> RuntimeError:
    """The error of a module with more outputs than keys, or fewer."""
    name, count = type(module).__name__, len(tensors)
    if count > len(keys):
        return RuntimeError(
            f"There are more tensors (len(tensors)={count}) than out_keys "
            f"(out_keys={keys}). {name} needs a key for each output: "
            'name it "_" to drop it.'
        )
    return RuntimeError(
        f"There are more out_keys than tensors. {name} got {count} of its module for "
        f"out_keys={keys}: several outputs are a tuple, or a dictionary with these keys."
    )


def _explain(module: Any, tensors: list[Any], error: BaseException) -> None:
    """Add to the error of a module what it was given, and what it has."""
    read = ", ".join(
        f"{key!r} {_shape_of(tensor)}"
        for key, tensor in zip(module.in_keys, tensors, strict=True)
    )
    called = module.module
    name = _name_of(called)
    note = f"{type(module).__name__} called {name} with {read or 'no entries'}"
    if isinstance(called, nn.Module):
        own = [f"{name} {_shape_of(own)}" for name, own in called.named_parameters()]
        listed = ", ".join(own[:8]) + (", ..." if len(own) > 8 else "")
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
    """Add to the error of a write which module wrote."""
    note = (
        f"{type(module).__name__} writes what {_name_of(module.module)} gives to "
        f"out_keys={module.out_keys_source}."
    )
    if isinstance(error, KeyError):
        note += (
            " Nothing can be written below a leaf: give the module other out_keys, or "
            "rename the leaf before the call."
        )
    error.add_note(note)


def _name_of(called: object) -> str:
    return getattr(called, "__name__", type(called).__name__)


def _shape_of(value: object) -> str:
    """The shape of a tensor, the type of anything else."""
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


_KEYS_OF_INSIDE = {
    "_in_keys": "in_keys",
    "_out_keys": "out_keys_source",
    "_out_keys_apparent": "out_keys",
}


def keys_of(module: object, name: str, user: str) -> list[NestedKey]:
    """The ``in_keys`` or ``out_keys`` of a module that another one is made of.

    Raises:
        AttributeError: it has none.
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
    """A module around another one, whose keys and attributes it has.

    Args:
        td_module: the module that is called.

    Examples:
        >>> inner = TensorDictModule(torch.abs, in_keys=["x"], out_keys=["y"])
        >>> TensorDictModuleWrapper(inner)(x=torch.tensor(-1.0))
        tensor(1.)
    """

    def __init__(self, td_module: TensorDictModuleBase) -> None:
        super().__init__()
        self.td_module = td_module

    def __getattr__(self, name: str) -> Any:
        """An attribute of the module inside; its keys, where none were set here."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if "td_module" not in modules or name.startswith("__"):
                raise
            name = _KEYS_OF_INSIDE.get(name, name)
            if name in ("in_keys", "out_keys"):
                return keys_of(modules["td_module"], name, type(self).__qualname__)
            return getattr(modules["td_module"], name)

    @property
    def out_keys(self) -> list[NestedKey]:
        """The entries that are written; set, they are those of the module inside."""
        return self._out_keys_apparent

    @out_keys.setter
    def out_keys(self, value: Iterable[NestedKey]) -> None:
        self.td_module.out_keys = list(value)
        self._drop_selection()
        self.__dict__.pop("_out_keys_apparent", None)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Call the module inside."""
        # Not as an attribute: the compiler would follow __getattr__.
        module: Any = self._modules["td_module"]
        result = module(*args, **kwargs)
        if isinstance(result, tuple) and "_out_keys_apparent" in self.__dict__:
            return self._selected_of(result)
        return result

    def _selected_of(self, outputs: tuple[Any, ...]) -> Any:
        """The outputs that were selected here, of a module that was given tensors."""
        keys = [key for key in self.td_module.out_keys if key != SINK]
        named = dict(zip(keys, outputs, strict=True))
        chosen = tuple([named[key] for key in self.out_keys if key != SINK])
        return chosen[0] if len(chosen) == 1 else chosen


class WrapModule(TensorDictModuleBase):
    """A function of a collection as a module.

    Args:
        func: takes a collection and gives one.
        inplace: write what it gives to the input, and give that back.
        in_keys: the entries that it reads, if they are to be known.
        out_keys: the entries that it writes.

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
    """Make a function or method of tensors one that reads and writes a collection.

    Args:
        in_keys: the entries that it gets, in order.
        out_keys: where its outputs go.

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
        """The function, which takes a collection."""
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
    """The names of the parameters of a function."""
    import inspect

    return inspect.signature(func).parameters


if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__, NN_COMMON)
