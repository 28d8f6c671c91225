"""Stacks of values whose rows have different lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from tensordict import _rust
from tensordict.containers.nontensor.base import NonTensorOps, moves_elements
from tensordict.containers.nontensor.linked import LinkedList
from tensordict.containers.nontensor.stack import NonTensorStack, _stack_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RaggedStack"]

MSG_SHAPE = (
    "{} needs rows of one length, and those of this NonTensorStack differ: its batch "
    "size is {}. Take them one by one, with unbind({})."
)


class RaggedStack(NonTensorStack):
    """A :class:`NonTensorStack` of rows that differ in length: -1 in its batch size.

    It holds the rows; ``stack[i]`` is the ``i``-th of them.
    """

    _rows: list[Any]

    @classmethod
    def _of_rows(cls, rows: Sequence[Any], dim: int) -> Self:
        """One of rows along a new dim, which have as many dims as one another."""
        made = cls.__new__(cls)
        made._rows = list(rows)
        sizes = zip(*(row.batch_size for row in rows), strict=True)
        merged = [size[0] if len(set(size)) == 1 else -1 for size in sizes]
        merged.insert(dim, len(rows))
        made._batch_size = torch.Size(merged)
        devices = {row.device for row in rows}
        made._device = devices.pop() if len(devices) == 1 else None
        if dim:
            made.stack_dim = dim
        return made

    @property
    def tensordicts(self) -> list[Any]:  # type: ignore[override] # its rows
        """The rows."""
        return list(self._rows)

    def _flat(self) -> list[Any]:
        return [value for row in self._rows for value in row._flat()]

    def _columns(self) -> list[Any]:
        return [column for row in self._rows for column in row._columns()]

    def _value(self) -> Any:
        return LinkedList([row._value() for row in self._rows], td=None)

    def tolist(self, *, as_linked_list: bool = False, **kwargs: Any) -> Any:
        """The values in nested lists: see :meth:`NonTensorStack.tolist`."""
        if as_linked_list:
            return self._value()
        return [row.tolist() for row in self._rows]

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """The rows."""
        if dim % len(self._batch_size) != self.stack_dim:
            raise self._refused("unbind along another dim")
        return tuple(self._rows)

    def _index(self, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        if self.stack_dim or not items or items[0] is None or items[0] is Ellipsis:
            if all(item is Ellipsis for item in items):
                return self
            raise self._refused("this index")
        rows, rest = self._rows, items[1:]
        places = torch.arange(len(rows))[items[0]]
        if not places.dim():
            row = rows[int(places)]
            return row[rest] if rest else row
        if places.dim() > 1:
            raise self._refused("an index of more than one dim")
        taken = [rows[place] for place in places.tolist()]
        return _stack_rows([row[rest] if rest else row for row in taken])

    def _write(self, index: Any, value: Any) -> None:
        items = index if isinstance(index, tuple) else (index,)
        rows, rest = self._rows, items[1:]
        if items and items[0] is not Ellipsis:
            places = torch.arange(len(rows))[items[0]].flatten().tolist()
            rows = [rows[place] for place in places]
        parts = [value] * len(rows)
        if isinstance(value, NonTensorStack):
            parts = list(value.unbind(0)) if len(rows) > 1 else parts
        for row, part in zip(rows, parts, strict=True):
            row[rest] = part

    def _map_leaves(
        self, op: Any, args: Any, prefix: Any, names: Any, tail: int, lock: bool, k: int
    ) -> Any:
        pads_nothing = getattr(op, "__name__", "") == "_pad_leaf" and not any(args[0])
        if (prefix is not None and not pads_nothing) or moves_elements(op):
            raise self._refused(op if isinstance(op, str) else "a shape operation")
        result = self._twin()
        if lock and self._is_locked:
            _rust.lock_tree(result)
        return result

    def _split_leaves(self, op: Any, args: Any, *further: Any) -> list[Any]:
        if op == "unbind" and args[0] == self.stack_dim:
            return [row._twin() for row in self._rows]
        raise self._refused("splitting")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a call that makes a stack of the rows."""
        if self.stack_dim:
            return _stack_of, (self._rows, self.stack_dim)
        return NonTensorStack, tuple(self._rows)

    def _fitted(self, size: torch.Size) -> Self | None:
        size = torch.Size(size)
        return self._twin() if self._batch_size[: len(size)] == size else None

    def _twin(self) -> Self:
        made = self._of_rows([row._twin() for row in self._rows], self.stack_dim)
        made._device = self._device
        return made

    def _refused(self, what: str) -> RuntimeError:
        text = MSG_SHAPE.format(what, self._batch_size, self.stack_dim)
        return RuntimeError(text)

    def _compare(self, other: Any, wanted: bool) -> Any:
        if not isinstance(other, NonTensorOps):
            return not wanted
        raise self._refused("a comparison")

    def __eq__(self, other: object) -> Any:
        """Refused: there is no tensor of the answers."""
        return self._compare(other, True)

    def __ne__(self, other: object) -> Any:
        """Refused: there is no tensor of the answers."""
        return self._compare(other, False)

    __hash__: ClassVar[Any] = None


def _stack_rows(rows: list[Any]) -> Any:
    from tensordict.containers.nontensor.joining import stacked

    return stacked(rows, 0) if rows else NonTensorStack()


RaggedStack.__name__ = RaggedStack.__qualname__ = "NonTensorStack"
RaggedStack.__module__ = "tensordict.tensorclass"
