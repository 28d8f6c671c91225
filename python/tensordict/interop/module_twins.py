"""What Dynamo traces for the primitives that put parameters into modules.

See :mod:`tensordict.interop.twins`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import has_torch_function_variadic as any_special

from tensordict import _rust
from tensordict.protocol import NO_DEFAULT, CollectionProtocol

__all__ = ["restore_module", "swap_module"]

_NO_DIMS = torch.Size([])

MSG_NO_PLACE = (
    "{key}: {module} has no parameter, buffer or submodule of this name, only {names}. "
    "The module has not been changed: select the entries that it has."
)


def swap_module(
    td: Any, module: nn.Module, preserve: bool = True, plan_only: bool = False
) -> Any:
    """Put the entries of ``td`` into ``module``; give what it had under their keys.

    Args:
        td: parameters and buffers, nested as the submodules.
        module: the module, which has all of them.
        preserve: whether a tensor without gradient that replaces a parameter becomes one.
        plan_only: change nothing.

    Raises:
        KeyError: the module lacks an entry. It has not been changed then.
    """
    writes: list[tuple[dict[str, Any], str, Any]] = []
    swapped = _plan_module(td, module, preserve, None, {}, writes)
    if not plan_only:
        for slots, key, value in writes:
            slots[key] = value
    return swapped


def restore_module(
    td: Any, module: nn.Module, source: Any, plan_only: bool = False
) -> Any:
    """Put back what :func:`swap_module` gave, for the keys of ``source``.

    What was put into the module in place of the entries of ``source`` meanwhile is
    stored in it. The result is what the module had.
    """
    writes: list[tuple[dict[str, Any], str, Any]] = []
    current = _plan_module(td, module, False, source, {}, writes)
    if not plan_only:
        for slots, key, value in writes:
            slots[key] = value
        _take_replaced(source, current)
    return current


def _no_place(key: str, module: nn.Module) -> KeyError:
    names = [*module._parameters, *module._buffers, *module._modules]
    return KeyError(
        MSG_NO_PLACE.format(key=key, module=type(module).__name__, names=names)
    )


def _plan_module(
    td: Any,
    module: nn.Module,
    preserve: bool,
    like: Any,
    seen: dict[int, Any],
    writes: list[tuple[dict[str, Any], str, Any]],
) -> Any:
    # A module that is at two places is visited once: the first place decides.
    known = seen.get(id(module))
    if known is not None:
        return known
    slots: dict[str, Any]
    entries: dict[str, Any] = {}
    # In line what `new` does, which the compiler would enter for each module.
    result = object.__new__(td.__class__ if td._is_dense else td._dense_type())
    result.__dict__ = {
        "_tensordict": entries,
        "_batch_size": _NO_DIMS,
        "_device": None,
        "_td_dim_names": None,
    }
    seen[id(module)] = result
    parameters, buffers = module._parameters, module._buffers
    held = (td._tensordict if td._is_dense else td._entries()).copy()
    wanted = like
    if like is not None:
        wanted = like._tensordict if like._is_dense else like._entries()
    is_mixed = any_special(*held.values())
    for key, value in held.items():
        if wanted is not None and key not in wanted:
            continue
        if is_mixed and isinstance(value, CollectionProtocol):
            child = module._modules.get(key)
            if child is None:
                raise _no_place(key, module)
            below = None if wanted is None else wanted[key]
            plan = (
                _plan_params if isinstance(child, CollectionProtocol) else _plan_module
            )
            entries[key] = plan(value, child, preserve, below, seen, writes)
            continue
        if key in parameters:
            slots = parameters
        elif key in buffers:
            slots = buffers
        elif isinstance(module.__dict__.get(key), torch.Tensor):
            slots = module.__dict__
        else:
            raise _no_place(key, module)
        old = slots[key]
        entries[key] = old
        if preserve:
            value = _as_kind_of(value, old, slots is buffers)
        writes.append((slots, key, value))
    return result


def _plan_params(
    td: Any,
    params: Any,
    preserve: bool,
    like: Any,
    seen: dict[int, Any],
    writes: list[tuple[dict[str, Any], str, Any]],
) -> Any:
    """:func:`_plan_module` for a module that is a collection of parameters itself."""
    entries: dict[str, Any] = {}
    slots = params._tensordict
    for key, value in list(td._entries().items()):
        below = None if like is None else like._get_entry(key, NO_DEFAULT)
        if below is NO_DEFAULT:
            continue
        if key not in slots:
            raise _no_place(key, params)
        old = slots[key]
        if isinstance(value, CollectionProtocol):
            entries[key] = _plan_params(value, old, preserve, below, seen, writes)
            continue
        entries[key] = old
        if preserve:
            value = _as_kind_of(value, old, False)
        writes.append((slots, key, value))
    cls = type(params) if params._is_dense else params._dense_type()
    return _rust.new(cls, entries, params.batch_size, params.device, None)


def _as_kind_of(value: Any, old: Any, is_buffer: bool) -> Any:
    """A tensor without gradient as a parameter, where it replaces a parameter."""
    if isinstance(old, nn.Parameter):
        if (
            isinstance(value, nn.Parameter)
            or value.requires_grad
            or torch._C._functorch.is_functorch_wrapped_tensor(value)
        ):
            return value
        if type(value) is not torch.Tensor:
            # A parameter is of the class that `detach` gives, which for a tensor that
            # is mapped from a file is the plain one, over the same memory.
            value = value.detach()
        return nn.Parameter(value, old.requires_grad)
    if is_buffer and isinstance(value, nn.Parameter):
        return value.detach()
    return value


def _as_it_is(value: Any, old: Any, is_buffer: bool) -> Any:  # noqa: ARG001
    """What Dynamo traces for :func:`_as_kind_of`: no parameters are made in a graph."""
    return value


def _is_same_memory(value: Any, own: Any) -> bool:
    """Whether two tensors share their memory."""
    # Not in the annotations of torch.
    is_alias_of: Any = torch._C._is_alias_of  # type: ignore[attr-defined]
    return isinstance(value, torch.Tensor) and is_alias_of(value, own)


def _is_same_object(value: Any, own: Any) -> bool:
    """What Dynamo traces for :func:`_is_same_memory`, where nothing is wrapped."""
    return value is own


TRACED = ((_as_kind_of, _as_it_is), (_is_same_memory, _is_same_object))
"""What :mod:`tensordict.interop.compile` registers, each with its form for Dynamo."""


def _take_replaced(td: Any, current: Any) -> None:
    """Write to ``td`` what a block put into the module in place of the entries."""
    held = (current._tensordict if current._is_dense else current._entries()).copy()
    known = td._tensordict if td._is_dense else td._entries()
    is_mixed = any_special(*held.values())
    for key, value in held.items():
        own = known.get(key)
        if is_mixed and isinstance(value, CollectionProtocol):
            _take_replaced(own, value)
        elif value is not own and not _is_same_memory(value, own):
            # The lock guards the structure, which stays.
            td._set_entry(key, value)
