"""Trace the loops of :mod:`tensordict.primitives.leaf_loops` as single calls.

Importing this imports Dynamo. An older one may lack a name, which is an error then.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
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

from tensordict.primitives.common import DIMS_TAIL, tail_of
from tensordict.primitives.leaf_loops import (
    all_begin_with,
    on_plain,
    picked,
    special_keys,
)

__all__ = ["RULES"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The types of what does not take part in torch's functions, and is a leaf."""


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
    """Return whether a plain tensor is known by its type, if by nothing else."""
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
        if not (is_lazy and is_plain(tx, value)) and has_torch_function(value.realize())
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
        if not key.is_python_constant() or type(key.as_python_constant()) is not str:
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
        if type(value) is not TensorVariable or value.python_type() is not _PLAIN[0]:
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


RULES = (
    (on_plain, applied, (5,)),
    (special_keys, found, (1, 2)),
    (picked, chosen, (2,)),
    (all_begin_with, compared, (2,)),
)
"""The functions with their rules, and the numbers of arguments of each."""
