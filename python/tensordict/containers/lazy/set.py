"""Writing to the members of a stack: by key, at an index, from other collections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.lazy.access import StackState
from tensordict.containers.lazy.apply import MSG_PARTS, _parts_of
from tensordict.containers.lazy.construct import (
    MSG_NEW_SIZE,
    have_own_keys,
    merged_batch_size,
)
from tensordict.containers.lazy.indexing import plan_index, without_ellipsis
from tensordict.containers.lazy.rollback import Undoing
from tensordict.ops.merging import (
    _take_batch_sizes,
    check_size_of_some,
    key_paths,
)
from tensordict.ops.operands import NUMBERS
from tensordict.primitives.checks import (
    holds_values,
    inside,
    is_branch,
    is_leaf_nontensor,
)
from tensordict.primitives.common import MSG_PRESENT, _InplaceWriteError
from tensordict.primitives.copy import copy_all
from tensordict.primitives.errors import KeyMessageError, bad_key
from tensordict.primitives.index_items import fills, refuse_cast
from tensordict.primitives.metatensor import MetaTensor, merged_shape
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.special import is_shared, is_shared_class, resized

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike

__all__ = ["WritingOps", "refuse_casts"]

MSG_ROWS = (
    "A list of {} items cannot be stored under {!r}: the stack has {} members. Pass one "
    "item for each member."
)
MSG_NO_SUCH_MEMBERS = (
    "setting a value in-place on a stack of TensorDict is only permitted if all members "
    "of the stack have this key in their register."
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


class WritingOps(StackState):
    """The writing methods of a stack, which write to its members."""

    # By key ------------------------------------------------------------------------

    def _value_parts(self, value: Any) -> list[Any]:
        """Split a value of this batch size into a part for each member."""
        hook = getattr(self, "_hook_in", None)
        if hook is not None:
            value = hook(value)
        if isinstance(value, WritingOps) and value.stack_dim == self.stack_dim:
            return list(value.tensordicts)
        if is_shared(value):
            return [resized(value, member.batch_size) for member in self.tensordicts]
        parts = list(value.unbind(self.stack_dim))
        if -1 in self._batch_size and isinstance(value, CollectionProtocol):
            pairs = zip(parts, self.tensordicts, strict=True)
            parts = [_sized_as(part, member.batch_size) for part, member in pairs]
        return parts

    def _set_entry(self, key: str, value: object) -> None:
        for member, part in zip(
            self.tensordicts, self._value_parts(value), strict=True
        ):
            member._set_entry(key, part)

    def _hang(self, key: str, value: object) -> None:
        for member, part in zip(
            self.tensordicts, self._value_parts(value), strict=True
        ):
            member._hang(key, part)

    def _holders(self) -> list[Any]:
        holders = [
            holder for member in self.tensordicts for holder in member._holders()
        ]
        return [self, *holders]

    def _del_entry(self, key: str) -> None:
        for member in self.tensordicts:
            # The same member may occur twice: delete its entry once.
            if member._sample_entry(key) is not NO_DEFAULT:
                member._del_entry(key)

    def _check_takes_entries(self) -> None:
        super()._check_takes_entries()
        for member in self.tensordicts:
            # Check all members first, so that all of them change or none.
            member._check_takes_entries()

    def _set_path(
        self,
        path: tuple[str, ...],
        value: object,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        key = path[0]
        if len(path) == 1 and inplace is False:
            if not validated:
                original = value
                try:
                    value = _rust.validate(self, key, value, non_blocking)
                except RuntimeError as error:
                    if not isinstance(original, list):
                        raise
                    _check_list(original, self.stack_dim, len(self.tensordicts), error)
                    self._set_rows(key, original, non_blocking, ignore_lock)
                    return
                if isinstance(original, list):
                    rows = self._tensor_rows(value)
                    if rows is not None:
                        self._set_rows(key, rows, non_blocking, ignore_lock)
                        return
            if not ignore_lock:
                self._check_takes_entries()
            if isinstance(value, CollectionProtocol):
                self._hang(key, value)
            else:
                self._set_entry(key, value)
            return
        entries = [member._sample_entry(key) for member in self.tensordicts]
        present = [entry for entry in entries if entry is not NO_DEFAULT]
        if len(present) < len(entries) and inplace is None:
            if len(path) > 1:
                # First raise the error of a value that does not fit.
                _rust.validate(self, key, value, non_blocking)
            raise KeyMessageError(MSG_NO_SUCH_MEMBERS)
        if len(path) > 1 and present:
            if not all(isinstance(entry, CollectionProtocol) for entry in present):
                _rust.validate(self, key, value, non_blocking)
                raise KeyMessageError(MSG_PRESENT.format(key, self))
            if len(present) < len(entries):
                self._set_in_some(
                    path, value, bool(inplace), non_blocking, validated, ignore_lock
                )
                return
        if len(path) == 1 and len(present) < len(entries):
            # Some members lack this key, so the stack has no tensor to write into.
            inplace = False
        super_set = super()._set_path
        if len(path) == 1 and inplace is not False and present:
            self._write_into(key, None, value, non_blocking)
            return
        super_set(path, value, inplace, non_blocking, validated, ignore_lock)

    def _child_type(self) -> type[Any]:
        # Members store the rows, which have the class that the members make.
        kinds = {member._child_type() for member in self.tensordicts}
        return kinds.pop() if len(kinds) == 1 else self._plain_type

    def _set_rows(
        self, key: str, rows: list[Any], non_blocking: bool, force: bool
    ) -> None:
        """Store an item of a list in each member; the items differ in shape."""
        if not force:
            self._check_takes_entries()
        members = self.tensordicts
        if len(rows) != len(members):
            raise ValueError(MSG_ROWS.format(len(rows), key, len(members)))
        items = [
            _rust.validate(member, key, row, non_blocking)
            for member, row in zip(members, rows, strict=True)
        ]
        for member, item in zip(members, items, strict=True):
            member._set_path((key,), item, False, non_blocking, True, force)

    def _tensor_rows(self, value: object) -> list[Any] | None:
        """Return the rows of a list of tensors that differ in shape; otherwise None."""
        if self.stack_dim or not holds_values(value) or value.batch_dims != 1:
            return None
        rows: list[Any] = value.tolist()
        return rows if all(isinstance(row, torch.Tensor) for row in rows) else None

    def _set_in_some(
        self,
        path: Any,
        value: object,
        inplace: bool,
        non_blocking: bool,
        validated: bool,
        force: bool,
    ) -> None:
        """Store below an entry that some members lack: create it there."""
        if not force:
            self._check_takes_entries()
        if not validated:
            value = _rust.validate(self, path, value, non_blocking)
        pairs = list(zip(self.tensordicts, self._value_parts(value), strict=True))
        for member, part in pairs if inplace else ():
            entry = _rust.get(member, path, None)
            if isinstance(entry, torch.Tensor):
                _rust.fit_inplace(member, path[-1], part, entry)
        for member, part in pairs:
            member._set_path(path, part, inplace, non_blocking, validated, force)

    def _write_into(
        self, key: str, present: object, value: object, non_blocking: bool
    ) -> None:
        original = value
        value = _rust.validate(self, key, value, non_blocking)
        rows = self._tensor_rows(value) if isinstance(original, list) else None
        parts = self._value_parts(value) if rows is None else rows
        entries = [member._get_entry(key, NO_DEFAULT) for member in self.tensordicts]
        for member, entry, part in zip(self.tensordicts, entries, parts, strict=True):
            if isinstance(entry, torch.Tensor):
                if isinstance(part, CollectionProtocol):
                    raise _InplaceWriteError(f"Failed to update {key!r} in {self}")
                _rust.fit_inplace(member, key, part, entry)
        for member, entry, part in zip(self.tensordicts, entries, parts, strict=True):
            member._write_into(key, entry, part, non_blocking)

    def _write_ragged(self, key: str, index: object, value: Any) -> None:
        """Write into a part of an entry whose members differ in shape.

        Raises:
            IndexError: the index does not fit.
            RuntimeError: the value does not fit a member.
        """
        if self._holds_stacks():
            shared_value = None
            if isinstance(value, torch.Tensor):
                size = self._index(index).batch_size
                # A value of fewer dims is broadcast from the right, in each member.
                shared_value = value if value.dim() < len(size) else None
            writes = self._parts_at(index, value if shared_value is None else None)
            if shared_value is not None:
                writes = [(target, at, shared_value) for target, at, _ in writes]
            with Undoing([target for target, _, _ in writes]):
                for target, at, part in writes:
                    target.set_at_(key, part, at)
            return
        values: Any = self._group(key)
        if is_shared(values[0]):
            self._write_shared(key, self._plan(index), value)
            return
        shape = merged_shape([entry.shape for entry in values], self.stack_dim)
        if len(shape) < len(self._batch_size):
            # Members differ in their numbers of dims: use the batch dims, which all
            # have.
            shape = self._batch_size
        plan = plan_index(shape, self.stack_dim, len(values), index)
        if plan is None:
            picks: Any = [(at, None) for at in range(len(values))]
            dim: int | None = self.stack_dim
        else:
            picks, dim = plan.picks, plan.dim
        targets = [values[member][... if at is None else at] for member, at in picks]
        parts = [value] * len(picks)
        if dim is not None and isinstance(value, torch.Tensor):
            parts = _parts_of(value, dim, targets)
        with Undoing([self.tensordicts[member] for member, _ in picks]):
            for (member, at), part in zip(picks, parts, strict=True):
                values[member][... if at is None else at] = part
                self._copy_to_member(member, key, values[member], values[member])

    def _write_at(
        self,
        key: str,
        target: CollectionProtocol | torch.Tensor,
        index: BatchIndex,
        value: object,
    ) -> None:
        """Write into part of the entry at ``key``.

        ``target`` is a stacked copy of it.
        """
        if is_shared(target):
            self._write_shared(key, None, value)
            return
        _assign_at(target, index, value)
        self._copy_back(key, target, index, value)

    def _casts_at(self, index: object) -> bool:
        plan = self._plan(index)
        if plan is None:
            return True
        return not plan.copies and all(_is_plain_index(at) for _, at in plan.picks)

    def _dtypes_of(self, key: str) -> set[torch.dtype]:
        """Return the dtypes of the members' leaves at a direct key."""
        if not self._holds_stacks():
            return {value.dtype for value in self._group(key) or ()}
        dtypes: set[torch.dtype] = set()
        for member in self.tensordicts:
            if isinstance(member, WritingOps):
                dtypes |= member._dtypes_of(key)
            else:
                dtypes.add(member._get_entry(key, NO_DEFAULT).dtype)
        return dtypes

    def _write_shared(self, key: str, plan: Any, value: object) -> None:
        """Write an unbatched value as a whole into each member that a plan picks."""
        members = self.tensordicts
        if plan is not None:
            picked = dict.fromkeys(pick.member for pick in plan.picks)
            members = [members[at] for at in picked]
        for member in members:
            member.set_at_(key, value, ...)

    def _copy_back(
        self,
        key: str,
        target: Any,
        index: BatchIndex,
        value: object,
    ) -> None:
        """Copy a stacked entry back to the members that an index selects."""
        values: Any = self._group(key)
        if len(self._dtypes_of(key)) > 1 or any(map(_is_expanded, values)):
            # The stacked copy may have a dtype that loses values of members, and an
            # expanded leaf cannot take a copy of all elements: write only the parts.
            if isinstance(value, torch.Tensor):
                value = value.expand(target[index].shape)
            parts = self._parts_at(index, value, target.shape)
            with Undoing([member for member, _, _ in parts]):
                for member, at, part in parts:
                    member.set_at_(key, part, at)
            return
        shape = merged_shape([entry.shape for entry in values], self.stack_dim)
        plan = plan_index(shape, self.stack_dim, len(values), index)
        touched = range(len(values))
        if plan is not None:
            # The same member may occur twice: leave the rows outside of the index
            # alone.
            touched = dict.fromkeys(pick.member for pick in plan.picks)  # type: ignore[assignment]
        rows = target.unbind(self.stack_dim)
        if self._holds_stacks() or target.is_nested:
            for at in touched:
                self._copy_to_member(at, key, values[at], rows[at])
        elif touched:
            copy_all([values[at] for at in touched], [rows[at] for at in touched])

    def _copy_to_member(
        self, member: int, key: str, present: torch.Tensor, value: Any
    ) -> None:
        """Copy a value to a member. If the member is a stack, ``present`` is a copy."""
        owner = self.tensordicts[member]
        if not owner._is_dense:
            owner._write_into(key, present, value, False)
        elif value is not present:
            present.copy_(value)

    def _store_leaves(self, values: list[Any]) -> None:
        """Store leaves in members whose leaves are copies.

        Others are written already.
        """
        position = 0
        for member in self.tensordicts:
            count = len(_rust.leaves(member))
            if not member._is_dense:
                member._store_leaves(values[position : position + count])
            position += count

    # At an index ----------------------------------------------------------------------

    def _set_index(self, index: BatchIndex, value: object) -> None:
        plan = self._plan(index)
        members = self.tensordicts
        if plan is not None and not plan.picks and -1 in self._batch_size:
            # Without members, ragged dims have no size, and nothing is written.
            return
        if isinstance(value, dict):
            value = self._from_dict_at(index, value)
        if isinstance(value, CollectionProtocol) and _shares_memory(self, value):
            # A write to one member could change what is read for the next one.
            value = value.clone()
        if plan is None:
            parts: Any = None
            if isinstance(value, torch.Tensor) and value.dim():
                self._write_tensor(index, value)
                return
            if isinstance(value, CollectionProtocol):
                value = _expanded_to(value, self.batch_size)
                parts = self._parts_of(value)
            self._write_picks([(m, None) for m in range(len(members))], parts, value)
            return
        if (
            isinstance(value, torch.Tensor)
            and not value.requires_grad
            and fills(index, value)
        ):
            # The plan has positions instead of the mask, and would refuse to cast.
            value = value.item()
        if plan.dim is None:
            member, at = plan.picks[0]
            if isinstance(value, CollectionProtocol):
                size = members[member].batch_size
                if at is not None:
                    size = _rust.index_shape(size, at)
                if len(size) <= value.batch_dims and -1 not in size:
                    value = _expanded_to(value, size)
            self._write_picks([(member, at)], [value], value)
            return
        if not isinstance(value, CollectionProtocol):
            if isinstance(value, torch.Tensor) and value.dim():
                self._write_tensor(index, value)
                return
            self._write_picks(plan.picks, None, value)
            return
        value = _expanded_to(value, self._index(index).batch_size)
        parts = [value]
        for _ in plan.shape:
            parts = [row for part in parts for row in part.unbind(plan.dim)]
        if plan.to_front is not None:
            start, block = plan.to_front
            moved = tuple(range(start, start + block))
            parts = [part.movedim(tuple(range(block)), moved) for part in parts]
        if plan.copies:
            for (member, _), part in zip(plan.picks, parts, strict=True):
                refuse_casts(members[member], part)
        self._write_picks(plan.picks, parts, value)

    def _from_dict_at(self, index: object, value: Any) -> Any:
        size = self._index(index).batch_size
        try:
            return self._plain_type(value, batch_size=size, device=self.device)
        except RuntimeError as error:
            plan = self._plan(index)
            dim = self.stack_dim if plan is None else plan.dim
            if dim is not None:
                _check_rows(value, size, dim, error)
            raise

    def _write_picks(
        self, picks: list[Any], parts: list[Any] | None, value: object
    ) -> None:
        """Write a part, or one value, into each selected member.

        One value is written only to the entries that all members have.
        """
        members: Any = self.tensordicts
        keys: list[Any] | None = None
        if (
            (parts is None or len(picks) == 1)
            and not isinstance(value, CollectionProtocol)
            and have_own_keys(members, False)
        ):
            # A number goes to all of a nested entry, a tensor to leaves of all members.
            is_tensor = isinstance(value, torch.Tensor)
            keys = (
                _rust.walk(self, 0, True, True, is_leaf_nontensor)
                if is_tensor
                else self._common_keys()
            )
        targets = [members[member] for member, _ in picks]
        if parts is None:
            parts = [value] * len(picks)
        if len(picks) > 1 and keys is None:
            places = [() if at is None else at for _, at in picks]
            if _rust.write_members(targets, places, parts):
                return
        with Undoing(targets if len(targets) > 1 else []):
            self._write_each(picks, parts, keys)

    def _write_each(
        self, picks: list[Any], parts: list[Any], keys: list[Any] | None
    ) -> None:
        """Write a part into each selected member, or into the entries at ``keys``."""
        for (member, at), part in zip(picks, parts, strict=True):
            target = self.tensordicts[member]
            if keys is not None:
                chosen = target.select(*keys)
                chosen[... if at is None else at] = part
                _exchange_values(target, chosen)
            elif at is not None:
                target[at] = part
            elif isinstance(part, CollectionProtocol):
                if part is not target:
                    size = target.batch_size
                    target.update(_expanded_to(part, size), inplace=True)
            else:
                target[...] = part

    def _write_tensor(self, index: BatchIndex, value: torch.Tensor) -> None:
        """Write one tensor into each entry at an index, broadcast from the right."""
        index = without_ellipsis(index, len(self._batch_size))
        if not self._casts_at(index) and not fills(index, value):
            for leaf in () if self._has_exclusive_keys else _rust.leaves(self):
                if leaf.dtype != value.dtype and not is_shared(leaf):
                    refuse_cast([[0]], leaf, value)
        ragged = [key for key in self._common_keys() if self._is_ragged(key)]
        copies = [
            (key, self._get_entry(key, None))
            for key in self._sample_entries()
            if key not in ragged
        ]
        with Undoing(self.tensordicts):
            for key in ragged:
                self._write_ragged(key, index, value)
            for key, entry in copies:
                if holds_values(entry):
                    self._write_value(key, index, value)
                else:
                    _assign_at(entry, index, value)
            for key, entry in copies:
                if isinstance(entry, torch.Tensor):
                    self._copy_back(key, entry, index, value)

    def _write_value(self, key: str, index: object, value: torch.Tensor) -> None:
        """Write a value to elements of non-tensor data, in the members."""
        for target, at, _ in self._parts_at(index, None):
            if isinstance(target, WritingOps):
                target._write_value(key, at, value)
                continue
            entry = target._get_entry(key, NO_DEFAULT)
            written = entry._written_at(at, value)
            if written is not entry:
                target._set_entry(key, written)

    def _update_parts(self, source: Any, is_copy: bool = False) -> list[Any] | None:
        """Split the source of an update into a part for each member.

        Raises:
            ValueError: the source is a stack with another number of members.
        """
        if is_copy:
            return self._copy_parts(source)
        if isinstance(source, WritingOps) and source.stack_dim == self.stack_dim:
            if len(source.tensordicts) == len(self.tensordicts):
                return source.tensordicts
            if source._common_keys() or have_own_keys(source.tensordicts, False):
                raise ValueError(MSG_UPDATE_COUNT)
            return self._mapping_parts({})
        if isinstance(source, CollectionProtocol):
            size = source.batch_size
            if len(size) <= self.stack_dim and size == self.batch_size[: len(size)]:
                # The entries may have further batch dims.
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
        """Split a collection into parts from which members take their batch sizes."""
        source = inside(source)
        if isinstance(source, WritingOps) and source.stack_dim == self.stack_dim:
            return source.tensordicts
        if len(source.batch_size) <= self.stack_dim:
            return None
        return list(source.unbind(self.stack_dim))

    def _resize_members(self, source: CollectionProtocol) -> None:
        """Take over the number of members of a collection, and their batch sizes.

        Raises:
            ValueError: the collection has no stack dim, or its members have another
                number of dims.
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
        # In place, so that other references to the list see the new members.
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
        """Set the entries of another collection or mapping. See ``TensorDict.update``.

        The entries of another stack are not stacked, so its members may differ in
        shape.
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
        """Return a copy that shares the leaves, with some entries replaced.

        See ``TensorDict.replace``. The entries of another stack are not stacked.
        """
        if len(args) != 1 or not isinstance(args[0], WritingOps) or kwargs:
            return super().replace(*args, **kwargs)  # type: ignore[misc]
        if args[0].is_empty():
            return self
        result: Self = _rust.clone_structure(self)
        result.update(args[0])
        return result

    def _copy_parts(self, source: Any, is_whole: bool = False) -> list[Any] | None:
        """Split the source of a copy into a part for each member.

        Values of a mapping are split along the stack dim. If ``is_whole`` is true, or a
        value has no stack dim, values are broadcast to the entire entry. So are the
        values of a collection that cannot be split by member.
        """
        if isinstance(source, CollectionProtocol):
            if not is_whole and self._divides(source):
                return self._update_parts(source)
            entries, size = source._entries(), source.batch_size
            # The entries may have further batch dims.
            is_named = bool(size) and size == self.batch_size[: len(size)]
            is_whole = is_whole or not (is_named and self._have_rows(entries.values()))
            along = self.stack_dim - len(self.batch_size) + len(size)
            fits = along < 0 or size[along] in (1, len(self.tensordicts))
            if is_whole and not fits:
                raise ValueError(MSG_UPDATE_SHAPES)
            source = entries
        is_whole = is_whole or not self._have_rows(source.values())
        to_validate: dict[Any, Any] = {}
        absent: dict[Any, Any] = {}
        split: dict[Any, Any] = {}
        for key, value in list(source.items()):
            if not _rust.contains(self, key):
                is_held = any(
                    _rust.contains(member, key) for member in self.tensordicts
                )
                (to_validate if is_held and not is_whole else absent)[key] = value
                continue
            entry = self._meta(key)
            if _is_in_members(entry) and (
                isinstance(value, dict) or _is_spread(value, is_whole)
            ):
                value = value if isinstance(value, dict) else value._entries()
                split[key] = inside(entry)._copy_parts(value, is_whole)
                continue
            is_leaf = isinstance(entry, (torch.Tensor, MetaTensor))
            if is_leaf and isinstance(value, NUMBERS):
                value = torch.as_tensor(value)
            if isinstance(value, torch.Tensor) and is_leaf:
                split[key] = self._copied_rows(entry, key, value, is_whole)
                continue
            to_validate[key] = value
        parts = self._mapping_parts(to_validate)
        for at, part in enumerate(parts):
            part.update(absent)
            part.update({key: pieces[at] for key, pieces in split.items()})
        return parts

    def _have_rows(self, values: object) -> bool:
        """Return whether all values have the batch dims up to the stack dim."""
        return _all_have(self.batch_size[: self.stack_dim + 1], values)

    def _divides(self, source: CollectionProtocol) -> bool:
        """Return whether a collection can be split into a part for each member."""
        size, dim = source.batch_size, self.stack_dim
        if isinstance(source, WritingOps) and source.stack_dim == dim:
            return True
        if len(size) > dim:
            return size[dim] == len(self.tensordicts) or not source._sample_entries()
        return False

    def _copied_rows(
        self, entry: Any, key: str, value: torch.Tensor, is_whole: bool
    ) -> list[torch.Tensor]:
        """Split a tensor that is copied into an entry into a part for each member.

        Raises:
            RuntimeError: the tensor cannot be broadcast to the entry.
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
        """Write into a part of an entry, whose members may differ in shape.

        Raises:
            KeyError: ``key`` is not a nested key, or the entry does not exist.
        """
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise bad_key(key)
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
        if isinstance(parent, WritingOps):
            if parent._is_ragged(path[-1]):
                parent._write_ragged(path[-1], index, value)
                return self
            if plan is not None and parent._put_rows(path[-1], value, plan):
                return self
            entry = parent._sample_entry(path[-1])
            if holds_values(entry):
                size = _rust.index_shape(parent.batch_size, index)
                if not size.numel() or parent._put_in_members(path[-1], index, value):
                    return self
                if any(isinstance(member, WritingOps) for member in parent.tensordicts):
                    # A stack of stacks writes one value at a time.
                    parts = parent._parts_at(index, value)
                    with Undoing([target for target, _, _ in parts]):
                        for target, at, part in parts:
                            target.set_at_(path[-1:], part, at)
                    return self
        return super().set_at_(key, value, index, non_blocking=non_blocking)  # type: ignore[misc]

    def _shape_of_some(self, path: tuple[str, ...]) -> torch.Size | None:
        """Return the stacked shape of an entry that only some members have.

        Return None if these members' entries differ in shape, or are not plain tensors.
        """
        values = [_rust.get(member, path, None) for member in self.tensordicts]
        entries = [entry for entry in values if entry is not None]
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
        """Broadcast a tensor to the indexed part of an entry that some members have.

        Raises:
            RuntimeError: the tensor cannot be broadcast.
        """
        touched = self._parts_at(index, None, shape)
        plan = plan_index(shape, self.stack_dim, len(self.tensordicts), index)
        if not touched or (plan is not None and plan.dim is None):
            return value
        if plan is not None:
            target, at, _ = touched[0]
            part_shape = [*_rust.get(target, path)[at].shape]
            if plan.to_front is not None:
                start, block = plan.to_front
                moved = part_shape[start : start + block]
                part_shape = [*moved, *part_shape[:start], *part_shape[start + block :]]
            shape = torch.Size(
                [*part_shape[: plan.dim], *plan.shape, *part_shape[plan.dim :]]
            )
        while value.dim() > len(shape) and value.shape[0] == 1:
            value = value[0]
        return value.expand(shape)

    def _plan_or_none(self, index: object) -> Any:
        """Plan an index of entries.

        Return None if the index selects everything, or is wrong.
        """
        if any(item is ... for item in (index if type(index) is tuple else (index,))):
            # The ellipsis also stands for feature dims of the entry.
            return None
        try:
            return self._plan(index)
        except (IndexError, RuntimeError, TypeError, ValueError):
            return None

    def _put_in_one(self, path: tuple[str, ...], value: object, plan: Any) -> bool:
        """Write into a tensor of the only selected member.

        Return whether it was done.
        """
        if plan.dim is not None:
            return False
        member, at = plan.picks[0]
        target = self.tensordicts[member]
        if type(_rust.get(target, path, None)) is not torch.Tensor:
            return False
        target.set_at_(path, value, ... if at is None else at)
        return True

    def _put_rows(self, key: str, value: object, plan: Any) -> bool:
        """Write a row into a tensor of each selected member; return whether all fit."""
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
        # A copy, because the value may be a view of a member.
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
        """Write a text into an entry of each selected member.

        Return whether all fit.
        """
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
        self, index: Any, value: Any, shape: torch.Size | None = None
    ) -> list[tuple[Any, Any, Any]]:
        """Return the selected members, each with its index and its part of a value.

        If ``shape`` is given, the index is an index of an entry of this shape.
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
        """Raise an error if a selected member lacks an entry."""
        for target, _, _ in parts:
            for key in keys:
                if not _rust.contains(target, key):
                    _rust.getitem(target, key)

    def update_at_(
        self, input_dict_or_td: Any, idx: BatchIndex, *args: object, **kw: object
    ) -> Self:
        """Write values at ``idx``; if members differ in shape, write to each member."""
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
                for target_part in parts:
                    self._check_have([target_part], target_part[-1].keys(True, True))
                    if plan is not None and plan.copies:
                        refuse_casts(target_part[0], target_part[-1])
                with Undoing([target for target, _, _ in parts]):
                    for target, at, part in parts:
                        target.update_at_(part, at)
                return self
        chosen = kw.get("keys_to_update")
        if chosen is not None and isinstance(source, WritingOps):
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
    """Return whether an entry is a nested stack, or a tensorclass around one."""
    return is_branch(entry) and not entry._is_dense


