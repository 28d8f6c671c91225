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
        """The leaves' data: they share memory with the leaves, and autograd does not see them.

        Assigning a collection replaces the data of the leaves at its keys; the leaves
        stay the tensors that they are.

        Raises:
            KeyError: what is assigned has keys that this tensordict has not.

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
        """The leaves' gradients, or None where no leaf has one.

        A leaf without a gradient is left out. Values that are no tensors stay, also
        where no leaf has a gradient. Assigning a collection sets the gradients
        of all leaves from its entries, assigning None drops them.

        Examples:
            >>> td = TensorDict(a=torch.ones(2)).requires_grad_()
            >>> td.grad is None
            True
            >>> (td * 2).sum().backward()
            >>> td.grad["a"]
            tensor([2., 2.])
        """
        leaves = _rust.leaves(self)
        # torch gives plain tensors here.
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
            msg = f"grad can be set to a collection only, got {type(value).__name__}."
            raise TypeError(msg)
        pairs = _rust.walk(self, 2, True, True)
        grads = [_rust.get(value, key) for key, _ in pairs]
        for (_, leaf), grad in zip(pairs, grads, strict=True):
            leaf.grad = grad

    @property
    def requires_grad(self) -> bool:
        """Return whether any leaf requires a gradient."""
        # A loop of its own: a generator costs as much as the attributes.
        for leaf in _rust.leaves(self):  # noqa: SIM110
            if leaf.requires_grad:
                return True
        return False

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Say whether gradients of the leaves are wanted, in place.

        Args:
            requires_grad: whether they are.

        Raises:
            RuntimeError: a leaf is neither of floats nor complex. No leaf is changed.
        """
        leaves = _rust.leaves(self)
        if requires_grad:
            # The leaf that refuses goes first, before any other has changed.
            leaves.sort(key=lambda leaf: leaf.is_floating_point() or leaf.is_complex())
        for leaf in leaves:
            leaf.requires_grad_(requires_grad)
        return self

    @mapping("detach")
    def detach(self) -> Self:  # type: ignore[empty-body]
        """Share the leaves' memory in leaves that autograd does not follow."""

    def detach_(self) -> Self:
        """Take the leaves out of their graphs, in place.

        Raises:
            RuntimeError: a leaf is a view of a tensor that requires a gradient.
        """
        for leaf in _rust.leaves(self):
            leaf.detach_()
        return self

    def zero_grad(self, set_to_none: bool = True) -> Self:
        """Drop the leaves' gradients, or fill them with zeros.

        Args:
            set_to_none: whether they are dropped.
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
        """Compute the gradients of all leaves that require one, in one pass.

        Args:
            gradient: the gradients of these leaves: a collection with their keys. Not
                needed where every leaf has one element.
            retain_graph: whether the graph is kept.
            create_graph: whether the gradients can be differentiated again.
            inputs: where gradients are accumulated: tensors, or a collection of them.
                Default: all leaves of the graph.

        Raises:
            RuntimeError: no leaf requires a gradient, a leaf has more than one element
                and there is no ``gradient``, or shapes differ.
            TypeError: ``gradient`` is no collection.

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
        """The addresses of the leaves, as a plain collection of integers on the CPU.

        Args:
            storage: whether the addresses of their storages are given instead.
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
        # Neither empty collections nor values have addresses: they are left out.
        filtered = result.filter_non_tensor_data()._fast_apply(
            lambda pointer: pointer, filter_empty=True
        )
        if filtered is None:
            return result.empty()
        # The addresses of the root come before those of nested tensordicts.
        for key, value in list(filtered._entries().items()):
            if isinstance(value, CollectionProtocol):
                filtered._del_entry(key)
                filtered._set_entry(key, value)
        return filtered

    def param_count(self, *, count_duplicates: bool = True) -> int:
        """Count the elements of all leaves.

        Args:
            count_duplicates: whether a tensor that is at several keys counts each time.
        """
        leaves = _rust.leaves(self)
        if not count_duplicates:
            leaves = list({id(leaf): leaf for leaf in leaves}.values())
        return sum(leaf.numel() for leaf in leaves)


def _tensors(inputs: Any) -> Sequence[torch.Tensor] | None:
    """The tensors that ``inputs`` of ``backward`` names."""
    if inputs is None or isinstance(inputs, torch.Tensor):
        return inputs if inputs is None else [inputs]
    if isinstance(inputs, CollectionProtocol):
        return [leaf for leaf in _rust.leaves(inputs) if leaf.requires_grad]
    return list(inputs)


def _assign_data(td: CollectionProtocol, source: object) -> None:
    """Set ``leaf.data`` of every leaf for which ``source`` has an entry."""
    if not isinstance(source, CollectionProtocol):
        msg = f"data can be set to a collection only, got {type(source).__name__}."
        raise TypeError(msg)
    if source.batch_size != td.batch_size:
        msg = f"Cannot assign .data: batch sizes differ: {source.batch_size} and {td.batch_size}."
        raise RuntimeError(msg)
    mine = dict(_rust.walk(td, 2, True, True))
    theirs = dict(_rust.walk(source, 2, True, True))
    extra = [key for key in theirs if key not in mine]
    if extra:
        raise absent_key(MSG_DATA_KEYS.format(extra))
    for key, value in theirs.items():
        mine[key].data = value.data


def _without_none(td: CollectionProtocol) -> Any:
    """A result just made without entries that are None, and what they leave empty."""
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
