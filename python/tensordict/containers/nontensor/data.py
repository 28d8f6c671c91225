"""Non-tensor data with one value for all rows of a batch."""

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
from tensordict.primitives.common import as_size
from tensordict.primitives.errors import bad_key
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

    from tensordict.containers.nontensor.stack import NonTensorStack

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
"""The attributes of an instance. Setting any other name is an error."""


if TYPE_CHECKING:
    # For type checkers, a subclass of TensorClass is a dataclass of its annotations.
    # The type of the value is a type parameter, which is optional.
    Value = TypeVar("Value", default=Any)

    class _Named(TensorCollection, Generic[Value]):
        @classmethod
        def _check_keys(cls, entries: object) -> None: ...
else:
    Value = Any
    # At run time the class is the same for every type of the value.
    _Named = defaultdict(lambda: TensorClass)


class NonTensorDataBase(DataFiles, DataWriting, _Named[Value]):
    """One value of any type for all rows of a batch: the base of both such classes.

    Operations do not look into the value. Results share it, and it is never copied;
    shape operations only change the batch size.
    """

    _metadata: Any = None

    __expected_keys__: ClassVar[set[str]] = {"_is_non_tensor", "_metadata", "data"}

    # The state is stored here, unlike in tensorclasses, which wrap a collection.
    _batch_size = torch.Size([])
    _device = None
    _td_dim_names = None
    _is_locked = False
    _is_memmap = False
    _is_shared = False
    _memmap_prefix = None
    _lock_parents_weakrefs = ()

    _at: int
    """The index of the value in the cells."""

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
        # `__setattr__` checks each name, which is superfluous here.
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
        """Return whether two pytrees with these nodes have the same structure."""
        return (
            len(self._batch_size) == len(other._batch_size)
            and self._device == other._device
            and (self.data is other.data or same_value(self.data, other.data))
        )

    if not TYPE_CHECKING:  # checkers see a generic class

        @classmethod
        def __class_getitem__(cls, item: object) -> Any:
            """Return the class with a type for annotations: ``NonTensorData[str]``."""
            return types.GenericAlias(cls, item)

    @classmethod
    def _of(
        cls,
        cells: list[Any],
        at: int,
        batch_size: torch.Size,
        device: torch.device | None = None,
    ) -> Self:
        """Make data with the value at index ``at`` of ``cells``, which it shares."""
        data = cls.__new__(cls)
        set_attribute = object.__setattr__
        set_attribute(data, "_cells", cells)
        set_attribute(data, "_at", at)
        set_attribute(data, "_batch_size", batch_size)
        set_attribute(data, "_device", device)
        set_attribute(data, "_td_dim_names", None)
        return data

    @classmethod
    def _entry_of(
        cls, value: object, size: Sequence[int] = ()
    ) -> NonTensorData[Any] | NonTensorStack | torch.Tensor:
        """Convert a value to the entry of a collection of batch size ``size``.

        An entry with one value for all rows has no batch size yet.
        """
        from tensordict.containers.nontensor.convert import non_tensor_of

        return non_tensor_of(value, size)

    @classmethod
    def _rows_of(cls, value: object, size: Sequence[int]) -> Any:
        """Make a stack of an array whose rows fill ``size``; else return ``value``."""
        from tensordict.containers.nontensor.convert import stack_of_array

        stack = stack_of_array(value, size)
        return value if stack is None else stack

    def _sized(self, size: torch.Size) -> Self:
        """Make data with the same value and another batch size."""
        data = self._of([self._cells[self._at]], 0, size, self._device)
        if self._metadata is not None:
            data._metadata = self._metadata
        return data

    # The value ------------------------------------------------------------------------

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
        """Return for each element, row by row, the owner of its cell and the index."""
        return [(self, self._at)] * self._batch_size.numel()

    def __getattr__(self, name: str) -> NoReturn:
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
        """Raise an error, like any collection."""
        raise RuntimeError(MSG_BOOL)

    __hash__: ClassVar[Any] = None

    def __repr__(self) -> str:
        """Return the text of the class, value, batch size and device.

        Examples:
            >>> NonTensorData("text", batch_size=[3])
            NonTensorData(data=text, batch_size=torch.Size([3]), device=None)
        """
        return (
            f"{type(self).__name__}(data={self.data}, batch_size={self.batch_size}, "
            f"device={self.device})"
        )

    def get(self, key: object, *args: object, **kwargs: object) -> Any:
        """Return the value for the key ``"data"``, or the default for other keys.

        Raises:
            KeyError: ``key`` is not a nested key.
        """
        if key == "data":
            return self.data
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise bad_key(key)
        if path == ("data",):
            return self.data
        default = args[0] if args else kwargs.get("default", NONE_IF_MISSING)
        if default is NO_DEFAULT:
            raise KeyError(key)
        return None if default is NONE_IF_MISSING else default

    def set(self, key: object, item: object, *args: object, **kwargs: object) -> Self:
        """Set the value, under the key ``"data"``; other keys are an error."""
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
        """Return the fields of the class, like :func:`dataclasses.fields`."""
        return dataclasses.fields(_Fields)

    # Conversions ----------------------------------------------------------------------

    def maybe_to_stack(self) -> Any:
        """Return a :class:`NonTensorStack` with a value for each element.

        Data without batch dims is returned itself.

        Examples:
            >>> NonTensorData("a", batch_size=[2]).maybe_to_stack().tolist()
            ['a', 'a']
        """
        if not self._batch_size:
            return self
        return self._to_stack()

    def _to_stack(self) -> NonTensorStack:
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
        """Return whether there are neither names nor metadata to keep."""
        return self._td_dim_names is None and self._metadata is None

    def _map_leaves(
        self, op: Any, args: Any, prefix: Any, names: Any, tail: int, lock: bool, k: int
    ) -> Any:
        # Moving elements of one value changes its batch size only.
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
        # The third argument lets the compiler trace the plan.
        if type(index) is int and self._is_bare():
            plan: Any = _rust.index_plan(self._batch_size, index, True)
            return self._of([self._cells[self._at]], 0, plan[1], self._device)
        return super()._index(index)

    def _broadcast(self, shape: torch.Size) -> Self:
        return self._sized(shape)

    def _entries_to_join(self) -> dict[str, Any]:
        # Joining as entries would lose the value.
        raise AttributeError(MSG_NO_SIZE)

    def _get_sub_tensordict(self, idx: Any) -> Any:
        """Return the part at an index, which cannot be written."""
        self._check_index(idx)
        _rust.index_plan(self._batch_size, idx)
        return self._index(idx)

    def _fitted(self, size: torch.Size) -> Self:
        return self._sized(torch.Size(size))

    def _flat(self) -> list[Any]:
        return [self.data] * self._batch_size.numel()

    def _twin(self) -> Self:
        data = self._sized(self._batch_size)
        names = self._td_dim_names
        return data._named(None if names is None else list(names))

    def tolist(self, *, as_linked_list: bool = False, **kwargs: object) -> Any:
        """Return the value in nested lists, one level for each batch dim.

        Examples:
            >>> NonTensorData("a", batch_size=[2]).tolist()
            ['a', 'a']
        """
        if as_linked_list and self._batch_size:
            return self._to_stack()._value()
        return _nested(self._flat(), self._batch_size)

    def to_dict(self, **kwargs: object) -> Any:
        """Return the value."""
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
        data = cls(
            fields.get("data", tensordict.get("data", None)),
            fields.get("_metadata"),
            batch_size=tensordict.batch_size,
            device=tensordict.device,
        )
        names = tensordict._td_dim_names
        return data._named(None if names is None else list(names))

    @classmethod
    def from_tensordict(
        cls,
        tensordict: CollectionProtocol,
        non_tensordict: dict[str, Any] | None = None,
        safe: bool | None = None,
    ) -> Self:
        """Make data with the batch size, device and names of a collection.

        Args:
            tensordict: the collection. Its only entry can be ``"data"``.
            non_tensordict: the value, under the key ``"data"``.
            safe: ignored.

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
        """Return the part at an index of the batch dims.

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
        """Raise an error: there are no entries."""
        raise AttributeError(MSG_NO_ATTRIBUTE.format(type(self).__name__, key))

    def non_tensor_items(self, include_nested: bool = False) -> tuple[Any, ...]:
        """Return the pairs of name and value of the fields of the class."""
        return (
            ("data", self.data),
            ("_metadata", self._metadata),
            ("_is_non_tensor", True),
        )