def _is_spread(value: Any, is_whole: bool) -> bool:
    """Return whether a value is a collection that is copied to each member alike."""
    is_collection = is_branch(value)
    return is_collection and (is_whole or not value.batch_size)


def _chosen(source: CollectionProtocol, keys: object) -> Any:
    """Return the entries at ``keys_to_update``, in the order of the source."""
    all_keys = _rust.walk(source, 0, True, False)
    position = {
        (key,) if isinstance(key, str) else key: at for at, key in enumerate(all_keys)
    }
    paths = sorted(key_paths(keys), key=lambda path: position.get(path, len(position)))
    return source.select(*paths, strict=False)


def _all_have(lead: torch.Size, values: Any) -> bool:
    """Return whether all values, nested ones too, begin with the dims ``lead``.

    Values that are neither tensors nor numbers count as if they did.
    """
    for value in values:
        if isinstance(value, dict):
            has_lead = _all_have(lead, value.values())
        elif isinstance(value, CollectionProtocol):
            has_lead = value.batch_size[: len(lead)] == lead or _all_have(
                lead, value._sample_entries().values()
            )
        elif isinstance(value, NUMBERS):
            has_lead = False
        else:
            shape = getattr(value, "shape", None)
            has_lead = shape is None or tuple(shape[: len(lead)]) == tuple(lead)
        if not has_lead:
            return False
    return True


