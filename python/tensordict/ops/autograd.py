"""Gradients of the leaves."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AutogradOps"]

MSG_BACKWARD_SCALAR = (
    "grad can be implicitly created only for scalar outputs: the leaf at key {!r} has "
    "shape {}. Pass a gradient tensordict matching the structure of this tensordict "
    "to backward()."
)
MSG_BACKWARD_TYPE = (
    "gradient must be a TensorDictBase instance with entries matching the "
    "differentiable leaves of the tensordict, got {} instead."
)
MSG_BACKWARD_MISSING = (
    "Missing gradient entry for key {!r} in the gradient tensordict passed to "
    "backward()."
)
MSG_NOT_DIFFERENTIABLE = (
    "only Tensors of floating point dtype can require gradients: the leaf at key {!r} "
    "has dtype {}. Cast it first, or leave it out with exclude()."
)


_data_of = operator.attrgetter("data")


def _set_data(leaf: torch.Tensor, data: torch.Tensor) -> None:
    leaf.data = data


def _set_grad(leaf: torch.Tensor, grad: torch.Tensor | None) -> None:
    leaf.grad = grad


class AutogradOps(CollectionProtocol):
    """Gradients of the leaves."""

    @property
    def requires_grad(self) -> bool:
        """Whether any leaf requires a gradient."""
        return any([leaf.requires_grad for leaf in _rust.leaves(self)])

    @property
    def data(self) -> Self:
        """The leaves' data, outside of the graph: same memory, same structure and lock.

        Setting it replaces the data of each leaf by that of the entry of the same key;
        leaves whose key the other collection lacks keep theirs.
        """
        return _rust.map_leaves(self, _data_of, (), None, True, 0, True)

    @data.setter
    def data(self, source: Any) -> None:
        _assign(self, source, _set_data, "data")

    @property
    def grad(self) -> Self | None:
        """The gradients, with the entries that have one; None where no leaf has.

        Setting it sets the gradient of each leaf whose key the source has; None clears
        them all.
        """
        return self._fast_apply(_grad_of, filter_empty=True, propagate_lock=True)

    @grad.setter
    def grad(self, source: Any) -> None:
        if source is None:
            for leaf in _rust.leaves(self):
                leaf.grad = None
            return
        _assign(self, source, _set_grad, "grad")

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set in place whether the leaves require gradients.

        Raises:
            RuntimeError: a leaf's dtype is neither floating point nor complex, or a
                leaf is the result of an operation. No leaf is changed then.
        """
        if requires_grad:
            for key, leaf in self.items(True, True):
                dtype = leaf.dtype
                if not (dtype.is_floating_point or dtype.is_complex):
                    raise RuntimeError(MSG_NOT_DIFFERENTIABLE.format(key, dtype))
        for leaf in _rust.leaves(self):
            leaf.requires_grad_(requires_grad)
        return self

    def detach(self) -> Self:
        """The same data outside of the graph. As :meth:`torch.Tensor.detach`.

        The result shares the memory of this collection and is locked where it is.
        """
        return _rust.map_leaves(self, "detach", (), None, True, 0, True)

    def detach_(self) -> Self:
        """Take every leaf out of the graph, in place."""
        for leaf in _rust.leaves(self):
            leaf.detach_()
        return self

    def zero_grad(self, set_to_none: bool = True) -> Self:
        """Clear the gradients of all leaves.

        Args:
            set_to_none: remove the gradients; if false they are filled with zeros.
        """
        for leaf in _rust.leaves(self):
            if leaf.grad is None:
                continue
            if set_to_none:
                leaf.grad = None
            else:
                leaf.grad.detach_().zero_()
        return self

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Differentiate all leaves at once. As :func:`torch.autograd.backward`.

        Args:
            gradient: a collection with an entry, of the leaf's shape, for each leaf
                that requires a gradient. May be left out where all have one element.
            retain_graph: keep the graph. Default: where ``create_graph`` is true.
            create_graph: make the gradients differentiable.
            inputs: a collection or a sequence of tensors that gradients accumulate in.
                Default: all leaves of the graph.

        Raises:
            RuntimeError: there is no ``gradient`` and a leaf has several elements, or
                no leaf requires a gradient.
            TypeError: ``gradient`` is no collection.
            KeyError: ``gradient`` lacks the entry of a leaf.
        """
        if gradient is not None and not isinstance(gradient, CollectionProtocol):
            raise TypeError(MSG_BACKWARD_TYPE.format(type(gradient).__name__))
        tensors: list[torch.Tensor] = []
        gradients: list[torch.Tensor | None] = []
        for key, leaf in self.items(True, True):
            if not leaf.requires_grad:
                continue
            given = None
            if gradient is not None:
                given = gradient.get(key)
                if given is None:
                    raise KeyError(MSG_BACKWARD_MISSING.format(key))
            elif leaf.numel() != 1:
                raise RuntimeError(MSG_BACKWARD_SCALAR.format(key, tuple(leaf.shape)))
            tensors.append(leaf)
            gradients.append(given)
        torch.autograd.backward(
            tensors,
            gradients,
            retain_graph=retain_graph,
            create_graph=create_graph,
            inputs=_input_leaves(inputs),
        )

    def data_ptr(self, *, storage: bool = False) -> Any:
        """The address of each leaf's first element, as int64 scalars of one batch.

        Args:
            storage: give the address of the storage instead.

        Returns:
            A collection of the same keys with batch size ``[]`` on the CPU.
        """
        return self._fast_apply(
            _storage_address if storage else _address,
            batch_size=torch.Size([]),
            device=torch.device("cpu"),
            names=None,
        )

    def param_count(self, *, count_duplicates: bool = True) -> int:
        """The number of elements of all leaves.

        Args:
            count_duplicates: count a tensor once for each entry that holds it.
        """
        values = _rust.leaves(self)
        if not count_duplicates:
            values = list({id(leaf): leaf for leaf in values}.values())
        return sum([math.prod(leaf.shape) for leaf in values])


def _grad_of(leaf: torch.Tensor) -> torch.Tensor | None:
    return leaf.grad


def _address(leaf: torch.Tensor) -> torch.Tensor:
    return torch.tensor(leaf.data_ptr(), dtype=torch.int64)


def _storage_address(leaf: torch.Tensor) -> torch.Tensor:
    return torch.tensor(leaf.untyped_storage().data_ptr(), dtype=torch.int64)


def _input_leaves(inputs: Any) -> Sequence[torch.Tensor] | None:
    if isinstance(inputs, CollectionProtocol):
        return _rust.leaves(inputs)
    return inputs


def _assign(td: Any, source: Any, assign: Any, what: str) -> None:
    """Call ``assign(leaf, entry)`` for each leaf whose key ``source`` has."""
    if not isinstance(source, CollectionProtocol):
        msg = f"{what} can be set to a tensordict only, got {type(source).__name__}."
        raise TypeError(msg)
    for key, leaf in td.items(True, True):
        entry = source.get(key)
        if entry is not None:
            assign(leaf, entry)
