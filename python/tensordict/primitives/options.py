"""Settings of the process: environment variables, context managers and functions.

=============================  =========================================================
``LIST_TO_STACK``              a list becomes a stack of entries (default: yes)
``LAZY_LEGACY_OP``             shape operations and stacks are lazy (default: no)
``CAPTURE_NONTENSOR_STACK``    equal non-tensor data stacks to one value (default: no)
``TD_GET_DEFAULTS_TO_NONE``    ``get`` of a missing key returns None (default: yes)
``TD_CHECK_INVARIANTS``        check tensordicts that are made without checks
``TD_LOGGING_LEVEL``           the level of the package's logger (default: INFO)
=============================  =========================================================
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

# Torch's base class of context managers that are also decorators.
from torch.utils._contextlib import _DecoratorContextManager

from tensordict.primitives.deprecation import (
    REMOVAL,
    environment_flag,
    warn_caller,
    warn_deprecated,
)

__all__ = [
    "CHECK_INVARIANTS",
    "capture_non_tensor_stack",
    "lazy_legacy",
    "list_to_stack",
    "set_capture_non_tensor_stack",
    "set_lazy_legacy",
    "set_list_to_stack",
]

USE_NON_TENSOR = "td.set_non_tensor(key, value) to store a list as one value"
USE_DATA = "NonTensorStack.data to get the single value of a stack of identical values"
MSG_LAZY_LEGACY = (
    "The legacy lazy mode, turned on with set_lazy_legacy(True) or LAZY_LEGACY_OP=1, is "
    f"deprecated and will be removed in {REMOVAL}. Shape operations such as unsqueeze and "
    "permute will then always return a tensordict, and torch.stack will stack densely: "
    "use lazy_stack to build a lazy stack."
)

CHECK_INVARIANTS = bool(environment_flag("TD_CHECK_INVARIANTS"))

_list_to_stack: bool | None = environment_flag(
    "LIST_TO_STACK", deprecated=False, advice=USE_NON_TENSOR
)
_capture: bool | None = environment_flag(
    "CAPTURE_NONTENSOR_STACK", deprecated=True, advice=USE_DATA
)
_lazy_legacy: bool | None = environment_flag("LAZY_LEGACY_OP")
if _lazy_legacy:
    warn_caller(MSG_LAZY_LEGACY)


class _Mode(_DecoratorContextManager):
    """A setting for a ``with`` statement, a decorated function, or permanently."""

    _variable: ClassVar[str]

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self.mode = mode

    def clone(self) -> Self:
        """Return a new object with the same mode for a call of a decorated function."""
        return _remade(self)

    def __enter__(self) -> Self:  # type: ignore[override]
        self._before: Any = globals()[self._variable]
        self.set()
        return self

    def __exit__(self, *_: object) -> None:
        globals()[self._variable] = self._before

    def set(self) -> None:
        """Set the mode permanently."""
        globals()[self._variable] = self.mode


def _remade(mode: Any) -> Any:
    """Return a copy without warning again."""
    cls: Any = type(mode)
    made = cls.__new__(cls)
    made.mode = mode.mode
    return made


class set_list_to_stack(_Mode):  # noqa: N801 - a public name
    """A setting: True if a list that is set as an entry becomes a stack of its items.

    Use it as a context manager, as a decorator, or permanently with :meth:`set`.

    Examples:
        >>> with set_list_to_stack(True):
        ...     list_to_stack()
        True
    """

    _variable = "_list_to_stack"

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        if not mode:
            warn_deprecated("set_list_to_stack(False)", USE_NON_TENSOR)


class set_lazy_legacy(_Mode):  # noqa: N801 - a public name
    """A setting: True if shape operations and :func:`torch.stack` are lazy.

    Use it as a context manager, as a decorator, or permanently with :meth:`set`.

    Examples:
        >>> with set_lazy_legacy(False):
        ...     lazy_legacy()
        False
    """

    _variable = "_lazy_legacy"

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        if mode:
            warn_caller(MSG_LAZY_LEGACY, DeprecationWarning)


class set_capture_non_tensor_stack(_Mode):  # noqa: N801 - a public name
    """A setting: True if stacking equal non-tensor data gives one value, not a stack.

    Use it as a context manager, as a decorator, or permanently with :meth:`set`.

    Examples:
        >>> with set_capture_non_tensor_stack(False):
        ...     capture_non_tensor_stack()
        False
    """

    _variable = "_capture"

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        if mode:
            warn_deprecated("set_capture_non_tensor_stack(True)", USE_DATA)


def list_to_stack(allow_none: bool = False) -> bool | None:
    """Return whether a list that is set as an entry becomes a stack of its items.

    Args:
        allow_none: return None if the setting was never set.

    Examples:
        >>> list_to_stack()
        True
    """
    if _list_to_stack is None:
        return None if allow_none else True
    return _list_to_stack


def lazy_legacy(allow_none: bool = False) -> bool | None:
    """Return whether shape operations and stacks are lazy.

    Args:
        allow_none: return None if the setting was never set.

    Examples:
        >>> lazy_legacy()
        False
    """
    if _lazy_legacy is None:
        return None if allow_none else False
    return _lazy_legacy


def capture_non_tensor_stack(allow_none: bool = False) -> bool | None:
    """Return whether stacking equal non-tensor data gives one value.

    Args:
        allow_none: return None if the setting was never set.

    Examples:
        >>> capture_non_tensor_stack()
        False
    """
    if _capture is None:
        return None if allow_none else False
    return _capture


_function: Any
for _function in (
    set_list_to_stack,
    set_lazy_legacy,
    set_capture_non_tensor_stack,
    list_to_stack,
    lazy_legacy,
    capture_non_tensor_stack,
):
    _function.__module__ = "tensordict.utils"
