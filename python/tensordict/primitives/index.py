"""Indexing of the batch dims, and writes at an index."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict import _rust
from tensordict.primitives import special
from tensordict.primitives.checks import is_branch
from tensordict.primitives.common import (
    NO_TAIL,
    _spliced_names,
    check_number,
    refused_first,
)
from tensordict.primitives.deprecation import warn_of_cast
from tensordict.primitives.feature_index import features_at, fill_features
from tensordict.primitives.index_items import (
    _MASK_DTYPES,
    _WHOLE,
    MSG_BROADCAST,
    MSG_NO_BATCH_DIMS,
    MSG_NOT_ENOUGH,
    MSG_OUT_OF_BOUNDS,
    MSG_TOO_MANY,
    _is_whole,
    fills,
    holds_text,
    is_first_class,
    refuse_cast,
    refuse_text,
    sorted_out,
)
from tensordict.primitives.index_writes import (
    fill_fitting,
    filled_with,
    fit_source,
    is_common,
    is_place,
    is_plain,
    pair_fitting,
    plan_collection,
    plan_fill,
)
from tensordict.primitives.leaf_loops import on_plain
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.tree import new

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.containers.collection import TensorCollection
    from tensordict.primitives.protocol import BatchIndex

MSG_SHAPE = "{}: the shape must be numbers or one sequence of numbers, got {!r}."
MSG_MASK = (
    "The shape of the mask {} at index {} does not match the shape of the indexed "
    "tensor {} at index {}"
)


def _slice_length(item: slice, length: int) -> int:
    """Return the number of elements that a slice takes of a dim, as in torch."""
    step = 1 if item.step is None else operator.index(item.step)
    if step <= 0:
        msg = "step must be greater than zero"
        raise ValueError(msg)
    start = 0 if item.start is None else operator.index(item.start)
    stop = length if item.stop is None else operator.index(item.stop)
    if start < 0:
        start = max(start + length, 0)
    if stop < 0:
        stop = max(stop + length, 0)
    start, stop = min(start, length), min(stop, length)
    return (stop - start + step - 1) // step if stop > start else 0


def index_plan(
    batch_size: torch.Size, index: Any, td: object = None
) -> tuple[Any, torch.Size, tuple[int, ...]] | None:
    """Return the plan of ``index`` on ``batch_size``; None if it takes everything.

    Pass ``td`` for a read: then an index of an empty batch size raises the error of a
    read, otherwise torch's error. ``td=True`` stands for a tensordict whose leaves must
    not be read: a string in the index then raises a TypeError.

    Raises:
        IndexError: the index does not fit the batch size, or is no index.
        RuntimeError: it has two ellipses, or there is no dim to index.
        TypeError: it contains strings.
        ValueError: a slice has a step that is not positive.
    """
    ndim = len(batch_size)
    kind = type(index)
    if kind is int and ndim:
        length = batch_size[0]
        if index >= length or index < -length:
            raise IndexError(MSG_OUT_OF_BOUNDS.format(index, 0, length))
        return index, batch_size[1:], tuple(range(1, ndim))
    if kind is slice and ndim:
        if _is_whole(index):
            return None
        length = _slice_length(index, batch_size[0])
        return index, torch.Size([length, *batch_size[1:]]), tuple(range(ndim))
    if ndim or td is None:
        if td is not None and isinstance(index, tuple):
            _refuse_text(td, index)
        return _index_plan(batch_size, index)
    try:
        return _index_plan(batch_size, index)
    except (IndexError, TypeError):
        raise RuntimeError(MSG_NO_BATCH_DIMS.format(index)) from None


def known_plan(
    batch_size: torch.Size, index: BatchIndex, td: object = None
) -> tuple[Any, torch.Size, tuple[int, ...]] | None:
    """Return the primitive's plan; lists in ``index`` stay lists, not tensors.

    The compiler treats numbers in lists as constants, so it knows the values at them.
    """
    plan = _rust.index_plan(batch_size, index, td)
    if plan is None or not _has_lists(index):
        return plan
    at = plan[0]
    if isinstance(at, tuple):
        return tuple([_as_list(item) for item in at]), plan[1], plan[2]
    return _as_list(at), plan[1], plan[2]


def _has_lists(index: object) -> bool:
    """Return whether an index contains lists and no tensors."""
    if type(index) is not tuple:
        return type(index) in (list, range)
    kinds = set(map(type, index))
    return bool(kinds & {list, range}) and torch.Tensor not in kinds


def _as_list(item: object) -> Any:
    return item.tolist() if isinstance(item, torch.Tensor) else item


def _refuse_text(td: Any, index: tuple[Any, ...]) -> None:
    """Raise torch's error for a string in an index, if the first entry is a tensor."""
    if holds_text(index):
        if td is True:
            raise TypeError(index)
        first = _first_entry(td)
        if isinstance(first, torch.Tensor):
            first[index]


