"""Stacks of values as arguments of a function under :func:`torch.vmap`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch

from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.containers.nontensor.data import _nested
from tensordict.containers.nontensor.positions import leaf_call, taken
from tensordict.containers.nontensor.stack import NonTensorStack
from tensordict.containers.nontensor.write_through import LinkedList

MSG_MAPPED_CHOICE = (
    "where() cannot choose among the values of a NonTensorStack that torch.vmap maps over: "
    "the function runs once, for all of its elements. Call where() before or after it."
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["MappedStack", "joined_with_mapped"]

MSG_MAPPED = (
    "A NonTensorStack that torch.vmap maps over cannot be written: the function runs "
    "once, for all of its elements. Write to it before or after."
)


class MappedStack(NonTensorStack):
    """A :class:`NonTensorStack` of which ``vmap`` hides one or more dims.

    ``vmap`` calls the function once for all elements, so reading returns the values of
    all elements. Shape operations move the elements like those of a tensor.
    """

    _places: torch.Tensor
    """The cell index of each element, with the hidden dims first."""

    _levels: tuple[int, ...]
    """The ``vmap`` level of each hidden dim."""

    @classmethod
    def _hide(cls, stack: NonTensorStack, dim: int, level: int, size: object) -> Self:
        """Hide a dim of a stack that ``vmap`` maps over."""
        levels = stack._levels if isinstance(stack, MappedStack) else ()
        places = stack._index_tensor().movedim(len(levels) + dim, 0)
        return cls._of_places(stack, places, size, (level, *levels))

    @classmethod
    def _of_places(cls, like: Any, places: Any, size: Any, levels: Any) -> Self:
        stack = cls._of_cells(like._cells, torch.Size(size), like._device)
        stack._places = places
        stack._member_class = like._member_class
        stack._levels = levels
        return stack

    def _index_tensor(self) -> torch.Tensor:
        return self._places

    def _numbers(self) -> list[int]:
        numbers: list[int] = self._places.flatten().tolist()
        return numbers

    def _flat(self) -> list[Any]:
        return taken(self._cells, self._numbers())

    # One visible element stands for many elements, so it is not one value.
    _index = NonTensorOps._index
    _as_row = NonTensorOps._as_row
    _part_of_row = NonTensorOps._part_of_row

    def _moved(
        self,
        op: object,
        args: tuple[Any, ...],
        size: torch.Size,
        tail: int = 0,
        k: int = -1,
    ) -> Self:
        return self._called(leaf_call(op, args, tail, k), size)

    def _moved_parts(
        self, op: object, args: tuple[Any, ...], sizes: list[torch.Size], k: int
    ) -> list[Any]:
        return [
            self._called(leaf_call(op, args, 0, k, part), size)
            for part, size in enumerate(sizes)
        ]

    def _called(self, call: Callable[..., Any], size: torch.Size) -> Any:
        for _ in self._levels:
            call = torch.vmap(call)
        return self._of_places(self, call(self._index_tensor()), size, self._levels)

    def _map_leaves(
        self, op: Any, args: Any, prefix: Any, names: Any, tail: int, lock: bool, k: int
    ) -> Any:
        name = getattr(op, "__name__", op)
        if name != "_remove_from_leaf" or args[0] not in self._levels:
            return super()._map_leaves(op, args, prefix, names, tail, lock, k)
        level, _, dim = args
        at = self._levels.index(level)
        levels = (*self._levels[:at], *self._levels[at + 1 :])
        places = self._index_tensor().movedim(at, len(levels) + dim)
        if levels:
            return self._of_places(self, places, prefix, levels)
        cells = [self._cells[place] for place in places.flatten().tolist()]
        stack = NonTensorStack._of_cells(cells, prefix, self._device)
        stack._member_class = self._member_class
        return stack

    def _twin(self) -> Self:
        return self._of_places(self, self._places, self._batch_size, self._levels)

    def _deep_twin(self) -> Self:
        return self._twin()

    def _value(self) -> LinkedList:
        return LinkedList(self.tolist())

    def tolist(self, *, as_linked_list: bool = False, **kwargs: object) -> Any:
        """Return the values of all elements in nested lists, hidden dims first."""
        nested = _nested(self._flat(), self._index_tensor().shape)
        return LinkedList(nested) if as_linked_list else nested

    def _write(self, index: object, value: object) -> NoReturn:
        raise RuntimeError(MSG_MAPPED)

    def _chosen(self, condition: torch.Tensor, other: object) -> NoReturn:
        raise RuntimeError(MSG_MAPPED_CHOICE)


def joined_with_mapped(
    members: Sequence[Any], join: Callable[..., torch.Tensor], dim: int, size: Any
) -> MappedStack:
    """Join stacks of which ``vmap`` maps over some; ``join`` joins tensors."""
    levels: dict[int, int] = {}
    for member in members:
        if isinstance(member, MappedStack):
            levels |= dict(zip(member._levels, member._places.shape, strict=False))
    # The innermost ``vmap`` hides the first dim.
    order = sorted(levels, reverse=True)
    cells: list[Any] = []
    parts = []
    for member in members:
        member_levels = member._levels if isinstance(member, MappedStack) else ()
        flat = member._flat()
        places = torch.arange(len(cells), len(cells) + len(flat))
        cells += flat
        places = places.view(
            [*[levels[level] for level in member_levels], *member.batch_size]
        )
        for at, level in enumerate(order):
            if level not in member_levels:
                places = places.unsqueeze(at)
        parts.append(
            places.expand(*[levels[level] for level in order], *member.batch_size)
        )
    joined = MappedStack._of_cells(cells, torch.Size(size), members[0]._device)
    joined._places = join(parts, len(order) + dim)
    joined._levels = tuple(order)
    joined._member_class = next(
        member._member_class for member in members if isinstance(member, MappedStack)
    )
    return joined
