"""Index the batch dims of a collection, and write at an index."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict import _rust
from tensordict.primitives import ragged_leaves
from tensordict.primitives.common import (
    NO_TAIL,
    _spliced_names,
    check_number,
    not_a_value,
    refused_first,
)
from tensordict.primitives.deprecation import warn_of_cast
from tensordict.primitives.errors import at_key, locked_error
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
    refuse_cast,
    refuse_text,
    sorted_out,
)
from tensordict.primitives.leaf_loops import on_plain
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.tree import new
from tensordict.primitives.unbatched import UnbatchedTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.primitives.protocol import BatchIndex

MSG_MASK = (
    "The shape of the mask {} at index {} does not match the shape of the indexed "
    "tensor {} at index {}"
)


def _slice_length(item: slice, length: Any) -> Any:
    """The number of elements that a slice takes of a dim, as torch counts them."""
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
    """The plan of ``index`` on ``batch_size``; None where it takes everything as it is.

    With ``td``, which is read, an index of a batch size without dims is the error of a
    read, otherwise it is torch's. True stands for it where its leaves, which say what is
    wrong with text in an index, are not to be read: such an index is a TypeError then.

    Raises:
        IndexError: the index does not fit the batch size, or is none.
        RuntimeError: it has two ellipses, or there is no dim to index.
        TypeError: it holds strings.
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
    """The same by the primitive, without tensors where there are none in ``index``.

    Numbers in lists are constants to the compiler, which knows the values at them, too.
    """
    plan = _rust.index_plan(batch_size, index, td)
    if plan is None or not _has_lists(index):
        return plan
    at = plan[0]
    if isinstance(at, tuple):
        return tuple([_as_list(item) for item in at]), plan[1], plan[2]
    return _as_list(at), plan[1], plan[2]


def _has_lists(index: object) -> bool:
    """Return whether there are lists, and no tensors, among the items of an index."""
    if type(index) is not tuple:
        return type(index) in (list, range)
    kinds = set(map(type, index))
    return bool(kinds & {list, range}) and torch.Tensor not in kinds


def _as_list(item: object) -> Any:
    return item.tolist() if isinstance(item, torch.Tensor) else item


def _refuse_text(td: Any, index: tuple[Any, ...]) -> None:
    """Raise what torch says of a string in an index, where a tensor is the first entry."""
    if holds_text(index):
        if td is True:
            raise TypeError(index)
        first = _first_entry(td)
        if isinstance(first, torch.Tensor):
            first[index]


def _first_entry(td: CollectionProtocol) -> Any:
    """The first entry that is no collection of others; None without one."""
    for value in td._entries().values():
        is_nested = isinstance(value, CollectionProtocol) and not value._is_non_tensor
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
    # Second pass: the dims of the result. `dims` has (size, source dim) of each, with
    # None where a tensor stands; `tensors` has (shape, source dim, is a mask) of those.
    dims: list[Any] = []
    tensors: list[tuple[Any, int, bool]] = []
    out: list[Any] = []
    dim, whole = 0, True
    for item in items:
        if isinstance(item, slice):
            dims.append((_slice_length(item, batch_size[dim]), dim))
            whole = whole and _is_whole(item)
            out.append(item)
            dim += 1
            continue
        whole = False
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
                # Like every index tensor it is compared with the size by the leaves.
                out.append(item.item())
                dim += 1
            else:
                dims.append(None)
                tensors.append((item.shape, dim, False))
                out.append(item)
                dim += 1
        else:
            length = batch_size[dim]
            if item >= length or item < -length:
                raise IndexError(MSG_OUT_OF_BOUNDS.format(item, dim, length))
            out.append(item)
            dim += 1
    if whole:
        return None
    if tensors:
        dims = _advanced_dims(dims, tensors)
    dims += [(batch_size[d], d) for d in range(dim, ndim)]
    size = torch.Size([d[0] for d in dims])
    return out[0] if len(out) == 1 else tuple(out), size, tuple(d[1] for d in dims)


def _check_mask(mask: torch.Tensor, batch_size: torch.Size, dim: int) -> None:
    """Raise where a mask has not the sizes of the batch dims from ``dim`` on."""
    shape = batch_size[dim : dim + mask.dim()]
    if mask.shape != shape:
        at = _first_difference(mask.shape, shape)
        raise IndexError(
            MSG_MASK.format(list(mask.shape), at, list(batch_size), dim + at)
        )


