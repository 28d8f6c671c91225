"""Modules one after the other, each of which finds its inputs in the same collection."""

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
    "the inputs, which are in_keys={in_keys}: give no more tensors than these."
)


class TensorDictSequential(TensorDictModule):
    """Modules that are called one after the other with the same collection.

    Its ``in_keys`` are the entries that no module before has written, its ``out_keys``
    all that are written.

    Args:
        *modules: modules, or functions of a collection; or one list of them, or one
            dictionary from names to them.
        partial_tolerant: leave out the modules whose inputs are not all there.
        selected_out_keys: the outputs that stay in the result.
        inplace: true writes all outputs to the input; false gives them in a new
            collection, ``"empty"`` in an empty one like the input. None leaves it to
            the modules.

    Raises:
        ValueError: a selected key is no output of the modules.

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
    # A class in between may ask for this before its modules are here.
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
        held: nn.Module
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            held = nn.ModuleDict(
                {key: _as_module(module) for key, module in modules[0].items()}
            )
        else:
            if len(modules) == 1 and isinstance(modules[0], list):
                modules = tuple(modules[0])
            held = nn.ModuleList([_as_module(module) for module in modules])
        in_keys, out_keys = self._compute_in_and_out_keys([*held._modules.values()])
        super().__init__(held, in_keys, out_keys, inplace=inplace)
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
        """All that the modules write, the outputs that were not selected included."""
        return self.__dict__.get("_complete_out_keys", self._out_keys)

    @_complete_out_keys.setter
    def _complete_out_keys(self, keys: list[NestedKey]) -> None:
        # A subclass may set it, whose constructor is that of another class.
        self.__dict__["_complete_out_keys"] = keys

    def _compute_in_and_out_keys(
        self, modules: list[Any]
    ) -> tuple[list[NestedKey], list[NestedKey]]:
        """The keys that no module before wrote, and those that are written.

        An output that is written twice counts at its last place.
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
        """Leave all outputs in the results again, in place."""
        self._select_before_return = False
        return super().reset_out_keys()

    def select_subsequence(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> TensorDictSequential:
        """The modules that are needed to get from some keys to others, as a sequence.

        Args:
            in_keys: what is there. Default: all of ``in_keys``.
            out_keys: what is wanted. Default: all of ``out_keys``.

        Raises:
            ValueError: no module is left.

        Examples:
            >>> module = TensorDictSequential(
            ...     TensorDictModule(torch.abs, in_keys=["x"], out_keys=["y"]),
            ...     TensorDictModule(torch.exp, in_keys=["y"], out_keys=["z"]),
            ... )
            >>> len(module.select_subsequence(out_keys=["y"]))
            1
        """
        available = set(_listed(in_keys, self.in_keys))
        wanted = set(_listed(out_keys, self._complete_out_keys))
        chosen: list[tuple[str, Any]] = []
        for name, module in self.module._modules.items():
            if not set(module.in_keys) <= available:
                if type(module) is not TensorDictSequential:
                    continue
                # Some of its modules may find what they read.
                module = module._fed_by(available)
                if module is None:
                    continue
            chosen.append((name, module))
            available |= set(module.out_keys)
        needed: list[tuple[str, Any]] = []
        for name, module in reversed(chosen):
            if not wanted & set(module.out_keys):
                continue
            # A sequence of a user's class is one module, and stays whole.
            if type(module) is TensorDictSequential:
                module = module.select_subsequence(out_keys=wanted)
            wanted |= set(module.in_keys)
            needed.append((name, module))
        if not needed:
            msg = (
                "No modules left after selection. Make sure that in_keys and out_keys are "
                f"coherent. The sequence reads {self.in_keys} and writes "
                f"{self._complete_out_keys}."
            )
            raise ValueError(msg)
        return self._sequence_of(needed[::-1])

    def _fed_by(self, available: Iterable[NestedKey]) -> TensorDictSequential | None:
        """The modules whose inputs are there, as a sequence; None where there are none."""
        with contextlib.suppress(ValueError):
            return self.select_subsequence(in_keys=available)
        return None

    def _sequence_of(self, modules: list[tuple[str, Any]]) -> TensorDictSequential:
        """Make a sequence of some of the modules, with the options of this one.

        Its class is that of this one if the constructor takes any modules, otherwise
        the nearest base whose constructor does.
        """
        cls = next(each for each in type(self).__mro__ if _takes_modules(each))
        # The constructor of a subclass may take modules only.
        if isinstance(self.module, nn.ModuleDict):
            made = cls(dict(modules))
        else:
            made = cls(*[module for _, module in modules])
        for name, value in self._options(modules[-1][1] if modules else None).items():
            setattr(made, name, value)
        return made

    def _options(self, last: object) -> dict[str, Any]:
        """The options of this sequence for one that ends with ``last``."""
        return {"partial_tolerant": self.partial_tolerant, "inplace": self.inplace}

    def _module_iter(self) -> Iterator[Any]:
        """The modules in order."""
        yield from self.module._modules.values()

    def _run_module(self, module: Any, tensordict: Any, **kwargs: object) -> Any:
        """Call a module, or leave it out where its inputs are not there.

        Members of a lazy stack that have the inputs are handed to it one by one.
        """
        if not self.partial_tolerant or is_contained(tensordict, module.in_keys):
            return module(tensordict, **kwargs)
        if isinstance(tensordict, LazyStackedTensorDict):
            for member in tensordict.tensordicts:
                self._run_module(module, member, **kwargs)
        return tensordict

    def _run_all(
        self, modules: tuple[tuple[str, Any], ...], tensordict: CollectionProtocol
    ) -> Any:
        """Call the modules in order; an error says at which."""
        at = ""
        try:
            for name, module in modules:
                at = name
                if self.partial_tolerant:
                    tensordict = self._run_module(module, tensordict)
                else:
                    tensordict = module(tensordict)
        except Exception as error:
            _note_place(error, at)
            raise
        return tensordict

    @dispatch(auto_batch_size=False)
    def forward(
        self, tensordict: Any = None, tensordict_out: Any = None, **kwargs: object
    ) -> Any:
        """Call the modules in order.

        Args:
            tensordict: the collection; or tensors by position or name, see
                :class:`dispatch`.
            tensordict_out: where the outputs go.
            **kwargs: inputs by name.

        Raises:
            RuntimeError: there are other keyword arguments.
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
            held: Any = self._modules["module"]
            # The modules of now: a call may change which there are.
            return self._run_all(tuple(held._modules.items()), tensordict)
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
        # Intermediate results of the modules do not go into the input.
        result = tensordict.copy()
        modules = self._modules["module"]._modules  # type: ignore[union-attr]
        result = self._run_all(tuple(modules.items()), result)
        return self._given(tensordict, result, tensordict_out)

    def _given(
        self, source: CollectionProtocol, result: CollectionProtocol, out: Any
    ) -> Any:
        """The outputs of the modules where they are asked for."""
        inplace = self.inplace
        keys = [key for key in self.out_keys if key != SINK]
        if out is None:
            if inplace is None:
                # Values that the modules changed are changed.
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
        """The number of modules."""
        return len(self.module)

    def __iter__(self) -> Iterator[Any]:
        """The modules in order."""
        return iter([*self._module_iter()])

    def _name_of(self, index: int | str) -> str:
        """The name of a module at a position, or the name itself."""
        if isinstance(index, str):
            if isinstance(self.module, nn.ModuleDict):
                return index
            msg = f"The modules of this sequence have no names: got {index!r}, use a position."
            raise TypeError(msg)
        names = list(self.module._modules)
        if not -len(names) <= index < len(names):
            msg = f"index {index} is out of range"
            raise IndexError(msg)
        return names[index]

    def __getitem__(self, index: int | slice | str) -> Any:
        """A module, by position or name; a sequence of a slice of them."""
        if isinstance(index, slice):
            return self._sequence_of(list(self.module._modules.items())[index])
        name = self._name_of(index)
        if name not in self.module._modules:
            raise absent_key(
                MSG_NAME.format(name=name, names=list(self.module._modules))
            )
        return self.module._modules[name]

    def __setitem__(self, index: int | str, module: torch.nn.Module) -> None:
        """Replace a module; a new name adds one."""
        modules = {**self.module._modules, self._name_of(index): _as_module(module)}
        self._hold(modules)

    def __delitem__(self, index: int | slice | str) -> None:
        """Remove a module, or a slice of them."""
        held = self.module._modules
        if isinstance(index, slice):
            gone = list(held)[index]
        else:
            gone = [self._name_of(index)]
        for name in gone:
            if name not in held:
                raise absent_key(MSG_NAME.format(name=name, names=list(held)))
        self._hold({name: module for name, module in held.items() if name not in gone})

    def _hold(self, modules: dict[str, Any]) -> None:
        """Take other modules, and their keys."""
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
            modules = {str(number): one for number, one in enumerate(modules.values())}
        self.module._modules = modules
        self.in_keys: list[Any] = in_keys
        self.out_keys: list[Any] = out_keys
        if selected is not None:
            self._out_keys_apparent = selected


def _note_place(error: BaseException, name: str) -> None:
    """Add to an error at which module of a sequence it was raised."""
    error.add_note(f"Failed while executing module {name!r}.")


def _traced(sequence: Any, *args: object, **kwargs: object) -> Any:
    """Run the ``forward`` of a sequence as the compiler traces it."""
    if not is_plain_sequence(sequence, args, kwargs, SKIP):
        return _whole(sequence, *args, **kwargs)
    td = args[0]
    for module in tuple(sequence._modules["module"]._modules.values()):
        td = module(td)
    return td


_whole = trace_as(TensorDictSequential.forward, _traced)


def _takes_modules(cls: type) -> bool:
    """Return whether a constructor takes any number of positional arguments."""
    taken = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    return any(each.kind is each.VAR_POSITIONAL for each in taken)


def _listed(keys: Iterable[NestedKey] | None, default: list[NestedKey]) -> list[Any]:
    return list(default) if keys is None else _rust.unravel_key_list(list(keys))


def _as_module(module: Any) -> Any:
    """A module with keys; a function of a collection as one."""
    if isinstance(module, TensorDictModuleBase) or is_tdmodule_compatible(module):
        return module
    return WrapModule(module)


if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
