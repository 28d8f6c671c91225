"""The loop over the leaves of a container, which the compiler need not interpret.

:func:`torch.compile` interprets a twin, each instruction as often as it is executed:
those of a loop once for each leaf, which costs nearly as much as what is done with the
leaf. So the twins share one loop, :func:`on_plain`, and Dynamo is given a rule for it
(:func:`install_rule`), which does at once what the interpreter would come to: the same
calls of the same operation, in the same order, with no other guard.

The rule needs a little of Dynamo that is not public. Where that is not there, or a size
is not known, the loop is interpreted as any other function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.overrides import has_torch_function_variadic as any_special

from tensordict.common import DIMS_TAIL, ONES_TAIL, SHAPE_TAIL, _call

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["install_rule", "on_plain"]


def on_plain(
    held: dict[str, Any], op: Any, args: tuple[Any, ...], tail: int, k: int
) -> tuple[dict[str, Any], list[str]]:
    """What ``op`` gives for each plain tensor of ``held``, and the keys of the others.

    ``op``, ``args``, ``tail`` and ``k`` are those of
    :func:`tensordict.interop.twins.map_leaves`. Nested tensors and what takes part in
    torch's functions are others: None stands in their places. An entry may also be a
    tuple of tensors, with which ``op`` is called as a whole.
    """
    found: dict[str, Any] = {}
    others: list[str] = []
    for key, value in [*held.items()]:
        leaves = value if type(value) is tuple else (value,)
        if not leaves or any_special(*leaves) or leaves[0].is_nested:
            found[key] = None
            others.append(key)
        else:
            found[key] = _call(value, op, args, tail, k)
    return found, others


def install_rule() -> bool:
    """Give Dynamo, which is imported, the rule for :func:`on_plain`; whether it took it."""
    try:
        from torch._dynamo.guards import GuardBuilder
        from torch._dynamo.variables import (
            ConstantVariable,
            ConstDictVariable,
            ListVariable,
            TensorVariable,
            TupleVariable,
            UserFunctionVariable,
        )
        from torch._dynamo.variables.base import ValueMutationNew
        from torch._dynamo.variables.builder import VariableBuilder

        rules = VariableBuilder._id_dispatch()
    except (ImportError, AttributeError):
        return False

    def applied(tx: Any, held: Any, op: Any, args: Any, tail: Any, k: Any) -> Any:
        """The result of the loop; None where it is to be interpreted."""
        held, args = held.realize(), args.realize()
        if type(held) is not ConstDictVariable or not isinstance(args, TupleVariable):
            return None
        leaves: Any = {key: value.realize() for key, value in held.items.items()}
        shapes: dict[Any, tuple[Any, ...]] = {}
        for key, value in leaves.items():
            group: Any = value.items if type(value) is TupleVariable else [value]
            if group and all(type(leaf.realize()) is TensorVariable for leaf in group):
                example = group[0].realize().proxy.node.meta.get("example_value")
                if example is None:
                    return None
                if not example.is_nested:
                    shapes[key] = tuple(example.shape)
        tail, k = tail.as_python_constant(), k.as_python_constant()
        if tail and not all(type(n) is int for shape in shapes.values() for n in shape):
            return None
        name = op.as_python_constant() if op.is_python_constant() else None
        is_method = type(name) is str
        found: dict[Any, Any] = {}
        others: list[Any] = []
        for key, leaf in leaves.items():
            if key not in shapes:
                found[key] = ConstantVariable.create(None)
                others.append(key.vt)
                continue
            whole: list[Any] = list(args.items)
            if tail:
                numbers = map(ConstantVariable.create, _tail(shapes[key], tail, k))
                first = [*whole[0].realize().items, *numbers]
                # Torch reads numbers faster than a sequence of them, where it takes them.
                is_read = is_method and len(whole) == 1 and tail <= DIMS_TAIL and first
                whole = first if is_read else [TupleVariable(first), *whole[1:]]
            if is_method:
                found[key] = leaf.call_method(tx, name, whole, {})
            else:
                found[key] = op.call_function(tx, [leaf, *whole], {})
        lists = ListVariable(others, mutation_type=ValueMutationNew())
        entries = ConstDictVariable(found, mutation_type=ValueMutationNew())
        return TupleVariable([entries, lists])

    class LeafLoopVariable(UserFunctionVariable):
        def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            result = None if kwargs or len(args) != 5 else applied(tx, *args)
            return super().call_function(tx, args, kwargs) if result is None else result

    def variable(builder: Any, value: Any) -> Any:
        builder.install_guards(GuardBuilder.ID_MATCH)
        return LeafLoopVariable(value, source=builder.source)

    rules[id(on_plain)] = variable
    return True


def _tail(shape: tuple[int, ...], tail: int, k: int) -> Sequence[int]:
    """What a tail appends to the first argument, for a leaf of this shape."""
    return {
        SHAPE_TAIL: shape[k:],
        DIMS_TAIL: range(k, len(shape)),
        ONES_TAIL: [1] * (len(shape) - k),
    }[tail]
