"""Writing into a stack from another collection, and into parts of its entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.lazy.construct import (
    MSG_NEW_SIZE,
    have_own_keys,
    merged_batch_size,
)
from tensordict.containers.lazy.indexing import plan_index
from tensordict.containers.lazy.rollback import Undoing
from tensordict.containers.lazy.set import refuse_casts
from tensordict.containers.lazy.state import StackState
from tensordict.ops.merging import (
    _take_batch_sizes,
    _without_class,
    check_size_of_some,
    key_paths,
)
from tensordict.ops.operands import NUMBERS
from tensordict.primitives.common import MSG_BAD_KEY
from tensordict.primitives.copy import copy_all
from tensordict.primitives.metatensor import MetaTensor
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import is_shared_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike

__all__ = ["UpdatingOps"]

MSG_PARTS = (
    "The collection has {} elements along dim {}, along which the stack has {} members."
)
MSG_UPDATE_SHAPES = "cannot update stacked tensordicts with different shapes."
MSG_COPY = (
    "update_() cannot copy the value of shape {} under the key {!r} into the entry of "
    "shape {}: {}"
)
MSG_UPDATE_COUNT = (
    "cannot update stacked tensordicts with different shapes when "
    "update_batch_size=False."
)


class UpdatingOps(StackState):
    """Updates of a stack, member by member where that is needed."""

    def _update_parts(self, source: Any) -> list[Any] | None:
        """Split the source of an update into the part of each member.

        Raises:
            ValueError: it is a stack of another number of members.
        """
        if isinstance(source, UpdatingOps) and source.stack_dim == self.stack_dim:
            if len(source.tensordicts) == len(self.tensordicts):
                return source.tensordicts
            if source._common_keys() or have_own_keys(source.tensordicts, False):
                raise ValueError(MSG_UPDATE_COUNT)
            return self._mapping_parts({})
        if isinstance(source, CollectionProtocol):
            size = source.batch_size
            if len(size) <= self.stack_dim and size == self.batch_size[: len(size)]:
                # Its entries may have the dims that it does not name itself.
                try:
                    return self._mapping_parts(source._entries())
                except RuntimeError as error:
                    raise ValueError(MSG_UPDATE_SHAPES) from error
            parts = self._parts_of(source)
            if parts is not None:
                return parts
            if source._sample_entries():
                raise ValueError(MSG_UPDATE_SHAPES)
            return self._mapping_parts({})
        return self._mapping_parts(source)

    def _parts_to_resize(self, source: CollectionProtocol) -> list[Any] | None:
        """Split a collection into what each member may take its batch size from."""
        source = _without_class(source)
        if isinstance(source, UpdatingOps) and source.stack_dim == self.stack_dim:
            return source.tensordicts
        if len(source.batch_size) <= self.stack_dim:
            return None
        return list(source.unbind(self.stack_dim))

    def _resize_members(self, source: CollectionProtocol) -> None:
        """Take the members of a collection: as many, and with their batch sizes.

        Raises:
            ValueError: it has no members along the stack dim, or they have other dims.
        """
        parts = self._parts_to_resize(source)
        if parts is None:
            raise ValueError(MSG_UPDATE_SHAPES)
        members, device = self.tensordicts, self._device
        added = []
        for part in parts[len(members) :]:
            if members and part.batch_dims != members[0].batch_dims:
                raise ValueError(
                    MSG_NEW_SIZE.format(members[0].batch_size, part.batch_size)
                )
            part = part.clone(False) if device is None else part.to(device).clone(False)
            added.append(part if part.device == device else part.clear_device_())
        for member, part in zip(members, parts, strict=False):
            _take_batch_sizes(member, part, False)
        # In place: whoever holds the list sees the new members.
        members[len(parts) :] = added
        dim = self.stack_dim
        self._batch_size = (
            merged_batch_size(members, dim) if members else source.batch_size
        )
        self._td_dim_names = None

    def update(
        self,
        input_dict_or_td: object = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        keys_to_update: Sequence[Any] | None = None,
        **kwargs: object,
    ) -> Self:
        """Take the entries of another collection or mapping. See ``TensorDict.update``.

        Those of another stack need not be stacked, so members may differ.
        """
        source = input_dict_or_td
        if isinstance(source, CollectionProtocol) and keys_to_update is not None:
            if keys_to_update and kwargs.get("update_batch_size"):
                check_size_of_some(self, source)
            source, keys_to_update = _chosen(source, keys_to_update), None
        return super().update(
            source, clone, inplace, keys_to_update=keys_to_update, **kwargs
        )

    def replace(self, *args: object, **kwargs: object) -> Self:
        """A copy that shares the leaves, with some entries exchanged.

        See ``TensorDict.replace``. Those of another stack need not be stacked.
        """
        if len(args) != 1 or not isinstance(args[0], UpdatingOps) or kwargs:
            return super().replace(*args, **kwargs)  # type: ignore[misc]
        if args[0].is_empty():
            return self
        result: Self = _rust.clone_structure(self)
        result.update(args[0])
        return result

    def _copy_parts(self, source: Any, is_whole: bool = False) -> list[Any] | None:
        """Split the source of a copy; mappings of values with the stack dim, too.

        With ``is_whole``, or where one does not have it, values broadcast to all of the
        entry. So do those of a collection that has no part for each member.
        """
        if isinstance(source, CollectionProtocol):
            if not is_whole and self._divides(source):
                return self._update_parts(source)
            entries, size = source._entries(), source.batch_size
            # They may have the dims that it does not name itself.
            is_named = bool(size) and size == self.batch_size[: len(size)]
            is_whole = is_whole or not (is_named and self._have_rows(entries.values()))
            along = self.stack_dim - len(self.batch_size) + len(size)
            fits = along < 0 or size[along] in (1, len(self.tensordicts))
            if is_whole and not fits:
                raise ValueError(MSG_UPDATE_SHAPES)
            source = entries
        is_whole = is_whole or not self._have_rows(source.values())
        known: dict[Any, Any] = {}
        absent: dict[Any, Any] = {}
        split: dict[Any, Any] = {}
        for key, value in list(source.items()):
            if not _rust.contains(self, key):
                is_held = any(_rust.contains(each, key) for each in self.tensordicts)
                (known if is_held and not is_whole else absent)[key] = value
                continue
            entry = self._meta(key)
            if _is_in_members(entry) and (
                isinstance(value, dict) or _is_spread(value, is_whole)
            ):
                value = value if isinstance(value, dict) else value._entries()
                split[key] = entry._copy_parts(value, is_whole)
                continue
            is_leaf = isinstance(entry, (torch.Tensor, MetaTensor))
            if is_leaf and isinstance(value, NUMBERS):
                value = torch.as_tensor(value)
            if isinstance(value, torch.Tensor) and is_leaf:
                split[key] = self._copied_rows(entry, key, value, is_whole)
                continue
            known[key] = value
        parts = self._mapping_parts(known)
        for at, part in enumerate(parts):
            part.update(absent)
            part.update({key: pieces[at] for key, pieces in split.items()})
        return parts

    def _have_rows(self, values: object) -> bool:
        """Return whether all values have the stack dim and the batch dims before it."""
        return _all_have(self.batch_size[: self.stack_dim + 1], values)

    def _divides(self, source: CollectionProtocol) -> bool:
        """Return whether a collection is that of all members or has a part for each."""
        size, dim = source.batch_size, self.stack_dim
        if isinstance(source, UpdatingOps) and source.stack_dim == dim:
            return True
        if len(size) > dim:
            return size[dim] == len(self.tensordicts) or not source._sample_entries()
        return False

    def _copied_rows(
        self, entry: Any, key: str, value: torch.Tensor, is_whole: bool
    ) -> list[torch.Tensor]:
        """The part for each member of what is copied into an entry.

        Raises:
            RuntimeError: it does not broadcast to the entry.
        """
        shape, dim = entry.shape, self.stack_dim
        kind = entry._class if isinstance(entry, MetaTensor) else type(entry)
        if is_shared_class(kind):
            return [value] * len(self.tensordicts)
        rest = torch.Size([*shape[:dim], *shape[dim + 1 :]])
        try:
            if not is_whole:
                rows = list(value.unbind(dim))
                for row in rows if -1 not in shape else ():
                    row.expand(rest)
                return rows
            if -1 in shape:
                return [value] * len(self.tensordicts)
            return list(value.expand(shape).unbind(dim))
        except RuntimeError as error:
            message = MSG_COPY.format(value.shape, key, shape, error)
            raise RuntimeError(message) from error

    def _mapping_parts(self, source: Mapping[Any, Any]) -> list[dict[Any, Any]]:
        parts: list[dict[Any, Any]] = [{} for _ in self.tensordicts]
        ragged = -1 in self.batch_size
        for key, value in list(source.items()):
            if isinstance(value, dict):
                pieces: Any = self._mapping_parts(value)
            else:
                if not (ragged and isinstance(value, torch.Tensor)):
                    value = _rust.validate(self, key, value)
                pieces = self._value_parts(value)
            if len(pieces) != len(parts):
                raise RuntimeError(
                    MSG_PARTS.format(len(pieces), self.stack_dim, len(parts))
                )
            for part, piece in zip(parts, pieces, strict=True):
                part[key] = piece
        return parts

    def set_at_(
        self,
        key: object,
        value: object,
        index: BatchIndex,
        *,
        non_blocking: bool = False,
    ) -> Self:
        """Write into part of an entry, whose members may differ in shape.

        Raises:
            KeyError: ``key`` is no nested key, or there is no such entry.
        """
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise KeyError(MSG_BAD_KEY.format(key))
        plan = self._plan_or_none(index)
        if plan is not None and self._put_in_one(path, value, plan):
            return self
        if not _rust.contains(self, path):
            shape = self._shape_of_some(path)
            self._check_have(self._parts_at(index, None, shape), [path])
            if shape is not None and type(value) is torch.Tensor:
                value = self._broadcast_at(path, value, index, shape)
            parts = self._parts_at(index, value, shape)
            with Undoing([target for target, _, _ in parts]):
                for target, at, part in parts:
                    target.set_at_(path, part, at)
            return self
        parent: Any = self
        for part in path[:-1]:
            parent = parent._get_entry(part, None)
        if isinstance(parent, UpdatingOps):
            if parent._is_ragged(path[-1]):
                parent._write_ragged(path[-1], index, value)
                return self
            if plan is not None and parent._put_rows(path[-1], value, plan):
                return self
            entry = parent._sample_entry(path[-1])
            if isinstance(entry, CollectionProtocol) and entry._is_non_tensor:
                size = _rust.index_shape(parent.batch_size, index)
                if not size.numel() or parent._put_in_members(path[-1], index, value):
                    return self
                if any(isinstance(each, UpdatingOps) for each in parent.tensordicts):
                    # A stack of stacks takes one value at a time.
                    parts = parent._parts_at(index, value)
                    with Undoing([target for target, _, _ in parts]):
                        for target, at, part in parts:
                            target.set_at_(path[-1:], part, at)
                    return self
        return super().set_at_(key, value, index, non_blocking=non_blocking)  # type: ignore[misc]

    def _shape_of_some(self, path: tuple[str, ...]) -> torch.Size | None:
        """The shape that the tensors of some members would have if all members had one.

        None where these differ in shape, or are no tensors.
        """
        found = [_rust.get(member, path, None) for member in self.tensordicts]
        entries = [entry for entry in found if entry is not None]
        if not entries or not all(type(entry) is torch.Tensor for entry in entries):
            return None
        shape = entries[0].shape
        if any(entry.shape != shape for entry in entries):
            return None
        at = self.stack_dim
        return torch.Size([*shape[:at], len(self.tensordicts), *shape[at:]])

    def _broadcast_at(
        self,
        path: tuple[str, ...],
        value: torch.Tensor,
        index: BatchIndex,
        shape: torch.Size,
    ) -> torch.Tensor:
        """A tensor in the shape that an index gives of an entry of some members.

        Raises:
            RuntimeError: it cannot have that.
        """
        touched = self._parts_at(index, None, shape)
        plan = plan_index(shape, self.stack_dim, len(self.tensordicts), index)
        if not touched or (plan is not None and plan.dim is None):
            return value
        if plan is not None:
            target, at, _ = touched[0]
            taken = [*_rust.get(target, path)[at].shape]
            if plan.to_front is not None:
                start, block = plan.to_front
                moved = taken[start : start + block]
                taken = [*moved, *taken[:start], *taken[start + block :]]
            shape = torch.Size([*taken[: plan.dim], *plan.shape, *taken[plan.dim :]])
        while value.dim() > len(shape) and value.shape[0] == 1:
            value = value[0]
        return value.expand(shape)

    def _plan_or_none(self, index: object) -> Any:
        """The members that an index of entries picks; None where it takes all, or is wrong."""
        if any(item is ... for item in (index if type(index) is tuple else (index,))):
            # It stands for dims of the entry, too.
            return None
        try:
            return self._plan(index)
        except (IndexError, RuntimeError, TypeError, ValueError):
            return None

    def _put_in_one(self, path: tuple[str, ...], value: object, plan: Any) -> bool:
        """Write into a tensor of the one member that is picked; whether one is."""
        if plan.dim is not None:
            return False
        member, at = plan.picks[0]
        target = self.tensordicts[member]
        if type(_rust.get(target, path, None)) is not torch.Tensor:
            return False
        target.set_at_(path, value, ... if at is None else at)
        return True

    def _put_rows(self, key: str, value: object, plan: Any) -> bool:
        """Write a row into a tensor of each member picked; whether all are and fit."""
        if not isinstance(value, torch.Tensor) or value.is_nested or plan.dim is None:
            return False
        if len(plan.shape) > 1 or value.dim() <= plan.dim or plan.to_front is not None:
            return False
        entries = []
        for member, at in plan.picks:
            owner: Any = self.tensordicts[member]
            entry = owner._tensordict.get(key) if owner._is_dense else None
            if type(entry) is not torch.Tensor or at is not None:
                return False
            entries.append(entry)
        # A copy, since what is written may be what other members have.
        rows = value.clone().unbind(plan.dim)
        if len(rows) != len(entries) or not all(
            entry.shape == row.shape and entry.dtype == row.dtype
            for entry, row in zip(entries, rows, strict=True)
        ):
            return False
        if entries:
            copy_all(entries, list(rows))
        return True

    def _put_in_members(self, key: str, index: object, value: object) -> bool:
        """Return whether a text fits in all of the entry of each member picked."""
        if not isinstance(value, (str, bytes)):
            return False
        plan = self._plan(index)
        picked: Any = range(len(self.tensordicts))
        if plan is not None:
            if any(at is not None for _, at in plan.picks):
                return False
            picked = [member for member, _ in plan.picks]
        entries = [self.tensordicts[at]._get_entry(key, None) for at in picked]
        new = self._non_tensor_type(value)
        if not all(entry is not None and entry._can_put(new) for entry in entries):
            return False
        for entry in entries:
            entry._put(new)
        return True

    def _parts_at(
        self, index: BatchIndex, value: Any, shape: torch.Size | None = None
    ) -> list[tuple[Any, Any, Any]]:
        """The members that an index touches, each with its index and its part of a value.

        The index is one of an entry where its shape is given.
        """
        if shape is None:
            plan = self._plan(index)
        else:
            plan = plan_index(shape, self.stack_dim, len(self.tensordicts), index)
        if plan is None:
            picks: Any = [(at, ...) for at in range(len(self.tensordicts))]
            dim: int | None = self.stack_dim
        else:
            picks, dim = plan.picks, plan.dim
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.reshape(())
        parts = [value] * len(picks)
        is_split = isinstance(value, (torch.Tensor, CollectionProtocol))
        if dim is not None and is_split and dim < value.dim():
            if plan is not None and len(plan.shape) > 1:
                value = value.flatten(dim, dim + len(plan.shape) - 1)
            parts = list(value.unbind(dim))
            if len(parts) != len(picks):
                raise RuntimeError(MSG_PARTS.format(len(parts), dim, len(picks)))
            if plan is not None and plan.to_front is not None:
                start, block = plan.to_front
                moved = tuple(range(start, start + block))
                parts = [part.movedim(tuple(range(block)), moved) for part in parts]
        return [
            (self.tensordicts[member], ... if at is None else at, part)
            for (member, at), part in zip(picks, parts, strict=True)
        ]

    def _check_have(
        self, parts: list[tuple[Any, Any, Any]], keys: Iterable[NestedKeyLike]
    ) -> None:
        """Raise where a member that is written to does not have an entry."""
        for target, _, _ in parts:
            for key in keys:
                if not _rust.contains(target, key):
                    _rust.getitem(target, key)

    def update_at_(
        self, input_dict_or_td: Any, idx: BatchIndex, *args: object, **kw: object
    ) -> Self:
        """Write values where ``idx`` points: into members where they differ in shape."""
        source = input_dict_or_td
        if "keys_to_update" not in kw:
            is_collection = isinstance(source, CollectionProtocol)
            keys = list(source.keys(True, True) if is_collection else source)
            if (is_collection and source._has_exclusive_keys) or not all(
                _rust.contains(self, key) for key in keys
            ):
                if not is_collection:
                    source = self._from_dict_at(idx, source)
                parts = self._parts_at(idx, source)
                plan = self._plan(idx)
                for each in parts:
                    self._check_have([each], each[-1].keys(True, True))
                    if plan is not None and plan.copies:
                        refuse_casts(each[0], each[-1])
                with Undoing([target for target, _, _ in parts]):
                    for target, at, part in parts:
                        target.update_at_(part, at)
                return self
        chosen = kw.get("keys_to_update")
        if chosen is not None and isinstance(source, UpdatingOps):
            kw = {key: value for key, value in kw.items() if key != "keys_to_update"}
            source = _chosen(source, chosen)
        is_plain = kw.get("keys_to_update") is None
        if is_plain and isinstance(source, CollectionProtocol):
            self[idx] = source
            return self
        if not is_plain or not any(map(self._is_ragged, self._sample_entries())):
            return super().update_at_(source, idx, *args, **kw)  # type: ignore[misc]
        with Undoing(self.tensordicts):
            for key, value in list(source.items()):
                self.set_at_(key, value, idx)
        return self


def _is_in_members(entry: CollectionProtocol) -> bool:
    """Return whether it is a nested stack, or a class around one."""
    is_collection = isinstance(entry, CollectionProtocol)
    return is_collection and not (entry._is_non_tensor or entry._is_dense)


def _is_spread(value: Any, is_whole: bool) -> bool:
    """Return whether it is a collection of tensors that all members take alike."""
    is_collection = isinstance(value, CollectionProtocol) and not value._is_non_tensor
    return is_collection and (is_whole or not value.batch_size)


def _chosen(source: CollectionProtocol, keys: object) -> Any:
    """The entries of a stack that ``keys_to_update`` names, in the order of the stack."""
    held = _rust.walk(source, 0, True, False)
    place = {(key,) if isinstance(key, str) else key: at for at, key in enumerate(held)}
    paths = sorted(key_paths(keys), key=lambda path: place.get(path, len(place)))
    return source.select(*paths, strict=False)


def _all_have(lead: torch.Size, values: Any) -> bool:
    """Return whether all values, nested ones too, have the leading dims ``lead``.

    What is no tensor and no number has them.
    """
    for value in values:
        if isinstance(value, dict):
            has = _all_have(lead, value.values())
        elif isinstance(value, CollectionProtocol):
            has = (
                value._is_non_tensor
                or value.batch_size[: len(lead)] == lead
                or _all_have(lead, value._sample_entries().values())
            )
        elif isinstance(value, NUMBERS):
            has = False
        else:
            shape = getattr(value, "shape", None)
            has = shape is None or tuple(shape[: len(lead)]) == tuple(lead)
        if not has:
            return False
    return True
