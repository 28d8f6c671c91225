"""Established import path: ``tensorclass`` of early releases, and tracing of modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.tensorclass import tensorclass

if TYPE_CHECKING:
    from tensordict.prototype.fx import symbolic_trace

__all__ = ["symbolic_trace", "tensorclass"]


def __getattr__(name: str) -> Any:
    """``symbolic_trace``, whose modules are imported when it is asked for."""
    if name == "symbolic_trace":
        from tensordict.prototype import fx

        return fx.symbolic_trace
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
