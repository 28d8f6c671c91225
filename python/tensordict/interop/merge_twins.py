"""The primitives that merge, copy and fill entries, in plain Python; see :mod:`.twins`.

All of them look first and write afterwards: a call that fails leaves every container
as it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict import ragged_leaves
from tensordict._unbatched import UnbatchedTensor
from tensordict.common import (
    MSG_BAD_KEY,
    MSG_INPLACE,
    MSG_LOCKED,
    MSG_PRESENT,
    _InplaceWriteError,
    check_number,
    refused_first,
)
from tensordict.interop.access_twins import check_batch, contains, validate
from tensordict.interop.key_twins import replace_entries
from tensordict.interop.twins import (
    align,
    containers,
    leaves,
    unravel_key_to_tuple,
)
from tensordict.protocol import NO_DEFAULT, CollectionProtocol

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
MSG_UPDATE_SIZE = (
    "update() got a source with batch size {} for a destination with batch size {}. "
    "Pass update_batch_size=True to replace the batch size."
)


class _Branch:
    """A container that an update will write into, and what it will get.

    One that is new has what it will be part of as ``above``.
    """

    def __init__(self, target: Any, above: Any = None) -> None:
        self.target = target
        self.above = above
        self.staged: dict[str, Any] = {}
        self.members: list[_Branch] = []


def update(
    td: Any,
    source: Any,
    clone: bool = False,
    inplace: bool = False,
    non_blocking: bool = False,
    is_leaf: Any = None,
    ignore_lock: bool = False,
) -> None:
    """Merge the entries of a container or mapping into ``td``: all of them, or none.

    Where both sides hold a container (or ``source`` a dict) the two are merged, unless
    ``is_leaf`` accepts the type of one and nothing is written in place; any other value
    replaces what is there, or with ``inplace`` is written into it.
    """
    if not inplace and is_leaf is None and td._is_dense and type(source) is dict:
        if td._is_locked and not ignore_lock:
            raise RuntimeError(MSG_LOCKED)
        stored = {}
        size, is_bound = td._batch_size, td._device is not None
        for key, value in source.copy().items():
            if key.__class__ is not str:
                break
            # What a plain tensor needs is looked at here, everything else there.
            if (
                is_bound
                or value.__class__ is not Tensor
                or value.is_nested
                or value.shape[: len(size)] != size
            ):
                if not isinstance(value, Tensor):
                    break
                value = validate(td, key, value, non_blocking)
            stored[key] = value.clone() if clone else value
        else:
            td._tensordict.update(stored)
            return
    _update_staged(td, source, clone, inplace, non_blocking, is_leaf, ignore_lock)


def _update_staged(
    td: Any,
    source: Any,
    clone: bool,
    inplace: bool,
    non_blocking: bool,
    is_leaf: Any,
    ignore_lock: bool,
) -> None:
    """:func:`update` of what is looked at, level by level, before all of it is stored."""
    root = _Branch(td)
    copies: list[tuple[Any, Any]] = []
    options = (clone, inplace, non_blocking, is_leaf, ignore_lock)
    _stage_all(root, source, options, copies)
    _check_staged(root)
    for target, value in copies:
        try:
            target.copy_(value, non_blocking=non_blocking)
        except RuntimeError as error:
            copy_failed(td, target, error)
    _commit(root)


def copy_failed(td: Any, leaf: torch.Tensor, error: RuntimeError) -> None:
    """Raise the error of a leaf that refuses to be written: expanded, requires grad.

    One without elements holds what was to be written into it.
    """
    if not leaf.numel():
        return
    for container in containers(td):
        for key, value in list(container._entries().items()):
            if value is leaf:
                message = MSG_INPLACE.format(key, container)
                raise _InplaceWriteError(f"{message}: {error}") from error
    raise error


def check_update_size(td: Any, source: Any) -> None:
    """Raise where the batch size of a source is another one than that of ``td``."""
    size, source_size = td.batch_size, source.batch_size
    common = min(len(size), len(source_size))
    if size[:common] != source_size[:common]:
        raise RuntimeError(MSG_UPDATE_SIZE.format(source_size, size))


def _stage_all(
    branch: _Branch, source: Any, options: Any, copies: list[tuple[Any, Any]]
) -> None:
    td = branch.target
    if td.is_locked and not options[1] and not options[4]:
        raise RuntimeError(MSG_LOCKED)
    parts = None
    if not td._is_dense:
        source = td._update_source(source)
        parts = td._update_parts(source)
    if parts is not None:
        for member, part in zip(td._children(), parts, strict=True):
            inner = _Branch(member)
            _stage_all(inner, part, options, copies)
            branch.members.append(inner)
        return
    if isinstance(source, CollectionProtocol):
        check_update_size(td, source)
        pairs = source._entries().items()
    else:
        pairs = source.items()
    for key, value in list(pairs):
        if isinstance(key, str):
            _stage(branch, key, value, options, copies)
            continue
        path = unravel_key_to_tuple(key)
        if not path:
            raise KeyError(MSG_BAD_KEY.format(key))
        inner = branch
        for part in path[:-1]:
            inner = _enter(inner, part, options[4])
        _stage(inner, path[-1], value, options, copies)


def _staged_or_present(branch: _Branch, key: str) -> Any:
    if branch.staged:
        found = branch.staged.get(key, NO_DEFAULT)
        if found is not NO_DEFAULT:
            return found
    return branch.target._get_entry(key, NO_DEFAULT)


def _enter(branch: _Branch, key: str, ignore_lock: bool) -> _Branch:
    """The branch of the container at ``key``, a new one where there is none."""
    td = branch.target
    found = _staged_or_present(branch, key)
    if isinstance(found, _Branch):
        return found
    if found is NO_DEFAULT:
        if td.is_locked and not ignore_lock:
            raise RuntimeError(MSG_LOCKED)
        above = td if branch.above is None else branch.above
        inner = _Branch(td._make_child(), above)
    elif not isinstance(found, CollectionProtocol):
        raise KeyError(MSG_PRESENT.format(key, td))
    else:
        inner = _Branch(found)
    branch.staged[key] = inner
    return inner


def _stage(
    branch: _Branch, key: str, value: Any, options: Any, copies: list[tuple[Any, Any]]
) -> None:
    clone, inplace, non_blocking, is_leaf, ignore_lock = options
    td = branch.target
    present = _staged_or_present(branch, key)
    if inplace and _is_one_value(present):
        value = validate(td, key, value, non_blocking)
        if not present._takes(value):
            raise _InplaceWriteError(MSG_INPLACE.format(key, td))
        copies.append((present, value))
        return
    if isinstance(value, (CollectionProtocol, dict)):
        if (
            isinstance(present, (CollectionProtocol, _Branch))
            and not _is_one_value(value)
            and not _is_one_value(present)
            and (inplace or is_leaf is None or not _is_whole(is_leaf, present, value))
        ):
            if isinstance(value, CollectionProtocol) and not value._is_dense:
                _stage_as(branch, key, value, present)
            _stage_all(_enter(branch, key, ignore_lock), value, options, copies)
            return
        if inplace and present is not NO_DEFAULT:
            raise _InplaceWriteError(MSG_INPLACE.format(key, td))
    elif inplace and present is not NO_DEFAULT and not td._is_unset_by(present, value):
        if isinstance(present, (CollectionProtocol, _Branch)):
            raise _InplaceWriteError(MSG_INPLACE.format(key, td))
        value = fit_inplace(td, key, value, present)
        if td._is_dense or not td._writes_through():
            copies.append((present, value))
            return
        # What is read of a view may be a copy: it is stored, which writes the parent.
        branch.staged[key] = value.to(present.dtype)
        return
    if td.is_locked and not ignore_lock:
        raise RuntimeError(MSG_LOCKED)
    stored = validate(td, key, value, non_blocking)
    if branch.above is not None and isinstance(stored, CollectionProtocol):
        branch.above._check_apart(key, stored)
    if clone and isinstance(stored, (torch.Tensor, CollectionProtocol)):
        stored = stored.clone()
    branch.staged[key] = stored


def _is_whole(is_leaf: Any, present: Any, value: Any) -> bool:
    """Whether an entry is replaced by a collection, and not merged with it."""
    held = present.target if isinstance(present, _Branch) else present
    return bool(is_leaf(type(held)) or is_leaf(type(value)))


def _stage_as(branch: _Branch, key: str, value: Any, present: Any) -> None:
    """Make of an entry what takes ``value`` as the source of an update."""
    if isinstance(present, _Branch) or branch.target.is_locked:
        return
    entry = value._entry_for(present)
    if entry is not present:
        branch.staged[key] = _Branch(entry)


def _is_one_value(value: Any) -> bool:
    return isinstance(value, CollectionProtocol) and value._is_non_tensor


def _check_staged(branch: _Branch) -> None:
    for member in branch.members:
        _check_staged(member)
    for key, value in branch.staged.items():
        if isinstance(value, _Branch):
            _check_staged(value)
        else:
            branch.target._check_entry(key, value)


def _commit(branch: _Branch) -> None:
    td = branch.target
    for member in branch.members:
        _commit(member)
    for key, value in branch.staged.items():
        if isinstance(value, _Branch):
            _commit(value)
            if td._get_entry(key, NO_DEFAULT) is not value.target:
                hang(td, key, value.target)
        elif isinstance(value, CollectionProtocol):
            hang(td, key, value)
        else:
            td._set_entry(key, value)


def hang(td: Any, key: str, value: Any) -> None:
    """Store a container that fits. A container without names takes those of ``value``."""
    td._set_entry(key, value)
    if value._has_names() and not td._has_names():
        td.names = value.names[: td.batch_dims]


# Writing in place ------------------------------------------------------------------


def _expands(shape: torch.Size, target: torch.Size) -> bool:
    """Whether a value of ``shape`` can be copied into an entry of shape ``target``."""
    if not shape.numel() and not target.numel():
        return True
    offset = len(target) - len(shape)
    if offset < 0:
        return False
    return all(
        size in (1, target[offset + position]) for position, size in enumerate(shape)
    )


def fit_inplace(td: Any, key: Any, value: Any, present: torch.Tensor) -> torch.Tensor:
    """The tensor made of ``value`` that can be copied into the entry ``present``.

    Raises:
        RuntimeError: it does not have the batch size as its leading dims.
        _InplaceWriteError: its shape does not fit the entry.
    """
    if not isinstance(present, torch.Tensor):
        raise _InplaceWriteError(MSG_INPLACE.format(key, td))
    if isinstance(value, torch.Tensor):
        if present.is_nested and value.is_nested:
            # Rows of equal shapes: as a whole they are equal only if made together.
            try:
                ragged_leaves.check_rows(present, slice(None), value)
            except RuntimeError as error:
                raise _InplaceWriteError(MSG_INPLACE.format(key, td)) from error
            return value
        if value.shape == present.shape:
            return value
        if not isinstance(value, UnbatchedTensor):
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
    # An element of the entry itself can be copied into all of it only if it is expanded.
    return value.expand(present.shape)


def copy_into(
    td: Any, source: Any, keys: Any = None, non_blocking: bool = False
) -> None:
    """Copy every leaf of ``source`` into the entry of ``td`` with the same path.

    Leaves that ``td`` does not have are left out; ``keys`` are the paths that are copied
    (None: all), a container's path for all in it.

    Raises:
        KeyError: ``td`` lacks some of them, and ``keys`` names them or it has no tensor
            of them.
        RuntimeError: a leaf does not fit its entry; then nothing is copied.
    """
    if not td._is_dense and td._writes_through():
        td._copy_into(source, keys, non_blocking)
        return
    values = None
    if keys is None and isinstance(source, CollectionProtocol) and not _has_views(td):
        # The usual case: the same keys on both sides, and the same shapes.
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
            raise KeyError(MSG_NOT_IN_DESTINATION.format(absent[0]))
        if not targets and all(_is_one_value(each) for each, _ in held):
            _refuse_absent(absent)
    if any(target.is_nested for target in targets):
        lists = [targets, values, non_blocking]
        ragged_leaves.foreach_leaves(torch._foreach_copy_, lists)
    elif targets:
        copy_all(targets, values, non_blocking)
    for target, value in held:
        target.update_(value)


def copy_all(targets: list[Any], values: list[Any], non_blocking: bool = False) -> None:
    """Copy each value into its target, in one call where no graph takes part in it.

    One call would make all targets parts of the graph of some, and it has no derivative.
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
    """Raise where there are paths that nothing is at."""
    if absent:
        path = absent[0]
        raise KeyError(
            MSG_NOT_IN_DESTINATION.format(path[0] if len(path) == 1 else path)
        )


