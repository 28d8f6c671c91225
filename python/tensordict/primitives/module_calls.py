"""Calls of modules on tensordicts, as :func:`torch.compile` traces them.

Around the wrapped call, a module always does the same: it checks a few options, reads
the inputs and writes the outputs. The compiler would interpret all of this for each
module of a model, and guard each option. So it traces a short form of ``forward``
(:func:`trace_as`), whose steps are functions with rules in Dynamo:

- :func:`plain_inputs`: the wrapped module and the present inputs;
- :func:`plain_parameters`: the parameters of a probabilistic module's distribution;
- :func:`plain_outputs`: whether the outputs were written;
- :func:`is_plain_sequence`: whether a sequence only calls its modules in order.

:mod:`tensordict.compile.module_rules` contains the rules. If a call is not plain, each
function says so before anything was done, and the code of ``forward`` is interpreted.
As plain functions they always say so: an older Dynamo without the rules uses them.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "is_plain_sequence",
    "plain_inputs",
    "plain_outputs",
    "plain_parameters",
    "trace_as",
]


def trace_as(forward: Any, short: Any) -> Any:
    """Make Dynamo trace ``short`` in the place of ``forward``.

    Neither has defaults, and ``short`` has no closure: Dynamo would guard those of
    ``forward``. Return a function with the code of ``forward``, to be interpreted.
    """
    forward._torchdynamo_inline = short
    return FunctionType(
        forward.__code__,
        forward.__globals__,
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )


def plain_inputs(
    module: object,  # noqa: ARG001
    args: tuple[Any, ...],  # noqa: ARG001
    kwargs: dict[str, Any],  # noqa: ARG001
    skip: object,  # noqa: ARG001
) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the wrapped module and its inputs, if the module only calls it.

    The call must have one argument, a plain tensordict with all inputs. ``skip`` is the
    setting that leaves modules out.
    """
    return None


def plain_parameters(
    module: object,  # noqa: ARG001
    args: tuple[Any, ...],  # noqa: ARG001
    kwargs: dict[str, Any],  # noqa: ARG001
    skip: object,  # noqa: ARG001
) -> dict[str, Any] | None:
    """Return a distribution's parameters by name if the call needs only a value."""
    return None


def plain_outputs(module: object, td: CollectionProtocol, outputs: object) -> bool:  # noqa: ARG001
    """Write the outputs of a module to ``td``; return False if they do not fit."""
    return False


def is_plain_sequence(
    module: object,  # noqa: ARG001
    args: tuple[Any, ...],  # noqa: ARG001
    kwargs: dict[str, Any],  # noqa: ARG001
    skip: object,  # noqa: ARG001
) -> bool:
    """Return whether a sequence only passes its argument, a tensordict, on."""
    return False
