"""Padding of tensordicts, and removal of the padding."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from tensordict import _rust
from tensordict.primitives import classes
from tensordict.primitives.checks import holds_values, is_tensorclass
from tensordict.primitives.dim_numbers import from_front
from tensordict.primitives.errors import absent_key
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import is_shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict._nestedkey import NestedKey
    from tensordict.containers.dense import TensorDict
    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["pad", "pad_sequence", "unpad_sequence"]

C = TypeVar("C", bound=CollectionProtocol)

MSG_SIDE = "padding_side must be 'left' or 'right', got {!r}."
MSG_PAD_KEYS = (
    "padding_value has keys {} that name no entry of the tensordicts, whose entries are "
    "{}."
)
MSG_MASKED_CLASS = (
    "Expected 'return_mask=False' when list_of_tensordicts contains tensorclasses, but got "
    "'return_mask={}'. Convert them with to_tensordict() to get masks."
)
MSG_PAD_DIM = "pad_dim={} is out of range for the entry {!r} of shape {}."
MSG_DIM = "Dimension out of range (expected to be in range of [{}, {}], but got {})"
MSG_FAILED = "pad_sequence failed for key {}"
MSG_NO_SAMPLES = (
    "unpad_sequence needs the samples along the first batch dimension of padded, which "
    "has none."
)
MSG_NO_MASK = (
    "unpad_sequence needs a mask: pass mask=..., or pad with pad_sequence(..., "
    "return_mask=True)."
)


@overload
def pad(
    tensordict: TensorDict,
    pad_size: Sequence[int],
    value: float = ...,
    inplace: bool = ...,
    safe: bool = ...,
) -> TensorDict: ...
@overload
def pad(
    tensordict: C,
    pad_size: Sequence[int],
    value: float = ...,
    inplace: bool = ...,
    safe: bool = ...,
) -> C: ...
def pad(
    tensordict: Any,
    pad_size: Sequence[int],
    value: float = 0.0,
    inplace: bool = False,
    safe: bool = True,
) -> Any:
    """Pad all entries along the batch dimensions.

    Args:
        tensordict: a tensordict of batch size ``[*B]``.
        pad_size: the number of rows to add before and after each batch dimension, from
            the first on: ``[before_0, after_0, before_1, after_1, ...]``. A negative
            number removes rows.
        value: the value of the added elements.
        inplace: replace the entries of ``tensordict`` by the padded ones.
        safe: accepted for compatibility: a call that fails never changes anything.

    Returns:
        A new :class:`TensorDict` with new leaves; with ``inplace``, ``tensordict``.

    Raises:
        RuntimeError: the number of sizes is odd or more than twice the number of batch
            dimensions; a size would become negative; or ``inplace`` is True and the
            tensordict is locked.

    Examples:
        >>> td = TensorDict(a=torch.ones(2, 2), batch_size=[2])
        >>> pad(td, [0, 1])["a"]
        tensor([[1., 1.],
                [1., 1.],
                [0., 0.]])
    """
    return tensordict.pad(pad_size, value, inplace, safe)


def pad_sequence(
    list_of_tensordicts: Sequence[Any],
    pad_dim: int = 0,
    padding_value: float | Mapping[Any, float] = 0.0,
    out: Any = None,
    return_mask: bool | NestedKey = False,
    padding_side: str = "right",
) -> Any:
    """Pad the entries of several tensordicts to the same length, and stack them.

    Args:
        list_of_tensordicts: tensordicts whose leaves differ along ``pad_dim`` only.
        pad_dim: the dimension of each leaf that is padded to the longest one.
        padding_value: the value of the padding, for all entries or by key.
        out: a tensordict to write the results into.
        return_mask: store a boolean mask for each leaf, True at values that are no
            padding, under ``"masks"`` or the key passed here. The shape of a mask is
            ``[N, *B]``; if ``pad_dim`` is no batch dimension, the padded dimension
            follows.
        padding_side: ``"left"`` or ``"right"``.

    Returns:
        A tensordict of batch size ``[N, *B]``. Entries that some tensordicts lack are
        left out. Names are left out unless there is non-tensor data.

    Raises:
        RuntimeError: the list is empty, a leaf has no dimension to pad, or leaves
            differ along another dimension.
        IndexError: a leaf has no dimension ``pad_dim``.
        KeyError: ``padding_value`` names a missing entry.

    Examples:
        >>> one = TensorDict(a=torch.ones(1), batch_size=[1])
        >>> two = TensorDict(a=torch.ones(2), batch_size=[2])
        >>> pad_sequence([one, two], return_mask=True)["masks", "a"]
        tensor([[ True, False],
                [ True,  True]])
    """
    if padding_side not in ("left", "right"):
        raise ValueError(MSG_SIDE.format(padding_side))
    tds = list(list_of_tensordicts)
    if not tds:
        msg = "list_of_tensordicts cannot be empty"
        raise RuntimeError(msg)
    mask_key = _mask_key(return_mask)
    if mask_key is not None and is_tensorclass(tds[0]):
        raise RuntimeError(MSG_MASKED_CLASS.format(return_mask))
    keys = _shared_leaves(tds)
    if not keys:
        _check_dim(tds[0].ndim, pad_dim)
    values: dict[Any, Any] = {}
    if isinstance(padding_value, Mapping):
        values = {_rust.unravel_key(key): item for key, item in padding_value.items()}
        unknown = [key for key in values if key not in keys]
        if unknown:
            raise absent_key(MSG_PAD_KEYS.format(unknown, list(keys)))
    size = _stacked_size(tds, pad_dim)
    target = out
    if out is None:
        target = _shared_structure(tds, size, padding_side == "left")
    masks: list[tuple[Any, torch.Tensor]] = []
    ndim = len(size) - 1
    for key in keys:
        leaves = [_rust.get(td, key) for td in tds]
        if all(map(is_shared, leaves)):
            _store(target, key, leaves[0], given=out is not None)
            continue
        value = values.get(key, 0.0) if values else padding_value
        if isinstance(padding_value, Mapping) and key not in values:
            value = 0.0
        if any(leaf.ndim == 0 for leaf in leaves):
            msg = (
                f"Cannot pad scalars: the entry {key!r} has no dim to pad. Give it one, as "
                "`unsqueeze(-1)` does, or leave it out and `stack` it."
            )
            raise RuntimeError(msg)
        try:
            padded, mask = _pad_leaves(
                key, leaves, pad_dim, value, padding_side == "left", ndim, mask_key
            )
            _store(target, key, padded, given=out is not None)
        except IndexError:
            raise
        except Exception as error:
            raise RuntimeError(MSG_FAILED.format(key)) from error
        if mask is not None:
            masks.append((key, mask))
    for key, mask in masks:
        where = _rust.unravel_key((mask_key, key))
        try:
            _store(target, where, mask, given=out is not None)
        except Exception as error:
            raise RuntimeError(MSG_FAILED.format(where)) from error
    return target


def _check_dim(ndim: int, dim: int) -> None:
    """Raise an error if ``dim`` is out of range and there are batch dims."""
    if ndim and not -ndim <= dim < ndim:
        raise IndexError(MSG_DIM.format(-ndim, ndim - 1, dim))


def _mask_key(return_mask: object) -> str | tuple[str, ...] | None:
    """Return the key of the masks, or None if no masks were requested."""
    if return_mask is False:
        return None
    return "masks" if return_mask is True else _rust.unravel_key(return_mask)


def _shared_leaves(tds: Sequence[Any]) -> list[Any]:
    """Return the keys of leaves that all tensordicts contain, in the first's order."""
    first, *others = (_rust.walk(td, 0, True, True) for td in tds)
    held = [set(keys) for keys in others]
    return [key for key in first if all(key in keys for keys in held)]


