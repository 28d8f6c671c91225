"""Gradients: data and grad of the leaves, backward, detach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.ops.families import mapping
from tensordict.primitives.checks import is_branch
from tensordict.primitives.errors import absent_key
from tensordict.primitives.protocol import CollectionProtocol, as_stack
from tensordict.primitives.special import results_as_sources

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AutogradOps"]

MSG_DATA_KEYS = (
    "Cannot assign .data: the keys {} of the source are not in the destination."
)
MSG_GRADIENT_TYPE = (
    "gradient must be a TensorDictBase instance with entries matching the "
    "differentiable leaves of the tensordict, got {} instead."
)
MSG_GRADIENT_SHAPE = (
    "Mismatch in shape: the gradient at key {!r} has shape {} but the corresponding "
    "leaf has shape {}."
)
MSG_NO_GRAD = (
    "backward() cannot be called on a tensordict that has no leaf tensor requiring "
    "gradients."
)
MSG_SCALAR = (
    "grad can be implicitly created only for scalar outputs: the leaf at key {!r} has "
    "shape {}. Pass a gradient tensordict matching the structure of this tensordict to "
    "backward()."
)


class AutogradOps(CollectionProtocol):
    """Gradients of the leaves."""

    @property
    def data(self) -> Self:
        """The data of the leaves: shares their memory and is hidden from autograd.

        Assign a tensordict to replace the data of the leaves at its keys. The leaves
        stay the same tensors.

        Raises:
            KeyError: an assigned tensordict has a key that this tensordict lacks.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2)).requires_grad_()
            >>> td.data["a"].requires_grad
            False
            >>> td.data = TensorDict(a=torch.ones(2))
            >>> td["a"]
            tensor([1., 1.], requires_grad=True)
        """
        return _rust.data(self)

    @data.setter
    def data(self, value: object) -> None:
        _assign_data(self, value)

    @property
    def grad(self) -> Self | None:
        """The gradients of the leaves, or None if no leaf has a gradient.

        A leaf without a gradient is left out; non-tensor data is included. Assign a
        tensordict to set the gradients of all leaves from its entries, or None to drop
        them.

        Examples:
            >>> td = TensorDict(a=torch.ones(2)).requires_grad_()
            >>> td.grad is None
            True
            >>> (td * 2).sum().backward()
            >>> td.grad["a"]
            tensor([2., 2.])
        """
        leaves = _rust.leaves(self)
        # Gradients of mapped or shared leaves are plain tensors.
        grads = results_as_sources([leaf.grad for leaf in leaves], leaves)
        result = _without_none(_rust.rebuild(self, grads))
        if all(grad is None for grad in grads) and result.is_empty():
            return None
        if self._is_locked:
            _rust.lock_tree(result)
        return result

    @grad.setter
    def grad(self, value: object) -> None:
        if value is None:
            for leaf in _rust.leaves(self):
                leaf.grad = None
            return
        if not isinstance(value, CollectionProtocol):
            msg = f"grad takes a tensordict or None, got {type(value).__name__}."
            raise TypeError(msg)
        pairs = _rust.walk(self, 2, True, True)
        grads = [_rust.get(value, key) for key, _ in pairs]
        for (_, leaf), grad in zip(pairs, grads, strict=True):
            leaf.grad = grad

    @property
    def requires_grad(self) -> bool:
        """Whether any leaf requires grad."""
        # A plain loop: a generator would cost as much as the attribute reads.
        for leaf in _rust.leaves(self):  # noqa: SIM110
            if leaf.requires_grad:
                return True
        return False

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether the leaves require grad, in place.

        Args:
            requires_grad: True to record gradients.

        Raises:
            RuntimeError: a leaf's dtype is neither floating point nor complex. No leaf
                is changed.
        """
        leaves = _rust.leaves(self)
        if requires_grad:
            # A leaf that refuses goes first, so that no other leaf has changed.
            leaves.sort(key=lambda leaf: leaf.is_floating_point() or leaf.is_complex())
        for leaf in leaves:
            leaf.requires_grad_(requires_grad)
        return self

    @mapping("detach")
    def detach(self) -> Self:  # type: ignore[empty-body]
        """Return new leaves that share the memory and are outside of the graph."""

    def detach_(self) -> Self:
        """Detach the leaves from their graphs, in place.

        Raises:
            RuntimeError: a leaf is a view of a tensor that requires grad.
        """
        for leaf in _rust.leaves(self):
            leaf.detach_()
        return self

    def zero_grad(self, set_to_none: bool = True) -> Self:
        """Drop the leaves' gradients, or fill them with zeros.

        Args:
            set_to_none: drop the gradients instead of filling them.
        """
        for leaf in _rust.leaves(self):
            if set_to_none:
                leaf.grad = None
            elif leaf.grad is not None:
                leaf.grad.detach_().zero_()
        return self

    def backward(
        self,
        gradient: object = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: object = None,
    ) -> None:
        """Compute the gradients of all leaves that require grad, in one pass.

        Args:
            gradient: a tensordict with the gradient of each leaf. Not needed if every
                leaf has one element.
            retain_graph: keep the graph.
            create_graph: make the gradients differentiable again.
            inputs: the tensors, or a tensordict of tensors, whose gradients are
                accumulated. Default: all leaves of the graph.

        Raises:
            RuntimeError: no leaf requires grad; a leaf has more than one element and
                ``gradient`` is missing; or shapes differ.
            TypeError: ``gradient`` is no tensordict.

        Examples:
            >>> td = TensorDict(a=torch.ones(2)).requires_grad_()
            >>> (td * 3).sum().backward()
            >>> td["a"].grad
            tensor([3., 3.])
        """
        if gradient is not None and not isinstance(gradient, CollectionProtocol):
            raise TypeError(MSG_GRADIENT_TYPE.format(type(gradient).__name__))
        pairs = [
            (key, leaf)
            for key, leaf in _rust.walk(self, 2, True, True)
            if leaf.requires_grad
        ]
        if not pairs:
            raise RuntimeError(MSG_NO_GRAD)
        grads: list[Any] = []
        for key, leaf in pairs:
            if gradient is None:
                if leaf.numel() != 1:
                    raise RuntimeError(MSG_SCALAR.format(key, tuple(leaf.shape)))
                grads.append(None)
                continue
            grad = _rust.get(gradient, key)
            if grad.shape != leaf.shape:
                shapes = tuple(grad.shape), tuple(leaf.shape)
                raise RuntimeError(MSG_GRADIENT_SHAPE.format(key, *shapes))
            grads.append(grad)
        torch.autograd.backward(
            [leaf for _, leaf in pairs],
            grads,
            retain_graph=retain_graph,
            create_graph=create_graph,
            inputs=_tensors(inputs),
        )

    # Flags of leaves ---------------------------------------------------------------

    def data_ptr(self, *, storage: bool = False) -> Any:
        """Return the addresses of the leaves, as a tensordict of integers on the CPU.

        Args:
            storage: return the addresses of the storages instead.
        """
        pointers = [
            leaf.untyped_storage().data_ptr() if storage else leaf.data_ptr()
            for leaf in _rust.leaves(self)
        ]
        values = [torch.tensor(pointer, dtype=torch.int64) for pointer in pointers]
        size = torch.Size([])
        result = _rust.rebuild_as(self, values, self._plain_type, size)
        result = result.filter_non_tensor_data()
        for collection in _rust.containers(result):
            collection._device = torch.device("cpu")
        # Empty tensordicts and non-tensor data have no addresses: leave them out.
        filtered = result.filter_non_tensor_data()._fast_apply(
            lambda pointer: pointer, filter_empty=True
        )
        if filtered is None:
            return result.empty()
        # Put the leaves of the root before the nested tensordicts.
        for key, value in list(filtered._entries().items()):
            if isinstance(value, CollectionProtocol):
                filtered._del_entry(key)
                filtered._set_entry(key, value)
        return filtered

    def param_count(self, *, count_duplicates: bool = True) -> int:
        """Count the elements of all leaves.

        Args:
            count_duplicates: count a tensor at several keys several times.
        """
        leaves = _rust.leaves(self)
        if not count_duplicates:
            leaves = list({id(leaf): leaf for leaf in leaves}.values())
        return sum(leaf.numel() for leaf in leaves)


