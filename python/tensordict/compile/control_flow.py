"""Let collections be operands and results of ``torch.cond``, ``while_loop`` and ``scan``.

They take trees of tensors, compiled or not: what is not compiled is compiled by itself. Dynamo
makes a graph of each function that they get, and flattens what it returns. Three things
are taught here. A collection that such a function makes is known after it, when it is
flattened. The operands of ``cond`` are flattened, as those of loops are. And a step of
``scan`` returns leaves, of which trees are made after it.

This needs a little of Dynamo that is not public. Where that is not there, these functions
take no collections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install"]

_OF_ATTRIBUTES = ("store_attr_mutations", "attr_mutation_kinds")
"""Attributes of ``SideEffects`` with what new objects have; an older one lacks the second."""


def _flat_cond(
    pred: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Any
) -> Any:
    """Call ``torch.cond`` with leaves."""
    leaves, spec = _pytree.tree_flatten(operands)

    def true_of_leaves(*leaves: Any) -> Any:
        return if_true(*_pytree.tree_unflatten(leaves, spec))

    def false_of_leaves(*leaves: Any) -> Any:
        return if_false(*_pytree.tree_unflatten(leaves, spec))

    return torch.ops.higher_order.cond(
        pred, true_of_leaves, false_of_leaves, tuple(leaves)
    )


def _is_collection(value: object) -> bool:
    return isinstance(value, CollectionProtocol)


def _resized(tree: Any, like: Any, more: int) -> Any:
    """A tree whose collections have so many batch dims more than those of ``like``.

    The leaves alone do not tell a dim of the batch from one of their own.
    """

    def resize(td: Any, like: Any) -> Any:
        if _is_collection(td) and not td._is_non_tensor and td._lazy_stack() is None:
            others = like._entries()
            shapes = []
            for key, value in td._entries().items():
                resize(value, others[key])
                if not getattr(value, "_is_non_tensor", False):
                    shapes.append(value.shape)
            for shape in shapes[:1]:
                td.batch_size = shape[: max(0, like.batch_dims + more)]
        return td

    return _pytree.tree_map(resize, tree, like, is_leaf=_is_collection)


def _step_of_rows(step: Callable[..., Any], whole: Any) -> Callable[..., Any]:
    """A step of a scan over ``whole`` that gets rows with the batch size of a row."""

    def step_of_row(carry: Any, row: Any) -> Any:
        return step(carry, _resized(row, whole, -1))

    return step_of_row


def _leaves_of_step(result: Any) -> tuple[Any, Any]:
    """The leaves of the carry and of the output of a step."""
    carry, out = result
    return _pytree.tree_leaves(carry), _pytree.tree_leaves(out)


def _trees_of(like: Any, leaves: Any) -> tuple[Any, Any]:
    """The carry and the output of all steps, of their leaves; those of one are ``like`` it."""
    carry, out = [
        _pytree.tree_unflatten(each, _pytree.tree_structure(tree))
        for each, tree in zip(leaves, like, strict=True)
    ]
    return carry, _resized(out, like[1], 1)


def _keep_collections(effects: Any) -> None:
    """Let collections that a traced function has made outlive what is undone after it."""
    keep = effects.track_runahead_tensor_and_symvar_side_effects

    def track_runahead(self: Any, other: Any) -> None:
        keep(self, other)
        for item in other.keepalive:
            made = other.id_to_variable[id(item)]
            if (
                isinstance(item, CollectionProtocol)
                and id(item) not in self.id_to_variable
            ):
                self.id_to_variable[id(item)] = made
                self.keepalive.append(item)
                for name in _OF_ATTRIBUTES:
                    if made in (stores := getattr(other, name, ())):
                        getattr(self, name)[made] = stores[made]

    effects.track_runahead_tensor_and_symvar_side_effects = track_runahead


def install() -> bool:
    """Teach Dynamo, which is imported, about collections; return whether it took it."""
    try:
        from torch._dynamo.side_effects import SideEffects
        from torch._dynamo.variables import higher_order_ops
        from torch._dynamo.variables.functions import FunctoolsPartialVariable

        ops: Any = higher_order_ops
        cond, scan = ops.CondHigherOrderVariable, ops.ScanHigherOrderVariable
        call_cond, call_scan = cond._call_function, scan._call_function
        inlined, realized = ops._make_inlined, ops.LazyVariableTracker.realize_all
        mismatched = ops.find_mismatched_vars
        _keep_collections(SideEffects)
    except (ImportError, AttributeError):
        return False

    def holds_collections(tree: Any) -> bool:
        others = mismatched(tree, ops.TensorVariable)
        return any(_is_collection(getattr(each, "value", None)) for each in others)

    def flat_cond(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = realized((args, kwargs))
        if len(args) == 4 and not kwargs and holds_collections(args[3]):
            return inlined(tx, _flat_cond)(*args)
        return call_cond(self, tx, args, kwargs)

    class Step(FunctoolsPartialVariable):
        """A step of a scan that returns leaves if it makes collections."""

        like: Any = None

        def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            result = realized(super().call_function(tx, args, kwargs))
            if not holds_collections(result):
                return result
            self.like = result
            return inlined(tx, _leaves_of_step)(result)

    def flat_scan(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = realized((args, kwargs))
        given = args[0] if len(args) > 2 else None
        if (
            type(given) is not FunctoolsPartialVariable
            or "spec_xs" not in given.keywords
        ):
            return call_scan(self, tx, args, kwargs)
        step = Step(given.func, given.args, dict(given.keywords))
        whole = inlined(tx, _pytree.tree_unflatten)(args[2], given.keywords["spec_xs"])
        if holds_collections(whole):
            combine = given.keywords["combine_fn"]
            step.keywords["combine_fn"] = inlined(tx, _step_of_rows)(combine, whole)
        result = call_scan(self, tx, [step, *args[1:]], kwargs)
        return (
            result if step.like is None else inlined(tx, _trees_of)(step.like, result)
        )

    cond._call_function = flat_cond
    scan._call_function = flat_scan
    return True
