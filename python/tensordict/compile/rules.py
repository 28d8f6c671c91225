"""Give Dynamo a rule: the result of a call of a function, without interpreting it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["attribute", "follow", "install"]


def follow(function: object, rule: Callable[..., Any], *arities: int) -> None:
    """Let Dynamo, which is imported, ask ``rule`` for the result of ``function``.

    ``rule`` gets the translator and the arguments as Dynamo knows them. Where it gives
    None, and for another number of arguments, the function is interpreted.
    """
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables import UserFunctionVariable
    from torch._dynamo.variables.builder import VariableBuilder

    class RuleVariable(UserFunctionVariable):
        def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            is_usual = not kwargs and len(args) in arities
            result = rule(tx, *args) if is_usual else None
            if result is None:
                return super().call_function(tx, args, kwargs)
            return result

    def variable(builder: Any, value: Any) -> Any:
        builder.install_guards(GuardBuilder.ID_MATCH)
        return RuleVariable(value, source=builder.source)

    rules: Any = VariableBuilder._id_dispatch()
    rules[id(function)] = variable


def install(name: str) -> bool:
    """Give Dynamo, which is imported, the rules of a module; return whether it took them.

    The module is imported here, since it imports what it needs of Dynamo, and not all of
    that is in every Dynamo.
    """
    try:
        module = importlib.import_module(f"tensordict.compile.{name}")
        from torch._dynamo.variables.builder import VariableBuilder

        VariableBuilder._id_dispatch()
    except (ImportError, AttributeError):
        return False
    for function, rule, arities in module.RULES:
        follow(function, rule, *arities)
    return True


def attribute(tx: object, owner: Any, name: str) -> Any:
    """Return what Dynamo knows of an attribute."""
    read = getattr(owner, "tp_getattro_impl", None) or owner.var_getattr
    return read(tx, name).realize()