def _refuse_missing(td: Any, source: Any, keys: Any, prefix: tuple[str, ...]) -> None:
    """Raise where ``td`` lacks a leaf that a member of a stack has.

    Those of an ordinary source are left out.
    """
    for key in source._member_paths():
        path = (key,) if isinstance(key, str) else key
        if keys is not None and all(rest != path[: len(rest)] for rest in keys):
            continue
        if not contains(td, path):
            full = (*prefix, *path)
            raise KeyError(
                MSG_NOT_IN_DESTINATION.format(full if len(full) > 1 else full[0])
            )


def _pair(
    td: Any,
    source: Any,
    keys: Any,
    prefix: tuple[str, ...],
    targets: list[Any],
    values: list[Any],
    held: list[tuple[Any, Any]],
    absent: list[Any],
) -> None:
    """Collect the leaves of ``source`` and the entries of ``td`` that they go to.

    Non-tensor entries and views come with their values to ``held``.
    """
    parts = None if td._is_dense else td._copy_parts(source)
    if parts is not None:
        for member, part in zip(td._children(), parts, strict=True):
            found, missing = len(targets) + len(held), len(absent)
            _pair(member, part, keys, prefix, targets, values, held, absent)
            if keys is None and not prefix and len(targets) + len(held) == found:
                _refuse_absent(absent[missing:])
        return
    if isinstance(source, CollectionProtocol):
        if not source._is_dense and td._is_dense:
            _refuse_missing(td, source, keys, prefix)
        if keys is not None and not source._is_dense:
            # What is not copied need not be stacked.
            firsts = {rest[0] for rest in keys if rest}
            held_keys = [key for key in source._held_keys() if key in firsts]
            pairs = {key: source._get_entry(key, None) for key in held_keys}.items()
        else:
            pairs = source._entries().items()
    else:
        pairs = source.items()
    for key, value in list(pairs):
        path = (key,) if isinstance(key, str) else unravel_key_to_tuple(key)
        if not path:
            raise KeyError(MSG_BAD_KEY.format(key))
        rests = None
        if keys is not None:
            rests = [rest[len(path) :] for rest in keys if rest[: len(path)] == path]
            if any(path[: len(rest)] == rest for rest in keys):
                rests = None
            elif not rests:
                continue
        target: Any = td
        for part in path:
            if not isinstance(target, CollectionProtocol):
                target = NO_DEFAULT
                break
            target = target._get_entry(part, NO_DEFAULT)
            if target is NO_DEFAULT:
                break
        full = (*prefix, *path)
        if target is NO_DEFAULT:
            for leaf in leaf_paths(value, full):
                below = leaf[len(full) :]
                if rests is None or any(below[: len(rest)] == rest for rest in rests):
                    absent.append(leaf)
        elif _is_one_value(target):
            if not isinstance(value, (CollectionProtocol, dict)) or _is_one_value(
                value
            ):
                held.append((target, target._copied(value)))
            else:
                _pair(target, value, rests, full, targets, values, held, absent)
        elif _is_one_value(value) and not isinstance(target, CollectionProtocol):
            raise TypeError(MSG_NOT_A_VALUE.format(full, type(value).__name__))
        elif isinstance(value, (CollectionProtocol, dict)):
            if not isinstance(target, CollectionProtocol) and _holds_nothing(value):
                continue
            if not isinstance(target, CollectionProtocol) or _is_one_value(value):
                raise _InplaceWriteError(MSG_INPLACE.format(full[-1], td))
            if rests is None and not target._is_dense and target._writes_through():
                held.append((target, value))
                continue
            _pair(target, value, rests, full, targets, values, held, absent)
        elif isinstance(target, CollectionProtocol):
            raise _InplaceWriteError(MSG_INPLACE.format(full[-1], td))
        else:
            if not isinstance(value, torch.Tensor):
                try:
                    value = torch.as_tensor(value, device=target.device)
                except (RuntimeError, TypeError, ValueError):
                    name = type(value).__name__
                    raise TypeError(MSG_NOT_A_VALUE.format(full, name)) from None
            if target.is_nested:
                ragged_leaves.check_rows(target, slice(None), value)
            else:
                check_copy(full, value, target.shape)
            targets.append(target)
            values.append(value)


