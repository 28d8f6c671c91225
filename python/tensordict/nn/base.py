"""The base class of modules that read from a tensordict and write to it."""

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
    """The error of `select_out_keys` for a key that is not an output of the module."""


class _OutKeysSelect:
    """The forward hook that removes the outputs that were not selected."""

    def __init__(self, out_keys: list[NestedKey], source: list[NestedKey]) -> None:
        self.out_keys = out_keys
        self.source = source

    def __call__(self, module: torch.nn.Module, inputs: object, outputs: object) -> Any:
        if isinstance(outputs, CollectionProtocol):
            return _without_unselected(outputs, module, self.out_keys, self.source)
        return outputs


def _without_unselected(
    td: CollectionProtocol,
    module: Any,
    out_keys: list[NestedKey],
    source: list[NestedKey],
) -> Any:
    """Remove the keys of ``source`` that are neither selected nor inputs."""
    kept = (*out_keys, *module.in_keys)
    to_remove = [key for key in source if key not in kept and _rust.contains(td, key)]
    return _remove_keys(td, to_remove) if to_remove else td


def _remove_keys(td: Any, keys: list[NestedKey]) -> Any:
    """Remove ``keys`` from ``td``, and the nested tensordicts that become empty."""
    td.exclude(*keys, inplace=True)
    for key in keys:
        parent_key = key
        while not isinstance(parent_key, str):
            parent_key = parent_key[0] if len(parent_key) == 2 else parent_key[:-1]
            parent = td.get(parent_key, None)
            if isinstance(parent, CollectionProtocol) and parent.is_empty():
                td.exclude(parent_key, inplace=True)
    return td


def is_tdmodule_compatible(module: object) -> bool:
    """Return whether a module has ``in_keys`` and ``out_keys``."""
    return hasattr(module, "in_keys") and hasattr(module, "out_keys")


class TensorDictModuleBase(nn.Module):
    """A module whose ``forward`` takes a tensordict and returns a tensordict.

    A subclass sets ``in_keys`` and ``out_keys``, as class attributes or on the
    instance, before or after ``super().__init__()``. If ``forward`` is decorated with
    :class:`dispatch`, the module can also be called with tensors.

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
            """Call :meth:`forward`: the result has the class of the input."""

    @classmethod
    def _adopt_keys(cls) -> None:
        """Move the keys that are class attributes behind the properties."""
        for owner in cls.__mro__:
            if owner is TensorDictModuleBase:
                break
            # A plain class attribute would hide the property of the same name.
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
        """Make an instance; the keys of the class become the keys of the instance."""
        # The compiler cannot trace `__dict__` of a class. Most classes have had an
        # instance before they are compiled, so their keys were moved then.
        if not torch.compiler.is_compiling():
            cls._adopt_keys()
        return super().__new__(cls)

    @staticmethod
    def is_tdmodule_compatible(module: object) -> bool:
        """Return whether a module has ``in_keys`` and ``out_keys``.

        Examples:
            >>> TensorDictModuleBase.is_tdmodule_compatible(nn.Linear(3, 2))
            False
        """
        return is_tdmodule_compatible(module)

    def __getattr__(self, name: str) -> Any:
        """Raise an error that says how to set missing ``in_keys`` or ``out_keys``."""
        if name in ("in_keys", "out_keys"):
            raise _no_keys(self, name)
        return super().__getattr__(name)

    if TYPE_CHECKING:
        # Plain attributes for type checkers: a subclass may assign them in its body.
        in_keys: list[NestedKey]
        out_keys: list[NestedKey]
    else:

        @property
        def in_keys(self) -> list[NestedKey]:
            """The keys that the module reads."""
            return self._in_keys

        @in_keys.setter
        def in_keys(self, value: Sequence[NestedKey]) -> None:
            self._in_keys = _rust.unravel_key_list(value)

        @property
        def out_keys(self) -> list[NestedKey]:
            """The keys that the module writes and that stay in the result."""
            return self._out_keys_apparent

        @out_keys.setter
        def out_keys(self, value: Iterable[NestedKey]) -> None:
            self._out_keys = _rust.unravel_key_list(list(value))
            self._out_keys_apparent = self._out_keys
            if self.__dict__.get("_forward_hooks"):
                self._drop_selection()

    @property
    def out_keys_source(self) -> list[NestedKey]:
        """All keys that the module writes, also the keys that were not selected."""
        return self._out_keys

    @property
    def __name__(self) -> Any:
        """The name of the class, for callers that expect a function."""
        return type(self).__name__

    def select_out_keys(self, *out_keys: NestedKey) -> TensorDictModuleBase:
        """Keep only the given outputs in the results, in place.

        A forward hook removes the other outputs after each call, unless they are also
        inputs.

        Args:
            *out_keys: the outputs to keep, one argument for each key.

        Returns:
            The module itself.

        Raises:
            ValueError: a key is not an output of the module.
            RuntimeError: the keys were passed as one list.

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
        """Return whether a subclass overrides the property :attr:`out_keys`."""
        return self.out_keys is not getattr(self, "_out_keys_apparent", None)

    def _set_own_out_keys(self, keys: list[NestedKey]) -> None:
        try:
            self.out_keys = keys
        except AttributeError as error:
            name = type(self).__name__
            msg = (
                f"{name} does not support select_out_keys: its property out_keys has "
                "no setter. Add one."
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
        """Keep all outputs in the results again, in place."""
        if not self._has_own_out_keys():
            self._out_keys_apparent = self._out_keys
        elif (hook := self._selection()) and self.out_keys == hook.out_keys:
            self._set_own_out_keys(hook.source)
        self._drop_selection()
        return self

    def reset_parameters_recursive(self, parameters: Any = None) -> Any:
        """Initialize the parameters again: call ``reset_parameters`` of each submodule.

        Args:
            parameters: a tensordict of parameters of this module, without batch dims.
                They are initialized in place, and the parameters of the module stay as
                they are. Default: the parameters of the module.

        Returns:
            None; with ``parameters``, a tensordict that shares their memory and
            requires grad.

        Raises:
            RuntimeError: ``parameters`` have batch dims.

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
        """Reset the submodules of ``module``; return whether one was reset."""
        return reset_below(module)

    def __repr__(self) -> str:
        """Return the text of the submodules and the keys."""
        return module_text(self, self._modules.items())


def _no_keys(module: object, name: str) -> AttributeError:
    class_name = type(module).__name__
    return AttributeError(
        f"{class_name!r} object has no attribute {name!r}. Set it, such as "
        f"`self.{name} = ['key']`, in the class or in __init__."
    )


def module_text(module: torch.nn.Module, fields: Iterable[tuple[str, Any]]) -> str:
    """Return the text of a module: its fields and its keys, one a line."""
    lines = [f"{name}={field}" for name, field in fields]
    lines += [f"in_keys={module.in_keys}", f"out_keys={module.out_keys}"]
    body = indent(",\n".join(lines), 4 * " ")
    return f"{type(module).__name__}(\n{body})"


def reset_below(module: nn.Module) -> bool:
    """Reset the submodules, the innermost first; return whether one was reset."""
    was_reset = False
    for child in module.children():
        was_reset |= reset_below(child)
        # A wrapper forwards `reset_parameters` to the module in it, which is then drawn
        # a second time. This keeps the numbers of a given seed.
        if hasattr(child, "reset_parameters"):
            child.reset_parameters()  # type: ignore[operator]
            was_reset = True
    return was_reset


for _public in (TensorDictModuleBase, _OutKeysSelect):
    _public.__module__ = "tensordict.nn.common"
