"""Conversion of a tensordict to plain Python objects and NumPy arrays."""

from __future__ import annotations

import collections
import functools
import importlib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tensordict import _rust
from tensordict.ops.batch import with_named_values
from tensordict.ops.python_values import NON_NESTED, is_namedtuple_class
from tensordict.primitives import classes, special
from tensordict.primitives.checks import is_branch
from tensordict.primitives.common import python_value
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from tensordict.containers.dense import TensorDict

__all__ = ["ConvertOps"]

MSG_NO_FIELDS = (
    "to_struct_array needs at least one entry, since a structured array has at least "
    "one field: this tensordict is empty."
)
MSG_RAGGED_FIELD = (
    "to_struct_array got a nested tensor at {!r}, whose rows differ in shape: a field has "
    "one shape. Pad it first: td.to_padded_tensor()."
)
MSG_NO_DTYPE = (
    "to_struct_array got the dtype {1} at {0!r}, which NumPy lacks. Convert the entry first, "
    "for example with .float()."
)


class ConvertOps(CollectionProtocol):
    """Conversion of a tensordict to plain Python objects and NumPy arrays."""

    def to_dict(
        self,
        *,
        retain_none: bool = True,
        convert_tensors: bool | Literal["numpy"] = False,
        tolist_first: bool = False,
    ) -> dict[str, Any]:
        """Return nested dictionaries with the same entries in the same order.

        Args:
            retain_none: keep entries whose value is None.
            convert_tensors: True to convert leaves to Python numbers and lists of them,
                ``"numpy"`` to convert them to arrays that share their memory. Default:
                the tensors themselves.
            tolist_first: convert nested tensordicts to lists over their batch
                dimensions, as :meth:`tolist` does.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2), n={"b": torch.ones(2)}, batch_size=[2])
            >>> td.to_dict(convert_tensors=True)
            {'a': [0.0, 0.0], 'n': {'b': [1.0, 1.0]}}
        """
        if not convert_tensors and not tolist_first:
            result = dict(self._rows_or_entries())
            for key in [
                k for k, v in result.items() if isinstance(v, CollectionProtocol)
            ]:
                item = result[key].to_dict(retain_none=retain_none)
                if item is None and not retain_none:
                    del result[key]
                else:
                    result[key] = item
            return result
        result = {}
        for key, value in list(self._rows_or_entries().items()):
            if isinstance(value, CollectionProtocol):
                if tolist_first:
                    item = value.tolist(convert_tensors=convert_tensors)
                else:
                    item = value.to_dict(
                        retain_none=retain_none, convert_tensors=convert_tensors
                    )
            elif convert_tensors:
                item = _converted(value, convert_tensors)
            else:
                item = value
            if item is not None or retain_none:
                result[key] = item
        return result

    def _rows_or_entries(self) -> dict[str, Any]:
        """Return the entries; a lazy stack lists the rows that it cannot stack."""
        return self._entries()

    def tolist(
        self,
        *,
        convert_nodes: bool = True,
        convert_tensors: bool | Literal["numpy"] = False,
        tolist_first: bool = False,
        as_linked_list: bool = False,
    ) -> Any:
        """Return nested lists over the batch dimensions, a dictionary for each row.

        Args:
            convert_nodes: convert the rows to dictionaries. If False, they are
                tensordicts.
            convert_tensors: the conversion of the leaves; see :meth:`to_dict`.
            tolist_first: convert the tensordicts inside a row to lists over their
                remaining batch dimensions. This applies to one level only.
            as_linked_list: return a list that writes through: a row that is set in the
                list is also set in this tensordict.

        Returns:
            A list; without batch dimensions, one dictionary.

        Examples:
            >>> td = TensorDict(a=torch.arange(2), batch_size=[2])
            >>> td.tolist(convert_tensors=True)
            [{'a': 0}, {'a': 1}]
        """
        if not self.batch_size:
            if not convert_nodes:
                return self
            return self.to_dict(
                convert_tensors=convert_tensors, tolist_first=tolist_first
            )
        items = [
            item.tolist(
                convert_nodes=convert_nodes,
                convert_tensors=convert_tensors,
                tolist_first=tolist_first,
            )
            for item in self.unbind(0)
        ]
        if not as_linked_list:
            return items
        return classes.LinkedList(items, td=self)

    def numpy(self) -> dict[str, Any]:
        """Return nested dictionaries of NumPy arrays that share the leaves' memory.

        Raises:
            RuntimeError: a leaf requires grad.
            TypeError: a leaf is on another device than the CPU, or NumPy lacks its
                dtype.

        Examples:
            >>> TensorDict(a=torch.zeros(2)).numpy()
            {'a': array([0., 0.], dtype=float32)}
        """
        return self.to_dict(convert_tensors="numpy", retain_none=False)

    def to_tensordict(self, *, retain_none: bool | None = None) -> TensorDict:
        """Copy to plain :class:`TensorDict` objects throughout, unlocked.

        The leaves are cloned.

        Args:
            retain_none: keep entries whose value is None.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2), batch_size=[2])
            >>> td.to_tensordict()["a"] is td["a"]
            False
        """
        if _is_throughout(self, classes.TensorDict):
            copy: Any = _rust.map_leaves(self, "clone")
            return with_named_values(copy)
        entries: dict[str, Any] = {}
        for key, value in list(self._entries().items()):
            if is_branch(value):
                entries[key] = value.to_tensordict(retain_none=retain_none)
            else:
                entries[key] = value.clone()
                if self.device is not None and value.device != self.device:
                    # The entries of a mapped tensordict have no device.
                    entries[key] = entries[key].to(self.device)
        names = self._td_dim_names
        result = _rust.new(
            classes.TensorDict,
            entries,
            self.batch_size,
            self.device,
            None if names is None else list(names),
        )
        return with_named_values(result)

    def to_store(
        self,
        *,
        backend: str = "redis",
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        unix_socket_path: str | None = None,
        prefix: str = "tensordict",
        device: torch.device | str | int | None = None,
        **kwargs: object,
    ) -> Any:
        """Copy this tensordict to a Redis server, and return a store that reads it.

        Args:
            backend: the name of the server software: ``"redis"`` or ``"dragonfly"``.
            host: the host name of the server.
            port: the port of the server.
            db: the number of the database.
            unix_socket_path: the path of a Unix socket, used instead of host and port.
            prefix: the beginning of all keys on the server.
            device: the device that tensors are read to. Default: the device of this
                tensordict.
            **kwargs: further arguments of ``TensorDictStore.from_tensordict``, such as
                ``password`` and ``ssl``.

        Returns:
            A ``TensorDictStore``; for a lazy stack a ``LazyStackedTensorDictStore``.

        ``docs/guide/stores.md`` has examples.
        """
        store = importlib.import_module("tensordict.store")
        return store.TensorDictStore.from_tensordict(
            self,
            backend=backend,
            host=host,
            port=port,
            db=db,
            unix_socket_path=unix_socket_path,
            prefix=prefix,
            device=device,
            **kwargs,
        )

    def to_namedtuple(self, dest_cls: type | None = None) -> Any:
        """Convert to a named tuple with a field for each entry, nested ones included.

        Args:
            dest_cls: the named tuple class of all levels. Default: a new class named
                ``GenericDict``.

        Raises:
            ValueError: a key cannot be the name of a field.

        Examples:
            >>> TensorDict(a=torch.zeros(2)).to_namedtuple()
            GenericDict(a=tensor([0., 0.]))
        """
        fields = {
            key: _as_field(value, dest_cls)
            for key, value in list(self._entries().items())
        }
        if dest_cls is not None:
            return dest_cls(**fields)
        return _generic(tuple(fields))(**fields)

    def to_struct_array(self) -> np.ndarray[Any, Any]:
        """Return a structured NumPy array with a field for each entry.

        The array's shape is the batch size. The values are copied. Nested tensordicts
        become structured fields, and their additional batch dimensions become
        dimensions of the field.

        Raises:
            ValueError: the tensordict has no entry.
            TypeError: NumPy lacks a dtype, or an entry is a nested or unbatched tensor.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2), b=torch.ones(2, 3), batch_size=[2])
            >>> td.to_struct_array().dtype
            dtype([('a', '<f4'), ('b', '<f4', (3,))])
        """
        arrays = _arrays(self)
        result = np.empty(
            tuple(self.batch_size), dtype=_struct(arrays, self.batch_dims)
        )
        _fill(result, arrays)
        return result

    def to_mds(
        self,
        *,
        columns: dict[str, str] | None = None,
        out: str | tuple[str, str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        writer: object = None,
        finish_writer: bool | None = None,
        **kwargs: object,
    ) -> None:
        """Write the rows as samples of a dataset of MosaicML Streaming (MDS).

        The arguments are those of :func:`tensordict.to_mds`;
        :func:`tensordict.from_mds` reads the dataset.
        """
        importlib.import_module("tensordict.interop.mds").to_mds(
            self,
            columns=columns,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            writer=writer,
            finish_writer=finish_writer,
            **kwargs,
        )

    def to_pytree(self) -> Any:
        """Convert back to the nested structure that :meth:`from_pytree` read.

        Returns:
            Dictionaries, lists and tuples; this tensordict itself if ``from_pytree``
            did not make it.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2))
            >>> td.to_pytree() is td
            True
        """
        kind = self._get_entry("_pytree_type", None)
        if kind is None:
            return self
        kind = kind.data
        values: dict[Any, Any] = {}
        for key, value in list(self.items()):
            if key == "_pytree_type":
                continue
            name: Any = key
            if key.startswith(NON_NESTED):
                name, value = value.get_non_tensor("key"), value.get("value")
            if isinstance(value, CollectionProtocol):
                value = value.to_pytree()
            values[name] = value
        if is_namedtuple_class(kind):
            return kind(**values)
        if issubclass(kind, (list, tuple)):
            return kind(values.values())
        return kind(values)


def _is_throughout(td: CollectionProtocol, cls: type[CollectionProtocol]) -> bool:
    """Return whether ``td`` and all nested tensordicts are exactly of class ``cls``."""
    if type(td) is not cls:
        return False
    return all(_is_throughout(child, cls) for child in td._children())


def _as_field(value: object, dest_cls: type | None) -> Any:
    """Return an entry as a field of a named tuple."""
    return value.to_namedtuple(dest_cls) if is_branch(value) else python_value(value)


@functools.lru_cache(maxsize=256)
def _generic(keys: tuple[str, ...]) -> Any:
    """Return the named tuple class for some fields; making a class is slow."""
    return collections.namedtuple("GenericDict", keys)  # noqa: PYI024


def _arrays(td: CollectionProtocol) -> dict[str, Any]:
    """Return the leaves as arrays; for a nested tensordict (batch size, its arrays)."""
    arrays: dict[str, Any] = {}
    for key, entry in list(td._entries().items()):
        value: Any = entry
        if is_branch(value):
            arrays[key] = (value.batch_size, _arrays(value))
        elif isinstance(value, CollectionProtocol):
            arrays[key] = _column_of_one(value) if value._is_one else _column(value)
        elif isinstance(value, torch.Tensor):
            arrays[key] = _field_array(key, value)
        else:
            arrays[key] = np.asarray(value)
    if not arrays:
        raise ValueError(MSG_NO_FIELDS)
    return arrays


def _field_array(key: str, value: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a leaf as an array.

    Raises:
        TypeError: the leaf is a nested tensor or a special entry, or NumPy lacks its
            dtype.
    """
    if special.rows(value) is not None:
        raise TypeError(MSG_RAGGED_FIELD.format(key))
    special.check_plain(value, key, "a structured array")
    try:
        array: np.ndarray[Any, Any] = value.detach().cpu().resolve_conj().numpy()
    except TypeError as error:
        raise TypeError(MSG_NO_DTYPE.format(key, value.dtype)) from error
    return array


def _column(values: Any) -> np.ndarray[Any, Any]:
    """Return the values of a non-tensor stack: as numbers, strings or objects."""
    cells, size = list(values._flat()), tuple(values.batch_size)
    try:
        array = np.array(cells)
    except ValueError:  # Lists of several lengths.
        array = np.array(None)
    if array.dtype.kind == "U" and array.ndim == 1:
        return _texts(values)
    if array.dtype.kind != "O" and array.dtype.names is None:
        return array.reshape(size + array.shape[1:])
    objects = np.empty(len(cells), dtype=object)
    for at, cell in enumerate(cells):
        objects[at] = cell
    return objects.reshape(size)


def _column_of_one(value: Any) -> np.ndarray[Any, Any]:
    """Return a column of one shared value: an array of rows itself, else a string."""
    held, size = value.data, tuple(value.batch_size)
    if isinstance(held, np.ndarray) and held.shape[: len(size)] == size:
        return held
    return _texts(value)


def _texts(values: Any) -> np.ndarray[Any, Any]:
    """Return the values of non-tensor data as strings of at least ten characters."""
    texts = [str(value) for value in values._flat()]
    width = max([10, *map(len, texts)])
    return np.array(texts, dtype=f"<U{width}").reshape(tuple(values.batch_size))


def _struct(arrays: dict[str, Any], dims: int) -> np.dtype[Any]:
    fields: list[Any] = []
    for key, value in arrays.items():
        if isinstance(value, tuple):
            size, inner = value
            kind, shape = _struct(inner, len(size)), tuple(size[dims:])
        else:
            kind, shape = value.dtype, value.shape[dims:]
        fields.append((key, kind, shape) if shape else (key, kind))
    return np.dtype(fields)


def _fill(result: np.ndarray[Any, Any], arrays: dict[str, Any]) -> None:
    for key, value in arrays.items():
        if isinstance(value, tuple):
            _fill(result[key], value[1])
        else:
            result[key] = value


def _converted(value: Any, kind: bool | Literal["numpy"]) -> Any:
    """Convert a tensor to an array or to nested lists of numbers; also in a list.

    A nested tensor becomes a tuple of arrays or a list of lists.
    """
    if isinstance(value, list):
        return [_converted(each, kind) for each in value]
    rows = special.rows(value)
    if rows is not None:
        parts = [_converted(each, kind) for each in rows]
        return tuple(parts) if kind == "numpy" else parts
    return value.numpy() if kind == "numpy" else value.tolist()
