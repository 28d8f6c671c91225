"""Calls that are recorded as a CUDA graph once and replayed afterwards."""

from __future__ import annotations

from collections.abc import MutableSequence
from textwrap import indent
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from tensordict import _rust
from tensordict._established import established_names
from tensordict.nn.dispatching import dispatch
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict._nestedkey import NestedKey

__all__ = ["CudaGraphModule"]

MSG_NO_CUDA = (
    "This module is instantiated on a machine without CUDA device available. We permit "
    "this usage, but calls to this instance will just pass through it and execute the "
    "module as it is, without a graph."
)
MSG_GRADIENT = (
    "CudaGraphModule cannot record a call whose inputs require gradients: a CUDA graph "
    "has no backward. Detach the inputs, or call the module under torch.no_grad()."
)
MSG_CHANGED = (
    "CudaGraphModule recorded a call with other arguments: {difference}. Make another "
    "CudaGraphModule for these arguments."
)


class CudaGraphModule:
    """A module or function whose calls are recorded as a CUDA graph and replayed.

    The first ``warmup`` calls execute the module; the next call records the graph. Each
    later call copies its inputs to the memory that the graph reads, replays the graph
    and returns copies of its outputs. In all calls, tensors need the same shapes and
    other arguments the same values. Without a GPU, the module is called as it is.

    Args:
        module: a module of tensordicts, or a function of tensors and pytrees of
            tensors.
        warmup: the number of calls before the recorded call, at least 1.
        in_keys: the keys that ``module`` reads. Default: ``module.in_keys``, if there
            are any.
        out_keys: the keys that ``module`` writes. Default: ``module.out_keys``, if
            there are any.
        device: the GPU. Default: the current GPU.

    Raises:
        ValueError: ``warmup`` is less than 1. A call raises it if an argument differs
            from the recorded call.
        RuntimeError: raised by a call whose inputs require grad while gradients are
            enabled, or whose arguments have another structure than the recorded call.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):
        ...     double = CudaGraphModule(lambda x: x * 2)
        >>> double(torch.ones(2))
        tensor([2., 2.])
    """

    def __init__(
        self,
        module: Callable[..., Any],
        warmup: int = 2,
        in_keys: list[Any] | None = None,
        out_keys: list[Any] | None = None,
        device: torch.device | None = None,
    ) -> None:
        if not isinstance(warmup, int) or warmup < 1:
            msg = f"warmup must be an integer greater than 0. Got {warmup}."
            raise ValueError(msg)
        self._has_cuda = torch.cuda.is_available()
        if not self._has_cuda:
            warn_caller(MSG_NO_CUDA, UserWarning)
        self.module = module
        self.warmup = warmup
        if in_keys is None:
            in_keys = getattr(module, "in_keys", None)
        if out_keys is None:
            out_keys = getattr(module, "out_keys", None)
        self.in_keys: list[NestedKey] | None
        self.out_keys: list[NestedKey] | None
        self.in_keys = None if in_keys is None else _keys(in_keys)
        self.out_keys = None if out_keys is None else _keys(out_keys)
        self._is_tensordict_module = (
            self.in_keys is not None and self.out_keys is not None
        )
        self._device = device
        self._num_calls = 0
        self._graph: Any = None
        self._inputs: list[Any] = []
        self._spec: Any = None
        self._outputs: Any = None
        self.__wrapped__: Callable[..., Any] = (
            self._call_with_collection if self._is_tensordict_module else self._call
        )

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Execute the module, record the graph or replay it."""
        return self.__wrapped__(*args, **kwargs)

    @dispatch(auto_batch_size=False)
    def _call_with_collection(
        self, tensordict: CollectionProtocol, *args: object, **kwargs: object
    ) -> Any:
        if not self._has_cuda:
            return self.module(tensordict, *args, **kwargs)
        in_keys, out_keys = self.in_keys or (), self.out_keys or ()
        inputs = tensordict.select(*in_keys, strict=False)
        outputs = self._call(inputs, *args, **kwargs)
        return tensordict.update(outputs.select(*out_keys, strict=False))

    def _call(self, *args: object, **kwargs: object) -> Any:
        if not self._has_cuda:
            return self.module(*args, **kwargs)
        with torch.cuda.device(self._device):
            self._num_calls += 1
            if self._num_calls <= self.warmup:
                return self._execute(args, kwargs)
            leaves, spec = _pytree.tree_flatten((args, kwargs))
            if self._graph is None:
                self._record(leaves, spec)
            else:
                self._take(leaves, spec)
            self._graph.replay()
            return _pytree.tree_map(_copy_of, self._outputs)

    def _execute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module on a side stream, as the recording does."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.module(*args, **kwargs)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _record(self, leaves: list[Any], spec: Any) -> None:
        if torch.is_grad_enabled() and any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves
        ):
            raise RuntimeError(MSG_GRADIENT)
        inputs = [_copy_of(leaf) for leaf in leaves]
        args, kwargs = _pytree.tree_unflatten(inputs, spec)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            outputs = self.module(*args, **kwargs)
        self._graph, self._inputs, self._spec = graph, inputs, spec
        self._outputs = outputs

    def _take(self, leaves: list[Any], spec: object) -> None:
        """Copy the inputs of a call to the memory that the graph reads."""
        if spec != self._spec:
            difference = "the structure of the arguments differs"
            raise RuntimeError(MSG_CHANGED.format(difference=difference))
        for recorded, leaf in zip(self._inputs, leaves, strict=True):
            if not isinstance(recorded, torch.Tensor):
                if recorded != leaf:
                    difference = f"{leaf!r} instead of {recorded!r}"
                    raise ValueError(MSG_CHANGED.format(difference=difference))
            elif not isinstance(leaf, torch.Tensor) or leaf.shape != recorded.shape:
                found = getattr(leaf, "shape", leaf)
                difference = f"{found} instead of {recorded.shape}"
                raise ValueError(MSG_CHANGED.format(difference=difference))
        for recorded, leaf in zip(self._inputs, leaves, strict=True):
            if isinstance(recorded, torch.Tensor):
                recorded.copy_(leaf, non_blocking=True)

    def state_dict(self, *args: object, **kwargs: object) -> Any:
        """Return the state dict of the module."""
        return self.module.state_dict(*args, **kwargs)  # type: ignore[attr-defined]

    def load_state_dict(self, *args: object, **kwargs: object) -> Any:
        """Load a state dict into the module in place, so that the graph reads it."""
        return self.module.load_state_dict(*args, **kwargs)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        """Return the text of the module and the options."""
        fields = [
            f"module={self.module}",
            f"warmup={self.warmup}",
            f"in_keys={self.in_keys}",
            f"out_keys={self.out_keys}",
        ]
        body = indent(",\n".join(fields), 4 * " ")
        return f"{type(self).__name__}(\n{body})"


def _keys(keys: object) -> list[NestedKey]:
    """Return the keys as a list, from any mutable sequence."""
    return _rust.unravel_key_list(
        list(keys) if isinstance(keys, MutableSequence) else keys
    )


def _copy_of(value: object) -> Any:
    """Return a detached copy of a tensor or tensordict; any other value as it is."""
    if isinstance(value, (torch.Tensor, CollectionProtocol)):
        return value.detach().clone()  # type: ignore[union-attr]
    return value


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
