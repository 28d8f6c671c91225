"""Calls that are recorded once as a CUDA graph and replayed ever after."""

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
    "CudaGraphModule cannot record a call whose inputs require gradients: a graph has no "
    "history. Detach them, or call it under torch.no_grad()."
)
MSG_CHANGED = (
    "CudaGraphModule recorded a call with other arguments: {what}. Make another "
    "CudaGraphModule for them."
)


class CudaGraphModule:
    """A module or function whose calls become replays of one CUDA graph.

    The first ``warmup`` calls execute it; the next one records the graph. From then on
    inputs are copied to where the graph reads them, and results are copies of what it
    wrote. All inputs keep their shapes, and what is no tensor its value. Without a GPU
    the module is just called.

    Args:
        module: a module of collections, or a function of tensors and pytrees of them.
        warmup: how many calls are executed before the one that is recorded, at least 1.
        in_keys: the entries that a function of a collection reads. Default: those of
            the module.
        out_keys: the entries that it writes. Default: those of the module.
        device: the GPU. Default: the current one.

    Raises:
        ValueError: ``warmup`` is less than 1.

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
        """Execute the module, record it, or replay what was recorded."""
        return self.__wrapped__(*args, **kwargs)

    @dispatch(auto_batch_size=False)
    def _call_with_collection(
        self, tensordict: CollectionProtocol, *args: object, **kwargs: object
    ) -> Any:
        if not self._has_cuda:
            return self.module(tensordict, *args, **kwargs)
        in_keys, out_keys = self.in_keys or (), self.out_keys or ()
        read = tensordict.select(*in_keys, strict=False)
        written = self._call(read, *args, **kwargs)
        return tensordict.update(written.select(*out_keys, strict=False))

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
            return _pytree.tree_map(_copied, self._outputs)

    def _execute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call on a stream of its own, as the recording will be."""
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
        inputs = [_copied(leaf) for leaf in leaves]
        args, kwargs = _pytree.tree_unflatten(inputs, spec)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            outputs = self.module(*args, **kwargs)
        self._graph, self._inputs, self._spec = graph, inputs, spec
        self._outputs = outputs

    def _take(self, leaves: list[Any], spec: object) -> None:
        """Copy the inputs of a call to where the graph reads them."""
        if spec != self._spec:
            raise RuntimeError(MSG_CHANGED.format(what="their structure differs"))
        for own, leaf in zip(self._inputs, leaves, strict=True):
            if not isinstance(own, torch.Tensor):
                if own != leaf:
                    what = f"{leaf!r} in the place of {own!r}"
                    raise ValueError(MSG_CHANGED.format(what=what))
            elif not isinstance(leaf, torch.Tensor) or leaf.shape != own.shape:
                what = f"{getattr(leaf, 'shape', leaf)} in the place of {own.shape}"
                raise ValueError(MSG_CHANGED.format(what=what))
        for own, leaf in zip(self._inputs, leaves, strict=True):
            if isinstance(own, torch.Tensor):
                own.copy_(leaf, non_blocking=True)

    def state_dict(self, *args: object, **kwargs: object) -> Any:
        """That of the module."""
        return self.module.state_dict(*args, **kwargs)  # type: ignore[attr-defined]

    def load_state_dict(self, *args: object, **kwargs: object) -> Any:
        """Load the state of the module, in place, so that the graph reads it."""
        return self.module.load_state_dict(*args, **kwargs)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        """The module and the options."""
        fields = [
            f"module={self.module}",
            f"warmup={self.warmup}",
            f"in_keys={self.in_keys}",
            f"out_keys={self.out_keys}",
        ]
        body = indent(",\n".join(fields), 4 * " ")
        return f"{type(self).__name__}(\n{body})"


def _keys(keys: object) -> list[NestedKey]:
    """Keys in any mutable sequence as a list."""
    return _rust.unravel_key_list(
        list(keys) if isinstance(keys, MutableSequence) else keys
    )


def _copied(value: object) -> Any:
    """A tensor or collection with memory of its own; anything else as it is."""
    if isinstance(value, (torch.Tensor, CollectionProtocol)):
        return value.detach().clone()  # type: ignore[union-attr]
    return value


if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