def check_copy(path: tuple[str, ...], value: torch.Tensor, shape: torch.Size) -> None:
    """Raise where ``value`` cannot be copied into an entry of ``shape`` at ``path``."""
    if value.shape != shape and not _expands(value.shape, shape):
        name = path[0] if len(path) == 1 else path
        raise RuntimeError(MSG_UPDATE_COPY.format(value.shape, name, shape))


def leaf_paths(value: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The paths of what a value at ``path`` holds: none of an empty collection."""
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


def _holds_nothing(value: Any) -> bool:
    """Whether a collection or dictionary has no leaf that could be written."""
    if isinstance(value, CollectionProtocol):
        return not value._is_non_tensor and value.is_empty()
    return isinstance(value, dict) and all(map(_holds_nothing, value.values()))


def _has_views(td: Any) -> bool:
    """Whether leaves of ``td`` may be copies, which show nothing where it is written."""
    return any(
        not container._is_dense and container._writes_through()
        for container in containers(td)
    )


def fill(td: Any, value: Any) -> None:
    """Fill every leaf with a number or a tensor of one element; None is zero."""
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


def _fill_entries(td: Any, value: Any) -> None:
    """:func:`fill` where a container may give copies of its entries."""
    for key, item in list(td._entries().items()):
        if isinstance(item, CollectionProtocol):
            _fill_entries(item, value)
            continue
        item.fill_(0 if value is None else value)
        if not td._is_dense and td._writes_through():
            td._set_entry(key, item)


def replace_all(td: Any, other: Any) -> None:
    """Make the entries of ``td`` those of ``other``, a copy of its structure.

    Nested containers of ``td`` stay the same objects.
    """
    entries: dict[str, Any] = {}
    for key, value in list(other._entries().items()):
        present = td._get_entry(key, NO_DEFAULT)
        if isinstance(present, CollectionProtocol) and isinstance(
            value, CollectionProtocol
        ):
            replace_all(present, value)
            value = present
        entries[key] = value
    replace_entries(td, entries)
