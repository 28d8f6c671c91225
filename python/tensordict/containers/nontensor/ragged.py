"""Stacks of values whose rows have different lengths."""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch.nn.functional import pad

from tensordict import _rust
from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.containers.nontensor.positions import (
    MSG_INDEX,
    is_view,
    leaf_call,
    moves_elements,
    on_real_tensors,
)
from tensordict.containers.nontensor.stack import (
    NonTensorStack,
)
from tensordict.containers.nontensor.write_through import LinkedList
from tensordict.primitives.operations import COPIES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RaggedStack", "cat_rows", "stack_rows"]

ABSENT = -1
"""The position of an element that a row does not have: it is shorter than others."""

EMPTY = -2
"""The position in a row that has no elements, less how many dims follow that of these."""

MSG_SHAPE = (
    "{} needs rows of one length, and those of this NonTensorStack differ: its batch "
    "size is {}. Take them one by one, with unbind({})."
)
MSG_VALUES = (
    "The values to write have the batch size {}, and what they are written to has other "
    "lengths: its batch size is {}."
)


class RaggedStack(NonTensorStack):
    """A :class:`NonTensorStack` of rows that differ in length: -1 in its batch size.

    Its positions are those of the longest rows; where a row is shorter they are
    ``ABSENT``. What moves elements moves them, too, and leaves them behind each row.
    """

    _places: torch.Tensor
    """The position in the cells of each element of rows of one length, see above."""

    @classmethod
    def _padded_out(cls, like: Any, cells: list[Any], places: torch.Tensor) -> Any:
        """The stack of what ``places`` has, of a class and state as those of ``like``.

        Raises:
            RuntimeError: an element that a row does not have comes before one it has.
        """
        size, places = _fitted_places(places, like)
        if -1 not in size:
            made = NonTensorStack._of_cells(cells, size, like._device)
            made._layout = None, tuple(places[places >= 0].tolist())
        else:
            made = cls._of_cells(cells, size, like._device)
            made._places = places
        made._member_class = like._member_class
        return made

    @on_real_tensors
    def _flat(self) -> list[Any]:
        return [self._cells[place] for place in self._numbers()]

    def _numbers(self) -> list[int]:
        places: list[int] = self._places[self._places >= 0].tolist()
        return places

    def _index_tensor(self) -> torch.Tensor:
        return self._places

    def _take(self, other: Any) -> None:
        super()._take(other)
        self._places = other._index_tensor()

    def _is_along_rows(self) -> bool:
        """Tell whether rows are those of a later dim, so that nested lists have them first."""
        return bool(self.stack_dim) and not _is_in_front(self._places)

    def _value(self) -> Any:
        rows = self.unbind(self.stack_dim if self._is_along_rows() else 0)
        return LinkedList([row._value() for row in rows], td=self)

    @on_real_tensors
    def tolist(self, *, as_linked_list: bool = False, **kwargs: object) -> Any:
        """The values in nested lists: see :meth:`NonTensorStack.tolist`."""
        if as_linked_list:
            return self._value()
        places = self._places
        if self._is_along_rows():
            places = places.movedim(self.stack_dim, 0)
        return _nested_values(places.tolist(), places.dim(), self._cells)

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """The rows."""
        at = dim % len(self._batch_size)
        if at and at != self.stack_dim:
            raise self._refused("unbind along another dim")
        return tuple(self._shared(places) for places in self._places.unbind(at))

    def maybe_to_stack(self) -> Self:
        """A stack of the same elements."""
        made: Self = self._shared(self._places)
        return made

    def _shared(self, places: torch.Tensor) -> Any:
        """The stack of some places, as a view of this."""
        if not places.dim():
            member = self._member_class
            at = int(places)
            return self._part(member._of(self._cells, at, torch.Size(()), self._device))
        return self._part(self._padded_out(self, self._cells, places))

    # Moving elements -------------------------------------------------------------------

    def _map_leaves(
        self,
        op: object,
        args: Any,
        prefix: object,
        names: object,
        tail: int,
        lock: bool,
        k: int,
    ) -> Any:
        name = getattr(op, "__name__", op)
        pads_nothing = name == "_pad_leaf" and not any(args[0])
        if prefix is not None and not pads_nothing and not moves_elements(op):
            raise self._refused(str(name))
        if not moves_elements(op):
            result = self._deep_twin() if op in COPIES else self._twin()
            if lock and self._is_locked:
                _rust.lock_tree(result)
            return result
        return super()._map_leaves(op, args, prefix, names, tail, lock, k)

    @on_real_tensors
    def _moved(
        self,
        op: object,
        args: tuple[Any, ...],
        size: torch.Size,
        tail: int = 0,
        k: int = -1,
        part: int | None = None,
    ) -> Any:
        call = leaf_call(op, args, tail, k, part)
        try:
            self._check_order(call)
            moved = call(self._places)
            self._check_empty(moved)
        except RuntimeError:
            raise self._refused("this operation") from None
        if is_view(moved, self._places):
            return self._shared(moved)
        return self._padded_out(self, list(self._cells), moved)

    _moved_parts = NonTensorOps._moved_parts

    def _check_order(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Raise where an operation puts a dim in which rows differ before their dim."""
        numbers = range(len(self._batch_size))
        # The lengths tell which dim is which.
        lengths = [number + 2 for number in numbers]
        try:
            order = call(torch.empty(lengths, device="meta")).shape
        except (IndexError, NotImplementedError, RuntimeError):
            return
        if sorted(order) != lengths:
            return
        for number in numbers:
            before = order[: order.index(number + 2)]
            if self._batch_size[number] < 0 and any(
                other + 2 not in before for other in range(number)
            ):
                raise self._refused("this operation")

    def _check_empty(self, moved: torch.Tensor) -> None:
        """Raise where rows without elements may not be what they are any more."""
        ragged = len(self._batch_size) - self._batch_size.index(-1)
        if moved.shape[-ragged:] != self._places.shape[-ragged:] and bool(
            (self._places <= EMPTY).any()
        ):
            raise self._refused("this operation")

    def _named(self, names: list[str | None] | None) -> Self:
        # Dims that only count in some rows have no say in it.
        fits = names is None or len(names) == len(self._batch_size)
        return super()._named(names if fits else None)

    def reshape(self, *shape: Any, **kwargs: object) -> Any:
        """All values in one dim, with -1: rows have no other common shape."""
        size = tuple(shape[0]) if len(shape) == 1 and not _is_int(shape[0]) else shape
        if size != (-1,):
            raise self._refused("reshape")
        return self._shared(self._places[self._places >= 0])

    def flatten(
        self, start_dim: int | None = None, end_dim: int | None = None, **kwargs: object
    ) -> Any:
        """All values in one dim."""
        ndim = len(self._batch_size)
        if (start_dim or 0) % ndim or (end_dim or -1) % ndim != ndim - 1:
            raise self._refused("flatten")
        return self.reshape(-1)

    @on_real_tensors
    def _index(self, index: object) -> Any:
        if isinstance(index, int) and not isinstance(index, bool):
            length = self._batch_size[0]
            if not -length <= index < length:
                raise IndexError(MSG_INDEX.format(index, length))
            result = self._shared(self._places[index])
        else:
            places = self._places_at(index)
            if is_view(places, self._places) or not places.dim():
                result = self._shared(places)
            else:
                result = self._padded_out(self, list(self._cells), places)
        if self._is_locked:
            result._lock_tree()
        return result

    def _places_at(self, index: object) -> torch.Tensor:
        """The positions of what an index selects.

        Raises:
            IndexError: a row does not have an element.
            RuntimeError: the index reaches past the rows, and not into each of them.
        """
        items = index if isinstance(index, tuple) else (index,)
        if not any(map(_selects, items[1:])) or self._is_along_rows():
            places = self._places[items]
            if places.dim() or int(places) >= 0:
                return places
            raise IndexError(f"index {index} is out of bounds: a row is shorter")
        if items[0] is None:
            return self._places_at(items[1:])[None]
        if items[0] is Ellipsis:
            raise self._refused("this index")
        rows, rest = self._places[items[0]], items[1:]
        if rows.dim() < self._places.dim():
            return _within(rows)[rest]
        if rows.dim() > self._places.dim():
            raise self._refused("this index")
        return _piled([_within(row)[rest] for row in rows.unbind(0)])

    # Writing ---------------------------------------------------------------------------

    def _check_item(self, size: torch.Size, value: object, at: object = ...) -> None:
        self._check_source(value)
        if not isinstance(value, NonTensorOps) or not value._is_one:
            self._content_at(at, value)

    def _content_at(self, index: object, value: object) -> tuple[list[int], list[Any]]:
        """The places that an index selects, and what is written to each of them."""
        places = self._places if index == () else self._places_at(index)
        flat = places[places >= 0].tolist()
        if isinstance(value, list):
            value = NonTensorStack.from_list(value)
        if isinstance(value, NonTensorOps) and not value._is_one:
            cells, at = _numbered(value)
            size, places = _fitted_places(places, self)
            other, at = _fitted_places(at, value)
            if at.shape == places.shape and bool(((at < 0) == (places < 0)).all()):
                return flat, [cells[place] for place in at[at >= 0].tolist()]
            if len(other) == 1 and other[0] == len(places) and places.dim() > 1:
                # One value for each row.
                counts = (places.flatten(1) >= 0).sum(1).tolist()
                pairs = zip(cells, counts, strict=True)
                return flat, [each for each, count in pairs for _ in range(count)]
            raise RuntimeError(MSG_VALUES.format(other, size))
        if isinstance(value, NonTensorOps):
            value = value.data
        return flat, [value] * len(flat)

    @on_real_tensors
    def _write(self, index: object, value: object) -> None:
        super()._check_source(value)
        self._put_cells(*self._content_at(index, value))

    def _copied(self, value: object) -> Any:
        if isinstance(value, list) or (
            isinstance(value, NonTensorOps) and not value._is_one
        ):
            self._content_at((), value)
            return value
        return super()._copied(value)

    @on_real_tensors
    def _chosen(self, condition: torch.Tensor, other: object) -> Any:
        if not isinstance(other, NonTensorOps):
            return self._twin()
        cells, theirs = _numbered(other)
        mine, theirs = _aligned([self._places, theirs + _shift(theirs, self._cells)])
        mask = condition[(..., *[None] * (mine.dim() - condition.dim()))]
        chosen = torch.where(mask, mine, theirs)
        return self._padded_out(self, [*self._cells, *cells], chosen)

    def _check_row_size(self, found: torch.Size) -> None:
        if len(found) != len(self._batch_size) - 1:
            super()._check_row_size(found)

    # As a whole --------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: object) -> Any:
        """Pickle as a call that makes a stack of the rows, or with the state of one."""
        if self.stack_dim:
            return copyreg.__newobj__, (NonTensorStack,), self.__getstate__()  # type: ignore[attr-defined]
        return NonTensorStack, tuple(self.tensordicts)

    def _take_state(self, fields: dict[str, Any], is_one: bool) -> None:
        if is_one:
            super()._take_state(fields, is_one)
            return
        flat = fields["data"]
        for _ in self._batch_size[1:]:
            if not all(isinstance(row, list) for row in flat):
                break
            flat = [value for row in flat for value in row]
        places = self._numbers()
        if self._is_along_rows() or len(flat) != len(places):
            super()._take_state(fields, is_one)
        else:
            # The values of each row, which can be lists themselves.
            self._put_cells(places, flat)

    def _fitted(self, size: torch.Size) -> Self | None:
        size = torch.Size(size)
        return self._twin() if self._batch_size[: len(size)] == size else None

    def _twin(self) -> Self:
        made = self._of_cells(list(self._cells), self._batch_size, self._device)
        made._places = self._places
        made._member_class = self._member_class
        if self.stack_dim:
            made.stack_dim = self.stack_dim
        names = self._td_dim_names
        return made._named(None if names is None else list(names))

    def _refused(self, what: str) -> RuntimeError:
        text = MSG_SHAPE.format(what, self._batch_size, self.stack_dim)
        return RuntimeError(text)

    def _compare(self, other: object, wanted: bool) -> Any:
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


@on_real_tensors
def stack_rows(members: Sequence[Any], dim: int) -> Any:
    """The stack along a new dim of values that differ in shape, but not in dims."""
    cells, places = _all_places(members)
    stacked = torch.stack(_aligned(places), dim)
    at = _row_dim(members, dim, stacked)
    made = RaggedStack._padded_out(_like(members, at), cells, stacked)
    if at:
        made.stack_dim = at
    return made


@on_real_tensors
def cat_rows(members: Sequence[Any], dim: int) -> Any:
    """Values that differ in shape one after the other along ``dim``."""
    cells, places = _all_places(members)
    joined = torch.cat(_aligned(places, dim), dim)
    # The elements of a row before those that it does not have.
    has = _has(joined, dim)
    order = (~has).to(torch.int8).argsort(dim=dim, stable=True)
    order = order[(..., *[None] * (joined.dim() - dim - 1))].expand_as(joined)
    joined = joined.gather(dim, order)
    return RaggedStack._padded_out(_like(members, 0), cells, joined)


def _like(members: Sequence[Any], dim: int) -> Any:
    """Return a member with the device and class of elements that all members have."""
    like = RaggedStack._of_cells([], torch.Size([0]))
    devices = {member.device for member in members}
    like._device = devices.pop() if len(devices) == 1 else None
    classes = {getattr(each, "_member_class", type(each)) for each in members}
    if len(classes) == 1:
        like._member_class = classes.pop()
    like.stack_dim = dim
    return like


def _all_places(members: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """The values of all members in one list, and the positions of each member in it."""
    cells: list[Any] = []
    places = []
    for member in members:
        own, at = _numbered(member)
        places.append(at + _shift(at, cells))
        cells += own
    return cells, places


def _numbered(member: Any) -> tuple[list[Any], torch.Tensor]:
    """The values of a member row by row, and the position of each element in them."""
    flat = member._flat()
    if isinstance(member, RaggedStack):
        places = member._places.clone()
        places[places >= 0] = torch.arange(len(flat))
        return flat, places
    return flat, torch.arange(len(flat)).view(member.batch_size)


def _shift(places: torch.Tensor, before: Sequence[Any]) -> torch.Tensor:
    return (places >= 0) * len(before)


def _aligned(
    places: Sequence[torch.Tensor], free: int | None = None
) -> list[torch.Tensor]:
    """Positions with ``ABSENT`` behind them, so that all but the dim ``free`` agree."""
    size = [max(lengths) for lengths in zip(*(at.shape for at in places), strict=True)]
    aligned = []
    for at in places:
        for dim in reversed(range(at.dim())):
            missing = 0 if dim == free else size[dim] - at.shape[dim]
            if missing:
                behind = at.dim() - 1 - dim
                value = ABSENT if at.shape[dim] else EMPTY - behind
                at = pad(at, [0, 0] * behind + [0, missing], value=value)
        aligned.append(at)
    return aligned


def _piled(places: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(_aligned(places)) if places else torch.empty(0, dtype=torch.long)


def _within(places: torch.Tensor) -> torch.Tensor:
    """The positions of one row, without those that it does not have."""
    return places[_has(places, 0)]


def _has(places: torch.Tensor, dim: int) -> torch.Tensor:
    """Tell whether there is an element, or a row, at each place up to ``dim``."""
    inner = places.dim() - 1 - dim
    has = (places >= 0) | ((places <= EMPTY) & (places > EMPTY - inner))
    return has.flatten(dim + 1).any(-1) if inner else has


def _fitted_places(places: torch.Tensor, stack: Any) -> tuple[torch.Size, torch.Tensor]:
    """The merged size of positions, -1 where rows differ, and those that rows have."""
    if not places.numel():
        return places.shape, places
    if _is_in_front(places):
        size, longest = _lengths(places)
        return size, places[tuple(slice(length) for length in longest)]
    at = stack.stack_dim
    if not at:
        raise RuntimeError(MSG_SHAPE.format("this operation", stack.batch_size, at))
    # Rows of a later dim, which differ in a dim before it.
    merged = list(_lengths(places.movedim(at, 0))[0])
    merged.insert(at, merged.pop(0))
    return torch.Size(merged), places


def _lengths(places: torch.Tensor) -> tuple[torch.Size, list[int]]:
    """The length in each dim, -1 where those of rows differ, and the longest ones."""
    size, longest = [], []
    parents = torch.ones((), dtype=torch.bool)
    for dim in range(places.dim()):
        has = _has(places, dim)
        lengths = has.sum(-1)[parents].unique().tolist() or [0]
        size.append(lengths[0] if len(lengths) == 1 else -1)
        longest.append(lengths[-1])
        parents = has
    return torch.Size(size), longest


def _row_dim(members: Sequence[Any], dim: int, stacked: torch.Tensor) -> int:
    """The dim of the rows of a stack along ``dim``: that of a member where it must be."""
    if not _is_in_front(stacked.movedim(dim, 0)):
        for member in members:
            if isinstance(member, RaggedStack) and member._is_along_rows():
                return member.stack_dim + (dim <= member.stack_dim)
    return dim


def _is_in_front(places: torch.Tensor) -> bool:
    """Tell whether each row has its elements before those that it does not have."""
    for dim in range(places.dim()):
        here = _has(places, dim)
        if bool((here[..., 1:] & ~here[..., :-1]).any()):
            return False
    return True


def _nested_values(level: list[Any], ndim: int, cells: list[Any]) -> list[Any]:
    """The values at nested lists of positions."""
    if ndim == 1:
        return [cells[place] for place in level if place >= 0]
    return [
        _nested_values(row, ndim - 1, cells)
        for row in level
        if not _is_absent(row, ndim - 1)
    ]


def _is_absent(row: Any, ndim: int) -> bool:
    """Tell whether a row is one that is not there: its first position says so."""
    while isinstance(row, list):
        if not row:
            return False
        row = row[0]
    return bool(row == ABSENT or row <= EMPTY - ndim)


def _selects(item: object) -> bool:
    """Tell whether an item of an index leaves elements of rows out, or adds a dim to them."""
    if isinstance(item, slice):
        return item != slice(None)
    return item is not Ellipsis


def _is_int(item: object) -> bool:
    return isinstance(item, int)


RaggedStack.__name__ = RaggedStack.__qualname__ = "NonTensorStack"
RaggedStack.__module__ = "tensordict.tensorclass"
RaggedStack._public_class_text = NonTensorStack._public_class_text  # type: ignore[attr-defined]
