"""Tensordicts as operands and results of ``torch.cond``, ``while_loop`` and ``scan``.

These functions take trees of tensors. They compile themselves if they are called
outside of compiled code. Dynamo makes a graph of each function argument and flattens
its result. Three additions make tensordicts work: a tensordict that such a function
makes stays known until it is flattened; the operands of ``cond`` are flattened like the
operands of loops; and a step of ``scan`` returns leaves, from which trees are rebuilt
afterwards.

This uses private parts of Dynamo. If Dynamo lacks them, these functions take no
tensordicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install"]

_ATTRIBUTE_TABLES = ("store_attr_mutations", "attr_mutation_kinds")
"""Attributes of ``SideEffects`` for new objects; an older Dynamo lacks the second."""


def _flat_cond(
    pred: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Any
) -> Any:
    """Call ``torch.cond`` with the leaves of the operands."""
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


def _resized(tree: Any, like: Any, num_more: int) -> Any:
    """Add ``more`` batch dims to the tensordicts in a tree, compared with ``like``.

    The shapes of the leaves alone do not tell batch dims from feature dims.
    """

    def resize(td: Any, like: Any) -> Any:
        if _is_collection(td) and td._lazy_stack() is None:
            like_entries = like._entries()
            shapes = []
            for key, value in td._entries().items():
                resize(value, like_entries[key])
                if not getattr(value, "_is_non_tensor", False):
                    shapes.append(value.shape)
            for shape in shapes[:1]:
                td.batch_size = shape[: max(0, like.batch_dims + num_more)]
        return td

    return _pytree.tree_map(resize, tree, like, is_leaf=_is_collection)


def _row_step(step: Callable[..., Any], stacked: Any) -> Callable[..., Any]:
    """Wrap a step of a scan, so that it gets rows with the batch size of a row."""

    def row_step(carry: Any, row: Any) -> Any:
        return step(carry, _resized(row, stacked, -1))

    return row_step


def _leaves_of_step(result: Any) -> tuple[Any, Any]:
    """Return the leaves of the carry and of the output of a step."""
    carry, out = result
    return _pytree.tree_leaves(carry), _pytree.tree_leaves(out)


def _trees_of(like: Any, leaves: Any) -> tuple[Any, Any]:
    """Rebuild the carry and the stacked outputs of a scan from their leaves."""
    carry, out = [
        _pytree.tree_unflatten(tree_leaves, _pytree.tree_structure(tree))
        for tree_leaves, tree in zip(leaves, like, strict=True)
    ]
    return carry, _resized(out, like[1], 1)


def _keep_collections(effects: Any) -> None:
    """Keep tensordicts that a traced function made, when Dynamo undoes its effects."""
    original = effects.track_runahead_tensor_and_symvar_side_effects

    def track_runahead(self: Any, other: Any) -> None:
        original(self, other)
        for item in other.keepalive:
            variable = other.id_to_variable[id(item)]
            if (
                isinstance(item, CollectionProtocol)
                and id(item) not in self.id_to_variable
            ):
                self.id_to_variable[id(item)] = variable
                self.keepalive.append(item)
                for name in _ATTRIBUTE_TABLES:
                    if variable in (stores := getattr(other, name, ())):
                        getattr(self, name)[variable] = stores[variable]

    effects.track_runahead_tensor_and_symvar_side_effects = track_runahead


def install() -> bool:
    """Patch the imported Dynamo; return whether it has the needed private parts."""
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
        return any(_is_collection(getattr(var, "value", None)) for var in others)

    def flat_cond(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = realized((args, kwargs))
        if len(args) == 4 and not kwargs and holds_collections(args[3]):
            return inlined(tx, _flat_cond)(*args)
        return call_cond(self, tx, args, kwargs)

    class Step(FunctoolsPartialVariable):
        """A step of a scan that returns leaves if it makes tensordicts."""

        like: Any = None

        def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            result = realized(super().call_function(tx, args, kwargs))
            if not holds_collections(result):
                return result
            self.like = result
            return inlined(tx, _leaves_of_step)(result)

    def flat_scan(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = realized((args, kwargs))
        step_variable = args[0] if len(args) > 2 else None
        if (
            type(step_variable) is not FunctoolsPartialVariable
            or "spec_xs" not in step_variable.keywords
        ):
            return call_scan(self, tx, args, kwargs)
        step = Step(
            step_variable.func, step_variable.args, dict(step_variable.keywords)
        )
        stacked = inlined(tx, _pytree.tree_unflatten)(
            args[2], step_variable.keywords["spec_xs"]
        )
        if holds_collections(stacked):
            combine = step_variable.keywords["combine_fn"]
            step.keywords["combine_fn"] = inlined(tx, _row_step)(combine, stacked)
        result = call_scan(self, tx, [step, *args[1:]], kwargs)
        return (
            result if step.like is None else inlined(tx, _trees_of)(step.like, result)
        )

    cond._call_function = flat_cond
    scan._call_function = flat_scan
    return True
