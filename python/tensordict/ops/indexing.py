"""Reading and writing of rows by index or mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.ops.operands import expand_right, spread
from tensordict.primitives import classes, special
from tensordict.primitives.common import refused_first
from tensordict.primitives.dim_numbers import from_front
from tensordict.primitives.errors import absent_key
from tensordict.primitives.feature_index import take_features
from tensordict.primitives.foreach import is_dense_throughout
from tensordict.primitives.index_items import MSG_TOO_MANY, fills
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol, as_stack

if TYPE_CHECKING:
    from tensordict.containers.collection import TensorDictBase
    from tensordict.containers.dense import TensorDict
    from tensordict.containers.view import _SubTensorDict
    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike, StackProtocol

__all__ = ["IndexingOps"]

MSG_EXPAND_RIGHT = (
    "expand_as_right requires the destination tensor to have at least as many "
    "dimensions as the input tensor, got tensor.ndimension()={} and "
    "dest.ndimension()={}"
)
MSG_MASK_SHAPE = (
    "tensor shape is incompatible with dest shape, got: tensor.shape={}, dest={}"
)
MSG_WHERE = (
    "A tensor `other` in LazyStackedTensorDict.where must be 0-dim or start with the "
    "batch shape up to the stack dim, {}, got shape {}. Expand it to the batch shape {} "
    "first."
)
MSG_GATHER_DIM = "Cannot gather tensordict with shape {} along dim {}."
MSG_GATHER_TWO = "`out` and `inplace=True` are mutually exclusive in gather."
MSG_GATHER_DTYPE = "gather(): Expected dtype int32/int64 for index"
MSG_GATHER_INPLACE = (
    "gather(inplace=True) requires index.ndim == self.batch_dims so the result keeps the "
    "same number of batch dims; got index.ndim={} and batch_dims={}. Use inplace=False."
)
MSG_GATHER_NDIM = (
    "expand(torch.LongTensor{}, size={}): the number of sizes provided ({}) must be "
    "greater or equal to the number of dimensions in the tensor ({})"
)
MSG_NO_PAD = "Key {} not found and no pad value provided."


class IndexingOps(CollectionProtocol):
    """Reading and writing of rows by index or mask.

    An index or mask selects along the batch dimensions ``[*B]`` and follows torch's
    rules for tensors of that shape. Lists, ranges and NumPy arrays count as index
    tensors.
    """

    def _get_index(self, index: object) -> Self:
        """Return the tensordict of every entry at ``index``: see ``__getitem__``."""
        result = _rust.index(self, index)
        if not self._is_locked or result is self:
            # A part of shared or mapped memory is locked, too.
            return result
        if self._is_memmap or self._is_shared:
            items = index if isinstance(index, tuple) else (index,)
            if all(map(_stays_in_place, items)):
                _rust.keep_storage(self, result)
        return result

    def _set_index(self, index: object, value: object) -> None:
        """Write ``value`` into every entry at ``index``: see ``__setitem__``."""
        if isinstance(value, dict):
            size = _rust.index_shape(self.batch_size, index)
            value = self._from_mapping(value, size)
        elif (
            isinstance(value, torch.Tensor)
            and not value.requires_grad
            and fills(index, value)
        ):
            value = value.item()
        _rust.set_index(self, index, value)

    def _from_mapping(self, value: Any, size: torch.Size) -> TensorDict:
        return classes.TensorDict(value, batch_size=size, device=self.device)

    def __getitems__(self, index: object) -> Any:
        """Return ``self[index]``: data loaders call this method with a list of rows."""
        return self[index]

    def get_item_shape(self, key: NestedKeyLike) -> torch.Size:
        """Return the shape of the entry at ``key``.

        Raises:
            KeyError: the entry is missing.

        Examples:
            >>> TensorDict({"a": torch.zeros(3, 4)}, [3]).get_item_shape("a")
            torch.Size([3, 4])
        """
        return _rust.get(self, key).shape

    def _get_sub_tensordict(self, idx: BatchIndex) -> _SubTensorDict:
        """Return a view of the part at ``idx``; writes reach this tensordict."""
        return classes._SubTensorDict(source=self, idx=idx)

    # Masks -----------------------------------------------------------------------

    def masked_select(self, mask: torch.Tensor, *, inplace: bool = False) -> Self:
        """Return the elements at which ``mask`` is True.

        As ``self[mask]``, but a subclass gives a plain ``TensorDict``. Leaves go from
        ``[*B, *F]`` to ``[N, *F]`` for a mask of shape ``[*B]`` with ``N`` True
        elements. Leaves are copies.

        Args:
            mask: a boolean tensor whose shape is the batch size or its first
                dimensions; further dimensions of size 1 are ignored.
            inplace: store the new leaves in this tensordict and return it.

        Raises:
            IndexError: the shape of the mask does not match the first batch dimensions.

        Examples:
            >>> td = TensorDict({"a": torch.arange(3)}, batch_size=[3])
            >>> td.masked_select(torch.tensor([True, False, True]))["a"].tolist()
            [0, 2]
        """
        while mask.ndim > self.batch_dims and mask.shape[-1] == 1:
            mask = mask.squeeze(-1)
        if mask.ndim > self.batch_dims and self._is_dense:
            result = self._masked_features(mask)
        else:
            if not self.batch_size:
                # Raise torch's error for a mask with dims, before anything is read.
                _rust.index_plan(self.batch_size, mask)
            result = _rust.index(self, mask)
        if inplace:
            return self._replace_content(result)
        return _as_plain(result) if result._is_dense else result

    def _masked_features(self, mask: torch.Tensor) -> Any:
        """Index each leaf by a mask with more dims than the batch size; drop names."""
        if self.is_empty():
            return self.empty(batch_size=[int(mask.sum())], names=None)
        copy = _rust.clone_structure(self)
        copy.names = None
        error = IndexError(MSG_TOO_MANY.format(self.batch_dims))
        return take_features(copy, mask, error, by_own_dims=True)

    def masked_fill_(self, mask: torch.Tensor, value: float | bool) -> Self:
        """Write ``value`` into every leaf where ``mask`` is True, in place.

        Args:
            mask: a boolean tensor; it broadcasts to the batch size from the left.
            value: the number to write.

        Raises:
            RuntimeError: the mask is not boolean, or does not broadcast.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, batch_size=[3])
            >>> td.masked_fill_(torch.tensor([True, False, True]), 1.0)["a"].tolist()
            [1.0, 0.0, 1.0]
        """
        leaves = _rust.leaves(self)
        _check_mask(mask, self, leaves)
        dtypes = {leaf.dtype for leaf in leaves}
        if len(dtypes) > 1:
            # Refuse a number that a dtype cannot hold before any leaf is written.
            nothing = torch.empty(0, dtype=torch.bool)
            for dtype in dtypes:
                torch.empty(0, dtype=dtype).masked_fill_(nothing, value)
        is_dense = is_dense_throughout(self)
        views = expand_right(leaves, mask) if is_dense else self._spread(mask)
        writes = refused_first(list(zip(leaves, views, strict=True)), 0)
        if not is_dense:
            # Members differ in shape: a leaf that the mask does not fit goes first, so
            # that the error comes before any write.
            writes.sort(key=lambda write: _fits_leaf(*write))
        for leaf, view in writes:
            special.fill_where(leaf, view, value)
        if not is_dense:
            self._store_leaves(leaves)
        return self

    def masked_fill(self, mask: torch.Tensor, value: float | bool) -> Self:
        """Fill a copy where ``mask`` is True, unlocked: see :meth:`masked_fill_`."""
        leaves = _rust.leaves(self)
        _check_mask(mask, self, leaves)
        views = spread(self, leaves, mask)
        filled = [
            leaf.masked_fill(view, value)
            for leaf, view in zip(leaves, views, strict=True)
        ]
        return _rust.rebuild(self, filled, True, False)

    def where(
        self,
        condition: torch.Tensor,
        other: torch.Tensor | TensorDictBase,
        *,
        out: Any = None,
        pad: int | bool | None = None,
        update_batch_size: bool = False,
    ) -> Self:
        """Take elements of this tensordict if ``condition`` is True, else of ``other``.

        As :meth:`torch.Tensor.where`.

        Args:
            condition: a boolean tensor; it broadcasts to every leaf from the left.
            other: a tensordict with the same entries; or a number or tensor for all
                leaves. If it is a tensordict, the result is unlocked.
            out: a tensordict or dict to store the result in; it is returned.
            pad: the value of an entry that one of the two tensordicts lacks. Default: a
                missing entry is an error.
            update_batch_size: give ``out`` the batch size of the result.

        Raises:
            KeyError: an entry is missing and ``pad`` was not passed.
            RuntimeError: a shape does not broadcast, or ``condition`` is not boolean.

        Examples:
            >>> td = TensorDict({"a": torch.arange(3)}, batch_size=[3])
            >>> td.where(torch.tensor([True, False, True]), -1)["a"].tolist()
            [0, -1, 2]
        """
        leaves = _rust.leaves(self)
        _check_mask(condition, self, leaves)
        groups = None
        stack, inner = as_stack(self), self._lazy_stack()
        if stack is not None:
            groups = _member_operands(stack, condition, other, pad)
        elif inner is not None and isinstance(other, CollectionProtocol):
            groups = inner._member_operands((condition, other))
        if groups is not None:
            result = self._like(
                [member.where(*parts, pad=pad) for member, parts in groups]
            )
        elif not isinstance(other, CollectionProtocol):
            views = spread(self, leaves, condition)
            chosen = _where_each(views, leaves, [other] * len(leaves))
            result = _rust.rebuild(self, chosen, True, True)
        else:
            others = _rust.align(self, other, True) if self._is_dense else None
            if others:
                views = spread(self, leaves, condition)
                chosen = _where_each(views, leaves, others)
                result = _rust.rebuild(self, chosen, True, False)
            else:
                result = _where_tree(self, condition, other, pad)
        if out is None:
            return result
        if update_batch_size:
            out.batch_size = result.batch_size
        out.update(result)
        return out

    # Gather ----------------------------------------------------------------------

    def gather(
        self,
        dim: int,
        index: torch.Tensor,
        out: Any = None,
        *,
        inplace: bool = False,
    ) -> Self:
        """Take elements along a batch dimension, as :func:`torch.gather`. Unlocked.

        Args:
            dim: the batch dimension.
            index: an integer tensor of shape ``[*I]``, used for every leaf: leaves go
                from ``[*B, *F]`` to ``[*I, *F]``.
            out: a tensordict whose leaves are overwritten; it is returned.
            inplace: store the new leaves in this tensordict and return it.

        Raises:
            KeyError: ``out`` lacks an entry.
            NotImplementedError: ``inplace`` is True, and ``index`` has fewer dimensions
                than the batch size.
            RuntimeError: ``dim`` is no batch dimension, an index is out of range, or
                the dtype of ``index`` is neither int32 nor int64.

        Examples:
            >>> td = TensorDict({"a": torch.tensor([5, 6, 7])}, batch_size=[3])
            >>> td.gather(0, torch.tensor([2, 0]))["a"].tolist()
            [7, 5]
        """
        batch_size = self.batch_size
        ndim = len(batch_size)
        if inplace and out is not None:
            raise ValueError(MSG_GATHER_TWO)
        if not isinstance(index, torch.Tensor):
            kind = type(index).__name__
            msg = f"gather(): argument 'index' (position 3) must be Tensor, not {kind}"
            raise TypeError(msg)
        if not index.dim():
            msg = "len() of a 0-d tensor"
            raise TypeError(msg)
        if not index.shape[0]:
            msg = "Cannot use torch.gather with an empty index"
            raise RuntimeError(msg)
        at = from_front(dim, ndim)
        if not 0 <= at < ndim:
            raise RuntimeError(MSG_GATHER_DIM.format(batch_size, dim))
        count = index.dim()
        if count > ndim:
            raise RuntimeError(
                MSG_GATHER_NDIM.format(list(index.shape), list(batch_size), ndim, count)
            )
        if index.dtype not in (torch.int64, torch.int32):
            raise RuntimeError(MSG_GATHER_DTYPE)
        if inplace and count != ndim:
            raise NotImplementedError(MSG_GATHER_INPLACE.format(count, ndim))
        index = index.to(torch.int64)
        if out is not None:
            _gather_into(self, at, index, out)
            return out
        # An index with fewer dims than the batch size takes one element of `dim`, and
        # all elements of the other missing dims. The batch size is still the index's.
        rest = [1 if d == at else batch_size[d] for d in range(count, ndim)]
        size = torch.Size([*index.shape, *rest])
        # One index for all leaves with the same further dims.
        indices: dict[Any, torch.Tensor] = {}
        result = _rust.map_leaves(
            self, _gather, (at, indices, index), size, True, 0, False, -1
        )
        if count != ndim:
            result._batch_size = index.shape
            result._td_dim_names = None
        return self._replace_content(result) if inplace else result


def _as_plain(td: CollectionProtocol) -> Any:
    """Convert ``td`` to the plain type; nested tensordicts keep their type."""
    if type(td) is td._plain_type:
        return td
    names = td._td_dim_names
    return _rust.new(td._plain_type, td._tensordict, td._batch_size, td._device, names)


def _stays_in_place(item: object) -> bool:
    """Return whether an item of an index gives a view at the start of its memory."""
    if isinstance(item, slice):
        return item.start is None or item.start == 0
    return item is None or item is Ellipsis or type(item) is int


def _check_mask(mask: torch.Tensor, td: Any, leaves: list[Any]) -> None:
    """Raise an error if ``mask`` does not broadcast to a leaf's leading dims."""
    if not isinstance(mask, torch.Tensor):
        msg = f"where() takes a tensor of booleans as condition, got a {type(mask).__name__}."
        raise TypeError(msg)
    if not leaves:
        return
    ndim = mask.ndimension()
    shapes: list[Any] = [td.batch_size]
    if ndim > len(td.batch_size):
        if is_dense_throughout(td):
            shapes = [leaf.shape for leaf in leaves]
        else:
            # The leaves of a lazy stack are its members' leaves.
            keys = _rust.walk(td, 0, True, True)
            shapes = [td.get_item_shape(key) for key in keys]
    for shape in shapes:
        if ndim > len(shape):
            raise RuntimeError(MSG_EXPAND_RIGHT.format(ndim, len(shape)))
        for length, expected in zip(mask.shape, shape, strict=False):
            # A length in which the members of a lazy stack differ is -1.
            if length != 1 and expected not in (length, -1):
                raise RuntimeError(MSG_MASK_SHAPE.format(mask.shape, leaves[0].shape))


