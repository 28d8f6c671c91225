"""Making of tensordicts from mappings, tuples, dataclasses, arrays and lists.

:mod:`.python_values` converts the values inside them. :mod:`tensordict.ops.copying`
makes copies, and new tensordicts of the same structure.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict.ops.copying import CopyingOps
from tensordict.ops.python_values import (
    convert,
    entries_of_pytree,
    field_entry,
    is_namedtuple,
    numbered_type,
    size_arguments,
    warn_batch_dims_ignored,
    with_columns,
    with_text_keys,
)
from tensordict.primitives import classes
from tensordict.primitives.common import as_size
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["ConstructOps"]


_NUMBERS = (bool, int, float, np.number, np.bool_)
"""Types of numbers: no tensors of a batch, but convertible to tensors of shape []."""

MSG_TWO_SIZES = "Cannot pass both batch_size and batch_dims to `from_dict`."
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


class ConstructOps(CopyingOps):
    """Making of tensordicts from Python objects."""

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
        """Make a tensordict from a mapping.

        Nested mappings, named tuples, tuples, dataclasses, pydantic models and
        structured arrays become nested tensordicts. Numbers and arrays become tensors.
        Tensors and tensordicts are stored themselves. If ``batch_size`` has dimensions,
        numbers become non-tensor data that all rows share.

        Args:
            input_dict: the entries. Nested keys are allowed; they come after the other
                entries. A tensordict is returned as it is.
            auto_batch_size: use the leading dimensions that all entries share as the
                batch size. Ignored if ``batch_size`` is passed.
            batch_size: the batch size ``[*B]``. Default: ``[]``.
            device: the device to move all entries to.
            batch_dims: as ``auto_batch_size``, with at most this many dimensions.
                Ignored if ``auto_batch_size`` is False.
            names: a name or None for each batch dimension.

        Raises:
            ValueError: both ``batch_size`` and ``batch_dims`` were passed.
            RuntimeError: an entry does not have the batch size as its leading
                dimensions.

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
        """Make a tensordict as :meth:`from_dict`; numbers always become tensors."""
        if not cls._is_dense:
            plain = classes.TensorDict._from_entries(
                input_dict,
                auto_batch_size=auto_batch_size,
                batch_size=batch_size,
                device=device,
                batch_dims=batch_dims,
                names=names,
            )
            return cls._from_plain(plain, input_dict)
        has_size = batch_size is not None
        is_auto = batch_dims is not None if auto_batch_size is None else auto_batch_size
        if not has_size and is_auto:
            input_dict = with_columns(input_dict)
        if batch_size is None:
            size = torch.Size([])
        elif isinstance(batch_size, Iterable):
            size = as_size(batch_size)
        else:
            # A number is no batch size here: this raises torch's error.
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
            # Most keys are strings, so keys are only looked at after an error.
            numbered = with_text_keys(input_dict, error)
            return numbered_type(cls, input_dict)._from_entries(
                numbered,
                auto_batch_size=auto_batch_size,
                batch_size=batch_size,
                device=device,
                batch_dims=batch_dims,
                names=names,
            )
        if not has_size and is_auto:
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
        """Make a tensordict from a mapping, with the classes of this one's entries.

        As :meth:`from_dict`. If this tensordict contains a nested tensordict under a
        key, that one's class makes the new nested tensordict. So tensorclasses come
        back from the dictionaries that :meth:`to_dict` made of them. A tensordict as
        ``input_dict`` is copied, and the copy shares the leaves; then only
        ``batch_size`` is used.

        Raises:
            ValueError: both ``batch_size`` and ``batch_dims`` were passed.
            AttributeError: ``input_dict`` has a mapping where this tensordict has a
                leaf.

        Examples:
            >>> td = TensorDict(n=TensorDict(a=torch.zeros(3)))
            >>> td.from_dict_instance({"n": {"a": torch.ones(2)}})["n", "a"]
            tensor([1., 1.])
        """
        if batch_size is not None and batch_dims is not None:
            raise ValueError(MSG_TWO_SIZES)
        if isinstance(input_dict, CollectionProtocol):
            copy: Any = input_dict.clone(recurse=False)
            if batch_size is not None:
                copy.batch_size = batch_size
            return self._from_plain(copy)
        entries = {}
        for key, value in dict(input_dict).items():
            if isinstance(value, Mapping) and not isinstance(value, CollectionProtocol):
                present = _rust.get(self, key, None)
                if present is not None:
                    value = present.from_dict_instance(
                        value, batch_size=batch_size, device=device
                    )
            entries[key] = value
        plain = classes.TensorDict._from_entries(
            entries,
            auto_batch_size=auto_batch_size,
            batch_size=batch_size,
            device=device,
            batch_dims=batch_dims,
            names=names,
        )
        return self._from_plain(plain)

    @classmethod
    def _from_plain(cls, made: object, source: object = None) -> Any:
        """Convert the plain tensordict that a factory made of ``source``."""
        return made

    @classmethod
    def from_any(
        cls,
        obj: object,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
    ) -> Any:
        """Convert an object to a tensordict if it can be one; else return it unchanged.

        Args:
            obj: a mapping, named tuple, tuple, dataclass, pydantic model, structured
                array, or pandas or polars data frame, alone or nested. A list of
                numbers, nested or not, becomes a tensor; any other list becomes a
                :class:`NonTensorStack` of its items. An array of another library (JAX,
                CuPy) becomes a tensor that shares its memory.
            auto_batch_size: use the leading dimensions that all entries share as the
                batch size.
            batch_dims: the most dimensions that ``auto_batch_size`` uses.
            device: the device to move all entries to.
            batch_size: the batch size.

        Examples:
            >>> TensorDict.from_any({"a": (torch.zeros(2), 1)})["a", "1"]
            tensor(1)
            >>> TensorDict.from_any("text")
            'text'
        """
        warn_batch_dims_ignored("from_any", batch_dims, auto_batch_size, batch_size)
        result = convert(
            obj,
            cls=cls,
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            device=device,
            batch_size=batch_size,
        )
        if isinstance(result, list):
            return cls._non_tensor_stack_type.from_list(result)
        return (
            cls._from_plain(result, obj)
            if isinstance(result, CollectionProtocol)
            else result
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
        """Make a :class:`TensorDict` of a tuple's items under the keys "0", "1", ...

        Takes the arguments of :meth:`from_any`.

        Examples:
            >>> TensorDict.from_tuple((torch.zeros(2), torch.ones(2)))["1"]
            tensor([1., 1.])
        """
        warn_batch_dims_ignored("from_tuple", batch_dims, auto_batch_size, batch_size)
        plain = classes.TensorDict._from_entries(
            {str(number): item for number, item in enumerate(obj)},
            **size_arguments("from_tuple", auto_batch_size, batch_dims, batch_size),
            device=device,
        )
        return cls._from_plain(plain)

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
        """Make a :class:`TensorDict` of a named tuple's fields, also nested ones.

        Takes the arguments of :meth:`from_any`.

        Raises:
            AttributeError: the argument is neither a named tuple nor a mapping.

        Examples:
            >>> from collections import namedtuple
            >>> pair = namedtuple("pair", "a b")(torch.zeros(2), torch.ones(2))
            >>> list(TensorDict.from_namedtuple(pair).keys())
            ['a', 'b']
        """
        warn_batch_dims_ignored(
            "from_namedtuple", batch_dims, auto_batch_size, batch_size
        )
        if is_namedtuple(named_tuple):
            named_tuple = named_tuple._asdict()
        plain = classes.TensorDict._from_entries(
            dict(named_tuple.items()),
            **size_arguments(
                "from_namedtuple", auto_batch_size, batch_dims, batch_size
            ),
            device=device,
        )
        return cls._from_plain(plain)

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
            dest_cls: with ``as_tensorclass``, the tensorclass to return.
            auto_batch_size: see :meth:`from_any`.
            batch_dims: see :meth:`from_any`.
            as_tensorclass: make a tensorclass with these fields instead.
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
        warn_batch_dims_ignored(
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
                **size_arguments(
                    "from_dataclass", auto_batch_size, batch_dims, batch_size
                ),
            )
        if not dataclasses.is_dataclass(dataclass):
            raise TypeError(MSG_DATACLASS.format(type(dataclass)))
        if isinstance(dataclass, type):
            raise TypeError(MSG_DATACLASS_TYPE.format(dataclass.__name__))
        plain = classes.TensorDict._from_entries(
            {
                field.name: getattr(dataclass, field.name)
                for field in dataclasses.fields(dataclass)
            },
            **size_arguments("from_dataclass", auto_batch_size, batch_dims, batch_size),
            device=device,
        )
        return cls._from_plain(plain)

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

        A field shares the array's memory if torch can express its strides; otherwise it
        is copied. Structured fields become nested tensordicts.

        Args:
            struct_array: an array of shape ``[*B]`` with named fields.
            auto_batch_size: use the leading dimensions that all fields share as the
                batch size.
            batch_dims: the most dimensions that ``auto_batch_size`` uses.
            device: the device to move all entries to.
            batch_size: the batch size. Default: the shape of the array.

        Examples:
            >>> import numpy as np
            >>> array = np.zeros(3, dtype=[("a", "f4", (2,)), ("b", "i8")])
            >>> TensorDict.from_struct_array(array)["a"].shape
            torch.Size([3, 2])
        """
        warn_batch_dims_ignored(
            "from_struct_array", batch_dims, auto_batch_size, batch_size
        )
        sizes = size_arguments(
            "from_struct_array", auto_batch_size, batch_dims, batch_size
        )
        if not sizes.get("auto_batch_size") and batch_size is None:
            sizes["batch_size"] = struct_array.shape
        fields = {
            name: field_entry(struct_array[name]) for name in struct_array.dtype.names
        }
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
        """Make a tensordict of each mapping in a list, and stack them.

        Args:
            input: mappings or tensordicts.
            auto_batch_size: use the leading dimensions that all entries share as the
                batch size of the result.
            batch_size: the batch size of the result. Its first dimension is the length
                of the list.
            device: the device to move all entries to.
            batch_dims: the most batch dimensions of the result.
            names: a name or None for each batch dimension of the result.
            lazy: True for a lazy stack, False for a dense one. Default: a dense one if
                the entries can be stacked.

        Raises:
            ValueError: the first dimension of ``batch_size`` is not the length of the
                list.
            RuntimeError: the list is empty; or ``lazy`` is False and the entries cannot
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
            # Tensordicts in the list do not move, but a wrong device is an error.
            device = torch.device(device)
        inner_dims = None if batch_dims is None else max(batch_dims - 1, 0)
        members = [
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
            result = cls.maybe_dense_stack(members, 0)  # type: ignore[attr-defined]
        elif lazy:
            result = cls.lazy_stack(members, 0)  # type: ignore[attr-defined]
        else:
            result = cls.stack(members, 0)  # type: ignore[attr-defined]
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
        plain = classes.TensorDict(dict.fromkeys(keys, value), [])
        return cls._from_plain(plain)

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

        :meth:`to_pytree` is the inverse: the types of the nodes are kept as non-tensor
        data under ``"_pytree_type"``.

        Args:
            pytree: dictionaries, lists, tuples and named tuples of tensors and numbers.
            batch_size: the batch size.
            auto_batch_size: use the leading dimensions that all entries share as the
                batch size.
            batch_dims: the most dimensions that ``auto_batch_size`` uses.

        Returns:
            A tensordict; for a tensor or a number, a tensor.

        Raises:
            NotImplementedError: a node has another type.

        Examples:
            >>> TensorDict.from_pytree(3)
            tensor(3)
        """
        warn_batch_dims_ignored("from_pytree", batch_dims, auto_batch_size, batch_size)
        entries = entries_of_pytree(pytree)
        if isinstance(entries, CollectionProtocol):
            td: Any = entries
            size = as_size(batch_size)
            if batch_size is not None and not (auto_batch_size and not size):
                td.batch_size = size
            elif auto_batch_size:
                td.auto_batch_size_(batch_dims)
            return cls._from_plain(td)
        return entries

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
            schema: for each leaf, the shape ``[*F]`` and the dtype; its tensor has the
                shape ``[*B, *F]``.
            batch_size: the batch size ``[*B]``.
            storage: where the entries live: None for memory, ``"shared"`` for shared
                memory, ``"memmap"`` for memory-mapped files, ``"h5"`` or ``"zarr"`` for
                one file, ``"redis"`` or ``"dragonfly"`` for a server.
            device: the device of the entries.
            **kwargs: arguments of the storage, such as ``prefix`` for ``"memmap"`` and
                ``filename`` for ``"h5"``.

        Raises:
            ValueError: ``storage`` is none of these values.
            TypeError: ``storage`` is ``"h5"`` or ``"zarr"``, and ``filename`` is
                missing.

        Examples:
            >>> schema = {"a": ([2], torch.float32)}
            >>> TensorDict.from_schema(schema, batch_size=[3])["a"].shape
            torch.Size([3, 2])
        """
        size = torch.Size(() if batch_size is None else batch_size)
        if storage in ("h5", "zarr"):
            result = classes.PersistentTensorDict.from_schema(
                schema, batch_size=size, storage=storage, device=device, **kwargs
            )
            return cls._from_plain(result)
        if storage in ("redis", "dragonfly"):
            store = importlib.import_module("tensordict.store")
            result = store.TensorDictStore.from_schema(
                schema, batch_size=size, backend=storage, device=device, **kwargs
            )
            return cls._from_plain(result)
        if storage not in (None, "memmap", "shared"):
            raise ValueError(MSG_STORAGE.format(storage))
        td = classes.TensorDict({}, size, device=device)
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


def _has_dims(batch_size: object) -> bool:
    return not isinstance(batch_size, Iterable) or bool(tuple(batch_size))


def _no_first_dim() -> int:
    msg = "from_list needs a batch size whose first dim is the length of the list."
    raise IndexError(msg)