def _exchange_values(target: CollectionProtocol, chosen: CollectionProtocol) -> None:
    """Store the written copies of entries in ``target``.

    Tensors were written in place.
    """
    for key, entry in list(chosen._sample_entries().items()):
        if holds_values(entry):
            target._set_entry(key, chosen._get_entry(key, NO_DEFAULT))
        elif is_branch(entry):
            present = target._get_entry(key, NO_DEFAULT)
            if present is not entry:
                _exchange_values(present, entry)


def _shares_memory(stack: CollectionProtocol, value: CollectionProtocol) -> bool:
    """Return whether a value has members or memory of a stack."""
    members = {id(member) for member in _members_below(stack)}
    if any(id(member) in members for member in _members_below(value)):
        return True
    if torch.compiler.is_compiling():
        return False  # Storages have no identity while torch traces.
    written = _storages(stack)
    return not written.isdisjoint(_storages(value))


def _members_below(td: CollectionProtocol) -> Iterator[CollectionProtocol]:
    """Yield the members of nested lazy stacks; a tensordict itself."""
    if not isinstance(td, WritingOps):
        yield td
        return
    for member in td.tensordicts:
        yield from _members_below(member)


def _storages(td: CollectionProtocol) -> set[int]:
    return {
        leaf.untyped_storage()._cdata
        for leaf in _rust.leaves(td)
        if leaf.layout is torch.strided and not leaf.is_nested
    }


