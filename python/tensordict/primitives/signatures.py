"""One signature for a method and for the function of the same name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["with_parameters_of"]

P = ParamSpec("P")
R = TypeVar("R")


def with_parameters_of(
    other: Callable[P, object],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Return a decorator that gives a forwarding function the parameters of ``other``.

    Type checkers and :func:`inspect.signature` show these parameters, with the
    function's own return type.

    Args:
        other: the callable that the function calls, such as a method of a class.

    Examples:
        >>> def power(base: float, exponent: int = 2) -> float:
        ...     return base**exponent
        >>> @with_parameters_of(power)
        ... def shown(*args, **kwargs) -> str:
        ...     return f"{power(*args, **kwargs)}!"
        >>> shown(3), str(inspect.signature(shown))
        ('9!', "(base: 'float', exponent: 'int' = 2) -> 'str'")
    """
    signature = inspect.signature(other)

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        result = function.__annotations__["return"]
        shown = signature.replace(return_annotation=result)
        function.__signature__ = shown  # type: ignore[attr-defined]
        return cast("Callable[P, R]", function)

    return decorate
