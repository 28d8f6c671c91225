"""Methods of lazy stacks that run on the members: calls on leaves, joins, locks."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.lazy import shapes
from tensordict.containers.lazy.access import StackState
from tensordict.ops.autograd import AutogradOps
from tensordict.primitives import special
from tensordict.primitives.checks import is_branch
from tensordict.primitives.common import more_refs
from tensordict.primitives.dims import remember
from tensordict.primitives.join import MSG_STACK_BATCH
from tensordict.primitives.lazy import drop_empty_of_members
from tensordict.primitives.operations import (
    ALONG_DIMS,
    COMPUTES,
    DROPS_DIM,
    MOVES_DIMS,
    NEW_ELEMENTS,
    ONE_BLOCK,
    ONLY_VIEWS,
    REGROUPS,
    SPREADS,
    bounds_of_parts,
)
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tensordict.containers.collection import TensorCollection

__all__ = ["CombiningOps"]

MSG_PARTS = (
    "The collection has {} elements along dim {}, but the stack has {} members there."
)
MSG_OUT = (
    "out must be a LazyStackedTensorDict instance in lazy_stack.apply(..., out=out)."
)
MSG_INCOMPARABLE = "Incompatible value {} for op {}."
MSG_NEGATIVE = "Trying to create tensor with negative dimension {}: {}"
MSG_TO_SIZE = "Cannot pass batch-size to a LazyStackedTensorDict."
MSG_PACK = "Cannot pack a lazy stack whose members have different keys."

MOVING_ELEMENTS = frozenset({"logsumexp", "roll", "rot90", "flip", "fliplr", "flipud"})
"""Methods that check their dim arguments before they stack the members."""


MOVING_ROWS = frozenset({"roll", "flip", "fliplr", "flipud"})
"""The methods of ``MOVING_ELEMENTS`` that can also run on separate members."""


MSG_EXPAND = (
    "The expanded size of the tensor ({}) must match the existing size ({}) at "
    "non-singleton dimension {}."
)


class CombiningOps(StackState):
    """Methods of a stack that visit all leaves, join stacks, or set locks."""

    # Calling a function on every leaf ----------------------------------------------

    def _apply_nest(
        self,
        fn: Callable[..., Any],
        *others: object,
        batch_size: torch.Size | None = None,
        device: object = NO_DEFAULT,
        names: Any = NO_DEFAULT,
        checked: bool = False,
        call_on_nested: bool = False,
        default: object = NO_DEFAULT,
        named: bool = False,
        nested_keys: bool = False,
        prefix: tuple[str, ...] = (),
        filter_empty: bool | None = None,
        is_leaf: object = None,
        **kwargs: object,
    ) -> Any:
        """Run ``apply`` by member, or on a dense copy if the batch size changes."""
        if call_on_nested:
            is_leaf = True
        columns = None if batch_size is not None else self._columns_of(others)
        if columns is None:
            others = tuple(
                other._as_dense() if isinstance(other, CombiningOps) else other
                for other in others
            )
            return _rust.apply_nest(
                self._as_dense(), fn, others, batch_size, device, names, default, named,
                nested_keys, filter_empty, is_leaf, checked, prefix,
            )  # fmt: skip
        member_names, dim_name = names, self._td_dim_name
        if names is not NO_DEFAULT:
            rest = [None] * len(self.batch_size) if names is None else list(names)
            dim_name = rest.pop(self.stack_dim)
            member_names = rest if any(name is not None for name in rest) else None
        results = [
            _rust.apply_nest(
                member, fn, tuple(column[at] for column in columns), None, device,
                member_names,
                default, named, nested_keys, filter_empty, is_leaf, checked, prefix,
            )
            for at, member in enumerate(self.tensordicts)
        ]  # fmt: skip
        if results and all(result is None for result in results):
            return None
        options = {} if device is NO_DEFAULT else {"device": device}
        for at, result in enumerate(results):
            if result is None:
                results[at] = self.tensordicts[at].empty(**options)
                if names is not NO_DEFAULT:
                    results[at].names = member_names
        stack = self._like(results)
        stack._td_dim_name = dim_name
        return stack

    def _columns_of(self, others: Sequence[Any]) -> list[list[Any]] | None:
        """Split each of ``others`` by member; return None if one cannot be split.

        Raises:
            ValueError: one of ``others`` has a different number of elements along the
                stack dim.
        """
        columns = []
        dim = self.stack_dim
        for other in others:
            if isinstance(other, CollectionProtocol):
                parts = self._parts_of(other)
                if parts is None:
                    size = other.batch_size
                    if len(size) > dim:
                        count = len(self.tensordicts)
                        raise ValueError(MSG_PARTS.format(size[dim], dim, count))
                    return None
                columns.append(parts)
            else:
                columns.append([other] * len(self.tensordicts))
        return columns

    def _apply_with(
        self,
        fn: Callable[..., Any],
        others: tuple[Any, ...] = (),
        batch_size: Any = None,
        device: torch.device | str | int | None = NO_DEFAULT,
        names: Any = NO_DEFAULT,
        inplace: bool = False,
        default: object = NO_DEFAULT,
        named: bool = False,
        nested_keys: bool = False,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        is_leaf: Callable[[Any], bool] | None = None,
        out: object = None,
        checked: bool = False,
        prefix: tuple[str, ...] = (),
        call_on_unbatched: bool = False,
    ) -> Any:
        if out is not None and not isinstance(out, CombiningOps):
            raise ValueError(MSG_OUT)
        return super()._apply_with(
            fn, others, batch_size, device, names, inplace, default, named, nested_keys,
            filter_empty, propagate_lock, is_leaf, out, checked, prefix,
            call_on_unbatched,
        )  # fmt: skip

    def apply_(self, fn: Callable[..., Any], *others: object, **kwargs: object) -> Self:
        """Call ``fn`` on each leaf of the members. See ``TensorDict.apply_``.

        The results are broadcast to the leaves into which they are copied.
        """
        this: Any = self
        this._fast_apply(fn, *others, inplace=True, **kwargs)
        return self

    # Updates -------------------------------------------------------------------------

    def _is_ragged(self, key: str) -> bool:
        """Return whether the members' leaves at a direct key cannot be one tensor.

        They differ in shape, or are unbatched.
        """
        values = self._seen(key)
        if values is None or isinstance(values[0], CollectionProtocol):
            return False
        first = values[0].shape
        return (
            -1 in first
            or special.is_shared(values[0])
            or any(value.shape != first for value in values)
        )

    @property
    def grad(self) -> Self | None:
        """A stack of the members' gradients; None if no member has a gradient."""
        grads = [member.grad for member in self.tensordicts]
        if all(grad is None for grad in grads):
            return None
        result = self._like(
            [
                member.empty() if grad is None else grad
                for member, grad in zip(self.tensordicts, grads, strict=True)
            ]
        )
        if self.is_locked:
            _rust.lock_tree(result)
        return result

    @grad.setter
    def grad(self, value: object) -> None:
        AutogradOps.grad.fset(self, value)  # type: ignore[attr-defined]

    def _undo_to(self, source: Any, *args: object, **kwargs: object) -> None:
        for member, source_member in zip(
            self.tensordicts, source.tensordicts, strict=True
        ):
            member._undo_to(source_member, *args, **kwargs)

    def to(self, *args: object, **kwargs: object) -> Self:
        """Return a stack of the members, moved or cast. See ``TensorDict.to``.

        Raises:
            TypeError: ``batch_size`` is given, which the members of a stack define.
        """
        if kwargs.get("batch_size") is not None:
            raise TypeError(MSG_TO_SIZE)
        if kwargs.get("inplace") and self.tensordicts:
            for member in self.tensordicts:
                member.to(*args, **kwargs)
            return remember(self, self, "to", args, kwargs)
        return super().to(*args, **kwargs)  # type: ignore[misc]

    def _incomparable(self, name: str, other: object, otherwise: bool) -> bool:
        if name in ("__eq__", "__ne__"):
            return otherwise
        raise ValueError(MSG_INCOMPARABLE.format(type(other), name))

    # Joining -----------------------------------------------------------------------------

    def _stack_all(self, tds: Sequence[Any], dim: int) -> Any:
        stack_dim = self.stack_dim
        for at, td in enumerate(tds):
            if td.batch_size != self.batch_size:
                raise RuntimeError(
                    MSG_STACK_BATCH.format(at, td.batch_size, self.batch_size)
                )
        if not all(_is_alike(td, self) for td in tds):
            if all(isinstance(td, CombiningOps) for td in tds):
                # Stacks along different dims have no members that correspond.
                return self._stack_lazily(list(tds), dim, None)
            return _rust.stack([_dense(td) for td in tds], dim)
        at = dim - (dim > stack_dim)
        if any(leaf.is_nested for leaf in _rust.leaves(self)):
            # torch cannot stack nested tensors, so the result is a stack of stacks.
            return self._stack_lazily(list(tds), dim, None)
        members = [
            _rust.stack(list(group), at)
            for group in zip(*(td.tensordicts for td in tds), strict=True)
        ]
        if not members:
            return _rust.stack([_dense(td) for td in tds], dim)
        name = self._td_dim_name
        return members[0]._stack_lazily(members, stack_dim + (dim <= stack_dim), name)

    def _cat_all(self, tds: Sequence[Any], dim: int) -> Any:
        stack_dim = self.stack_dim
        if dim == stack_dim:
            return self._like(
                [member for td in tds for member in _members(td, stack_dim)]
            )
        if any(len(_members(td, stack_dim)) != len(self.tensordicts) for td in tds):
            return _rust.cat([_dense(td) for td in tds], dim)
        at = dim - (dim > stack_dim)
        groups = zip(*(_members(td, stack_dim) for td in tds), strict=True)
        members = [_rust.cat(list(group), at) for group in groups]
        return self._like(members)

    def _cat_with_entries(self, tds: Sequence[Any], dim: int) -> Any:
        # The result is a stack, so that it keeps exclusive entries.
        return self._cat_all(tds, dim)

    # Leaf by leaf ---------------------------------------------------------------------

    def data_ptr(self, *, storage: bool = False) -> Any:
        """Return the addresses of each member's leaves, under the member's position."""
        pointers = {
            str(number): member.data_ptr(storage=storage)
            for number, member in enumerate(self.tensordicts)
        }
        return self._plain_type(pointers, batch_size=[], device="cpu")

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> Any:
        """Apply a softmax to each leaf along a batch dim.

        See ``TensorDict.softmax``.
        """
        ndim = len(self.batch_size)
        stack_dim = self.stack_dim
        if not -ndim <= dim < ndim or dim % ndim == stack_dim:
            return super().softmax(dim, dtype)  # type: ignore[misc]
        at = dim % ndim
        at -= at > stack_dim
        return self._like([member.softmax(at, dtype) for member in self.tensordicts])

    def _new_leaves(
        self,
        method: str,
        size: tuple[Any, ...],
        args: tuple[Any, ...],
        options: dict[str, Any],
        device: object,
        empty_lazy: bool = False,
    ) -> Any:
        dim = self.stack_dim
        if len(size) == 1 and not isinstance(size[0], int):
            size = tuple(size[0])
        if not empty_lazy or len(size) <= dim or not self.tensordicts:
            return super()._new_leaves(method, size, args, options, device)  # type: ignore[misc]
        rest = (*size[:dim], *size[dim + 1 :])
        if size[dim] < 0:
            raise RuntimeError(MSG_NEGATIVE.format(size[dim], size))
        first = self.tensordicts[0]
        if not isinstance(first, CombiningOps):
            first = first.empty(recurse=True)
        stack = self._like(
            [
                first._new_leaves(method, (rest,), args, {}, NO_DEFAULT, True)
                for _ in range(size[dim])
            ]
        )
        stack._batch_size = torch.Size(size)
        return stack

    # Copies of parts ------------------------------------------------------------------

    def pack(self, *args: object, **kwargs: object) -> Any:
        """Copy all leaves into one tensor. See ``TensorDict.pack``.

        Raises:
            RuntimeError: members differ in their keys.
        """
        if self._has_exclusive_keys:
            raise RuntimeError(MSG_PACK)
        return self._as_dense().pack(*args, **kwargs)

    def masked_select(self, mask: torch.Tensor, *, inplace: bool = False) -> Any:
        """Return the elements where ``mask`` is true, stacked."""
        mask.ndimension()
        size = _rust.index_shape(self.batch_size, mask)
        try:
            entries = {
                key: special.at(value, mask, size)
                for key, value in self._entries().items()
            }
        except RuntimeError:
            if inplace:
                raise
            # Entries that cannot be stacked stay in a lazy stack.
            return self._index(mask)
        result = _rust.new(self._plain_type, entries, size, self._device, None)
        names, dims = self._own_names(), mask.ndim
        if names is not None:
            # A mask of several dims selects along one new dim without a name.
            result.names = names if dims == 1 else [None, *names[dims:]]
        return self._replace_content(result) if inplace else result

    def gather(
        self,
        dim: int,
        index: torch.Tensor,
        out: object = None,
        *,
        inplace: bool = False,
    ) -> Any:
        """Select elements along a batch dim. See ``TensorDict.gather``."""
        try:
            return super().gather(dim, index, out, inplace=inplace)  # type: ignore[misc]
        except RuntimeError:
            size = self.batch_size
            if out is not None or inplace or -1 in size or index.dim() != len(size):
                raise
            # Raise the error of a wrong argument for a collection of this size.
            _rust.new(self._plain_type, {}, size, None, None).gather(dim, index)
            at = dim % len(size)
            for size_dim, other in enumerate(index.shape):
                if size_dim != at and other > size[size_dim]:
                    raise
            if (
                index.numel()
                and not -1 < int(index.min()) <= int(index.max()) < size[at]
            ):
                raise
            return shapes.gathered(self, at, index.to(torch.int64))

    def repeat(self, *repeats: Any, inplace: bool = False) -> Any:
        """Repeat along batch dims: a stack of copies. See ``TensorDict.repeat``."""
        times = repeats[0] if repeats and not isinstance(repeats[0], int) else repeats
        times = list(times)
        if inplace or len(times) != len(self.batch_size) or not self.tensordicts:
            return super().repeat(*repeats, inplace=inplace)  # type: ignore[misc]
        count = times.pop(self.stack_dim)
        if count < 1:
            return super().repeat(*repeats)  # type: ignore[misc]
        members = [
            member.repeat(*times) if times else member.clone()
            for _ in range(count)
            for member in self.tensordicts
        ]
        return members[0]._stack_lazily(members, self.stack_dim, self._td_dim_name)

    def repeat_interleave(self, *args: object, **kwargs: object) -> Any:
        """Repeat each element: a stack of copies.

        See ``TensorDict.repeat_interleave``.
        """
        repeats = args[0] if args else kwargs.get("repeats")
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        ndim = len(self.batch_size)
        if dim is None and ndim > 1 and not kwargs.get("inplace"):
            flat = self.reshape(-1)
            return flat.repeat_interleave(repeats, dim=0)
        dim = 0 if dim is None else dim
        counts = _counts(repeats, len(self.tensordicts))
        if (
            counts is None
            or not isinstance(dim, int)
            or not -ndim <= dim < ndim
            or kwargs.get("inplace")
        ):
            return super().repeat_interleave(*args, **kwargs)  # type: ignore[misc]
        at = dim % ndim
        if at == self.stack_dim:
            if len(counts) != len(self.tensordicts) or not any(counts):
                return super().repeat_interleave(*args, **kwargs)  # type: ignore[misc]
            repeated: list[Any] = []
            for member, count in zip(self.tensordicts, counts, strict=True):
                repeated += [member] * count
            members = [member.clone() for member in repeated]
        else:
            inner = at - (at > self.stack_dim)
            members = [
                member.repeat_interleave(repeats, dim=inner)
                for member in self.tensordicts
            ]
        stack = members[0]._stack_lazily(members, self.stack_dim, self._td_dim_name)
        if self.is_locked:
            _rust.lock_tree(stack)
        return stack

    # Walking -----------------------------------------------------------------------

    def _map_leaves(
        self,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        prefix: torch.Size | None,
        names: Any,
        tail: int,
        lock: bool,
        k: int,
    ) -> Any:
        # The elements of an expanded stack are new, so they are not locked.
        lock = lock and op not in NEW_ELEMENTS
        keeps = lock and not self.is_locked
        result = self._mapped(op, args, prefix, names, tail, k, keeps)
        if lock and self.is_locked and not result.is_locked:
            _rust.lock_tree(result)
        elif keeps and result._is_dense:
            _lock_alike(self, result)
        return result

    def _mapped(
        self,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        prefix: torch.Size | None,
        names: Sequence[str | None] | bool | None,
        tail: int,
        k: int,
        lock: bool,
    ) -> Any:
        """Map the stack; with ``lock``, lock parts that are locked in a member."""
        if op in ONE_BLOCK:
            return self._as_dense()
        size = self.batch_size
        k = len(size) if k < 0 else k
        dim = self.stack_dim
        members = self.tensordicts
        if dim >= k or not members:
            # The operation's dims lie before the stack dim, so members have them too.
            results = _rust.map_members(members, op, args, prefix, names, tail, k, lock)
            if prefix is None:
                return self._like(results)
            if not results:
                dense = self._as_dense()
                return _rust.map_leaves(dense, op, args, prefix, names, tail, False, k)
            name = None if names is None else self._td_dim_name
            return results[0]._stack_lazily(results, dim + len(prefix) - k, name)
        if prefix is None and not tail and op not in ALONG_DIMS:
            results = _rust.map_members(members, op, args, None, names, 0, k - 1)
            result = self._like(results)
            if names is None:
                result._td_dim_names = None
            return result
        if isinstance(op, str) and isinstance(names, tuple):
            if op in MOVES_DIMS and dim in names:
                return shapes.moved(self, op, args, names, tail, k, lock)
            if op in MOVES_DIMS:
                gone = args[0] if isinstance(args[0], tuple) else (args[0],)
                return shapes.squeezed(self, gone, k)
        if prefix is not None and isinstance(names, tuple) and dim in names:
            batched = shapes.batched(self, op, args, names, k)
            if batched is not None:
                return batched
        if isinstance(op, str) and op in REGROUPS and prefix is not None:
            goal = torch.Size([*prefix, *size[k:]])
            return shapes.regrouped(self, goal, op not in ONLY_VIEWS)
        if op in SPREADS and prefix is not None:
            expanded = self._expanded_members(prefix, names, k)
            if expanded is not None:
                return expanded
        # Methods that the members implement return the members' class.
        is_softmax = op in COMPUTES and op in ALONG_DIMS
        if is_softmax and self._has_exclusive_keys:
            return shapes.softmaxed(self, args[1:])
        keeps_class = op in NEW_ELEMENTS or is_softmax
        try:
            if keeps_class and self.tensordicts:
                dense = _rust.stack(self.tensordicts, self.stack_dim)
            else:
                dense = self._as_dense()
        except RuntimeError:
            moved = shapes.rearranged(self, op, args)
            if moved is None:
                raise
            return moved
        if op in SPREADS:
            dense.names = self._own_names()
        result = _rust.map_leaves(dense, op, args, prefix, names, tail, False, k)
        if is_softmax:
            return self._like(list(result.unbind(dim)))
        if op in NEW_ELEMENTS:
            # The elements of an expanded stack are independent copies.
            return result.clone()
        return result

    def _expanded_members(self, prefix: torch.Size, names: object, k: int) -> Any:
        """Expand each member if the members cannot be stacked.

        Otherwise return None.
        """
        first = self.tensordicts[0]
        if not self._has_exclusive_keys and all(
            _shapes(member) == _shapes(first) for member in self.tensordicts
        ):
            return None
        dim = self.stack_dim + len(prefix) - k
        count = prefix[dim]
        size = torch.Size([*prefix[:dim], *prefix[dim + 1 :]])
        if isinstance(names, tuple):
            names = tuple(
                old - (old > self.stack_dim)
                for at, old in enumerate(names)
                if at != dim
            )
        # A ragged dim keeps its size in each member.
        members = []
        for member in self.tensordicts:
            member_sizes = [
                member.batch_size[at - len(size)] if length == -1 else length
                for at, length in enumerate(size)
            ]
            goal = torch.Size(member_sizes)
            members.append(
                _rust.map_leaves(
                    member, "expand", (goal,), goal, names, 1, False, k - 1
                )
            )
        if len(members) == 1 and count != 1:
            members = members * count
        return members[0]._stack_lazily(members, dim, self._td_dim_name)

    def unbind(self, dim: int) -> tuple[Any, ...]:
        """Return the collections along a batch dim. See :meth:`TensorDictBase.unbind`.

        Along the stack dim, these are the members.
        """
        if dim == self.stack_dim and self.tensordicts:
            return self._parts(self.tensordicts)
        return super().unbind(dim)

    def _split_leaves(
        self,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        prefixes: list[torch.Size],
        names: Any,
        lock: bool,
        k: int,
    ) -> list[Any]:
        results = self._split(op, args, prefixes, names, k, lock and not self.is_locked)
        if lock and self.is_locked:
            for result in results:
                _rust.lock_tree(result)
        return results

    def _split(
        self,
        op: Any,
        args: tuple[Any, ...],
        prefixes: list[torch.Size],
        names: Sequence[str | None] | bool | None,
        k: int,
        lock: bool,
    ) -> list[Any]:
        k = len(self.batch_size) if k < 0 else k
        dim, members = self.stack_dim, self.tensordicts
        at = args[-1] if args else -1
        bounds = bounds_of_parts(op, args, len(members)) if members else None
        if bounds is None:
            dense = self._as_dense()
            return _rust.split_leaves(dense, op, args, prefixes, names, False, k)
        drops_dim = op in DROPS_DIM
        if at == dim:
            if drops_dim:
                return list(members)
            return [
                self._like(members[start:stop])
                if start < stop
                else self._none_of(op, at)
                for start, stop in bounds
            ]
        inner = at - (at > dim) if dim < k else at
        below = k - 1 if dim < k else k
        rows = [
            _rust.split_leaves(
                member,
                op,
                (*args[:-1], inner),
                _without_dim(member, op, args, inner, below),
                _moved_names(names, inner, len(member.batch_size)),
                lock,
                below,
            )
            for member in members
        ]
        new_dim = dim - (drops_dim and at < dim)
        return [
            group[0]._stack_lazily(list(group), new_dim, self._td_dim_name)
            for group in zip(*rows, strict=True)
        ]

    def _none_of(self, op: object, dim: int) -> Any:
        """Return an empty piece of the stack: dense, without elements."""
        index = (slice(None),) * dim + (slice(0, 0),)
        return self[index]

    def _leaves(self, out: list[Any]) -> None:
        _rust.member_leaves(self.tensordicts, out)

    def _rebuild(self, values: Iterator[Any], lock: bool) -> Self:
        return self._like(_rust.rebuilt_members(self.tensordicts, values, None))

    def _drop_empty(self) -> None:
        drop_empty_of_members(self.tensordicts)

    def _rebuild_as(self, values: Iterator[Any], cls: object, size: object) -> Any:
        # Results of comparisons have neither names nor class.
        from tensordict.containers.lazy.stack import LazyStackedTensorDict

        members = _rust.rebuilt_members(self.tensordicts, values, self._plain_type)
        if not members:
            return self._like([])
        return LazyStackedTensorDict._of(members, self.stack_dim)

    def _clone_structure(self) -> Self:
        return self._like(_rust.cloned_members(self.tensordicts))

    def _align_leaves(self, other: object, out: list[Any], is_complete: bool) -> bool:
        parts = self._parts_of(other)
        if parts is None:
            return False
        for member, part in zip(self.tensordicts, parts, strict=True):
            aligned = _rust.align(member, part, is_complete)
            if aligned is None:
                return False
            out += aligned
        return True

    def _leaf_batch_dims(self, out: list[int]) -> None:
        for member in self.tensordicts:
            _rust.leaf_batch_dims(member, out)

    def _parts_of(self, other: object) -> list[Any] | None:
        """Split another collection by member; return None if the sizes do not fit.

        A collection without batch dims is the part of each member.
        """
        count, dim = len(self.tensordicts), self.stack_dim
        if not isinstance(other, CollectionProtocol):
            return None
        if isinstance(other, CombiningOps) and other.stack_dim == dim:
            return other.tensordicts if len(other.tensordicts) == count else None
        size = other.batch_size
        if not size:
            return [other] * count
        if len(size) <= dim or size[dim] != count:
            return None
        return list(other.unbind(dim))

    def _tensor_parts(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Split a tensor, broadcast from the left, by member."""
        count, dim = len(self.tensordicts), self.stack_dim
        if value.dim() <= dim:
            return [value] * count
        if value.shape[dim] == 1:
            return [value.select(dim, 0)] * count
        return list(value.unbind(dim))

    def _member_operands(self, operands: Sequence[Any]) -> list[Any] | None:
        count = len(self.tensordicts)
        columns: list[list[Any]] = []
        for operand in operands:
            if isinstance(operand, CollectionProtocol):
                parts = self._parts_of(operand)
                if parts is None:
                    return None
                columns.append(parts)
            elif isinstance(operand, torch.Tensor) and operand.dim():
                columns.append(self._tensor_parts(operand))
            else:
                columns.append([operand] * count)
        return [
            (member, [column[at] for column in columns])
            for at, member in enumerate(self.tensordicts)
        ]

    def _spread(self, operand: torch.Tensor) -> list[torch.Tensor]:
        out: list[torch.Tensor] = []
        for member, part in zip(
            self.tensordicts, self._tensor_parts(operand), strict=True
        ):
            out += member._spread(part)
        return out

    # Locks -------------------------------------------------------------------------

    def _lock_tree(self, parents: tuple[Any, ...] = ()) -> None:
        self._is_locked = True
        if parents:
            self._lock_parents_weakrefs = more_refs(
                self._lock_parents_weakrefs, parents
            )
        inner = (*parents, weakref.ref(self))
        for member in self.tensordicts:
            _rust.lock_tree(member, inner)


def _lock_alike(td: CollectionProtocol, result: CollectionProtocol) -> None:
    """Lock the nested collections of a result that are locked in the source."""
    for key, entry in result._entries().items():
        if not is_branch(entry):
            continue
        source_entry = td._sample_entry(key)
        if isinstance(source_entry, CollectionProtocol) and source_entry.is_locked:
            _rust.lock_tree(entry)
        elif isinstance(source_entry, CollectionProtocol):
            _lock_alike(source_entry, entry)


def _shapes(td: CollectionProtocol) -> list[Any]:
    return [leaf.shape for leaf in _rust.leaves(td)]


def _without_dim(
    member: CollectionProtocol,
    op: str,
    args: tuple[Any, ...],
    at: int,
    k: int,
) -> list[torch.Size]:
    """Return the batch sizes of the pieces of a member that is split along ``at``."""
    size = member.batch_size[:k]
    return [
        torch.Size(
            [*size[:at], *([] if op in DROPS_DIM else [stop - start]), *size[at + 1 :]]
        )
        for start, stop in bounds_of_parts(op, args, size[at]) or ()
    ]


def _moved_names(names: object, at: int, ndim: int) -> Any:
    if not isinstance(names, tuple):
        return names
    return tuple(dim for dim in range(ndim) if dim != at)


def _parts_of(
    value: torch.Tensor, dim: int, targets: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Split ``value`` into a part for each of ``targets``, the rows along ``dim``.

    Raises:
        RuntimeError: the value does not fit a target.
    """
    parts = [value] * len(targets)
    if not targets:
        return parts
    # Values broadcast from the right, so a value of fewer dims is the same for all
    # rows.
    along = dim + value.dim() - targets[0].dim() - 1
    if along >= 0 and value.shape[along] != 1:
        parts = list(value.unbind(along))
        if len(parts) != len(targets):
            message = MSG_EXPAND.format(len(targets), value.shape[along], along)
            raise RuntimeError(message)
    elif along >= 0:
        parts = [value.squeeze(along)] * len(targets)
    for target, part in zip(targets, parts, strict=True):
        if part.dim() <= target.dim():
            part.expand(target.shape)
    return parts


def _stacked_first(name: str) -> Callable[..., Any]:
    """Make a method that runs on the dense, stacked collection."""

    def method(self: Any, *args: object, **kwargs: object) -> Any:
        if kwargs.get("reduce") and not args and kwargs.get("dim") is None:
            # Reducing everything needs no equal shapes.
            return getattr(super(CombiningOps, self), name)(**kwargs)
        try:
            dense = self._as_dense()
        except RuntimeError:
            # First raise the error of an argument that no collection of this size
            # takes.
            bare = _rust.new(self._plain_type, {}, self.batch_size, None, None)
            try:
                getattr(bare, name)(*args, **kwargs)
            except (TypeError, ValueError, IndexError) as error:
                if name in MOVING_ELEMENTS or isinstance(error, TypeError):
                    raise
            if name in MOVING_ROWS and -1 not in self.batch_size:
                return getattr(super(CombiningOps, self), name)(*args, **kwargs)
            raise
        if kwargs.get("inplace"):
            result = getattr(dense, name)(*args, **{**kwargs, "inplace": False})
            return self._replace_content(result)
        if self.is_locked:
            _rust.lock_tree(dense)
        return getattr(dense, name)(*args, **kwargs)

    method.__name__ = name
    method.__qualname__ = f"CombiningOps.{name}"
    method.__doc__ = f"Call ``TensorDict.{name}`` on the stacked entries."
    return method


for _name in (
    "sum", "mean", "nansum", "nanmean", "prod", "std", "var", "quantile", "max", "min",
    "amax", "amin", "cummax", "cummin", "norm", "logsumexp", "roll", "rot90", "flip",
    "fliplr", "flipud", "to_struct_array",
):  # fmt: skip
    setattr(CombiningOps, _name, _stacked_first(_name))


def _counts(repeats: object, length: int) -> list[int] | None:
    """Return the number of repeats of each member; None for invalid ``repeats``."""
    if isinstance(repeats, torch.Tensor) and repeats.dtype in (
        torch.int64,
        torch.int32,
    ):
        numbers = repeats.reshape(-1).tolist()
        counts = numbers * length if len(numbers) == 1 else numbers
    elif isinstance(repeats, int) and not isinstance(repeats, bool):
        counts = [repeats] * length
    else:
        return None
    return counts if length and min(counts, default=0) >= 0 else None


def _is_alike(td: TensorCollection, first: object) -> bool:
    return (
        isinstance(td, CombiningOps)
        and td.stack_dim == first.stack_dim
        and len(td.tensordicts) == len(first.tensordicts)
    )


def _dense(td: CollectionProtocol) -> Any:
    return td._as_dense() if isinstance(td, CombiningOps) else td


def _members(td: CollectionProtocol, dim: int) -> list[Any]:
    if isinstance(td, CombiningOps) and td.stack_dim == dim:
        return td.tensordicts
    return list(td.unbind(dim))
