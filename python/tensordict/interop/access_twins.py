"""Twins of the primitives that read and write entries. See :mod:`tensordict.interop.twins`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function_unary as is_special

from tensordict._rust import unravel_key_to_tuple as path_of
from tensordict._unbatched import UnbatchedTensor
from tensordict.common import (
    MSG_BAD_KEY,
    MSG_BATCH_MISMATCH,
    MSG_LOCKED,
    MSG_MEMBERSHIP,
    _KeyThroughLeafError,
    as_size,
    missing_key,
    value_of,
)
from tensordict.interop.index_twins import at_plan, known_plan
from tensordict.interop.twins import unravel_key_to_tuple
from tensordict.protocol import NO_DEFAULT, NONE_IF_MISSING, CollectionProtocol

# Reading -----------------------------------------------------------------------


def get(td: Any, key: Any, default: Any = NO_DEFAULT) -> Any:
    """The value at a nested key; ``default`` where an entry on the way is missing.

    Raises:
        KeyError: the key is no nested key, or is missing and there is no default.
        ValueError: an entry on the way is a leaf, and there is no default or it is
            ``NONE_IF_MISSING``.
    """
    if isinstance(key, str):
        if td._is_dense and key in td._tensordict:
            return td._tensordict[key]
        path: tuple[str, ...] = (key,)
    else:
        path = unravel_key_to_tuple(key)
        if not path:
            raise KeyError(MSG_BAD_KEY.format(key))
    value = td
    for position, part in enumerate(path):
        if not isinstance(value, CollectionProtocol):
            if default is not NO_DEFAULT and default is not NONE_IF_MISSING:
                return default
            previous = path[position - 1]
            msg = (
                f"{previous!r} is a {type(value).__name__}, not a tensordict, "
                f"so it has no entry {part!r}."
            )
            raise _KeyThroughLeafError(msg)
        parent = value
        if parent._is_dense:
            value = parent._tensordict.get(part, NO_DEFAULT)
        else:
            value = parent._get_entry(part, NO_DEFAULT)
        if value is NO_DEFAULT:
            if default is NO_DEFAULT:
                raise missing_key(parent, part)
            return None if default is NONE_IF_MISSING else default
    return value


def contains(td: Any, key: Any) -> bool:
    """Whether there is an entry at a nested key.

    Raises:
        TypeError: the key is no nested key.
    """
    path = (key,) if isinstance(key, str) else unravel_key_to_tuple(key)
    if not path:
        raise TypeError(MSG_MEMBERSHIP)
    value = td
    for part in path:
        if not isinstance(value, CollectionProtocol):
            return False
        if value._is_dense:
            value = value._tensordict.get(part, NO_DEFAULT)
        else:
            value = value._sample_entry(part)
        if value is NO_DEFAULT:
            return False
    return True


def getitem(td: Any, index: Any) -> Any:
    """``td[index]``: an entry where ``index`` is a nested key, else ``td._get_index``.

    Of a non-tensor entry it is the value that the entry holds.
    """
    if path_of(index):
        if td._is_dense and index in td._tensordict:
            entry = td._tensordict[index]
            return value_of(entry) if is_special(entry) else entry
        return value_of(get(td, index))
    if td._is_dense and not td._is_locked:
        try:
            plan = known_plan(td._batch_size, index, True)
        except TypeError:
            return td._get_index(index)  # raises what torch says of text
        return td if plan is None else at_plan(td, *plan, td._batch_size)
    return td._get_index(index)


# Writing -----------------------------------------------------------------------

MSG_SCALAR = (
    " Python scalars are stored as 0-dim tensors: to store a scalar in a tensordict "
    "with a non-empty batch size, expand it to the batch size or wrap it in "
    "NonTensorData (in a tensorclass, the nocast option stores scalars as they are)."
)


def check_batch(td: Any, key: Any, value: torch.Tensor) -> None:
    """Raise where a tensor does not have the batch size as its leading dims."""
    batch_size = td.batch_size
    if not batch_size:
        return
    if value.is_nested and value.layout is torch.strided:
        # A nested tensor of the old layout has no shape, but a size for even dims.
        if value.size(0) == batch_size[0] and _fits_rows(value, batch_size):
            return
        raise RuntimeError(MSG_BATCH_MISMATCH.format(batch_size, value.size(0), key))
    if value.shape[: len(batch_size)] != batch_size:
        msg = MSG_BATCH_MISMATCH.format(batch_size, value.shape, key)
        if not value.shape:
            msg += MSG_SCALAR
        raise RuntimeError(msg)


def _fits_rows(value: torch.Tensor, batch_size: torch.Size) -> bool:
    """Whether the rows of a strided nested tensor have the batch dims after the first."""
    if value.dim() < len(batch_size):
        return False
    rows: Any = value._nested_tensor_size()[:, : len(batch_size) - 1]
    return all(
        length in (-1, size)
        for row in rows.tolist()
        for length, size in zip(batch_size[1:], row, strict=True)
    )


def validate(td: Any, key: Any, value: Any, non_blocking: bool = False) -> Any:
    """The form of ``value`` that may be stored in ``td``, or an error.

    Tensors must have the batch size as their leading dims and are moved to the
    device. What is neither a tensor nor a container is converted by
    ``td._convert_value``, nested containers are fitted by ``td._fit_collection``.
    """
    if not isinstance(value, torch.Tensor):
        if isinstance(value, CollectionProtocol):
            return td._fit_collection(key, value, non_blocking)
        value = td._convert_value(key, value, non_blocking)
        if isinstance(value, CollectionProtocol):
            return value
    # An attribute costs less to compile than a property.
    is_dense = td._is_dense
    batch_size = td._batch_size if is_dense else td.batch_size
    if isinstance(value, UnbatchedTensor):
        value = value._with_batch_size(batch_size)
    elif batch_size and (
        value.is_nested or value.shape[: len(batch_size)] != batch_size
    ):
        check_batch(td, key, value)
    device = td._device if is_dense else td.device
    if device is not None and value.device != device:
        value = value.to(device, non_blocking=non_blocking)
    return value


def set_entry(
    td: Any,
    key: Any,
    value: Any,
    inplace: bool | None = False,
    non_blocking: bool = False,
    validated: bool = False,
    ignore_lock: bool = False,
) -> None:
    """Store ``value`` at a nested key, making the containers on the way.

    ``inplace`` true writes into the entry where there is one and stores the value
    otherwise; None is the same, but refuses a missing entry (``set_``). A locked
    container takes only writes into entries that it has.
    """
    if key.__class__ is str:
        if inplace is False and td._is_dense:
            is_collection = False
            # A tensor that fits needs no other function, which Dynamo would enter.
            if not validated and (
                td._device is not None
                or value.__class__ is not Tensor
                or value.is_nested
                or value.shape[: len(td._batch_size)] != td._batch_size
            ):
                value = validate(td, key, value, non_blocking)
                is_collection = isinstance(value, CollectionProtocol)
            if td._is_locked and not ignore_lock:
                raise RuntimeError(MSG_LOCKED)
            if is_collection:
                td._hang(key, value)
            else:
                td._tensordict[key] = value
            return
        path: tuple[str, ...] = (key,)
    else:
        path = unravel_key_to_tuple(key)
        if not path:
            raise KeyError(MSG_BAD_KEY.format(key))
    td._set_path(path, value, inplace, non_blocking, validated, ignore_lock)


# A new container ---------------------------------------------------------------

MSG_SOURCE = (
    "A TensorDict source is expected to be a TensorDictBase sub-type or a Mapping, "
    "found type(source)={}."
)


def init(
    td: Any, source: Any, batch_size: Any, device: Any, names: Any, non_blocking: bool
) -> None:
    """Set up the state of the new dense container ``td``, and store what it is made of.

    Entries under nested keys are stored after the others, in the order given.

    Raises:
        ValueError: ``source`` is no mapping, or ``batch_size`` no size.
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
            (key, value._source_twin() if _is_value(value) else value)
            for key, value in source._as_source().items()
        ]
    else:
        pairs = list(source.items())
    if any(isinstance(key, tuple) for key, _ in pairs):
        pairs.sort(key=_is_nested_pair)
    for key, value in pairs:
        set_entry(td, key, value, False, non_blocking)


