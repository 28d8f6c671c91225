"""The deprecated setting for the result of ``td.get`` with a missing key."""

from __future__ import annotations

from tensordict.ops import access
from tensordict.primitives.deprecation import (
    deprecation_message,
    environment_flag,
    warn_caller,
)
from tensordict.primitives.protocol import NO_DEFAULT, NONE_IF_MISSING

__all__ = ["get_defaults_to_none", "set_get_defaults_to_none"]

USE_INDEXING = "td[key] to raise a KeyError for a missing key"

if (
    environment_flag("TD_GET_DEFAULTS_TO_NONE", deprecated=False, advice=USE_INDEXING)
    is False
):
    access.DEFAULT_OF_GET = NO_DEFAULT


def get_defaults_to_none(set_to_none: bool = True) -> bool:  # noqa: ARG001
    """Return whether ``td.get`` returns None for a missing key. Deprecated."""
    warn_caller(
        deprecation_message("get_defaults_to_none()", USE_INDEXING), DeprecationWarning
    )
    return access.DEFAULT_OF_GET is NONE_IF_MISSING


def set_get_defaults_to_none(set_to_none: bool = True) -> None:
    """Set whether ``td.get`` returns None for a missing key. Deprecated."""
    warn_caller(
        deprecation_message("set_get_defaults_to_none()", USE_INDEXING),
        DeprecationWarning,
    )
    access.DEFAULT_OF_GET = NONE_IF_MISSING if set_to_none else NO_DEFAULT


for _function in (get_defaults_to_none, set_get_defaults_to_none):
    _function.__module__ = "tensordict.base"