def _shared_structure(tds: Sequence[Any], size: torch.Size, left: bool) -> Any:
    """Stack the nested tensordicts that all contain, without tensors.

    Non-tensor data is included, with None at padded rows.
    """
    first = tds[0]
    if first._is_non_tensor:
        # `tds` are non-tensor data themselves, not tensordicts with entries.
        if first._is_one:
            return first._fitted(size)
        parents = [first._plain_type(s=td, batch_size=td.batch_size) for td in tds]
        return _shared_structure(parents, size, left)._get_entry("s", None)
    if not first._is_dense and first._lazy_stack() is not None:
        result = first._plain_type({}, size, device=first.device)
    else:
        result = first.empty(batch_size=size, names=None)
    for key, value in list(first._entries().items()):
        if not isinstance(value, CollectionProtocol):
            continue
        others = [td._get_entry(key, None) for td in tds]
        if not all(holds_values(other) == value._is_non_tensor for other in others):
            continue
        longest = _longest(others)
        inner = torch.Size([size[0], *longest] if len(size) else longest)
        if isinstance(value, classes.MetaData) and all(
            list(other.batch_size) == longest for other in others
        ):
            # Equal metadata stays one object, as in a stack.
            entry = _rust.stack(others, 0)
        elif value._is_non_tensor:
            cells: list[Any] = []
            for other in others:
                cells += _padded_values(other, longest, left)
            entry = value._non_tensor_stack_type._of_cells(cells, inner, first.device)
            if first._td_dim_names is not None:
                entry._named([None, *first._td_dim_names])
                result.names = [None, *first._td_dim_names]
        else:
            entry = _shared_structure(others, inner, left)
        result._set_entry(key, entry)
    if is_tensorclass(first) and not is_tensorclass(result):
        # The tensorclass wraps a lazy stack.
        return first._from_tensordict(result)
    return result