def _first_entry(td: CollectionProtocol) -> Any:
    """Return the first entry that is no nested tensordict; None if there is none."""
    for value in td._entries().values():
        is_nested = is_branch(value)
        found = _first_entry(value) if is_nested else value
        if found is not None:
            return found
    return None


def _index_plan(
    batch_size: torch.Size, index: BatchIndex
) -> tuple[Any, torch.Size, tuple[int, ...]] | None:
    ndim = len(batch_size)
    items, used, ellipsis_at = sorted_out(index)
    if used > ndim:
        if ellipsis_at >= 0:
            raise RuntimeError(MSG_NOT_ENOUGH)
        raise IndexError(MSG_TOO_MANY.format(ndim))
    refuse_text(items)
    if ellipsis_at >= 0:
        items[ellipsis_at : ellipsis_at + 1] = [_WHOLE] * (ndim - used)
        if ellipsis_at + ndim - used == len(items):
            del items[ellipsis_at:]
    # Second pass: the dims of the result. `dims` has (size, source dim) for each, or
    # None at a tensor; `tensors` has (shape, source dim, whether it is a mask) for
    # those.
    dims: list[Any] = []
    tensors: list[tuple[Any, int, bool]] = []
    out: list[Any] = []
    dim, takes_all = 0, True
    for item in items:
        if isinstance(item, slice):
            dims.append((_slice_length(item, batch_size[dim]), dim))
            takes_all = takes_all and _is_whole(item)
            out.append(item)
            dim += 1
            continue
        takes_all = False
        if item is None:
            dims.append((1, -1))
            out.append(item)
        elif isinstance(item, bool):
            dims.append(None)
            tensors.append((torch.Size([int(item)]), -1, False))
            out.append(item)
        elif isinstance(item, torch.Tensor):
            if item.dtype in _MASK_DTYPES:
                _check_mask(item, batch_size, dim)
                for part in item.nonzero(as_tuple=True):
                    dims.append(None)
                    tensors.append((part.shape, dim, True))
                    out.append(part)
                    dim += 1
            elif not item.dim():
                # The leaves check its range, as for every index tensor.
                out.append(item.item())
                dim += 1
            else:
                dims.append(None)
                tensors.append((item.shape, dim, False))
                out.append(item)
                dim += 1
        else:
            if not is_first_class(item):
                _check_bounds(item, dim, batch_size[dim])
            out.append(item)
            dim += 1
    if takes_all:
        return None
    if tensors:
        dims = _advanced_dims(dims, tensors)
    dims += [(batch_size[d], d) for d in range(dim, ndim)]
    size = torch.Size([d[0] for d in dims])
    return out[0] if len(out) == 1 else tuple(out), size, tuple(d[1] for d in dims)


def _check_bounds(item: Any, dim: int, length: int) -> None:
    if item >= length or item < -length:
        raise IndexError(MSG_OUT_OF_BOUNDS.format(item, dim, length))


def _check_mask(mask: torch.Tensor, batch_size: torch.Size, dim: int) -> None:
    """Raise an error if a mask does not have the sizes of the dims from ``dim`` on."""
    shape = batch_size[dim : dim + mask.dim()]
    if mask.shape != shape:
        at = _first_difference(mask.shape, shape)
        raise IndexError(
            MSG_MASK.format(list(mask.shape), at, list(batch_size), dim + at)
        )


def _first_difference(shape: torch.Size, other: torch.Size) -> int:
    for at, (length, expected) in enumerate(zip(shape, other, strict=True)):
        if length != expected:
            return at
    return 0


