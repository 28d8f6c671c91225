"""Copy rows and windows of a collection in one call.

:func:`gather` takes the rows at an index, and :func:`gather_slices` windows of
neighbouring rows. Both copy; both can write into memory that is used again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.data.ragged import Ragged, RaggedForm, is_remote
from tensordict.primitives.checks import is_leaf_nontensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tensordict._nestedkey import NestedKey
    from tensordict._tensorcollection import TensorCollection
    from tensordict.primitives.protocol import CollectionProtocol

    Collection = TypeVar("Collection", bound=TensorCollection)

__all__ = ["gather", "gather_slices"]

Layout = Literal["padded", "stacked", "jagged"]


def gather(
    td: Collection,
    indices: object,
    out: Any = None,
    keys: Iterable[NestedKey] | None = None,
    *,
    ragged: Ragged | None = None,
    padding_value: float = 0.0,
    mask_key: NestedKey | Mapping[NestedKey, NestedKey] | None = None,
) -> Collection:
    """Copy the rows of ``td`` at ``indices``: ``td[indices]``, into ``out`` if given.

    Rows of memory-mapped leaves that are not in memory are read from the file, each
    once and not more than it; the time grows with the number of rows and not with the
    size of the files.

    Args:
        td: a collection with a batch dim at least.
        indices: what indexes the first batch dim: integers (a tensor of any shape, a
            list, a range, an array), a mask, or a slice.
        out: what the rows are written into: a collection of the batch size of
            ``td[indices]`` that has all entries of ``td`` (or of ``keys``); others stay
            as they are. It can be used again for every batch, its tensors can be pinned
            or shared with other processes, and where they have another dtype or device
            values are converted as by :meth:`~tensordict.TensorDictBase.update_`.
        keys: the entries to take. Default: all.
        ragged: the form of rows that differ in shape, those of a lazy stack or of nested
            tensors: ``"stack"`` for a lazy stack of the rows, ``"padded"`` for tensors
            filled up to the largest of them, ``"jagged"`` for nested tensors of the layout
            :attr:`torch.jagged`. Entries whose rows have one shape are tensors in the last
            two. Default: what an index gives, a lazy stack.
        padding_value: what ``"padded"`` fills up with.
        mask_key: where the mask of a padded entry goes: bool, ``[N, L]``, True where the
            row has an item and False where it was filled up. Where a further dim differs,
            too, the mask has all dims up to that one. With a key: the mask of the entry
            whose rows in ``td`` differ in shape; of several, a collection of masks, each
            at the key of its entry. With a dict of keys by entries: the masks of these
            entries. A tensorclass needs a field for it. Default: no mask.

    Returns:
        ``out``, or a new collection that shares no memory with ``td``. Rows of a tensorclass
        are of that class.

    Raises:
        IndexError: an index is out of range.
        KeyError: ``td`` or ``out`` lacks an entry.
        RuntimeError: ``out`` has another batch size or an entry of another shape.
        ValueError: ``ragged`` is none of these, or has no out; a mask has no place, or is
            not of padded entries.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.data import gather
        >>> td = TensorDict(x=torch.arange(10), y=torch.zeros(10, 3), batch_size=[10])
        >>> gather(td, [7, -1], keys=["x"])["x"]
        tensor([7, 9])
        >>> batch = td[:2].clone()
        >>> gather(td, torch.tensor([4, 5]), out=batch) is batch
        True
        >>> batch["x"]
        tensor([4, 5])
        >>> ragged = lazy_stack([TensorDict(x=torch.ones(n)) for n in (1, 3, 2)])
        >>> batch = gather(ragged, [0, 2], ragged="padded", mask_key="mask")
        >>> batch["x"]
        tensor([[1., 0.],
                [1., 1.]])
        >>> batch["mask"]
        tensor([[ True, False],
                [ True,  True]])
    """
    source = td if keys is None else td.select(*keys)
    if ragged is not None or mask_key is not None:
        if out is not None:
            msg = "The shapes of ragged rows are not known before: they have no out."
            raise ValueError(msg)
        form = RaggedForm([source], ragged, padding_value, mask_key)
        return form.taken(source, indices)
    if out is None:
        rows = source[indices]
        is_copy = not isinstance(indices, slice) and isinstance(source, TensorDict)
        # Rows of a store are in memory of their own.
        is_copy |= is_remote(source)
        return rows if is_copy else rows.clone()
    _rust.gather_into(source, _positions(indices), out)
    return out


def gather_slices(
    td: Collection,
    starts: object,
    lengths: object,
    *,
    out: Any = None,
    layout: Layout = "padded",
    padding_value: float = 0.0,
    mask: NestedKey | None = None,
    keys: Iterable[NestedKey] | None = None,
) -> Collection:
    """Copy windows of neighbouring rows of ``td`` in one call.

    Window ``i`` has the rows ``starts[i]`` to ``starts[i] + lengths[i]`` along the first
    batch dim. Windows may overlap.

    Args:
        td: a collection with a batch dim at least.
        starts: the first row of each window, W integers. Negative ones count from the
            end.
        lengths: how many rows each window has: W integers, or one for all of them.
        out: what the windows are written into, as by :func:`gather`: a collection of the
            batch size of the result. Padded windows may have more steps there than the
            longest has rows. Jagged ones have no out.
        layout: what is made of the windows. ``"padded"``: a batch size of
            ``[W, longest, *rest]``, where a window that is shorter is filled up with
            ``padding_value`` (non-tensor data with its last row, or row 0 of ``td``
            where a window is empty). ``"stacked"``: the same of windows that all have
            one length. ``"jagged"``: a batch size of ``[W]``, where each leaf is a
            nested tensor of the layout :attr:`torch.jagged`.
        padding_value: what short windows are filled up with.
        mask: the key of a mask that is added, True where a row is one of ``td``, of
            the shape ``[W, longest]``. Default: no mask. Padded windows only.
        keys: the entries to take. Default: all.

    Raises:
        IndexError: a window reaches beyond the first or the last row.
        ValueError: windows are to be stacked that have different lengths; a length is
            negative; there are not as many lengths as starts; ``layout`` is none of
            these, or has no mask or no out; an entry of a jagged result is no tensor.
        RuntimeError: ``out`` has another batch size or an entry of another shape.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.data import gather_slices
        >>> td = TensorDict(x=torch.arange(10), batch_size=[10])
        >>> gather_slices(td, [0, 7], 3, layout="stacked")["x"]
        tensor([[0, 1, 2],
                [7, 8, 9]])
        >>> windows = gather_slices(td, [0, 7], [1, 3], mask="mask")
        >>> windows["x"]
        tensor([[0, 0, 0],
                [7, 8, 9]])
        >>> windows["mask"]
        tensor([[ True, False, False],
                [ True,  True,  True]])
        >>> gather_slices(td, [0, 7], [1, 3], layout="jagged")["x"].offsets()
        tensor([0, 1, 4])
    """
    _check_layout(layout, mask, out)
    source = td if keys is None else td.select(*keys)
    starts, lengths = _checked_windows(source, starts, lengths)
    if layout == "jagged":
        return _jagged(source, starts, lengths)
    num_steps = int(lengths.max()) if len(lengths) else 0
    if out is not None and layout == "padded" and out.batch_dims > 1:
        num_steps = max(num_steps, out.batch_size[1])
    rows, is_row = _rows_of_windows(starts, lengths, num_steps)
    if layout == "stacked" and not bool(is_row.all()):
        msg = (
            "Windows of different lengths cannot be stacked: they can be 'padded' or "
            f"'jagged'. The lengths are {lengths.tolist()}."
        )
        raise ValueError(msg)
    if out is not None:
        _rust.gather_into(source, rows, out)
        return _with_padding(out, source, ~is_row, padding_value, mask)
    windows = source[rows]
    missing = ~is_row
    if bool(missing.any()):
        windows = windows.masked_fill(missing, padding_value)
    if mask is not None:
        windows.set(mask, _like_batch(is_row, windows))
    return windows


def _check_layout(layout: str, mask: object, out: object) -> None:
    """Refuse a layout that there is not, or that has no mask or no out."""
    if layout not in ("padded", "stacked", "jagged"):
        msg = f"layout is 'padded', 'stacked' or 'jagged', not {layout!r}."
        raise ValueError(msg)
    if mask is not None and layout != "padded":
        msg = f"Windows have a mask if they are padded, and not if they are {layout}."
        raise ValueError(msg)
    if out is not None and layout == "jagged":
        msg = "The sizes of jagged windows are not known before: they have no out."
        raise ValueError(msg)


def _rows_of_windows(
    starts: torch.Tensor, lengths: torch.Tensor, num_steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Number the rows of windows of so many steps, and mask those that windows have.

    A window that is shorter repeats its last row, an empty one has row 0: it may begin
    behind the last row.
    """
    steps = torch.arange(num_steps)
    last = (lengths - 1).clamp(min=0).unsqueeze(1)
    rows = starts.unsqueeze(1) + steps.minimum(last)
    rows = rows.where((lengths > 0).unsqueeze(1), 0)
    return rows, steps < lengths.unsqueeze(1)


