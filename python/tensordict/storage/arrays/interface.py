"""The interface of files of arrays, of their groups and of their arrays."""

from __future__ import annotations

import abc
import io
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch

from tensordict.primitives import special
from tensordict.primitives.special import EntryKind, kind_marked

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

__all__ = [
    "DTYPE",
    "ENCODING",
    "KIND",
    "METADATA",
    "NUMBER",
    "STACK",
    "TEXT",
    "Array",
    "ArrayFile",
    "Content",
    "Group",
    "check_key",
    "is_name",
    "known_dtype",
    "leading_chunks",
    "numpy_of",
    "runs_of",
    "torch_dtype",
]

# The attributes of arrays and groups in a file. tensordict 0.15 reads and writes the first four
# only.
METADATA = "__tensordict__"
"""On a group: batch size and names."""
STACK = "__tensordict_stack__"
"""On non-tensor data: the shape of the stack of values."""
TEXT = "__tensordict_str__"
"""On a single string in HDF5."""
ENCODING = "__tensordict_non_tensor__"
"""On encoded non-tensor data: whether it is JSON or a pickle."""
NUMBER = "__tensordict_type__"
"""On non-tensor data that is stored as an array: the type of the value."""
DTYPE = "__tensordict_dtype__"
"""On a tensor whose dtype the format lacks: the dtype of the tensor."""
KIND = "__tensordict_{}__"
"""On a special entry, with the name of its kind."""

WIDER = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
"""For each dtype that the formats lack, a dtype that holds its values without loss."""

MSG_KEY = (
    "The key {!r} cannot be the name of an array or group in {}: a name must not be empty, "
    "'.' or '..', and must not contain '/' or NUL. Rename the entry first."
)
MSG_DTYPE = (
    "The entry {!r} has the dtype {}, which {} cannot store. Cast it first, for example "
    "with .to(torch.float32), or save the tensordict with memmap."
)
MSG_LAYOUT = (
    "The entry {!r} is a {}, which {} cannot store. Make it an ordinary, dense tensor "
    "first, or save the tensordict with memmap."
)
MSG_GRAD = (
    "Cannot set a tensor that has requires_grad=True. The entry {!r} requires grad, but a "
    "file stores no gradients: pass .detach() of the entry, or of the whole tensordict."
)
MSG_READ_ONLY = (
    "Cannot write {!r}: the file {} is open for reading only (mode {!r}). Open it with "
    "mode='r+' to change it."
)
MSG_CLOSED = "The file {} is closed: open it again to use its entries."


class Content(NamedTuple):
    """The content of an array, and its attributes."""

    data: Any
    """A NumPy array, or a string."""
    attributes: dict[str, Any]
    is_value: bool = False
    """Whether the content is non-tensor data."""