def _advanced_dims(
    dims: list[Any], tensors: list[tuple[Any, int, bool]]
) -> list[tuple[int, int]]:
    """Replace the None in ``dims`` by the broadcast dims of the index tensors.

    The new dims stand at the place of adjacent tensors, and otherwise lead. A new dim
    takes the name of an indexed dim if only that dim's tensor varies along it.
    """
    ndim = max(len(shape) for shape, _, _ in tensors)
    block: list[tuple[int, int]] = []
    if len(tensors) == 1 and ndim == 1:
        # No comparison with 1: the compiler does not know how many elements a mask has.
        shape, dim, _ = tensors[0]
        block = [(shape[0], dim)]
        ndim = 0
    for back in range(ndim, 0, -1):
        length, source, claims = 1, -1, 0
        for shape, dim, is_mask in tensors:
            if len(shape) < back:
                continue
            length_of_tensor = shape[-back]
            if length_of_tensor != 1:
                if length not in (1, length_of_tensor):
                    shapes = ", ".join(str(list(t[0])) for t in tensors)
                    raise IndexError(MSG_BROADCAST.format(shapes))
                length = length_of_tensor
            if length_of_tensor != 1 or is_mask:
                claims += 1
                varying = sum(1 for other in shape if other != 1)
                source = dim if varying == 1 or is_mask else -1
        block.append((length, source if claims == 1 else -1))
    places = [at for at, d in enumerate(dims) if d is None]
    first = places[0] if places[-1] - places[0] + 1 == len(places) else 0
    rest = [d for d in dims if d is not None]
    return [*rest[:first], *block, *rest[first:]]


def index_shape(batch_size: torch.Size, index: BatchIndex) -> torch.Size:
    """Return the batch size of the result of ``index`` on ``batch_size``."""
    plan = index_plan(batch_size, index)
    return batch_size if plan is None else plan[1]


def index(td: Any, index: Any) -> Any:
    """Return the entries of ``td`` at ``index`` as a tensordict; ``td`` for all rows.

    The result is unlocked. Leaves are views or copies, as torch makes them.
    """
    if not td._is_dense:
        return td._index(index)
    # A plan of known arguments is a constant of compiled code.
    try:
        plan = known_plan(td._batch_size, index, True)
    except TypeError:
        plan = index_plan(td._batch_size, index, td)  # raises torch's error
    except IndexError as error:
        return features_at(td, index, error)
    if plan is None:
        return td
    return at_plan(td, *plan, td._batch_size)


def at_plan(
    td: CollectionProtocol,
    index: Any,
    size: torch.Size,
    names: object,
    batch_size: torch.Size,
) -> CollectionProtocol:
    """Return a dense tensordict at a planned index of the root of the walk.

    ``batch_size`` is the root's batch size, and ``size`` the result's.
    """
    old, own_names, own_size = td._batch_size, td._td_dim_names, size
    if old != batch_size:
        own_size = torch.Size([*size, *old[len(batch_size) :]])
    held = td._tensordict.copy()
    entries, others = on_plain(held, "__getitem__", (index,), NO_TAIL, 0)
    for key in others:
        value = held[key]
        if isinstance(value, CollectionProtocol):
            nested: Any = value
            entries[key] = (
                at_plan(nested, index, size, names, batch_size)
                if nested._is_dense
                else nested._index(index)
            )
        else:
            entries[key] = special.at(value, index, own_size)
    if own_names is not None:
        own_names = _spliced_names(own_names, names, len(batch_size), own_size)
    return new(td.__class__, entries, own_size, td._device, own_names)


def set_index(td: Any, index: Any, value: object) -> None:
    """Write ``value`` into every entry of ``td`` at ``index``.

    ``value`` is a number or tensor for every leaf, or a tensordict. Then entries that
    only ``td`` has stay, and entries that only ``value`` has are created in ``td``,
    zero outside of the index. Everything is checked before the first write.

    Raises:
        RuntimeError: sizes do not fit, or an entry would be created in a locked
            tensordict.
    """
    if not td._is_dense and td._writes_through():
        td._write_index(index, value)
        return
    batch_size = td.batch_size
    if isinstance(index, tuple):
        _refuse_text(td, index)
    is_filled = not is_branch(value)
    try:
        plan = index_plan(batch_size, index)
    except IndexError as error:
        if not is_filled:
            raise
        fill_features(td, index, filled_with(value), error)
        return
    if plan is None:
        size = batch_size
        at: Any = (_WHOLE,) * len(batch_size)
    else:
        at, size, _ = plan
    number: Any = None
    writes: list[tuple[Any, str, Any, Any]] = []
    fresh: list[tuple[Any, str, Any]] = []
    if not is_filled:
        value = fit_source(batch_size, index, size, value)
        plan_collection(td, at, size, len(batch_size), value, writes, fresh)
    else:
        number, value = value, filled_with(value)
        plan_fill(td, at, size, len(batch_size), value, writes)
        if isinstance(value, (int, float)):
            entries = [entry for _, _, entry, _ in writes]
            check_number(
                [e for e in entries if isinstance(e, torch.Tensor)], value, True
            )
    for position, (parent, key, entry, item) in enumerate(writes):
        if is_plain(entry) and is_plain(item) and item.dtype != entry.dtype:
            if fills(index, item):
                writes[position] = parent, key, entry, item.to(entry.dtype)
            else:
                refuse_cast(at, entry, item)
    has_values = any([isinstance(e, CollectionProtocol) for _, _, e, _ in writes])
    # The compiler cannot trace a warning.
    if is_filled and has_values and not torch.compiler.is_compiling():
        warn_of_cast(number)
    for parent, key, entry, item in refused_first(writes, 2):
        if isinstance(entry, CollectionProtocol):
            written = entry._written_at(at, item)
            if written is not entry:
                parent._set_entry(key, written)
        else:
            special.write_at(entry, at, item)
    for parent, key, item in fresh:
        parent._set_entry(key, item)


