"""Writes of values into existing leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives import special
from tensordict.primitives.access import contains
from tensordict.primitives.align import align
from tensordict.primitives.arrays import as_tensor
from tensordict.primitives.checks import holds_values, is_leaf_nontensor
from tensordict.primitives.common import (
    MSG_INPLACE,
    _InplaceWriteError,
    check_number,
    refused_first,
)
from tensordict.primitives.errors import absent_key, bad_key, locked_error
from tensordict.primitives.items import containers, walk
from tensordict.primitives.nested_key import unravel_key_to_tuple
from tensordict.primitives.protocol import (
    NO_DEFAULT,
    CollectionProtocol,
    as_stack,
)
from tensordict.primitives.set import check_batch, set_entry, validate
from tensordict.primitives.tree import leaves

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensordict.primitives.protocol import NestedKeyLike, StackProtocol


def member_paths(stack: StackProtocol) -> list[Any]:
    """Give the keys of the leaves that some member of a stack has."""
    members = stack.tensordicts
    if not stack._has_exclusive_keys:
        members = members[:1]
    paths = (walk(member, 0, True, True, is_leaf_nontensor) for member in members)
    return list(dict.fromkeys(key for keys in paths for key in keys))


def write_tree(
    td: CollectionProtocol,
    tree: object,
    inplace: bool,
    checked: bool = False,
    nested: bool = True,
) -> None:
    """Store every entry of ``tree`` in ``td``, or none if one does not fit.

    With ``inplace``, values are copied into existing entries. Without ``nested``, a
    direct entry that is a tensordict replaces the existing one.
    """
    writes: list[Any] = []
    _plan_writes(td, tree, inplace, checked, nested, writes)
    for collection, key, value in writes:
        if not inplace and isinstance(value, CollectionProtocol):
            collection._hang(key, value)
        else:
            set_entry(collection, key, value, inplace, False, True)


def _plan_writes(
    td: CollectionProtocol,
    tree: Any,
    inplace: bool,
    checked: bool,
    nested: bool,
    writes: list[Any],
) -> None:
    if not inplace and td._is_locked:
        raise locked_error(td)
    parts = None if td._is_dense else td._update_parts(tree)
    if parts is not None:
        for member, part in zip(td._children(), parts, strict=True):
            _plan_writes(member, part, inplace, checked, nested, writes)
        return
    for key, value in list(tree._entries().items()):
        present = td._get_entry(key, NO_DEFAULT)
        if value is present and inplace:
            continue
        if (
            nested
            and isinstance(value, CollectionProtocol)
            and isinstance(present, CollectionProtocol)
        ):
            _plan_writes(present, value, inplace, checked, nested, writes)
            continue
        if not checked:
            value = validate(td, key, value)
        elif inplace:
            value = _broadcast(value, present)
        writes.append((td, key, value))


def _broadcast(value: Any, present: Any) -> Any:
    """Expand ``value`` to the shape of the leaf that it is copied into, if possible."""
    tensors = isinstance(value, torch.Tensor) and isinstance(present, torch.Tensor)
    if not tensors or value.shape == present.shape or value.dim() > present.dim():
        return value
    dims = zip(value.shape[::-1], present.shape[::-1], strict=False)
    fits = all(own in (1, other) for own, other in dims)
    return value.expand(present.shape) if fits else value


MSG_NOT_A_VALUE = "The entry {!r} is a tensor: a {} cannot be copied into it."


MSG_NOT_IN_DESTINATION = "The key {} was not found in the dest tensordict."


MSG_UPDATE_COPY = (
    "update_() cannot copy the value of shape {} under the key {!r} into the entry of "
    "shape {}: the sizes do not match."
)


MSG_INPLACE_SHAPE = (
    "Failed to update {!r} in tensordict {}: the value of shape {} does not fit the "
    "entry of shape {}"
)


def copy_failed(
    td: CollectionProtocol, leaf: torch.Tensor, error: RuntimeError
) -> None:
    """Raise the error of a leaf that cannot be written: expanded, or requires grad.

    A leaf without elements raises no error: there is nothing to write.
    """
    if not leaf.numel():
        return
    for collection in containers(td):
        for key, value in list(collection._entries().items()):
            if value is leaf:
                message = MSG_INPLACE.format(key, collection)
                raise _InplaceWriteError(f"{message}: {error}") from error
    raise error


def _expands(shape: torch.Size, target: torch.Size) -> bool:
    """Return whether ``shape`` can be copied into an entry of shape ``target``."""
    if not shape.numel() and not target.numel():
        return True
    offset = len(target) - len(shape)
    if offset < 0:
        return False
    return all(
        size in (1, target[offset + position]) for position, size in enumerate(shape)
    )


def fit_inplace(td: Any, key: str, value: Any, present: torch.Tensor) -> torch.Tensor:
    """Convert ``value`` to a tensor that can be copied into the entry ``present``.

    Raises:
        RuntimeError: the value does not have the batch size as its leading dims.
        _InplaceWriteError: the value's shape does not fit the entry.
    """
    if not isinstance(present, torch.Tensor):
        raise _InplaceWriteError(MSG_INPLACE.format(key, td))
    if isinstance(value, torch.Tensor):
        if special.is_like(present, value):
            return value
        if special.rows(present) is not None and special.rows(value) is not None:
            raise _InplaceWriteError(MSG_INPLACE.format(key, td))
        check_batch(td, key, value)
    else:
        value = validate(td, key, value)
        if isinstance(value, CollectionProtocol):
            raise _InplaceWriteError(MSG_INPLACE.format(key, td))
    if not _expands(value.shape, present.shape):
        raise _InplaceWriteError(
            MSG_INPLACE_SHAPE.format(key, td, value.shape, present.shape)
        )
    if value.dim() > present.dim() or not value.numel():
        return value
    # The expanded value has the entry's shape even if both share memory.
    return value.expand(present.shape)


def copy_into(
    td: Any, source: Any, keys: Any = None, non_blocking: bool = False
) -> None:
    """Copy every leaf of ``source`` into the entry of ``td`` with the same path.

    Leaves that ``td`` lacks are ignored. ``keys`` are the paths to copy (None: all);
    the path of a nested tensordict copies all its leaves.

    Raises:
        KeyError: ``td`` lacks leaves that ``keys`` names, or all tensors of ``source``.
        RuntimeError: a leaf does not fit its entry; then nothing is copied.
    """
    if not td._is_dense and td._writes_through():
        td._copy_into(source, keys, non_blocking)
        return
    values = None
    if keys is None and isinstance(source, CollectionProtocol) and not _has_views(td):
        # The usual case: equal keys and shapes on both sides.
        values = align(td, source, True)
        targets = leaves(td)
        if values is not None and (
            [each.shape for each in targets] != [each.shape for each in values]
            or any([each._has_exclusive_keys for each in containers(source)])
        ):
            values = None
    held: list[tuple[Any, Any]] = []
    if values is None:
        targets, values = [], []
        absent: list[Any] = []
        _pair(td, source, keys, (), targets, values, held, absent)
        if absent and keys is not None:
            raise absent_key(MSG_NOT_IN_DESTINATION.format(absent[0]))
        if not targets and all(holds_values(each) for each, _ in held):
            _refuse_absent(absent)
    values = apart(targets, values)
    lists = [targets, values, non_blocking]
    if targets and special.foreach(torch._foreach_copy_, lists) is None:
        copy_all(targets, values, non_blocking)
    entries = [entry for entry, _ in held]
    for entry, value in zip(
        entries, apart(entries, [each for _, each in held]), strict=True
    ):
        entry.update_(value)


def apart(targets: list[Any], values: list[Any]) -> list[Any]:
    """Copy the values that are targets of other values, whose writes change them."""
    if torch.compiler.is_compiling():
        return values  # Tensors have no identity while torch traces.
    written = set(map(id, targets))
    return [
        value.clone() if value is not target and id(value) in written else value
        for target, value in zip(targets, values, strict=True)
    ]


def copy_all(targets: list[Any], values: list[Any], non_blocking: bool = False) -> None:
    """Copy each value into its target, in one call if no autograd graph is involved.

    One call would make all targets parts of one graph, and it has no derivative.
    """
    pairs = list(zip(targets, values, strict=True))
    if torch.is_grad_enabled() and any(
        [target.requires_grad or value.requires_grad for target, value in pairs]
    ):
        for target, value in refused_first(pairs, 0):
            target.copy_(value, non_blocking)
        return
    torch._foreach_copy_(targets, values, non_blocking)


def _refuse_absent(absent: list[Any]) -> None:
    """Raise an error if there are paths without an entry."""
    if absent:
        path = absent[0]
        raise absent_key(
            MSG_NOT_IN_DESTINATION.format(path[0] if len(path) == 1 else path)
        )


def _refuse_missing(
    td: CollectionProtocol,
    source: CollectionProtocol,
    keys: Iterable[NestedKeyLike],
    prefix: tuple[str, ...],
) -> None:
    """Raise an error if ``td`` lacks a leaf that some member of a lazy stack has.

    Missing leaves of another source are ignored.
    """
    stack = as_stack(source)
    for key in () if stack is None else member_paths(stack):
        path = (key,) if isinstance(key, str) else key
        if keys is not None and all(rest != path[: len(rest)] for rest in keys):
            continue
        if not contains(td, path):
            full = (*prefix, *path)
            raise absent_key(
                MSG_NOT_IN_DESTINATION.format(full if len(full) > 1 else full[0])
            )


def _pair(
    td: CollectionProtocol,
    source: CollectionProtocol | dict[str, Any],
    keys: Any,
    prefix: tuple[str, ...],
    targets: list[Any],
    values: list[Any],
    held: list[tuple[Any, Any]],
    absent: list[Any],
) -> None:
    """Collect the leaves of ``source`` and the entries of ``td`` to copy them into.

    Non-tensor entries and views are added to ``held`` with their values.
    """
    parts = None if td._is_dense else td._update_parts(source, True)
    if parts is not None:
        for member, part in zip(td._children(), parts, strict=True):
            found, missing = len(targets) + len(held), len(absent)
            _pair(member, part, keys, prefix, targets, values, held, absent)
            if keys is None and not prefix and len(targets) + len(held) == found:
                _refuse_absent(absent[missing:])
        return
    for key, value in _pairs_of(td, source, keys, prefix):
        path = (key,) if isinstance(key, str) else unravel_key_to_tuple(key)
        if not path:
            raise bad_key(key)
        rests = None
        if keys is not None:
            rests = [rest[len(path) :] for rest in keys if rest[: len(path)] == path]
            if any(path[: len(rest)] == rest for rest in keys):
                rests = None
            elif not rests:
                continue
        target, full = _entry_at(td, path), (*prefix, *path)
        if target is NO_DEFAULT:
            for leaf in leaf_paths(value, full):
                below = leaf[len(full) :]
                if rests is None or any(below[: len(rest)] == rest for rest in rests):
                    absent.append(leaf)
        elif holds_values(target):
            if not isinstance(value, (CollectionProtocol, dict)) or holds_values(value):
                held.append((target, target._copied(value)))
            else:
                _pair(target, value, rests, full, targets, values, held, absent)
        elif holds_values(value) and not isinstance(target, CollectionProtocol):
            raise TypeError(MSG_NOT_A_VALUE.format(full, type(value).__name__))
        elif isinstance(value, (CollectionProtocol, dict)):
            if not isinstance(target, CollectionProtocol) and _holds_nothing(value):
                continue
            if not isinstance(target, CollectionProtocol) or holds_values(value):
                raise _InplaceWriteError(MSG_INPLACE.format(full[-1], td))
            if rests is None and not target._is_dense and target._writes_through():
                held.append((target, value))
                continue
            _pair(target, value, rests, full, targets, values, held, absent)
        elif isinstance(target, CollectionProtocol):
            raise _InplaceWriteError(MSG_INPLACE.format(full[-1], td))
        else:
            values.append(_fitting(full, value, target))
            targets.append(target)


def _pairs_of(
    td: CollectionProtocol,
    source: CollectionProtocol | dict[str, Any],
    keys: Any,
    prefix: tuple[str, ...],
) -> list[tuple[Any, Any]]:
    """List the direct entries of ``source`` from which something may be copied."""
    if not isinstance(source, CollectionProtocol):
        return list(source.items())
    if not source._is_dense and td._is_dense:
        _refuse_missing(td, source, keys, prefix)
    if keys is None or source._is_dense:
        return list(source._entries().items())
    # Read only the entries to copy: the others may be impossible to stack.
    firsts = {rest[0] for rest in keys if rest}
    held_keys = [key for key in source._held_keys() if key in firsts]
    return [(key, source._get_entry(key, None)) for key in held_keys]


def _entry_at(td: CollectionProtocol, path: tuple[str, ...]) -> Any:
    """Return the entry at a nested key; NO_DEFAULT if it is missing."""
    target: Any = td
    for part in path:
        if not isinstance(target, CollectionProtocol):
            return NO_DEFAULT
        target = target._get_entry(part, NO_DEFAULT)
        if target is NO_DEFAULT:
            break
    return target


def _fitting(
    path: tuple[str, ...], value: object, target: torch.Tensor
) -> torch.Tensor:
    """Convert a value to a tensor that can be copied into the leaf ``target``."""
    if not isinstance(value, torch.Tensor):
        try:
            value = as_tensor(value, target.device)
        except (RuntimeError, TypeError, ValueError):
            name = type(value).__name__
            raise TypeError(MSG_NOT_A_VALUE.format(path, name)) from None
    if special.rows(target) is None:
        check_copy(path, value, target.shape)
    else:
        special.check_write(target, value, slice(None), torch.Size([]), 0)
    return value


def check_copy(path: tuple[str, ...], value: torch.Tensor, shape: torch.Size) -> None:
    """Raise an error if ``value`` cannot be copied into an entry of ``shape``."""
    if value.shape != shape and not _expands(value.shape, shape):
        name = path[0] if len(path) == 1 else path
        raise RuntimeError(MSG_UPDATE_COPY.format(value.shape, name, shape))


def leaf_paths(value: object, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """List the paths of the leaves in a value at ``path``; none for an empty one."""
    if isinstance(value, CollectionProtocol):
        if value._is_non_tensor:
            return [path]
        pairs = value._sample_entries().items()
    elif isinstance(value, dict):
        pairs = value.items()
    else:
        return [path]
    below = []
    for key, item in list(pairs):
        below += leaf_paths(item, (*path, *unravel_key_to_tuple(key)))
    return below


def _holds_nothing(value: object) -> bool:
    """Return whether a tensordict or dictionary has no leaf that could be written."""
    if isinstance(value, CollectionProtocol):
        return value.is_empty()
    return isinstance(value, dict) and all(map(_holds_nothing, value.values()))


def _has_views(td: CollectionProtocol) -> bool:
    """Return whether leaves of ``td`` may be copies, which do not show later writes."""
    return any(
        not collection._is_dense and collection._writes_through()
        for collection in containers(td)
    )


def fill(td: CollectionProtocol, value: object) -> None:
    """Fill every leaf with a number or a one-element tensor; None means zero."""
    if _has_views(td):
        _fill_entries(td, value)
        return
    held = leaves(td)
    if value is not None:
        if isinstance(value, (int, float)):
            check_number(held, value, False)
        for leaf in held:
            leaf.fill_(value)
    elif held:
        torch._foreach_zero_(held)


def _fill_entries(td: CollectionProtocol, value: object) -> None:
    """Do :func:`fill` if a tensordict may return copies of its entries."""
    for key, item in list(td._entries().items()):
        if isinstance(item, CollectionProtocol):
            _fill_entries(item, value)
            continue
        item.fill_(0 if value is None else value)
        if not td._is_dense and td._writes_through():
            td._set_entry(key, item)