class Array(abc.ABC):
    """One array in a file."""

    attributes: dict[str, Any]
    """The attributes, under the names above."""
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """The dtype of the tensor; None for non-tensor data."""
    is_value: bool
    """Whether the array holds non-tensor data."""

    @property
    def kind(self) -> EntryKind | None:
        """The kind of a special entry; None for other entries."""
        return kind_marked(self.attributes, KIND)

    @abc.abstractmethod
    def read(self, selection: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Return the part at a slice for each dimension, in the stored dtype.

        All steps are positive.
        """

    @abc.abstractmethod
    def read_rows(
        self, rows: np.ndarray[Any, Any], rest: tuple[slice, ...]
    ) -> np.ndarray[Any, Any]:
        """Return the rows at increasing positions of the first dimension."""

    @abc.abstractmethod
    def write(self, selection: object, data: np.ndarray[Any, Any]) -> None:
        """Write the part at a slice for each dimension, or the whole array at an ellipsis."""


class Group(abc.ABC):
    """One group in a file: arrays and groups by their names."""

    file: ArrayFile
    path: str
    """The names that lead to the group, joined by slashes; empty for the root."""
    handle: Any
    """The group object of the library."""

    _cached: dict[str, Array | Group]
    _cached_at: int = -1

    @property
    def cache(self) -> dict[str, Any]:
        """A cache of the arrays and groups in this group, by name.

        They reference the file, and the file references none of them. Without a cycle, a
        file is closed as soon as its last user is gone.
        """
        if self._cached_at != self.file.changes:
            self._cached_at, self._cached = self.file.changes, {}
        return self._cached

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Return the names, in order."""

    @abc.abstractmethod
    def group(self, key: str) -> Group | None:
        """Return the group of a name; None if there is none."""

    @abc.abstractmethod
    def array(self, key: str) -> Array | None:
        """Return the array of a name; None if there is none."""

    @abc.abstractmethod
    def create_group(self, key: str, metadata: dict[str, Any]) -> Group:
        """Create a group with ``metadata`` as its :data:`METADATA`."""

    @abc.abstractmethod
    def create(self, key: str, content: Content, options: dict[str, Any]) -> None:
        """Create an array. ``options`` are arguments of the library's function."""

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Delete the array or group of a name."""

    @abc.abstractmethod
    def move(self, old: str, target: Group, new: str) -> None:
        """Move the array or group of the name ``old`` to ``target``, under the name ``new``."""

    @abc.abstractmethod
    def metadata(self) -> Any:
        """Return the :data:`METADATA` of the group; None if it has none."""

    @abc.abstractmethod
    def note(self, metadata: dict[str, Any]) -> None:
        """Set the :data:`METADATA` of the group."""


class ArrayFile(abc.ABC):
    """An open file."""

    backend: ClassVar[str]
    kind: ClassVar[str]
    """The name of its format."""

    handle: Any
    """The file object of the library."""
    filename: Any
    """The path, or the store that the caller has passed."""
    mode: str
    allow_pickle: bool | None = None
    """True reads pickles, False refuses them, None reads them with a warning."""
    is_own: bool = True
    """Whether this package has opened the file, and closes it with its last user."""
    changes: int = 0
    """The number of changes that have invalidated the caches of groups."""

    def note_change(self) -> None:
        """Invalidate the caches of all groups."""
        self.changes += 1

    @classmethod
    @abc.abstractmethod
    def open(cls, filename: object, mode: str, options: dict[str, Any]) -> Self:
        """Open a file. Every error names the file.

        Raises:
            FileNotFoundError: the file does not exist.
            OSError: the file has another format, is truncated, or is open elsewhere.
        """

    @classmethod
    @abc.abstractmethod
    def of_open(cls, handle: object) -> Self:
        """Wrap a file that the caller has opened, and closes."""

    @property
    @abc.abstractmethod
    def root(self) -> Group:
        """The root group of the file."""

    @property
    @abc.abstractmethod
    def is_open(self) -> bool:
        """Whether entries can be read."""

    @property
    @abc.abstractmethod
    def is_writable(self) -> bool:
        """Whether entries can be changed."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the file in errors."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Write everything that is not written yet."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the file. Closing it again does nothing."""

    @classmethod
    @abc.abstractmethod
    def encode(cls, key: str, value: object) -> Content:
        """Encode non-tensor data as the content of an array.

        Raises:
            TypeError: the format cannot hold the value.
        """

    @abc.abstractmethod
    def decode(self, key: str, array: Array, rows: slice | None = None) -> Any:
        """Return the value that an array holds, or the :class:`Stack` of its values.

        ``rows`` selects rows of a stack, if the array holds one element for each value.
        """

    @classmethod
    @abc.abstractmethod
    def create(
        cls, filename: str | os.PathLike[str], metadata: dict[str, Any], fill: Any
    ) -> None:
        """Create a file that ``fill(root)`` fills, and replace an existing file with it.

        The root gets ``metadata``. A call that fails leaves the existing file unchanged.
        """

    def check_open(self) -> None:
        """Raise if the file is closed.

        Raises:
            ValueError: the file is closed.
        """
        if not self.is_open:
            raise ValueError(MSG_CLOSED.format(self.name))

    def check_writable(self, key: object) -> None:
        """Raise if the file cannot be written to.

        Raises:
            io.UnsupportedOperation: the file is open for reading. This error is both an
                OSError and a ValueError.
            ValueError: the file is closed.
        """
        self.check_open()
        if not self.is_writable:
            raise io.UnsupportedOperation(
                MSG_READ_ONLY.format(key, self.name, self.mode)
            )


def is_name(key: str) -> bool:
    """Return whether a key can be a name in a file."""
    return key not in {"", ".", ".."} and "/" not in key and "\0" not in key


def check_key(key: str, kind: str) -> None:
    """Raise if ``key`` cannot be a name in a file.

    Raises:
        ValueError: it cannot.
    """
    if not is_name(key):
        raise ValueError(MSG_KEY.format(key, kind))


_DTYPES: dict[np.dtype[Any], torch.dtype | None] = {}


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    """Return the dtype of torch for a dtype of NumPy; None if torch has none."""
    dtype = dtype.newbyteorder("=")
    if dtype not in _DTYPES:
        found = None
        if dtype.kind in "biufc":
            try:
                found = torch.from_numpy(np.empty(0, dtype)).dtype
            except TypeError:
                found = None
        _DTYPES[dtype] = found
    return _DTYPES[dtype]


def numpy_of(key: object, value: torch.Tensor, kind: str) -> Content:
    """Return the content of an array for a tensor.

    Raises:
        RuntimeError: the tensor requires grad.
        TypeError: the format cannot store the dtype or the layout.
    """
    if value.requires_grad:
        raise RuntimeError(MSG_GRAD.format(key))
    if not special.is_strided(value):
        is_ragged = special.rows(value) is not None
        found = "nested tensor" if is_ragged else f"tensor of {value.layout}"
        raise TypeError(MSG_LAYOUT.format(key, found, kind))
    attributes: dict[str, Any] = {}
    dtype = value.dtype
    wider = WIDER.get(dtype)
    if wider is not None:
        attributes[DTYPE] = str(dtype).removeprefix("torch.")
    plain = value.as_subclass(torch.Tensor).detach().to(device="cpu", dtype=wider)
    plain = plain.resolve_conj().resolve_neg()
    try:
        data = plain.numpy()
    except (RuntimeError, TypeError):
        raise TypeError(MSG_DTYPE.format(key, dtype, kind)) from None
    return Content(data, attributes)


def known_dtype(attributes: dict[str, Any], dtype: torch.dtype | None) -> Any:
    """Return the dtype of an array's tensor: :data:`DTYPE` if it is set, else the stored dtype."""
    noted = attributes.get(DTYPE)
    found = getattr(torch, noted, None) if isinstance(noted, str) else None
    return found if found in WIDER and WIDER[found] is dtype else dtype


def leading_chunks(chunks: object, shape: Sequence[int]) -> Any:
    """Extend chunk sizes for the leading dimensions to all dimensions of an array."""
    if isinstance(chunks, int) and not isinstance(chunks, bool):
        chunks = (chunks,)
    if not isinstance(chunks, (tuple, list)):
        return chunks
    ends = [*chunks[: len(shape)], *shape[len(chunks) :]]
    return tuple(max(1, min(end, size)) for end, size in zip(ends, shape, strict=True))


def runs_of(rows: np.ndarray[Any, Any]) -> Iterable[tuple[int, int]]:
    """Return the start and the end of each run of neighbours among increasing positions."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = [0, *breaks.tolist()]
    return zip(starts, [*starts[1:], len(rows)], strict=True)
