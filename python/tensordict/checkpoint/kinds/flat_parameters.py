"""Refuse the flat pieces of parameters of ``FullyShardedDataParallel``, which have no place.

That class, the one before ``fully_shard``, cuts all parameters of a module in a row, so a
piece is no part of a parameter by its dims. It gives the state of a model whole, and that
of an optimizer by a function of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["refuse_flat_module", "refuse_flat_optimizer"]

MSG_MODULE = (
    "Cannot save or restore {!r}: FullyShardedDataParallel has its parameters in flat pieces. "
    "Give what that class has made of the model, and not the model within."
)
MSG_OPTIMIZER = (
    "Cannot save or restore {!r}: it is of parameters that FullyShardedDataParallel has in flat "
    "pieces. Shard the model with torch.distributed.fsdp.fully_shard; or give "
    "FullyShardedDataParallel.optim_state_dict(model, optimizer) as the item, which is restored "
    "as plain data for optim_state_dict_to_load."
)


def _is_flat(parameter: Any) -> bool:
    return getattr(parameter, "_fsdp_flattened", False) is True


def refuse_flat_module(item: str, module: nn.Module) -> None:
    """Refuse a module that is within one of ``FullyShardedDataParallel``.

    Raises:
        TypeError: it is.
    """
    flat = {id(each) for each in module.parameters() if _is_flat(each)}
    if not flat:
        return
    for each in module.modules():
        if type(each).__name__ == "FullyShardedDataParallel":
            flat -= {id(parameter) for parameter in each.parameters()}
    if flat:
        raise TypeError(MSG_MODULE.format(item))


def refuse_flat_optimizer(item: str, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer of parameters of ``FullyShardedDataParallel``.

    Raises:
        TypeError: it is one.
    """
    for group in optimizer.param_groups:
        if any(map(_is_flat, group["params"])):
            raise TypeError(MSG_OPTIMIZER.format(item))
