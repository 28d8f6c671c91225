"""HDF5 files, read and written with h5py."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tensordict.storage.arrays.interface import (
    ENCODING,
    METADATA,
    NUMBER,
    STACK,
    TEXT,
    Array,
    ArrayFile,
    Content,
    Group,
    check_key,
    is_name,
    known_dtype,
    leading_chunks,
    runs_of,
    torch_dtype,
)
from tensordict.storage.arrays.values import (
    Stack,
    as_json,
    object_array,
    of_json,
    uniform_type,
)
from tensordict.storage.locations import local

try:
    import h5py
except ImportError as _missing:
    _MESSAGE = (
        "HDF5 files need h5py, which is not installed: "
        "pip install 'tensordict-rs[h5]', or pip install h5py."
    )
    raise ImportError(_MESSAGE) from _missing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

__all__ = ["Hdf5File"]

MSG_OPEN = "Cannot open {} as an HDF5 file with mode {!r}: {}."
MSG_VALUE = (
    "Cannot write the entry {!r} to HDF5: a value of type {} is neither an array of numbers, "
    "a number, text or bytes, nor can JSON hold it exactly. Write it to Zarr, or save the "
    "tensordict with memmap."
)
MSG_READ = "Cannot read {!r} of {}: {}."
MODES = ("r", "r+", "w", "w-", "x", "a")
MSG_MODE = "Invalid mode {!r}; must be one of {}"

# Types of numbers by their names. A scalar of NumPy is converted back with them.
NUMBERS: dict[str, Any] = {"bool": bool, "int": int, "float": float, "complex": complex}
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple}
OF_SCALARS = ("chunks", "compression", "compression_opts", "fletcher32", "maxshape",
              "scaleoffset", "shuffle")  # fmt: skip
"""Options that h5py refuses for arrays without dimensions."""


class Hdf5Array(Array):
    """A dataset."""

    def __init__(self, dataset: h5py.Dataset, file: Hdf5File) -> None:
        self.dataset = dataset
        self.file = file
        self.attributes: dict[str, Any] = dict(dataset.attrs)
        self.address: int = h5py.h5o.get_info(dataset.id).addr
        # No process can resize the dataset while this one has it open for reading.
        self._shape = None if file.is_writable else self._shape_now()
        self.stored: np.dtype[Any] = dataset.dtype
        opaque = h5py.check_opaque_dtype(self.stored)
        self.is_opaque = opaque
        self.is_value: bool = (
            opaque
            or STACK in self.attributes
            or TEXT in self.attributes
            or ENCODING in self.attributes
            or torch_dtype(self.stored) is None
            or dataset.shape is None
        )
        self.dtype: torch.dtype | None = (
            None
            if self.is_value
            else known_dtype(self.attributes, torch_dtype(self.stored))
        )

    def _shape_now(self) -> tuple[int, ...]:
        # The shape of an HDF5 dataset without data is None.
        return self.dataset.shape or ()

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self._shape_now() if self._shape is None else self._shape

    def read(self, selection: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        try:
            data: Any = self.dataset[selection]
        except (OSError, RuntimeError) as error:
            name = self.dataset.name if self.dataset else "an array"
            raise OSError(MSG_READ.format(name, self.file.name, error)) from error
        return _native(np.asarray(data))

    def read_rows(
        self, rows: np.ndarray[Any, Any], rest: tuple[slice, ...]
    ) -> np.ndarray[Any, Any]:
        # HDF5 reads lists of positions many times slower than slices.
        parts = [
            self.read((slice(int(rows[start]), int(rows[end - 1]) + 1), *rest))
            for start, end in runs_of(rows)
            if end > start
        ]
        if not parts:
            return self.read((slice(0, 0), *rest))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def write(self, selection: object, data: np.ndarray[Any, Any]) -> None:
        self.dataset[selection] = data


class Hdf5Group(Group):
    """A group."""

    def __init__(self, group: h5py.Group, file: Hdf5File) -> None:
        self.handle = group
        self.file: ArrayFile = file
        self.path = (group.name or "").strip("/")
        self.address: int = h5py.h5o.get_info(group.id).addr
        self._keys: list[str] | None = None

    def _get(self, key: str) -> Hdf5Array | Hdf5Group | None:
        file = self._file
        file.check_open()
        cached = self.cache.get(key)
        if cached is not None and (not file.may_write or self._is_there(key, cached)):
            return cached
        if not is_name(key):
            return None
        # A link whose target is missing counts as no entry.
        found = self.handle.get(key)
        item: Hdf5Array | Hdf5Group
        if isinstance(found, h5py.Dataset):
            item = Hdf5Array(found, file)
        elif isinstance(found, h5py.Group):
            item = Hdf5Group(found, file)
        else:
            return None
        self.cache[key] = item
        return item

    def _is_there(self, key: str, cached: Hdf5Array | Hdf5Group) -> bool:
        """Return whether a cached array or group still has this name."""
        try:
            info = h5py.h5o.get_info(self.handle.id, key.encode())
        except (KeyError, RuntimeError):
            return False
        return info.addr == cached.address

    def names(self) -> list[str]:
        self.file.check_open()
        if self._file.may_write:
            return list(self.handle)
        if self._keys is None:
            self._keys = list(self.handle)
        return list(self._keys)

    def group(self, key: str) -> Group | None:
        found = self._get(key)
        return found if isinstance(found, Hdf5Group) else None

    @property
    def _file(self) -> Hdf5File:
        file: Any = self.file
        return file

    def array(self, key: str) -> Array | None:
        found = self._get(key)
        return found if isinstance(found, Hdf5Array) else None

    def create_group(self, key: str, metadata: dict[str, Any]) -> Group:
        self._check(key)
        group = Hdf5Group(self.handle.create_group(key), self._file)
        group.note(metadata)
        return group

    def create(self, key: str, content: Content, options: dict[str, Any]) -> None:
        self._check(key)
        data, shape = content.data, np.shape(content.data)
        options = dict(options)
        if content.is_value or not shape:
            options = {
                name: value for name, value in options.items() if name not in OF_SCALARS
            }
        elif "chunks" in options:
            options["chunks"] = leading_chunks(options["chunks"], shape)
        if content.is_value and isinstance(data, np.ndarray) and data.dtype != object:
            if data.dtype.kind not in "SV":
                options["dtype"] = h5py.opaque_dtype(data.dtype)
                data = data.astype(options["dtype"])
        elif isinstance(data, np.ndarray) and data.dtype == object:
            options["dtype"] = h5py.string_dtype()
        try:
            dataset = self.handle.create_dataset(key, data=data, **options)
            for name, value in content.attributes.items():
                dataset.attrs[name] = value
        except BaseException:
            with contextlib.suppress(KeyError):
                del self.handle[key]
            raise

    def _check(self, key: str) -> None:
        check_key(key, self.file.kind)
        self.file.check_writable(key)

    def delete(self, key: str) -> None:
        self.file.check_writable(key)
        self.file.note_change()
        del self.handle[key]

    def move(self, old: str, target: Group, new: str) -> None:
        check_key(new, self.file.kind)
        self.file.check_writable(old)
        self.file.note_change()
        target_group: Any = target
        self.handle.file.move(
            f"{self.handle.name}/{old}", f"{target_group.handle.name}/{new}"
        )

    def metadata(self) -> Any:
        found = self.handle.attrs.get(METADATA)
        if not isinstance(found, (str, bytes)):
            return None
        try:
            return json.loads(found)
        except ValueError:
            return None

    def note(self, metadata: dict[str, Any]) -> None:
        self.file.check_writable(self.path or "/")
        self.handle.attrs[METADATA] = json.dumps(metadata)


class Hdf5File(ArrayFile):
    """An HDF5 file."""

    backend = "h5"
    kind = "HDF5"

    def __init__(self, handle: Any, filename: Any, mode: str) -> None:
        self.handle = handle
        self.filename = filename
        self.mode = mode
        # If a process opens a file twice, h5py reports both as writable.
        self.may_write = mode != "r" and handle.file.mode == "r+"

    @classmethod
    def open(cls, filename: Any, mode: str, options: dict[str, Any]) -> Self:
        """Open a file. See :meth:`ArrayFile.open`."""
        if mode not in MODES:
            raise ValueError(MSG_MODE.format(mode, ", ".join(MODES)))
        return cls(_opened(filename, mode), filename, mode)

    @classmethod
    def of_open(cls, handle: Any) -> Self:
        """Wrap a file that the caller has opened."""
        file = cls(handle, handle.file.filename, handle.file.mode)
        file.is_own = False
        return file

    @property
    def root(self) -> Group:
        """The root group of the file."""
        return Hdf5Group(self.handle, self)

    @property
    def is_open(self) -> bool:
        """Whether entries can be read."""
        return bool(self.handle)

    @property
    def is_writable(self) -> bool:
        """Whether entries can be changed."""
        return self.may_write and self.is_open

    @property
    def name(self) -> str:
        """The name of the file in errors."""
        return repr(str(self.filename))

    def flush(self) -> None:
        """Write everything that is not written yet."""
        if self.is_writable:
            self.handle.file.flush()

    def close(self) -> None:
        """Close the file. Closing it again does nothing."""
        if self.is_open:
            self.handle.file.close()

    @classmethod
    def encode(cls, key: str, value: Any) -> Content:
        """Encode a value for its array. See :meth:`ArrayFile.encode`."""
        if isinstance(value, Stack):
            return _encoded_stack(key, value)
        kind = type(value)
        if kind is str and _is_plain_text(value):
            return Content(value, {TEXT: True}, is_value=True)
        if kind in NUMBERS.values():
            array = np.asarray(value)
            if array.dtype.kind in "biufc" and array.dtype != np.uint64:
                return Content(array, {NUMBER: kind.__name__}, is_value=True)
        if kind is bytes:
            data = np.frombuffer(value, dtype=np.uint8)
            return Content(data, {NUMBER: "bytes"}, is_value=True)
        is_array = isinstance(value, (np.ndarray, np.generic))
        if is_array and value.dtype.kind in "biufcU":
            note = "ndarray" if isinstance(value, np.ndarray) else "generic"
            return Content(np.asarray(value), {NUMBER: note}, is_value=True)
        notes = {NUMBER: kind.__name__} if kind in SEQUENCES.values() else {}
        if notes and uniform_type(list(value)) in (bool, int, float):
            array = np.asarray(value)
            if array.dtype.kind in "bif":
                return Content(array, notes, is_value=True)
        text = as_json(list(value) if kind is tuple else value)
        if text is None:
            raise TypeError(MSG_VALUE.format(key, kind.__name__))
        return Content(text, {**notes, ENCODING: _JSON}, is_value=True)

    def decode(self, key: str, array: Array, rows: slice | None = None) -> Any:
        """Return the value that an array holds. See :meth:`ArrayFile.decode`."""
        item: Any = array
        notes = item.attributes
        if item.dataset.shape is None:
            return None
        try:
            if ENCODING in notes:
                value = of_json(item.dataset[()])
                if STACK in notes:
                    return _stack_of(value, _shape(notes))
                return tuple(value) if notes.get(NUMBER) == "tuple" else value
            if h5py.check_string_dtype(item.stored) is not None:
                return self._text(item, rows)
            data = _native(item.read(() if rows is None else (rows,)))
        except (OSError, ValueError) as error:
            if isinstance(error, OSError):
                raise
            raise ValueError(MSG_READ.format(key, self.name, error)) from error
        if item.is_opaque:
            # The same dtype without the mark "opaque".
            data = data.astype(np.dtype(data.dtype.str))
        note = notes.get(NUMBER)
        if STACK in notes:
            shape = _shape(notes) if rows is None else data.shape
            return Stack(data.reshape(-1).tolist(), shape)
        if note in NUMBERS and data.shape == ():
            return NUMBERS[note](data[()])
        if note in SEQUENCES:
            return SEQUENCES[note](data.tolist())
        if note == "bytes":
            return data.tobytes()
        return data if note == "ndarray" else data[()]

    @staticmethod
    def _text(item: Hdf5Array, rows: slice | None) -> Any:
        notes = item.attributes
        if STACK in notes:
            is_bytes = item.stored.kind == "S"
            texts = item.dataset if is_bytes else item.dataset.asstr()
            data = texts[() if rows is None else rows]
            shape = _shape(notes) if rows is None else data.shape
            return Stack(data.reshape(-1).tolist(), shape)
        if TEXT in notes:
            return item.dataset.asstr()[()]
        data = item.dataset[()]
        return bytes(data) if isinstance(data, bytes) else data

    @classmethod
    def create(
        cls, filename: Any, metadata: dict[str, Any], fill: Callable[[Group], None]
    ) -> None:
        """Create a file. See :meth:`ArrayFile.create`."""
        target = Path(os.path.realpath(local(filename)))
        try:
            number, name = tempfile.mkstemp(
                prefix=f".{target.name}.", suffix=".tmp", dir=target.parent
            )
        except OSError as error:
            # The error names the path that the caller has passed.
            raise type(error)(error.errno, error.strerror, str(filename)) from None
        os.close(number)
        work = Path(name)
        try:
            file = cls(_opened(work, "w"), filename, "w")
            try:
                file.root.note(metadata)
                fill(file.root)
            finally:
                file.close()
            _take_permissions(work, target)
            work.replace(target)
        finally:
            work.unlink(missing_ok=True)


_JSON = json.dumps({"encoding": "json"})


def _take_permissions(work: Path, target: Path) -> None:
    """Give a new file the permissions of the file that it replaces, or the default ones."""
    try:
        mode = target.stat().st_mode & 0o7777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    work.chmod(mode)


def _opened(filename: Any, mode: str) -> h5py.File:
    """Open a file. An error names the file, and has the class of h5py's error."""
    try:
        return h5py.File(local(filename), mode)
    except OSError as error:
        message = MSG_OPEN.format(repr(str(filename)), mode, _why(error, filename))
        kind = FileExistsError if "file exists" in str(error) else type(error)
        if error.errno is None:
            raise kind(message) from error
        raise kind(error.errno, message) from error


