"""Dynamo rules that trace :mod:`tensordict.primitives.leaf_loops` as single calls.

The import of this module imports Dynamo. If an older Dynamo lacks a name, the import
fails.
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
"""The types of leaves without ``__torch_function__``."""


def on_plain_rule(
    tx: Any, entries: Any, op: Any, args: Any, tail: Any, k: Any
) -> TupleVariable | None:
    """Return the result of :func:`on_plain`; None to trace the function."""
    entries, op, args = entries.realize(), op.realize(), args.realize()
    if type(entries) is not ConstDictVariable or not isinstance(args, TupleVariable):
        return None
    leaves: Any = {key: value.realize() for key, value in entries.items.items()}
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
    sizes = [n for example in examples.values() for n in example.shape] if tail else []
    if not all(type(n) is int for n in sizes):
        return None
    name = op.as_python_constant() if op.is_python_constant() else None
    is_method = type(name) is str
    results: dict[Any, Any] = {}
    others: list[Any] = []
    for key, leaf in leaves.items():
        if key not in examples:
            results[key] = ConstantVariable.create(None)
            others.append(key.vt)
            continue
        call_args: list[Any] = list(args.items)
        if tail:
            tail_sizes = tail_of(examples[key], tail, k)
            first = [
                *call_args[0].realize().items,
                *map(ConstantVariable.create, tail_sizes),
            ]
            # Torch parses separate numbers faster than a sequence, if the method takes both.
            passes_numbers = (
                is_method and len(call_args) == 1 and tail <= DIMS_TAIL and first
            )
            call_args = (
                first if passes_numbers else [TupleVariable(first), *call_args[1:]]
            )
        if is_method:
            results[key] = leaf.call_method(tx, name, call_args, {})
        else:
            results[key] = op.call_function(tx, [leaf, *call_args], {})
    lists = ListVariable(others, mutation_type=ValueMutationNew())
    result_entries = ConstDictVariable(results, mutation_type=ValueMutationNew())
    return TupleVariable([result_entries, lists])


def is_plain(tx: Any, value: Any) -> bool:
    """Return whether a value that was not traced yet is a plain tensor by its type."""
    if (
        not isinstance(value, LazyVariableTracker)
        or value.is_realized()
        or value.source is None
        or type(value.peek_value()) not in _PLAIN
        or tx.output.export  # every result must be an output of the exported graph
    ):
        return False
    install_guard(value.source.make_guard(GuardBuilder.TYPE_MATCH))
    return True


def special_keys_rule(
    tx: Any, entries: Any, is_used: Any = None
) -> ListVariable | None:
    """Return the result of :func:`special_keys`; None to trace the function."""
    entries = entries.realize()
    is_lazy = is_used is None or not is_used.as_python_constant()
    if type(entries) is not ConstDictVariable or entries.source is not None:
        return None
    keys: list[Any] = [
        key.vt
        for key, value in entries.items.items()
        if not (is_lazy and is_plain(tx, value)) and has_torch_function(value.realize())
    ]
    return ListVariable(keys, mutation_type=ValueMutationNew())


def picked_rule(tx: Any, entries_in: Any, keys: Any) -> ConstDictVariable | None:
    """Return the result of :func:`picked`; None to trace the function."""
    entries_in, keys = entries_in.realize(), keys.realize()
    if (
        type(entries_in) is not ConstDictVariable
        or not entries_in.items
        or not hasattr(entries_in, "NOT_CONTAINS_GUARD")  # Dynamo is too old
        or not isinstance(keys, TupleVariable)
    ):
        return None
    tracker: Any = type(next(iter(entries_in.items)))
    source: Any = entries_in.source
    if source is None or tx.output.side_effects.is_modified(entries_in):
        source = None  # no guards: made while tracing, or all keys are guarded
    entries: dict[Any, Any] = {}
    for key in keys.items:
        if not key.is_python_constant() or type(key.as_python_constant()) is not str:
            return None
        key_variable = tracker(key)
        value = entries_in.items.get(key_variable)
        if value is None or type(value) is DeletedVariable:
            return None
        entries[key_variable] = value
    for key in keys.items if source else ():
        guard = functools.partial(
            GuardBuilder.DICT_CONTAINS, key=key.as_python_constant()
        )
        install_guard(source.make_guard(guard))
    return ConstDictVariable(entries, mutation_type=ValueMutationNew())


def all_begin_with_rule(_tx: Any, entries: Any, size: Any) -> ConstantVariable | None:
    """Return the result of :func:`all_begin_with`; None to trace the function."""
    entries, size = entries.realize(), size.realize()
    if type(entries) is not ConstDictVariable or entries.source is not None:
        return None
    if not size.is_python_constant():
        return None
    sizes = tuple(size.as_python_constant())
    for variable in entries.items.values():
        value: Any = variable.realize()
        if type(value) is not TensorVariable or value.python_type() is not _PLAIN[0]:
            return ConstantVariable.create(False)
        example = value.proxy.node.meta.get("example_value")
        if example is None:
            return None
        if example.is_nested:
            return ConstantVariable.create(False)
        shape = tuple(example.shape[: len(sizes)])
        if not all(type(n) is int for n in shape):
            return None
        if shape != sizes:
            return ConstantVariable.create(False)
    return ConstantVariable.create(True)


RULES = (
    (on_plain, on_plain_rule, (5,)),
    (special_keys, special_keys_rule, (1, 2)),
    (picked, picked_rule, (2,)),
    (all_begin_with, all_begin_with_rule, (2,)),
)
"""Functions with their rules and the numbers of arguments that the rules accept."""