def _padded_values(values: Any, size: list[int], left: bool) -> list[Any]:
    """Return the values of non-tensor data, row by row, padded to a batch size."""
    spare = [new - old for new, old in zip(size, values.batch_size, strict=True)]
    if any(spare):
        sides = ((more, 0) if left else (0, more) for more in spare)
        values = pad(values, [each for pair in sides for each in pair])
    return list(values._flat())


def _longest(tds: Sequence[Any]) -> list[int]:
    """Return the maximum of each batch dim, for as many dims as the first has."""
    first = tds[0].batch_size
    sizes = [td.batch_size for td in tds]
    dims = zip_longest(*sizes, fillvalue=0)
    return [max(dim) for dim in list(dims)[: len(first)]]


def _stacked_size(tds: Sequence[Any], pad_dim: int) -> torch.Size:
    first = tds[0].batch_size
    if pad_dim >= 0 and any(pad_dim >= td.ndim > 0 for td in tds):
        # `_pad_leaves` raises the error for a leaf without this dim.
        return torch.Size([len(tds), *first])
    return torch.Size([len(tds), *_longest(tds)])


def _pad_leaves(
    key: object,
    leaves: list[torch.Tensor],
    pad_dim: int,
    value: Any,
    left: bool,
    ndim: int,
    mask_key: object,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the stack of leaves padded to one length, and its mask if requested."""
    first = leaves[0]
    shape = list(first.shape)
    dim = pad_dim + len(shape) if pad_dim < 0 else pad_dim
    if not 0 <= dim < len(shape):
        raise IndexError(MSG_PAD_DIM.format(pad_dim, key, tuple(shape)))
    lengths = [leaf.shape[dim] for leaf in leaves]
    longest = max(lengths)
    shape[dim] = longest
    for leaf in leaves:
        other = list(leaf.shape)
        if len(other) == len(shape):
            other[dim] = longest
        if other != shape:
            msg = f"the shapes {leaf.shape} and {first.shape} differ beside dim {dim}"
            raise RuntimeError(msg)
    same = all(leaf.dtype == first.dtype for leaf in leaves)
    if same and all(length == longest for length in lengths):
        stacked = torch.stack(leaves)
    else:
        stacked = first.new_full((len(leaves), *shape), value)
        # Make a separate view for each row: rows from one `unbind` cannot be written to
        # if gradients flow.
        for number, (leaf, length) in enumerate(zip(leaves, lengths, strict=True)):
            start = longest - length if left else 0
            stacked[number].narrow(dim, start, length).copy_(leaf)
    if mask_key is None:
        return stacked, None
    mask_shape = shape[:ndim] if dim < ndim else [*shape[:ndim], longest]
    mask_dim = min(dim, ndim)
    mask = first.new_zeros((len(leaves), *mask_shape), dtype=torch.bool)
    for row, length in zip(mask, lengths, strict=True):
        row.narrow(mask_dim, longest - length if left else 0, length).fill_(True)
    return stacked, mask


def _store(
    target: CollectionProtocol, key: NestedKeyLike, value: torch.Tensor, *, given: bool
) -> None:
    """Store a result; if ``given`` contains the entry, write into its memory."""
    present = _rust.get(target, key, None) if given else None
    if present is not None:
        _rust.set_entry(target, key, value, True)
        return
    path = _rust.unravel_key_to_tuple(key)
    parent = target
    for part in path[:-1]:
        child = parent._get_entry(part, None)
        if child is None:
            _rust.set_entry(parent, part, parent._make_child())
            child = parent._get_entry(part, None)
        parent = child
    _rust.set_entry(parent, path[-1], value)


def unpad_sequence(padded: Any, mask: Any = None, *, pad_dim: int = 0) -> Any:
    """Undo :func:`pad_sequence`: return the tensordicts without padding.

    Args:
        padded: the padded tensordict, of batch size ``[N, *B]``.
        mask: a tensordict with a boolean mask for each leaf, or one boolean tensor
            ``[N, L]`` for all leaves. Default: the masks that
            ``pad_sequence(return_mask=True)`` stored.
        pad_dim: the dimension of each leaf, without ``N``, that was padded.

    Returns:
        A lazy stack of ``N`` tensordicts along the first dimension.

    Raises:
        ValueError: the mask is missing, a tensor mask has another shape, or ``padded``
            has no batch dimension.
        KeyError: the masks lack a leaf.
    """
    if mask is None:
        mask = _rust.get(padded, "masks", None)
        if not isinstance(mask, CollectionProtocol):
            raise ValueError(MSG_NO_MASK)
        padded = padded.exclude("masks")
    if not padded.batch_dims:
        raise ValueError(MSG_NO_SAMPLES)
    count = padded.batch_size[0]
    if isinstance(mask, torch.Tensor) and (mask.ndim != 2 or mask.shape[0] != count):
        msg = (
            "A tensor mask must have shape [len(padded), max_len], got "
            f"{tuple(mask.shape)}."
        )
        raise ValueError(msg)
    ndim = padded.batch_dims - 1
    members = [
        _unpad(padded, mask, number, pad_dim, ndim, ()) for number in range(count)
    ]
    return type(padded).lazy_stack(members, 0)


def _unpad(
    td: Any, mask: object, number: int, pad_dim: int, ndim: int, path: tuple[str, ...]
) -> Any:
    """Return the member ``number`` without its padding."""
    entries: dict[str, Any] = {}
    kept = None
    for key, value in list(td._entries().items()):
        if holds_values(value):
            entries[key] = value[number]
            continue
        if isinstance(value, CollectionProtocol):
            entries[key] = _unpad(value, mask, number, pad_dim, ndim, (*path, key))
            continue
        leaf = value[number]
        dim = from_front(pad_dim, leaf.ndim)
        if isinstance(mask, torch.Tensor):
            valid = mask[number].bool()
        else:
            where = _rust.unravel_key((*path, key))
            found = _rust.get(mask, where, None)
            if found is None:
                msg = f"The mask has no entry for key {where!r} of padded."
                raise absent_key(msg)
            valid = found[number].bool()
            along = min(dim, valid.ndim - 1)
            others = [other for other in range(valid.ndim) if other != along]
            valid = valid.any(others) if others else valid
        entries[key] = leaf.index_select(dim, valid.nonzero().squeeze(-1))
        if dim < ndim:
            kept = entries[key].shape[dim]
    size = td.batch_size[1:]
    if kept is not None:
        along = pad_dim % len(size)
        mask_is_batch = valid.ndim == 1 and len(valid) == size[along]
        # The mask tells on which side the padding is.
        kept_at: Any = valid.nonzero().squeeze(-1) if mask_is_batch else slice(kept)
        at = (slice(None),) * along + (kept_at,)
        size = torch.Size([*size[:along], kept, *size[along + 1 :]])
        for key, value in entries.items():
            # Tensordicts without leaves, and non-tensor data, still have their padding.
            if isinstance(value, CollectionProtocol) and value.batch_size != size:
                entries[key] = value[at]
    made = _rust.new(td._dense_type(), entries, size, td.device, None)
    return type(td)._from_tensordict(made) if is_tensorclass(td) else made


for _public in (pad, pad_sequence, unpad_sequence):
    _public.__module__ = "tensordict.functional"
