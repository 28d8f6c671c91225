"""Dynamo rules: functions that compute the result of a call without tracing it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["attribute", "follow", "install"]


def follow(function: object, rule: Callable[..., Any], *arities: int) -> None:
    """Make the imported Dynamo ask ``rule`` for the result of ``function``.

    If the rule returns None or the number of arguments is not in ``arities``, the
    function is traced.

    Args:
        function: the function.
        rule: gets the translator and the variables of the arguments.
        *arities: the numbers of arguments that the rule accepts.
    """
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables import UserFunctionVariable
    from torch._dynamo.variables.builder import VariableBuilder

    class RuleVariable(UserFunctionVariable):
        def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            is_accepted = not kwargs and len(args) in arities
            result = rule(tx, *args) if is_accepted else None
            if result is None:
                return super().call_function(tx, args, kwargs)
            return result

    def variable(builder: Any, value: Any) -> Any:
        builder.install_guards(GuardBuilder.ID_MATCH)
        return RuleVariable(value, source=builder.source)

    rules: Any = VariableBuilder._id_dispatch()
    rules[id(function)] = variable


def install(name: str) -> bool:
    """Register the rules of a module with the imported Dynamo.

    The module is imported here, because it imports private parts of Dynamo that an
    older Dynamo may lack.

    Args:
        name: the name of the module in this package.

    Returns:
        Whether Dynamo has the needed private parts.
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
    """Return Dynamo's variable of an attribute."""
    read = getattr(owner, "tp_getattro_impl", None) or owner.var_getattr
    return read(tx, name).realize()
