"""Repetition, rotation, padding and memory layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict.ops.packing import PackLayout, pack_leaves
from tensordict.primitives import special
from tensordict.primitives.checks import is_branch
from tensordict.primitives.common import ONES_TAIL
from tensordict.primitives.dim_numbers import batch_dim, from_front
from tensordict.primitives.dims import remember
from tensordict.primitives.errors import locked_error
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["RearrangingOps"]

MSG_RANGE = "Dimension out of range (expected to be in range of [-{}, {}], but got {})"
MSG_REPEAT = (
    "The number of repeat elements must match the number of dimensions of the "
    "tensordict. Got {} but ndim={}."
)
MSG_REPEATS = (
    "repeats must have the same size as input along dim, but got repeats.size(0) = {} "
    "and input.size(0) = {}"
)
MSG_OUTPUT_SIZE = "repeat_interleave: Invalid output_size, expected {} but got {}"
MSG_INTERLEAVE_FLAT = (
    "repeat_interleave(inplace=True) requires an explicit dim: without one the batch dims "
    "are flattened first."
)
MSG_INTERLEAVE_SCALAR = (
    "repeat_interleave(inplace=True) is not supported on a scalar tensordict because the "
    "operation changes ndim."
)
MSG_INTERLEAVE_TYPE = "repeat_interleave(): repeats must be an int or a tensor, not {}"
MSG_ALIGN = "shifts and dimensions must align. shifts: {}, dims:{}"
MSG_NEGATIVE = (
    "Pad {} on dim {} of leaf {!r} (size {}) would produce a negative output size."
)
MSG_MASK_KEY = (
    "mask_key should only be provided if the heterogenous dimension is part of the "
    "batch-size."
)


class RearrangingOps(CollectionProtocol):
    """Repetition, rotation, padding and memory layout.

    Each method works on the batch dimensions ``[*B]`` only. The result of a locked
    tensordict is locked, unless the method says otherwise.
    """

    def _replace_content(self, result: CollectionProtocol) -> Self:
        """Take the entries and batch size of ``result``, also in nested tensordicts.

        Raises:
            RuntimeError: this tensordict is locked.
        """
        if self.is_locked:
            raise locked_error(self)
        for key, value in list(result._entries().items()):
            present = self._get_entry(key, None)
            if isinstance(present, CollectionProtocol) and present._is_dense:
                present._replace_content(value)
            else:
                self._set_entry(key, value)
        self._batch_size = result.batch_size
        self._td_dim_names = result.names if result._has_names() else None
        return self

    # Repeating -------------------------------------------------------------------

    def repeat(self, *repeats: int | Sequence[int], inplace: bool = False) -> Self:
        """Repeat all rows along each batch dimension, as :meth:`torch.Tensor.repeat`.

        Args:
            *repeats: the number of repetitions for each batch dimension, as numbers or
                one sequence.
            inplace: store the new leaves in this tensordict and return it.

        Raises:
            RuntimeError: ``inplace`` is True and the tensordict is locked.
            ValueError: the number of ``repeats`` is not the number of batch dimensions.

        Examples:
            >>> td = TensorDict({"a": torch.tensor([1, 2])}, batch_size=[2])
            >>> td.repeat(2)["a"].tolist()
            [1, 2, 1, 2]
        """
        times: Any = repeats
        if len(repeats) == 1 and not isinstance(repeats[0], int):
            times = tuple(repeats[0])
        batch_size = self.batch_size
        ndim = len(batch_size)
        if len(times) != ndim:
            raise ValueError(MSG_REPEAT.format(len(times), ndim))
        if not ndim:
            msg = 'repeat() missing 1 required positional arguments: "repeats"'
            raise TypeError(msg)
        sizes = [length * n for length, n in zip(batch_size, times, strict=True)]
        if any(length < 0 for length in sizes):
            msg = f"Trying to create tensor with negative dimension: {sizes}"
            raise RuntimeError(msg)
        size = torch.Size(sizes)
        result = _rust.map_leaves(
            self, "repeat", (times,), size, True, ONES_TAIL, True, -1
        )
        return self._replace_content(result) if inplace else result

    def tile(self, dims: tuple[int, ...]) -> Self:
        """Repeat all rows along batch dimensions and drop names, as :func:`torch.tile`.

        Args:
            dims: the number of repetitions for each of the last batch dimensions. More
                numbers than batch dimensions make new leading dimensions.

        Examples:
            >>> td = TensorDict({"a": torch.tensor([1, 2])}, batch_size=[2])
            >>> td.tile((2, 1))["a"].tolist()
            [[1, 2], [1, 2]]
        """
        times = (dims,) if isinstance(dims, int) else tuple(dims)
        batch_size = self.batch_size
        ndim = len(batch_size)
        times = (1,) * (ndim - len(times)) + times
        padded_size = (1,) * (len(times) - ndim) + tuple(batch_size)
        size = torch.Size(
            [length * n for length, n in zip(padded_size, times, strict=True)]
        )
        return _rust.map_leaves(self, "tile", (times,), size, None, ONES_TAIL, True, -1)

    def repeat_interleave(
        self,
        repeats: torch.Tensor | int,
        dim: int | None = None,
        *,
        output_size: int | None = None,
        inplace: bool = False,
    ) -> Self:
        """Repeat each row along a batch dimension.

        As :func:`torch.repeat_interleave`.

        Args:
            repeats: the number of repetitions: one number, or an integer tensor with
                one number for each row.
            dim: the batch dimension. Default: all of them, flattened.
            output_size: the size of the result along ``dim``. If ``repeats`` is a
                tensor, passing the size saves its computation.
            inplace: store the new leaves in this tensordict and return it.

        Raises:
            IndexError: ``dim`` is no batch dimension.
            ValueError: ``dim`` is a negative number out of range.
            RuntimeError: ``repeats`` does not fit the dimension; or ``inplace`` is True
                and ``dim`` is missing or the tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.tensor([1, 2])}, batch_size=[2])
            >>> td.repeat_interleave(2)["a"].tolist()
            [1, 1, 2, 2]
            >>> td.repeat_interleave(torch.tensor([0, 3]), dim=0)["a"].tolist()
            [2, 2, 2]
        """
        source = self
        ndim = len(self.batch_size)
        if not ndim:
            if inplace:
                raise RuntimeError(MSG_INTERLEAVE_SCALAR)
            source = self.unsqueeze(0)
            at = 0 if dim is None else _dim_in_range(from_front(dim, 1), 1)
        elif dim is None:
            if inplace:
                raise RuntimeError(MSG_INTERLEAVE_FLAT)
            if ndim != 1:
                source = self.reshape(-1)
            at = 0
        else:
            at = from_front(dim, ndim)
            if at < 0:
                msg = (
                    f"dim {dim} is out of range for tensordict with shape "
                    f"{self.batch_size}."
                )
                raise ValueError(msg)
            at = _dim_in_range(at, ndim)
        batch_size = source.batch_size
        length = batch_size[at]
        if isinstance(repeats, np.integer):
            repeats = int(repeats)
        if isinstance(repeats, int):
            if repeats < 0:
                msg = "Repeats must be non-negative"
                raise RuntimeError(msg)
            total = length * repeats
            if dim is not None and output_size not in (None, total):
                raise RuntimeError(MSG_OUTPUT_SIZE.format(total, output_size))
        elif not isinstance(repeats, torch.Tensor):
            raise TypeError(MSG_INTERLEAVE_TYPE.format(type(repeats).__name__))
        else:
            if repeats.is_floating_point():
                # Raise the same error as a size made of this sum.
                torch.Size([repeats.sum().item()])  # type: ignore[list-item]
            if repeats.dim() == 1 and repeats.shape[0] not in (1, length):
                raise RuntimeError(MSG_REPEATS.format(repeats.shape[0], length))
            count = repeats.numel()
            if output_size is not None:
                total = output_size
            else:
                total = int(repeats.sum()) * (length if count == 1 else 1)
            if count == 1:
                repeats = repeats.reshape(1).expand(length)
        size = torch.Size([*batch_size[:at], total, *batch_size[at + 1 :]])
        if isinstance(repeats, int):
            op, args = "repeat_interleave", (repeats, at)
        else:
            # With a known length, torch need not wait for the numbers on a GPU.
            op, args = _interleave_leaf, (repeats, at, total)  # type: ignore[assignment]
        result = _rust.map_leaves(source, op, args, size, True, 0, True, -1)
        return self._replace_content(result) if inplace else result

    # Moving ----------------------------------------------------------------------

    def roll(
        self,
        shifts: int | tuple[int, ...],
        dims: int | tuple[int, ...] | None = None,
        *,
        inplace: bool = False,
    ) -> Self:
        """Shift rows along batch dimensions; the last rows move to the front.

        As :func:`torch.roll`.

        Args:
            shifts: the number of places, for each of ``dims``.
            dims: the batch dimensions. Default: all of them, rolled as if flattened.
            inplace: store the new leaves in this tensordict and return it.

        Raises:
            IndexError: a dimension is no batch dimension.
            RuntimeError: the numbers of shifts and dimensions differ; or ``inplace`` is
                True and the tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.tensor([1, 2, 3])}, batch_size=[3])
            >>> td.roll(1)["a"].tolist()
            [3, 1, 2]
        """
        batch_size = self.batch_size
        ndim = len(batch_size)
        count = len(shifts) if isinstance(shifts, (tuple, list)) else 1
        if dims is None or (isinstance(dims, (tuple, list)) and not dims):
            if count != 1:
                raise RuntimeError(MSG_ALIGN.format(count, 1))
            result = _rust.map_leaves(
                self, _roll_flat, (shifts, ndim), self.batch_size, True, 0, True, -1
            )
        else:
            given = dims if isinstance(dims, (tuple, list)) else (dims,)
            where = [batch_dim(dim, batch_size) for dim in given]
            if count != len(where):
                raise RuntimeError(MSG_ALIGN.format(count, len(where)))
            # torch parses numbers faster than tuples of one number.
            single = len(where) == 1 and isinstance(shifts, int)
            along: Any = where[0] if single else tuple(where)
            result = _rust.map_leaves(
                self, "roll", (shifts, along), self.batch_size, True, 0, True, -1
            )
        if inplace:
            result = self._replace_content(result)
        return remember(self, result, "roll", (shifts, dims), {})

    def flip(self, dims: int | tuple[int, ...]) -> Self:
        """Reverse the order along batch dimensions, as :func:`torch.flip`.

        Raises:
            IndexError: a dimension is no batch dimension.
            RuntimeError: a dimension is passed twice.

        Examples:
            >>> td = TensorDict({"a": torch.tensor([1, 2, 3])}, batch_size=[3])
            >>> td.flip(0)["a"].tolist()
            [3, 2, 1]
        """
        ndim = len(self.batch_size)
        given = tuple(dims) if isinstance(dims, (tuple, list)) else (dims,)
        where = []
        for dim in given:
            at = _dim_in_range(from_front(dim, ndim), ndim)
            if at in where:
                msg = f"dim {at} appears multiple times in the list of dims"
                raise RuntimeError(msg)
            where.append(at)
        return self._flipped(tuple(where), "flip", (dims,))

    def _flipped(self, dims: tuple[int, ...], name: str, args: tuple[Any, ...]) -> Self:
        # torch parses a number fastest.
        args_of_leaf = dims if len(dims) == 1 else (dims,)
        result = _rust.map_leaves(
            self, "flip", args_of_leaf, self.batch_size, True, 0, True, -1
        )
        return remember(self, result, name, args, {})

    def flipud(self) -> Self:
        """Reverse the order along the first batch dimension, as :func:`torch.flipud`.

        Raises:
            RuntimeError: there is no batch dimension.
        """
        if not self.batch_size:
            msg = "flipud requires at least 1 batch dimension"
            raise RuntimeError(msg)
        return self._flipped((0,), "flipud", ())

    def fliplr(self) -> Self:
        """Reverse the order along the second batch dimension, as :func:`torch.fliplr`.

        Raises:
            RuntimeError: there are fewer than two batch dimensions.
        """
        if len(self.batch_size) < 2:
            msg = "fliplr requires at least 2 batch dimensions"
            raise RuntimeError(msg)
        return self._flipped((1,), "fliplr", ())

    def rot90(self, k: int = 1, dims: tuple[int, int] = (0, 1)) -> Self:
        """Rotate by ``k`` times 90 degrees in the plane of two batch dimensions.

        As :func:`torch.rot90`. If ``k`` is a multiple of 4, this tensordict itself is
        returned.

        Raises:
            IndexError: a dimension is no batch dimension.
            RuntimeError: both dimensions are the same, or there are fewer than two.

        Examples:
            >>> td = TensorDict({"a": torch.tensor([[1, 2], [3, 4]])}, [2, 2])
            >>> td.rot90()["a"].tolist()
            [[2, 4], [1, 3]]
        """
        batch_size = self.batch_size
        ndim = len(batch_size)
        if ndim < 2:
            msg = "rot90 requires at least 2 batch dimensions"
            raise RuntimeError(msg)
        if len(dims) != 2:
            msg = "rot90 requires exactly 2 dims"
            raise RuntimeError(msg)
        first, second = (from_front(dim, ndim) for dim in dims)
        if not (0 <= first < ndim and 0 <= second < ndim):
            msg = "list index out of range"
            raise IndexError(msg)
        if first == second:
            msg = (
                "expected rotation dims to be different, but got dim0 = "
                f"{first} and dim1 = {second}"
            )
            raise RuntimeError(msg)
        result = self
        if k % 4:
            order, size = list(range(ndim)), list(batch_size)
            if k % 2:
                order[first], order[second] = second, first
                size[first], size[second] = size[second], size[first]
            result = _rust.map_leaves(
                self,
                "rot90",
                () if (k, first, second) == (1, 0, 1) else (k, (first, second)),
                torch.Size(size),
                tuple(order),
                0,
                True,
                -1,
            )
        args = () if k == 1 and dims == (0, 1) else (k, dims)
        return remember(self, result, "rot90", args, {})

    # Padding ---------------------------------------------------------------------

    def pad(
        self,
        pad_size: Sequence[int],
        value: float = 0.0,
        inplace: bool = False,
        safe: bool = True,
    ) -> Self:
        """Pad with rows before and after along batch dimensions.

        The result is unlocked and of the plain type, also for a subclass.

        Args:
            pad_size: the number of rows before and after each batch dimension, in the
                order of the dimensions: ``[before_0, after_0, before_1, after_1, ...]``.
                Negative numbers remove rows. Dimensions at the end may be left out.
            value: the value of the added elements.
            inplace: store the new leaves in this tensordict and return it.
            safe: accepted for compatibility, and ignored.

        Raises:
            RuntimeError: ``pad_size`` has an odd length or is too long; or ``inplace``
                is True and the tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.tensor([1, 2])}, batch_size=[2])
            >>> td.pad([1, 2], value=9)["a"].tolist()
            [9, 1, 2, 9, 9]
        """
        batch_size = self.batch_size
        ndim = len(batch_size)
        if len(pad_size) > 2 * ndim:
            msg = "The length of pad_size must be <= 2 * the number of batch dimensions"
            raise RuntimeError(msg)
        if len(pad_size) % 2:
            msg = "pad_size must have an even number of dimensions"
            raise RuntimeError(msg)
        if inplace and self.is_locked:
            raise locked_error(self)
        sizes = list(batch_size)
        pads: list[int] = []
        for at in range(len(pad_size) // 2):
            before, after = pad_size[2 * at], pad_size[2 * at + 1]
            sizes[at] += before + after
            if sizes[at] < 0:
                leaf = next(iter(self.keys(True, True)), None)
                raise RuntimeError(
                    MSG_NEGATIVE.format((before, after), at, leaf, batch_size[at])
                )
            pads = [before, after, *pads]
        result = _rust.map_leaves(
            self, _pad_leaf, (pads, value), torch.Size(sizes), True, 0, False, -1
        )
        return self._replace_content(result) if inplace else _all_plain(result)

    # Layout ----------------------------------------------------------------------

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Self:
        """Make all leaves contiguous, unlocked. Contiguous leaves are shared.

        Args:
            canonical: also give dimensions of size 1 the strides of a new tensor. torch
                then treats the layout as the standard one.
            inplace: store the new leaves in this tensordict and return it.

        Raises:
            RuntimeError: ``inplace`` is True, the tensordict is locked, and a leaf is
                not contiguous.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4).T}, batch_size=[4])
            >>> td.contiguous().is_contiguous()
            True
        """
        op = _canonical if canonical else "contiguous"
        result = _rust.map_leaves(self, op, (), None, True, 0, False, -1)
        if not inplace:
            return result
        if self.is_locked:
            pairs = zip(_rust.leaves(self), _rust.leaves(result), strict=True)
            if all(old is new for old, new in pairs):
                return self
        return self._replace_content(result)

    def is_contiguous(self) -> bool:
        """Return whether all leaves are contiguous; those of a lazy stack are not."""
        for entry in list(self._entries().values()):  # noqa: SIM110 (cheaper)
            if not entry.is_contiguous():
                return False
        return True

    def densify(self, layout: torch.layout = torch.strided) -> Self:
        """Convert lazy stacks to dense tensordicts, with one tensor for each entry.

        Args:
            layout: the layout of the nested tensors that ragged entries become.

        Returns:
            A tensordict without lazy stacks; this tensordict if it contains none.
        """
        entries = dict(self._entries())
        densified = {
            key: entry.densify(layout)
            for key, entry in entries.items()
            if is_branch(entry)
        }
        if all(entry is entries[key] for key, entry in densified.items()):
            return self
        entries |= densified
        if not self._is_dense:
            return self._with_entries(entries)
        size, device, names = self._batch_size, self._device, self._td_dim_names
        return _rust.new(type(self), entries, size, device, names)

    def to_padded_tensor(
        self, padding: float = 0.0, mask_key: NestedKeyLike | None = None
    ) -> Self:
        """Pad ragged entries to dense tensors. The result is unlocked.

        A ragged batch dimension gets the size of the longest row.

        Args:
            padding: the value of the padding.
            mask_key: the key for a boolean tensor of the shape of the batch size, True
                at elements that are no padding.

        Raises:
            RuntimeError: ``mask_key`` was passed, and no batch dimension is ragged.
        """
        if -1 in self.batch_size:
            return self._padded_batch(padding, mask_key)
        if mask_key is not None:
            raise RuntimeError(MSG_MASK_KEY)
        return _rust.map_leaves(self, special.padded, (padding,))

    def _padded_batch(self, padding: float, mask_key: NestedKeyLike | None) -> Self:
        """Pad ragged batch dims to their longest size."""
        source: Any = self if self._is_dense else self.densify(layout=torch.jagged)
        result: Self = _rust.map_leaves(source, special.padded, (padding,))
        ndim = len(self.batch_size)
        ragged = (
            leaf for leaf in _rust.leaves(source) if special.rows(leaf) is not None
        )
        nested = next(ragged, None)
        if nested is None:
            return result
        size = special.padded(nested, padding).shape[:ndim]
        for collection in _rust.containers(result):
            held_size = collection._batch_size
            if collection._is_non_tensor and -1 in held_size:
                # Non-tensor data cannot be padded.
                continue
            padded_size = [*size, *held_size[ndim:]][: len(held_size)]
            collection._batch_size = torch.Size(padded_size)
        if mask_key is not None:
            mask = torch.zeros(size, dtype=torch.bool, device=nested.device)
            for at, row in enumerate(nested.unbind()):
                held = tuple(slice(length) for length in row.shape[: ndim - 1])
                mask[at][held] = True
            result.set(mask_key, mask)
        return result

    def pack(
        self, dim: int = -1, *, layout: PackLayout | None = None
    ) -> tuple[torch.Tensor, PackLayout]:
        """Concatenate all leaves into one tensor, and return the layout to undo it.

        Leaves go from ``[*B, *F]`` to ``[*B, N]``, where ``N`` is the sum of the
        feature sizes of all leaves, in the order of the sorted keys. Names and other
        attributes are not kept.

        Args:
            dim: the place of the new dimension among the batch dimensions.
            layout: the layout of an earlier call on an equal structure, which saves its
                computation.

        Raises:
            KeyError: ``layout`` has other keys than the leaves.
            TypeError: the dtypes of the leaves differ.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(2, 3), "b": torch.ones(2)}, [2])
            >>> flat, layout = td.pack()
            >>> flat.tolist()
            [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
            >>> layout.unpack(flat * 2)["b"].tolist()
            [2.0, 2.0]
        """
        return pack_leaves(self, dim, layout)


def _all_plain(td: CollectionProtocol) -> Any:
    """Convert ``td`` and nested tensordicts of subclasses to the plain type."""
    if not td._is_dense:
        return td
    entries = td._tensordict
    for key, value in list(entries.items()):
        if isinstance(value, CollectionProtocol):
            entries[key] = _all_plain(value)
    if type(td) is td._plain_type:
        return td
    names = td._td_dim_names
    return _rust.new(td._plain_type, entries, td._batch_size, td._device, names)


def _dim_in_range(dim: int, ndim: int) -> int:
    if not 0 <= dim < ndim:
        raise IndexError(MSG_RANGE.format(ndim, ndim - 1, dim))
    return dim


def _interleave_leaf(
    leaf: torch.Tensor, repeats: Any, dim: int, total: int
) -> torch.Tensor:
    return leaf.repeat_interleave(repeats, dim=dim, output_size=total)


def _roll_flat(leaf: torch.Tensor, shifts: Any, ndim: int) -> torch.Tensor:
    if not ndim:
        return leaf.unsqueeze(0).roll(shifts, 0).squeeze(0)
    return leaf.flatten(0, ndim - 1).roll(shifts, 0).reshape(leaf.shape)


def _pad_leaf(leaf: torch.Tensor, pads: list[int], value: float) -> torch.Tensor:
    if not pads:
        return leaf.clone()
    features = leaf.dim() - len(pads) // 2
    return torch.nn.functional.pad(leaf, [0, 0] * features + pads, value=value)


def _canonical(leaf: torch.Tensor) -> torch.Tensor:
    if leaf.is_nested:
        return leaf.contiguous()
    strides, expected = leaf.stride(), 1
    for length, stride in zip(reversed(leaf.shape), reversed(strides), strict=True):
        if stride != expected:
            return leaf.clone(memory_format=torch.contiguous_format)
        expected *= max(length, 1)
    return leaf
