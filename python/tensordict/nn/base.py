"""The base of modules that read from a collection and write to it."""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import torch
from torch import nn

from tensordict import _rust
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensordict.primitives.entry import Entry

__all__ = ["NestedKey", "TensorDictModuleBase", "is_tdmodule_compatible"]

NestedKey = Any
_C = TypeVar("_C", bound=CollectionProtocol)

MSG_BATCHED = (
    "reset_parameters_recursive does not support batched TensorDicts, ensure `batch_size` "
    "is empty and the parameters shape match their original shape."
)
MSG_NOTHING_RESET = (
    "reset_parameters_recursive was called without the parameters argument and did not "
    "find any parameters to reset"
)


class _OutKeyNotFoundError(ValueError, RuntimeError):
    """A key to be selected is no output of the module."""


class _OutKeysSelect:
    """The forward hook that drops the outputs that were not selected."""

    def __init__(self, out_keys: list[NestedKey], source: list[NestedKey]) -> None:
        self.out_keys = out_keys
        self.source = source

    def __call__(self, module: torch.nn.Module, inputs: object, outputs: object) -> Any:
        if isinstance(outputs, CollectionProtocol):
            return _dropped(outputs, module, self.out_keys, self.source)
        return outputs


def _dropped(
    td: CollectionProtocol,
    module: Any,
    out_keys: list[NestedKey],
    source: list[NestedKey],
) -> Any:
    """``td`` without the outputs ``source`` that are neither selected nor inputs."""
    kept = (*out_keys, *module.in_keys)
    gone = [key for key in source if key not in kept and _rust.contains(td, key)]
    return _without(td, gone) if gone else td


def _without(td: Any, keys: list[NestedKey]) -> Any:
    """``td`` without entries, and without the nested collections that held only them."""
    td.exclude(*keys, inplace=True)
    for key in keys:
        path = key
        while not isinstance(path, str):
            path = path[0] if len(path) == 2 else path[:-1]
            held = td.get(path, None)
            if isinstance(held, CollectionProtocol) and held.is_empty():
                td.exclude(path, inplace=True)
    return td


def is_tdmodule_compatible(module: object) -> bool:
    """Return whether a module has ``in_keys`` and ``out_keys``."""
    return hasattr(module, "in_keys") and hasattr(module, "out_keys")


