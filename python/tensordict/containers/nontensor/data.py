"""One value that is no tensor, for all elements of a batch."""

from __future__ import annotations

import dataclasses
import types
from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import torch

from tensordict import _rust
from tensordict.containers.collection import TensorCollection
from tensordict.containers.nontensor.base import MSG_NO_SIZE, NonTensorOps, release
from tensordict.containers.nontensor.data_writing import DataWriting
from tensordict.containers.nontensor.equality import same_value
from tensordict.containers.nontensor.files import DataFiles
from tensordict.primitives import classes, registry
from tensordict.primitives.common import MSG_BAD_KEY, as_size
from tensordict.primitives.operations import (
    ADDS_DIMS,
    MOVES_DIMS,
    MOVES_ELEMENTS,
    NEW_ELEMENTS,
    REGROUPS,
)
from tensordict.primitives.protocol import (
    NO_DEFAULT,
    NONE_IF_MISSING,
    CollectionProtocol,
)
from tensordict.tensorclass.base import TensorClass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Generic

    from typing_extensions import TypeVar

__all__ = ["NonTensorData", "NonTensorDataBase"]

MSG_BOOL = (
    "Converting a tensorclass to boolean value is not permitted. Use len(tc.keys()) to "
    "test for keys, tc.is_empty() to test for leaves, or (a == b).all() / .any() to "
    "reduce a comparison."
)
MSG_NO_ATTRIBUTE = (
    "'{0}' object has no attribute or field {1!r}. Its fields are ['data']."
)
MSG_NO_FIELD = (
    "Cannot set the attribute {1!r}: {0} has no such field. Its fields are "
    "['_is_non_tensor', '_metadata', 'data']."
)
MSG_KEY = (
    "Invalid indexing arguments: {!r}. A tensorclass is indexed along its batch "
    "dimensions; get its value with the attribute data."
)
MSG_KEY_TYPE = "Supported type for key are str and tuple, got {} of type {}"
_STATE = frozenset(
    {
        "_at",
        "_batch_size",
        "_cells",
        "_device",
        "_is_locked",
        "_is_memmap",
        "_is_shared",
        "_last_op",
        "_lock_parents_weakrefs",
        "_memmap_prefix",
        "_metadata",
        "_saved_in",
        "_td_dim_names",
    }
)
"""The attributes that an instance has; any other name is an error."""


if TYPE_CHECKING:
    # To checkers a subclass of TensorClass is a dataclass of what it annotates, and
    # values have a type, which need not be given.
    Value = TypeVar("Value", default=Any)

    class _Named(TensorCollection, Generic[Value]):
        @classmethod
        def _check_keys(cls, entries: object) -> None: ...
else:
    Value = Any
    # Only checkers know it with a type: here it is the class itself, whatever the type.
    _Named = defaultdict(lambda: TensorClass)


