"""Fields as attributes and entries: reading, writing and removing them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, overload

import numpy as np
import torch

from tensordict import _rust
from tensordict.containers.collection import TensorCollection
from tensordict.primitives.checks import is_branch
from tensordict.primitives.common import value_of
from tensordict.primitives.errors import KeyMessageError, locked_error
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.tensorclass.casting import are_rows, as_dicts, cast_field
from tensordict.tensorclass.delegation import forwarded

if TYPE_CHECKING:
    from tensordict.ops.comparison import Equality, Order
    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike

__all__ = ["FieldAccess"]

MSG_NO_FIELD = "Cannot set the attribute {!r}: {} has no such field. Its fields are {}."
MSG_FROZEN = "cannot assign to field {!r}"
MSG_NO_ATTRIBUTE = "{!r} object has no attribute or field {!r}. Its fields are {}."
MSG_TYPES = "Cannot update an existing entry of type {} with a value of type {}."
MSG_KEY = "Supported type for key are str and tuple, got {} of type {}"
MSG_NO_ENTRIES = (
    "The field {!r} holds {}, which has no entries, so {} cannot be set. Set the field "
    "to a collection first."
)
MSG_NO_ENTRIES_OUT = (
    "{!r} object in the field {!r} has no entries: {} cannot be removed from it."
)
MSG_NO_ENTRY = "Key {} could not be found in tensorclass {}."
MSG_INDEX = (
    "Invalid indexing arguments: {!r}. A tensorclass is indexed along its batch "
    "dimensions; to {}."
)
MSG_ASSIGN = (
    "__setitem__ only supports tensorclasses, tensordicts, numeric scalars and tensors. "
    "Got {}"
)
MSG_OTHER_CLASS = (
    "__setitem__ is only allowed for same-class or compatible class (i.e. same members) "
    "assignment"
)
MSG_READ = "read a field, use the attribute or get({!r})"
MSG_WRITE = "write a field, use the attribute or set({!r}, value)"
MSG_BOOL = (
    "Converting a tensorclass to boolean value is not permitted. Use len(tc.keys()) to "
    "test for keys, tc.is_empty() to test for leaves, or (a == b).all() / .any() to "
    "reduce a comparison."
)


class _BadKeyError(ValueError, KeyError):
    """An error for a key to set that is not a nested key."""


class _NoSuchFieldError(KeyError, AttributeError):
    """An error for a name to delete that is neither a field nor an attribute."""


def _refuse_key(index: object, hint: str) -> None:
    """Raise an error if an index is a key: fields are attributes."""
    if isinstance(index, str) or (
        isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
    ):
        raise ValueError(MSG_INDEX.format(index, hint.format(index)))


def _holds(td: CollectionProtocol, name: str) -> bool:
    """Return whether a collection, or some member of a lazy stack, has an entry."""
    stack = td._lazy_stack()
    if stack is None:
        return name in td._entries()
    return any(_holds(member, name) for member in stack.tensordicts)


def _members(td: CollectionProtocol) -> list[Any]:
    """Return the members of a lazy stack; an empty list for other collections."""
    stack = td._lazy_stack()
    return [] if stack is None else stack.tensordicts


class FieldAccess(TensorCollection):
    """The part of a tensorclass that reads and writes fields."""

    _is_dense: ClassVar[bool] = False
    _is_tensorclass: ClassVar[bool] = True

    _autocast: ClassVar[bool] = False
    _nocast: ClassVar[bool] = False
    _frozen: ClassVar[bool] = False
    _tensor_only: ClassVar[bool] = False
    _shadow: ClassVar[bool] = False
    _skip_post_init_on_rebuild: ClassVar[bool] = False
    _cast_filter: ClassVar[Any] = None
    __declares_for_subclasses__: ClassVar[bool] = True
    """Whether the annotations of each subclass are fields, or only those of decorated
    subclasses."""

    __expected_keys__: ClassVar[set[str]] = set()
    __ordered_fields__: ClassVar[tuple[str, ...]] = ()
    _type_hints: ClassVar[dict[str, Any]] = {}
    _scalar_fields: ClassVar[dict[str, tuple[type, ...]]] = {}
    _list_fields: ClassVar[frozenset[str]] = frozenset()
    _tensorclass_fields: ClassVar[dict[str, Any]] = {}
    __plain_fields__: ClassVar[frozenset[str]] = frozenset()

    if TYPE_CHECKING:
        # Declared as properties, because an annotated attribute would be a field.
        @property
        def _tensordict(self) -> Any: ...
        @_tensordict.setter
        def _tensordict(self, value: object) -> None: ...
        def _index(self, index: object) -> Any: ...

    # Attributes -----------------------------------------------------------------------

    def __setattr__(self, name: str, value: object) -> None:
        _rust.set_field(self, name, value)

    _rust.write_natively(__setattr__)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute that Python did not find, or raise a helpful error.

            Subclasses may call this method by name, for any attribute.
            """
            if name in type(self).__expected_keys__ or hasattr(type(self), name):
                return object.__getattribute__(self, name)
            inner = self.__dict__.get("_tensordict")
            if name[0] != "_" and hasattr(type(inner), name):
                # Only some collections have this method, such as `append` of a stack.
                return forwarded(self, name)
            cls, fields = type(self).__name__, sorted(self._field_names())
            raise AttributeError(MSG_NO_ATTRIBUTE.format(cls, name, fields))

    def __delattr__(self, name: str) -> None:
        if type(self)._frozen:
            msg = f"cannot delete field {name!r}"
            raise dataclasses.FrozenInstanceError(msg)
        if name in type(self).__expected_keys__:
            self._set_attribute(name, None)
        elif hasattr(self, name):
            object.__delattr__(self, name)
        elif self._tensordict.is_locked:
            raise locked_error(self._tensordict)
        else:
            raise _NoSuchFieldError(name)

    @classmethod
    def _field_names(cls) -> list[str]:
        return list(cls.__ordered_fields__)

    def _no_such_field(self, name: str) -> AttributeError:
        fields = sorted(self._field_names())
        msg = MSG_NO_FIELD.format(name, type(self).__name__, fields)
        return AttributeError(msg)

    def _set_attribute(self, name: str, value: object) -> None:
        """Set a field that cannot be stored directly, or another attribute."""
        cls = type(self)
        is_field = name in cls.__expected_keys__
        is_class_attribute = not is_field and hasattr(cls, name)
        if cls._frozen and not (is_class_attribute and name.startswith("_")):
            raise dataclasses.FrozenInstanceError(MSG_FROZEN.format(name))
        if is_field:
            self._store_field(name, value)
        elif is_class_attribute or "_tensordict" not in self.__dict__:
            object.__setattr__(self, name, value)
        else:
            raise self._no_such_field(name)

    def _store_field(self, name: str, value: object) -> None:
        """Set or unset a field, also of a frozen class."""
        if "_tensordict" not in self.__dict__:
            # A user's `__init__` sets a field before it calls the inherited one.
            _rust.fill_fields(self, {}, None, None, None)
        if self._tensordict.is_locked:
            raise locked_error(self._tensordict)
        if value is None:
            self._unset_field(name)
        else:
            self._set_field_entry(name, value)

    def _unset_field(self, name: str) -> None:
        inner = self._tensordict
        if inner._get_entry(name, NO_DEFAULT) is not NO_DEFAULT:
            inner.del_(name)
            return
        for member in _members(inner):
            if name in member._entries():
                member.del_(name)

    def _set_field_entry(self, name: str, value: object) -> None:
        """Store a value in a field, converted as the options of the class require."""
        inner = self._tensordict
        value, is_tensor = self._as_entry(name, value)
        if is_tensor:
            _rust.set_entry(inner, name, value)
        else:
            inner.set_non_tensor(name, value)

    def _as_entry(self, name: str, value: object) -> tuple[Any, bool]:
        """Convert a value to an entry.

        Also return whether it is a tensor or collection.
        """
        cls = type(self)
        if cls._autocast:
            value, is_settled = cast_field(self, name, value)
            if is_settled:
                return value, isinstance(value, (torch.Tensor, CollectionProtocol))
        if isinstance(value, (torch.Tensor, CollectionProtocol)):
            return value, True
        if cls._tensor_only:
            return as_dicts(value), True
        if isinstance(value, (bool, int, float, complex, list)):
            is_list = isinstance(value, list)
            keeps_value = cls._autocast if is_list else cls._nocast
            size = self._tensordict.batch_size
            return value, not (keeps_value or cls._stays(name, value, size))
        return value, isinstance(value, np.ndarray) and not cls._nocast

    @classmethod
    def _stays(cls, name: str, value: object, size: torch.Size) -> bool:
        """Return whether the annotation of a field keeps a number or list as it is.

        A list with an item for each row is not kept, but converted.
        """
        if isinstance(value, list):
            return name in cls._list_fields and not are_rows(value, size)
        return isinstance(value, cls._scalar_fields.get(name, ()))

    def _read_field(self, name: str) -> Any:
        """Return the entry of a field.

        A list if only some members of a stack have it.
        """
        inner = self._tensordict
        value = inner.get(name)
        if value is None:
            members = _members(inner)
            if any(_holds(member, name) for member in members):
                return [self._values_of_part(member, name) for member in members]
        return value

    @classmethod
    def _values_of_part(cls, member: CollectionProtocol, name: str) -> Any:
        """Return the value of a member's entry; for a nested stack possibly a list."""
        value = member.get(name)
        if value is None and _holds(member, name):
            return [cls._values_of_part(part, name) for part in _members(member)]
        return cls._value_of_entry(value)

    @classmethod
    def _value_of_entry(cls, value: Any) -> Any:
        """Return the value of a field from its entry: a Python object or a tensor."""
        return value if cls._tensor_only else value_of(value)

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """Return the fields of the class, like :func:`dataclasses.fields`."""
        # Dynamo supports `dataclasses.fields` for instances only.
        declared: Any = cls
        declared_fields = declared.__dataclass_fields__
        return tuple([declared_fields[name] for name in cls.__ordered_fields__])

    def _check_field(self, name: str) -> None:
        if name not in type(self).__expected_keys__:
            raise self._no_such_field(name)

    # Items and entries ----------------------------------------------------------------

    if TYPE_CHECKING:
        __hash__: ClassVar[Any]
        __eq__: Equality[Self]
        __ne__: Equality[Self]
        __lt__: Order[Self]
        __le__: Order[Self]
        __gt__: Order[Self]
        __ge__: Order[Self]

    @overload
    def __getitem__(self, index: BatchIndex) -> Self: ...
    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> NoReturn: ...
    @overload
    def __getitem__(self, index: object) -> Self: ...
    def __getitem__(self, index: object) -> Any:
        """Return the instance at an index of the batch dims.

        Raises:
            ValueError: the index is a key (fields are attributes), or ``()``.
        """
        if type(index) is tuple and not index:
            raise ValueError(MSG_INDEX.format(index, MSG_READ.format(index)))
        _refuse_key(index, MSG_READ)
        return self._index(index)

    def __setitem__(self, index: object, value: object) -> None:
        """Write into the fields at an index.

        Raises:
            ValueError: the index is a key: fields are attributes.
        """
        _refuse_key(index, MSG_WRITE)
        self._tensordict[index] = self._assignable(value)

    def _assignable(self, value: object) -> Any:
        """Return ``value`` in a form that can be written at an index.

        Raises:
            ValueError: the value is not a number, tensor or collection, or is a
                tensorclass with other fields.
        """
        if isinstance(value, FieldAccess):
            same = type(value).__expected_keys__ == type(self).__expected_keys__
            if not (same or isinstance(value, type(self))):
                raise ValueError(MSG_OTHER_CLASS)
            return value._tensordict
        allowed = (
            torch.Tensor,
            CollectionProtocol,
            bool,
            int,
            float,
            complex,
            np.number,
        )
        if not isinstance(value, allowed):
            raise ValueError(MSG_ASSIGN.format(type(value)))
        return value

    def get(self, key: NestedKeyLike, *args: object, **kwargs: object) -> Any:
        """Return the value at a nested key, or a default.

        A field's value is the value of the attribute. A key below a field is read from
        the collection in the field. The name of another attribute, such as
        ``"batch_size"``, returns that attribute.
        """
        path = (key,) if isinstance(key, str) else _rust.unravel_key_to_tuple(key)
        if len(path) > 1:
            nested = _rust.get_field(path[0], self)
            if isinstance(nested, CollectionProtocol):
                return nested.get(path[1:], *args, **kwargs)
            return args[0] if args else kwargs.get("default")
        if path and path[0] in type(self).__expected_keys__:
            # An unset field is None, whatever the default is.
            args, kwargs = (None,), {**kwargs}
            kwargs.pop("default", None)
            if not kwargs:
                return _rust.get_field(path[0], self)
        elif path and not path[0].startswith("_") and hasattr(type(self), path[0]):
            # The name of an attribute such as `batch_size`.
            entry = self._tensordict._get_entry(path[0], NO_DEFAULT)
            attribute = getattr(self, path[0]) if entry is NO_DEFAULT else None
            if attribute is not None and not callable(attribute):
                return attribute
        return self._value_of_entry(self._tensordict.get(key, *args, **kwargs))

    def set(
        self,
        key: object,
        item: object,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        **kwargs: object,
    ) -> Self:
        """Set a field, or an entry of the collection in a field.

        See :meth:`TensorDict.set`.

        Raises:
            AttributeError: the key does not begin with a field, or leads below a field
                that holds no collection.
            RuntimeError: the instance is locked. Use :meth:`set_` to write in place.
            IndexError: the key is a tuple with parts that are not nested keys.
            ValueError: the key is not a nested key.
        """
        path = (key,) if isinstance(key, str) else _rust.unravel_key_to_tuple(key)
        if not path:
            bad = IndexError if isinstance(key, tuple) and key else _BadKeyError
            raise bad(MSG_KEY.format(key, type(key)))
        inner = self._tensordict
        name, rest = path[0], path[1:]
        if not rest and inner.is_locked:
            raise locked_error(inner)
        self._check_field(name)
        if rest:
            nested = _rust.get_field(name, self)
            if not isinstance(nested, CollectionProtocol):
                type_name = type(nested).__name__
                raise AttributeError(MSG_NO_ENTRIES.format(name, type_name, rest))
            nested.set(rest, item, inplace, non_blocking=non_blocking, **kwargs)
        elif inplace and name in inner._entries():
            self._write_field(name, item, non_blocking)
        elif item is None:
            self._unset_field(name)
        else:
            value, is_tensor = self._as_entry(name, item)
            if is_tensor:
                _rust.set_entry(inner, name, value, False, non_blocking)
            else:
                inner.set_non_tensor(name, value)
        return self

    def _write_field(self, name: str, item: object, non_blocking: bool) -> None:
        """Write into the entry of a field; replace non-tensor data."""
        cls, inner = type(self), self._tensordict
        value, is_tensor = self._as_entry(name, item)
        if is_tensor and not isinstance(value, list):
            _rust.set_entry(inner, name, value, True, non_blocking)
        elif cls._autocast and not isinstance(value, dict):
            present = inner._entries()[name]
            if type(present) is inner._non_tensor_type:
                present.update_(type(present)(value, batch_size=inner.batch_size))
            else:
                inner.set_non_tensor(name, value)
        else:
            present = type(inner._entries()[name])
            raise RuntimeError(MSG_TYPES.format(present, type(item)))

    def __bool__(self) -> NoReturn:
        raise RuntimeError(MSG_BOOL)

    def __contains__(self, item: object) -> bool:
        """Return whether a part along the first batch dim is ``item``, or equals it.

        Raises:
            RuntimeError: a comparison returns a boolean for each element.
        """
        return any(part is item or part == item for part in self)

    def __delitem__(self, index: object) -> NoReturn:
        """Raise an error: fields are attributes, and deleted with ``del``."""
        msg = "__delitem__"
        raise AttributeError(msg)

    def setdefault(
        self, key: NestedKeyLike, default: object, inplace: bool = False
    ) -> Any:
        """Return the entry at a nested key; set it to ``default`` if it is missing.

        The key need not begin with a field: see :meth:`set_non_tensor`.
        """
        self._tensordict.setdefault(key, default, inplace)
        return _rust.get(self, key)

    def set_non_tensor(self, key: object, value: object) -> Self:
        """Store a value of any type, whatever the options of the class.

        The key need not begin with a field. But no attribute reads an entry that is not
        a field, and operations that make an instance with it raise a ValueError.
        """
        self._tensordict.set_non_tensor(key, value)
        return self

    def entry_class(self, key: object) -> type:
        """Return the type of the entry at a nested key.

        See :meth:`TensorDict.entry_class`.
        """
        return type(self._tensordict.get(key))

    def del_(self, key: object) -> Self:
        """Remove the entry at a nested key. Removing an unset field does nothing.

        Raises:
            AttributeError: the key leads below a field that holds no collection.
            IndexError: the key is not a nested key.
            KeyError: the entry does not exist.
            RuntimeError: the collection that holds the entry is locked.
        """
        path = (key,) if isinstance(key, str) else _rust.unravel_key_to_tuple(key)
        if not path:
            raise IndexError(MSG_KEY.format(key, type(key)))
        name, rest = path[0], path[1:]
        if rest:
            nested = self._tensordict._get_entry(name, None)
            if not is_branch(nested):
                type_name = type(self.get(name)).__name__
                raise AttributeError(MSG_NO_ENTRIES_OUT.format(type_name, name, rest))
            nested.del_(rest)
        elif name in type(self).__expected_keys__:
            self._unset_field(name)
        elif self._tensordict._get_entry(name, None) is None:
            raise KeyMessageError(MSG_NO_ENTRY.format(path, type(self).__name__))
        else:
            super().del_(name)
        return self
