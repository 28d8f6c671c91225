"""Moving of a tensordict's tensors into a module, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensordict import _rust
from tensordict.primitives.checks import is_branch
from tensordict.primitives.errors import absent_key
from tensordict.primitives.leaf_loops import special_keys
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.tied import (
    ModuleSlot,
    ValuesDiffer,
    is_one,
    refuse_missing,
    two_values,
)
from tensordict.primitives.tree import new
from tensordict.primitives.uninitialized import has_uninitialized

__all__ = ["restore_module", "swap_module"]

_NO_DIMS = torch.Size([])

_Write = tuple[dict[str, Any], str, Any, dict[str, Any] | None]
"""The dictionary to write to, the name, the tensor, and the dictionary that the
module's tensor must be removed from, if it is another one."""

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
    """The error of a value whose shape is not that of the module's tensor."""


class _Walk:
    """A walk over a module: the tensors that it found, and the writes that it plans.

    Args:
        as_kind: the function that converts values to the kind of the module's tensors,
            if any.
        checks: require values to have the shapes of the tensors that they replace.
        strict: require equal values for one tensor. Default: only of values from a
            file.
        replaced: in a walk that restores, the list of tensors that a block assigned.
        merged: in such a walk, whether some entries were not put into the module.
    """

    def __init__(
        self,
        as_kind: Any = None,
        checks: bool = False,
        strict: bool | None = None,
        replaced: list[tuple[Any, str, Any]] | None = None,
        merged: bool = False,
    ) -> None:
        self.as_kind = as_kind
        self.checks = checks
        self.strict = strict
        self.replaced = replaced
        self.merged = merged
        self.writes: list[_Write] = []
        # A module at two places is visited once: the first place decides.
        self.seen: dict[int, tuple[Any, Any]] = {}
        self.visited: list[tuple[Any, dict[str, Any]]] = []
        # For each tensor of the module (which may be at two places) its replacement; in
        # a walk that restores, the tensor that had replaced it.
        self.tied: dict[torch.Tensor, Any] = {}
        self.others: list[ModuleSlot] = []
        self.has_attributes = False

    def kept(self, place: ModuleSlot, value: Any, is_buffer: bool) -> torch.Tensor:
        """Return the tensor to write for ``value`` at a place of the module."""
        old = place[2]
        kept = value
        if self.as_kind is not None:
            kept = self.as_kind(value, old, is_buffer)
        if old is None:
            return kept
        first = self.tied.setdefault(old, kept)
        if kept is not first and is_one(first, kept, self.strict, kept is not value):
            self.others.append(place)
            return first
        return kept

    def note_change(
        self, source: Any, key: str, value: Any, current: Any, put: Any
    ) -> None:
        """Record a tensor that a block assigned in place of an entry of ``source``.

        Args:
            source: the tensordict.
            key: the name of the entry.
            value: the tensor that the module gets back.
            current: the tensor that the module has now.
            put: the entry.
        """
        if self.merged and value is not None:
            # The first entry may have replaced a tensor that the module has at two
            # places.
            first = self.tied.setdefault(value, put)
            if current is first or _is_same_memory(current, first):
                return
        if current is not put and not _is_same_memory(current, put):
            replaced: Any = self.replaced
            replaced.append((source, key, current))


