"""A collection whose entries are in an HDF5 file or a Zarr store."""

from __future__ import annotations

import os
import tempfile
import weakref
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsIndex

import torch
from torch.utils.data import get_worker_info

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.containers.persistent.files import (
    common_sizes,
    content_of,
    fill_group,
    metadata_of,
    metadata_to_write,
    names_of,
)
from tensordict.containers.persistent.reading import Reading
from tensordict.containers.persistent.writing import Writing
from tensordict.ops.access import MSG_NO_INDEX, MSG_ONE_DEFAULT
from tensordict.primitives import classes
from tensordict.primitives.common import as_size
from tensordict.primitives.dims import remember
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.storage import pickles
from tensordict.storage.arrays import backend_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["PersistentTensorDict"]

MSG_SOURCE = "Either group or filename must be provided, and not both. Got group={} and filename={}."
MSG_VALUE_ALONE = (
    "A {} alone cannot be written: a file holds a collection. Set it as an entry of a "
    "TensorDict, and write that."
)
MSG_FILENAME = "storage={0!r} writes a file. Pass its path, filename='data.{0}'."
MSG_PICKLE = (
    "Cannot pickle a PersistentTensorDict of {}: it has no path that another process could "
    "open. Call to_tensordict() first."
)


@classes.provided
class PersistentTensorDict(Reading, Writing):  # type: ignore[misc]
    """A collection whose entries are in an HDF5 file or a Zarr store.

    Reading an entry reads it from the file into a new tensor. Reading a part of an
    entry, ``ptd[10:20]["a"]`` or ``ptd.get_at("a", 3)``, reads only that part from the
    file. Setting an entry writes it to the file, and so do methods in place
    (``ptd.add_(1)``). A tensor that was read is a copy: writing to it leaves the file
    unchanged. Operations that compute a new collection return an ordinary
    :class:`TensorDict`.

    A group of the file is a nested collection, an array is a leaf. The file can also
    hold non-tensor data; the guide on HDF5 and Zarr says which types, and in which
    form.

    HDF5 needs ``h5py``, Zarr needs ``zarr`` 3.1.1 or newer.

    Args:
        batch_size: the leading dims that all entries share. Default: ``[]``. To infer
            the batch size from the file, use :func:`from_h5` or :func:`from_zarr`.
        filename: the path of the file; for Zarr a directory, or a
            ``zarr.abc.store.Store``.
        group: an open file or group, in place of ``filename``. :meth:`close` does not
            close it.
        mode: ``"r"`` reads an existing file. ``"r+"`` changes an existing file. ``"w"``
            creates a file and replaces an existing one. ``"w-"`` and ``"x"`` create a
            file, and raise an error if it exists. ``"a"`` changes an existing file or
            creates one.
        backend: ``"h5"`` or ``"zarr"``.
        device: the device to which entries are moved when they are read.
        validate_batch_size: whether the shapes of all arrays are compared with the
            batch size when the file is opened.
        non_tensor_as_stack: how to read an array of strings that another program wrote,
            if its leading dims are the batch size. True: one string for each row.
            False: one array for all rows.
        allow_pickle: whether pickled values, which only Zarr can hold, are unpickled.
            Unpickling can run code of the file's author. Default: unpickle, with a
            warning.
        **kwargs: options of new arrays, passed to ``h5py.Group.create_dataset`` or
            ``zarr.Group.create_array``. ``chunks`` gives the chunk sizes of the leading
            dims.

    Raises:
        FileNotFoundError: the file does not exist.
        ImportError: ``h5py`` or ``zarr`` is not installed.
        OSError: the file has another format, is truncated, or is open elsewhere.
        ValueError: the shape of an array does not begin with the batch size.

    Examples:
        >>> import os, tempfile
        >>> from tensordict import PersistentTensorDict
        >>> directory = tempfile.TemporaryDirectory()
        >>> path = os.path.join(directory.name, "data.h5")
        >>> with PersistentTensorDict(filename=path, batch_size=[3], mode="w") as data:
        ...     data["n", "a"] = torch.zeros(3, 2)
        ...     data["n", "a"] += 1
        ...     data[1:]["n", "a"]
        tensor([[1., 1.],
                [1., 1.]])
        >>> directory.cleanup()
    """

    _is_dense: ClassVar[bool] = False

    LOCKING: ClassVar[Any] = None

    def __init__(
        self,
        *,
        batch_size: Sequence[int] | torch.Size | int | None = None,
        filename: object = None,
        group: object = None,
        mode: str = "r",
        backend: str = "h5",
        device: torch.device | str | int | None = None,
        validate_batch_size: bool = True,
        non_tensor_as_stack: bool = False,
        allow_pickle: bool | None = None,
        **kwargs: object,
    ) -> None:
        if (filename is None) == (group is None):
            raise RuntimeError(MSG_SOURCE.format(group, filename))
        kind = backend_of(backend)
        if filename is not None:
            file = kind.open(filename, mode, {"allow_pickle": allow_pickle})
        else:
            file = kind.of_open(group)
            file.allow_pickle = allow_pickle
        root = file.root
        size = as_size(batch_size)
        try:
            metadata = metadata_of(root)
            self._take(
                file,
                root,
                size,
                None if device is None else torch.device(device),
                names_of(metadata, size),
                kwargs,
                non_tensor_as_stack,
            )
            if validate_batch_size:
                self._check_sizes(())
        except BaseException:
            if file.is_own:
                file.close()
            raise

    @classmethod
    def from_dict(  # type: ignore[override]
        cls,
        input_dict: Mapping[Any, Any] | CollectionProtocol,
        filename: Any,
        *,
        auto_batch_size: bool = False,
        batch_size: Sequence[int] | torch.Size | None = None,
        device: torch.device | str | int | None = None,
        backend: str = "h5",
        batch_dims: int | None = None,
        allow_pickle: bool | None = None,
        **kwargs: object,
    ) -> Self:
        """Write a mapping or a collection to a new file, and open it with mode ``"r+"``.

        An existing file is replaced only when the new one is complete. If the call
        fails, the existing file is unchanged.

        Args:
            input_dict: the entries.
            filename: the path of the file; for Zarr a directory or a store.
            auto_batch_size: ignored: the batch size of a mapping is always inferred.
                Other classes use it.
            batch_size: the batch size. Default: the batch size of a collection; for a
                mapping, the leading dims that all entries share.
            device: the device to which entries are moved when they are read.
            backend: ``"h5"`` or ``"zarr"``.
            batch_dims: the largest number of batch dims to infer for a mapping.
            allow_pickle: whether pickled values are unpickled when the result is read.
                Default: True.
            **kwargs: options of new arrays, see :class:`PersistentTensorDict`.

        Raises:
            TypeError: the format cannot hold the dtype or type of an entry.
            ValueError: a key is not a valid name in the file.
        """
        source: Any = input_dict
        if not isinstance(source, CollectionProtocol):
            source = TensorDict.from_dict(
                source,
                batch_size=batch_size,
                auto_batch_size=batch_size is None,
                batch_dims=batch_dims,
            )
        elif source._is_non_tensor:
            raise TypeError(MSG_VALUE_ALONE.format(type(source).__name__))
        elif batch_size is not None and source.batch_size != torch.Size(batch_size):
            source = source.clone(False)
            source.batch_size = batch_size
        kind = backend_of(backend)
        kind.create(
            filename,
            metadata_to_write(source),
            lambda root: fill_group(root, source, kwargs),
        )
        may_read = True if allow_pickle is None else allow_pickle
        file = kind.open(filename, "r+", {"allow_pickle": may_read})
        persistent = cls.__new__(cls)
        device = None if device is None else torch.device(device)
        root = file.root
        size = source.batch_size
        names = names_of(metadata_of(root), size)
        persistent._take(file, root, size, device, names, kwargs, False)
        return persistent

    @classmethod
    def from_schema(
        cls,
        schema: Mapping[Any, tuple[Sequence[int], torch.dtype]],
        *,
        batch_size: Sequence[int] | None = None,
        storage: str | None = None,
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ) -> Self:
        """Create a file of zeros. See :meth:`TensorDict.from_schema`.

        Raises:
            TypeError: ``filename`` is missing.
        """
        backend = storage or "h5"
        if "filename" not in kwargs:
            raise TypeError(MSG_FILENAME.format(backend))
        # A new file is always open for writing.
        kwargs.pop("mode", None)
        size = torch.Size(() if batch_size is None else batch_size)
        # A leaf is a single zero, expanded to its shape.
        zeros = {
            key: torch.zeros((), dtype=dtype).expand(*size, *shape)
            for key, (shape, dtype) in schema.items()
        }
        source = TensorDict({}, size).update(zeros)
        return cls.from_dict(source, backend=backend, device=device, **kwargs)

    @classmethod
    def _from_file(
        cls,
        filename: object,
        backend: str,
        mode: str,
        size: torch.Size | None,
        dims: int | None,
        is_auto: bool,
        non_tensor_as_stack: bool,
        allow_pickle: bool | None,
    ) -> Self:
        """See :func:`tensordict.from_h5`."""
        persistent = cls(
            filename=filename,
            backend=backend,
            mode=mode,
            batch_size=size,
            non_tensor_as_stack=non_tensor_as_stack,
            allow_pickle=allow_pickle,
            validate_batch_size=size is not None,
        )
        try:
            if size is None:
                # The file records no batch size: infer it from the arrays.
                persistent._take_common_size(dims if is_auto else None, not is_auto)
                persistent._check_sizes(())
        except BaseException:
            persistent.close()
            raise
        return persistent

    def _take_common_size(self, limit: int | None, keep_noted: bool) -> None:
        for td, size in common_sizes(self, limit, keep_noted):
            td._batch_size = size
            td._td_dim_names = names_of(metadata_of(td._group), size)

    def __enter__(self) -> Self:
        """Open a block. The end of the block closes the file, or undoes ``lock_``."""
        return super().__enter__()

    def __exit__(
        self, exc_type: object, exc_val: BaseException | None, exc_tb: object
    ) -> Any:
        """Undo the lock that opened the block, or else close the file."""
        queue: Any = self._last_op_queue
        closes_file = queue[-1] is None
        result = super().__exit__(exc_type, exc_val, exc_tb)
        if closes_file:
            self.close()
        return result

    def _resize_batch(self, size: torch.Size) -> None:
        super()._resize_batch(size)
        self._note()

    def get_at(self, key: NestedKeyLike, *args: Any, **kwargs: object) -> Any:
        """Return a part of the entry at ``key``; only that part is read."""
        if not args and "index" not in kwargs:
            raise TypeError(MSG_NO_INDEX)
        index, *rest = args or (kwargs["index"],)
        if len(rest) > 1:
            raise TypeError(MSG_ONE_DEFAULT)
        path = _rust.unravel_key_to_tuple(key)
        holder = self._holder_of(path)
        sample = NO_DEFAULT if holder is None else holder._sample_entry(path[-1])
        if type(sample) is not torch.Tensor:
            return super().get_at(key, *args, **kwargs)
        plan = _rust.index_plan(
            sample.shape, (index,) if isinstance(index, list) else index
        )
        return holder._part_at(path[-1], () if plan is None else plan[0])

    def get_item_shape(self, key: NestedKeyLike) -> torch.Size:
        """Return the shape of the entry at ``key`` without reading it."""
        path = _rust.unravel_key_to_tuple(key)
        holder = self._holder_of(path)
        sample = NO_DEFAULT if holder is None else holder._sample_entry(path[-1])
        if sample is NO_DEFAULT:
            return super().get_item_shape(key)
        return sample.shape

    def entry_class(self, key: NestedKeyLike) -> type:
        """Return the type of an entry without reading it."""
        path = _rust.unravel_key_to_tuple(key)
        holder = self._holder_of(path)
        sample = NO_DEFAULT if holder is None else holder._sample_entry(path[-1])
        return super().entry_class(key) if sample is NO_DEFAULT else type(sample)

    def _write_into(
        self, key: str, present: Any, value: object, non_blocking: bool
    ) -> None:
        if isinstance(present, PersistentTensorDict) or (
            isinstance(value, (CollectionProtocol, dict))
            and not isinstance(present, CollectionProtocol)
        ):
            super()._write_into(key, present, value, non_blocking)
            return
        if isinstance(present, CollectionProtocol):
            stored = self._get_entry(key, NO_DEFAULT)
            super()._write_into(key, stored, value, non_blocking)
            self._set_entry(key, stored)
            return
        self._file.check_writable(key)
        value = _rust.fit_inplace(self, key, value, present)
        array: Any = self._group.array(key)
        value = value.detach().to(present.dtype).expand(present.shape)
        array.write(..., content_of(self._file, key, value).data)

    def clone(self, recurse: bool = True, **kwargs: object) -> Self:
        """Copy the file to a temporary one; if ``recurse`` is false, share this file.

        The temporary file is removed together with the last collection that uses it.
        """
        if kwargs:
            msg = f"clone() got an unexpected keyword argument {next(iter(kwargs))!r}"
            raise TypeError(msg)
        if not recurse:
            return self._clone_structure()
        directory = tempfile.TemporaryDirectory(prefix="tensordict-")
        path = Path(directory.name) / f"clone.{self.backend}"
        copied = self.from_dict(
            self, path, device=self._device, backend=self.backend, **self._options
        )
        copied._file.allow_pickle = self._file.allow_pickle
        copied._non_tensor_as_stack = self._non_tensor_as_stack
        weakref.finalize(copied._file, _remove, copied._file.handle, directory)
        return copied

    def __copy__(self) -> Self:
        """Return another collection of the same file."""
        return self._clone_structure()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy in a temporary file."""
        copied = memo[id(self)] = self.clone()
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return the path and settings, with which unpickling reopens the file to read.

        Raises:
            TypeError: the file has no path.
        """
        self._file.check_open()
        filename = self._file.filename
        if not isinstance(filename, (str, os.PathLike)):
            raise TypeError(MSG_PICKLE.format(self._file.name))
        self._file.flush()
        return {
            "filename": str(Path(filename).absolute()),
            "backend": self.backend,
            "path": self._group.path,
            "batch_size": self._batch_size,
            "device": self._device,
            "names": self._td_dim_names,
            "options": self._options,
            "non_tensor_as_stack": self._non_tensor_as_stack,
            "allow_pickle": getattr(self._file, "allow_pickle", None),
            "is_locked": self._is_locked,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the file of a pickled collection, for reading."""
        kind = backend_of(state["backend"])
        options = {"allow_pickle": state["allow_pickle"]}
        file = kind.open(state["filename"], "r", options)
        group: Any = file.root
        for name in filter(None, state["path"].split("/")):
            group = None if group is None else group.group(name)
        if group is None:
            msg = f"The file {file.name} has no group {state['path']!r} any more."
            raise KeyMessageError(msg)
        self._take(
            file,
            group,
            state["batch_size"],
            state["device"],
            state["names"],
            state["options"],
            state["non_tensor_as_stack"],
        )
        if state["is_locked"]:
            self.lock_()

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle the path and state; in a ``DataLoader`` worker, pickle the entries."""
        data = self._data_to_send()
        if data is not None:
            return data.__reduce_ex__(protocol)
        return _new, (type(self),), self.__getstate__()

    def _data_to_send(self) -> CollectionProtocol | None:
        is_started = get_spawning_popen() is not None
        if is_started or get_worker_info() is None:
            return None
        return self.to_tensordict()

    def to(self, *args: object, **kwargs: object) -> Any:
        """Move to another device: a collection of the same file that reads to there.

        If a dtype is given, all entries are read and the result is an ordinary
        collection.
        """
        target = args[0] if len(args) == 1 else kwargs.get("device")
        rest = kwargs.keys() - {"device", "non_blocking"}
        if (
            len(args) > 1
            or rest
            or not isinstance(target, (str, int, torch.device))
            or (args and "device" in kwargs)
        ):
            return self._shown().to(*args, **kwargs)
        device = torch.device(target)
        if device == self._device:
            return self
        return remember(self, self._again(device), "to", args, kwargs)

    def auto_batch_size_(
        self, batch_dims: int | None = None, keep_compliant_size: bool = False
    ) -> Self:
        """Set the largest batch size that entries share, in nested collections too."""
        plain = self._sampled().auto_batch_size_(batch_dims, keep_compliant_size)
        self._take_sizes(plain)
        return self

    def _take_sizes(self, plain: CollectionProtocol) -> None:
        if plain.batch_size != self._batch_size:
            self._resize_batch(plain.batch_size)
        for key, child in list(self._nested.items()):
            child._take_sizes(plain._get_entry(key, None))

    def rename_key_(
        self, old_key: NestedKeyLike, new_key: NestedKeyLike, safe: bool = False
    ) -> Self:
        """Rename an entry in the file, without moving its data.

        See ``TensorDict.rename_key_``.
        """
        old, new = map(_rust.unravel_key_to_tuple, (old_key, new_key))
        source, target = self._holder_of(old), self._holder_of(new)
        if (
            source is None
            or target is None
            or new[: len(old)] == old
            or old[: len(new)] == new
            or self.is_locked
            or source.is_locked
            or source._batch_size != target._batch_size
            or source._sample_entry(old[-1]) is NO_DEFAULT
            or target._sample_entry(new[-1]) is not NO_DEFAULT
        ):
            return super().rename_key_(old_key, new_key, safe=safe)
        source._group.move(old[-1], target._group, new[-1])
        source._nested.pop(old[-1], None)
        return self

    def __repr__(self) -> str:
        """Show the entries, or the name of the file if it is closed."""
        if not self._file.is_open:
            return f"{type(self).__name__}(closed file {self._file.name})"
        return super().__repr__()


PersistentTensorDict.__module__ = "tensordict.persistent"
classes.announce(PersistentTensorDict, "collection", TensorDict)
pickles.send_as_data(PersistentTensorDict)


def _new(cls: type[PersistentTensorDict]) -> PersistentTensorDict:
    return cls.__new__(cls)


def _remove(handle: object, directory: Any) -> None:
    """Close the temporary file of a copy, if possible, and remove it."""
    if hasattr(handle, "close"):
        handle.close()
    directory.cleanup()
