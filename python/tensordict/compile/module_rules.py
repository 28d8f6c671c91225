"""Dynamo rules for the functions of :mod:`tensordict.primitives.module_calls`.

Each rule reads the module and its argument from Dynamo's variables and guards the
options that it relied on. For a call that is not plain it answers no.

The import of this module imports Dynamo. If an older Dynamo lacks a name, the import
fails.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import (
    ConstantVariable,
    ConstDictVariable,
    DeletedVariable,
    TensorVariable,
    TupleVariable,
    UnspecializedNNModuleVariable,
    UserDefinedObjectVariable,
)
from torch._dynamo.variables.base import ValueMutationNew

from tensordict.compile.rules import attribute
from tensordict.containers.dense import TensorDict
from tensordict.primitives.module_calls import (
    is_plain_sequence,
    plain_inputs,
    plain_outputs,
    plain_parameters,
)
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["RULES"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The classes of tensors that are read and written without conversion."""
_MISSING = object()
_MODULE = {"inplace": True, "strict": False, "method": None, "_kwargs": None}
"""The options of a plain module. Its dictionaries of arguments are empty."""
_SEQUENCE = {"inplace": None, "_select_before_return": False, "partial_tolerant": False}
_DISTRIBUTION = {
    "return_log_prob": False,
    "num_samples": None,
    "_generator": None,
    "_generator_key": None,
}
_STEPS = ("_call_module", "_write_to_tensordict", "_as_outputs")
_PROBABILISTIC_STEPS = ("get_dist", "_dist_sample", "_write_value")
"""The methods that a subclass may override."""
_NO = ConstantVariable.create(False)
_NONE = ConstantVariable.create(None)
_absent = GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT


def is_changed(tx: Any, value: Any) -> bool:
    """Return whether the traced program has changed ``value``."""
    effects = tx.output.side_effects
    variable = effects.id_to_variable.get(id(value))
    return variable is not None and effects.is_modified(variable)


def is_untouched(tx: Any, owner: Any) -> bool:
    return owner.source is not None and not is_changed(tx, owner.value)


def guard(owner: Any, name: str, kind: Any) -> None:
    install_guard(AttrSource(owner.source, name).make_guard(kind))


def has_options(tx: Any, owner: Any, options: dict[str, Any]) -> bool:
    """Return whether the options have these values; if so, guard them."""
    state = owner.value.__dict__
    if not is_untouched(tx, owner) or any(
        state.get(name, _MISSING) is not option for name, option in options.items()
    ):
        return False
    for name in options:
        guard(owner, name, GuardBuilder.CONSTANT_MATCH)
    return True


def is_empty(tx: Any, owner: Any, name: str) -> bool:
    """Return whether an attribute is an empty dictionary; if so, guard it."""
    value = owner.value.__dict__.get(name)
    if type(value) is not dict or value or is_changed(tx, value):
        return False
    guard(owner, name, GuardBuilder.SEQUENCE_LENGTH)
    return True


def keys_of(tx: Any, owner: Any, name: str) -> list[Any] | None:
    """Return the keys in an attribute of a module, guarded; None without plain keys."""
    keys = owner.value.__dict__.get(name)
    if type(keys) is not list or not is_untouched(tx, owner) or is_changed(tx, keys):
        return None
    guard(owner, name, GuardBuilder.EQUALS_MATCH)
    return keys


def skips_none(tx: Any, skip: Any) -> bool:
    """Return whether ``skip_existing`` is off; if so, guard it."""
    skip = skip.realize()
    return has_options(tx, skip, {"value": False}) and is_empty(tx, skip, "by_thread")


def argument(args: Any, kwargs: Any) -> UserDefinedObjectVariable | None:
    """Return the tensordict that is the only argument, otherwise None."""
    args, kwargs = args.realize(), kwargs.realize()
    if type(args) is not TupleVariable or len(args.items) != 1:
        return None
    if type(kwargs) is not ConstDictVariable or kwargs.items:
        return None
    td: Any = args.items[0].realize()
    is_object = isinstance(td, UserDefinedObjectVariable)
    return td if is_object and isinstance(td.value, CollectionProtocol) else None


def entries_of(tx: Any, td: Any) -> ConstDictVariable | None:
    """Return the entries of a plain ``TensorDict``, otherwise None."""
    if type(getattr(td, "value", None)) is not TensorDict:
        return None
    entries = attribute(tx, td, "_tensordict")
    return entries if type(entries) is ConstDictVariable else None


def wrapped_module(tx: Any, module: Any) -> Any:
    """Return the module or function that a ``TensorDictModule`` calls."""
    if "module" in module.value.__dict__:
        return attribute(tx, module, "module")
    submodules = attribute(tx, module, "_modules")
    if not isinstance(submodules, ConstDictVariable) or not submodules.items:
        return None
    tracker: Any = type(next(iter(submodules.items)))
    return submodules.items.get(tracker(ConstantVariable.create("module")))


def entry(tx: Any, td: Any, key: Any) -> Any:
    """Return the tensor or plain ``TensorDict`` at a nested key, otherwise None."""
    for part in (key,) if type(key) is str else key:
        entries = entries_of(tx, td)
        if entries is None or not entries.items:
            return None
        tracker: Any = type(next(iter(entries.items)))
        td = entries.items.get(tracker(ConstantVariable.create(part)))
        if td is None or type(td) is DeletedVariable:
            return None
        td = td.realize()
    is_tensor = type(td) is TensorVariable
    return td if is_tensor or entries_of(tx, td) is not None else None


