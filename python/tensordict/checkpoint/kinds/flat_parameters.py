"""Refuse the flat parameters of ``FullyShardedDataParallel`` (the older FSDP).

That class concatenates all parameters of a module and divides the result over ranks, so
a piece is no block of a parameter. It returns the state of a model undivided, and the
state of an optimizer through its own function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["refuse_flat_module", "refuse_flat_optimizer"]

MSG_MODULE = (
    "Cannot save or restore {!r}: FullyShardedDataParallel keeps its parameters in flat pieces. "
    "Pass the FullyShardedDataParallel module, not the model inside it."
)
MSG_OPTIMIZER = (
    "Cannot save or restore {!r}: FullyShardedDataParallel keeps its parameters in flat pieces. "
    "Shard the model with torch.distributed.fsdp.fully_shard; or pass "
    "FullyShardedDataParallel.optim_state_dict(model, optimizer) as the item, which is restored "
    "as plain data for optim_state_dict_to_load."
)


def _is_flat(parameter: Any) -> bool:
    return getattr(parameter, "_fsdp_flattened", False) is True


def refuse_flat_module(item: str, module: nn.Module) -> None:
    """Refuse a module inside a ``FullyShardedDataParallel`` module.

    Raises:
        TypeError: the module has flat parameters of an outer module.
    """
    flat = {id(parameter) for parameter in module.parameters() if _is_flat(parameter)}
    if not flat:
        return
    for submodule in module.modules():
        if type(submodule).__name__ == "FullyShardedDataParallel":
            flat -= {id(parameter) for parameter in submodule.parameters()}
    if flat:
        raise TypeError(MSG_MODULE.format(item))


def refuse_flat_optimizer(item: str, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer with parameters of ``FullyShardedDataParallel``.

    Raises:
        TypeError: a parameter is flat.
    """
    for group in optimizer.param_groups:
        if any(map(_is_flat, group["params"])):
            raise TypeError(MSG_OPTIMIZER.format(item))
