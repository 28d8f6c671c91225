"""Graphs of :mod:`torch.fx` made from modules of tensordicts."""

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
    """A traced graph of tensors that reads from a tensordict and writes to it.

    Args:
        graph_module: a graph that takes a tensordict and returns the outputs.
        out_keys: the keys of the outputs.
        in_keys: the keys that the graph reads, for calls with tensors.
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
            tensordict: the input tensordict. Tensors by position or by name work too.
            tensordict_out: the tensordict to write the outputs to. Default:
                ``tensordict``.
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
        """Return the attribute of the graph, such as its ``code``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if "_gm" in modules and not name.startswith("__"):
                return getattr(modules["_gm"], name)
            raise


class _Tensors(nn.Module):
    """The modules of tensors in a module, called in order with values passed by key.

    Parameters keep the names that they have in the module: the position in a sequence
    comes first; a single module of tensors uses its own names.
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
        outputs_by_key = tuple([values[key] for key in out_keys])
        return outputs_by_key[0] if len(outputs_by_key) == 1 else outputs_by_key


def _register(holder: nn.Module, sequence: Any) -> None:
    """Register the modules of tensors of a sequence in ``holder``, by position."""
    for name, part in sequence.module._modules.items():
        while isinstance(part, TensorDictModuleWrapper):
            part = part.td_module
        child = nn.Module()
        holder.add_module(name, child)
        if isinstance(part, TensorDictSequential):
            child.module = nn.Module()
            _register(child.module, part)
        elif isinstance(part.module, nn.Module):
            child.module = part.module


class _Tracer(fx.Tracer):
    """A tracer that enters the module whose parameters the root registers."""

    def _is_root(self, module: object) -> bool:
        return any(module is inside for inside in getattr(self.root, "_inside", ()))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module becomes one node: torch's modules except the root."""
        return not self._is_root(m) and super().is_leaf_module(m, module_qualified_name)

    def path_of_module(self, mod: nn.Module) -> str:
        """Return the name of a module."""
        return "" if self._is_root(mod) else super().path_of_module(mod)


def _flattened(module: object) -> list[TensorDictModule]:
    """Return the modules of tensors in the order of their calls."""
    if isinstance(module, TensorDictModuleWrapper):
        return _flattened(module.td_module)
    if isinstance(module, TensorDictSequential):
        return [step for part in module for step in _flattened(part)]
    if isinstance(module, TensorDictModule):
        return [module]
    msg = (
        f"Unsupported type {type(module)}: symbolic_trace takes a TensorDictModule or a "
        "TensorDictSequential of these."
    )
    raise TypeError(msg)


def symbolic_trace(td_module: Any) -> TDGraphModule:
    """Trace a module of tensordicts, or a sequence of them, to one graph of tensors.

    Args:
        td_module: a :class:`TensorDictModule` or :class:`TensorDictSequential`.

    Raises:
        TypeError: ``td_module`` is or contains a module of another class.

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
