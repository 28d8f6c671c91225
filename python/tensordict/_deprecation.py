"""Established import path: warnings about deprecated names."""

from __future__ import annotations

import importlib
from typing import Any

from tensordict.primitives.deprecation import deprecation_message, warn_deprecated

__all__ = ["deprecation_message", "warn_deprecated"]


def __getattr__(name: str) -> Any:
    # Helpers that only clients of the published package use.
    if name in ("deprecated", "deprecated_attributes", "warn_deprecated_env_var"):
        return getattr(importlib.import_module("tensordict._deprecated_utils"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
