"""Tensors that a module has at several places, and checks for missing entries."""

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
"""A module or a tensordict of parameters, a name, and the tensor that was there."""

MSG_MISSING = (
    "to_module got a tensordict{source} that lacks tensors of {module}: {names}. The "
    "module has not been changed: pass all of them, or keep these tensors with "
    "strict=False."
)
MSG_TWO_VALUES = (
    "to_module got different values for entries that are one tensor in {module}: "
    "{names}. The module has not been changed: leave out all of these entries but one, or untie "
    "them in the module with strict=False."
)
_MOST_NAMES = 8


class ValuesDiffer(Exception):  # noqa: N818 (it is caught, and another error is raised)
    """Two values for one tensor of a module differ."""


def is_one(first: Any, second: Any, strict: bool | None, is_made: bool) -> bool:
    """Return whether one value replaces a tensor at both its places.

    Args:
        first: the value for the first place.
        second: the value for the second place.
        strict: whether the module must not get two tensors for one. Default: True if a
            value was loaded from a file; other values become one tensor if they are
            equal.
        is_made: whether ``second`` is a parameter that was made for the module.

    Raises:
        ValuesDiffer: ``strict`` applies, and the values differ.
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
        # Each value was passed to get its own gradient.
        return False
    if first.shape == second.shape and first.dtype == second.dtype:
        first, second = first.detach(), second.detach().to(first.device)
        # NaN is not equal to itself.
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
    """Replace :func:`is_one` for Dynamo: a graph cannot compare values."""
    return first is second


def _has_values(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has readable values in its own memory."""
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
    """Make the error that names the entries that are one tensor in ``module``."""
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
    """Raise an error for parameters and persistent buffers that ``td`` lacks.

    Args:
        td: the tensordict.
        module: a module that has tensors without an entry.
        strict: if None, only a tensordict that was loaded from a file is refused.

    Raises:
        RuntimeError: the message names the missing entries.
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
    """Yield name and tensor at each place of a module, and whether a state has it."""
    for prefix, part in module.named_modules(remove_duplicate=False):
        path = f"{prefix}." if prefix else ""
        optional = part._non_persistent_buffers_set
        for slots in (part._parameters, part._buffers):
            for name, tensor in slots.items():
                if tensor is not None:
                    yield path + name, tensor, name not in optional


def _file_of(td: CollectionProtocol) -> str | None:
    """Return the file that the first tensor of a tensordict is mapped from, if any."""
    for leaf in _rust.leaves(td):
        if isinstance(leaf, torch.Tensor):
            return _file(leaf)
    return None


def _file(tensor: torch.Tensor) -> str | None:
    """Return the file that a tensor is mapped from, if any."""
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
    """Replace :func:`_file_of` for Dynamo, where tensors have no addresses."""


def current_tensor(holder: Any, name: str) -> Any:
    """Return the tensor of a module, or of a tensordict of parameters, under a name."""
    if isinstance(holder, CollectionProtocol):
        return holder._get_entry(name, None)
    return getattr(holder, name)


def put_back(places: Sequence[tuple[Any, str, torch.Tensor, Any]]) -> None:
    """Put tensors back unless a block has replaced the tensors put in their place.

    Args:
        places: for each place the module or tensordict, the name, the previous tensor,
            and the tensor that was put there.
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
                # The replacement was no parameter and had become an attribute.
                del slots[name]
                slots = holder._parameters
            slots[name] = old
            break


def tied_places(module: nn.Module) -> list[list[tuple[dict[str, Any], str, Any]]]:
    """Return the slots of each tensor that a module has at several places."""
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
    """Tie tensors again that were tied, after at least one place was replaced.

    Args:
        groups: the result of :func:`tied_places` from before.
        strict: see :func:`is_one`.
    """
    for places in groups:
        made = [slots[name] for slots, name, old in places if slots[name] is not old]
        for slots, name, old in places if made else ():
            with contextlib.suppress(ValuesDiffer):
                if slots[name] is old or is_one(made[0], slots[name], strict, True):
                    slots[name] = made[0]


TRACED = ((is_one, _is_object), (_file_of, _no_file))
"""Functions for :mod:`tensordict.compile.registration`, each with its replacement for
Dynamo."""
