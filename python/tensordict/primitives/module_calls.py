"""Calls of modules of collections as :func:`torch.compile` traces them.

What a module does around what it calls is the same each time: a few options are looked at,
the inputs are read, the outputs are written. The compiler would interpret all of that for
each module of a model, and guard each option by itself. So it traces a short form of
``forward`` (:func:`trace_as`), the steps of which are functions that Dynamo has rules for:

- :func:`plain_inputs`: what is called, and the inputs that are there;
- :func:`plain_parameters`: the parameters of the distribution of a probabilistic module;
- :func:`plain_outputs`: whether the outputs were written;
- :func:`is_plain_sequence`: whether a sequence only calls its modules in order.

The rules are those of :mod:`tensordict.compile.module_rules`. Each function says no where a call is not plain, before anything was done, and then the code of
``forward`` is interpreted. As functions they always say no: that is what an older Dynamo
takes, which does not know the rules.
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
    """Let Dynamo trace ``short`` in the place of ``forward``.

    Neither has defaults, and ``short`` no closure: Dynamo would guard those of ``forward``.
    The result is a function with the code of ``forward``, which is interpreted.
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
    """Return what a module of tensors calls, and with what, if that is all it does.

    The call has one argument, a plain collection with all inputs. ``skip`` is the setting
    by which modules are left out.
    """
    return None


def plain_parameters(
    module: object,  # noqa: ARG001
    args: tuple[Any, ...],  # noqa: ARG001
    kwargs: dict[str, Any],  # noqa: ARG001
    skip: object,  # noqa: ARG001
) -> dict[str, Any] | None:
    """The parameters of a distribution by their names, if only a value of it is asked for."""
    return None


def plain_outputs(module: object, td: CollectionProtocol, outputs: object) -> bool:  # noqa: ARG001
    """Write the outputs of a module to ``td``; false where they do not simply fit."""
    return False


def is_plain_sequence(
    module: object,  # noqa: ARG001
    args: tuple[Any, ...],  # noqa: ARG001
    kwargs: dict[str, Any],  # noqa: ARG001
    skip: object,  # noqa: ARG001
) -> bool:
    """Return whether a sequence only hands on its argument, a collection."""
    return False
