"""Names of parameters as the bare model has them, without those of wrappers."""

from __future__ import annotations

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
"""The names that wrappers of torch have for the module within. ``module``, that of DDP, is
one that models have, too: there the class of the wrapper tells."""

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(item: object) -> Any:
    """Return a module without what ``torch.compile`` and DDP have put around it."""
    while True:
        if isinstance(item, _PARALLEL):
            item = item.module
            continue
        inner = getattr(item, "_orig_mod", None)
        if not isinstance(item, nn.Module) or not isinstance(inner, nn.Module):
            return item
        item = inner


def bare_text(name: str) -> str:
    """Return a name without the parts that only wrappers have."""
    if not any(part in name for part in _PARTS):
        return name
    return ".".join(part for part in name.split(".") if part not in _PARTS)


def bare_names(module: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Return the bare name of each name of a state, without the parts of wrappers.

    Names stay as they are where two would become one.
    """
    names = list(names)
    parallel = [
        prefix
        for prefix, each in module.named_modules(remove_duplicate=False)
        if isinstance(each, _PARALLEL)
    ]
    found = {name: bare_text(_without(name, parallel)) for name in names}
    if len(set(found.values())) < len(found):
        return {name: name for name in names}
    return found


def _without(name: str, parallel: list[str]) -> str:
    """Return a name without the part ``module`` of each wrapper, the innermost first."""
    for prefix in sorted(parallel, key=len, reverse=True):
        start = f"{prefix}." if prefix else ""
        if name.startswith(f"{start}module."):
            name = start + name[len(start) + len("module.") :]
    return name


def bare_wrapper_names(saved: Iterable[str], own: Iterable[str]) -> dict[str, str]:
    """Return the bare name of each name of a step, which may be that of a wrapped model.

    All names of a model that was wrapped as a whole begin with ``module.``, and none of a
    model that was not. Either of the two may be wrapped, by a class that nobody knows.

    Args:
        saved: the names of the step.
        own: the names of the model that is restored, without those of known wrappers.
    """
    found = {name: bare_text(name) for name in saved}
    names, own = set(found.values()), set(own)
    if _is_wrapped(own, names):
        found = {name: f"module.{bare}" for name, bare in found.items()}
    elif _is_wrapped(names, own):
        found = {name: bare.removeprefix("module.") for name, bare in found.items()}
    if len(set(found.values())) < len(found):
        return {name: name for name in found}
    return found


def _is_wrapped(names: set[str], others: set[str]) -> bool:
    """Return whether names are those of a wrapper of the model that has the others."""
    if not names or not all(name.startswith("module.") for name in names):
        return False
    return names != others and (
        not any(name.startswith("module.") for name in others)
        or {name.removeprefix("module.") for name in names} == others
    )


def parameter_names(items: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """Return item and bare name of the parameters of all modules among items, by ``id``."""
    found: dict[int, tuple[str, str]] = {}
    for item, value in items.items():
        module = unwrapped(value)
        if not isinstance(module, nn.Module):
            continue
        named = dict(module.named_parameters(remove_duplicate=False))
        bare = bare_names(module, named)
        for name, parameter in named.items():
            found.setdefault(id(parameter), (item, bare[name]))
    return found
