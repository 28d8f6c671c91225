"""Make collections in compiled code without having the compiler interpret it.

Each primitive in Python makes its result by :func:`tensordict.primitives.tree.new`. By the rule that
Dynamo is given for it (:func:`install_rules`) it knows the new object and its state at
once.

For its log of what a program changes, Dynamo notes where each object is changed, and
looks through all frames of its own when it writes that: two milliseconds for each object.
A collection that compiled code makes is no change of the program, so the places where
it gets its state are not noted.

Both need a little of Dynamo that is not public. Where that is not there, the function is
interpreted as any other, and all places are noted.
"""

from __future__ import annotations

from typing import Any

from tensordict.compile.older_dynamo import stores_are_traced
from tensordict.compile.rules import follow
from tensordict.primitives import tree as tree_primitives
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["install_rules"]

STATE = ("_tensordict", "_batch_size", "_device", "_td_dim_names")
"""The attributes of a new collection, in the order of the arguments of ``new``."""


def install_rules() -> bool:
    """Give Dynamo, which is imported, the rules; whether it took them."""
    try:
        from torch._dynamo.side_effects import SideEffects
        from torch._dynamo.variables import (
            BuiltinVariable,
            ConstantVariable,
            ConstDictVariable,
            UserDefinedObjectVariable,
        )
        from torch._dynamo.variables.base import (
            AttributeMutationNew,
            ValueMutationNew,
            VariableTracker,
        )
        from torch._dynamo.variables.builder import VariableBuilder

        VariableBuilder._id_dispatch()
        note: Any = SideEffects._capture_user_stack
    except (ImportError, AttributeError):
        return False
    is_whole = stores_are_traced()

    def made(tx: Any, cls: Any, *state: Any) -> Any:
        result = BuiltinVariable(object).call_method(tx, "__new__", [cls.realize()], {})
        if not is_whole:
            for name, value in zip(STATE, state, strict=True):
                tx.output.side_effects.store_attr(result, name, value)
            return result
        names = [ConstantVariable.create(name) for name in STATE]
        attributes = ConstDictVariable(
            dict(zip(names, state, strict=True)), mutation_type=ValueMutationNew()
        )
        store = [result, ConstantVariable.create("__dict__"), attributes]
        VariableTracker.build(tx, setattr).call_function(tx, store, {})
        return result

    def noted(effects: object, changed: object) -> None:
        if not (
            isinstance(changed, UserDefinedObjectVariable)
            and isinstance(changed.mutation_type, AttributeMutationNew)
            and issubclass(changed.python_type(), CollectionProtocol)
        ):
            note(effects, changed)

    follow(tree_primitives.new, made, 1 + len(STATE))
    if note.__module__ != __name__:
        effects: Any = SideEffects
        effects._capture_user_stack = noted
    return True