def write_fitting(
    td: TensorCollection, index: BatchIndex, source: CollectionProtocol
) -> bool:
    """Write the leaves of ``source`` into ``td`` at ``index`` if all fit exactly.

    Each leaf needs a place of its shape, and all tensordicts the same class. The index
    must have no ellipsis, whose meaning depends on the leaf. Return whether the leaves
    were written.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not td._is_dense or not all([is_place(part) for part in parts]):
        return False
    batch_size = td._batch_size
    try:
        plan = index_plan(batch_size, index)
    except (IndexError, RuntimeError, TypeError, ValueError):
        return False
    at: Any = (_WHOLE,) * len(batch_size)
    at, size = (at, batch_size) if plan is None else plan[:2]
    casts = all([part is None or type(part) in (int, slice) for part in parts])
    writes: list[tuple[Any, Any]] = []
    if not pair_fitting(td, source, size, len(batch_size), casts, writes):
        return False
    for entry, item in refused_first(writes, 0):
        entry[at] = item
    return True


def write_members(members: list[Any], places: list[Any], parts: list[Any]) -> bool:
    """Write a number or a tensordict into each member at its place, if all fit.

    Return whether the parts were written. If one write is not plain, nothing is
    written.
    """
    if torch.compiler.is_compiling():
        # During tracing, no write runs, so a failing one changes nothing.
        for member, place, part in zip(members, places, parts, strict=True):
            set_index(member, place, part)
        return True
    planned: list[tuple[Any, Any, Any]] = []
    values: list[tuple[Any, Any]] = []
    for member, place, part in zip(members, places, parts, strict=True):
        items = place if isinstance(place, tuple) else (place,)
        if not member._is_dense or not all([is_place(item) for item in items]):
            return False
        size = member._batch_size
        try:
            plan = index_plan(size, place)
        except (IndexError, RuntimeError, TypeError, ValueError):
            return False
        at: Any = (_WHOLE,) * len(size)
        at, left = (at, size) if plan is None else plan[:2]
        casts = all([item is None or type(item) in (int, slice) for item in items])
        writes: list[tuple[Any, Any]] = []
        if type(part) in (int, float, bool):
            fits = is_common(part) and fill_fitting(member, part, writes)
        else:
            fits = isinstance(part, CollectionProtocol) and part._is_dense
            taken = values if type(place) is tuple and not place else None
            fits = fits and pair_fitting(
                member, part, left, len(size), casts, writes, False, taken
            )
        if not fits or any([entry.requires_grad for entry, _ in writes]):
            return False
        planned += [(entry, at, item) for entry, item in writes]
    for entry, at, item in planned:
        entry[at] = item
    for entry, item in values:
        entry._put(item)
    return True


def view_shape(batch_size: torch.Size, shape: Sequence[int]) -> torch.Size | None:
    """Return ``shape`` with its -1 replaced, checked against ``batch_size``.

    ``shape`` is a sequence of numbers, or contains one. Return None for a dtype.

    Raises:
        RuntimeError: the product of the sizes is not the number of elements.
    """
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = shape[0]
        if isinstance(shape, torch.dtype):
            return None
        if isinstance(shape, np.integer):
            shape = [shape]
    # torch.Size would keep NumPy numbers, so convert them.
    try:
        shape = torch.Size([int(n) if isinstance(n, np.integer) else n for n in shape])
    except TypeError as error:
        raise TypeError(MSG_SHAPE.format(error, shape)) from None
    total = 1
    for length in batch_size:
        total *= length
    known_total, free = 1, -1
    for position, length in enumerate(shape):
        if length == -1:
            if free >= 0:
                msg = "only one dimension can be inferred"
                raise RuntimeError(msg)
            free = position
        else:
            known_total *= length
    if free >= 0 and known_total > 0 and total % known_total == 0:
        return torch.Size([*shape[:free], total // known_total, *shape[free + 1 :]])
    if free >= 0 or known_total != total or any(length < 0 for length in shape):
        msg = f"invalid shape {list(shape)} for a batch of {total} elements"
        raise RuntimeError(msg)
    return shape