def _tensors(inputs: Any) -> Sequence[torch.Tensor] | None:
    """Return the tensors that ``inputs`` of ``backward`` names."""
    if inputs is None or isinstance(inputs, torch.Tensor):
        return inputs if inputs is None else [inputs]
    if isinstance(inputs, CollectionProtocol):
        return [leaf for leaf in _rust.leaves(inputs) if leaf.requires_grad]
    return list(inputs)


def _assign_data(td: CollectionProtocol, source: object) -> None:
    """Set ``leaf.data`` of every leaf for which ``source`` has an entry."""
    if not isinstance(source, CollectionProtocol):
        msg = f"data takes a tensordict, got {type(source).__name__}."
        raise TypeError(msg)
    if source.batch_size != td.batch_size:
        msg = f"Cannot assign .data: batch sizes differ: {source.batch_size} and {td.batch_size}."
        raise RuntimeError(msg)
    own_leaves = dict(_rust.walk(td, 2, True, True))
    source_leaves = dict(_rust.walk(source, 2, True, True))
    extra = [key for key in source_leaves if key not in own_leaves]
    if extra:
        raise absent_key(MSG_DATA_KEYS.format(extra))
    for key, value in source_leaves.items():
        own_leaves[key].data = value.data


def _without_none(td: CollectionProtocol) -> Any:
    """Remove entries that are None from a new result, and nested ones left empty."""
    stack = as_stack(td)
    if stack is not None:
        return stack._like([_without_none(member) for member in stack.tensordicts])
    entries = {}
    for key, value in list(td._entries().items()):
        if is_branch(value):
            value = _without_none(value)
            if not value._sample_entries():
                continue
        elif value is None:
            continue
        entries[key] = value
    if not td._is_dense:
        return td._with_entries(entries)
    size, device, names = td._batch_size, td._device, td._td_dim_names
    return _rust.new(type(td), entries, size, device, names)
