"""Modules of collections as graphs of :mod:`torch.fx`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx, nn

from tensordict import _rust
from tensordict._established import established_names
from tensordict.nn.common import TensorDictModule, TensorDictModuleWrapper
from tensordict.nn.dispatching import SINK, dispatch
from tensordict.nn.sequence import TensorDictSequential

__all__ = ["TDGraphModule", "symbolic_trace"]

NestedKey = Any


class TDGraphModule(nn.Module):
    """A traced graph of tensors that reads and writes a collection.

    Args:
        graph_module: takes a collection and gives the outputs.
        out_keys: where they go.
        in_keys: the entries that the graph reads, if tensors are to be dispatched.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        out_keys: list[NestedKey],
        in_keys: list[NestedKey] | None = None,
    ) -> None:
        super().__init__()
        self.out_keys: list[NestedKey] = _rust.unravel_key_list(list(out_keys))
        self.in_keys: list[NestedKey] = _rust.unravel_key_list(list(in_keys or ()))
        self._gm = graph_module

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: object, tensordict_out: Any = None) -> Any:
        """Execute the graph, and write its outputs.

        Args:
            tensordict: the collection; or tensors by position or name.
            tensordict_out: where the outputs go.
        """
        outputs = self._gm(tensordict)
        if not isinstance(outputs, tuple):
            outputs = (outputs,)
        if tensordict_out is None:
            tensordict_out = tensordict
        for key, value in zip(self.out_keys, outputs, strict=True):
            if key != SINK:
                _rust.set_entry(tensordict_out, key, value)
        return tensordict_out

    def __getattr__(self, name: str) -> Any:
        """An attribute of the graph, such as its ``code``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if "_gm" in modules and not name.startswith("__"):
                return getattr(modules["_gm"], name)
            raise


class _Tensors(nn.Module):
    """The modules of tensors inside a module, and how values go from one to another.

    What is registered gives the graph the names that parameters have in the module: those
    of the places in a sequence, or those in the module of tensors itself.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        while isinstance(module, TensorDictModuleWrapper):
            module = module.td_module
        self._steps = _flattened(module)
        self._keys = (module.in_keys, module.out_keys)
        self._inside: list[Any] = []
        if isinstance(module, TensorDictSequential):
            _register(self, module)
        elif isinstance(module.module, nn.Module):
            self._inside = [module.module]
            for kind in ("_parameters", "_buffers", "_modules"):
                self.__dict__[kind] = getattr(module.module, kind).copy()

    def forward(self, tensordict: Any) -> Any:
        in_keys, out_keys = self._keys
        values = {key: tensordict[key] for key in in_keys}
        for step in self._steps:
            keys = step.out_keys_source
            outputs = step._call_module([values[key] for key in step.in_keys])
            if len(keys) == 1 and not isinstance(outputs, tuple):
                outputs = (outputs,)
            # An output may be a proxy, which has no length.
            for number, key in enumerate(keys):
                values[key] = outputs[number]
        found = tuple([values[key] for key in out_keys])
        return found[0] if len(found) == 1 else found


def _register(holder: nn.Module, sequence: Any) -> None:
    """Give a plain module the modules of tensors of a sequence, at their places."""
    for name, part in sequence.module._modules.items():
        while isinstance(part, TensorDictModuleWrapper):
            part = part.td_module
        place = nn.Module()
        holder.add_module(name, place)
        if isinstance(part, TensorDictSequential):
            place.module = nn.Module()
            _register(place.module, part)
        elif isinstance(part.module, nn.Module):
            place.module = part.module


class _Tracer(fx.Tracer):
    """A tracer that goes into the module of tensors whose names the root has."""

    def _is_root(self, module: object) -> bool:
        return any(module is inside for inside in getattr(self.root, "_inside", ()))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Modules of torch are one node of the graph, unless they are all of it."""
        return not self._is_root(m) and super().is_leaf_module(m, module_qualified_name)

    def path_of_module(self, mod: nn.Module) -> str:
        """The name of a module."""
        return "" if self._is_root(mod) else super().path_of_module(mod)


def _flattened(module: object) -> list[TensorDictModule]:
    """The modules of tensors in the order of their calls."""
    if isinstance(module, TensorDictModuleWrapper):
        return _flattened(module.td_module)
    if isinstance(module, TensorDictSequential):
        return [step for part in module for step in _flattened(part)]
    if isinstance(module, TensorDictModule):
        return [module]
    msg = (
        f"Unsupported type {type(module)}: only a TensorDictModule, and a "
        "TensorDictSequential of such, can be traced."
    )
    raise TypeError(msg)


def symbolic_trace(td_module: Any) -> TDGraphModule:
    """Trace a module of collections, or a sequence of them, to one graph of tensors.

    Args:
        td_module: a :class:`TensorDictModule` or :class:`TensorDictSequential`.

    Raises:
        TypeError: it is, or has, a module of another kind.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule, TensorDictSequential
        >>> sequence = TensorDictSequential(
        ...     TensorDictModule(torch.relu, in_keys=["x"], out_keys=["y"]),
        ...     TensorDictModule(torch.neg, in_keys=["y"], out_keys=["z"]),
        ... )
        >>> traced = symbolic_trace(sequence)
        >>> traced(TensorDict(x=torch.ones(2)))["z"]
        tensor([-1., -1.])
    """
    root = _Tensors(td_module)
    graph = _Tracer().trace(root)
    in_keys, out_keys = root._keys
    return TDGraphModule(fx.GraphModule(root, graph), out_keys, in_keys)


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