def swap_module(
    td: CollectionProtocol,
    module: nn.Module,
    preserve: bool = True,
    plan_only: bool = False,
    strict: bool | None = None,
    tied: list[ModuleSlot] | None = None,
) -> Any:
    """Put the entries of ``td`` into ``module``; return its tensors under their keys.

    A tensor that the module has at two places is replaced at both, even if ``td`` has
    an entry for one place only. It stays one tensor if the values are one.

    Args:
        td: parameters and buffers, nested as the submodules.
        module: a module with all these tensors.
        preserve: make a parameter of a tensor without grad that replaces a parameter.
        plan_only: change nothing.
        strict: require an entry for each tensor of the module, and one value for each.
            Default: True if ``td`` was loaded from a file.
        tied: a list to which the places are appended whose value is not from ``td``.

    Raises:
        KeyError: the module lacks an entry. The module is unchanged.
        RuntimeError: an entry has another shape than the tensor that it replaces, apart
            from leading dims; or ``td`` lacks an entry, or has two values for one
            tensor. The module is unchanged.
    """
    walk = _Walk(_wrapper() if preserve else None, not plan_only, strict)
    plan = _plan_params if isinstance(module, CollectionProtocol) else _plan_module
    # A plan alone allows other shapes: values are then copied if they broadcast.
    like = td if plan_only else None
    try:
        swapped = plan(td, module, like, walk)
        others = _plan_tied(walk, td, module, strict)
    except _OtherShapeError:
        raise _other_shapes(td, module) from None
    except ValuesDiffer:
        raise two_values(td, module) from None
    if not plan_only:
        _carry_out(walk.writes)
    if tied is not None:
        tied += others
    return swapped


def restore_module(
    td: CollectionProtocol,
    module: nn.Module,
    source: CollectionProtocol,
    plan_only: bool = False,
    merged: bool = False,
) -> Any:
    """Put back the result of :func:`swap_module` for the keys of ``source``.

    Tensors that were assigned to the module in place of entries of ``source`` are
    stored in ``source``. With ``plan_only``, return the present tensors of the module
    and change nothing; otherwise return None.
    """
    replaced: list[tuple[Any, str, Any]] = []
    walk = _Walk(replaced=replaced, merged=merged)
    plan = _plan_params if isinstance(module, CollectionProtocol) else _plan_module
    current = plan(td, module, source, walk)
    if not plan_only:
        _carry_out(walk.writes)
        for collection, key, value in replaced:
            # Replacing a value is allowed although `collection` is locked.
            collection._set_entry(key, value)
        return None
    return current


def _carry_out(writes: list[_Write]) -> None:
    for slots, key, value, before in writes:
        slots[key] = value
        if before is not None:
            del before[key]


def _no_place(key: str, module: nn.Module) -> KeyError:
    names = [*module._parameters, *module._buffers, *module._modules]
    return absent_key(
        MSG_NO_PLACE.format(key=key, module=type(module).__name__, names=names)
    )


def _other_shapes(td: CollectionProtocol, module: nn.Module) -> RuntimeError:
    """Make the error that names the values whose shapes differ from the module's."""
    module_tensors: dict[str, Any] = dict(
        module.named_parameters(remove_duplicate=False)
    )
    module_tensors.update(module.named_buffers(remove_duplicate=False))
    differences = []
    for key, value in td.items(True, True):
        name = key if isinstance(key, str) else ".".join(key)
        if name in module_tensors and not _fits(value, module_tensors[name]):
            shapes = (
                f"{list(value.shape)} in place of {list(module_tensors[name].shape)}"
            )
            differences.append(f"{name} {shapes}")
    listed = ", ".join(differences[:8]) + (", ..." if len(differences) > 8 else "")
    name = type(module).__name__
    return RuntimeError(MSG_OTHER_SHAPES.format(module=name, shapes=listed))


def _fits(value: object, old: object) -> bool:
    """Return whether a value has the shape of ``old``, apart from leading dims.

    Any shape fits a placeholder: an uninitialized tensor, or one on the meta device or
    without elements.
    """
    if not isinstance(value, torch.Tensor) or not isinstance(old, torch.Tensor):
        return True
    if has_uninitialized((value, old)) or old.is_meta or not old.numel():
        return True
    return value.shape[max(value.dim() - old.dim(), 0) :] == old.shape


def _always_fits(value: object, old: object) -> bool:  # noqa: ARG001
    """Replace :func:`_fits` for Dynamo: a graph does not compare sizes."""
    return True


