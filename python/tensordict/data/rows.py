"""Copy rows and windows of a tensordict in one call.

:func:`gather` copies the rows at an index, :func:`gather_slices` windows of
neighbouring rows. Both can write into existing memory, which is then reused for every
batch.
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

    Rows of memory-mapped leaves that are not in memory are read from the file, each row
    once and nothing else. The time grows with the number of rows, not with the size of
    the files.

    Args:
        td: a tensordict of any class, with at least one batch dimension.
        indices: an index of the first batch dimension: integers (a tensor of any shape,
            a list, a range, an array), a mask, or a slice.
        out: a tensordict into which the rows are written. It has the batch size of
            ``td[indices]`` and all entries of ``td`` (or of ``keys``); its other
            entries are unchanged. Reuse it for every batch; its tensors may be pinned
            or shared with other processes. If an entry has another dtype or device,
            values are converted as in :meth:`~tensordict.TensorDictBase.update_`.
        keys: the entries to copy. Default: all.
        ragged: the form of rows that differ in shape, as in a lazy stack or a nested
            tensor. ``"stack"``: a lazy stack of the rows. ``"padded"``: tensors padded
            to the largest row. ``"jagged"``: nested tensors of layout
            :attr:`torch.jagged`. In the last two, entries whose rows have one shape are
            plain tensors. Default: the result of an index, a lazy stack.
        padding_value: the value of padding.
        mask_key: the key for the mask of a padded entry: bool, ``[N, L]``, True where
            the row has an element, False where it is padded. If a further dimension
            differs as well, the mask has all dimensions up to that one. A key: the mask
            of the one entry whose rows differ in shape; if there are several, a
            tensordict of masks, each under the key of its entry. A dict of keys by
            entry: the masks of these entries. A tensorclass needs a field for the mask.
            Default: no mask.

    Returns:
        ``out``, or a new tensordict that shares no memory with ``td``. Rows of a
        tensorclass have this class.

    Raises:
        IndexError: an index is out of range.
        KeyError: ``td`` or ``out`` lacks an entry.
        RuntimeError: ``out`` has another batch size, or an entry of another shape.
        ValueError: there is no such form, or ``out`` is given with ``ragged``; or a
            mask's key cannot be set, or its entry is not padded.

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
            msg = "The shapes of ragged rows are not known before the copy: leave out out= or ragged=."
            raise ValueError(msg)
        form = RaggedForm([source], ragged, padding_value, mask_key)
        return form.taken(source, indices)
    if out is None:
        rows = source[indices]
        is_copy = not isinstance(indices, slice) and isinstance(source, TensorDict)
        # Rows from an object store are in new memory already.
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

    Window ``i`` contains the rows ``starts[i]`` to ``starts[i] + lengths[i]`` along the
    first batch dimension. Windows may overlap.

    Args:
        td: a tensordict of any class, with at least one batch dimension.
        starts: the first row of each window, W integers. Negative numbers count from
            the end.
        lengths: the number of rows of each window: W integers, or one for all windows.
        out: a tensordict into which the windows are written, as in :func:`gather`. It
            has the batch size of the result; with ``"padded"``, it may have more steps
            than the longest window. Not for ``"jagged"``.
        layout: the form of the windows. ``"padded"``: batch size ``[W, longest,
            *rest]``; shorter windows are padded with ``padding_value`` (non-tensor data
            with its last row, or with row 0 of ``td`` in an empty window).
            ``"stacked"``: the same, for windows of one length. ``"jagged"``: batch size
            ``[W]``; each leaf is a nested tensor of layout :attr:`torch.jagged`.
        padding_value: the value of padding.
        mask: the key of an added mask of shape ``[W, longest]``, True where a window
            has a row. Only for ``"padded"``. Default: no mask.
        keys: the entries to copy. Default: all.

    Returns:
        ``out``, or a new tensordict that shares no memory with ``td``.

    Raises:
        IndexError: a window reaches before the first or behind the last row.
        ValueError: ``"stacked"`` windows have different lengths; a length is negative;
            the numbers of starts and lengths differ; there is no such layout, or it
            takes no mask or no ``out``; or a jagged entry is not a tensor.
        RuntimeError: ``out`` has another batch size, or an entry of another shape.

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
            "Windows of different lengths cannot be stacked: pass layout='padded' or "
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
    """Refuse an unknown layout, and a mask or ``out`` that it does not take."""
    if layout not in ("padded", "stacked", "jagged"):
        msg = f"layout must be 'padded', 'stacked' or 'jagged', got {layout!r}."
        raise ValueError(msg)
    if mask is not None and layout != "padded":
        msg = f"mask= is for layout='padded', got layout={layout!r}."
        raise ValueError(msg)
    if out is not None and layout == "jagged":
        msg = (
            "The sizes of jagged windows are not known before the copy: leave out out=."
        )
        raise ValueError(msg)


def _rows_of_windows(
    starts: torch.Tensor, lengths: torch.Tensor, num_steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of windows, ``[W, num_steps]``, and the mask of their actual rows.

    A shorter window repeats its last row. An empty window has row 0, since it may begin
    after the last row.
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
    """Pad short windows of the written entries in place, and set the mask."""
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
    """Convert a list or a range to the tensor that native code takes."""
    if isinstance(indices, range):
        return torch.arange(indices.start, indices.stop, indices.step)
    if type(indices) is list and all(type(index) is int for index in indices):
        return torch.tensor(indices, dtype=torch.int64)
    if type(indices) is torch.Tensor and indices.dtype == torch.int32:
        return indices.to(torch.int64)
    return indices


def _checked_windows(
    source: CollectionProtocol, starts: object, lengths: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert starts and lengths to int64 tensors, and refuse windows out of range."""
    if not source.batch_dims:
        msg = "A collection without batch dims has no rows: add a batch dim with td.auto_batch_size_(1)."
        raise IndexError(msg)
    num_rows = source.batch_size[0]
    starts = torch.as_tensor(starts, dtype=torch.int64, device="cpu")
    lengths = torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    if starts.dim() != 1:
        msg = f"starts must have one dim, got the shape {tuple(starts.shape)}."
        raise ValueError(msg)
    if not lengths.dim():
        lengths = lengths.expand(starts.shape)
    if lengths.shape != starts.shape:
        msg = f"There are {len(starts)} starts but {len(lengths)} lengths."
        raise ValueError(msg)
    if bool((lengths < 0).any()):
        msg = f"Lengths of windows must not be negative, got {lengths.tolist()}."
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
    """Copy windows to nested tensors that share one tensor of offsets."""
    offsets = torch.zeros(len(starts) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    shift = (starts - offsets[:-1]).repeat_interleave(lengths)
    rows = source[shift + torch.arange(int(offsets[-1]))]

    for key, value in rows.items(True, True, is_leaf=is_leaf_nontensor):
        if not isinstance(value, torch.Tensor):
            msg = f"The entry {key!r} is not a tensor, so it cannot be jagged: leave it out."
            raise ValueError(msg)
    return rows.apply(
        lambda leaf: torch.nested.nested_tensor_from_jagged(leaf, offsets),
        batch_size=[len(starts)],
        names=None,
    )


def _like_batch(is_row: torch.Tensor, windows: Any) -> torch.Tensor:
    """Expand a mask of two dimensions to the batch size of ``windows``."""
    shape = [*is_row.shape, *[1] * (windows.batch_dims - 2)]
    return is_row.view(shape).expand(windows.batch_size).clone()
