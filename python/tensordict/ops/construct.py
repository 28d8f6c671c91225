"""Making collections out of Python objects: mappings, tuples, dataclasses, arrays.

:func:`convert` decides what becomes of a value inside of them. Copies and new
collections of the same structure are in :mod:`tensordict.ops.copying`.
"""

from __future__ import annotations

import dataclasses
import importlib
import numbers
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict.ops.copying import CopyingOps
from tensordict.primitives import classes
from tensordict.primitives.common import as_size
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["ConstructOps", "convert"]

NON_NESTED = "<NON_NESTED>"
"""Begins the key under which :meth:`from_pytree` stores a key that is no string."""

_PLAIN = frozenset({str, int, float, bool, complex, bytes, type(None)})
"""Types whose values no conversion changes."""

_NUMBERS = (bool, int, float, np.number, np.bool_)
"""Types that are no tensors of a batch, but can become tensors without dims."""

MSG_TWO_SIZES = "Cannot pass both batch_size and batch_dims to `from_dict`."
MSG_CONFLICT = (
    "Conflicting batch sizes in {}: batch_size and auto_batch_size cannot be both "
    "specified. Pass one of them."
)
MSG_LIST_SIZE = (
    "The provided batch size ({}) does not match the length of the list ({})."
)
MSG_DATACLASS = "Expected a dataclass input, got a {} input instead."
MSG_DATACLASS_TYPE = (
    "from_dataclass() got the dataclass type {}, whose fields cannot all be read from "
    "the class. Pass an instance, or as_tensorclass=True to convert the type."
)
MSG_STORAGE = (
    "Unknown storage backend {!r}. Expected one of None, 'memmap', 'h5', 'zarr', "
    "'shared', 'redis', 'dragonfly'."
)
MSG_SAME_TEXT = (
    "The mapping has the key {0!r} as text and as a number, and numbers become text in a "
    "collection."
)
MSG_PLACE = " (in the mapping at {!r})"