def _first_difference(shape: Any, other: Any) -> int:
    for at, (length, expected) in enumerate(zip(shape, other, strict=True)):
        if length != expected:
            return at
    return 0


def _advanced_dims(
    dims: list[Any], tensors: list[tuple[Any, int, bool]]
) -> list[tuple[int, int]]:
    """``dims`` with the broadcast dims of the index tensors in place of the None.

    They stand where the tensors stood if those are adjacent, and lead otherwise. One of
    them takes the name of an indexed dim where only that dim's tensor varies along it.
    """
    ndim = max(len(shape) for shape, _, _ in tensors)
    block: list[tuple[int, int]] = []
    if len(tensors) == 1 and ndim == 1:
        # Not compared with 1: the compiler does not know how many elements a mask takes.
        shape, dim, _ = tensors[0]
        block = [(shape[0], dim)]
        ndim = 0
    for back in range(ndim, 0, -1):
        length, source, claims = 1, -1, 0
        for shape, dim, is_mask in tensors:
            if len(shape) < back:
                continue
            own = shape[-back]
            if own != 1:
                if length not in (1, own):
                    shapes = ", ".join(str(list(t[0])) for t in tensors)
                    raise IndexError(MSG_BROADCAST.format(shapes))
                length = own
            if own != 1 or is_mask:
                claims += 1
                varying = sum(1 for other in shape if other != 1)
                source = dim if varying == 1 or is_mask else -1
        block.append((length, source if claims == 1 else -1))
    places = [at for at, d in enumerate(dims) if d is None]
    first = places[0] if places[-1] - places[0] + 1 == len(places) else 0
    rest = [d for d in dims if d is not None]
    return [*rest[:first], *block, *rest[first:]]


def index_shape(batch_size: torch.Size, index: BatchIndex) -> torch.Size:
    """The batch size of what ``index`` takes of a container of ``batch_size``."""
    plan = index_plan(batch_size, index)
    return batch_size if plan is None else plan[1]


def index(td: Any, index: Any) -> Any:
    """The collection of every entry of ``td`` at ``index``; ``td`` if that is all.

    Unlocked. Leaves are views or copies, as torch makes them of such an index.
    """
    if not td._is_dense:
        return td._index(index)
    # A plan of what is known is made and not traced.
    try:
        plan = known_plan(td._batch_size, index, True)
    except TypeError:
        plan = index_plan(td._batch_size, index, td)  # raises what torch says
    except IndexError as error:
        return features_at(td, index, error)
    if plan is None:
        return td
    return at_plan(td, *plan, td._batch_size)


def at_plan(
    td: Any, index: Any, size: torch.Size, names: Any, batch_size: torch.Size
) -> Any:
    """A dense collection at a planned index of the root of the walk.

    ``batch_size`` is that of the root, ``size`` what becomes of it.
    """
    old, own_names, own = td._batch_size, td._td_dim_names, size
    if old != batch_size:
        own = torch.Size([*size, *old[len(batch_size) :]])
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
        elif isinstance(value, UnbatchedTensor):
            entries[key] = value._with_batch_size(own)
        else:
            entries[key] = ragged_leaves.at_index(value, index)
    if own_names is not None:
        own_names = _spliced_names(own_names, names, len(batch_size), own)
    return new(td.__class__, entries, own, td._device, own_names)


MSG_INDEXED_SIZE = (
    "indexed destination TensorDict batch size is {} (batch_size = {}, index={}), "
    "which differs from the source batch size {}"
)


MSG_EXPANDED = (
    "The expanded size of the tensor ({}) must match the existing size ({}) at "
    "non-singleton dimension {}.  Target sizes: {}.  Tensor sizes: {}"
)


def set_index(td: Any, index: Any, value: Any) -> None:
    """Write ``value`` into every entry of ``td`` at ``index``.

    ``value`` is a number or tensor, for every leaf, or a collection: entries that only
    ``td`` has stay as they are, those that only ``value`` has are made in ``td``, zero
    outside the index. Everything is checked before the first write.

    Raises:
        RuntimeError: sizes do not fit, or an entry must be made in a locked collection.
    """
    if not td._is_dense and td._writes_through():
        td._write_index(index, value)
        return
    batch_size = td.batch_size
    if isinstance(index, tuple):
        _refuse_text(td, index)
    is_filled = not isinstance(value, CollectionProtocol) or value._is_non_tensor
    try:
        plan = index_plan(batch_size, index)
    except IndexError as error:
        if not is_filled:
            raise
        fill_features(td, index, _filled_with(value), error)
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
        _plan_index(td, at, size, len(batch_size), value, writes, fresh)
    else:
        number, value = value, _filled_with(value)
        _plan_fill(td, at, size, len(batch_size), value, writes)
        if isinstance(value, (int, float)):
            entries = [entry for _, _, entry, _ in writes]
            check_number(
                [e for e in entries if isinstance(e, torch.Tensor)], value, True
            )
    for position, (parent, key, entry, item) in enumerate(writes):
        if _is_plain(entry) and _is_plain(item) and item.dtype != entry.dtype:
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
        elif isinstance(entry, torch.Tensor) and entry.is_nested:
            ragged_leaves.write_rows(entry, at, item)
        else:
            entry[... if isinstance(entry, UnbatchedTensor) else at] = item
    for parent, key, item in fresh:
        parent._set_entry(key, item)