def _is_value(value: Any) -> bool:
    return isinstance(value, CollectionProtocol) and value._is_non_tensor


def _is_nested_pair(pair: tuple[Any, Any]) -> bool:
    return isinstance(pair[0], tuple)


# A whole tree ------------------------------------------------------------------


def write_tree(
    td: Any, tree: Any, inplace: bool, checked: bool = False, nested: bool = True
) -> None:
    """Store every entry of ``tree`` in ``td``: all of them, or where one does not fit none.

    With ``inplace`` values are copied into the entries that are there. Without
    ``nested`` a direct entry that is a container replaces the one that is there.
    """
    writes: list[Any] = []
    _plan_writes(td, tree, inplace, checked, nested, writes)
    for container, key, value in writes:
        if not inplace and isinstance(value, CollectionProtocol):
            container._hang(key, value)
        else:
            set_entry(container, key, value, inplace, False, True)


def _plan_writes(
    td: Any, tree: Any, inplace: bool, checked: bool, nested: bool, writes: list[Any]
) -> None:
    if not inplace and td._is_locked:
        raise RuntimeError(MSG_LOCKED)
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
    """``value`` with the shape of the leaf that it is copied into, if it broadcasts."""
    tensors = isinstance(value, torch.Tensor) and isinstance(present, torch.Tensor)
    if not tensors or value.shape == present.shape or value.dim() > present.dim():
        return value
    dims = zip(value.shape[::-1], present.shape[::-1], strict=False)
    fits = all(own in (1, other) for own, other in dims)
    return value.expand(present.shape) if fits else value
