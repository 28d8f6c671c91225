"""Put the tensors of a collection into a module, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensordict import _rust
from tensordict.primitives.leaf_loops import special_keys
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.tree import new
from tensordict.primitives.uninitialized import has_uninitialized

__all__ = ["restore_module", "swap_module"]

_NO_DIMS = torch.Size([])

_Write = tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]
"""The dictionary that tensors go to, the tensors, and the dictionary in which the
module had them, if not that one."""

MSG_NO_PLACE = (
    "{key}: {module} has no parameter, buffer or submodule of this name, only {names}. "
    "The module has not been changed: select the entries that it has."
)


MSG_OTHER_SHAPES = (
    "to_module got values of other shapes than those of {module}: {shapes}. The module has "
    "not been changed: give values of its shapes, which may have dims in front if they are "
    "stacked, or build a module of these shapes."
)


class _OtherShapeError(Exception):
    """A value has another shape than the tensor of a module that it replaces."""


def swap_module(
    td: CollectionProtocol,
    module: nn.Module,
    preserve: bool = True,
    plan_only: bool = False,
) -> Any:
    """Put the entries of ``td`` into ``module``; give what it had under their keys.

    Args:
        td: parameters and buffers, nested as the submodules.
        module: the module, which has all of them.
        preserve: whether a tensor without gradient that replaces a parameter becomes one.
        plan_only: change nothing.

    Raises:
        KeyError: the module lacks an entry. It has not been changed then.
        RuntimeError: an entry has another shape than what it replaces, dims in front
            aside. The module has not been changed then.
    """
    writes: list[_Write] = []
    as_kind = _wrapper() if preserve else None
    plan = _plan_params if isinstance(module, CollectionProtocol) else _plan_module
    # A plan alone may have other shapes: values are copied where they fit.
    like = td if plan_only else None
    try:
        swapped = plan(td, module, as_kind, like, {}, writes, None)
    except _OtherShapeError:
        raise _other_shapes(td, module) from None
    if not plan_only:
        _carry_out(writes)
    return swapped


def restore_module(
    td: CollectionProtocol,
    module: nn.Module,
    source: CollectionProtocol,
    plan_only: bool = False,
) -> Any:
    """Put back what :func:`swap_module` gave, for the keys of ``source``.

    What was put into the module in place of the entries of ``source`` meanwhile is
    stored in it. With ``plan_only`` the result is what the module has, and nothing is
    changed; else it is None.
    """
    writes: list[_Write] = []
    replaced: list[tuple[Any, str, Any]] = []
    plan = _plan_params if isinstance(module, CollectionProtocol) else _plan_module
    current = plan(td, module, None, source, {}, writes, replaced)
    if not plan_only:
        _carry_out(writes)
        for collection, key, value in replaced:
            # The lock guards the structure, which stays.
            collection._set_entry(key, value)
        return None
    return current


def _carry_out(writes: list[_Write]) -> None:
    for slots, values, before in writes:
        slots.update(values)
        if before is not None:
            for key in values:
                del before[key]


def _no_place(key: str, module: nn.Module) -> KeyError:
    names = [*module._parameters, *module._buffers, *module._modules]
    return KeyError(
        MSG_NO_PLACE.format(key=key, module=type(module).__name__, names=names)
    )


def _other_shapes(td: CollectionProtocol, module: nn.Module) -> RuntimeError:
    """The error that names the values which have another shape than the module's."""
    own: dict[str, Any] = dict(module.named_parameters(remove_duplicate=False))
    own.update(module.named_buffers(remove_duplicate=False))
    found = []
    for key, value in td.items(True, True):
        name = key if isinstance(key, str) else ".".join(key)
        if name in own and not _fits(value, own[name]):
            shapes = f"{list(value.shape)} in place of {list(own[name].shape)}"
            found.append(f"{name} {shapes}")
    listed = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")
    name = type(module).__name__
    return RuntimeError(MSG_OTHER_SHAPES.format(module=name, shapes=listed))


def _fits(value: object, old: object) -> bool:
    """Return whether a value has the shape of ``old``, dims in front aside."""
    if not isinstance(value, torch.Tensor) or not isinstance(old, torch.Tensor):
        return True
    if has_uninitialized((value, old)):
        return True
    return value.shape[max(value.dim() - old.dim(), 0) :] == old.shape


def _always_fits(value: object, old: object) -> bool:  # noqa: ARG001
    """Answer :func:`_fits` for Dynamo: a graph has no use for a comparison of sizes."""
    return True


