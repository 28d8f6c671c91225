"""Read directories of ``torch.distributed.checkpoint``, one tensor at a time.

The file ``.metadata`` maps each chunk of a tensor to a file, an offset and a length. A
chunk is an archive of ``torch.save``; its pickle is read without running code. The
bytes of a tensor are read when they are needed, some rows at a time.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import sys
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from tensordict.checkpoint.lazy_state import LazyTensors
from tensordict.checkpoint.ranges import intersection
from tensordict.storage.devices import PIECE_BYTES, Pieced
from tensordict.storage.locations import local

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensordict.storage.sharded import Box

__all__ = ["MSG_OUTSIDE", "DirectoryTensors", "open_directory", "read_directory"]

DCP_METADATA = ".metadata"

SMALL_BYTES = 4 << 10
"""The most bytes of a tensor that is read at once, such as the options of optimizers."""

MSG_REFUSED = "it names {}.{}, which is not part of the metadata of a checkpoint"
MSG_OUTSIDE = "'{}' names the file {!r}, which is not in its directory."
MSG_TRANSFORMED = (
    "'{}' is transformed by {}: read it with torch.distributed.checkpoint."
)
MSG_SHORT = "'{}' is damaged: it has fewer than {} bytes from offset {} on."
MSG_METADATA = "'{}' is damaged: {}: {}"
MSG_GAPS = "'{}' is damaged: the chunks of {!r} do not cover its shape {}."
MSG_CHANGED = "'{}' is damaged: the bytes of {!r} from offset {} on are not those that were saved."
MSG_CHUNK = "'{}' is damaged: the chunk of {!r} at {} has the shape {}, expected {}."

_METADATA_CLASSES = (
    *(BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex),
    *(StorageMeta, TensorProperties, TensorStorageMetadata, _StorageInfo),
    *(dcp_metadata._MEM_FORMAT_ENCODING, torch.Size),
)
_ALLOWED: dict[tuple[str, str], Any] = {
    (cls.__module__, cls.__qualname__): cls for cls in _METADATA_CLASSES
}


class _MetadataReader(pickle.Unpickler):
    """An unpickler that accepts only the classes of DCP metadata."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module, name))
        if allowed is not None:
            return allowed
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("torch.serialization", "_get_layout"):
            return torch.serialization._get_layout
        if module == "collections" and name == "OrderedDict":
            return dict
        if module.startswith("pathlib") and name in ("PosixPath", "Path"):
            # The path at which the checkpoint was saved is not needed.
            return _as_path
        raise pickle.UnpicklingError(MSG_REFUSED.format(module, name))


def _as_path(*parts: str) -> str:
    return os.path.join("", *parts)  # noqa: PTH118 (DCP needs a string)


# Chunks -------------------------------------------------------------------------------


