"""Established import path: ``tensorclass`` of early releases, and module tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict.primitives.deprecation import deprecated_names
from tensordict.tensorclass import tensorclass

if TYPE_CHECKING:
    from tensordict.prototype.fx import symbolic_trace

__all__ = ["symbolic_trace", "tensorclass"]


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = deprecated_names(
        __name__,
        {},
        later={
            "fx": "tensordict.prototype.fx",
            "symbolic_trace": "tensordict.prototype.fx",
        },
    )
