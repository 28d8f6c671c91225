"""Non-tensor data with a value for each element of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import torch

from tensordict import _rust
from tensordict.containers.collection import TensorDictBase
from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.containers.lazy.apply import CombiningOps
from tensordict.containers.nontensor.base import (
    MSG_REDUCED,
    NonTensorOps,
    release,
)
from tensordict.containers.nontensor.cells import LinkedCells, RowCells
from tensordict.containers.nontensor.convert import stack_of, stack_of_lists
from tensordict.containers.nontensor.data import (
    NonTensorData,
    NonTensorDataBase,
    _nested,
)
from tensordict.containers.nontensor.equality import is_interchangeable
from tensordict.containers.nontensor.files import StackFiles
from tensordict.containers.nontensor.positions import (
    Found,
    Layout,
    on_real_tensors,
    out_of_bounds,
    places_listed,
    places_moved,
    places_of,
    places_split,
    selects_one,
    strides_of,
    taken,
)
from tensordict.containers.nontensor.stack_writing import MSG_RESIZED, StackWriting
from tensordict.containers.nontensor.write_through import LinkedList
from tensordict.primitives import registry
from tensordict.primitives.common import shape_of_lists
from tensordict.primitives.index_items import (
    refuse_first_class,
    refuse_fractions,
    refuse_types,
)
from tensordict.primitives.operations import REDUCES
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NonTensorStack"]

MSG_NOT_UNIQUE = (
    "Cannot get the non-unique data of a NonTensorStack. Use .tolist() instead."
)
MSG_DIFFERENT_SIZES = (
    "batch sizes in tensordicts differs, LazyStackedTensorDict cannot be created. Got "
    "td[0].batch_size={} and td[i].batch_size={}."
)


SHOWN = 50
"""The number of characters of the values in the text of a stack."""


@on_real_tensors
def _listed(places: torch.Tensor) -> list[int]:
    listed: list[int] = places.flatten().tolist()
    return listed


def _copied_along(places: torch.Tensor, dim: int, size: torch.Size) -> torch.Tensor:
    """Repeat each element along a new dim."""
    return places.unsqueeze(dim).expand(size).clone()


def _has_plain_bounds(index: slice) -> bool:
    """Return whether a slice has no step, and integers or None as bounds."""
    bounds = {type(index.start), type(index.stop)}
    return index.step is None and bounds <= {int, type(None)}


def _holds_anything(data: object) -> bool:
    """Return whether nested lists contain anything but lists."""
    return not isinstance(data, list) or any(map(_holds_anything, data))


_STATE = (
    "_cells",
    "_layout",
    "_batch_size",
    "_device",
    "_td_dim_names",
    "_member_class",
    "_has_one_a_row",
    "_is_locked",
    "_rows",
    "_saved_in",
    "stack_dim",
)
"""The attributes that a new stack may have in its dictionary."""


class NonTensorStack(  # type: ignore[misc] # as TensorDictBase
    StackFiles, StackWriting, LazyStackedTensorDict
):
    """A value of any type for each element of a batch.

    The values are in one list, row by row. The element at an index is made at each
    read, as a view: setting its ``data`` writes to the stack. An index of integers and
    slices, a view and a split also return views. Other operations copy the list, never
    the values.

    Args:
        *args: a value for each element, or a collection of values for each row.
        stack_dim: the dim along which they are stacked.

    Examples:
        >>> stack = NonTensorStack("a", "b", "c")
        >>> stack[1]
        NonTensorData(data=b, batch_size=torch.Size([]), device=None)
        >>> stack[1:].tolist()
        ['b', 'c']
        >>> td = TensorDict(people=["ada", "alan"], batch_size=[2])
        >>> td["people"]
        LinkedList(['ada', 'alan'])
    """

    _member_class: type[NonTensorDataBase] = NonTensorData
    """The class of a single element."""

    _layout: Layout | None
    """The position of each element in the cells. None if the elements are in order."""

    _has_one_a_row: bool = False
    """True if each row along ``stack_dim`` was one value for all of its elements."""

    stack_dim: int = 0
    _batch_size = torch.Size([0])
    _device: torch.device | None = None
    _td_dim_names: list[str | None] | None = None
    _is_locked = False
    _is_memmap = False
    _is_shared = False
    _lock_parents_weakrefs = ()

    _is_one: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        stack_dim = kwargs.pop("stack_dim", 0)
        self._become(stack_of(args, stack_dim))

    def _become(self, source: NonTensorStack) -> None:
        """Take over the state and the class of another stack, which may be ragged."""
        if type(source) is not type(self):
            self.__class__ = type(source)
        # One name at a time: Dynamo of torch 2.11 cannot iterate over `__dict__`.
        state = source.__dict__
        for name in _STATE:
            if name in state:
                object.__setattr__(self, name, state[name])

    def _replace_content(self, result: Any) -> Self:
        """Take over the values of ``result`` and their positions."""
        self._check_unlocked()
        stack = result._to_stack() if result._is_one else result
        # Remove attributes for which `stack` uses the class's default.
        for name in (*_STATE, "stack_dim"):
            if name in self.__dict__ and name not in stack.__dict__:
                object.__delattr__(self, name)
        self._become(stack)
        return self

    @classmethod
    def _of_cells(
        cls,
        cells: list[Any],
        batch_size: torch.Size,
        device: torch.device | None = None,
    ) -> Self:
        """Make a stack of values that lie row by row in ``cells``, which it owns."""
        stack = cls.__new__(cls)
        stack._cells = cells
        stack._layout = None
        stack._batch_size = batch_size
        stack._device = device
        stack._td_dim_names = None
        return stack

    def _sized(self, size: torch.Size, cells: list[Any]) -> Self:
        stack = self._of_cells(cells, size, self._device)
        if self._member_class is not NonTensorData:
            stack._member_class = self._member_class
        return stack

    @classmethod
    def from_list(cls, non_tensors: list[Any]) -> Any:  # type: ignore[override]
        """Make a stack of nested lists. Each level becomes a batch dim.

        Examples:
            >>> NonTensorStack.from_list([["a", "b"], ["c", "d"]]).batch_size
            torch.Size([2, 2])
        """
        return stack_of_lists(non_tensors)

    @classmethod
    def from_nontensordata(
        cls, non_tensor: NonTensorDataBase
    ) -> NonTensorData[Any] | NonTensorStack:
        """Make a stack with the value of ``non_tensor`` for each element.

        Raises:
            AttributeError: the elements of ``non_tensor`` do not share one value.
        """
        value = NonTensorData(
            non_tensor.data, batch_size=non_tensor.batch_size, device=non_tensor.device
        )
        return value.maybe_to_stack()

    @classmethod
    def _from_nested(cls, data: list[Any], batch_size: list[int] | None) -> Any:
        """Make a stack of nested lists; by default each level is a batch dim."""
        if batch_size is not None and -1 in batch_size:
            return stack_of_lists(data)
        size = shape_of_lists(data) if batch_size is None else batch_size
        flat = data
        for _ in size[1:]:
            flat = [item for row in flat for item in row]
        return cls._of_cells(list(flat), torch.Size(size))

    # The values -----------------------------------------------------------------------

    def _flat(self) -> list[Any]:
        """Return the values row by row. Do not change the list: it may be the cells."""
        if self._layout is None:
            return self._cells
        start, steps = self._layout
        if steps == (1,):
            # A run of cells: encoded cells decode a slice in one go.
            return self._cells[start : start + self._batch_size[0]]
        return taken(self._cells, self._numbers())

    def _map_leaves(
        self, op: Any, args: Any, prefix: Any, names: Any, tail: int, lock: bool, k: int
    ) -> Any:
        name = op if isinstance(op, str) else getattr(op, "__name__", "")
        if name == "_add_batch_dim":
            from tensordict.containers.nontensor.mapped import MappedStack

            dim, level = args
            return MappedStack._hide(self, dim, level, prefix)
        if name == "_remove_from_leaf":
            # The stack is the same for all calls of the mapped function.
            dim = args[2]
            return self._moved(_copied_along, (dim, prefix), prefix)
        return super()._map_leaves(op, args, prefix, names, tail, lock, k)

    def _homes(self) -> list[tuple[Any, int]]:
        """Return for each element, row by row, the owner of its cell and the index."""
        return [(self, place) for place in self._numbers()]

    def _index_tensor(self) -> torch.Tensor:
        """Return the cell index of each element ``[*B]``. Do not change the tensor."""
        return places_of(len(self._cells), self._layout, self._batch_size)

    def _numbers(self) -> list[int]:
        """Return the cell index of each element, row by row."""
        return places_listed(len(self._cells), self._layout, self._batch_size)

    def _is_uniform(self) -> bool:
        flat = self._flat()
        return bool(flat) and all(
            value is flat[0] or is_interchangeable(value, flat[0]) for value in flat
        )

    @property  # type: ignore[misc] # a value for all elements is set with `set`
    def data(self) -> Any:
        """The value that all elements share.

        Raises:
            AttributeError: the elements do not share one value.

        Examples:
            >>> NonTensorStack("a", "a").data
            'a'
        """
        if not self._is_uniform():
            raise AttributeError(MSG_NOT_UNIQUE)
        return self._flat()[0]

    def _value(self) -> Any:
        values = _nested(self._flat(), self._batch_size)
        # Indexing all batch dims leaves a single value.
        return LinkedList._of(self, values) if self._batch_size else values

    def tolist(self, *, as_linked_list: bool = False, **kwargs: object) -> Any:
        """Return the values in nested lists, one level for each batch dim.

        If ``as_linked_list`` is true, changes of the lists write to the stack.

        Examples:
            >>> NonTensorStack("a", "b").tolist()
            ['a', 'b']
        """
        if as_linked_list:
            return self._value()
        if self._batch_size and not self._batch_size[self.stack_dim]:
            # A stack without members returns an empty list, whatever the other dims.
            return []
        return _nested(self._flat(), self._batch_size)

    def to_dict(self, **kwargs: object) -> Any:
        """Return the values in nested lists: see :meth:`tolist`."""
        return self.tolist()

    def numpy(self) -> Any:
        """Return the values in nested lists: see :meth:`tolist`."""
        return self.tolist()

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Self:
        """Return this stack itself: its values are always one list."""
        return self

    def is_contiguous(self) -> bool:
        """Return False, like every lazy stack."""
        return False

    def maybe_to_stack(self) -> Self:
        """Return a stack of the same elements."""
        result: Self = NonTensorOps._index(self, ...)
        return result

    def _write_held(
        self, holder: Any, key: str, at: Any, value: Any, as_stack: bool = False
    ) -> None:
        if not isinstance(self._cells, LinkedCells):
            super()._write_held(holder, key, at, value, as_stack)
        elif not self._cells.is_of_rows:
            # The linked cells write to the collections that hold the values.
            super()._write_held(holder, key, at, value)
        else:
            # Members with one value each take their rows of the value.
            size = _rust.index_shape(holder.batch_size, at)
            if isinstance(value, (torch.Tensor, int, float)):
                value = NonTensorData(torch.as_tensor(value), batch_size=size)
            holder[at] = self._plain_type({key: value}, size)

    def _stated_value(self) -> Any:
        return self.tolist()

    def _take_state(self, fields: dict[str, Any], is_one: bool) -> None:
        data = fields["data"]
        if not self._batch_size.numel() and not _holds_anything(data):
            return
        if is_one or not isinstance(data, list):
            data = NonTensorData(data)
        elif shape_of_lists(data)[: len(self._batch_size)] == list(self._batch_size):
            # A value may itself be a list: split only the levels of the batch dims.
            data = self._from_nested(data, list(self._batch_size))
        self._write((), data)

    def _refined(self, names: list[str | None], is_fresh: bool = False) -> Any:
        # The elements have no dims, hence no names.
        return self if is_fresh else super()._refined(names)

    def _repr_short(self) -> str:
        return type(self).__name__

    @property
    def tensordicts(self) -> list[Any]:  # type: ignore[override] # made when read
        """The elements, or stacks of elements, along ``stack_dim``: new views."""
        return list(self.unbind(self.stack_dim))

    # The protocol ---------------------------------------------------------------------

    def _moved(
        self,
        op: object,
        args: tuple[Any, ...],
        size: torch.Size,
        tail: int = 0,
        k: int = -1,
    ) -> Any:
        count = len(self._cells)
        positions = places_moved(
            count, self._layout, self._batch_size, op, args, tail, k
        )
        return self._made_of(positions, size)

    def _moved_parts(
        self, op: object, args: tuple[Any, ...], sizes: list[torch.Size], k: int
    ) -> list[Any]:
        parts = places_split(
            len(self._cells), self._layout, self._batch_size, op, args, k
        )
        pairs = zip(parts, sizes, strict=True)
        return [self._made_of(positions, size) for positions, size in pairs]

    def _made_of(self, positions: Found, size: torch.Size) -> Any:
        """Make a stack that shows cells in a layout, or owns copies of some cells."""
        layout, places = positions
        if layout is None:
            assert places is not None  # noqa: S101 - for the type checker
            if size:
                return self._sized(size, taken(self._cells, places))
            layout = places[0], ()
        if not size:
            member = self._member_class
            return self._part(member._of(self._cells, layout[0], size, self._device))
        stack = self._sized(size, self._cells)
        stack._layout = layout
        return self._part(stack)

    def _part(self, made: Any) -> Any:
        """Mark ``made`` as a part: it shares cells, and does not write to the files."""
        stack = self if self._has_files() else self._saved_in
        if stack is not None:
            made._saved_in = stack
        if self._is_locked:
            made._lock_tree()
        return made

    def _fitted(self, size: torch.Size) -> Self | None:
        size = torch.Size(size)
        own_size = self._batch_size
        if own_size[: len(size)] == size:
            return self._twin()
        if own_size.numel() == size.numel():
            return self._sized(size, list(self._flat()))
        return None

    def _over(self, cells: list[Any]) -> Self:
        """Make the same stack with values at the same positions of other cells."""
        stack = self._sized(self._batch_size, cells)
        stack._layout = self._layout
        stack.stack_dim = self.stack_dim
        return stack

    def _moved_into(self, cells: list[Any]) -> Self:
        """Append the values to ``cells``, and make the same stack over them."""
        start = len(cells)
        cells += self._flat()
        stack = self._over(cells)
        stack._layout = start, strides_of(self._batch_size)
        return stack

    def _twin(self) -> Self:
        twin = self._sized(self._batch_size, list(self._flat()))
        if self.stack_dim:
            twin.stack_dim = self.stack_dim
        if self._has_one_a_row:
            twin._has_one_a_row = True
        names = self._td_dim_names
        return twin._named(None if names is None else list(names))

    @on_real_tensors
    def _index(self, index: Any) -> Any:
        if type(index) is int and len(self._batch_size) == 1:
            # Read one element of a flat stack without a tensor of positions.
            length = self._batch_size[0]
            if -length <= index < length:
                place = index % length
                if self._layout is not None:
                    start, steps = self._layout
                    place = start + steps[0] * place
                member = self._member_class
                element = member._of(self._cells, place, torch.Size(()), self._device)
                return self._part(element)
        if type(index) is slice and self._is_simple() and _has_plain_bounds(index):
            rows = range(self._batch_size[0])[index]
            part = self._sized(torch.Size([len(rows)]), self._cells)
            part._layout = rows.start, (1,)
            return self._part(part)
        refuse_fractions(index)
        is_tensor = isinstance(index, torch.Tensor)
        if is_tensor and self._layout is None and len(self._batch_size) == 1:
            plan = _rust.index_plan(self._batch_size, index, self)
            if plan is not None and isinstance(plan[0], torch.Tensor):
                # The values of the index tensor are the cell indices.
                places = _listed(plan[0])
                try:
                    values = taken(self._cells, places)
                except IndexError:
                    raise out_of_bounds(places, len(self._cells)) from None
                # The result has no names, like an indexed stack dim.
                return self._sized(plan[1], values)
        refuse_first_class(index)
        try:
            return super()._index(index)
        except IndexError as error:
            refuse_types(index, self.stack_dim, error)
            raise

    def _is_simple(self) -> bool:
        """Return whether the stack is flat, in order and without attributes to keep."""
        return (
            self._layout is None
            and len(self._batch_size) == 1
            and not self._has_one_a_row
            and self._td_dim_names is None
            and not torch.compiler.is_compiling()
        )

    # The dim of the rows --------------------------------------------------------------

    def _follow(self, source: Any, dims: tuple[int, ...] | None) -> None:
        if dims is None:
            dims = tuple(range(len(source.batch_size)))
        dim = getattr(source, "stack_dim", 0)
        if dim not in dims:
            # The dim of the rows that an index tensor selects is -1, if it has one.
            dim = -1
        if dim in dims and len(dims) == len(self._batch_size):
            self.stack_dim = dims.index(dim)
            self._has_one_a_row = getattr(source, "_has_one_a_row", False)

    def _as_row(self, result: object, dims: tuple[int, ...]) -> Any:
        return result if self.stack_dim in dims else self._row_of(result)

    def _part_of_row(self, result: object, at: object) -> Any:
        if not selects_one(at, self.stack_dim):
            return result
        # One element with new dims counts as one value, too.
        dims = range(len(self._batch_size))
        return self._row_of(result, all(selects_one(at, dim) for dim in dims))

    def _row_of(self, result: Any, is_element: bool = False) -> Any:
        """Return ``result``, elements of one row, as one value if the row had one."""
        if not (self._has_one_a_row or is_element):
            return result
        flat = result._flat() if isinstance(result, NonTensorStack) else ()
        if not flat or any(value is not flat[0] for value in flat):
            return result
        cells: Any = RowCells(flat[0], result, result._numbers())
        row = self._member_class._of(cells, 0, result._batch_size, self._device)
        if self._is_locked:
            row._lock_tree()
        names = result._td_dim_names
        return row._named(None if names is None else list(names))

    def _resize_batch(self, size: torch.Size) -> None:
        if size != self._batch_size:
            raise RuntimeError(MSG_RESIZED.format(size, self._batch_size))

    def __repr__(self) -> str:
        """Return the text of the first values, the batch size and the device.

        Examples:
            >>> NonTensorStack("a", "b")
            NonTensorStack(
                ['a', 'b'],
                batch_size=torch.Size([2]),
                device=None)
        """
        rows = self.batch_size[0] if self.batch_size else 0
        # Read no more rows than the number of characters shown.
        shown = self[:SHOWN] if rows > SHOWN else self
        text = str(shown.tolist())
        if len(text) > SHOWN:
            text = f"{text[:SHOWN]}..."
        return (
            f"{type(self).__name__}(\n    {text},\n"
            f"    batch_size={self.batch_size},\n    device={self.device})"
        )

    def _cat_with_entries(self, tds: Sequence[Any], dim: int) -> Any:
        members = [member for td in tds for member in td.unbind(dim)]
        return LazyStackedTensorDict._of(members, dim, None)

    _incomparable = CombiningOps._incomparable

    def _nothing(self) -> Any:
        rows = [row._nothing() for row in self.unbind(self.stack_dim)]
        if not rows:
            return super()._nothing()
        return LazyStackedTensorDict._of(rows, self.stack_dim, None)


def _refused(name: str) -> Any:
    """Make a method that raises an error: separate values cannot be reduced."""

    def method(self: NonTensorStack, *_: object, **__: object) -> NoReturn:
        raise RuntimeError(MSG_REDUCED.format(name, type(self).__name__))

    method.__name__ = name
    method.__qualname__ = f"NonTensorStack.{name}"
    method.__doc__ = "Raise an error: the values of the elements cannot be reduced."
    return method


for _name in REDUCES:
    setattr(NonTensorStack, _name, _refused(_name))

# The elements are values in one list, not members: methods of lazy stacks that work on
# members do not apply. Methods that only lazy stacks have stay.
release(
    NonTensorStack,
    TensorDictBase,
    *(
        base
        for base in LazyStackedTensorDict.__mro__
        if base not in TensorDictBase.__mro__
    ),
)
NonTensorStack.__module__ = "tensordict.tensorclass"
registry.register_class(NonTensorStack, "tensordict", dense=False)
CollectionProtocol._non_tensor_stack_type = NonTensorStack