def _plan_module(td: Any, module: nn.Module, like: Any, walk: _Walk) -> Any:
    """Plan new tensors for ``module`` at the keys of ``td``; return the present ones.

    With ``like``, only the keys of ``like`` are used.
    """
    replaced = walk.replaced
    known = walk.seen.get(id(module))
    if known is not None:
        current, given = known
        if replaced is not None:
            _note_replaced(like, current, given, replaced)
        return current
    entries: dict[str, Any] = {}
    cls = td.__class__ if td._is_dense else td._dense_type()
    result = new(cls, entries, _NO_DIMS, None, None)
    walk.seen[id(module)] = (result, like)
    held = (td._tensordict if td._is_dense else td._entries()).copy()
    walk.visited.append((module, held))
    wanted: Any = like
    if like is not None:
        wanted = like._tensordict if like._is_dense else like._entries()
    special = special_keys(held)
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
            entries[key] = plan(value, child, below, walk)
            continue
        entries[key] = old = _plan_tensor(walk, module, key, value)
        if replaced is not None:
            # If `replaced` is passed, so is `like`.
            put: Any = wanted
            walk.note_change(like, key, value, old, put[key])
    return result


def _plan_tensor(walk: _Walk, module: nn.Module, key: str, value: Any) -> Any:
    """Plan to write ``value`` to the tensor at ``key``; return the present tensor."""
    parameters, buffers = module._parameters, module._buffers
    slots: Any
    if key in parameters:
        slots = parameters
    elif key in buffers:
        slots = buffers
    else:
        slots = module.__dict__
        if not isinstance(slots.get(key), torch.Tensor):
            raise _no_place(key, module)
        walk.has_attributes = True
    old: Any = slots[key]
    if walk.checks and not _fits(value, old):
        raise _OtherShapeError
    if walk.replaced is None:
        value = walk.kept((module, key, old), value, slots is buffers)
    _plan_write(walk, module, slots, key, value)
    return old


def _plan_write(
    walk: _Walk, module: nn.Module, slots: dict[str, Any], key: str, value: Any
) -> None:
    """Plan to write ``value`` to ``slots``, or to the module's slots for its kind."""
    before = None
    if not isinstance(module, CollectionProtocol) and _moves_between():
        # A value that replaces a parameter and is no parameter becomes an attribute.
        is_parameter = isinstance(value, nn.Parameter)
        if slots is module._parameters:
            if walk.checks and walk.as_kind is None and not is_parameter:
                before, slots = slots, module.__dict__
        elif slots is not module._buffers and is_parameter:
            before, slots = slots, module._parameters
    walk.writes.append((slots, key, value, before))


def _plan_params(td: CollectionProtocol, params: Any, like: Any, walk: _Walk) -> Any:
    """Do :func:`_plan_module` for a module that is a tensordict of parameters."""
    entries: dict[str, Any] = {}
    slots = params._tensordict
    held = dict(td._entries())
    walk.visited.append((params, held))
    for key, value in held.items():
        below = None if like is None else like._get_entry(key, NO_DEFAULT)
        if below is NO_DEFAULT:
            continue
        if key not in slots:
            raise _no_place(key, params)
        old = slots[key]
        if is_branch(value):
            entries[key] = _plan_params(value, old, below, walk)
            continue
        entries[key] = old
        if isinstance(value, torch.Tensor) and isinstance(old, torch.Tensor):
            if walk.replaced is None:
                value = walk.kept((params, key, old), value, False)
            else:
                walk.note_change(like, key, value, old, below)
        walk.writes.append((slots, key, value, None))
    cls = type(params) if params._is_dense else params._dense_type()
    return _rust.new(cls, entries, params.batch_size, params.device, None)


