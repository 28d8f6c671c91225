"""Zarr stores, read and written with the library zarr, version 3.1.1 or newer."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tensordict.storage.arrays.interface import (
    ENCODING,
    METADATA,
    STACK,
    Array,
    ArrayFile,
    Content,
    Group,
    check_key,
    is_name,
    known_dtype,
    leading_chunks,
    torch_dtype,
)
from tensordict.storage.arrays.values import (
    Stack,
    as_json,
    as_pickle,
    object_array,
    of_json,
    of_pickle,
    uniform_type,
)
from tensordict.storage.locations import local

try:
    import zarr
    from zarr.abc.store import RangeByteRequest, Store
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync
except ImportError as _missing:
    _MESSAGE = (
        "Zarr stores need zarr 3.1.1 or newer, which is not installed: "
        "pip install 'tensordict-rs[zarr]', or pip install 'zarr>=3.1.1'."
    )
    raise ImportError(_MESSAGE) from _missing

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["ZarrFile"]

MSG_OPEN = "Cannot open {} as a Zarr group with mode {!r}: {}."
MSG_MODE = "Invalid mode {!r}; must be one of {}"
MSG_NO_STORE = (
    "{} exists and is not a Zarr store, so it is not overwritten. Remove it, or pass "
    "another name."
)
MSG_READ = "Cannot read {!r} of {}: {}."
MODES = ("r", "r+", "w", "w-", "x", "a")


class ZarrArray(Array):
    """An array."""

    def __init__(self, array: Any, file: ZarrFile) -> None:
        self.array = array
        self.file = file
        self.attributes: dict[str, Any] = dict(array.attrs)
        self.shape: tuple[int, ...] = array.shape
        self.stored: np.dtype[Any] = np.dtype(array.dtype)
        notes = self.attributes
        self.is_value: bool = (
            STACK in notes or ENCODING in notes or torch_dtype(self.stored) is None
        )
        self.dtype: torch.dtype | None = (
            None if self.is_value else known_dtype(notes, torch_dtype(self.stored))
        )

    def _guard(self, read: Callable[[], Any]) -> np.ndarray[Any, Any]:
        try:
            data = np.asarray(read())
        except (OSError, RuntimeError, ValueError) as error:
            raise OSError(
                MSG_READ.format(self.array.name, self.file.name, error)
            ) from error
        return (
            data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))
        )

    def read(self, selection: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        return self._guard(lambda: self._read(selection))

    def _read(self, selection: tuple[slice, ...]) -> Any:
        if selection and self.file.is_plain(self.array):
            found = self._read_rows_of_file(selection)
            if found is not None:
                return found
        return self.array[selection]

    def read_rows(
        self, rows: np.ndarray[Any, Any], rest: tuple[slice, ...]
    ) -> np.ndarray[Any, Any]:
        return self._guard(lambda: self.array.oindex[(rows, *rest)])

    def write(self, selection: Any, data: np.ndarray[Any, Any]) -> None:
        self.array[selection] = data

    def _read_rows_of_file(self, selection: tuple[slice, ...]) -> Any:
        """Read rows of an array that is one uncompressed chunk; return None for other arrays.

        The library reads and decodes whole chunks. By default, this package stores an array as one
        chunk without compression.
        """
        shape = self.shape
        first = range(*selection[0].indices(shape[0]))
        if first.step != 1 or not 0 < len(first) < shape[0]:
            return None
        row = int(np.prod(shape[1:])) * self.stored.itemsize
        start = first.start * row
        key = "/".join([self.array.path, "c", *["0"] * len(shape)]).lstrip("/")
        part = sync(
            self.array.store.get(
                key,
                default_buffer_prototype(),
                RangeByteRequest(start, start + len(first) * row),
            )
        )
        if part is None:
            # Zarr does not store a chunk in which all elements are the fill value.
            return None
        data = np.frombuffer(bytearray(part.to_bytes()), self.stored)
        return data.reshape(len(first), *shape[1:])[(slice(None), *selection[1:])]


class ZarrGroup(Group):
    """A group."""

    def __init__(self, group: Any, file: ZarrFile) -> None:
        self.handle = group
        self.file: ArrayFile = file
        self.path: str = group.path

    @property
    def _file(self) -> ZarrFile:
        file: Any = self.file
        return file

    def _get(self, key: str) -> Any:
        file = self._file
        file.check_open()
        item = self.cache.get(key)
        if item is not None:
            return item
        if not is_name(key):
            return None
        found = self.handle.get(key)
        if isinstance(found, zarr.Array):
            item = ZarrArray(found, file)
        elif isinstance(found, zarr.Group):
            item = ZarrGroup(found, file)
        else:
            return None
        self.cache[key] = item
        return item

    def names(self) -> list[str]:
        self.file.check_open()
        return sorted(self.handle.keys())

    def group(self, key: str) -> Group | None:
        found = self._get(key)
        return found if isinstance(found, ZarrGroup) else None

    def array(self, key: str) -> Array | None:
        found = self._get(key)
        return found if isinstance(found, ZarrArray) else None

    def create_group(self, key: str, metadata: dict[str, Any]) -> Group:
        self._check(key)
        # One call with the attributes: some stores accept each name only once.
        group = self.handle.create_group(key, attributes={METADATA: metadata})
        return ZarrGroup(group, self._file)

    def create(self, key: str, content: Content, options: dict[str, Any]) -> None:
        self._check(key)
        data = np.asarray(content.data)
        shape = data.shape
        options = dict(options)
        if content.is_value or not shape:
            options = {}
        whole_array = tuple(max(1, size) for size in shape)
        chunks = options.pop("chunks", None)
        if chunks is None:
            chunks = "auto" if options.get("shards") is not None else whole_array
        options.setdefault("compressors", None)
        options["chunks"] = leading_chunks(chunks, shape)
        if options.get("shards") is not None:
            options["shards"] = leading_chunks(options["shards"], shape)
        if data.dtype == object:
            options["dtype"] = "string"
        else:
            options["dtype"] = data.dtype
        try:
            array = self.handle.create_array(
                key, shape=shape, attributes=content.attributes, **options
            )
            if data.size:
                array[...] = data
        except BaseException:
            if self.handle.get(key) is not None:
                del self.handle[key]
            raise

    def _check(self, key: str) -> None:
        check_key(key, self.file.kind)
        self.file.check_writable(key)
        self._file.forget_listing()

    def delete(self, key: str) -> None:
        self.file.check_writable(key)
        self._file.forget_listing()
        del self.handle[key]

    def move(self, old: str, target: Group, new: str) -> None:
        check_key(new, self.file.kind)
        self.file.check_writable(old)
        self._file.forget_listing()
        target_group: Any = target
        store = self.handle.store
        root = getattr(store, "root", None)
        if isinstance(root, Path):
            source = root / self.handle.path / old
            source.rename(root / target_group.handle.path / new)
            return
        # Other stores cannot rename, so the array or group is copied.
        _copy(self.handle[old], target_group.handle, new)
        del self.handle[old]

    def metadata(self) -> Any:
        return self.handle.attrs.get(METADATA)

    def note(self, metadata: dict[str, Any]) -> None:
        self.file.check_writable(self.path or "/")
        self._file.forget_listing()
        self.handle.attrs[METADATA] = metadata


class ZarrFile(ArrayFile):
    """A Zarr store, or a group in a store."""

    backend = "zarr"
    kind = "Zarr"

    def __init__(self, handle: Any, filename: Any, mode: str) -> None:
        self.handle = handle
        self.filename = filename
        self.mode = mode
        self.allow_pickle: bool | None = None
        self._is_open = True
        self._has_listing = True
        self._plain: dict[str, bool] = {}

    @classmethod
    def open(cls, filename: Any, mode: str, options: dict[str, Any]) -> Self:
        """Open a file. See :meth:`ArrayFile.open`."""
        if mode not in MODES:
            raise ValueError(MSG_MODE.format(mode, ", ".join(MODES)))
        file = cls(_opened(filename, "w-" if mode == "x" else mode), filename, mode)
        file.allow_pickle = options.get("allow_pickle")
        return file

    @classmethod
    def of_open(cls, handle: Any) -> Self:
        """Wrap a group that the caller has opened."""
        store = handle.store
        root = getattr(store, "root", None)
        filename = str(root / handle.path) if isinstance(root, Path) else store
        file = cls(handle, filename, "r" if handle.read_only else "r+")
        file.is_own = False
        return file

    @property
    def root(self) -> Group:
        """The root group of the file."""
        return ZarrGroup(self.handle, self)

    @property
    def is_open(self) -> bool:
        """Whether entries can be read."""
        return self._is_open

    @property
    def is_writable(self) -> bool:
        """Whether entries can be changed."""
        return self._is_open and not self.handle.read_only

    @property
    def name(self) -> str:
        """The name of the file in errors."""
        return repr(str(self.filename))

    def flush(self) -> None:
        """Do nothing: all writes are done at once."""

    def close(self) -> None:
        """Close the file. Closing it again does nothing."""
        if self._is_open:
            self._is_open = False
            if self.is_own and not isinstance(self.filename, Store):
                self.handle.store.close()

    def forget_listing(self) -> None:
        """Remove the list of all arrays from the root: the next change would make it wrong."""
        self.note_change()
        self._plain.clear()
        if not self._has_listing:
            return
        self._has_listing = False
        root = self.handle
        if root.path:
            root = zarr.open_group(root.store, mode="r+", use_consolidated=False)
        # Writing the root's attributes writes its metadata without the list.
        root.update_attributes({})

    def is_plain(self, array: Any) -> bool:
        """Return whether an array is one chunk with the bytes that it has in memory."""
        found = self._plain.get(array.path)
        if found is None:
            metadata = array.metadata
            codecs: Any = getattr(metadata, "codecs", ())
            found = (
                metadata.zarr_format == 3
                and len(codecs) == 1
                and type(codecs[0]).__name__ == "BytesCodec"
                and tuple(array.chunks) == tuple(array.shape)
                and metadata.chunk_key_encoding.name == "default"
                and metadata.chunk_key_encoding.separator == "/"
                and np.dtype(array.dtype).kind in "biufc"
                and getattr(codecs[0].endian, "value", "little") == "little"
                and np.little_endian
            )
            self._plain[array.path] = found
        return found

    @classmethod
    def encode(cls, key: str, value: object) -> Content:
        """Encode a value for its array. See :meth:`ArrayFile.encode`."""
        notes: dict[str, Any] = {}
        if isinstance(value, Stack):
            notes[STACK] = list(value.shape)
            values = value.values
            if uniform_type(values) is str and all(map(_is_text, values)):
                return Content(object_array(values, value.shape), notes, is_value=True)
            value = value.nested()
        text = as_json(value)
        if text is None:
            data, encoding = as_pickle(value), "pickle"
        else:
            data, encoding = text.encode(), "json"
        notes[ENCODING] = {"encoding": encoding}
        return Content(np.frombuffer(data, dtype=np.uint8), notes, is_value=True)

    def decode(self, key: str, array: Array, rows: slice | None = None) -> Any:
        """Return the value that an array holds. See :meth:`ArrayFile.decode`."""
        stored_array: Any = array
        notes = stored_array.attributes
        if rows is not None:
            data = stored_array.read(
                (rows, *(slice(None),) * (len(stored_array.shape) - 1))
            )
            return Stack(data.reshape(-1).tolist(), data.shape)
        data = stored_array.read((slice(None),) * len(stored_array.shape))
        shape = tuple(notes[STACK]) if STACK in notes else None
        if ENCODING not in notes:
            if shape is not None:
                return Stack(data.reshape(-1).tolist(), shape)
            if data.dtype.kind in "TO":
                data = data.astype(object)
            return data[()]
        content = data.tobytes()
        if notes[ENCODING].get("encoding") == "pickle":
            value = of_pickle(content, key, self.name, self.allow_pickle)
        else:
            value = of_json(content)
        if shape is None:
            return value
        for _ in shape[1:]:
            value = [item for row in value for item in row]
        return Stack(list(value), shape)

    @classmethod
    def create(
        cls, filename: Any, metadata: dict[str, Any], fill: Callable[[Group], None]
    ) -> None:
        """Create a store. See :meth:`ArrayFile.create`."""
        if isinstance(filename, Store):
            file = cls(_opened(filename, "w", metadata), filename, "w")
            file._has_listing = False
            fill(file.root)
            return
        target = Path(os.path.realpath(local(filename)))
        check_target(target)
        try:
            work = Path(
                tempfile.mkdtemp(
                    prefix=f".{target.name}.", suffix=".tmp", dir=target.parent
                )
            )
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(filename)) from None
        try:
            mask = os.umask(0)
            os.umask(mask)
            work.chmod(0o777 & ~mask)
            file = cls(_opened(str(work), "w", metadata), str(work), "w")
            file._has_listing = False
            fill(file.root)
            file.close()
            _replace(work, target)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def check_target(target: Path) -> None:
    """Raise if the path exists and is not a Zarr store.

    Raises:
        FileExistsError: the path exists and is neither a store nor an empty directory.
    """
    if not os.path.lexists(target):
        return
    is_store = target.is_dir() and (
        any((target / name).exists() for name in ("zarr.json", ".zgroup", ".zarray"))
        or not any(target.iterdir())
    )
    if not is_store:
        raise FileExistsError(MSG_NO_STORE.format(repr(str(target))))


def _replace(work: Path, target: Path) -> None:
    """Move a directory to a path, and delete the directory that it replaces."""
    if not target.exists():
        work.rename(target)
        return
    old = target.parent / f".{target.name}.{uuid.uuid4().hex}.old"
    target.rename(old)
    try:
        work.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _opened(filename: Any, mode: str, metadata: Any = None) -> Any:
    """Open a group. An error names the path."""
    if not isinstance(filename, Store):
        filename = os.fspath(filename)
        # The library opens URLs itself. `local` refuses a URL that lost its second slash.
        is_url = "://" in filename
        local(None if is_url else filename)
        if mode == "w" and not is_url:
            check_target(Path(os.path.realpath(filename)))
    try:
        # A store may contain a list of all arrays. Arrays that were added since are missing.
        use_list = None if mode == "r" else False
        opened_as: Any = mode
        notes = None if metadata is None else {METADATA: metadata}
        return zarr.open_group(
            filename, mode=opened_as, use_consolidated=use_list, attributes=notes
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        where = repr(str(filename))
        why = _why(error, filename)
        message = MSG_OPEN.format(where, mode, why)
        kinds = (FileNotFoundError, FileExistsError, PermissionError)
        kind = next((kind for kind in kinds if isinstance(error, kind)), OSError)
        raise kind(message) from error


def _why(error: Exception, filename: object) -> str:
    if isinstance(filename, str):
        path = Path(filename)
        if not path.exists():
            return "the directory does not exist"
        if path.is_file():
            return (
                "it is a file; pass a directory, or a zarr.storage.ZipStore of the file"
            )
        if isinstance(error, FileExistsError):
            return "the store exists already"
        if isinstance(error, FileNotFoundError):
            return "it contains no Zarr group"
    return str(error) or type(error).__name__


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _copy(source: Any, target: Any, key: str) -> None:
    """Copy an array, or a group with all its content."""
    if isinstance(source, zarr.Array):
        copied = target.create_array(
            key,
            shape=source.shape,
            dtype=source.dtype,
            chunks=source.chunks,
            shards=source.shards,
            compressors=source.compressors,
            filters=source.filters,
            fill_value=source.fill_value,
            attributes=dict(source.attrs),
        )
        if source.size:
            copied[...] = source[...]
        return
    group = target.create_group(key, attributes=dict(source.attrs))
    for name in sorted(source.keys()):
        _copy(source[name], group, name)