class ConstructOps(CopyingOps):
    """Making collections out of Python objects."""

    @classmethod
    def from_dict(
        cls,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | None = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
    ) -> Self:
        """Make a collection from a mapping.

        Nested mappings, named tuples, tuples, dataclasses, models of pydantic and
        structured arrays become nested collections, numbers and arrays become tensors. Tensors and collections
        are stored as they are. Where a ``batch_size`` with dims is given, numbers are
        values that all elements share.

        Args:
            input_dict: the entries; nested keys are allowed, and come after the others.
                A collection is given back as it is.
            auto_batch_size: whether the batch size is the leading dims that all entries
                share. A ``batch_size`` goes before it.
            batch_size: the batch size. Default: ``[]``.
            device: where all entries are moved.
            batch_dims: as ``auto_batch_size``, with at most this many dims. Ignored where
                that is false.
            names: a name or None per batch dim.

        Raises:
            ValueError: both ``batch_size`` and ``batch_dims`` are given.
            RuntimeError: an entry does not have the batch size as its leading dims.

        Examples:
            >>> data = {"a": torch.zeros(3, 4), "n": {"b": torch.zeros(3)}}
            >>> TensorDict.from_dict(data).batch_size
            torch.Size([])
            >>> TensorDict.from_dict(data, auto_batch_size=True).batch_size
            torch.Size([3])
        """
        if batch_size is not None and batch_dims is not None:
            raise ValueError(MSG_TWO_SIZES)
        if isinstance(input_dict, CollectionProtocol):
            return input_dict  # type: ignore[return-value]
        if not isinstance(input_dict, Mapping):
            input_dict = dict(input_dict)
        if batch_size is not None and _has_dims(batch_size):
            value_of_all = cls._non_tensor_type
            input_dict = {
                key: value_of_all(value, batch_size=batch_size)
                if isinstance(value, _NUMBERS)
                else value
                for key, value in input_dict.items()
            }
        return cls._from_entries(
            input_dict,
            auto_batch_size=auto_batch_size,
            batch_size=batch_size,
            device=device,
            batch_dims=batch_dims,
            names=names,
        )

    @classmethod
    def _from_entries(
        cls,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | None = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
    ) -> Any:
        """:meth:`from_dict` of entries of which numbers become tensors in any batch."""
        if not cls._is_dense:
            made = _dense()._from_entries(
                input_dict,
                auto_batch_size=auto_batch_size,
                batch_size=batch_size,
                device=device,
                batch_dims=batch_dims,
                names=names,
            )
            return cls._from_plain(made, input_dict)
        given = batch_size is not None
        asked = batch_dims is not None if auto_batch_size is None else auto_batch_size
        if not given and asked:
            input_dict = _with_columns(input_dict)
        if batch_size is None:
            size = torch.Size([])
        elif isinstance(batch_size, Iterable):
            size = as_size(batch_size)
        else:
            # Here a number is no size: this raises.
            size = torch.Size(batch_size)
        fitting = names if names is not None and len(names) == len(size) else None
        td = cls.__new__(cls)
        try:
            entries = {
                key: value
                if isinstance(value, torch.Tensor)
                else convert(value, device=device, batch_size=batch_size)
                for key, value in input_dict.items()
            }
            _rust.init(td, entries, size, device, fitting, False)
        except KeyError as error:
            # Mostly keys are text, and nothing is looked at before.
            numbered = _with_text_keys(input_dict, error)
            return _numbered(cls, input_dict)._from_entries(
                numbered,
                auto_batch_size=auto_batch_size,
                batch_size=batch_size,
                device=device,
                batch_dims=batch_dims,
                names=names,
            )
        if not given and asked:
            td.auto_batch_size_(batch_dims)
            if names is not None and len(names) == len(td.batch_size):
                td.names = names
        return td

    def from_dict_instance(
        self,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | None = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
    ) -> Self:
        """Make a collection from a mapping, each nested one as this collection's is.

        As :meth:`from_dict`, but where this collection has an entry of the same name
        that is a collection, that one makes the nested collection: so typed collections
        come back from the dictionaries that :meth:`to_dict` made of them. Of a collection
        it is a copy that shares the leaves; only ``batch_size`` counts then.

        Raises:
            ValueError: both ``batch_size`` and ``batch_dims`` are given.
            AttributeError: an entry of this collection is a leaf where ``input_dict``
                has a mapping.

        Examples:
            >>> td = TensorDict(n=TensorDict(a=torch.zeros(3)))
            >>> td.from_dict_instance({"n": {"a": torch.ones(2)}})["n", "a"]
            tensor([1., 1.])
        """
        if batch_size is not None and batch_dims is not None:
            raise ValueError(MSG_TWO_SIZES)
        if isinstance(input_dict, CollectionProtocol):
            whole: Any = input_dict.clone(recurse=False)
            if batch_size is not None:
                whole.batch_size = batch_size
            return self._from_plain(whole)
        made = {}
        for key, value in dict(input_dict).items():
            if isinstance(value, Mapping) and not isinstance(value, CollectionProtocol):
                present = _rust.get(self, key, None)
                if present is not None:
                    value = present.from_dict_instance(
                        value, batch_size=batch_size, device=device
                    )
            made[key] = value
        plain = _dense()._from_entries(
            made,
            auto_batch_size=auto_batch_size,
            batch_size=batch_size,
            device=device,
            batch_dims=batch_dims,
            names=names,
        )
        return self._from_plain(plain)

    @classmethod
    def _from_plain(cls, made: object, source: object = None) -> Any:
        """Convert the plain collection that a factory made of ``source``."""
        return made

    @classmethod
    def from_any(
        cls,
        obj: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
    ) -> Any:
        """Make a collection from whatever can be one; give anything else back as it is.

        Args:
            obj: a mapping, named tuple, tuple, dataclass, model of pydantic or structured
                array. A list of numbers, nested or not, becomes a tensor, any other
                list a :class:`NonTensorStack` of its items. An array of another library
                (JAX, CuPy) becomes a tensor over the same memory.
            auto_batch_size: whether the batch size is the leading dims that all entries
                share.
            batch_dims: at most this many dims of them.
            device: where all entries are moved.
            batch_size: the batch size.

        Examples:
            >>> TensorDict.from_any({"a": (torch.zeros(2), 1)})["a", "1"]
            tensor(1)
            >>> TensorDict.from_any("text")
            'text'
        """
        _warn_batch_dims_ignored("from_any", batch_dims, auto_batch_size, batch_size)
        made = convert(
            obj,
            cls=cls,
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            device=device,
            batch_size=batch_size,
        )
        if isinstance(made, list):
            return cls._non_tensor_stack_type.from_list(made)
        return (
            cls._from_plain(made, obj) if isinstance(made, CollectionProtocol) else made
        )

    @classmethod
    def from_tuple(
        cls,
        obj: Iterable[Any],
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
    ) -> Self:
        """Make a :class:`TensorDict` of a tuple's items under the keys "0", "1" ...

        Takes the arguments of :meth:`from_any`.

        Examples:
            >>> TensorDict.from_tuple((torch.zeros(2), torch.ones(2)))["1"]
            tensor([1., 1.])
        """
        _warn_batch_dims_ignored("from_tuple", batch_dims, auto_batch_size, batch_size)
        made = _dense()._from_entries(
            {str(number): item for number, item in enumerate(obj)},
            **_sizes("from_tuple", auto_batch_size, batch_dims, batch_size),
            device=device,
        )
        plain: Self = cls._from_plain(made)
        return plain

    @classmethod
    def from_namedtuple(
        cls,
        named_tuple: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
    ) -> Self:
        """Make a :class:`TensorDict` of the fields of a named tuple, nested ones too.

        Takes the arguments of :meth:`from_any`.

        Raises:
            AttributeError: the argument is neither a named tuple nor a mapping.

        Examples:
            >>> from collections import namedtuple
            >>> pair = namedtuple("pair", "a b")(torch.zeros(2), torch.ones(2))
            >>> list(TensorDict.from_namedtuple(pair).keys())
            ['a', 'b']
        """
        _warn_batch_dims_ignored(
            "from_namedtuple", batch_dims, auto_batch_size, batch_size
        )
        if is_namedtuple(named_tuple):
            named_tuple = named_tuple._asdict()
        made = _dense()._from_entries(
            dict(named_tuple.items()),
            **_sizes("from_namedtuple", auto_batch_size, batch_dims, batch_size),
            device=device,
        )
        plain: Self = cls._from_plain(made)
        return plain

    @classmethod
    def from_dataclass(
        cls,
        dataclass: Any,
        *,
        dest_cls: type | None = None,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        as_tensorclass: bool = False,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
    ) -> Any:
        """Make a :class:`TensorDict` of the fields of a dataclass instance.

        Takes the arguments of :meth:`from_any`, and:

        Args:
            dataclass: an instance of a dataclass.
            dest_cls: with ``as_tensorclass``, the tensorclass to make.
            auto_batch_size: see :meth:`from_any`.
            batch_dims: see :meth:`from_any`.
            as_tensorclass: whether a tensorclass with these fields is made instead.
            device: see :meth:`from_any`.
            batch_size: see :meth:`from_any`.

        Raises:
            TypeError: the argument is not a dataclass instance.

        Examples:
            >>> import dataclasses
            >>> @dataclasses.dataclass
            ... class Point:
            ...     x: torch.Tensor
            >>> TensorDict.from_dataclass(Point(torch.ones(2)))["x"]
            tensor([1., 1.])
        """
        _warn_batch_dims_ignored(
            "from_dataclass", batch_dims, auto_batch_size, batch_size
        )
        if as_tensorclass or (
            dest_cls is None and not cls._is_dense and not isinstance(dataclass, type)
        ):
            if not as_tensorclass:
                dest_cls = cls
            make = importlib.import_module("tensordict.tensorclass").from_dataclass
            return make(
                dataclass,
                dest_cls=dest_cls,
                device=device,
                **_sizes("from_dataclass", auto_batch_size, batch_dims, batch_size),
            )
        if not dataclasses.is_dataclass(dataclass):
            raise TypeError(MSG_DATACLASS.format(type(dataclass)))
        if isinstance(dataclass, type):
            raise TypeError(MSG_DATACLASS_TYPE.format(dataclass.__name__))
        made = _dense()._from_entries(
            {
                field.name: getattr(dataclass, field.name)
                for field in dataclasses.fields(dataclass)
            },
            **_sizes("from_dataclass", auto_batch_size, batch_dims, batch_size),
            device=device,
        )
        return cls._from_plain(made)

    @classmethod
    def from_struct_array(
        cls,
        struct_array: np.ndarray[Any, Any],
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
    ) -> Self:
        """Make a :class:`TensorDict` of the fields of a structured numpy array.

        A field shares the array's memory where torch can express its strides, and is
        copied where it cannot. Structured fields become nested collections.

        Args:
            struct_array: an array of shape ``[*B]`` with named fields.
            auto_batch_size: whether the batch size is what all fields share.
            batch_dims: at most this many dims of them.
            device: where all entries are moved.
            batch_size: the batch size. Default: the shape of the array.

        Examples:
            >>> import numpy as np
            >>> array = np.zeros(3, dtype=[("a", "f4", (2,)), ("b", "i8")])
            >>> TensorDict.from_struct_array(array)["a"].shape
            torch.Size([3, 2])
        """
        _warn_batch_dims_ignored(
            "from_struct_array", batch_dims, auto_batch_size, batch_size
        )
        sizes = _sizes("from_struct_array", auto_batch_size, batch_dims, batch_size)
        if not sizes.get("auto_batch_size") and batch_size is None:
            sizes["batch_size"] = struct_array.shape
        fields = {name: _field(struct_array[name]) for name in struct_array.dtype.names}
        return cls._from_entries(fields, **sizes, device=device)

    @classmethod
    def from_list(
        cls,
        input: Iterable[Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | None = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
        lazy: bool | None = None,
    ) -> Self:
        """Make a collection from each mapping of a list, and stack them.

        Args:
            input: mappings or collections.
            auto_batch_size: whether the batch size of the result is what all entries
                share.
            batch_size: the batch size of the result; its first dim is the length of the
                list.
            device: where all entries are moved.
            batch_dims: the number of batch dims of the result at most.
            names: a name or None per batch dim of the result.
            lazy: whether the result is a lazy stack. Default: only where the entries
                cannot be stacked.

        Raises:
            ValueError: the first dim of ``batch_size`` is not the length of the list.
            RuntimeError: the list is empty, or ``lazy`` is false and the entries cannot
                be stacked.

        Examples:
            >>> TensorDict.from_list([{"a": 1}, {"a": 2}])["a"]
            tensor([1, 2])
        """
        items: list[Any] = [
            item if isinstance(item, (Mapping, CollectionProtocol)) else dict(item)
            for item in input
        ]
        inner_size = None
        if batch_size is not None:
            size = as_size(batch_size)
            first, *inner_size = list(size) or [_no_first_dim()]
            if first != len(items):
                raise ValueError(MSG_LIST_SIZE.format(list(size), len(items)))
        if device is not None:
            # Collections stay where they are: what is no device is refused all the same.
            device = torch.device(device)
        inner_dims = None if batch_dims is None else max(batch_dims - 1, 0)
        made = [
            cls.from_dict(
                item,
                auto_batch_size=auto_batch_size,
                batch_size=inner_size,
                device=device,
                batch_dims=inner_dims,
            )
            for item in items
        ]
        if lazy is None:
            result = cls.maybe_dense_stack(made, 0)  # type: ignore[attr-defined]
        elif lazy:
            result = cls.lazy_stack(made, 0)  # type: ignore[attr-defined]
        else:
            result = cls.stack(made, 0)  # type: ignore[attr-defined]
        if names is not None:
            if len(names) == len(result.batch_size):
                result.names = names
            else:
                warn_caller(
                    f"from_list ignores names={list(names)}, whose length is not the "
                    "number of batch dims of the result, today. Starting with "
                    "TensorDict 0.17, the default will change to raising a ValueError, "
                    "as for a batch_size of another length."
                )
        return result

    @classmethod
    def fromkeys(cls, keys: Iterable[NestedKeyLike], value: object = 0) -> Self:
        """Make a :class:`TensorDict` with the same value under each key.

        Examples:
            >>> TensorDict.fromkeys(["a", ("n", "b")])["n", "b"]
            tensor(0)
        """
        made = _dense()(dict.fromkeys(keys, value), [])
        return cls._from_plain(made)

    @classmethod
    def from_pytree(
        cls,
        pytree: Any,
        *,
        batch_size: Sequence[int] | None = None,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
    ) -> Any:
        """Make a :class:`TensorDict` of nested dictionaries, lists and tuples.

        :meth:`to_pytree` gives the same nested structure back: its types are kept as
        non-tensor entries named ``"_pytree_type"``.

        Args:
            pytree: dictionaries, lists, tuples and named tuples of tensors and numbers.
            batch_size: the batch size.
            auto_batch_size: whether the batch size is what all entries share.
            batch_dims: at most this many dims of them.

        Returns:
            A collection; a tensor for a tensor or a number.

        Raises:
            NotImplementedError: a node is of another type.

        Examples:
            >>> TensorDict.from_pytree(3)
            tensor(3)
        """
        _warn_batch_dims_ignored("from_pytree", batch_dims, auto_batch_size, batch_size)
        made = _from_pytree(pytree)
        if isinstance(made, CollectionProtocol):
            td: Any = made
            size = as_size(batch_size)
            if batch_size is not None and not (auto_batch_size and not size):
                td.batch_size = size
            elif auto_batch_size:
                td.auto_batch_size_(batch_dims)
            return cls._from_plain(td)
        return made

    @classmethod
    def from_schema(
        cls,
        schema: Mapping[Any, tuple[Sequence[int], torch.dtype]],
        *,
        batch_size: Sequence[int] | None = None,
        storage: str | None = None,
        device: torch.device | str | int | None = None,
        **kwargs: object,
    ) -> Any:
        """Make a :class:`TensorDict` of zeros from shapes and dtypes.

        Args:
            schema: the shape ``[*F]`` and the dtype of each leaf; its tensor has the
                shape ``[*B, *F]``.
            batch_size: the batch size ``[*B]``.
            storage: where the entries live: None in memory, ``"shared"`` in shared
                memory, ``"memmap"`` in memory-mapped files, ``"h5"`` and ``"zarr"`` in
                one file, ``"redis"`` and ``"dragonfly"`` in a store.
            device: the device of the entries.
            **kwargs: what the storage needs, such as ``prefix`` for ``"memmap"`` and
                ``filename`` for ``"h5"``.

        Raises:
            ValueError: there is no such storage.

        Examples:
            >>> schema = {"a": ([2], torch.float32)}
            >>> TensorDict.from_schema(schema, batch_size=[3])["a"].shape
            torch.Size([3, 2])
        """
        size = torch.Size(() if batch_size is None else batch_size)
        if storage in ("h5", "zarr"):
            persistent = importlib.import_module("tensordict.persistent")
            return persistent.PersistentTensorDict.from_schema(
                schema, batch_size=size, backend=storage, device=device, **kwargs
            )
        if storage in ("redis", "dragonfly"):
            store = importlib.import_module("tensordict.store")
            return store.TensorDictStore.from_schema(
                schema, batch_size=size, backend=storage, device=device, **kwargs
            )
        if storage not in (None, "memmap", "shared"):
            raise ValueError(MSG_STORAGE.format(storage))
        td = _dense()({}, size, device=device)
        for key, (shape, dtype) in schema.items():
            _rust.set_entry(
                td, key, torch.zeros([*size, *shape], dtype=dtype, device=device)
            )
        td = cls._from_plain(td)
        if storage == "memmap":
            return td.memmap_(**kwargs)
        if storage == "shared":
            return td.share_memory_()
        return td


def convert(
    obj: Any,
    *,
    cls: type | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: Any = None,
    batch_size: Any = None,
) -> Any:
    """Convert a value to an entry: a collection, a tensor, or itself."""
    if type(obj) in _PLAIN or isinstance(obj, (torch.Tensor, CollectionProtocol)):
        return obj
    owner: Any = _dense() if cls is None else cls
    if isinstance(obj, Mapping):
        auto = auto_batch_size and batch_size is None
        return owner.from_dict(
            obj,
            auto_batch_size=auto or None,
            batch_dims=batch_dims if auto else None,
            batch_size=batch_size,
            device=device,
        )
    if isinstance(obj, np.ndarray):
        if obj.dtype.names is None:
            return obj
        return owner.from_struct_array(
            obj,
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims if auto_batch_size else None,
            device=device,
        )
    asked = (auto_batch_size, batch_dims, batch_size)
    if is_namedtuple(obj):
        sizes = _sizes("from_namedtuple", *asked)
        return _dense()._from_entries(obj._asdict(), **sizes, device=device)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        fields = dataclasses.fields(obj)
        return _dense()._from_entries(
            {field.name: getattr(obj, field.name) for field in fields},
            **_sizes("from_dataclass", *asked),
            device=device,
        )
    if isinstance(obj, tuple):
        return _dense()._from_entries(
            {str(number): item for number, item in enumerate(obj)},
            **_sizes("from_tuple", *asked),
            device=device,
        )
    if isinstance(obj, list):
        if _is_uniform(obj) is not None:
            return torch.tensor(obj, device=device)
        return CollectionProtocol._non_tensor_stack_type.from_list(obj)
    if is_pydantic(obj):
        return _dense()._from_entries(
            dict(iter(obj)), **_sizes("from_any", *asked), device=device
        )
    if hasattr(type(obj), "__dlpack__"):
        return shared_by_dlpack(obj, device)
    return obj


def is_pydantic(value: object) -> bool:
    """Return whether ``value`` is a pydantic model, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def shared_by_dlpack(
    array: object, device: torch.device | str | int | None = None
) -> Any:
    """A tensor over the memory of another library's array; the array if torch cannot."""
    try:
        tensor = torch.utils.dlpack.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return array
    return tensor if device is None else tensor.to(device)


def _with_text_keys(values: Mapping[Any, Any], error: KeyError) -> dict[Any, Any]:
    """The entries with text for keys that are numbers, as optimizers have them.

    Raises:
        KeyError: no key is a number, or two keys have one text; ``error`` with the place of
            the key.
    """
    if any(type(key) is int for key in values):
        found: dict[Any, Any] = {}
        for key, value in values.items():
            text = str(key) if type(key) is int else key
            if text in found:
                raise KeyError(MSG_SAME_TEXT.format(text))
            found[text] = value
        return found
    path = _path_to_wrong_key(values)
    if not path:
        raise error
    text, _, _ = str(error.args[0]).partition(MSG_PLACE[:5])
    raise KeyError(text + MSG_PLACE.format(path)) from None


def _path_to_wrong_key(values: Mapping[Any, Any]) -> tuple[str, ...]:
    """Find the path to a key that is neither text nor a number in a nested mapping."""
    for key, value in values.items():
        if not isinstance(value, Mapping) or not isinstance(key, (str, int)):
            continue
        if all(isinstance(inner, (str, int, tuple)) for inner in value):
            below = _path_to_wrong_key(value)
            if not below:
                continue
            return (str(key), *below)
        return (str(key),)
    return ()


def _numbered(cls: Any, values: Mapping[Any, Any]) -> Any:
    """The class of a collection with text for the keys of a mapping."""
    if cls is not _dense() or not all(type(key) is int for key in values):
        return cls
    return classes.NumberedTensorDict


def _has_dims(batch_size: object) -> bool:
    return not isinstance(batch_size, Iterable) or bool(tuple(batch_size))


def is_namedtuple(value: object) -> bool:
    """Return whether ``value`` is an instance of a named tuple."""
    return isinstance(value, tuple) and is_namedtuple_class(type(value))


def is_namedtuple_class(cls: type) -> bool:
    """Return whether ``cls`` is a class made by :func:`collections.namedtuple`."""
    if not (isinstance(cls, type) and issubclass(cls, tuple)):
        return False
    fields = getattr(cls, "_fields", None)
    return isinstance(fields, tuple) and all(isinstance(name, str) for name in fields)


def _is_uniform(values: list[Any]) -> tuple[Any, ...] | None:
    """The shape of nested lists of numbers of one type, with the type; else None."""
    if not values:
        return (0, None)
    first = values[0]
    if isinstance(first, list):
        shapes = [
            _is_uniform(value) if isinstance(value, list) else None for value in values
        ]
        shape = shapes[0]
        if shape is None or any(other != shape for other in shapes):
            return None
        return (len(values), *shape)
    kind = type(first)
    if kind not in (int, float, bool, complex) and not (
        isinstance(first, np.generic) and first.dtype.kind in "iufc"
    ):
        return None
    if any(type(value) is not kind for value in values):
        return None
    return (len(values), kind)


def _sizes(
    method: str, auto: bool | None, dims: int | None, size: Any
) -> dict[str, Any]:
    """The arguments of ``from_dict`` for a method that ignores ``batch_dims`` alone.

    Raises:
        TypeError: ``auto`` and ``size`` are both given.
    """
    if size is not None:
        if auto:
            raise TypeError(MSG_CONFLICT.format(method))
        return {"batch_size": as_size(size)}
    if not auto:
        return {}
    return {"auto_batch_size": True, "batch_dims": dims}


def _dense() -> Any:
    """The class :class:`TensorDict`, which is defined after its own methods."""
    return classes.TensorDict


def _no_first_dim() -> int:
    msg = "from_list needs a batch size whose first dim is the length of the list."
    raise IndexError(msg)


def _field(array: np.ndarray[Any, Any]) -> Any:
    """A field of a structured array as an entry."""
    if array.dtype.names is not None:
        return _dense().from_struct_array(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.hasobject or array.dtype.kind not in "biufc":
        return array
    misfit = any(stride % array.itemsize for stride in array.strides)
    if misfit or not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy()
    return torch.from_numpy(np.asarray(array))


def _with_columns(entries: Mapping[Any, Any]) -> dict[Any, Any]:
    """Give arrays of text the batch dims that lists have: their shape, to be shared."""
    made: dict[Any, Any] = {}
    rows_of = CollectionProtocol._non_tensor_type._rows_of
    for key, value in entries.items():
        if isinstance(value, np.ndarray):
            value = rows_of(value, value.shape)
        elif isinstance(value, Mapping) and not isinstance(value, CollectionProtocol):
            value = _with_columns(value)
        made[key] = value
    return made


def _from_pytree(tree: Any) -> Any:
    if isinstance(tree, (torch.Tensor, CollectionProtocol)):
        return tree
    if isinstance(tree, (numbers.Number, np.generic, np.ndarray)):
        return torch.as_tensor(tree)
    td = _dense()({}, [])
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if isinstance(key, str):
                td.set(key, _from_pytree(value))
            else:
                held = _dense()({"value": _from_pytree(value)}, [])
                held.set_non_tensor("key", key)
                td.set(f"{NON_NESTED}{uuid.uuid1()}", held)
    elif is_namedtuple(tree):
        for key, value in tree._asdict().items():
            td.set(key, _from_pytree(value))
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            td.set(str(number), _from_pytree(value))
    else:
        msg = f"Unknown type {type(tree)}."
        raise NotImplementedError(msg)
    td.set_non_tensor("_pytree_type", type(tree))
    return td


def _warn_batch_dims_ignored(
    method: str, batch_dims: int | None, auto_batch_size: bool, batch_size: object
) -> None:
    """Say that a method ignores ``batch_dims``, as tensordict 0.15 does."""
    if batch_dims is None or auto_batch_size:
        return
    advice = (
        "Pass auto_batch_size=True to get that result now, or drop batch_dims."
        if batch_size is None
        else "Drop batch_dims to keep today's result."
    )
    warn_caller(
        f"{method} ignores batch_dims={batch_dims} without auto_batch_size=True. Starting "
        "with TensorDict 0.17, the default will change to turning auto_batch_size on "
        f"when batch_dims is given, as from_dict does. {advice}"
    )