def has_steps(module: Any, base: type, steps: tuple[str, ...]) -> bool:
    """Return whether a module has the methods of ``base``, none of them overridden."""
    cls = type(module.value)
    return all(getattr(cls, name) is getattr(base, name) for name in steps)


def values_of(
    tx: Any, module: Any, args: Any, kwargs: Any, skip: Any
) -> list[Any] | None:
    """Return the inputs of a module; None unless all are tensors or plain."""
    td = argument(args, kwargs)
    if td is None or not isinstance(module, UnspecializedNNModuleVariable):
        return None
    keys = keys_of(tx, module, "_in_keys") if skips_none(tx, skip) else None
    if keys is None:
        return None
    values = [entry(tx, td, key) for key in keys]
    return None if None in values else values


def plain_inputs_rule(
    tx: Any, module: Any, args: Any, kwargs: Any, skip: Any
) -> ConstantVariable | TupleVariable:
    """Return the result of :func:`plain_inputs`."""
    from tensordict.nn.common import TensorDictModule

    module = module.realize()
    values = values_of(tx, module, args, kwargs, skip)
    if values is None or not has_steps(module, TensorDictModule, _STEPS):
        return _NONE
    if not (
        has_options(tx, module, _MODULE)
        and is_empty(tx, module, "method_kwargs")
        and is_empty(tx, module, "_get_kwargs")
    ):
        return _NONE
    called = wrapped_module(tx, module)
    return TupleVariable([called, TupleVariable(values)]) if called else _NONE


def plain_parameters_rule(
    tx: Any, module: Any, args: Any, kwargs: Any, skip: Any
) -> ConstantVariable | ConstDictVariable:
    """Return the result of :func:`plain_parameters`."""
    from tensordict.nn.probabilistic_module import ProbabilisticTensorDictModule

    module = module.realize()
    values = values_of(tx, module, args, kwargs, skip)
    if (
        values is None
        or not has_steps(module, ProbabilisticTensorDictModule, _PROBABILISTIC_STEPS)
        or not has_options(tx, module, _DISTRIBUTION)
    ):
        return _NONE
    names = keys_of(tx, module, "dist_keys")
    if names is None or len(names) != len(values):
        return _NONE
    values_by_name: Any = dict(
        zip(map(ConstantVariable.create, names), values, strict=True)
    )
    return ConstDictVariable(values_by_name, mutation_type=ValueMutationNew())


def can_be_entry(tx: Any, td: Any, value: Any) -> bool:
    """Return whether a tensor can be an entry of ``td`` without conversion."""
    if type(value) is not TensorVariable or value.python_type() not in _PLAIN:
        return False
    example = value.proxy.node.meta.get("example_value")
    size = attribute(tx, td, "_batch_size")
    device = attribute(tx, td, "_device")
    if example is None or example.is_nested or not size.is_python_constant():
        return False
    batch_size = tuple(size.as_python_constant())
    shape = tuple(example.shape[: len(batch_size)])
    if not device.is_python_constant() or not all(type(n) is int for n in shape):
        return False
    device_of_td = device.as_python_constant()
    return shape == batch_size and (
        device_of_td is None or example.device == device_of_td
    )


def plain_outputs_rule(tx: Any, module: Any, td: Any, outputs: Any) -> ConstantVariable:
    """Return the result of :func:`plain_outputs`."""
    module, td, outputs = module.realize(), td.realize(), outputs.realize()
    values = outputs.items if type(outputs) is TupleVariable else [outputs]
    values = [value.realize() for value in values]
    entries, keys = entries_of(tx, td), keys_of(tx, module, "_out_keys")
    if entries is None or keys is None or len(keys) != len(values):
        return _NO
    # Module classes handle the key "_" in different ways.
    if not all(type(key) is str and key != "_" for key in keys):
        return _NO
    if not all(can_be_entry(tx, td, value) for value in values):
        return _NO
    is_lock_changed = tx.output.side_effects.has_pending_mutation_of_attr(
        td, "_is_locked"
    )
    if is_lock_changed or "_is_locked" in td.value.__dict__:
        return _NO
    if td.source is not None:
        absent = functools.partial(_absent, attr="_is_locked")
        install_guard(td.source.make_guard(absent))
    for key, value in zip(keys, values, strict=True):
        entries.call_method(
            tx, "__setitem__", [ConstantVariable.create(key), value], {}
        )
    return ConstantVariable.create(True)


def plain_sequence_rule(
    tx: Any, module: Any, args: Any, kwargs: Any, skip: Any
) -> ConstantVariable:
    """Return the result of :func:`is_plain_sequence`."""
    module = module.realize()
    if (
        argument(args, kwargs) is None
        or not isinstance(module, UnspecializedNNModuleVariable)
        or not skips_none(tx, skip)
        or not has_options(tx, module, _SEQUENCE)
    ):
        return _NO
    return ConstantVariable.create(True)


RULES = (
    (plain_inputs, plain_inputs_rule, (4,)),
    (plain_parameters, plain_parameters_rule, (4,)),
    (plain_outputs, plain_outputs_rule, (3,)),
    (is_plain_sequence, plain_sequence_rule, (4,)),
)
"""Functions with their rules and the numbers of arguments that the rules accept."""