def _plan_tied(
    walk: _Walk, td: CollectionProtocol, module: nn.Module, strict: bool | None
) -> list[ModuleSlot]:
    """Plan for tied tensors of the module that have no entry in ``td``.

    Raises:
        RuntimeError: ``td`` lacks an entry that it must have.
    """
    tied_places = walk.others
    is_whole = True
    rest = walk.visited
    while rest:
        holder, held = rest.pop()
        tensors, children, optional, count = _content(holder)
        if walk.has_attributes and not isinstance(holder, CollectionProtocol):
            tensors = (*tensors, holder.__dict__)
        elif len(held) == count:
            continue
        for slots in tensors:
            for key, old in list(slots.items()):
                if key in held or not isinstance(old, torch.Tensor):
                    continue
                known = walk.tied.get(old)
                if known is not None:
                    tied_places.append((holder, key, old))
                    _plan_write(walk, holder, slots, key, known)
                elif key not in optional and slots is not holder.__dict__:
                    is_whole = False
        for key, child in children.items():
            if child is not None and key not in held and id(child) not in walk.seen:
                walk.seen[id(child)] = (None, None)
                rest.append((child, {}))
    if not is_whole and strict is not False:
        refuse_missing(td, module, strict)
    return tied_places


def _content(holder: Any) -> tuple[tuple[Any, ...], Any, Any, int]:
    """Return tensors, children, optional names and number of names of a module."""
    if isinstance(holder, CollectionProtocol):
        entries = holder._tensordict
        nested = {key: value for key, value in entries.items() if is_branch(value)}
        return (entries,), nested, (), len(entries)
    tensors = (holder._parameters, holder._buffers)
    children = holder._modules
    count = len(tensors[0]) + len(tensors[1]) + len(children)
    return tensors, children, holder._non_persistent_buffers_set, count


def _moves_between() -> bool:
    """Return whether a tensor may move between a module's parameters and attributes."""
    return True


def _stays() -> bool:
    """Replace :func:`_moves_between` for Dynamo: each place keeps its kind."""
    return False


def _wrapper() -> Any:
    """Return the function that converts a tensor to the kind of the module's tensor."""
    return _as_kind_of


def _no_wrapper() -> Any:
    """Replace :func:`_wrapper` for Dynamo: a graph makes no parameters."""
    return None


def _as_kind_of(value: Any, old: object, is_buffer: bool) -> Any:
    """Make a parameter of a tensor without grad that replaces a parameter."""
    if isinstance(old, nn.Parameter):
        if (
            isinstance(value, nn.Parameter)
            or value.requires_grad
            or torch._C._functorch.is_functorch_wrapped_tensor(value)
        ):
            return value
        if type(value) is not torch.Tensor:
            # A parameter takes the class of `detach()`: for a tensor that is mapped
            # from a file, that is the plain class, over the same memory.
            value = value.detach()
        return nn.Parameter(value, old.requires_grad)
    if is_buffer and isinstance(value, nn.Parameter):
        return value.detach()
    return value


def _is_same_memory(value: object, own: object) -> bool:
    """Return whether two tensors share their memory."""
    # The function is missing from torch's annotations.
    is_alias_of: Any = torch._C._is_alias_of  # type: ignore[attr-defined]
    return isinstance(value, torch.Tensor) and is_alias_of(value, own)


def _is_same_object(value: object, own: object) -> bool:
    """Replace :func:`_is_same_memory` for Dynamo, where no tensor is wrapped."""
    return value is own


TRACED = (
    (_wrapper, _no_wrapper),
    (_moves_between, _stays),
    (_is_same_memory, _is_same_object),
    (_fits, _always_fits),
)
"""Functions for :mod:`tensordict.compile.registration`, each with its replacement for
Dynamo."""


def _note_replaced(
    td: CollectionProtocol,
    current: Any,
    put_entries: Any,
    replaced: list[tuple[Any, str, Any]],
) -> None:
    """Record the tensors that a block put into a module in place of ``given``."""
    held = (current._tensordict if current._is_dense else current._entries()).copy()
    source_entries = td._tensordict if td._is_dense else td._entries()
    put = put_entries._tensordict if put_entries._is_dense else put_entries._entries()
    for key, value in held.items():
        if key not in source_entries or key not in put:
            continue
        if isinstance(value, CollectionProtocol):
            _note_replaced(source_entries[key], value, put[key], replaced)
        elif value is not put[key] and not _is_same_memory(value, put[key]):
            replaced.append((td, key, value))