def _why(error: OSError, filename: str | os.PathLike[str]) -> str:
    """Return the reason why a file cannot be opened."""
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return "the file does not exist"
    if "file exists" in text:
        return "the file exists already"
    if "unable to lock file" in text:
        return (
            "it is open elsewhere, and one of the two is open for writing; close it there, "
            "or open both with mode='r'"
        )
    if "already open" in text:
        return f"this process has opened it in another mode; close it first ({text})"
    if "truncated file" in text:
        return f"it was cut off: a part of it is missing ({text})"
    if "signature not found" in text:
        is_empty = not Path(filename).stat().st_size
        return "it is empty" if is_empty else "it is not an HDF5 file"
    return text


def _native(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array in the byte order of the machine."""
    return data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))


def _is_plain_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _shape(notes: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in np.atleast_1d(notes[STACK]))


def _stack_of(values: Sequence[Any], shape: tuple[int, ...]) -> Stack:
    for _ in shape[1:]:
        values = [item for row in values for item in row]
    return Stack(list(values), shape)


def _encoded_stack(key: str, stack: Stack) -> Content:
    values, shape = stack.values, stack.shape
    notes: dict[str, Any] = {STACK: np.asarray(shape, dtype=np.int64)}
    kind = uniform_type(values)
    if kind is str and all(map(_is_plain_text, values)):
        return Content(object_array(values, shape), notes, is_value=True)
    if kind is bytes and not any(
        value.endswith(b"\0") or not value for value in values
    ):
        return Content(np.asarray(values).reshape(shape), notes, is_value=True)
    if kind in (bool, int, float):
        array = np.asarray(values)
        if array.dtype.kind in "bif":
            notes[NUMBER] = kind.__name__
            return Content(array.reshape(shape), notes, is_value=True)
    text = as_json(stack.nested())
    if text is None:
        names = ", ".join(sorted({type(value).__name__ for value in values}))
        raise TypeError(MSG_VALUE.format(key, names))
    return Content(text, {**notes, ENCODING: _JSON}, is_value=True)