def write_fitting(td: Any, index: BatchIndex, source: CollectionProtocol) -> bool:
    """Write the leaves of ``source`` into those of ``td`` at ``index``, if each fits.

    Each must have a place of its shape there, and all collections one class; the index
    has no ellipsis, which each tensor reads in its own way. Says whether it did.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not td._is_dense or not all([_is_place(part) for part in parts]):
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
    if not _pair_fitting(td, source, size, len(batch_size), casts, writes):
        return False
    for entry, item in refused_first(writes, 0):
        entry[at] = item
    return True


def write_members(members: list[Any], places: list[Any], parts: list[Any]) -> bool:
    """Write a number or a collection into each of ``members`` at its place, if all fit.

    Says whether it did: nothing is written where one is no plain write.
    """
    if torch.compiler.is_compiling():
        # What fails while it is traced has not been run.
        for member, place, part in zip(members, places, parts, strict=True):
            set_index(member, place, part)
        return True
    planned: list[tuple[Any, Any, Any]] = []
    values: list[tuple[Any, Any]] = []
    for member, place, part in zip(members, places, parts, strict=True):
        items = place if isinstance(place, tuple) else (place,)
        if not member._is_dense or not all([_is_place(item) for item in items]):
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
            fits = _is_common(part) and _fill_fitting(member, part, writes)
        else:
            fits = isinstance(part, CollectionProtocol) and part._is_dense
            taken = values if type(place) is tuple and not place else None
            fits = fits and _pair_fitting(
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


def _is_common(number: Any) -> bool:
    """Return whether every dtype has a number."""
    return isinstance(number, bool) or abs(number) < 128


def _fill_fitting(
    td: CollectionProtocol, number: object, writes: list[tuple[Any, Any]]
) -> bool:
    """Add each leaf of ``td`` with a number; whether all are plain."""
    for entry in list(td._tensordict.values()):
        if _is_plain(entry):
            writes.append((entry, number))
        elif (
            not isinstance(entry, CollectionProtocol)
            or not entry._is_dense
            or not _fill_fitting(entry, number, writes)
        ):
            return False
    return True


def _is_place(part: Any) -> bool:
    """Return whether an index item is a number, a slice, None or positions."""
    kind = type(part)
    if kind is torch.Tensor:
        return bool(part.dim()) and part.dtype in (torch.int64, torch.bool)
    if kind is list:
        return bool(part) and all([type(position) is int for position in part])
    return part is None or kind in (int, bool, slice)


def _pair_fitting(
    td: Any,
    source: CollectionProtocol,
    size: Any,
    k: int,
    casts: bool,
    writes: list[tuple[Any, Any]],
    of_class: bool = True,
    values: list[tuple[Any, Any]] | None = None,
) -> bool:
    """Add each leaf of ``td`` that ``source`` has, and that one; whether all fit.

    With ``of_class`` all containers must have one class. To ``values`` are added those
    that are no tensors, and what they take whole.
    """
    own = td._batch_size
    if (of_class and type(source) is not type(td)) or len(own) < k:
        return False
    if source._batch_size != size + own[k:]:
        return False
    for key, item in list(source._tensordict.items()):
        entry = td._tensordict.get(key)
        if isinstance(entry, torch.Tensor) and isinstance(item, torch.Tensor):
            if not _is_plain(entry) or not _is_plain(item) or entry.dim() < k:
                return False
            if item.shape != size + entry.shape[k:]:
                return False
            if not casts and item.dtype != entry.dtype:
                return False
            writes.append((entry, item))
            continue
        is_nested = isinstance(entry, CollectionProtocol)
        if values is not None and is_nested and entry._can_put(item):
            values.append((entry, item))
            continue
        held, given = entry, item
        for each in (held, given):
            if not isinstance(each, CollectionProtocol) or not each._is_dense:
                return False
        if of_class and type(held) is not type(td):
            return False
        if not _pair_fitting(held, given, size, k, casts, writes, of_class, values):
            return False
    return True


def _is_plain(value: object) -> bool:
    """Return whether it is a tensor of which the index means the first dims."""
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, UnbatchedTensor)
        and not value.is_nested
    )


def _filled_with(value: object) -> Any:
    """Convert the value to fill entries with to a tensor, or a value of its own."""
    if value is None or isinstance(
        value, (CollectionProtocol, torch.Tensor, int, float, complex)
    ):
        return value
    try:
        return torch.as_tensor(value)
    except (RuntimeError, TypeError, ValueError):
        return value


def fit_source(batch_size: torch.Size, index: Any, size: torch.Size, value: Any) -> Any:
    """``value`` if its batch size is the end of ``size``, or as one that has that size.

    Where its entries do not have that size it broadcasts, as a tensor does.
    """
    source = value.batch_size
    if source == size or (source and size[-len(source) :] == source):
        return value
    misfit = RuntimeError(MSG_INDEXED_SIZE.format(size, batch_size, index, source))
    if len(source) >= len(size) and source[: len(size)] != size:
        # A tensor refuses this size below. A value would take any.
        entries = value._entries().values()
        if any(getattr(entry, "_is_non_tensor", False) for entry in entries):
            raise misfit
    if isinstance(index, tuple) and len(index) == 2 and index[1] is ...:
        index = index[0]
    is_flag = isinstance(index, torch.Tensor) and not index.dim() and size[:1] == (1,)
    if batch_size and (
        index is None or index is True or (is_flag and index.dtype is torch.bool)
    ):
        # All of it is meant.
        return value.expand(size)
    sized = value.copy()
    try:
        sized.batch_size = size
    except RuntimeError:
        if not _broadcasts(source, size):
            raise misfit from None
        while value.batch_dims > len(size):
            value = value[0]
        return value.expand(size)
    return sized


def _broadcasts(source: torch.Size, size: torch.Size) -> bool:
    """Return whether a value of shape ``source`` fits where there is ``size``."""
    spare = max(len(source) - len(size), 0)
    kept = source[spare:]
    ends = size[len(size) - len(kept) :]
    return all([length == 1 for length in source[:spare]]) and all(
        [length in (1, end) for length, end in zip(kept, ends, strict=True)]
    )


def _check_fits(item: Any, leaf: torch.Tensor, size: torch.Size, k: int) -> None:
    """Raise where ``item`` does not broadcast to what is written of ``leaf``."""
    target = [*size, *leaf.shape[k:]]
    shape = list(item.shape)
    if shape == target:
        return
    while len(shape) > len(target) and shape[0] == 1:
        del shape[0]
    offset = len(target) - len(shape)
    if offset < 0:
        msg = (
            f"expand(source of shape {list(item.shape)}, size={target}): the number of "
            "sizes provided must be greater or equal to the number of dimensions in "
            "the tensor."
        )
        raise RuntimeError(msg)
    for dim, length in enumerate(shape):
        if length not in (1, target[dim + offset]):
            raise RuntimeError(
                MSG_EXPANDED.format(
                    target[dim + offset], length, dim + offset, target, shape
                )
            )


def _plan_fill(
    td: Any,
    at: Any,
    size: Any,
    k: int,
    value: Any,
    writes: list[tuple[Any, str, Any, Any]],
) -> None:
    is_tensor = isinstance(value, torch.Tensor) and value.dim() > 0
    for key, entry in list(td._entries().items()):
        if isinstance(entry, CollectionProtocol) and entry._is_dense:
            _plan_fill(entry, at, size, k, value, writes)
            continue
        if isinstance(entry, CollectionProtocol) and entry._is_non_tensor:
            is_number = isinstance(value, (int, float, complex))
            item = torch.as_tensor(value) if is_number else value
            entry._check_item(size, item, at)
            writes.append((td, key, entry, item))
            continue
        if not isinstance(value, (int, float, complex, torch.Tensor)):
            raise not_a_value(key, entry, value)
        if is_tensor and isinstance(entry, UnbatchedTensor):
            _check_fits(value, entry, torch.Size([]), 0)
        elif not isinstance(entry, CollectionProtocol) and entry.is_nested:
            ragged_leaves.check_rows(entry, at, value)
        elif is_tensor and not isinstance(entry, CollectionProtocol):
            _check_fits(value, entry, size, k)
        writes.append((td, key, entry, value))


def _plan_index(
    td: CollectionProtocol,
    at: BatchIndex,
    size: Any,
    k: int,
    value: Any,
    writes: list[tuple[Any, str, Any, Any]],
    fresh: list[tuple[Any, str, Any]],
) -> None:
    for key, item in list(value._entries().items()):
        entry = td._get_entry(key, NO_DEFAULT)
        if entry is NO_DEFAULT:
            if td.is_locked:
                raise locked_error(td)
            own = size[-value.batch_dims :] if value.batch_dims else size
            fresh.append((td, key, _preallocated(td, at, own, k, item)))
        elif isinstance(entry, CollectionProtocol):
            if entry._is_non_tensor:
                own = torch.Size([*size, *entry.batch_size[k:]])
                entry._check_item(own, item, at)
                writes.append((td, key, entry, item))
            elif isinstance(item, CollectionProtocol) and item._is_non_tensor:
                raise not_a_value(key, entry, item)
            elif isinstance(item, CollectionProtocol) and entry._is_dense:
                own = torch.Size([*size, *entry._batch_size[k:]])
                try:
                    item = fit_source(entry._batch_size, at, own, item)
                    _plan_index(entry, at, size, k, item, writes, fresh)
                except RuntimeError as error:
                    raise at_key(error, key) from None
            else:
                writes.append((td, key, entry, item))
        elif isinstance(item, CollectionProtocol):
            raise not_a_value(key, entry, item)
        else:
            try:
                if isinstance(entry, UnbatchedTensor):
                    # All elements share it: it is written whole.
                    _check_fits(item, entry, torch.Size([]), 0)
                elif entry.is_nested:
                    ragged_leaves.check_rows(entry, at, item)
                else:
                    _check_fits(item, entry, size, k)
            except RuntimeError as error:
                raise at_key(error, key) from None
            writes.append((td, key, entry, item))


def _preallocated(td: Any, at: BatchIndex, size: Any, k: int, item: Any) -> Any:
    """An entry for ``td`` that is zero but for ``item`` at the index.

    ``size`` has as many dims as ``item`` has batch dims.
    """
    batch_size, extra = td.batch_size, len(size)
    device = td.device
    if isinstance(item, UnbatchedTensor):
        return item._with_batch_size(torch.Size([*batch_size[:k]]))
    if not isinstance(item, CollectionProtocol):
        shape = torch.Size([*batch_size[:k], *item.shape[extra:]])
        entry = item.new_zeros(shape, device=device)
        entry[at] = item
        return entry
    if item._is_non_tensor:
        own = torch.Size([*batch_size[:k], *item.batch_size[extra:]])
        made = item._preallocated(at, own)
        if device is not None:
            made._device = device
        return made
    if not item._is_dense:
        return item._remade(lambda plain: _preallocated(td, at, size, k, plain))
    entries = {
        key: _preallocated(td, at, size, k, child)
        for key, child in list(item._tensordict.items())
    }
    own = torch.Size([*batch_size[:k], *item._batch_size[extra:]])
    names = td.names if td._has_names() else None
    if names is not None:
        names = [*names[:k], *[None] * (len(own) - k)]
    return new(type(item), entries, own, device, names)


def view_shape(batch_size: torch.Size, shape: Sequence[int]) -> torch.Size | None:
    """``shape`` with its -1 replaced, checked against the elements of ``batch_size``.

    ``shape`` is a sequence of numbers, or has one. None where it has a dtype.

    Raises:
        RuntimeError: the sizes do not multiply to the number of elements.
    """
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = shape[0]
        if isinstance(shape, torch.dtype):
            return None
        if isinstance(shape, np.integer):
            shape = [shape]
    # Size keeps the numbers of NumPy as they are.
    shape = torch.Size([int(n) if isinstance(n, np.integer) else n for n in shape])
    total = 1
    for length in batch_size:
        total *= length
    known, free = 1, -1
    for position, length in enumerate(shape):
        if length == -1:
            if free >= 0:
                msg = "only one dimension can be inferred"
                raise RuntimeError(msg)
            free = position
        else:
            known *= length
    if free >= 0 and known > 0 and total % known == 0:
        return torch.Size([*shape[:free], total // known, *shape[free + 1 :]])
    if free >= 0 or known != total or any(length < 0 for length in shape):
        msg = f"invalid shape {list(shape)} for a batch of {total} elements"
        raise RuntimeError(msg)
    return shape
