"""A Dynamo rule for the construction of tensordicts, and less bookkeeping for them.

Each Python primitive constructs its result with :func:`tensordict.primitives.tree.new`.
The rule that :func:`install_rules` registers gives Dynamo the new object and its state
without tracing this function.

Dynamo records the place of every change to an object for its log, which takes two
milliseconds an object. A tensordict that compiled code constructs is no change that a
user would look for, so its places are not recorded.

Both use private parts of Dynamo. If Dynamo lacks them, the function is traced as usual,
and all places are recorded.
"""

from __future__ import annotations

from typing import Any

from tensordict.compile.older_dynamo import stores_are_traced
from tensordict.compile.rules import follow
from tensordict.primitives import tree as tree_primitives
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["install_rules"]

STATE = ("_tensordict", "_batch_size", "_device", "_td_dim_names")
"""The attributes of a new tensordict, in the order of the arguments of ``new``."""


def install_rules() -> bool:
    """Register the rules with the imported Dynamo; return whether it accepts them."""
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
        record_place: Any = SideEffects._capture_user_stack
    except (ImportError, AttributeError):
        return False
    traces_dict_stores = stores_are_traced()

    def new_collection(tx: Any, cls: Any, *state: Any) -> Any:
        result = BuiltinVariable(object).call_method(tx, "__new__", [cls.realize()], {})
        if not traces_dict_stores:
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

    def record_place_of_others(effects: object, changed: object) -> None:
        if not (
            isinstance(changed, UserDefinedObjectVariable)
            and isinstance(changed.mutation_type, AttributeMutationNew)
            and issubclass(changed.python_type(), CollectionProtocol)
        ):
            record_place(effects, changed)

    follow(tree_primitives.new, new_collection, 1 + len(STATE))
    if record_place.__module__ != __name__:
        effects: Any = SideEffects
        effects._capture_user_stack = record_place_of_others
    return True