class TensorDictModuleBase(nn.Module):
    """A module whose ``forward`` takes a collection and gives one.

    A subclass sets ``in_keys`` and ``out_keys``, as class attributes or on the instance,
    before or after ``super().__init__()``. With :class:`dispatch` on ``forward`` it can
    be called with tensors as well.

    Examples:
        >>> from tensordict.nn import dispatch
        >>> class Double(TensorDictModuleBase):
        ...     in_keys = ["x"]
        ...     out_keys = ["y"]
        ...
        ...     @dispatch
        ...     def forward(self, tensordict):
        ...         return tensordict.set("y", tensordict["x"] * 2)
        >>> Double()(TensorDict(x=torch.ones(2)))["y"]
        tensor([2., 2.])
        >>> Double()(torch.ones(2))
        tensor([2., 2.])
    """

    _in_keys: list[NestedKey]
    _out_keys: list[NestedKey]
    _out_keys_apparent: list[NestedKey]

    if TYPE_CHECKING:

        @overload
        def __call__(self, tensordict: _C, *args: Any, **kwargs: Any) -> _C: ...
        @overload
        def __call__(self, *args: Any, **kwargs: Any) -> Entry: ...
        def __call__(self, *args: object, **kwargs: object) -> Any:
            """Call :meth:`forward`: a collection gives one of its class."""

    @classmethod
    def _adopt_keys(cls) -> None:
        """Move keys that a class names to where the property looks."""
        for owner in cls.__mro__:
            if owner is TensorDictModuleBase:
                break
            # A class may name its keys by a plain attribute, which would hide the
            # property.
            for name in ("in_keys", "out_keys"):
                keys = owner.__dict__.get(name)
                if keys is None or hasattr(keys, "__get__"):
                    continue
                keys = _rust.unravel_key_list(keys)
                setattr(owner, f"_{name}", keys)
                if name == "out_keys":
                    owner._out_keys_apparent = keys  # type: ignore[attr-defined]
                delattr(owner, name)

    def __new__(cls, *args: object, **kwargs: object) -> Self:  # noqa: ARG004
        """An instance; keys that the class names become those of its instances."""
        # The compiler cannot look into the dictionaries of classes. It meets few classes
        # of which there was no instance before.
        if not torch.compiler.is_compiling():
            cls._adopt_keys()
        return super().__new__(cls)

    @staticmethod
    def is_tdmodule_compatible(module: object) -> bool:
        """Return whether a module names its inputs and outputs by in_keys and out_keys.

        Examples:
            >>> TensorDictModuleBase.is_tdmodule_compatible(nn.Linear(3, 2))
            False
        """
        return is_tdmodule_compatible(module)

    def __getattr__(self, name: str) -> Any:
        """Say where to set the keys of a module that has none."""
        if name in ("in_keys", "out_keys"):
            raise _no_keys(self, name)
        return super().__getattr__(name)

    if TYPE_CHECKING:
        # A class body may give them, as an attribute.
        in_keys: list[NestedKey]
        out_keys: list[NestedKey]
    else:

        @property
        def in_keys(self) -> list[NestedKey]:
            """The entries that are read."""
            return self._in_keys

        @in_keys.setter
        def in_keys(self, value: Sequence[NestedKey]) -> None:
            self._in_keys = _rust.unravel_key_list(value)

        @property
        def out_keys(self) -> list[NestedKey]:
            """The entries that are written, and left in the result."""
            return self._out_keys_apparent

        @out_keys.setter
        def out_keys(self, value: Iterable[NestedKey]) -> None:
            self._out_keys = _rust.unravel_key_list(list(value))
            self._out_keys_apparent = self._out_keys
            if self.__dict__.get("_forward_hooks"):
                self._drop_selection()

    @property
    def out_keys_source(self) -> list[NestedKey]:
        """All entries that are written, those that were not selected included."""
        return self._out_keys

    @property
    def __name__(self) -> Any:
        """The name of the class, for what expects a function."""
        return type(self).__name__

    def select_out_keys(self, *out_keys: NestedKey) -> TensorDictModuleBase:
        """Leave only some of the outputs in the results, in place.

        The others are dropped after each call, unless they are inputs.

        Args:
            *out_keys: those that stay.

        Raises:
            ValueError: one of them is no output.

        Examples:
            >>> from tensordict.nn import TensorDictModule
            >>> module = TensorDictModule(lambda x: (x, x + 1), ["a"], ["b", "c"])
            >>> module.select_out_keys("c").out_keys
            ['c']
            >>> module(a=torch.zeros(()))
            tensor(1.)
            >>> module.reset_out_keys().out_keys
            ['b', 'c']
        """
        if len(out_keys) == 1 and isinstance(out_keys[0], list):
            msg = "key should be a Sequence<NestedKey>, one argument for each key"
            raise RuntimeError(msg)
        keys = _rust.unravel_key_list(list(out_keys))
        missing = [key for key in keys if key not in self.out_keys]
        if missing:
            raise self._cannot_select(missing)
        self._select(keys)
        return self

    def _cannot_select(self, missing: list[NestedKey]) -> ValueError:
        return _OutKeyNotFoundError(
            f"Can't select non existent key: {missing[0]}. The out_keys of "
            f"{type(self).__name__} are {self.out_keys}."
        )

    def _select(self, keys: list[NestedKey]) -> None:
        before = self._selection()
        source = before.source if before else list(self.out_keys)
        if self._has_own_out_keys():
            self._set_own_out_keys(keys)
        else:
            self._out_keys_apparent = keys
        self._drop_selection()
        self.register_forward_hook(_OutKeysSelect(keys, source))

    def _has_own_out_keys(self) -> bool:
        """Return whether a subclass has a property in the place of :attr:`out_keys`."""
        return self.out_keys is not getattr(self, "_out_keys_apparent", None)

    def _set_own_out_keys(self, keys: list[NestedKey]) -> None:
        try:
            self.out_keys = keys
        except AttributeError as error:
            name = type(self).__name__
            msg = (
                f"{name} does not support select_out_keys. Its out_keys are a property "
                "that cannot be set: give it a setter."
            )
            raise RuntimeError(msg) from error

    def _selection(self) -> _OutKeysSelect | None:
        for hook in self._forward_hooks.values():
            if isinstance(hook, _OutKeysSelect):
                return hook
        return None

    def _drop_selection(self) -> None:
        for number, hook in list(self._forward_hooks.items()):
            if isinstance(hook, _OutKeysSelect):
                del self._forward_hooks[number]

    def reset_out_keys(self) -> Self:
        """Leave all outputs in the results again, in place."""
        if not self._has_own_out_keys():
            self._out_keys_apparent = self._out_keys
        elif (hook := self._selection()) and self.out_keys == hook.out_keys:
            self._set_own_out_keys(hook.source)
        self._drop_selection()
        return self

    def reset_parameters_recursive(self, parameters: Any = None) -> Any:
        """Draw the parameters anew: call ``reset_parameters`` of each submodule.

        Args:
            parameters: a collection of parameters of this module: they are drawn anew,
                in place, and this module's own stay as they are.

        Returns:
            None; with ``parameters``, a collection of the same tensors, with gradients.

        Raises:
            RuntimeError: the parameters have batch dims.

        Examples:
            >>> from tensordict.nn import TensorDictModule
            >>> module = TensorDictModule(nn.Linear(2, 2), ["a"], ["b"])
            >>> module.reset_parameters_recursive()
        """
        if parameters is None:
            if not reset_below(self):
                warn_caller(MSG_NOTHING_RESET, UserWarning)
            return None
        if parameters.batch_dims:
            raise RuntimeError(MSG_BATCHED)
        parameters = parameters.detach().requires_grad_()
        with parameters.to_module(self, preserve_module_state=False):
            reset_below(self)
        return parameters

    def _reset_parameters(self, module: nn.Module) -> bool:
        """Reset what is below ``module``; whether there was anything."""
        return reset_below(module)

    def __repr__(self) -> str:
        """The submodules and the keys."""
        return module_text(self, self._modules.items())


def _no_keys(module: object, name: str) -> AttributeError:
    class_name = type(module).__name__
    return AttributeError(
        f"{class_name!r} object has no attribute {name!r}. Set it, such as "
        f"`self.{name} = ['key']`, in the class or in __init__."
    )


def module_text(module: torch.nn.Module, fields: Iterable[tuple[str, Any]]) -> str:
    """Show the fields and the keys of a module, a line each."""
    lines = [f"{name}={field}" for name, field in fields]
    lines += [f"in_keys={module.in_keys}", f"out_keys={module.out_keys}"]
    body = indent(",\n".join(lines), 4 * " ")
    return f"{type(module).__name__}(\n{body})"


def reset_below(module: nn.Module) -> bool:
    """Reset the submodules, those within first; whether there was anything to reset."""
    found = False
    for child in module.children():
        found |= reset_below(child)
        # A wrapper has the attributes of what it wraps: that is drawn once more, so that
        # a seed gives the numbers that it has always given.
        if hasattr(child, "reset_parameters"):
            child.reset_parameters()  # type: ignore[operator]
            found = True
    return found


for _public in (TensorDictModuleBase, _OutKeysSelect):
    _public.__module__ = "tensordict.nn.common"