def _append_dims(mask: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Append dims of size 1 to ``mask``, until it has as many dims as ``leaf``."""
    missing = leaf.dim() - mask.dim()
    return mask.reshape(mask.shape + (1,) * missing) if missing else mask


def _where_tree(
    td: Any, condition: torch.Tensor, other: CollectionProtocol, pad: int | None
) -> Any:
    # Writes must not reach the parent of a view, so the result is a plain tensordict.
    result = _rust.clone_structure(td) if td._is_dense else td._as_plain()
    entries, others = dict(td._entries()), other._entries()
    for key, value in list(entries.items()):
        item = others.get(key, NO_DEFAULT)
        result._set_entry(key, _where_entry(key, condition, value, item, pad))
    for key, item in list(others.items()):
        if key not in entries:
            entry = _where_entry(key, condition, NO_DEFAULT, item, pad)
            result._set_entry(key, entry)
    return result


def _where_entry(
    key: str, condition: torch.Tensor, value: Any, item: Any, pad: int | None
) -> Any:
    """Compute one entry of ``where``; NO_DEFAULT stands for a missing entry."""
    present = item if value is NO_DEFAULT else value
    if isinstance(present, CollectionProtocol):
        if present._is_non_tensor:
            is_alone = value is NO_DEFAULT or item is NO_DEFAULT
            if is_alone or not isinstance(item, CollectionProtocol):
                # A false mask puts None there, so the entry needs an unlocked copy.
                return present.clone(False)
            return present.where(condition, item)
        if value is NO_DEFAULT:
            value = present.empty()
        elif item is NO_DEFAULT:
            item = present.empty()
        if isinstance(value, CollectionProtocol) and isinstance(
            item, CollectionProtocol
        ):
            return _where_tree(value, condition, item, pad)
        # A tensor in the place of a nested tensordict applies to each of its leaves.
        if value is present and item is not NO_DEFAULT:
            return value.where(condition, item)
    elif isinstance(item, CollectionProtocol):
        return item.where(~condition, value)
    if value is NO_DEFAULT or item is NO_DEFAULT:
        if pad is None:
            raise absent_key(MSG_NO_PAD.format(key))
        filled = torch.full_like(present, pad)
        value = filled if value is NO_DEFAULT else value
        item = filled if item is NO_DEFAULT else item
    return special.where(_append_dims(condition, value), value, item)


def _where_each(views: list[Any], leaves: list[Any], others: list[Any]) -> list[Any]:
    """Compute ``torch.where`` of each leaf."""
    try:
        return list(map(torch.where, views, leaves, others))
    except (NotImplementedError, ValueError):
        if not any(map(special.kind_of, leaves)):
            raise
        return list(map(special.where, views, leaves, others))


def _gather(
    leaf: torch.Tensor, dim: int, indices: dict[Any, torch.Tensor], index: torch.Tensor
) -> torch.Tensor:
    tail = leaf.shape[index.dim() :]
    found = indices.get(tail)
    if found is None:
        found = indices[tail] = _gather_index(leaf, dim, index)
    return leaf.gather(dim, found)


def _gather_index(leaf: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Expand ``index`` to the further dims of ``leaf``; size 1 along ``dim``."""
    count = index.dim()
    rest = [1 if d == dim else leaf.shape[d] for d in range(count, leaf.dim())]
    if not rest:
        return index
    shape = index.shape
    return index.reshape(shape + (1,) * len(rest)).expand(*shape, *rest)


def _gather_into(td: Any, dim: int, index: torch.Tensor, out: object) -> None:
    targets = [(value, _rust.get(out, key)) for key, value in td.items(True, True)]
    for value, target in targets:
        torch.gather(value, dim, _gather_index(value, dim, index), out=target)


def _fits_leaf(leaf: torch.Tensor, mask: torch.Tensor) -> bool:
    """Return whether a mask broadcasts to a leaf."""
    if leaf.is_nested or mask.is_nested:
        return True
    offset = leaf.dim() - mask.dim()
    return offset >= 0 and all(
        size in (1, length)
        for size, length in zip(mask.shape, leaf.shape[offset:], strict=True)
    )


def _member_operands(
    stack: StackProtocol, condition: torch.Tensor, other: object, pad: object
) -> list[tuple[Any, list[Any]]] | None:
    """Give each member of a stack with its parts of what ``where`` takes.

    Raises:
        ValueError: ``other`` is a tensor that has no part for each member.
    """
    if isinstance(other, torch.Tensor) and other.dim():
        lead = stack.batch_size[: stack.stack_dim + 1]
        if other.shape[: len(lead)] != lead:
            raise ValueError(MSG_WHERE.format(lead, other.shape, stack.batch_size))
        return stack._member_operands((condition, other))
    if not isinstance(other, CollectionProtocol):
        return None
    groups = stack._member_operands((condition, other))
    is_whole = pad is not None or as_stack(other) is not None
    if groups is None or is_whole or not stack._has_exclusive_keys:
        return groups
    # An ordinary collection has no entry for what only some members have.
    keys = list(_rust.walk(stack, 0, True, True))
    return [(member.select(*keys), parts) for member, parts in groups]
