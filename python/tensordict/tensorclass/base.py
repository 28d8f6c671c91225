"""The container of a tensorclass: the protocol, over the container that holds the fields."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
from collections.abc import Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NoReturn,
    Self,
    cast,
    dataclass_transform,
    overload,
)

import numpy as np
import torch

from tensordict import _rust
from tensordict.checks import is_tensorclass
from tensordict.collection import TensorCollection
from tensordict.common import MSG_LOCKED
from tensordict.ops.display import DisplayOps, describe_fields
from tensordict.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.storage.registry import type_text
from tensordict.tensorclass.casting import cast_field
from tensordict.tensorclass.delegation import delegate, inside
from tensordict.tensorclass.fields import OPTIONS, prepare
from tensordict.tensorclass.files import load_class, plan_class

if TYPE_CHECKING:
    from abc import ABCMeta
    from collections.abc import Callable, Iterator

    from tensordict.protocol import BatchIndex
    from tensordict.storage.paths import SavedPath

__all__ = ["TensorClass"]

MSG_NO_FIELD = "Cannot set the attribute {!r}: {} has no such field. Its fields are {}."
MSG_NO_ATTRIBUTE = "{!r} object has no attribute or field {!r}. Its fields are {}."
MSG_KEYS = (
    "Keys from the tensordict ({}) must correspond to the class attributes ({}). Got the "
    "set of keys {{{}}} which do not belong to the class."
)
MSG_DESTINATIONS = "The destinations {} are not fields of {} ({})."
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
MSG_ABSTRACT = (
    "TensorCollection is an abstract base class and cannot be instantiated directly."
)
MSG_OPTIONS = (
    "TensorClass is not a generic class, so TensorClass[...] only accepts the flags {}. "
    "Got {}."
)


if TYPE_CHECKING:
    from tensordict.tensorclass.annotations import (
        BatchSizeField,
        DeviceField,
        NamesField,
    )

    # A metaclass and not a base class: of that a class is neither frozen nor not, so
    # that its subclasses may be either.
    @dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
    class _DataclassLike(ABCMeta): ...
else:
    _DataclassLike = type(TensorCollection)


class TensorClass(TensorCollection, metaclass=_DataclassLike):
    """A collection with typed fields: subclasses declare them as a dataclass does.

    A subclass gets an ``__init__`` with an argument per field, and ``batch_size``,
    ``device`` and ``names``. Its fields are attributes; all else that a
    :class:`TensorDict` can do it can do, too, and gives instances of the class.

    Options are keywords of the class statement, or flags in brackets:

    - ``autocast``: cast values to the type in the annotation.
    - ``nocast``: keep numbers and arrays as they are, and make no tensors of them.
    - ``frozen``: fields cannot be set after ``__init__``.
    - ``tensor_only``: all fields hold tensors or collections.
    - ``shadow``: fields may have the names of members.
    - ``skip_post_init_on_rebuild``: ``__post_init__`` is called by the class alone, and
      not for each instance that an operation makes.

    Examples:
        >>> class Data(TensorClass):
        ...     image: torch.Tensor
        ...     label: torch.Tensor | None = None
        >>> data = Data(torch.zeros(3, 4), batch_size=[3])
        >>> data[0].image.shape, data.label is None
        (torch.Size([4]), True)
        >>> class Shadowing(TensorClass["shadow"]):
        ...     keys: torch.Tensor
        >>> Shadowing(torch.zeros(3)).keys
        tensor([0., 0., 0.])
    """

    _is_dense: ClassVar[bool] = False
    _is_tensorclass: ClassVar[bool] = True

    _autocast: ClassVar[bool] = False
    _nocast: ClassVar[bool] = False
    _frozen: ClassVar[bool] = False
    _tensor_only: ClassVar[bool] = False
    _shadow: ClassVar[bool] = False
    _skip_post_init_on_rebuild: ClassVar[bool] = False
    _cast_filter: ClassVar[Any] = None

    __expected_keys__: ClassVar[set[str]] = set()
    _ordered_fields: ClassVar[tuple[str, ...]] = ()
    _type_hints: ClassVar[dict[str, Any]] = {}
    _scalar_fields: ClassVar[dict[str, tuple[type, ...]]] = {}
    _tensorclass_fields: ClassVar[dict[str, Any]] = {}
    _plain_fields: ClassVar[frozenset[str]] = frozenset()

    if TYPE_CHECKING:
        # Neither is a field, so neither can be annotated as an attribute.
        @property
        def _tensordict(self) -> Any: ...
        @_tensordict.setter
        def _tensordict(self, value: Any) -> None: ...
        @property
        def _is_initialized(self) -> bool: ...

        # What these descriptors take, checkers do not compare with the setters of the
        # properties.
        batch_size: BatchSizeField = dataclasses.field(  # type: ignore[override]
            kw_only=True, default=cast("Any", ...)
        )
        device: DeviceField = dataclasses.field(kw_only=True, default=cast("Any", ...))
        names: NamesField = dataclasses.field(  # type: ignore[override]
            kw_only=True, default=cast("Any", ...)
        )

    def __init_subclass__(
        cls,
        cast_filter: Callable[..., Any] | None = None,
        kw_only: bool = False,
        **options: Any,
    ) -> None:
        given = {name: options.pop(name) for name in OPTIONS if name in options}
        super().__init_subclass__(**options)
        prepare(cls, given, cast_filter, kw_only)

    @classmethod
    def __class_getitem__(cls, item: Any) -> Any:
        """The class with options: ``TensorClass["nocast", "shadow"]``."""
        if any(base is Generic for base in cls.__mro__):
            return super().__class_getitem__(item)  # type: ignore[misc]
        flags = item if isinstance(item, tuple) else (item,)
        if not all(flag in OPTIONS for flag in flags):
            raise TypeError(MSG_OPTIONS.format(OPTIONS, flags))
        return _with_flags(cls, flags)

    if not TYPE_CHECKING:

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            raise NotImplementedError(MSG_ABSTRACT)

    # Fields ----------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        _rust.set_field(self, name, value)

    _rust.write_natively(__setattr__)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """An attribute that is not found the usual way: its error says so.

            Called by name, as classes that extend it do, it reads any attribute.
            """
            if name in type(self).__expected_keys__ or hasattr(type(self), name):
                return object.__getattribute__(self, name)
            cls, fields = type(self).__name__, sorted(self._field_names())
            raise AttributeError(MSG_NO_ATTRIBUTE.format(cls, name, fields))

    def __delattr__(self, name: str) -> None:
        if type(self)._frozen and self._is_initialized:
            msg = f"cannot delete field {name!r}"
            raise dataclasses.FrozenInstanceError(msg)
        if name in type(self).__expected_keys__:
            self._set_attribute(name, None)
        else:
            object.__delattr__(self, name)

    @classmethod
    def _field_names(cls) -> list[str]:
        return list(cls._ordered_fields)

    def _no_such_field(self, name: str) -> AttributeError:
        fields = sorted(self._field_names())
        msg = MSG_NO_FIELD.format(name, type(self).__name__, fields)
        return AttributeError(msg)

    def _set_attribute(self, name: str, value: Any) -> None:
        """Set a field that asks for more than storing, or another attribute."""
        cls = type(self)
        if cls._frozen and self._is_initialized and not name.startswith("_"):
            msg = f"cannot assign to field {name!r}"
            raise dataclasses.FrozenInstanceError(msg)
        if name in cls.__expected_keys__:
            if self._tensordict.is_locked:
                raise RuntimeError(MSG_LOCKED)
            if value is None:
                inner = self._tensordict
                if inner._get_entry(name, NO_DEFAULT) is not NO_DEFAULT:
                    inner.del_(name)
            else:
                self._set_field_entry(name, value)
        elif hasattr(cls, name):
            object.__setattr__(self, name, value)
        else:
            raise self._no_such_field(name)

    def _set_field_entry(self, name: str, value: Any) -> None:
        """Store a value in a field, in the form that the options of the class ask for."""
        inner = self._tensordict
        value, is_tensor = self._as_entry(name, value)
        if is_tensor:
            _rust.set_entry(inner, name, value)
        else:
            inner.set_non_tensor(name, value)

    def _as_entry(self, name: str, value: Any) -> tuple[Any, bool]:
        """What is stored of a value, and whether as a tensor or a collection."""
        cls = type(self)
        if cls._autocast:
            value, is_settled = cast_field(self, name, value)
            if is_settled:
                return value, isinstance(value, (torch.Tensor, CollectionProtocol))
        if cls._tensor_only or isinstance(value, (torch.Tensor, CollectionProtocol)):
            return value, True
        if isinstance(value, (bool, int, float, complex)):
            scalars = cls._scalar_fields.get(name)
            stays = scalars is not None and isinstance(value, scalars)
            in_batch = bool(self._tensordict.batch_size)
            return value, not (cls._nocast or (stays and in_batch))
        if isinstance(value, np.ndarray):
            return value, not cls._nocast
        return value, isinstance(value, list) and not cls._autocast

    def _read_field(self, name: str) -> Any:
        """The entry of a field; where only some members of a stack have it, a list."""
        inner = self._tensordict
        value = inner.get(name)
        if value is None:
            members = [member for member, _ in inner._member_operands(()) or ()]
            if any(name in member._entries() for member in members):
                return [member.get(name) for member in members]
        return value

    @classmethod
    def _value_of_entry(cls, value: Any) -> Any:
        """What a field gives for its entry: of a non-tensor entry what it holds."""
        if cls._tensor_only or not getattr(value, "_is_non_tensor", False):
            return value
        return value._value()

    def _freeze(self) -> None:
        object.__setattr__(self, "_is_initialized", True)
        self._tensordict.lock_()

    def _thaw(self) -> None:
        """Let ``__init__`` and ``__post_init__`` set fields of a frozen class."""
        object.__setattr__(self, "_is_initialized", False)

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """The fields of the class: those of :func:`dataclasses.fields`."""
        return dataclasses.fields(cls)

    # Made of a container ---------------------------------------------------------------

    @classmethod
    def _wrap(cls, inner: Any) -> Self:
        """An instance around a container that has no other keys than its fields."""
        made: Any = _rust.wrap_fields(cls, inner)
        if hasattr(cls, "__post_init__") and not cls._skip_post_init_on_rebuild:
            if cls._frozen:
                made._thaw()
            defaults = _init_var_defaults(cls)
            made.__post_init__(*defaults)
            if cls._frozen:
                object.__setattr__(made, "_is_initialized", True)
        return made

    @classmethod
    def _from_tensordict(
        cls,
        tensordict: Any,
        non_tensordict: dict[str, Any] | None = None,
        safe: bool | None = True,
        *,
        rebuild: bool = True,
    ) -> Self:
        # `rebuild` is accepted for compatibility, as `safe` is.
        cls._check_keys(tensordict)
        made = cls._wrap(tensordict)
        for name, value in (non_tensordict or {}).items():
            if value is not None:
                made._set_field_entry(name, value)
        return made

    @classmethod
    def _from_plain(cls, made: Any) -> Self:
        if isinstance(made, cls):
            return made
        for key, value in list(made._entries().items()):
            if getattr(value, "_is_non_tensor", False) and value._value() is None:
                made._del_entry(key)
        return cls.from_tensordict(made)

    def from_dict_instance(self, input_dict: Any, *args: Any, **kwargs: Any) -> Self:
        """An instance of nested dictionaries; fields that they lack have their defaults.

        See :meth:`TensorDict.from_dict_instance`.
        """
        made: Self = super().from_dict_instance(input_dict, *args, **kwargs)
        held = made._tensordict._entries()
        for field in dataclasses.fields(cast("Any", made)):
            default = field.default
            is_given = default is not dataclasses.MISSING and default is not None
            if is_given and field.name not in held:
                made._set_field_entry(field.name, default)
        return made

    @classmethod
    def _check_keys(cls, entries: Any) -> None:
        expected = cls.__expected_keys__
        if isinstance(entries, CollectionProtocol) and entries._is_dense:
            entries = entries._tensordict
            if entries.keys() <= expected:
                return
        keys = {key if isinstance(key, str) else key[0] for key in entries.keys()}  # noqa: SIM118 - a collection's own
        if not keys <= expected:
            raise ValueError(MSG_KEYS.format(keys, expected, keys - expected))

    @classmethod
    def from_tensordict(
        cls,
        tensordict: Any,
        non_tensordict: dict[str, Any] | None = None,
        safe: bool | None = None,
    ) -> Self:
        """Make an instance around a collection, which is not copied.

        Args:
            tensordict: a collection whose keys are fields. Fields that it lacks are None.
            non_tensordict: further fields, of any values.
            safe: accepted for compatibility: keys are always checked.

        Raises:
            ValueError: a key is no field.

        Examples:
            >>> class Data(TensorClass):
            ...     a: torch.Tensor
            >>> Data.from_tensordict(TensorDict(a=torch.zeros(3), batch_size=[3])).a.shape
            torch.Size([3])
        """
        return cls._from_tensordict(_with_classes(cls, tensordict), non_tensordict)

    # The protocol: the operations of the container inside -------------------------------

    @property
    def _batch_size(self) -> torch.Size:
        return self._tensordict._batch_size

    @_batch_size.setter
    def _batch_size(self, value: torch.Size) -> None:
        self._tensordict._batch_size = value

    @property
    def _device(self) -> torch.device | None:
        return self._tensordict._device

    @_device.setter
    def _device(self, value: torch.device | None) -> None:
        self._tensordict._device = value

    @property
    def _td_dim_names(self) -> list[str | None] | None:
        return self._tensordict._td_dim_names

    @_td_dim_names.setter
    def _td_dim_names(self, value: list[str | None] | None) -> None:
        self._tensordict._td_dim_names = value

    @property
    def _is_locked(self) -> bool:  # type: ignore[override]
        return self._tensordict._is_locked

    @property
    def _is_memmap(self) -> bool:
        return self._tensordict._is_memmap

    @_is_memmap.setter
    def _is_memmap(self, value: bool) -> None:
        self._tensordict._is_memmap = value

    @property
    def _is_shared(self) -> bool:
        return self._tensordict._is_shared

    @_is_shared.setter
    def _is_shared(self, value: bool) -> None:
        self._tensordict._is_shared = value

    @property
    def _memmap_prefix(self) -> Any:
        return self._tensordict._memmap_prefix

    @_memmap_prefix.setter
    def _memmap_prefix(self, value: Any) -> None:
        self._tensordict._memmap_prefix = value

    @property
    def _lock_parents_weakrefs(self) -> Any:  # type: ignore[override]
        return self._tensordict._lock_parents_weakrefs

    def _entries(self) -> dict[str, Any]:
        return self._tensordict._entries()

    def _get_entry(self, key: str, default: Any) -> Any:
        return self._tensordict._get_entry(key, default)

    def _set_entry(self, key: str, value: Any) -> None:
        self._check_field(key)
        self._tensordict._set_entry(key, value)

    def _check_field(self, name: str) -> None:
        if name not in type(self).__expected_keys__:
            raise self._no_such_field(name)

    def _del_entry(self, key: str) -> None:
        self._tensordict._del_entry(key)

    def _make_child(self) -> Any:
        return self._tensordict._make_child()

    def _with_entries(self, entries: dict[str, Any]) -> Any:
        inner = self._tensordict
        if inner._is_dense:
            made = _rust.new(
                type(inner),
                entries,
                inner._batch_size,
                inner._device,
                inner._td_dim_names,
            )
        else:
            made = inner._with_entries(entries)
        return self._from_tensordict(made)

    def _writes_through(self) -> bool:
        return self._tensordict._writes_through()

    def _containers(self, out: list[Any]) -> None:
        _rust.containers(self._tensordict, out)

    def _children(self) -> list[Any]:
        return self._tensordict._children()

    def _sample_entries(self) -> dict[str, Any]:
        return self._tensordict._sample_entries()

    def _sample_entry(self, key: str) -> Any:
        return self._tensordict._sample_entry(key)

    def _update_parts(self, source: Any) -> list[Any] | None:
        return self._tensordict._update_parts(inside(source))

    def _member_operands(self, operands: Any) -> Any:
        return self._tensordict._member_operands(operands)

    def _align_leaves(self, other: Any, out: list[Any], is_complete: bool) -> bool:
        return self._tensordict._align_leaves(inside(other), out, is_complete)

    def _leaf_batch_dims(self, out: list[int]) -> None:
        self._tensordict._leaf_batch_dims(out)

    def _spread(self, operand: torch.Tensor) -> list[torch.Tensor]:
        return self._tensordict._spread(operand)

    def _write_at(self, key: str, target: Any, index: Any, value: Any) -> None:
        self._tensordict._write_at(key, target, index, value)

    def _map_leaves(self, *args: Any) -> Self:
        return self._wrap(_rust.map_leaves(self._tensordict, *args))

    def _split_leaves(self, *args: Any) -> list[Self]:
        return [
            self._wrap(part) for part in _rust.split_leaves(self._tensordict, *args)
        ]

    def _leaves(self, out: list[Any]) -> None:
        _rust.leaves(self._tensordict, out)

    def _taken(self, values: Any) -> list[Any]:
        """As many of ``values``, the iterator of a walk above, as there are leaves."""
        iterator = iter(values)
        return [next(iterator) for _ in _rust.leaves(self._tensordict)]

    def _rebuild(self, values: Any, lock: bool) -> Self:
        leaves = self._taken(values)
        return self._wrap(_rust.rebuild(self._tensordict, leaves, True, lock))

    def _rebuild_as(self, values: Any, cls: Any, size: Any) -> Self:
        leaves = self._taken(values)
        return self._wrap(_rust.rebuild_as(self._tensordict, leaves, cls, size))

    def _clone_structure(self) -> Self:
        return self._wrap(_rust.clone_structure(self._tensordict))

    def _index(self, index: Any) -> Any:
        return self._wrap(self._tensordict._get_index(index))

    def _write_index(self, index: Any, value: Any) -> None:
        self._tensordict._write_index(index, value)

    def _joined(self, tds: Any, joined: Any) -> Any:
        """What joining gives: of this class, unless there are other classes among them."""
        same = all(
            isinstance(td, type(self)) or not isinstance(td, TensorClass) for td in tds
        )
        return self._from_tensordict(joined) if same else joined

    def _stack_all(self, tds: Any, dim: int) -> Any:
        return self._joined(tds, _rust.stack([inside(td) for td in tds], dim))

    def _cat_all(self, tds: Any, dim: int) -> Any:
        return self._joined(tds, _rust.cat([inside(td) for td in tds], dim))

    def _stack_lazily(self, members: list[Any], dim: int, name: str | None) -> Any:
        if any(type(member) is not type(self) for member in members):
            return super()._stack_lazily(members, dim, name)
        inner = [member._tensordict for member in members]
        return self._wrap(inner[0]._stack_lazily(inner, dim, name))

    def _as_dense(self) -> Any:
        return self._tensordict._as_dense()

    def _as_plain(self) -> Any:
        return self._clone_structure()

    def _get_sub_tensordict(self, idx: Any) -> Any:
        return self._wrap(self._tensordict._get_sub_tensordict(idx))

    def _lock_tree(self, parents: tuple[Any, ...]) -> None:
        _rust.lock_tree(self._tensordict, parents)

    def _store_leaves(self, values: list[Any]) -> None:
        self._tensordict._store_leaves(values)

    def _hang(self, key: str, value: Any) -> None:
        self._check_field(key)
        self._tensordict._hang(key, value)

    def _set_path(
        self,
        path: tuple[str, ...],
        value: Any,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        inner = self._tensordict
        if inplace is not None:
            if inner.is_locked and inplace is False and not ignore_lock:
                raise RuntimeError(MSG_LOCKED)
            self._check_field(path[0])
        if len(path) == 1 and not validated and inplace is False:
            if value is None:
                self._set_attribute(path[0], None)
                return
            value, is_tensor = self._as_entry(path[0], value)
            if not is_tensor:
                inner.set_non_tensor(path[0], value)
                return
        _rust.set_entry(
            inner, path, value, inplace, non_blocking, validated, ignore_lock
        )

    def _apply_nest(self, fn: Any, *others: Any, **kwargs: Any) -> Any:
        others = tuple(inside(other) for other in others)
        kwargs["out"] = inside(kwargs.get("out"))
        result = self._tensordict._apply_nest(fn, *others, **kwargs)
        if result is self._tensordict:
            return self
        return None if result is None else self._from_tensordict(result)

    def _refined(self, names: list[str | None], is_fresh: bool = False) -> Any:
        inner = self._tensordict._refined(names, is_fresh)
        return self if inner is self._tensordict else self._wrap(inner)

    def _resize_batch(self, size: torch.Size) -> None:
        self._tensordict._resize_batch(size)

    def _replace_content(self, result: Any) -> Self:
        self._tensordict._replace_content(inside(result))
        return self

    # Access ----------------------------------------------------------------------------

    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> NoReturn: ...
    @overload
    def __getitem__(self, index: BatchIndex) -> Self: ...
    @overload
    def __getitem__(self, index: Any) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        """The instance of the fields indexed along the batch dims.

        Raises:
            ValueError: the index is a key: fields are attributes.
        """
        if isinstance(index, str) or (
            isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
        ):
            hint = MSG_READ.format(index)
            raise ValueError(MSG_INDEX.format(index, hint))
        return self._index(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write into the fields at an index.

        Raises:
            ValueError: the index is a key: fields are attributes.
        """
        if isinstance(index, str) or (
            isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
        ):
            hint = MSG_WRITE.format(index)
            raise ValueError(MSG_INDEX.format(index, hint))
        self._tensordict[index] = self._assignable(value)

    def _assignable(self, value: Any) -> Any:
        """What can be written at an index: a number, a tensor or entries that fit.

        Raises:
            ValueError: it is something else, or a tensorclass with other fields.
        """
        if isinstance(value, TensorClass):
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

    def get(self, key: Any, *args: Any, **kwargs: Any) -> Any:
        """The value at a nested key, or a default; of a field as the attribute gives it."""
        if isinstance(key, str) and key in type(self).__expected_keys__:
            # A field that is not set is None, whatever the default.
            args, kwargs = (None,), {**kwargs}
            kwargs.pop("default", None)
            if not kwargs:
                return _rust.get_field(key, self)
        return self._value_of_entry(self._tensordict.get(key, *args, **kwargs))

    def __bool__(self) -> NoReturn:
        raise RuntimeError(MSG_BOOL)

    def __contains__(self, item: Any) -> bool:
        """Whether a part along the first batch dim is ``item``, or equals it.

        Raises:
            RuntimeError: a comparison has a truth value per element.
        """
        return any(part is item or part == item for part in self)

    def __delitem__(self, index: Any) -> NoReturn:
        """Refuse: fields are attributes, and deleted as such."""
        msg = "__delitem__"
        raise AttributeError(msg)

    def setdefault(self, key: Any, default: Any, inplace: bool = False) -> Any:
        """The entry at a nested key, which is set to ``default`` where there is none."""
        super().setdefault(key, default, inplace)
        return _rust.get(self, key)

    def set_non_tensor(self, key: Any, value: Any) -> Self:
        """Store a value of any type in a field, whatever the options of the class.

        Raises:
            AttributeError: the key does not begin with a field.
        """
        self._check_path(key)
        self._tensordict.set_non_tensor(key, value)
        return self

    def entry_class(self, key: Any) -> type:
        """The type of the entry at a nested key. See :meth:`TensorDict.entry_class`."""
        return type(self._tensordict.get(key))

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """A copy as a plain :class:`TensorDict`, nested ones too.

        Args:
            retain_none: whether fields that are not set are entries, with None.
        """
        made = self._tensordict.to_tensordict(retain_none=retain_none)
        if retain_none:
            for name in self._field_names():
                if name not in made._entries():
                    made.set_non_tensor(name, None)
        return made

    def to_dict(self, *, retain_none: bool = True, **kwargs: Any) -> dict[str, Any]:
        """A dictionary of the fields; those that are not set are None.

        Args:
            retain_none: whether fields that are None are kept.
            **kwargs: see :meth:`TensorDict.to_dict`.
        """
        result = self._tensordict.to_dict(retain_none=retain_none, **kwargs)
        if retain_none:
            for name in self._field_names():
                result.setdefault(name, None)
        return result

    # Of a stack ------------------------------------------------------------------------

    @property
    def stack_dim(self) -> int:
        """The dim of a lazy stack along which its members lie."""
        return self._tensordict.stack_dim

    @property
    def tensordicts(self) -> list[Any]:
        """The members of a lazy stack, as plain collections."""
        return self._tensordict.tensordicts

    # Files -----------------------------------------------------------------------------

    def _save_plan(self, plan: Any, level: int) -> None:
        plan_class(self, plan, level)

    def _saved(self, leaves: Iterator[Any], directory: Any, inplace: bool) -> Self:
        child = None if directory is None else directory.child("_tensordict")
        saved = self._tensordict._saved(leaves, child, inplace)
        return self if saved is self._tensordict else self._wrap(saved)

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: Any) -> Self:
        return load_class(cls, directory, options)

    def _take_loaded(self, loaded: Any) -> Any:
        if type(loaded) is not type(self):
            return loaded
        taken = self._tensordict._take_loaded(loaded._tensordict)
        return self if taken is self._tensordict else self._wrap(taken)

    def _describe(self, rows: Iterator[Any]) -> Any:
        return {**self._tensordict._describe(rows), "cls": type(self)}

    def _described_child(self, name: str) -> Any:
        return self._tensordict._described_child(name)

    @classmethod
    def _from_description(cls, level: dict[str, Any], source: Any, path: Any) -> Any:
        return cls._from_tensordict(source.inner(level, path))

    def _put_leaves(self, leaves: Iterator[Any]) -> None:
        self._tensordict._put_leaves(leaves)

    def _consolidated_home(self) -> Any:
        return self._tensordict

    def _to_level(self, writer: Any, path: tuple[str, ...]) -> dict[str, Any]:
        level: dict[str, Any] = self._tensordict._to_level(writer, path)
        keys = level.pop("keys")
        return {**level, "class": type_text(type(self)), "keys": keys}

    @classmethod
    def _from_level(
        cls, level: dict[str, Any], reader: Any, path: Any, is_part: bool = False
    ) -> Any:
        level = {name: value for name, value in level.items() if name != "class"}
        return cls._from_tensordict(reader.container(level, path, is_part))

    def del_(self, key: Any) -> Self:
        """Remove an entry at a nested key; a field that is not set stays so."""
        if not (isinstance(key, str) and key in type(self).__expected_keys__):
            return super().del_(key)
        if self._tensordict._get_entry(key, NO_DEFAULT) is not NO_DEFAULT:
            self._tensordict.del_(key)
        return self

    def empty(self, *args: Any, **kwargs: Any) -> Self:
        """An instance of the same batch size, device and names without any field set."""
        made: Self = _rust.wrap_fields(
            type(self), self._tensordict.empty(*args, **kwargs)
        )
        return made

    def replace(self, *args: Any, **kwargs: Any) -> Self:
        """A copy that shares the leaves, with some fields exchanged.

        See :meth:`TensorDict.replace`.
        """
        inner = _rust.clone_structure(self._tensordict)
        made: Any = _rust.wrap_fields(type(self), inner)
        # The fields that are exchanged are set before `__post_init__` sees them.
        changed = super(TensorClass, made).replace(*args, **kwargs)
        return self if changed is made else self._wrap(changed._tensordict)

    def create_nested(self, key: Any) -> Self:
        """Put an empty collection into a field. See :meth:`TensorDict.create_nested`.

        Raises:
            AttributeError: the key does not begin with a field.
        """
        path = _rust.unravel_key_to_tuple(key)
        if path:
            self._check_field(path[0])
        self._tensordict.create_nested(key)
        return self

    def where(
        self, condition: Any, other: Any, *, out: Any = None, **kwargs: Any
    ) -> Any:
        """Take elements of this where ``condition`` holds. See :meth:`TensorDict.where`."""
        result = self._tensordict.where(
            condition, inside(other), out=inside(out), **kwargs
        )
        return self._from_tensordict(result) if out is None else out

    def data_ptr(self, *args: Any, **kwargs: Any) -> Any:
        """A :class:`TensorDict` of the addresses of the fields' memory."""
        return self._tensordict.data_ptr(*args, **kwargs)

    def extend(self, tensordict: Any) -> None:
        """Add the members of a list or a lazy stack to this one, a lazy stack itself."""
        if isinstance(tensordict, TensorClass):
            self._tensordict.extend(tensordict._tensordict)
        else:
            self._tensordict.extend([inside(each) for each in tensordict])

    def numpy(self) -> Any:
        """Nested dictionaries of arrays that share the memory of the fields."""
        return self._tensordict.numpy()

    def tolist(self, **kwargs: Any) -> Any:
        """Nested lists over the batch dims with a dictionary of the set fields for each."""
        return self._tensordict.tolist(**kwargs)

    def update(self, input_dict_or_td: Any = None, *args: Any, **kwargs: Any) -> Self:
        """Set the fields of a collection or mapping. See :meth:`TensorDict.update`.

        Raises:
            ValueError: it has a key that is no field.
        """
        if input_dict_or_td is not None:
            self._check_keys(input_dict_or_td)
        return super().update(input_dict_or_td, *args, **kwargs)

    def update_(self, input_dict_or_td: Any = None, *args: Any, **kwargs: Any) -> Self:
        """Write into the fields. See :meth:`TensorDict.update_`.

        Raises:
            ValueError: a mapping has a key that is no field.
        """
        self._check_mapping(input_dict_or_td)
        self._tensordict.update_(inside(input_dict_or_td), *args, **kwargs)
        return self

    def update_at_(
        self, input_dict_or_td: Any, idx: Any, *args: Any, **kwargs: Any
    ) -> Self:
        """Write into the fields at an index. See :meth:`TensorDict.update_at_`.

        Raises:
            ValueError: a mapping has a key that is no field.
        """
        self._check_mapping(input_dict_or_td)
        self._tensordict.update_at_(inside(input_dict_or_td), idx, *args, **kwargs)
        return self

    def _check_mapping(self, source: Any) -> None:
        if isinstance(source, Mapping) and not isinstance(source, CollectionProtocol):
            self._check_keys(source)

    def rename_key_(self, old_key: Any, new_key: Any, safe: bool = False) -> Self:
        """Move an entry to another nested key. See :meth:`TensorDict.rename_key_`.

        Raises:
            AttributeError: the new key does not begin with a field.
        """
        self._check_path(new_key)
        self._tensordict.rename_key_(old_key, new_key, safe)
        return self

    def rename_keys(self, mapping: Any, *, strict: bool = True) -> Self:
        """An instance with entries at other keys. See :meth:`TensorDict.rename_keys`.

        Raises:
            AttributeError: a new key does not begin with a field.
        """
        fields = type(self).__expected_keys__
        paths = [_rust.unravel_key_to_tuple(key) for key in mapping.values()]
        strange = sorted({path[0] for path in paths if path} - fields)
        if strange:
            msg = MSG_DESTINATIONS.format(strange, type(self).__name__, sorted(fields))
            raise AttributeError(msg)
        renamed = self._tensordict.rename_keys(mapping, strict=strict)
        return self._from_tensordict(renamed)

    def stack_tensors(self, *keys: Any, out_key: Any, **kwargs: Any) -> Self:
        """Replace entries by their stack. See :meth:`TensorDict.stack_tensors`.

        Raises:
            AttributeError: ``out_key`` does not begin with a field.
        """
        self._check_path(out_key)
        self._tensordict.stack_tensors(*keys, out_key=out_key, **kwargs)
        return self

    def cat_tensors(self, *keys: Any, out_key: Any, **kwargs: Any) -> Self:
        """Replace entries by their concatenation. See :meth:`TensorDict.cat_tensors`.

        Raises:
            AttributeError: ``out_key`` does not begin with a field.
        """
        self._check_path(out_key)
        self._tensordict.cat_tensors(*keys, out_key=out_key, **kwargs)
        return self

    def _check_path(self, key: Any) -> None:
        path = _rust.unravel_key_to_tuple(key)
        if path and not self.is_locked:
            self._check_field(path[0])

    def pack(self, dim: int = -1, *, layout: Any = None) -> Any:
        """The leaves in one tensor, and the layout. See :meth:`TensorDict.pack`."""
        return super().pack(dim, layout=layout)

    # Pickles ---------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The container inside, under the names that the published release reads."""
        return {"tensordict": self._tensordict, "non_tensordict": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a pickle, ours or the published release's."""
        object.__setattr__(self, "_tensordict", state["tensordict"])
        object.__setattr__(self, "_non_tensordict", {})
        object.__setattr__(self, "_is_initialized", True)
        for name, value in (state.get("non_tensordict") or {}).items():
            if value is not None:
                self._set_field_entry(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copyreg.__newobj__, (type(self),), self.__getstate__()  # type: ignore[attr-defined]

    # Printing --------------------------------------------------------------------------

    def _repr_parts(self) -> list[str]:
        # Of the container inside: a field may have the name of one of its properties.
        properties = DisplayOps._repr_properties(self._tensordict)
        return [*describe_fields(self._repr_entries()), *properties]

    def _repr_head(self) -> list[str]:
        return DisplayOps._repr_head(self._tensordict)

    def _repr_entries(self) -> list[tuple[str, Any]]:
        entries = self._tensordict._repr_entries()
        held = {name for name, _ in entries}
        missing = [name for name in self._field_names() if name not in held]
        return [*entries, *((name, None) for name in missing)]


def _with_classes(cls: Any, td: Any) -> Any:
    """``td`` with what is nested in it as the tensorclasses that the fields name."""
    changed: dict[str, Any] = {}
    for name, nested in cls._tensorclass_fields.items():
        value = td._get_entry(name, NO_DEFAULT)
        if isinstance(value, CollectionProtocol) and not is_tensorclass(value):
            changed[name] = nested.from_tensordict(value)
    if not changed:
        return td
    td = td.copy()
    for name, value in changed.items():
        td._set_entry(name, value)
    return td


@functools.cache
def _with_flags(cls: Any, flags: tuple[str, ...]) -> Any:
    """The base class with flags. The same flags give the same class."""
    options = dict.fromkeys(flags, True)
    return type(cls)(
        "_".join([cls.__name__, *flags]),
        (cls,),
        {"__module__": cls.__module__},
        **options,
    )


@functools.lru_cache(maxsize=256)
def _init_var_defaults(cls: Any) -> tuple[Any, ...]:
    return tuple(
        field.default
        for field in cls.__dataclass_fields__.values()
        if field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]
    )


delegate(TensorClass)
TensorClass.__module__ = "tensordict.tensorclass"
