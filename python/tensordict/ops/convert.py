"""Turning a collection into plain Python objects and numpy arrays."""

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
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from tensordict.containers.dense import TensorDict

__all__ = ["ConvertOps"]

MSG_NO_FIELDS = (
    "a structured array has at least one field: this collection has no entry."
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
    """Turning a collection into plain Python objects and numpy arrays."""

    def to_dict(
        self,
        *,
        retain_none: bool = True,
        convert_tensors: bool | Literal["numpy"] = False,
        tolist_first: bool = False,
    ) -> dict[str, Any]:
        """Nested dictionaries with the same entries, in the same order.

        Args:
            retain_none: whether entries whose value is None are kept.
            convert_tensors: whether leaves become Python numbers and lists of them;
                ``"numpy"`` for arrays that share their memory. Default: they stay
                tensors, the very same.
            tolist_first: whether nested tensordicts become lists over their batch dims,
                as :meth:`tolist` makes them.

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
        """The entries; of a stack, a list of rows for those that cannot be stacked."""
        return self._entries()

    def tolist(
        self,
        *,
        convert_nodes: bool = True,
        convert_tensors: bool | Literal["numpy"] = False,
        tolist_first: bool = False,
        as_linked_list: bool = False,
    ) -> Any:
        """Nested lists over the batch dims, with a dictionary for each item.

        Args:
            convert_nodes: whether the items become dictionaries. If false they are
                collections.
            convert_tensors: what becomes of the leaves; see :meth:`to_dict`.
            tolist_first: whether collections nested in an item become lists over the
                batch dims that they have left; what is nested in those does not.
            as_linked_list: whether items that are set in the list are set in this
                collection, too.

        Returns:
            A list; without batch dims one dictionary.

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
        """Nested dictionaries of numpy arrays that share the memory of the leaves.

        Raises:
            RuntimeError: a leaf requires gradients.
            TypeError: a leaf is not in the host's memory, or numpy lacks its dtype.

        Examples:
            >>> TensorDict(a=torch.zeros(2)).numpy()
            {'a': array([0., 0.], dtype=float32)}
        """
        return self.to_dict(convert_tensors="numpy", retain_none=False)

    def to_tensordict(self, *, retain_none: bool | None = None) -> TensorDict:
        """A copy whose collections are all plain :class:`TensorDict` ones; unlocked.

        The leaves are cloned.

        Args:
            retain_none: whether entries whose value is None are kept.

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
                    # The values of a mapped collection have no device.
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
        """Copy this tensordict to a Redis server, and get a store that reads it there.

        Args:
            backend: what texts call the server: ``"redis"``, ``"dragonfly"``.
            host: the name of the server.
            port: its port.
            db: the number of the database.
            unix_socket_path: a socket of this machine, instead of host and port.
            prefix: what all keys on the server start with.
            device: where tensors are read to. Default: the device of this tensordict.
            **kwargs: what else ``TensorDictStore.from_tensordict`` takes, such as
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
        """A named tuple with a field per entry; nested tensordicts become such, too.

        Args:
            dest_cls: the named tuple class of all of them. Default: a new class named
                ``GenericDict``.

        Raises:
            ValueError: a key is not the name of a field.

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
        """A structured numpy array of the shape of the batch size, a field per entry.

        The values are copied. Nested tensordicts become structured fields; their extra
        batch dims are dims of the field.

        Raises:
            ValueError: there is no entry.
            TypeError: NumPy lacks a dtype, or an entry is a nested tensor.

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
        """Write the rows as the samples of a dataset of MosaicML's streaming (MDS).

        See :func:`tensordict.to_mds`, which has the same arguments, and
        :func:`tensordict.from_mds`, which reads them.
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
        """The nested structure that :meth:`from_pytree` made this tensordict of.

        Returns:
            Dictionaries, lists and tuples; this tensordict where it was not made so.

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
    """Return whether a collection and all in it are exactly of class ``cls``."""
    if type(td) is not cls:
        return False
    return all(_is_throughout(child, cls) for child in td._children())


def _as_field(value: object, dest_cls: type | None) -> Any:
    """An entry as a field of a named tuple."""
    if not isinstance(value, CollectionProtocol):
        return value
    return value.to_dict() if value._is_non_tensor else value.to_namedtuple(dest_cls)


@functools.lru_cache(maxsize=256)
def _generic(keys: tuple[str, ...]) -> Any:
    """The named tuple class of some fields; making one takes longer than using it."""
    return collections.namedtuple("GenericDict", keys)  # noqa: PYI024


def _arrays(td: CollectionProtocol) -> dict[str, Any]:
    """The leaves as arrays, in nested pairs of a collection's dims and its arrays."""
    arrays: dict[str, Any] = {}
    for key, entry in list(td._entries().items()):
        value: Any = entry
        if isinstance(entry, CollectionProtocol) and value._is_non_tensor:
            arrays[key] = _column_of_one(value) if value._is_one else _column(value)
        elif isinstance(value, CollectionProtocol):
            arrays[key] = (value.batch_size, _arrays(value))
        elif isinstance(value, torch.Tensor):
            arrays[key] = _field_array(key, value)
        else:
            arrays[key] = np.asarray(value)
    if not arrays:
        raise ValueError(MSG_NO_FIELDS)
    return arrays


def _field_array(key: str, value: torch.Tensor) -> np.ndarray[Any, Any]:
    """A leaf as an array.

    Raises:
        TypeError: it is a nested tensor, or NumPy lacks its dtype.
    """
    if special.rows(value) is not None:
        raise TypeError(MSG_RAGGED_FIELD.format(key))
    try:
        array: np.ndarray[Any, Any] = value.detach().cpu().resolve_conj().numpy()
    except TypeError as error:
        raise TypeError(MSG_NO_DTYPE.format(key, value.dtype)) from error
    return array


def _column(values: Any) -> np.ndarray[Any, Any]:
    """The values of a column: numbers, texts, or the objects themselves."""
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
    """One value in each row: an array of the rows as it is, anything else as text."""
    held, size = value.data, tuple(value.batch_size)
    if isinstance(held, np.ndarray) and held.shape[: len(size)] == size:
        return held
    return _texts(value)


def _texts(values: Any) -> np.ndarray[Any, Any]:
    """The values of a non-tensor entry as texts, of ten characters at least."""
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
    """A tensor as numbers in lists or as an array, and a list of tensors as one of these.

    A nested tensor is a tuple of arrays, or a list of lists.
    """
    if isinstance(value, list):
        return [_converted(each, kind) for each in value]
    rows = special.rows(value)
    if rows is not None:
        parts = [_converted(each, kind) for each in rows]
        return tuple(parts) if kind == "numpy" else parts
    return value.numpy() if kind == "numpy" else value.tolist()