class NonTensorDataBase(DataFiles, DataWriting, _Named[Value]):
    """One value of any type for all elements of a batch: the base of both kinds.

    No operation looks into the value. It is shared, never copied, by what is made of
    this collection; shape operations change its batch size alone.
    """

    _metadata: Any = None

    __expected_keys__: ClassVar[set[str]] = {"_is_non_tensor", "_metadata", "data"}

    # The state is kept here, and not by an inner container as in other tensorclasses.
    _batch_size = torch.Size([])
    _device = None
    _td_dim_names = None
    _is_locked = False
    _is_memmap = False
    _is_shared = False
    _memmap_prefix = None
    _lock_parents_weakrefs = ()

    _at: int
    """The position of the value in the cells."""

    def __init__(
        self,
        data: object,
        _metadata: dict[str, Any] | None = None,
        _is_non_tensor: bool = True,
        *,
        batch_size: object = None,
        device: Any = None,
        names: Sequence[str | None] | None = None,
    ) -> None:
        while isinstance(data, NonTensorOps):
            data = data.data
        # Names that are known to be attributes need no look at each.
        set_attribute = object.__setattr__
        set_attribute(self, "_cells", [data])
        set_attribute(self, "_at", 0)
        set_attribute(self, "_batch_size", as_size(batch_size))
        device = None if device is None else torch.device(device)
        set_attribute(self, "_device", device)
        set_attribute(self, "_td_dim_names", None)
        if _metadata is not None:
            self._metadata = _metadata
        if names is not None:
            self.names = names

    def _is_same_node(self, other: Self) -> bool:
        """Tell whether two pytrees are of one structure where they have these in one place."""
        return (
            len(self._batch_size) == len(other._batch_size)
            and self._device == other._device
            and (self.data is other.data or same_value(self.data, other.data))
        )

    if not TYPE_CHECKING:  # to which it is generic

        @classmethod
        def __class_getitem__(cls, item: object) -> Any:
            """The class in annotations, with the type of the value: ``NonTensorData[str]``."""
            return types.GenericAlias(cls, item)

    @classmethod
    def _of(
        cls,
        cells: list[Any],
        at: int,
        batch_size: torch.Size,
        device: torch.device | None = None,
    ) -> Self:
        """One that holds the value at a position of ``cells``, which it shares."""
        made = cls.__new__(cls)
        set_attribute = object.__setattr__
        set_attribute(made, "_cells", cells)
        set_attribute(made, "_at", at)
        set_attribute(made, "_batch_size", batch_size)
        set_attribute(made, "_device", device)
        set_attribute(made, "_td_dim_names", None)
        return made

    @classmethod
    def _entry_of(cls, value: object, size: Sequence[int] = ()) -> Any:
        """The non-tensor entry that a value becomes in a collection of batch size ``size``.

        One value for all rows has no batch size yet.
        """
        from tensordict.containers.nontensor.convert import non_tensor_of

        return non_tensor_of(value, size)

    @classmethod
    def _rows_of(cls, value: object, size: Sequence[int]) -> Any:
        """Make a column of an array with a row per element of ``size``; else ``value``."""
        from tensordict.containers.nontensor.convert import stack_of_array

        stack = stack_of_array(value, size)
        return value if stack is None else stack

    def _sized(self, size: torch.Size) -> Self:
        """One of another batch size with the same value, of its own."""
        made = self._of([self._cells[self._at]], 0, size, self._device)
        if self._metadata is not None:
            made._metadata = self._metadata
        return made

    # The value -------------------------------------------------------------------------

    @property
    def data(self) -> Any:
        """The value. It can be set unless the collection is locked.

        Examples:
            >>> NonTensorData("text").data
            'text'
        """
        return self._cells[self._at]

    @data.setter
    def data(self, value: object) -> None:
        self._check_unlocked()
        self._put(value)

    def _put(self, value: object) -> None:
        if isinstance(value, NonTensorOps):
            value = value.data
        self._put_cells([self._at], [value])

    def _value(self) -> Any:
        return self._cells[self._at]

    def _homes(self) -> list[tuple[Any, int]]:
        """The owner of each element in its cells, row by row, and its place there."""
        return [(self, self._at)] * self._batch_size.numel()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(MSG_NO_ATTRIBUTE.format(type(self).__name__, name))

    def __setattr__(self, name: str, value: object) -> None:
        if name == "is_locked" or (
            name not in _STATE and not hasattr(type(self), name)
        ):
            raise AttributeError(MSG_NO_FIELD.format(type(self).__name__, name))
        object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the value, which must be a function.

        Examples:
            >>> NonTensorData(len)("four")
            4
        """
        return self.data(*args, **kwargs)

    def __bool__(self) -> NoReturn:
        """Refused, as for any collection."""
        raise RuntimeError(MSG_BOOL)

    __hash__: ClassVar[Any] = None

    def __repr__(self) -> str:
        """Its class, value, batch size and device.

        Examples:
            >>> NonTensorData("text", batch_size=[3])
            NonTensorData(data=text, batch_size=torch.Size([3]), device=None)
        """
        return (
            f"{type(self).__name__}(data={self.data}, batch_size={self.batch_size}, "
            f"device={self.device})"
        )

    def get(self, key: object, *args: object, **kwargs: object) -> Any:
        """The value under the key ``"data"``; the default under any other.

        Raises:
            KeyError: ``key`` is no nested key.
        """
        if key == "data":
            return self.data
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise KeyError(MSG_BAD_KEY.format(key))
        if path == ("data",):
            return self.data
        default = args[0] if args else kwargs.get("default", NONE_IF_MISSING)
        if default is NO_DEFAULT:
            raise KeyError(key)
        return None if default is NONE_IF_MISSING else default

    def set(self, key: object, item: object, *args: object, **kwargs: object) -> Self:
        """Set the value, under the key ``"data"``."""
        if key != "data":
            path = _rust.unravel_key_to_tuple(key)
            if not path:
                raise ValueError(MSG_KEY_TYPE.format(key, type(key)))
            if path != ("data",):
                self._check_unlocked()
                raise AttributeError(MSG_NO_FIELD.format(type(self).__name__, key))
        self.data = item
        return self

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """The fields of the class, as a dataclass has them."""
        return dataclasses.fields(_Fields)

    # Conversions -------------------------------------------------------------------------

    def maybe_to_stack(self) -> Any:
        """A :class:`NonTensorStack` with a value for each element; itself without dims.

        Examples:
            >>> NonTensorData("a", batch_size=[2]).maybe_to_stack().tolist()
            ['a', 'a']
        """
        if not self._batch_size:
            return self
        return self._to_stack()

    def _to_stack(self) -> Any:
        from tensordict.containers.nontensor.stack import NonTensorStack

        stack = NonTensorStack._of_cells(self._flat(), self._batch_size, self._device)
        stack._member_class = type(self)
        return stack

    def _moved(
        self,
        op: object,
        args: tuple[Any, ...],
        size: torch.Size,
        tail: int = 0,
        k: int = -1,
    ) -> Any:
        return self._sized(size)

    def _moved_parts(
        self, op: object, args: tuple[Any, ...], sizes: list[torch.Size], k: int
    ) -> list[Any]:
        return [self._sized(size) for size in sizes]

    def _is_bare(self) -> bool:
        """Tell whether the value, size and device are all that there is to keep."""
        return self._td_dim_names is None and self._metadata is None

    def _map_leaves(
        self, op: Any, args: Any, prefix: Any, names: Any, tail: int, lock: bool, k: int
    ) -> Any:
        # Wherever elements are moved, one value is the same: only its size is new.
        if (
            prefix is not None
            and op in MOVES_ELEMENTS
            and k in (-1, len(self._batch_size))
            and not isinstance(names, list)
            and not (lock and self._is_locked)
            and self._is_bare()
        ):
            return self._of([self._cells[self._at]], 0, prefix, self._device)
        return super()._map_leaves(op, args, prefix, names, tail, lock, k)

    def _index(self, index: object) -> Any:
        # A plan without the values is one that the compiler does not follow.
        if type(index) is int and self._is_bare():
            plan: Any = _rust.index_plan(self._batch_size, index, True)
            return self._of([self._cells[self._at]], 0, plan[1], self._device)
        return super()._index(index)

    def _broadcast(self, shape: torch.Size) -> Self:
        return self._sized(shape)

    def _entries_to_join(self) -> dict[str, Any]:
        # Its value would be lost.
        raise AttributeError(MSG_NO_SIZE)

    def _get_sub_tensordict(self, idx: Any) -> Any:
        """The part at an index: no part of it can be written."""
        self._check_index(idx)
        _rust.index_plan(self._batch_size, idx)
        return self._index(idx)

    def _fitted(self, size: torch.Size) -> Self:
        return self._sized(torch.Size(size))

    def _flat(self) -> list[Any]:
        return [self.data] * self._batch_size.numel()

    def _twin(self) -> Self:
        made = self._sized(self._batch_size)
        names = self._td_dim_names
        return made._named(None if names is None else list(names))

    def tolist(self, *, as_linked_list: bool = False, **kwargs: object) -> Any:
        """The value, in as many nested lists as there are batch dims.

        Examples:
            >>> NonTensorData("a", batch_size=[2]).tolist()
            ['a', 'a']
        """
        if as_linked_list and self._batch_size:
            return self._to_stack()._value()
        return _nested(self._flat(), self._batch_size)

    def to_dict(self, **kwargs: object) -> Any:
        """The value."""
        return self.data

    def _take_state(self, fields: dict[str, Any], is_one: bool) -> None:
        self._put(fields["data"])

    @classmethod
    def _from_tensordict(
        cls,
        tensordict: CollectionProtocol,
        non_tensordict: dict[str, Any] | None = None,
        safe: bool | None = True,
    ) -> Self:
        cls._check_keys(tensordict)
        fields = non_tensordict or {}
        made = cls(
            fields.get("data", tensordict.get("data", None)),
            fields.get("_metadata"),
            batch_size=tensordict.batch_size,
            device=tensordict.device,
        )
        names = tensordict._td_dim_names
        return made._named(None if names is None else list(names))

    @classmethod
    def from_tensordict(
        cls,
        tensordict: CollectionProtocol,
        non_tensordict: dict[str, Any] | None = None,
        safe: bool | None = None,
    ) -> Self:
        """Make one of the batch size, device and names of a collection.

        Args:
            tensordict: what has them. Its only entry can be ``"data"``.
            non_tensordict: the value, under the key ``"data"``.
            safe: accepted for compatibility.

        Raises:
            ValueError: ``tensordict`` has other entries.

        Examples:
            >>> size = TensorDict(batch_size=[2])
            >>> NonTensorData.from_tensordict(size, {"data": "text"})
            NonTensorData(data=text, batch_size=torch.Size([2]), device=None)
        """
        return cls._from_tensordict(tensordict, non_tensordict)

    def _repr_short(self) -> str:
        return type(self.data).__name__

    def __getitem__(self, index: object) -> Any:
        """The part at an index of the batch dims.

        Raises:
            ValueError: the index is a key, or empty.
        """
        self._check_index(index)
        if isinstance(index, tuple) and not index:
            raise ValueError(MSG_KEY.format(index))
        result = self._index(index)
        if self._is_memmap and self._is_locked and result._batch_size.numel():
            items = index if isinstance(index, tuple) else (index,)
            if all(item is None or type(item) in VIEWING for item in items):
                result._lock_tree()
        return result

    @staticmethod
    def _check_index(index: object) -> None:
        if isinstance(index, str) or (
            isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
        ):
            raise ValueError(MSG_KEY.format(index))

    def __copy__(self) -> Self:
        return self._twin()

    def __delitem__(self, key: object) -> NoReturn:
        """Refused: there are no entries."""
        raise AttributeError(MSG_NO_ATTRIBUTE.format(type(self).__name__, key))

    def non_tensor_items(self, include_nested: bool = False) -> tuple[Any, ...]:
        """The pairs of name and value of the fields of the class."""
        return (
            ("data", self.data),
            ("_metadata", self._metadata),
            ("_is_non_tensor", True),
        )


class NonTensorData(NonTensorDataBase[Value]):
    """One value of any type for all elements of a batch.

    What is set as an entry and can neither become a tensor nor a collection becomes
    one. Reading the entry by key gives the value; ``get`` gives this. Elements that
    take another value make it a :class:`NonTensorStack`.

    Args:
        data: the value. Of another one, its value.
        batch_size: the batch size ``[*B]``.
        device: what it says of itself; nothing is moved.
        names: a name or None per batch dim.

    Examples:
        >>> td = TensorDict(a=torch.zeros(2), text="hello", batch_size=[2])
        >>> td["text"]
        'hello'
        >>> td.get("text")
        NonTensorData(data=hello, batch_size=torch.Size([2]), device=None)
        >>> td[0] = TensorDict(a=torch.ones(()), text="bye")
        >>> td.get("text").tolist()
        ['bye', 'hello']
    """

    _fits_any_size: ClassVar[bool] = True

    def _can_put(self, value: object) -> bool:
        is_own = type(self._cells) is list and not self._is_memmap
        return (
            is_own
            and self._saved_in is None
            and type(self) is type(value) is NonTensorData
        )

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
        result = super()._map_leaves(op, args, prefix, names, tail, lock, k)
        # A stack without elements would lose the value.
        if 0 in self._batch_size or op not in ADDS_DIMS:
            return result
        if len(result.batch_size) == len(self._batch_size):
            return result
        if op in REGROUPS and not isinstance(names, tuple):
            return result
        stack = result.maybe_to_stack()
        stack._named(result._td_dim_names)
        if self._batch_size and len(stack.batch_size) == len(self._batch_size) + 1:
            # With several new dims the rows are stacks.
            stack._has_one_a_row = True
        if op in MOVES_DIMS:
            stack.stack_dim = args[0] % len(stack.batch_size)
        if result._is_locked and op not in NEW_ELEMENTS:
            stack._lock_tree()
        return stack


@dataclasses.dataclass
class _Fields:
    data: Any
    _metadata: dict[str, Any] | None = None
    _is_non_tensor: bool = True


VIEWING = frozenset({int, slice, type(...)})
"""The types of indices, beside None, that make a view of what is mapped."""


def _nested(flat: Any, size: Sequence[int]) -> Any:
    """A list of values, row by row, as nested lists of a shape; its one value without."""
    if not size:
        return flat[0]
    if len(size) == 1:
        return list(flat)
    length = 1
    for dim in size[1:]:
        length *= dim
    return [
        _nested(flat[row * length : (row + 1) * length], size[1:])
        for row in range(size[0])
    ]


# It is a tensorclass by name: it has no inner container to pass calls on to.
release(NonTensorDataBase, TensorCollection, TensorClass)
for _class in (NonTensorDataBase, NonTensorData):
    _class.__module__ = "tensordict.tensorclass"
    registry.register_class(_class, "tensordict.tensorclass", dense=False)
classes.announce(NonTensorData, "value")
CollectionProtocol._non_tensor_type = NonTensorData