def _with_padding(
    out: CollectionProtocol,
    source: CollectionProtocol,
    missing: torch.Tensor,
    padding_value: float,
    mask: Any,
) -> Any:
    """Fill up short windows in place, those of the entries that were written."""
    if bool(missing.any()):
        written = out.select(*source.keys(True, True))
        written.masked_fill_(missing.to(out.device or "cpu"), padding_value)
    if mask is not None:
        there = _like_batch(~missing, out)
        if mask in out.keys(True):
            out.set_(mask, there)
        else:
            out.set(mask, there)
    return out


def _positions(indices: object) -> Any:
    """Convert a list or a range to the tensor that the native code takes."""
    if isinstance(indices, range):
        return torch.arange(indices.start, indices.stop, indices.step)
    if type(indices) is list and all(type(index) is int for index in indices):
        return torch.tensor(indices, dtype=torch.int64)
    return indices


def _checked_windows(
    source: CollectionProtocol, starts: object, lengths: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert starts and lengths to tensors of int64, and refuse those outside."""
    if not source.batch_dims:
        msg = "A collection without batch dims has no rows."
        raise IndexError(msg)
    num_rows = source.batch_size[0]
    starts = torch.as_tensor(starts, dtype=torch.int64, device="cpu")
    lengths = torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    if starts.dim() != 1:
        msg = f"starts has one dim, not the shape {tuple(starts.shape)}."
        raise ValueError(msg)
    if not lengths.dim():
        lengths = lengths.expand(starts.shape)
    if lengths.shape != starts.shape:
        msg = f"There are {len(starts)} starts and {len(lengths)} lengths."
        raise ValueError(msg)
    if bool((lengths < 0).any()):
        msg = f"A window has no negative length: {lengths.tolist()}."
        raise ValueError(msg)
    starts = starts.where(starts >= 0, starts + num_rows)
    outside = (starts < 0) | (starts + lengths > num_rows)
    if bool(outside.any()):
        at = int(outside.nonzero()[0, 0])
        msg = (
            f"window {at} is out of bounds for dimension 0 with size {num_rows}: it has "
            f"{int(lengths[at])} rows from {int(starts[at])}"
        )
        raise IndexError(msg)
    return starts, lengths


def _jagged(
    source: CollectionProtocol, starts: torch.Tensor, lengths: torch.Tensor
) -> Any:
    """Copy windows to nested tensors, with one row of offsets for all of them."""
    offsets = torch.zeros(len(starts) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    shift = (starts - offsets[:-1]).repeat_interleave(lengths)
    rows = source[shift + torch.arange(int(offsets[-1]))]

    for key, value in rows.items(True, True, is_leaf=is_leaf_nontensor):
        if not isinstance(value, torch.Tensor):
            msg = (
                f"The entry {key!r} has no tensor, and cannot be jagged: leave it out."
            )
            raise ValueError(msg)
    return rows.apply(
        lambda leaf: torch.nested.nested_tensor_from_jagged(leaf, offsets),
        batch_size=[len(starts)],
        names=None,
    )


def _like_batch(is_row: torch.Tensor, windows: Any) -> torch.Tensor:
    """Expand a mask of two dims for a collection that may have more."""
    shape = [*is_row.shape, *[1] * (windows.batch_dims - 2)]
    return is_row.view(shape).expand(windows.batch_size).clone()
