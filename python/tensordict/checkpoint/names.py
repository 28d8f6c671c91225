"""Parameter names of the bare model, without the prefixes that wrappers add."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "bare_names",
    "bare_text",
    "bare_wrapper_names",
    "parameter_names",
    "unwrapped",
]

_PARTS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""The attribute in which torch's wrappers keep the wrapped module. DDP uses ``module``,
a common name in models, so DDP is recognized by its class."""

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(item: object) -> Any:
    """Return a module without the wrappers of ``torch.compile`` and DDP."""
    while True:
        if isinstance(item, _PARALLEL):
            item = item.module
            continue
        inner = getattr(item, "_orig_mod", None)
        if not isinstance(item, nn.Module) or not isinstance(inner, nn.Module):
            return item
        item = inner


def bare_text(name: str) -> str:
    """Return a name without the components that only wrappers add."""
    if not any(part in name for part in _PARTS):
        return name
    return ".".join(part for part in name.split(".") if part not in _PARTS)


def bare_names(module: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Map each name of a state to the name in the bare model.

    If two bare names were equal, all names stay as they are.
    """
    names = list(names)
    parallel = [
        prefix
        for prefix, submodule in module.named_modules(remove_duplicate=False)
        if isinstance(submodule, _PARALLEL)
    ]
    bare = {name: bare_text(_without(name, parallel)) for name in names}
    if len(set(bare.values())) < len(bare):
        return {name: name for name in names}
    return bare


def _without(name: str, parallel: list[str]) -> str:
    """Remove the component ``module`` of each wrapper, from the innermost outwards."""
    for prefix in sorted(parallel, key=len, reverse=True):
        start = f"{prefix}." if prefix else ""
        if name.startswith(f"{start}module."):
            name = start + name[len(start) + len("module.") :]
    return name


def bare_wrapper_names(
    saved: Iterable[str], model_names: Iterable[str]
) -> dict[str, str]:
    """Map each name of a step to the name in the given model; either may be wrapped.

    If a model was wrapped by an unknown class, all its names begin with ``module.``;
    the names of a bare model do not.

    Args:
        saved: the names of the step.
        model_names: the names of the restored model, without the prefixes of known
            wrappers.
    """
    renamed = {name: bare_text(name) for name in saved}
    names, model_names = set(renamed.values()), set(model_names)
    if _is_wrapped(model_names, names):
        renamed = {name: f"module.{bare}" for name, bare in renamed.items()}
    elif _is_wrapped(names, model_names):
        renamed = {name: bare.removeprefix("module.") for name, bare in renamed.items()}
    if len(set(renamed.values())) < len(renamed):
        return {name: name for name in renamed}
    return renamed


def _is_wrapped(names: set[str], others: set[str]) -> bool:
    """Return whether ``names`` are ``others`` with the prefix ``module.``."""
    if not names or not all(name.startswith("module.") for name in names):
        return False
    return names != others and (
        not any(name.startswith("module.") for name in others)
        or {name.removeprefix("module.") for name in names} == others
    )


def _reshard(module: nn.Module) -> None:
    """Let ``fully_shard`` register the sharded parameters, which the optimizer has.

    After a forward pass without a backward pass, as in an evaluation, a module may still
    have the gathered parameters.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for submodule in module.modules():
        if isinstance(submodule, fsdp.FSDPModule):
            submodule.reshard()


def parameter_names(items: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """Return the item and bare name of each parameter of all modules, by ``id``."""
    found: dict[int, tuple[str, str]] = {}
    for item, value in items.items():
        module = unwrapped(value)
        if not isinstance(module, nn.Module):
            continue
        _reshard(module)
        named = dict(module.named_parameters(remove_duplicate=False))
        bare = bare_names(module, named)
        for name, parameter in named.items():
            found.setdefault(id(parameter), (item, bare[name]))
    return found