def refuse_casts(target: CollectionProtocol, value: Any) -> None:
    """Check that no leaf needs a cast: an index of tensors does not cast.

    Raises:
        RuntimeError: a value has another dtype than its leaf.
    """
    if isinstance(value, WritingOps):
        for part in value.tensordicts:
            refuse_casts(target, part)
    elif isinstance(target, WritingOps):
        for member in target.tensordicts:
            refuse_casts(member, value)
    else:
        for key, item in value._entries().items():
            entry = target._get_entry(key, None)
            if isinstance(entry, CollectionProtocol):
                if is_branch(item):
                    refuse_casts(entry, item)
            elif (
                isinstance(entry, torch.Tensor)
                and isinstance(item, torch.Tensor)
                and not is_shared(item)
                and entry.dtype != item.dtype
            ):
                refuse_cast([[0]], entry, item)


def _sized_as(part: Any, size: torch.Size) -> Any:
    """Give a part of a value with ragged batch size the batch size of its member."""
    part_size = part.batch_size
    if -1 not in part_size or not (part._is_dense or part._is_non_tensor):
        return part
    goal = size[: len(part_size)]
    if part._is_non_tensor:
        return part._sized(goal)
    entries = {
        key: _sized_as(entry, goal) if isinstance(entry, CollectionProtocol) else entry
        for key, entry in part._entries().items()
    }
    return _rust.new(type(part), entries, goal, part._device, part._td_dim_names)


