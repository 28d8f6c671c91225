"""The loops over the leaves of a container, which the compiler need not interpret.

:func:`torch.compile` interprets a twin, each instruction as often as it is executed:
those of a loop once for each leaf, which costs nearly as much as what is done with the
leaf. So the twins share one loop, :func:`on_plain`, and Dynamo is given a rule for it
(:func:`install_rules`), which does at once what the interpreter would come to: the same
calls of the same operation, in the same order, with no other guard.

What only moves entries about asks but one thing of them: which are no plain tensors
(:func:`special_keys`). By its rule a plain tensor is known by its type. A leaf of which
nothing else is asked is then no input of the graph, and has no guard but that of its type.

The rules need a little of Dynamo that is not public. Where that is not there, or a size
is not known, the loop is interpreted as any other function.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.overrides import has_torch_function_unary as is_special
from torch.overrides import has_torch_function_variadic as any_special

from tensordict.common import DIMS_TAIL, _call, tail_of
from tensordict.interop.rules import follow

__all__ = ["all_begin_with", "install_rules", "on_plain", "picked", "special_keys"]


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


def special_keys(held: dict[str, Any], is_used: bool = False) -> list[str]:  # noqa: ARG001
    """The keys of what takes part in torch's functions: all that is no plain tensor.

    ``held`` is a dictionary of the caller's own. With ``is_used`` the compiler makes
    inputs of the graph of all tensors, as it would have to afterwards.
    """
    values = [*held.values()]
    if not any_special(*values):
        return []
    return [key for key, value in held.items() if is_special(value)]


def picked(held: dict[str, Any], keys: tuple[Any, ...]) -> dict[str, Any] | None:
    """The entries of ``held`` at ``keys``, in that order; None where one is not there."""
    found: dict[str, Any] = {}
    for key in keys:
        if key.__class__ is not str or key not in held:
            return None
        found[key] = held[key]
    return found


def all_begin_with(held: dict[str, Any], size: torch.Size) -> bool:
    """Whether all entries are plain tensors whose first dims are ``size``."""
    for value in held.values():
        if (
            value.__class__ is not torch.Tensor
            or value.is_nested
            or value.shape[: len(size)] != size
        ):
            return False
    return True


def install_rules() -> bool:
    """Give Dynamo, which is imported, the rules of all; whether it took them."""
    try:
        from torch._dynamo.guards import GuardBuilder, install_guard
        from torch._dynamo.utils import has_torch_function
        from torch._dynamo.variables import (
            ConstantVariable,
            ConstDictVariable,
            DeletedVariable,
            LazyVariableTracker,
            ListVariable,
            TensorVariable,
            TupleVariable,
        )
        from torch._dynamo.variables.base import ValueMutationNew
        from torch._dynamo.variables.builder import VariableBuilder

        VariableBuilder._id_dispatch()
    except (ImportError, AttributeError):
        return False

    def applied(tx: Any, held: Any, op: Any, args: Any, tail: Any, k: Any) -> Any:
        """The result of the loop; None where it is to be interpreted."""
        held, op, args = held.realize(), op.realize(), args.realize()
        if type(held) is not ConstDictVariable or not isinstance(args, TupleVariable):
            return None
        leaves: Any = {key: value.realize() for key, value in held.items.items()}
        examples: dict[Any, torch.Tensor] = {}
        for key, value in leaves.items():
            group: Any = value.items if type(value) is TupleVariable else [value]
            if group and all(type(leaf.realize()) is TensorVariable for leaf in group):
                example = group[0].realize().proxy.node.meta.get("example_value")
                if example is None:
                    return None
                if not example.is_nested:
                    examples[key] = example
        tail, k = tail.as_python_constant(), k.as_python_constant()
        sizes = [n for each in examples.values() for n in each.shape] if tail else []
        if not all(type(n) is int for n in sizes):
            return None
        name = op.as_python_constant() if op.is_python_constant() else None
        is_method = type(name) is str
        found: dict[Any, Any] = {}
        others: list[Any] = []
        for key, leaf in leaves.items():
            if key not in examples:
                found[key] = ConstantVariable.create(None)
                others.append(key.vt)
                continue
            whole: list[Any] = list(args.items)
            if tail:
                rest = tail_of(examples[key], tail, k)
                first = [*whole[0].realize().items, *map(ConstantVariable.create, rest)]
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

    def is_plain(tx: Any, value: Any) -> bool:
        """Whether a plain tensor, of which nothing is known yet, is known by its type."""
        if (
            not isinstance(value, LazyVariableTracker)
            or value.is_realized()
            or value.source is None
            or type(value.peek_value()) not in _PLAIN
            or tx.output.export  # whose results are results of the graph
        ):
            return False
        install_guard(value.source.make_guard(GuardBuilder.TYPE_MATCH))
        return True

    def found(tx: Any, held: Any, is_used: Any = None) -> Any:
        """The result of :func:`special_keys`; None where it is to be interpreted."""
        held = held.realize()
        is_lazy = is_used is None or not is_used.as_python_constant()
        if type(held) is not ConstDictVariable or held.source is not None:
            return None
        keys: list[Any] = [
            key.vt
            for key, value in held.items.items()
            if not (is_lazy and is_plain(tx, value))
            and has_torch_function(value.realize())
        ]
        return ListVariable(keys, mutation_type=ValueMutationNew())

    def chosen(tx: Any, held: Any, keys: Any) -> Any:
        """The result of :func:`picked`; None where it is to be interpreted."""
        held, keys = held.realize(), keys.realize()
        if (
            type(held) is not ConstDictVariable
            or not held.items
            or not hasattr(held, "NOT_CONTAINS_GUARD")  # an older one asks for more
            or not isinstance(keys, TupleVariable)
        ):
            return None
        tracker: Any = type(next(iter(held.items)))
        source: Any = held.source
        if source is None or tx.output.side_effects.is_modified(held):
            source = None  # there is nothing to guard, or all of its keys are
        entries: dict[Any, Any] = {}
        for key in keys.items:
            if (
                not key.is_python_constant()
                or type(key.as_python_constant()) is not str
            ):
                return None
            place = tracker(key)
            value = held.items.get(place)
            if value is None or type(value) is DeletedVariable:
                return None
            entries[place] = value
        for key in keys.items if source else ():
            guard = functools.partial(
                GuardBuilder.DICT_CONTAINS, key=key.as_python_constant()
            )
            install_guard(source.make_guard(guard))
        return ConstDictVariable(entries, mutation_type=ValueMutationNew())

    def compared(_tx: Any, held: Any, size: Any) -> Any:
        """The result of :func:`all_begin_with`; None where it is to be interpreted."""
        held, size = held.realize(), size.realize()
        if type(held) is not ConstDictVariable or held.source is not None:
            return None
        if not size.is_python_constant():
            return None
        wanted = tuple(size.as_python_constant())
        for each in held.items.values():
            value: Any = each.realize()
            if (
                type(value) is not TensorVariable
                or value.python_type() is not _PLAIN[0]
            ):
                return ConstantVariable.create(False)
            example = value.proxy.node.meta.get("example_value")
            if example is None:
                return None
            if example.is_nested:
                return ConstantVariable.create(False)
            shape = tuple(example.shape[: len(wanted)])
            if not all(type(n) is int for n in shape):
                return None
            if shape != wanted:
                return ConstantVariable.create(False)
        return ConstantVariable.create(True)

    follow(on_plain, applied, 5)
    follow(special_keys, found, 1, 2)
    follow(picked, chosen, 2)
    follow(all_begin_with, compared, 2)
    return True


_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The types of what does not take part in torch's functions, and is a leaf."""
