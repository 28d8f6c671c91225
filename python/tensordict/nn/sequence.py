"""A sequence of modules that read from and write to the same tensordict."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from tensordict import _rust
from tensordict._established import established_names
from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.nn.base import TensorDictModuleBase, is_tdmodule_compatible
from tensordict.nn.common import MSG_INPLACE, TensorDictModule, WrapModule
from tensordict.nn.dispatching import SINK, dispatch, is_contained
from tensordict.nn.settings import SKIP, has_results
from tensordict.primitives.errors import absent_key
from tensordict.primitives.module_calls import is_plain_sequence, trace_as
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    import torch

__all__ = ["TensorDictSequential"]

NestedKey = Any

MSG_KWARGS = (
    "TensorDictSequential does not support keyword arguments other than 'tensordict_out' "
    "or in_keys: {in_keys}. Got {names} instead."
)

MSG_NAME = "{name}. The modules of this sequence are named {names}."
MSG_OUT = (
    "The tensordict_out of {name} is a tensordict, got a {type}. It is the argument after "
    "the inputs, which are in_keys={in_keys}: pass no more tensors than inputs."
)


class TensorDictSequential(TensorDictModule):
    """A sequence of modules that are called in order with the same tensordict.

    ``in_keys`` are the keys that a module reads and no earlier module writes.
    ``out_keys`` are all keys that the modules write.

    Args:
        *modules: modules, or functions of a tensordict; or a list of these, or a
            dictionary from names to these.
        partial_tolerant: whether to skip a module if an input of it is missing.
        selected_out_keys: the outputs to keep in the result.
        inplace: if true, write all outputs to the input. If false, return them in a new
            tensordict; if ``"empty"``, in a new tensordict like the input. If None,
            each module decides.

    Raises:
        ValueError: a selected key is not an output of the modules, or ``inplace`` is
            invalid.

    Examples:
        >>> module = TensorDictSequential(
        ...     TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"]),
        ...     TensorDictModule(torch.mul, in_keys=["x", "y"], out_keys=["z"]),
        ... )
        >>> module.in_keys, module.out_keys
        (['x'], ['y', 'z'])
        >>> module(x=torch.tensor(2.0))
        (tensor(3.), tensor(6.))
    """

    module: Any
    # For subclasses that read these before the constructor has set them.
    _select_before_return = False
    partial_tolerant: bool = False

    def __init__(
        self,
        *modules: Callable[[Any], Any] | Any,
        partial_tolerant: bool = False,
        selected_out_keys: list[NestedKey] | None = None,
        inplace: bool | str | None = None,
    ) -> None:
        if inplace not in (True, False, None, "empty"):
            raise ValueError(MSG_INPLACE.format(inplace=inplace))
        container: nn.Module
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            container = nn.ModuleDict(
                {key: _as_module(module) for key, module in modules[0].items()}
            )
        else:
            if len(modules) == 1 and isinstance(modules[0], list):
                modules = tuple(modules[0])
            container = nn.ModuleList([_as_module(module) for module in modules])
        in_keys, out_keys = self._compute_in_and_out_keys(
            [*container._modules.values()]
        )
        super().__init__(container, in_keys, out_keys, inplace=inplace)
        self._select_before_return = False
        self.partial_tolerant = partial_tolerant
        if selected_out_keys is not None:
            selected = _rust.unravel_key_list(selected_out_keys)
            missing = [key for key in selected if key not in out_keys]
            if missing:
                raise self._cannot_select(missing)
            self._select(selected)

    @property
    def _complete_out_keys(self) -> list[NestedKey]:
        """All keys that the modules write, also the keys that were not selected."""
        return self.__dict__.get("_complete_out_keys", self._out_keys)

    @_complete_out_keys.setter
    def _complete_out_keys(self, keys: list[NestedKey]) -> None:
        # For subclasses that set this without calling this constructor.
        self.__dict__["_complete_out_keys"] = keys

    def _compute_in_and_out_keys(
        self, modules: list[Any]
    ) -> tuple[list[NestedKey], list[NestedKey]]:
        """Return the keys that no earlier module writes, and the keys that are written.

        If several modules write a key, its place is the last module's.
        """
        in_keys: list[NestedKey] = []
        written: list[NestedKey] = []
        for module in modules:
            for key in module.in_keys:
                if key not in written and key not in in_keys:
                    in_keys.append(key)
            written += module.out_keys
        out_keys: list[NestedKey] = []
        for key in reversed(written):
            if key not in out_keys:
                out_keys.append(key)
        return in_keys, out_keys[::-1]

    def _cannot_select(self, missing: list[NestedKey]) -> ValueError:
        return ValueError(
            "All keys in selected_out_keys must be in out_keys. "
            f"{missing} are not: the modules write {self.out_keys}."
        )

    def _select(self, keys: list[NestedKey]) -> None:
        self._out_keys_apparent = keys
        self._select_before_return = True

    def reset_out_keys(self) -> Self:
        """Keep all outputs in the results again, in place."""
        self._select_before_return = False
        return super().reset_out_keys()

    def select_subsequence(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> TensorDictSequential:
        """Return a sequence of the modules that compute ``out_keys`` from ``in_keys``.

        Args:
            in_keys: the available keys. Default: all of ``in_keys``.
            out_keys: the wanted keys. Default: all of ``out_keys``.

        Raises:
            ValueError: no module remains.

        Examples:
            >>> module = TensorDictSequential(
            ...     TensorDictModule(torch.abs, in_keys=["x"], out_keys=["y"]),
            ...     TensorDictModule(torch.exp, in_keys=["y"], out_keys=["z"]),
            ... )
            >>> len(module.select_subsequence(out_keys=["y"]))
            1
        """
        available = set(_listed(in_keys, self.in_keys))
        needed_keys = set(_listed(out_keys, self._complete_out_keys))
        chosen: list[tuple[str, Any]] = []
        for name, module in self.module._modules.items():
            if not set(module.in_keys) <= available:
                if type(module) is not TensorDictSequential:
                    continue
                # Some modules of the nested sequence may have all their inputs.
                module = module._computable_from(available)
                if module is None:
                    continue
            chosen.append((name, module))
            available |= set(module.out_keys)
        needed: list[tuple[str, Any]] = []
        for name, module in reversed(chosen):
            if not needed_keys & set(module.out_keys):
                continue
            # A sequence of a subclass is kept as a whole.
            if type(module) is TensorDictSequential:
                module = module.select_subsequence(out_keys=needed_keys)
            needed_keys |= set(module.in_keys)
            needed.append((name, module))
        if not needed:
            msg = (
                "No modules left after selection. Make sure that in_keys and out_keys are "
                f"coherent. The sequence reads {self.in_keys} and writes "
                f"{self._complete_out_keys}."
            )
            raise ValueError(msg)
        return self._sequence_of(needed[::-1])

    def _computable_from(
        self, available: Iterable[NestedKey]
    ) -> TensorDictSequential | None:
        """Return a sequence of the modules whose inputs are available, or None."""
        with contextlib.suppress(ValueError):
            return self.select_subsequence(in_keys=available)
        return None

    def _sequence_of(self, modules: list[tuple[str, Any]]) -> TensorDictSequential:
        """Make a sequence of some of the modules, with the options of this sequence.

        The class is the class of this sequence if its constructor takes any number of
        modules. Otherwise it is the nearest base class whose constructor does.
        """
        cls = next(base for base in type(self).__mro__ if _takes_modules(base))
        # Options are set as attributes: the constructor may take modules only.
        if isinstance(self.module, nn.ModuleDict):
            result = cls(dict(modules))
        else:
            result = cls(*[module for _, module in modules])
        for name, value in self._options(modules[-1][1] if modules else None).items():
            setattr(result, name, value)
        return result

    def _options(self, last: object) -> dict[str, Any]:
        """Return the options for a sequence that ends with the module ``last``."""
        return {"partial_tolerant": self.partial_tolerant, "inplace": self.inplace}

    def _module_iter(self) -> Iterator[Any]:
        """Iterate over the modules in order."""
        yield from self.module._modules.values()

    def _run_module(self, module: Any, tensordict: Any, **kwargs: object) -> Any:
        """Call a module, or skip it if an input is missing.

        For a lazy stack, the module is called on the members that have the inputs.
        """
        if not self.partial_tolerant or is_contained(tensordict, module.in_keys):
            return module(tensordict, **kwargs)
        if isinstance(tensordict, LazyStackedTensorDict):
            for member in tensordict.tensordicts:
                self._run_module(module, member, **kwargs)
        return tensordict

    def _run_all(
        self, modules: tuple[tuple[str, Any], ...], tensordict: CollectionProtocol
    ) -> CollectionProtocol:
        """Call the modules in order; an error names the module that failed."""
        current = ""
        try:
            for name, module in modules:
                current = name
                if self.partial_tolerant:
                    tensordict = self._run_module(module, tensordict)
                else:
                    tensordict = module(tensordict)
        except Exception as error:
            _note_place(error, current)
            raise
        return tensordict

    @dispatch(auto_batch_size=False)
    def forward(
        self, tensordict: Any = None, tensordict_out: Any = None, **kwargs: object
    ) -> Any:
        """Call the modules in order.

        Args:
            tensordict: the input tensordict. Tensors by position or by name work too,
                see :class:`dispatch`.
            tensordict_out: the tensordict to write the outputs to. Default: see
                ``inplace``.
            **kwargs: inputs by name.

        Returns:
            The tensordict that holds the outputs. If the inputs were tensors: the
            output, or a tuple of outputs.

        Raises:
            RuntimeError: a keyword argument is neither an input nor ``tensordict_out``.
            ValueError: ``tensordict_out`` is not a tensordict.
        """
        skip = SKIP.get() if SKIP.by_thread else SKIP.value
        if skip and has_results(
            skip, self._in_keys, self._out_keys_apparent, tensordict
        ):
            return tensordict
        if kwargs:
            msg = MSG_KWARGS.format(in_keys=self.in_keys, names=kwargs.keys())
            raise RuntimeError(msg)
        inplace = self.inplace
        if (
            tensordict_out is None
            and inplace is None
            and not self._select_before_return
        ):
            container: Any = self._modules["module"]
            # A copy of the list: a call may add or remove modules.
            return self._run_all(tuple(container._modules.items()), tensordict)
        if tensordict_out is not None and not isinstance(
            tensordict_out, CollectionProtocol
        ):
            raise ValueError(
                MSG_OUT.format(
                    name=type(self).__name__,
                    in_keys=self.in_keys,
                    type=type(tensordict_out).__name__,
                )
            )
        # A copy keeps intermediate results out of the input.
        result = tensordict.copy()
        modules = self._modules["module"]._modules  # type: ignore[union-attr]
        result = self._run_all(tuple(modules.items()), result)
        return self._write_result(tensordict, result, tensordict_out)

    def _write_result(
        self, source: CollectionProtocol, result: CollectionProtocol, out: Any
    ) -> Any:
        """Write the outputs to the tensordict that the options ask for."""
        inplace = self.inplace
        keys = [key for key in self.out_keys if key != SINK]
        if out is None:
            if inplace is None:
                # Modules may have replaced entries of the input.
                keys += list(source.keys(True, True))
                out = source
            elif inplace is True:
                out = source
            elif inplace == "empty":
                out = source.empty()
            else:
                out = TensorDict()
        return out.update(result, keys_to_update=keys)

    def __len__(self) -> int:
        """Return the number of modules."""
        return len(self.module)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the modules in order."""
        return iter([*self._module_iter()])

    def _name_of(self, index: int | str) -> str:
        """Return the name of the module at an index; a name is returned as it is."""
        if isinstance(index, str):
            if isinstance(self.module, nn.ModuleDict):
                return index
            msg = f"The modules of this sequence have no names: got {index!r}, pass an index."
            raise TypeError(msg)
        names = list(self.module._modules)
        if not -len(names) <= index < len(names):
            msg = f"index {index} is out of range"
            raise IndexError(msg)
        return names[index]

    def __getitem__(self, index: int | slice | str) -> Any:
        """Return a module by index or name; for a slice, a sequence of its modules."""
        if isinstance(index, slice):
            return self._sequence_of(list(self.module._modules.items())[index])
        name = self._name_of(index)
        if name not in self.module._modules:
            raise absent_key(
                MSG_NAME.format(name=name, names=list(self.module._modules))
            )
        return self.module._modules[name]

    def __setitem__(self, index: int | str, module: torch.nn.Module) -> None:
        """Replace a module; a new name appends a module."""
        modules = {**self.module._modules, self._name_of(index): _as_module(module)}
        self._hold(modules)

    def __delitem__(self, index: int | slice | str) -> None:
        """Remove a module, or the modules of a slice."""
        modules_now = self.module._modules
        if isinstance(index, slice):
            to_remove = list(modules_now)[index]
        else:
            to_remove = [self._name_of(index)]
        for name in to_remove:
            if name not in modules_now:
                raise absent_key(MSG_NAME.format(name=name, names=list(modules_now)))
        self._hold(
            {
                name: module
                for name, module in modules_now.items()
                if name not in to_remove
            }
        )

    def _hold(self, modules: dict[str, Any]) -> None:
        """Replace the modules, and recompute the keys."""
        in_keys, out_keys = self._compute_in_and_out_keys([*modules.values()])
        selected = self._out_keys_apparent if self._select_before_return else None
        lost = [key for key in selected or () if key not in out_keys]
        if lost:
            msg = (
                f"The edit would remove the selected out_keys {lost}. Call "
                f"reset_out_keys() before the edit, or select other keys: the modules "
                f"would write {out_keys}."
            )
            raise ValueError(msg)
        if not isinstance(self.module, nn.ModuleDict):
            modules = {str(i): module for i, module in enumerate(modules.values())}
        self.module._modules = modules
        self.in_keys: list[Any] = in_keys
        self.out_keys: list[Any] = out_keys
        if selected is not None:
            self._out_keys_apparent = selected


def _note_place(error: BaseException, name: str) -> None:
    """Add to an error the name of the module that raised it."""
    error.add_note(f"Failed while executing module {name!r}.")


def _traced(sequence: Any, *args: object, **kwargs: object) -> Any:
    """Run the ``forward`` of a sequence in the form that the compiler traces."""
    if not is_plain_sequence(sequence, args, kwargs, SKIP):
        return _full_forward(sequence, *args, **kwargs)
    td = args[0]
    for module in tuple(sequence._modules["module"]._modules.values()):
        td = module(td)
    return td


_full_forward = trace_as(TensorDictSequential.forward, _traced)


def _takes_modules(cls: type) -> bool:
    """Return whether a constructor takes any number of positional arguments."""
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    return any(p.kind is p.VAR_POSITIONAL for p in parameters.values())


def _listed(keys: Iterable[NestedKey] | None, default: list[NestedKey]) -> list[Any]:
    return list(default) if keys is None else _rust.unravel_key_list(list(keys))


def _as_module(module: Any) -> Any:
    """Return a module with keys; wrap a function of a tensordict."""
    if isinstance(module, TensorDictModuleBase) or is_tdmodule_compatible(module):
        return module
    return WrapModule(module)


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
