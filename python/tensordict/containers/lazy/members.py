"""Let the members of a stack do their part: walks and locks."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.lazy import shapes
from tensordict.containers.lazy.state import StackState
from tensordict.primitives.common import more_refs
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
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["MembersOps"]

MSG_PARTS = (
    "The expanded size of the tensor ({}) must match the existing size ({}) at "
    "non-singleton dimension {}."
)


class MembersOps(StackState):
    """The walks and locks of a stack, done by each of its members."""

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
        # An expanded stack has elements of its own, which are free.
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
        """The stack mapped; with ``lock`` what is locked in a member of it is again."""
        if op in ONE_BLOCK:
            return self._as_dense()
        size = self.batch_size
        k = len(size) if k < 0 else k
        dim = self.stack_dim
        members = self.tensordicts
        if dim >= k or not members:
            # The dims that the operation is about are those of the members, too.
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
        # A result of a method of the members has their class.
        is_softmax = op in COMPUTES and op in ALONG_DIMS
        if is_softmax and self._has_exclusive_keys:
            return shapes.softmaxed(self, args[1:])
        keeps_class = op in NEW_ELEMENTS or is_softmax
        try:
            dense = self._stack_members() if keeps_class else self._as_dense()
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
            # A stack of expanded members has elements of its own.
            return result.clone()
        return result

    def _expanded_members(self, prefix: torch.Size, names: object, k: int) -> Any:
        """The members expanded where they cannot be stacked; None where they can."""
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
        # A ragged dim keeps the size that it has in each member.
        members = []
        for member in self.tensordicts:
            own = [
                member.batch_size[at - len(size)] if length == -1 else length
                for at, length in enumerate(size)
            ]
            goal = torch.Size(own)
            members.append(
                _rust.map_leaves(
                    member, "expand", (goal,), goal, names, 1, False, k - 1
                )
            )
        if len(members) == 1 and count != 1:
            members = members * count
        return members[0]._stack_lazily(members, dim, self._td_dim_name)

    def unbind(self, dim: int) -> tuple[Any, ...]:
        """The collections along a batch dim: see :meth:`TensorDictBase.unbind`.

        Along the stack dim they are the members.
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
        """A piece of no members: dense, without elements."""
        index = (slice(None),) * dim + (slice(0, 0),)
        return self[index]

    def _leaves(self, out: list[Any]) -> None:
        _rust.member_leaves(self.tensordicts, out)

    def _rebuild(self, values: Iterator[Any], lock: bool) -> Any:
        return self._like(_rust.rebuilt_members(self.tensordicts, values, None))

    def _drop_empty(self) -> None:
        drop_empty_of_members(self.tensordicts)

    def _without_none(self) -> Any:
        return self._like([member._without_none() for member in self.tensordicts])

    def _rebuild_as(self, values: Iterator[Any], cls: object, size: object) -> Any:
        # Without names and class, for comparisons.
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
            found = _rust.align(member, part, is_complete)
            if found is None:
                return False
            out += found
        return True

    def _leaf_batch_dims(self, out: list[int]) -> None:
        for member in self.tensordicts:
            _rust.leaf_batch_dims(member, out)

    def _parts_of(self, other: object) -> list[Any] | None:
        """The part of another collection that belongs to each member; None if it has none.

        A collection without batch dims is a part of its own for all members.
        """
        count, dim = len(self.tensordicts), self.stack_dim
        if not isinstance(other, CollectionProtocol):
            return None
        if isinstance(other, MembersOps) and other.stack_dim == dim:
            return other.tensordicts if len(other.tensordicts) == count else None
        size = other.batch_size
        if not size:
            return [other] * count
        if len(size) <= dim or size[dim] != count:
            return None
        return list(other.unbind(dim))

    def _tensor_parts(self, value: torch.Tensor) -> list[torch.Tensor]:
        """The part of a tensor, broadcast from the left, that belongs to each member."""
        count, dim = len(self.tensordicts), self.stack_dim
        if value.dim() <= dim:
            return [value] * count
        if value.shape[dim] == 1:
            return [value.select(dim, 0)] * count
        return list(value.unbind(dim))

    def _member_operands(self, operands: Sequence[Any]) -> Any:
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
    """Lock the nested collections of a result that are locked in what it is made of."""
    for key, entry in result._entries().items():
        if not isinstance(entry, CollectionProtocol) or entry._is_non_tensor:
            continue
        own = td._sample_entry(key)
        if isinstance(own, CollectionProtocol) and own.is_locked:
            _rust.lock_tree(entry)
        elif isinstance(own, CollectionProtocol):
            _lock_alike(own, entry)


def _shapes(td: CollectionProtocol) -> list[Any]:
    return [leaf.shape for leaf in _rust.leaves(td)]


def _without_dim(
    member: CollectionProtocol,
    op: str,
    args: tuple[Any, ...],
    at: int,
    k: int,
) -> list[torch.Size]:
    """The batch sizes of the pieces of a member that is split along ``at``."""
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
    """The part of ``value`` for each of ``targets``, which are rows along ``dim``.

    Raises:
        RuntimeError: it does not fit one of them.
    """
    parts = [value] * len(targets)
    if not targets:
        return parts
    # Values broadcast from the right: one with fewer dims may be the same for all.
    along = dim + value.dim() - targets[0].dim() - 1
    if along >= 0 and value.shape[along] != 1:
        parts = list(value.unbind(along))
        if len(parts) != len(targets):
            message = MSG_PARTS.format(len(targets), value.shape[along], along)
            raise RuntimeError(message)
    elif along >= 0:
        parts = [value.squeeze(along)] * len(targets)
    for target, part in zip(targets, parts, strict=True):
        if part.dim() <= target.dim():
            part.expand(target.shape)
    return parts
