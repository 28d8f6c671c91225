"""Functions of several tensordicts: padding, merging, grouping, collating."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from tensordict import _rust
from tensordict._established import established_names
from tensordict.containers.dense import TensorDict
from tensordict.ops.joining import dense_stack_tds
from tensordict.ops.padding import pad, pad_sequence, unpad_sequence
from tensordict.primitives.checks import (
    inside,
    is_branch,
    is_leaf_nontensor,
    is_non_tensor,
    is_tensorclass,
)
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from tensordict._nestedkey import NestedKey

C = TypeVar("C", bound=CollectionProtocol)

__all__ = [
    "collate",
    "dense_stack_tds",
    "group_by",
    "make_tensordict",
    "merge_tensordicts",
    "pad",
    "pad_sequence",
    "unpad_sequence",
]


# Merging and stacking ----------------------------------------------------------------


def merge_tensordicts(
    *tensordicts: C,
    callback_exist: Callable[..., Any] | Mapping[Any, Callable[..., Any]] | None = None,
) -> C:
    """Merge tensordicts; if several contain a key, the first of them wins.

    Args:
        *tensordicts: two or more tensordicts. The result has the class, batch size,
            device and names of the first, and shares all leaves.
        callback_exist: a function that computes the value of a key that all tensordicts
            contain, called as ``callback_exist(*values)``; or a dictionary from keys to
            such functions.

    Returns:
        A new tensordict.

    Raises:
        RuntimeError: fewer than two tensordicts are passed, or an entry does not fit
            the batch size.

    Examples:
        >>> one = TensorDict(a=torch.zeros(2), batch_size=[2])
        >>> two = TensorDict(a=torch.ones(2), b=torch.ones(2), batch_size=[2])
        >>> merged = merge_tensordicts(one, two)
        >>> merged["a"] is one["a"], merged["b"] is two["b"]
        (True, True)
        >>> merge_tensordicts(one, two, callback_exist=lambda x, y: y)["a"] is two["a"]
        True
    """
    if len(tensordicts) < 2:
        msg = f"at least 2 tensordicts must be provided, got {len(tensordicts)}"
        raise RuntimeError(msg)
    callbacks: Any = callback_exist
    if isinstance(callback_exist, Mapping):
        table = {_rust.unravel_key(key): item for key, item in callback_exist.items()}
        callbacks = table.get
    elif callback_exist is not None:
        callbacks = _always(callback_exist)
    # `empty(recurse=True)` sets the order of the nested tensordicts of the first.
    result = tensordicts[0].empty(recurse=True)
    done: set[Any] = set()
    for td in tensordicts:
        for key, value in inside(td).items(True, True, is_leaf=is_leaf_nontensor):
            if key in done:
                continue
            done.add(key)
            merged = value
            callback = callbacks(key) if callbacks is not None else None
            if callback is not None:
                values = [_rust.get(other, key, None) for other in tensordicts]
                if all(item is not None for item in values):
                    merged = callback(*values)
            _merge_entry(result, key, merged)
    return result


def _always(callback: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    return lambda _key: callback


def _merge_entry(result: Any, key: object, value: Any) -> None:
    """Set an entry; missing levels get the class of the tensordict around them."""
    path = _rust.unravel_key_to_tuple(key)
    if is_tensorclass(result):
        result._check_field(path[0])
    for part in path[:-1]:
        child = result._get_entry(part, None)
        if child is None:
            child = result.empty()
            result._set_entry(part, child)
        elif not isinstance(child, CollectionProtocol):
            msg = f"{type(child).__name__!r} object under {part!r} has no entries"
            raise AttributeError(msg)
        result = child
    present = result._get_entry(path[-1], None)
    if is_branch(present):
        msg = (
            f"merge_tensordicts: {path[-1]!r} is a leaf in one tensordict and a nested "
            "tensordict in another."
        )
        raise AttributeError(msg)
    _rust.set_entry(result, path[-1], value)


# Groups and batches ------------------------------------------------------------------


def group_by(
    tensordict: CollectionProtocol, key: NestedKey
) -> tuple[Any, tuple[Any, ...]]:
    """Split a tensordict by the values of an entry, along the first batch dim.

    Args:
        tensordict: a tensordict with at least one batch dim.
        key: the key of the entry to group by.

    Returns:
        The unique values, sorted, and for each value a tensordict of its rows, in their
        order. A row with NaN is a group by itself.

    Raises:
        ValueError: the tensordict has no batch dim.
        KeyError: the entry is missing.
        TypeError: the entry is a tensordict.

    Examples:
        >>> td = TensorDict(a=torch.tensor([1, 0, 1]), batch_size=[3])
        >>> values, groups = group_by(td, "a")
        >>> values, [group.batch_size[0] for group in groups]
        (tensor([0, 1]), [1, 2])
    """
    if tensordict.batch_dims < 1:
        msg = (
            "group_by groups the rows along the first batch dimension of the "
            "tensordict, which has none."
        )
        raise ValueError(msg)
    column = _rust.get(tensordict, key, None)
    if column is None:
        msg = f"group_by: the tensordict has no entry {key!r}."
        raise KeyMessageError(msg)
    if isinstance(column, torch.Tensor):
        # Without a dim, NaN is sorted to the end.
        dim = 0 if column.ndim > 1 else None
        values, group_of_row = torch.unique(column, dim=dim, return_inverse=True)
        count = values.shape[0]
    elif is_non_tensor(column):
        row_values = [_hashable(row) for row in column.tolist()]
        values = sorted(set(row_values))
        numbers = {value: number for number, value in enumerate(values)}
        group_of_row = torch.tensor([numbers[value] for value in row_values])
        count = len(values)
    else:
        msg = (
            f"group_by needs a tensor or non-tensor entry, but {key!r} holds a "
            f"{type(column).__name__}."
        )
        raise TypeError(msg)
    # Groups of a view of a locked tensordict are locked, like other results of views.
    is_locked_part = tensordict._writes_through() and tensordict.is_locked
    if tensordict._writes_through():
        tensordict = tensordict._as_plain()
    order = torch.argsort(group_of_row, stable=True)
    counts = torch.bincount(group_of_row, minlength=count).tolist() if count else []
    groups = tuple(tensordict[rows] for rows in order.split(counts) if counts)
    if is_locked_part:
        for group in groups:
            _rust.lock_tree(group)
    return values, groups


def collate(
    batch: object,
    *,
    pad_keys: Mapping[Any, float] | None = None,
    nested_keys: Sequence[NestedKey] | None = None,
    mask_key: NestedKey | None = None,
) -> Any:
    """Collate samples to a batch, for :class:`torch.utils.data.DataLoader`.

    Tensordicts are stacked. Dictionaries and tuples are collated part by part; other
    samples go to torch's ``default_collate``.

    Args:
        batch: a list of samples. Any other object is returned as it is.
        pad_keys: from keys of entries whose first dim differs between samples to
            padding values. The entries are padded to the longest.
        nested_keys: the keys of entries whose first dim differs, which become nested
            tensors.
        mask_key: the key for boolean masks of the entries in ``pad_keys``. Default: no
            masks.

    Raises:
        KeyError: a sample lacks an entry of ``pad_keys`` or ``nested_keys``.
        TypeError: some samples are tensorclasses and some are not.
        ValueError: a key is in both ``pad_keys`` and ``nested_keys``, there is a
            ``mask_key`` without ``pad_keys``, the mask is an entry of a sample, samples
            to pad have batch dims, or the other entries differ in shape while
            ``nested_keys`` is used.

    Examples:
        >>> samples = [TensorDict(a=torch.ones(1)), TensorDict(a=torch.ones(2))]
        >>> collate(samples, pad_keys={"a": 0.0})["a"]
        tensor([[1., 0.],
                [1., 1.]])
    """
    if not isinstance(batch, list) or not batch:
        return batch
    first = batch[0]
    if not isinstance(first, CollectionProtocol):
        options = {
            "pad_keys": pad_keys,
            "nested_keys": nested_keys,
            "mask_key": mask_key,
        }
        return _collate_parts(batch, options)
    for sample in batch:
        if not isinstance(sample, CollectionProtocol):
            msg = f"a {type(sample).__name__} among the samples has no batch_size"
            raise AttributeError(msg)
        if is_tensorclass(sample) != is_tensorclass(first):
            kinds = [type(sample).__name__ for sample in batch]
            msg = (
                "Cannot collate a batch that mixes tensorclass instances with "
                f"tensordicts: got {kinds}."
            )
            raise TypeError(msg)
    padded, nested = _checked_keys(batch, pad_keys, nested_keys, mask_key)
    cls: Any = type(first)
    if not padded and not nested:
        return cls.maybe_dense_stack(batch, 0)
    rest = [sample.exclude(*padded, *nested) for sample in batch]
    result = cls.maybe_dense_stack(rest, 0)
    if nested and not result._is_dense:
        msg = (
            f"collate got nested_keys={list(nested)}, but the other entries of the "
            "samples differ in shape, so they stack lazily and the nested tensors could "
            "not be read back. Name the entries that vary in length in pad_keys or "
            "nested_keys."
        )
        raise ValueError(msg)
    if padded:
        chosen = [sample.select(*padded) for sample in batch]
        mask: Any = False if mask_key is None else mask_key
        result.update(pad_sequence(chosen, 0, padded, return_mask=mask))
    for key in nested:
        leaves = [_rust.get(sample, key) for sample in batch]
        result.set(key, torch.nested.as_nested_tensor(leaves, layout=torch.jagged))
    return result


def _collate_parts(batch: list[Any], options: dict[str, Any]) -> Any:
    """Collate dictionaries and tuples part by part, other samples with torch."""
    first = batch[0]
    if isinstance(first, Mapping):
        return {
            key: collate([sample[key] for sample in batch], **options) for key in first
        }
    if isinstance(first, (tuple, list)):
        if any(len(sample) != len(first) for sample in batch):
            msg = "each element in list of batch should be of equal size"
            raise RuntimeError(msg)
        parts = [collate(list(part), **options) for part in zip(*batch, strict=True)]
        if isinstance(first, list):
            return parts
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return torch.utils.data.default_collate(batch)


def _checked_keys(
    batch: list[Any], pad_keys: Any, nested_keys: Any, mask_key: Any
) -> tuple[dict[Any, float], list[Any]]:
    """Return the unraveled keys of :func:`collate`, checked against all samples."""
    padded = {
        _rust.unravel_key(key): value for key, value in dict(pad_keys or {}).items()
    }
    nested = [_rust.unravel_key(key) for key in nested_keys or ()]
    both = [key for key in nested if key in padded]
    if both:
        msg = f"collate got the keys {both} in both pad_keys and nested_keys."
        raise ValueError(msg)
    if mask_key is not None and not padded:
        msg = "collate got a mask_key but no pad_keys to mask."
        raise ValueError(msg)
    for key in (*padded, *nested):
        if any(_rust.get(sample, key, None) is None for sample in batch):
            msg = f"collate got the key {key!r}, which a sample lacks."
            raise KeyMessageError(msg)
    if mask_key is not None and any(
        _rust.get(sample, mask_key, None) is not None for sample in batch
    ):
        msg = f"collate got mask_key={mask_key!r}, which is an entry of a sample."
        raise ValueError(msg)
    if padded and batch[0].batch_dims:
        msg = (
            "collate(pad_keys=...) pads the first dim of each entry, which is a batch dim "
            f"of these samples (batch_size={batch[0].batch_size}). Give the samples an "
            "empty batch size, or call pad_sequence."
        )
        raise ValueError(msg)
    return padded, nested


def make_tensordict(
    input_dict: Mapping[Any, Any] | None = None,
    batch_size: Sequence[int] | None = None,
    device: torch.device | str | int | None = None,
    auto_batch_size: bool | None = None,
    **kwargs: object,
) -> TensorDict:
    """Make a :class:`TensorDict` of a mapping or of keyword arguments.

    Args:
        input_dict: the entries. They are added after the keyword arguments.
        batch_size: the batch size. Default: ``[]``.
        device: the device to move all entries to.
        auto_batch_size: whether the batch size is the leading dims that all entries
            share.
        **kwargs: entries by name.

    Examples:
        >>> make_tensordict(a=torch.zeros(3), auto_batch_size=True).batch_size
        torch.Size([3])
    """
    entries: dict[Any, Any] = dict(kwargs)
    if input_dict is not None:
        entries.update(input_dict.items())
    return TensorDict.from_dict(
        entries, batch_size=batch_size, device=device, auto_batch_size=auto_batch_size
    )


def _hashable(value: object) -> Any:
    """Return a value; nested lists become nested tuples."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