def _assign_at(
    entry: CollectionProtocol | torch.Tensor, index: BatchIndex, value: Any
) -> None:
    """Set part of an entry; cast the value, which index tensors and masks do not do."""
    if isinstance(value, torch.Tensor) and isinstance(entry, torch.Tensor):
        value = value.to(entry.dtype)
    entry[index] = value


def _expanded_to(value: Any, size: torch.Size) -> Any:
    value_size = value.batch_size
    if value_size == size or (len(value_size) == len(size) and -1 in size):
        return value
    while value.batch_dims > len(size) and value.batch_size[0] == 1:
        value = value[0]
    return value.expand(size)


def _is_expanded(value: object) -> bool:
    """Return whether several elements of a tensor share memory."""
    return (
        isinstance(value, torch.Tensor)
        and not value.is_nested
        and not value.is_contiguous()
        and any(
            not stride and size > 1
            for stride, size in zip(value.stride(), value.shape, strict=True)
        )
    )


def _is_plain_index(index: object) -> bool:
    """Return whether an index has no tensor, so that an assignment casts."""
    items = index if isinstance(index, tuple) else (index,)
    return not any(isinstance(item, torch.Tensor) for item in items)


def _check_rows(value: dict[Any, Any], size: torch.Size, dim: int, error: Any) -> None:
    """Raise ``error`` again, as the class that fits the first value with wrong rows.

    Raises:
        IndexError: the value does not have the dim ``dim``.
        ValueError: the value has another number of rows.
    """
    for item in value.values():
        if isinstance(item, dict):
            _check_rows(item, size, dim, error)
        elif isinstance(item, torch.Tensor) and item.shape[: len(size)] != size:
            if item.dim() <= dim:
                raise IndexError(str(error)) from error
            if item.shape[dim] != size[dim]:
                raise ValueError(str(error)) from error
            raise error


def _check_list(rows: list[Any], dim: int, count: int, error: Exception) -> None:
    """Raise ``error`` again for a list, as the class that fits its nesting.

    Raises:
        IndexError: the list is not nested deep enough to have the stack dim.
        ValueError: the number of items along the stack dim is not that of the members.
        RuntimeError: the number fits, but the other dims do not.
    """
    if not dim:
        return
    part: Any = rows
    for _ in range(dim):
        part = part[0] if _has_rows(part) else None
    if not _has_rows(part):
        raise IndexError(str(error)) from error
    if len(part) != count:
        raise ValueError(str(error)) from error
    raise error


def _has_rows(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(value.dim()) and len(value) > 0
    return isinstance(value, list) and bool(value)