class NonTensorData(NonTensorDataBase[Value]):
    """One value of any type for all rows of a batch.

    Setting an entry to an object that can be neither a tensor nor a collection stores a
    ``NonTensorData``. Reading the entry by key returns the value; ``get`` returns the
    ``NonTensorData``. Writing another value to some rows replaces it by a
    :class:`NonTensorStack`.

    Args:
        data: the value. If it is non-tensor data, its value is used.
        batch_size: the batch size ``[*B]``.
        device: the device to report; nothing is moved.
        names: a name or None for each batch dim.

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
        has_plain_cells = type(self._cells) is list and not self._is_memmap
        return (
            has_plain_cells
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
        # A stack of no elements would lose the value.
        if 0 in self._batch_size or op not in ADDS_DIMS:
            return result
        if len(result.batch_size) == len(self._batch_size):
            return result
        if op in REGROUPS and not isinstance(names, tuple):
            return result
        stack = result.maybe_to_stack()
        stack._named(result._td_dim_names)
        if self._batch_size and len(stack.batch_size) == len(self._batch_size) + 1:
            # With one new dim, each row of the stack is one value.
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
"""The index types, besides None, whose result is a view of memory-mapped data."""


def _nested(flat: Any, size: Sequence[int]) -> Any:
    """Nest a flat list of values by ``size``; return the value itself for no dims."""
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


# The class is a tensorclass for `isinstance`, but has no inner collection to call.
release(NonTensorDataBase, TensorCollection, TensorClass)
for _class in (NonTensorDataBase, NonTensorData):
    _class.__module__ = "tensordict.tensorclass"
    registry.register_class(_class, "tensordict.tensorclass", dense=False)
classes.announce(NonTensorData, "value")
CollectionProtocol._non_tensor_type = NonTensorData
