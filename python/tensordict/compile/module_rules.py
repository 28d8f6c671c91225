"""Trace the functions of :mod:`tensordict.primitives.module_calls`.

Each rule reads the module and its argument as Dynamo knows them, guards the options that it
relied on, and says no where a call is not plain.

Importing this imports Dynamo. An older one may lack a name, which is an error then.
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
"""The classes of tensors that need nothing when they are read or written."""
_MISSING = object()
_MODULE = {"inplace": True, "strict": False, "method": None, "_kwargs": None}
"""The options of a module that is plain. Its dictionaries of arguments are empty."""
_SEQUENCE = {"inplace": None, "_select_before_return": False, "partial_tolerant": False}
_DISTRIBUTION = {
    "return_log_prob": False,
    "num_samples": None,
    "_generator": None,
    "_generator_key": None,
}
_STEPS = ("_call_module", "_write_to_tensordict", "_as_outputs")
_PROBABILISTIC_STEPS = ("get_dist", "_dist_sample", "_write_value")
"""The methods that a class may have its own of."""
_NO = ConstantVariable.create(False)
_NONE = ConstantVariable.create(None)
_absent = GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT


def is_changed(tx: Any, value: Any) -> bool:
    """Return whether the traced program has changed what ``value`` holds."""
    effects = tx.output.side_effects
    known = effects.id_to_variable.get(id(value))
    return known is not None and effects.is_modified(known)


def is_untouched(tx: Any, owner: Any) -> bool:
    return owner.source is not None and not is_changed(tx, owner.value)


def guard(owner: Any, name: str, kind: Any) -> None:
    install_guard(AttrSource(owner.source, name).make_guard(kind))


def has_options(tx: Any, owner: Any, options: dict[str, Any]) -> bool:
    """Return whether the options are those, which is guarded then."""
    state = owner.value.__dict__
    if not is_untouched(tx, owner) or any(
        state.get(name, _MISSING) is not option for name, option in options.items()
    ):
        return False
    for name in options:
        guard(owner, name, GuardBuilder.CONSTANT_MATCH)
    return True


def is_empty(tx: Any, owner: Any, name: str) -> bool:
    """Return whether an attribute is an empty dictionary, which is guarded then."""
    value = owner.value.__dict__.get(name)
    if type(value) is not dict or value or is_changed(tx, value):
        return False
    guard(owner, name, GuardBuilder.SEQUENCE_LENGTH)
    return True


def keys_of(tx: Any, owner: Any, name: str) -> list[Any] | None:
    """The keys that a module names, which are guarded then; None if it does not."""
    keys = owner.value.__dict__.get(name)
    if type(keys) is not list or not is_untouched(tx, owner) or is_changed(tx, keys):
        return None
    guard(owner, name, GuardBuilder.EQUALS_MATCH)
    return keys


def runs_all(tx: Any, skip: Any) -> bool:
    """Return whether modules are called though their outputs are there."""
    skip = skip.realize()
    return has_options(tx, skip, {"value": False}) and is_empty(tx, skip, "by_thread")


def argument(args: Any, kwargs: Any) -> Any:
    """The collection that is the one argument; None if there are others."""
    args, kwargs = args.realize(), kwargs.realize()
    if type(args) is not TupleVariable or len(args.items) != 1:
        return None
    if type(kwargs) is not ConstDictVariable or kwargs.items:
        return None
    td: Any = args.items[0].realize()
    is_object = isinstance(td, UserDefinedObjectVariable)
    return td if is_object and isinstance(td.value, CollectionProtocol) else None


def entries_of(tx: Any, td: Any) -> Any:
    """The entries of a plain collection; None of anything else."""
    if type(getattr(td, "value", None)) is not TensorDict:
        return None
    held = attribute(tx, td, "_tensordict")
    return held if type(held) is ConstDictVariable else None


def called_by(tx: Any, module: Any) -> Any:
    """Return what a module of tensors calls."""
    if "module" in module.value.__dict__:
        return attribute(tx, module, "module")
    held = attribute(tx, module, "_modules")
    if not isinstance(held, ConstDictVariable) or not held.items:
        return None
    tracker: Any = type(next(iter(held.items)))
    return held.items.get(tracker(ConstantVariable.create("module")))


def entry(tx: Any, td: Any, key: Any) -> Any:
    """A tensor or a plain collection at a nested key; None where there is neither."""
    for part in (key,) if type(key) is str else key:
        held = entries_of(tx, td)
        if held is None or not held.items:
            return None
        tracker: Any = type(next(iter(held.items)))
        td = held.items.get(tracker(ConstantVariable.create(part)))
        if td is None or type(td) is DeletedVariable:
            return None
        td = td.realize()
    is_tensor = type(td) is TensorVariable
    return td if is_tensor or entries_of(tx, td) is not None else None


def has_steps(module: Any, base: type, steps: tuple[str, ...]) -> bool:
    """Return whether the methods of a module are those of ``base``."""
    cls = type(module.value)
    return all(getattr(cls, name) is getattr(base, name) for name in steps)


def values_of(
    tx: Any, module: Any, args: Any, kwargs: Any, skip: Any
) -> list[Any] | None:
    """The inputs of a module, if each is there, and a tensor or a plain collection."""
    td = argument(args, kwargs)
    if td is None or not isinstance(module, UnspecializedNNModuleVariable):
        return None
    keys = keys_of(tx, module, "_in_keys") if runs_all(tx, skip) else None
    if keys is None:
        return None
    found = [entry(tx, td, key) for key in keys]
    return None if None in found else found


def inputs(tx: Any, module: Any, args: Any, kwargs: Any, skip: Any) -> Any:
    """The result of :func:`plain_inputs`."""
    from tensordict.nn.common import TensorDictModule

    module = module.realize()
    found = values_of(tx, module, args, kwargs, skip)
    if found is None or not has_steps(module, TensorDictModule, _STEPS):
        return _NONE
    if not (
        has_options(tx, module, _MODULE)
        and is_empty(tx, module, "method_kwargs")
        and is_empty(tx, module, "_get_kwargs")
    ):
        return _NONE
    called = called_by(tx, module)
    return TupleVariable([called, TupleVariable(found)]) if called else _NONE


def parameters(tx: Any, module: Any, args: Any, kwargs: Any, skip: Any) -> Any:
    """The result of :func:`plain_parameters`."""
    from tensordict.nn.probabilistic_module import ProbabilisticTensorDictModule

    module = module.realize()
    found = values_of(tx, module, args, kwargs, skip)
    if (
        found is None
        or not has_steps(module, ProbabilisticTensorDictModule, _PROBABILISTIC_STEPS)
        or not has_options(tx, module, _DISTRIBUTION)
    ):
        return _NONE
    names = keys_of(tx, module, "dist_keys")
    if names is None or len(names) != len(found):
        return _NONE
    named: Any = dict(zip(map(ConstantVariable.create, names), found, strict=True))
    return ConstDictVariable(named, mutation_type=ValueMutationNew())


def fits(tx: Any, td: Any, value: Any) -> bool:
    """Return whether a tensor can be an entry of ``td`` as it is."""
    if type(value) is not TensorVariable or value.python_type() not in _PLAIN:
        return False
    example = value.proxy.node.meta.get("example_value")
    size = attribute(tx, td, "_batch_size")
    device = attribute(tx, td, "_device")
    if example is None or example.is_nested or not size.is_python_constant():
        return False
    wanted = tuple(size.as_python_constant())
    shape = tuple(example.shape[: len(wanted)])
    if not device.is_python_constant() or not all(type(n) is int for n in shape):
        return False
    place = device.as_python_constant()
    return shape == wanted and (place is None or example.device == place)


def outputs(tx: Any, module: Any, td: Any, given: Any) -> Any:
    """The result of :func:`plain_outputs`."""
    module, td, given = module.realize(), td.realize(), given.realize()
    values = given.items if type(given) is TupleVariable else [given]
    values = [value.realize() for value in values]
    held, keys = entries_of(tx, td), keys_of(tx, module, "_out_keys")
    if held is None or keys is None or len(keys) != len(values):
        return _NO
    # Modules differ in what they do with the key "_".
    if not all(type(key) is str and key != "_" for key in keys):
        return _NO
    if not all(fits(tx, td, value) for value in values):
        return _NO
    changes = tx.output.side_effects.has_pending_mutation_of_attr(td, "_is_locked")
    if changes or "_is_locked" in td.value.__dict__:
        return _NO
    if td.source is not None:
        absent = functools.partial(_absent, attr="_is_locked")
        install_guard(td.source.make_guard(absent))
    for key, value in zip(keys, values, strict=True):
        held.call_method(tx, "__setitem__", [ConstantVariable.create(key), value], {})
    return ConstantVariable.create(True)


def sequence(tx: Any, module: Any, args: Any, kwargs: Any, skip: Any) -> Any:
    """The result of :func:`is_plain_sequence`."""
    module = module.realize()
    if (
        argument(args, kwargs) is None
        or not isinstance(module, UnspecializedNNModuleVariable)
        or not runs_all(tx, skip)
        or not has_options(tx, module, _SEQUENCE)
    ):
        return _NO
    return ConstantVariable.create(True)


RULES = (
    (plain_inputs, inputs, (4,)),
    (plain_parameters, parameters, (4,)),
    (plain_outputs, outputs, (3,)),
    (is_plain_sequence, sequence, (4,)),
)
"""The functions with their rules, and the numbers of arguments of each."""