def _plan_module(
    td: Any,
    module: nn.Module,
    as_kind: Any,
    like: Any,
    seen: dict[int, tuple[Any, Any]],
    writes: list[_Write],
    replaced: list[tuple[Any, str, Any]] | None,
) -> Any:
    """Plan the content of ``module`` under the keys of ``td``; fill ``writes``.

    With ``like`` only its keys count, and what the module has in place of its entries
    joins ``replaced``. ``as_kind`` makes values what they are to be in a module.
    """
    # A module that is at two places is visited once: the first place decides.
    known = seen.get(id(module))
    if known is not None:
        current, given = known
        if replaced is not None:
            _note_replaced(like, current, given, replaced)
        return current
    entries: dict[str, Any] = {}
    cls = td.__class__ if td._is_dense else td._dense_type()
    result = new(cls, entries, _NO_DIMS, None, None)
    seen[id(module)] = (result, like)
    parameters, buffers = module._parameters, module._buffers
    of_parameters: dict[str, Any] = {}
    held = (td._tensordict if td._is_dense else td._entries()).copy()
    wanted: Any = like
    if like is not None:
        wanted = like._tensordict if like._is_dense else like._entries()
    special = special_keys(held)
    # A value that takes the place of a parameter, and is none, becomes an attribute.
    moves = as_kind is None and _moves_between()
    old: Any
    for key, value in held.items():
        if wanted is not None and key not in wanted:
            continue
        if key in special and isinstance(value, CollectionProtocol):
            child = module._modules.get(key)
            if child is None:
                raise _no_place(key, module)
            below = None if wanted is None else wanted[key]
            is_params = isinstance(child, CollectionProtocol)
            plan = _plan_params if is_params else _plan_module
            entries[key] = plan(value, child, as_kind, below, seen, writes, replaced)
            continue
        if key in parameters:
            old = parameters[key]
            if moves and like is None and not isinstance(value, nn.Parameter):
                writes.append((module.__dict__, {key: value}, parameters))
            else:
                kept = value if as_kind is None else as_kind(value, old, False)
                of_parameters[key] = kept
        else:
            slots = buffers if key in buffers else module.__dict__
            old = slots.get(key)
            if slots is not buffers and not isinstance(old, torch.Tensor):
                raise _no_place(key, module)
            is_own = slots is not buffers and isinstance(value, nn.Parameter)
            if is_own and _moves_between():
                writes.append((parameters, {key: value}, slots))
            else:
                if as_kind is not None:
                    value = as_kind(value, old, slots is buffers)
                writes.append((slots, {key: value}, None))
        if like is None and not _fits(value, old):
            raise _OtherShapeError
        entries[key] = old
        if replaced is not None:
            own = wanted[key]  # type: ignore[index]  # with `like` there is one
            if old is not own and not _is_same_memory(old, own):
                replaced.append((like, key, old))
    if of_parameters:
        writes.append((parameters, of_parameters, None))
    return result


def _plan_params(
    td: CollectionProtocol,
    params: Any,
    as_kind: Any,
    like: Any,
    seen: dict[int, tuple[Any, Any]],
    writes: list[_Write],
    replaced: list[tuple[Any, str, Any]] | None,
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
        if isinstance(value, CollectionProtocol) and not value._is_non_tensor:
            entries[key] = _plan_params(
                value, old, as_kind, below, seen, writes, replaced
            )
            continue
        entries[key] = old
        if as_kind is not None and isinstance(value, torch.Tensor):
            value = as_kind(value, old, False)
        writes.append((slots, {key: value}, None))
        if (
            replaced is not None
            and isinstance(value, torch.Tensor)
            and old is not below
            and not _is_same_memory(old, below)
        ):
            replaced.append((like, key, old))
    cls = type(params) if params._is_dense else params._dense_type()
    return _rust.new(cls, entries, params.batch_size, params.device, None)


def _moves_between() -> bool:
    """Return whether a tensor may move between a module's parameters and attributes."""
    return True


def _stays() -> bool:
    """Answer :func:`_moves_between` for Dynamo: each place keeps its kind."""
    return False


def _wrapper() -> Any:
    """Return the function that makes a tensor the kind of tensor that a module has."""
    return _as_kind_of


def _no_wrapper() -> Any:
    """Answer :func:`_wrapper` for Dynamo: no parameters are made in a graph."""
    return None


def _as_kind_of(value: Any, old: object, is_buffer: bool) -> Any:
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


def _is_same_memory(value: object, own: object) -> bool:
    """Return whether two tensors share their memory."""
    # Not in the annotations of torch.
    is_alias_of: Any = torch._C._is_alias_of  # type: ignore[attr-defined]
    return isinstance(value, torch.Tensor) and is_alias_of(value, own)


def _is_same_object(value: object, own: object) -> bool:
    """Answer :func:`_is_same_memory` for Dynamo, where nothing is wrapped."""
    return value is own


TRACED = (
    (_wrapper, _no_wrapper),
    (_moves_between, _stays),
    (_is_same_memory, _is_same_object),
    (_fits, _always_fits),
)
"""Functions for :mod:`tensordict.compile.registration`, each with its form for
Dynamo."""


def _note_replaced(
    td: CollectionProtocol,
    current: Any,
    given: Any,
    replaced: list[tuple[Any, str, Any]],
) -> None:
    """Note what a block put into a module in place of ``given``, at its other place."""
    held = (current._tensordict if current._is_dense else current._entries()).copy()
    known = td._tensordict if td._is_dense else td._entries()
    put = given._tensordict if given._is_dense else given._entries()
    for key, value in held.items():
        if key not in known or key not in put:
            continue
        if isinstance(value, CollectionProtocol):
            _note_replaced(known[key], value, put[key], replaced)
        elif value is not put[key] and not _is_same_memory(value, put[key]):
            replaced.append((td, key, value))
