"""Tensors that a module has at several places, and those that a collection lacks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tensordict import _rust
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.uninitialized import has_uninitialized

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "TRACED",
    "ModuleSlot",
    "ValuesDiffer",
    "current_tensor",
    "is_one",
    "put_back",
    "refuse_missing",
    "tie_again",
    "tied_places",
    "two_values",
]

ModuleSlot = tuple[Any, str, torch.Tensor]
"""A module or a collection of parameters, a name, and the tensor that was there."""

MSG_MISSING = (
    "to_module got a collection{source} that lacks what {module} has: {names}. The module "
    "has not been changed: give all of them, or leave these as they are with strict=False."
)
MSG_TWO_VALUES = (
    "to_module got different values for what is one tensor of {module}: {names}. The module "
    "has not been changed: leave out all of these entries but one, or untie them in the "
    "module with strict=False."
)
_MOST_NAMES = 8


class ValuesDiffer(Exception):  # noqa: N818 (it is caught, and another error is raised)
    """Two values for one tensor of a module differ."""


def is_one(first: Any, second: Any, strict: bool | None, is_made: bool) -> bool:
    """Return whether one of two values takes the place of a tensor at both its places.

    Args:
        first: what the module gets at the first place.
        second: what was meant for the other one.
        strict: whether the module must not get two tensors for one. Default: if they were
            loaded from a file; others become one where they are equal.
        is_made: whether ``second`` is a parameter that was made for the module.

    Raises:
        ValuesDiffer: it must not, and the values differ.
    """
    if first is second:
        return True
    if has_uninitialized((first, second)) or not all(map(_has_values, (first, second))):
        return False
    if _is_same_memory(first, second):
        return is_made
    if strict is False:
        return False
    is_strict = bool(strict or _file(first) or _file(second))
    if not is_strict and not is_made and (first.requires_grad or second.requires_grad):
        # Each was given to get a gradient of its own.
        return False
    if first.shape == second.shape and first.dtype == second.dtype:
        first, second = first.detach(), second.detach().to(first.device)
        # A value that is no number is not equal to itself.
        if torch.equal(first, second) or (
            is_strict and torch.isclose(first, second, 0, 0, equal_nan=True).all()
        ):
            return True
    if not is_strict:
        return False
    raise ValuesDiffer


def _is_object(
    first: object,
    second: object,
    strict: bool | None,  # noqa: ARG001
    is_made: bool,  # noqa: ARG001
) -> bool:
    """Answer :func:`is_one` for Dynamo: a graph cannot compare values."""
    return first is second


def _has_values(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has memory of its own that can be looked at."""
    return not (
        tensor.grad_fn is not None
        or tensor.is_meta
        or isinstance(tensor, FakeTensor)
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _is_same_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    is_alias_of: Any = torch._C._is_alias_of  # type: ignore[attr-defined]
    return bool(
        is_alias_of(first, second)
        and first.storage_offset() == second.storage_offset()
        and first.shape == second.shape
        and first.stride() == second.stride()
        and first.dtype == second.dtype
    )


def two_values(td: CollectionProtocol, module: nn.Module) -> RuntimeError:
    """The error that names the entries of ``td`` which are one tensor of the module."""
    places: dict[int, list[str]] = {}
    values: dict[str, Any] = {
        _dotted(key): value for key, value in td.items(True, True)
    }
    for name, tensor, _ in _named(module):
        if name in values:
            places.setdefault(id(tensor), []).append(name)
    for names in places.values():
        first, *others = (values[name] for name in names)
        try:
            for other in others:
                is_one(first, other, True, False)
        except ValuesDiffer:
            break
    return RuntimeError(
        MSG_TWO_VALUES.format(module=type(module).__name__, names=" and ".join(names))
    )


def refuse_missing(
    td: CollectionProtocol, module: nn.Module, strict: bool | None
) -> None:
    """Raise for parameters and persistent buffers that ``td`` does not have.

    Args:
        td: the tensordict.
        module: the module that has more than that.
        strict: if None, a collection may lack something unless it is a save.

    Raises:
        RuntimeError: it names what is missing.
    """
    source = _file_of(td)
    if not strict and source is None:
        return
    given = {_dotted(key) for key in td.keys(True, True)}
    named = list(_named(module))
    filled = {id(tensor) for name, tensor, _ in named if name in given}
    names = [
        name
        for name, tensor, is_needed in named
        if is_needed and id(tensor) not in filled
    ]
    listed = ", ".join(names[:_MOST_NAMES]) + (
        f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    )
    raise RuntimeError(
        MSG_MISSING.format(
            source="" if source is None else f" (loaded from {source})",
            module=type(module).__name__,
            names=listed,
        )
    )


def _dotted(key: str | tuple[str, ...]) -> str:
    return key if isinstance(key, str) else ".".join(key)


def _named(module: nn.Module) -> Any:
    """Names and tensors at all places of a module, and whether a state has them."""
    for prefix, part in module.named_modules(remove_duplicate=False):
        path = f"{prefix}." if prefix else ""
        optional = part._non_persistent_buffers_set
        for slots in (part._parameters, part._buffers):
            for name, tensor in slots.items():
                if tensor is not None:
                    yield path + name, tensor, name not in optional


def _file_of(td: CollectionProtocol) -> str | None:
    """The file that the first tensor of a collection is mapped from, if any."""
    for leaf in _rust.leaves(td):
        if isinstance(leaf, torch.Tensor):
            return _file(leaf)
    return None


def _file(tensor: torch.Tensor) -> str | None:
    """The file that a tensor is mapped from, if any."""
    if (
        has_uninitialized((tensor,))
        or not _has_values(tensor)
        or tensor.device.type != "cpu"
        or not tensor.numel()
    ):
        return None
    found = _rust.mapping_of(tensor.data_ptr())
    return None if found is None else str(found[0])


def _no_file(td: object) -> None:
    """Answer :func:`_file_of` for Dynamo, where tensors have no addresses."""


def current_tensor(holder: Any, name: str) -> Any:
    """The tensor that a module, or a collection of parameters, has under a name."""
    if isinstance(holder, CollectionProtocol):
        return holder._get_entry(name, None)
    return getattr(holder, name)


def put_back(places: Sequence[tuple[Any, str, torch.Tensor, Any]]) -> None:
    """Put tensors back where a block has left what was put there.

    Args:
        places: a module or collection each, the name, the tensor that it had, and the one
            that was put there.
    """
    for holder, name, old, put in places:
        if isinstance(holder, CollectionProtocol):
            if holder._get_entry(name, None) is put:
                holder._set_entry(name, old)
            continue
        for slots in (holder._parameters, holder._buffers, holder.__dict__):
            if slots.get(name) is not put:
                continue
            if slots is holder.__dict__ and isinstance(old, nn.Parameter):
                # A tensor that is no parameter had become an attribute.
                del slots[name]
                slots = holder._parameters
            slots[name] = old
            break


def tied_places(module: nn.Module) -> list[list[tuple[dict[str, Any], str, Any]]]:
    """The slots of each tensor that a module has at several places."""
    groups: dict[int, list[tuple[dict[str, Any], str, Any]]] = {}
    for part in module.modules():
        if isinstance(part, CollectionProtocol):
            all_slots = [inner._tensordict for inner in _rust.containers(part)]
        else:
            all_slots = [part._parameters, part._buffers]
        for slots in all_slots:
            for name, tensor in slots.items():
                if isinstance(tensor, torch.Tensor):
                    groups.setdefault(id(tensor), []).append((slots, name, tensor))
    return [places for places in groups.values() if len(places) > 1]


def tie_again(
    groups: list[list[tuple[dict[str, Any], str, Any]]], strict: bool | None
) -> None:
    """Make tensors one again that were one, and were replaced at one place at least.

    Args:
        groups: what :func:`tied_places` gave before.
        strict: see :func:`is_one`.
    """
    for places in groups:
        made = [slots[name] for slots, name, old in places if slots[name] is not old]
        for slots, name, old in places if made else ():
            with contextlib.suppress(ValuesDiffer):
                if slots[name] is old or is_one(made[0], slots[name], strict, True):
                    slots[name] = made[0]


TRACED = ((is_one, _is_object), (_file_of, _no_file))
"""Functions for :mod:`tensordict.compile.registration`, each with its form for
Dynamo."""
