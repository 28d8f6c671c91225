"""Initialization of a tensordict from a mapping, and merging of updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict.primitives.checks import holds_values, is_tensorclass
from tensordict.primitives.common import (
    MSG_INPLACE,
    MSG_PRESENT,
    _InplaceWriteError,
    as_size,
)
from tensordict.primitives.copy import apart, copy_failed, fit_inplace
from tensordict.primitives.errors import (
    KeyMessageError,
    bad_key,
    locked_error,
    not_a_mapping,
)
from tensordict.primitives.keys import replace_entries
from tensordict.primitives.nested_key import unravel_key_to_tuple
from tensordict.primitives.protocol import (
    NO_DEFAULT,
    CollectionProtocol,
    as_stack,
)
from tensordict.primitives.set import set_entry, validate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.containers.collection import TensorCollection

MSG_SOURCE = (
    "A TensorDict source is expected to be a TensorDictBase sub-type or a Mapping, "
    "found type(source)={}."
)


def init(
    td: TensorCollection,
    source: object,
    batch_size: Any,
    device: Any,
    names: Sequence[str | None] | None,
    non_blocking: bool,
) -> None:
    """Set up the state of the new dense tensordict ``td``, and store its entries.

    Entries under nested keys are stored after the others, in their order.

    Raises:
        ValueError: ``source`` is no mapping, or ``batch_size`` is no size.
    """
    if not isinstance(source, (Mapping, CollectionProtocol)):
        raise ValueError(MSG_SOURCE.format(type(source)))
    td._tensordict = {}
    td._batch_size = as_size(batch_size)
    td._device = None if device is None else torch.device(device)
    td._td_dim_names = None
    if names is not None:
        td.names = names
    if isinstance(source, CollectionProtocol):
        pairs = [
            (key, value._source_twin() if holds_values(value) else value)
            for key, value in source._as_source().items()
        ]
    else:
        pairs = list(source.items())
    if any(isinstance(key, tuple) for key, _ in pairs):
        pairs.sort(key=_is_nested_pair)
    for key, value in pairs:
        set_entry(td, key, value, False, non_blocking)


def _is_nested_pair(pair: tuple[Any, Any]) -> bool:
    return isinstance(pair[0], tuple)


MSG_UPDATE_SIZE = (
    "update() got a source with batch size {} for a destination with batch size {}. "
    "Pass update_batch_size=True to replace the batch size."
)


class _Branch:
    """A tensordict that an update will write into, and the staged values.

    For a new tensordict, ``above`` is the existing tensordict that it will belong to.
    """

    def __init__(self, target: CollectionProtocol, above: Any = None) -> None:
        self.target = target
        self.above = above
        self.staged: dict[str, Any] = {}
        self.members: list[_Branch] = []


def update(
    td: TensorCollection,
    source: Any,
    clone: bool = False,
    inplace: bool = False,
    non_blocking: bool = False,
    is_leaf: Any = None,
    ignore_lock: bool = False,
) -> None:
    """Merge the entries of a tensordict or mapping into ``td``: all of them or none.

    If both sides have a tensordict at a key (or ``source`` a dict), the two are merged,
    unless ``is_leaf`` accepts one of their types and ``inplace`` is False. Any other
    value replaces the entry, or is written into its memory with ``inplace``.
    """
    if not inplace and is_leaf is None and td._is_dense and type(source) is dict:
        if td._is_locked and not ignore_lock:
            raise locked_error(td)
        stored = {}
        size, is_bound = td._batch_size, td._device is not None
        for key, value in source.copy().items():
            if key.__class__ is not str:
                break
            # Fast path for plain tensors; `validate` handles all other tensors.
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
    td: CollectionProtocol,
    source: CollectionProtocol | Mapping[str, Any],
    clone: bool,
    inplace: bool,
    non_blocking: bool,
    is_leaf: object,
    ignore_lock: bool,
) -> None:
    """Do :func:`update` in two steps: check and stage each value, then store all."""
    if not isinstance(source, (CollectionProtocol, dict)) and not hasattr(
        source, "items"
    ):
        raise not_a_mapping(source)
    root = _Branch(td)
    copies: list[tuple[Any, Any]] = []
    options = (clone, inplace, non_blocking, is_leaf, ignore_lock)
    _stage_all(root, source, options, copies)
    _check_staged(root)
    targets = [target for target, _ in copies]
    values = apart(targets, [value for _, value in copies])
    for target, value in zip(targets, values, strict=True):
        try:
            target.copy_(value, non_blocking=non_blocking)
        except RuntimeError as error:
            copy_failed(td, target, error)
    _commit(root)


def check_update_size(td: CollectionProtocol, source: CollectionProtocol) -> None:
    """Raise an error if the batch size of ``source`` differs from that of ``td``."""
    size, source_size = td.batch_size, source.batch_size
    common = min(len(size), len(source_size))
    if size[:common] != source_size[:common]:
        raise RuntimeError(MSG_UPDATE_SIZE.format(source_size, size))


def _stage_all(
    branch: _Branch, source: Any, options: Any, copies: list[tuple[Any, Any]]
) -> None:
    td = branch.target
    if td.is_locked and not options[1] and not options[4]:
        raise locked_error(td)
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
            raise bad_key(key)
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
    """Return the branch of the tensordict at ``key``; create one if it is missing."""
    td = branch.target
    staged = _staged_or_present(branch, key)
    if isinstance(staged, _Branch):
        return staged
    if staged is NO_DEFAULT:
        if td.is_locked and not ignore_lock:
            raise locked_error(td)
        above = td if branch.above is None else branch.above
        inner = _Branch(td._make_child(), above)
    elif not isinstance(staged, CollectionProtocol):
        raise KeyMessageError(MSG_PRESENT.format(key, td))
    else:
        inner = _Branch(staged)
    branch.staged[key] = inner
    return inner


def _stage(
    branch: _Branch,
    key: str,
    value: object,
    options: Any,
    copies: list[tuple[Any, Any]],
) -> None:
    clone, inplace, non_blocking, is_leaf, ignore_lock = options
    td = branch.target
    present = _staged_or_present(branch, key)
    if inplace and holds_values(present):
        value = validate(td, key, value, non_blocking)
        if not present._takes(value):
            raise _InplaceWriteError(MSG_INPLACE.format(key, td))
        copies.append((present, value))
        return
    if isinstance(value, (CollectionProtocol, dict)):
        if (
            isinstance(present, (CollectionProtocol, _Branch))
            and not holds_values(value)
            and not holds_values(present)
            and (inplace or is_leaf is None or not _replaces(is_leaf, present, value))
        ):
            if isinstance(value, CollectionProtocol) and not value._is_dense:
                _stage_as(branch, key, value, present)
            _stage_all(_enter(branch, key, ignore_lock), value, options, copies)
            return
        if inplace and present is not NO_DEFAULT:
            raise _InplaceWriteError(MSG_INPLACE.format(key, td))
    elif inplace and present is not NO_DEFAULT and not _unsets(td, present, value):
        if isinstance(present, (CollectionProtocol, _Branch)):
            raise _InplaceWriteError(MSG_INPLACE.format(key, td))
        value = fit_inplace(td, key, value, present)
        if td._is_dense or not td._writes_through():
            copies.append((present, value))
            return
        # An entry of a view may be a copy: storing it writes into the parent.
        branch.staged[key] = value.to(present.dtype)
        return
    if td.is_locked and not ignore_lock:
        raise locked_error(td)
    stored = validate(td, key, value, non_blocking)
    if branch.above is not None and isinstance(stored, CollectionProtocol):
        branch.above._check_apart(key, stored)
    if clone and isinstance(stored, (torch.Tensor, CollectionProtocol)):
        stored = stored.clone()
    branch.staged[key] = stored


def _unsets(td: CollectionProtocol, present: object, value: object) -> bool:
    """Return whether ``value`` removes a field, which has no tensor to be written to."""
    return value is None and not isinstance(present, Tensor) and is_tensorclass(td)


def _replaces(is_leaf: Callable[..., Any], present: object, value: object) -> bool:
    """Return whether a tensordict replaces an entry instead of merging with it."""
    held = present.target if isinstance(present, _Branch) else present
    return bool(is_leaf(type(held)) or is_leaf(type(value)))


def _stage_as(
    branch: _Branch, key: str, value: CollectionProtocol, present: object
) -> None:
    """Replace an entry by one that can take ``value`` as the source of an update."""
    if isinstance(present, _Branch) or branch.target.is_locked:
        return
    stack = as_stack(value)
    if stack is None:
        return
    entry: Any = present
    size, dim = entry.batch_size, stack.stack_dim
    # A dense entry becomes a stack, whose members take those of the source.
    if entry._is_dense and len(size) > dim and size[dim] == len(stack.tensordicts):
        branch.staged[key] = _Branch(entry.to_lazystack(dim))


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
    """Store a nested tensordict that fits. A ``td`` without names takes its names."""
    td._set_entry(key, value)
    if value._has_names() and not td._has_names():
        td.names = value.names[: td.batch_dims]


def replace_all(td: CollectionProtocol, other: CollectionProtocol) -> None:
    """Replace the entries of ``td`` by those of ``other``, a copy of its structure.

    Nested tensordicts of ``td`` stay the same objects.
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
