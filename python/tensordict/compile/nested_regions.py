"""Tensordicts as arguments of ``torch.compiler.nested_compile_region``.

Dynamo looks for ``__torch_function__`` in the arguments of such a region, as for a
torch function. A tensordict needs no such dispatch: its leaves are traced as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install"]


def _without_dispatch(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make a ``call_function`` that leaves tensordicts out of torch's dispatch."""
    from torch._dynamo.utils import has_torch_function

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        special = [arg for arg in (*args, *kwargs.values()) if has_torch_function(arg)]
        if special and all(
            isinstance(getattr(arg.realize(), "value", None), CollectionProtocol)
            for arg in special
        ):
            return self._call_function(tx, args, kwargs)
        return call(self, tx, args, kwargs)

    return call_function


def install() -> bool:
    """Patch the imported Dynamo; return whether it has the needed private parts."""
    try:
        from torch._dynamo.variables import higher_order_ops

        region: Any = higher_order_ops.InvokeSubgraphHigherOrderVariable  # type: ignore[attr-defined]
        call, _ = region.call_function, region._call_function
    except (ImportError, AttributeError):
        return False
    region.call_function = _without_dispatch(call)
    return True