class _Section(io.RawIOBase):
    """A part of a file, readable as a file.

    Args:
        descriptor: the file.
        offset: the first byte of the part.
        length: the number of bytes of the part.
    """

    def __init__(self, descriptor: int, offset: int, length: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._offset = offset
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        self._at = offset + (0, self._at, self._length)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read bytes at the position, and advance it."""
        count = max(0, min(len(buffer), self._length - self._at))
        num_read = os.preadv(
            self._descriptor, [memoryview(buffer)[:count]], self._offset + self._at
        )
        self._at += num_read
        return num_read


class _Laid(NamedTuple):
    """A tensor as the pickle of an archive describes it: its place in a storage."""

    key: str
    """The name of the storage."""
    dtype: torch.dtype
    offset: int
    """The index of the first element in the storage."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _TensorReader(pickle.Unpickler):
    """An unpickler that accepts only the description of one tensor."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in _REBUILDS:
            return _REBUILDS[name]
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module in ("torch", "torch.storage"):
            attribute = getattr(torch, name, None)
            if isinstance(attribute, torch.dtype):
                return attribute
            if name in _STORAGES:
                return _STORAGES[name]
        raise pickle.UnpicklingError(MSG_REFUSED.format(module, name))

    def persistent_load(self, pid: Any) -> tuple[str, Any]:
        """Return the name and dtype of a storage."""
        _, dtype, key, *_ = pid
        return str(key), dtype


def _laid(storage: Any, offset: int, shape: Any, stride: Any, *_: object) -> _Laid:
    key, dtype = storage
    return _Laid(key, dtype, offset, tuple(shape), tuple(stride))


def _laid_with_dtype(
    storage: Any, offset: int, shape: Any, stride: Any, *others: Any
) -> _Laid:
    dtype = others[2]
    return _laid((storage[0], dtype), offset, shape, stride)


_STORAGES = {
    "UntypedStorage": torch.uint8,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
}
"""The dtypes of the storage classes in pickles."""

_REBUILDS = {"_rebuild_tensor_v2": _laid, "_rebuild_tensor_v3": _laid_with_dtype}


class _Chunk:
    """A chunk of a tensor in a file.

    Args:
        directory: the directory.
        info: the file, offset and length of the chunk.
        name: the name of the tensor, for errors.
        box: the box of the chunk in the tensor.
    """

    def __init__(
        self, directory: Path, info: _StorageInfo, name: str, box: Box
    ) -> None:
        self.directory = directory
        self.info = info
        self.name = name
        self.box = box
        self._laid: tuple[_Laid, int] | None = None

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Read rows, counted from the first row of the chunk.

        Raises:
            RuntimeError: the chunk is damaged, or contains more than a tensor.
        """
        path = _path_of(self.directory, self.info)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if self._laid is None:
                self._laid = self._described(descriptor)
            laid, begin = self._laid
            if laid.shape != self.box[1]:
                text = (path, self.name, *map(list, (self.box[0], laid.shape)))
                raise RuntimeError(MSG_CHUNK.format(*text, list(self.box[1])))
            item = laid.dtype.itemsize
            if not laid.shape:
                first = begin + laid.offset * item
                return _pread(descriptor, path, first, item).view(laid.dtype)[0]
            row = math.prod(laid.shape[1:])
            if laid.stride == torch.empty(laid.shape, device="meta").stride():
                first = begin + (laid.offset + start * row) * item
                content = _pread(descriptor, path, first, (stop - start) * row * item)
                return content.view(laid.dtype).reshape(stop - start, *laid.shape[1:])
            reach = sum(
                (size - 1) * stride
                for size, stride in zip(laid.shape, laid.stride, strict=True)
            )
            first = begin + laid.offset * item
            content = _pread(descriptor, path, first, (reach + 1) * item)
            whole = content.view(laid.dtype).as_strided(laid.shape, laid.stride)
            return whole[start:stop]
        finally:
            os.close(descriptor)

    def _described(self, descriptor: int) -> tuple[_Laid, int]:
        """Return the tensor's layout in its storage, and the storage's file position."""
        path, info = _path_of(self.directory, self.info), self.info
        section = _Section(descriptor, info.offset, info.length)
        try:
            with zipfile.ZipFile(io.BufferedReader(section)) as archive:
                laid, entry = _laid_in(archive)
        except (
            pickle.UnpicklingError,
            zipfile.BadZipFile,
            KeyError,
            ValueError,
        ) as error:
            raise RuntimeError(f"'{path}' is refused: {error}.") from error
        # The entry's name and padding come after its header and before its bytes.
        at = info.offset + entry.header_offset
        header = _pread(descriptor, path, at, 30).tolist()
        lengths = [header[at] + 256 * header[at + 1] for at in (26, 28)]
        begin = at + 30 + sum(lengths)
        # With torch.serialization.set_crc32_options(False), the checksum is 0.
        if (
            entry.CRC
            and _checksum(descriptor, path, begin, entry.file_size) != entry.CRC
        ):
            raise RuntimeError(MSG_CHANGED.format(path, self.name, begin))
        return laid, begin


def _laid_in(archive: zipfile.ZipFile) -> tuple[_Laid, zipfile.ZipInfo]:
    """Return the layout of an archive's tensor, and the entry of its storage."""
    names = {each.filename.partition("/")[2]: each for each in archive.infolist()}
    order = names.get("byteorder")
    if order is not None and archive.read(order).decode() != sys.byteorder:
        raise pickle.UnpicklingError("its byte order differs from this machine's")
    laid = _TensorReader(io.BytesIO(archive.read(names["data.pkl"]))).load()
    if not isinstance(laid, _Laid):
        raise pickle.UnpicklingError("it contains no tensor")
    entry = names[f"data/{laid.key}"]
    if entry.compress_type != zipfile.ZIP_STORED:
        raise pickle.UnpicklingError("its bytes are compressed")
    return laid, entry


def _pread(descriptor: int, path: Path, offset: int, count: int) -> torch.Tensor:
    """Read ``count`` bytes of a file, at an offset."""
    content = torch.empty(count, dtype=torch.uint8)
    memory: Any = content.numpy()
    view = memoryview(memory)
    done = 0
    while done < count:
        count_read = os.preadv(descriptor, [view[done:]], offset + done)
        if not count_read:
            raise RuntimeError(MSG_SHORT.format(path, count, offset))
        done += count_read
    return content


def _checksum(descriptor: int, path: Path, begin: int, count: int) -> int:
    """Return the CRC-32 of bytes of a file."""
    checksum = 0
    for start in range(begin, begin + count, PIECE_BYTES):
        size = min(PIECE_BYTES, begin + count - start)
        memory: Any = _pread(descriptor, path, start, size).numpy()
        checksum = zlib.crc32(memory, checksum)
    return checksum


def _path_of(directory: Path, info: _StorageInfo) -> Path:
    if Path(info.relative_path).name != info.relative_path:
        raise RuntimeError(MSG_OUTSIDE.format(directory, info.relative_path))
    path = directory / info.relative_path
    if info.transform_descriptors:
        raise RuntimeError(
            MSG_TRANSFORMED.format(path, list(info.transform_descriptors))
        )
    return path


# Tensors ------------------------------------------------------------------------------


class _StoredTensor:
    """A tensor of a directory.

    Args:
        dtype: its dtype.
        shape: its shape.
        chunks: its chunks, which cover it.
    """

    def __init__(
        self, dtype: torch.dtype, shape: Sequence[int], chunks: list[_Chunk]
    ) -> None:
        self.dtype = dtype
        self.shape: tuple[int, ...] = tuple(shape)
        self.chunks = chunks

    @property
    def num_bytes(self) -> int:
        """The number of bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Read some rows."""
        box: Box = (
            (start, *[0] * (len(self.shape) - 1)),
            (stop - start, *self.shape[1:]),
        )
        rows = torch.empty(box[1], dtype=self.dtype)
        for chunk in self.chunks:
            common = intersection(box, chunk.box)
            if common is None:
                continue
            first = common[0][0] - chunk.box[0][0]
            target = rows
            for dim, (begin, size) in enumerate(zip(*common, strict=True)):
                target = target.narrow(dim, begin - box[0][dim], size)
            target.copy_(chunk.rows(first, first + common[1][0]))
        return rows

    def whole(self) -> torch.Tensor:
        """Read the whole tensor."""
        if not self.shape:
            return self.chunks[0].rows(0, 1)
        return self.rows(0, self.shape[0])

    def pieces(self) -> Iterator[torch.Tensor]:
        """Yield the rows, at most ``PIECE_BYTES`` at a time."""
        if not self.shape or not math.prod(self.shape):
            yield self.whole()
            return
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        step = max(1, PIECE_BYTES // row)
        for start in range(0, self.shape[0], step):
            yield self.rows(start, min(start + step, self.shape[0]))


class DirectoryTensors(LazyTensors):
    """Placeholders on ``meta`` for the tensors of a directory, which are read on demand."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, tuple[torch.Tensor, _StoredTensor]] = {}

    def add(self, stored: _StoredTensor) -> torch.Tensor:
        """Return a placeholder for a tensor of the directory."""
        placeholder = torch.empty(stored.shape, dtype=stored.dtype, device="meta")
        # Views share the storage of the placeholder, so they are found as well.
        self._found[placeholder.untyped_storage()._cdata] = placeholder, stored
        return placeholder

    def _stored_for(self, tensor: torch.Tensor) -> _StoredTensor | None:
        if not tensor.is_meta:
            return None
        entry = self._found.get(tensor.untyped_storage()._cdata)
        return None if entry is None else entry[1]

    def read(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values of placeholders; other tensors are returned as they are."""
        values = []
        for tensor in tensors:
            stored = self._stored_for(tensor)
            values.append(tensor if stored is None else stored.whole())
        return values

    def written(self, tensor: Any) -> Any:
        """Return a tensor in the form for file writers: a placeholder is read in pieces."""
        stored = self._stored_for(tensor) if isinstance(tensor, torch.Tensor) else None
        return tensor if stored is None else Pieced(tensor, stored.pieces)


# States -------------------------------------------------------------------------------


def open_directory(path: str | Path) -> tuple[dict[str, Any], DirectoryTensors]:
    """Open a directory: return its states, nested as they were saved, with tensors unread.

    Raises:
        RuntimeError: a pickle contains more than tensors and plain data.
    """
    path = Path(local(path))
    try:
        with (path / DCP_METADATA).open("rb") as file:
            return _opened(path, _MetadataReader(file).load())
    except pickle.UnpicklingError as error:
        raise RuntimeError(f"'{path / DCP_METADATA}' is refused: {error}.") from None
    except OSError:
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and str(path) in str(error):
            raise
        # Unpickling changed bytes raises errors of many types.
        text = MSG_METADATA.format(path / DCP_METADATA, type(error).__name__, error)
        raise RuntimeError(text) from error


def _opened(path: Path, metadata: Metadata) -> tuple[dict[str, Any], DirectoryTensors]:
    """Return the states that the metadata of a directory describe, with tensors unread.

    Raises:
        RuntimeError: the chunks of a tensor do not cover it.
    """
    tensors = DirectoryTensors()
    found: dict[str, Any] = {}
    places = metadata.storage_data
    for name, tensor_metadata in metadata.state_dict_metadata.items():
        if isinstance(tensor_metadata, TensorStorageMetadata):
            chunks = [
                _Chunk(
                    path,
                    places[MetadataIndex(name, chunk.offsets, number)],
                    name,
                    (tuple(chunk.offsets), tuple(chunk.sizes)),
                )
                for number, chunk in enumerate(tensor_metadata.chunks)
            ]
            stored = _StoredTensor(
                tensor_metadata.properties.dtype, tensor_metadata.size, chunks
            )
            if sum(math.prod(chunk.box[1]) for chunk in chunks) < math.prod(
                tensor_metadata.size
            ):
                text = MSG_GAPS.format(
                    path / DCP_METADATA, name, list(tensor_metadata.size)
                )
                raise RuntimeError(text)
            is_small = stored.num_bytes <= SMALL_BYTES
            found[name] = stored.whole() if is_small else tensors.add(stored)
        else:
            found[name] = _value(path, places[MetadataIndex(name)])
    return _unflattened(found, metadata.planner_data or {}), tensors


def read_directory(path: str | Path) -> dict[str, Any]:
    """Read a directory of ``torch.distributed.checkpoint`` into memory.

    Args:
        path: the directory.

    Returns:
        The states, nested as they were saved.

    Raises:
        RuntimeError: a pickle contains more than tensors and plain data.
    """
    state, tensors = open_directory(path)
    return _read_all(state, tensors)


def _read_all(value: Any, tensors: DirectoryTensors) -> Any:
    if isinstance(value, torch.Tensor):
        return tensors.read([value])[0]
    if isinstance(value, dict):
        return {key: _read_all(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_read_all(item, tensors) for item in value]
    return value


def _value(path: Path, info: _StorageInfo) -> Any:
    """Read a value that is not a tensor."""
    place = _path_of(path, info)
    with place.open("rb") as file:
        file.seek(info.offset)
        content = file.read(info.length)
    if len(content) < info.length:
        raise RuntimeError(MSG_SHORT.format(place, info.length, info.offset))
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise RuntimeError(f"'{place}' is refused: {text}") from error


def _unflattened(flat: dict[str, Any], paths: dict[str, Any]) -> dict[str, Any]:
    """Return the values, nested by the paths of their names; lists become lists again."""
    root: dict[Any, Any] = {}
    for name, value in flat.items():
        *parents, last = paths.get(name, (name,))
        level = root
        for parent in parents:
            level = level.setdefault(parent, {})
        level[last] = value
    nested: dict[str, Any] = _with_lists(root)
    return nested


def _with_lists(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    converted = {key: _with_lists(item) for key, item in value.items()}
    if {"state", "param_groups"} <= value.keys():
        # An optimizer's state has integer keys, which are strings in the paths.
        converted["state"] = {
            int(key) if str(key).isdecimal() else key: _with_lists(item)
            for key, item in value["state"].items()
        }
    if converted and list(converted) == list(range(len(converted))):
        return list(converted.values())
    return converted
