"""Locks, and ``with`` statements that write changes back."""

from __future__ import annotations

from typing import Any, Literal, Self
from weakref import ref

import torch

from tensordict import _rust
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["LockingOps"]

OWN_INVERSES = frozenset(
    {"flip", "fliplr", "flipud", "swapaxes", "swapdims", "transpose"}
)
"""The operations that are their own inverse."""
RESTORED_AFTER_ERRORS = ("lock_", "unlock_", "to_module")
"""The operations that are undone even if an exception leaves the ``with`` statement."""

MSG_IMPLICIT_SQUEEZE = (
    "Cannot use td.squeeze() as a decorator if the dimension is implicit."
)


class LockingOps(CollectionProtocol):
    """Locks, and ``with`` statements that write changes back.

    A locked tensordict takes no new entries and loses none; its tensors can still be
    written in place. Its nested tensordicts are locked with it, and only unlocking the
    parent unlocks them while the parent exists.
    """

    _last_op_queue: list[Any] | None = None

    # Locks -----------------------------------------------------------------------

    @property
    @_rust.call_natively
    def is_locked(self) -> bool:
        """Whether entries can be neither added nor removed nor replaced."""
        return self._is_locked

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        if value:
            self.lock_()
        elif any(collection.is_locked for collection in _rust.containers(self)):
            self.unlock_()

    def lock_(self) -> Self:
        """Lock this tensordict and its nested tensordicts.

        Used in a ``with`` statement, it is unlocked again at the end.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).lock_()
            >>> td["b"] = torch.ones(3)
            Traceback (most recent call last):
                ...
            RuntimeError: Cannot modify locked TensorDict. For in-place ...
            >>> td["a"].add_(1)
            tensor([1., 1., 1.])
        """
        if self._is_locked:
            # It was locked before: the end of a `with` statement must not unlock it.
            if self._last_op is not None:
                self._last_op = None
            return self
        _rust.lock_tree(self)
        self._last_op = ("lock_", (), {}, ref(self))
        return self

    def unlock_(self) -> Self:
        """Unlock this tensordict and its nested tensordicts.

        Used in a ``with`` statement, it is locked again at the end.

        Raises:
            RuntimeError: this tensordict, or a nested one, belongs to another locked
                tensordict.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).lock_()
            >>> with td.unlock_():
            ...     td["b"] = torch.ones(3)
            >>> td.is_locked
            True
        """
        locked = self._is_locked
        # Nested tensordicts may be locked even if this one is not.
        _rust.unlock_tree(self)
        # Unlocked leaves may be replaced, so the consolidated state ends.
        if self._consolidated is not None:
            del self._consolidated
        if not locked:
            if self._last_op is not None:
                self._last_op = None
            return self
        self._last_op = ("unlock_", (), {}, ref(self))
        return self

    def clear_refs_for_compile_(self) -> Self:
        """Drop the references to this tensordict's source and to its locked parents.

        Compiled code cannot return weak references.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), batch_size=[3]).unsqueeze(0)
            >>> td.clear_refs_for_compile_() is td
            True
        """
        for collection in _rust.containers(self):
            state = collection.__dict__
            for name in ("_last_op", "_lock_parents_weakrefs"):
                if name in state:
                    delattr(collection, name)
        return self

    # Writing back ----------------------------------------------------------------

    def __enter__(self) -> Self:
        """Open a ``with`` statement at whose end changes are written back.

        The result of :meth:`view`, :meth:`permute`, :meth:`flatten_keys`, :meth:`lock_`
        and similar methods records its source. At the end of
        ``with td.view(-1) as flat:``, the entries of ``flat`` are viewed back and
        stored in ``td``; a lock or unlock is undone. After an exception nothing is
        written back, but locks are restored.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(2, 3)}, [2, 3])
            >>> with td.view(6) as flat:
            ...     flat["b"] = torch.arange(6)
            >>> td["b"]
            tensor([[0, 1, 2],
                    [3, 4, 5]])
        """
        # A queue, since `with` statements on the same tensordict may nest.
        queue = self._last_op_queue
        if queue is None:
            queue = self._last_op_queue = []
        queue.append(self._last_op)
        return self

    def __exit__(
        self, exc_type: object, exc_val: BaseException | None, exc_tb: object
    ) -> Literal[False]:
        """Write the changes back at the end. See :meth:`__enter__`."""
        queue: Any = self._last_op_queue
        last = queue.pop()
        if not queue:
            del self._last_op_queue
        if last is None:
            return False
        name, args, kwargs, reference = last
        if exc_type is not None and name not in RESTORED_AFTER_ERRORS:
            return False
        source = reference()
        if source is not None:
            # Dynamo does not support `add_note`.
            is_explained = name == "to_module" and not torch.compiler.is_compiling()
            if is_explained and exc_val is not None:
                note = self._explain_to_module(source, *args, **kwargs)  # type: ignore[attr-defined]
                if note is not None:
                    exc_val.add_note(note)
            if name in OWN_INVERSES:
                source._write_back(getattr(self, name)(*args, **kwargs))
            else:
                getattr(self, "_undo_" + name)(source, *args, **kwargs)
        return False

    def _write_back(self, result: CollectionProtocol) -> None:
        """Store the entries of ``result``, which has this tensordict's batch size."""
        if result is self:
            return
        if self.is_locked:
            _unify_values(self, result)
            self.update_(result)
        else:
            self.update(result)

    def _undo_lock_(self, source: LockingOps) -> None:
        source.unlock_()

    def _undo_unlock_(self, source: LockingOps) -> None:
        source.lock_()

    def _undo_flatten_keys(self, source: LockingOps, separator: str) -> None:
        if source is self:
            self.unflatten_keys(separator, inplace=True)
        else:
            source._write_back(self.unflatten_keys(separator))

    def _undo_unflatten_keys(self, source: LockingOps, separator: str) -> None:
        if source is self:
            self.flatten_keys(separator, inplace=True)
        else:
            source._write_back(self.flatten_keys(separator))

    def _undo_view(self, source: LockingOps, *shape: object, **kwargs: object) -> None:
        dtype = shape[0] if shape else kwargs.get("dtype")
        if isinstance(dtype, torch.dtype):
            held = {
                key: value.dtype for key, value in source.items(True, leaves_only=True)
            }
            source._write_back(
                self.named_apply(
                    lambda key, leaf: leaf.view(held[key]) if key in held else leaf,
                    nested_keys=True,
                )
            )
            return
        source._write_back(self.view(source.batch_size))

    def _undo_permute(self, source: LockingOps, *args: Any, **kwargs: object) -> None:
        dims = args or (kwargs["dims"],)
        if len(dims) == 1 and not isinstance(dims[0], int):
            dims = tuple(dims[0])
        ndim = self.batch_dims
        order = [dim % ndim for dim in dims]
        order += range(len(order), ndim)
        source._write_back(self.permute(*[order.index(dim) for dim in range(ndim)]))

    def _undo_movedim(
        self, source: LockingOps, *args: object, **kwargs: object
    ) -> None:
        names = "source", "destination"
        named: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
        source._write_back(self.movedim(named["destination"], named["source"]))

    _undo_moveaxis = _undo_movedim

    def _undo_unsqueeze(self, source: LockingOps, dim: int) -> None:
        source._write_back(self.squeeze(dim % self.batch_dims))

    def _undo_squeeze(self, source: LockingOps, dim: int | None = None) -> None:
        if dim is None:
            raise RuntimeError(MSG_IMPLICIT_SQUEEZE)
        if self.batch_dims < source.batch_dims:
            source._write_back(self.unsqueeze(dim % source.batch_dims))
        else:
            source._write_back(self)

    def _undo_flatten(
        self,
        source: LockingOps,
        start_dim: int | None = None,
        end_dim: int | None = None,
    ) -> None:
        source._write_back(self.view(source.batch_size))

    def _undo_unflatten(self, source: Any, dim: int, unflattened_size: Any) -> None:
        if source is self:
            added = len(unflattened_size) - 1
            start = dim % (self.batch_dims - added)
            self._replace_content(self.flatten(start, start + added))
        else:
            source._write_back(self.view(source.batch_size))

    def _undo_atleast_1d(self, source: LockingOps) -> None:
        source._write_back(self.view(source.batch_size))

    _undo_atleast_2d = _undo_atleast_1d
    _undo_atleast_3d = _undo_atleast_1d

    def _undo_roll(self, source: LockingOps, shifts: Any, dims: Any = None) -> None:
        back = (
            tuple(-shift for shift in shifts)
            if isinstance(shifts, (list, tuple))
            else -shifts
        )
        source._write_back(self.roll(back, dims))

    def _undo_rot90(self, source: LockingOps, k: int = 1, dims: Any = (0, 1)) -> None:
        source._write_back(self.rot90(-k, dims))

    def _undo_to(self, source: LockingOps, *args: object, **kwargs: object) -> None:
        # New entries stay as they are; present ones go back to their dtype and device.
        held = dict(source.items(True, leaves_only=True))

        def back(key: object, leaf: torch.Tensor) -> torch.Tensor:
            previous = held.get(key)
            if previous is None:
                return leaf
            return leaf.to(previous.device, previous.dtype)

        source.update(self.named_apply(back, nested_keys=True, device=source.device))


def _unify_values(td: CollectionProtocol, result: CollectionProtocol) -> None:
    """Merge equal values in ``result`` if the locked ``td`` has one value for all rows.

    An operation on batch dims turns the value into a stack, which could not be stored.
    """
    for key, sample in list(td._sample_entries().items()):
        if not isinstance(sample, CollectionProtocol):
            # The leaves of a lazy stack may differ in shape, so do not read them.
            continue
        present: Any = td._get_entry(key, None)
        result_entry: Any = result._get_entry(key, None)
        if not all(
            isinstance(each, CollectionProtocol) for each in (present, result_entry)
        ):
            continue
        if not present._is_one:
            _unify_values(present, result_entry)
        elif isinstance(result_entry, CollectionProtocol._non_tensor_stack_type):
            flat = result_entry._flat()
            if flat and all(value is flat[0] for value in flat):
                value = present.clone()
                value._put(flat[0])
                result._set_entry(key, value)
