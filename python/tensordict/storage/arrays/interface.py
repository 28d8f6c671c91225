"""The interface of a file of arrays, and of a group and an array in it."""

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

# The attributes by which files say what an array or a group was. The first four are
# those of tensordict 0.15, which does not read the others.
METADATA = "__tensordict__"
"""On a group: batch size and names."""
STACK = "__tensordict_stack__"
"""On values that are no tensors: the shape of the stack of them."""
TEXT = "__tensordict_str__"
"""On one text in HDF5."""
ENCODING = "__tensordict_non_tensor__"
"""On a value that is no array: whether it is JSON or a pickle."""
NUMBER = "__tensordict_type__"
"""On a value that is stored as an array: what it was."""
DTYPE = "__tensordict_dtype__"
"""On a tensor whose dtype the file does not have: what it was."""
KIND = "__tensordict_{}__"
"""On a special entry, with the name of its kind."""

WIDER = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
"""The dtypes, without a loss, in place of those that files do not have."""

MSG_KEY = (
    "The key {!r} cannot be the name of an array or group in {}: it is empty, '.' or "
    "'..', or has a '/' or a NUL in it, which is what separates names there. Rename the "
    "entry first."
)
MSG_DTYPE = (
    "The entry {!r} has the dtype {}, which {} does not have. Cast it first, for example "
    "with .to(torch.float32), or save the collection with memmap."
)
MSG_LAYOUT = (
    "The entry {!r} is a {}, which is not stored in {}. Make it an ordinary, dense tensor "
    "first, or save the collection with memmap."
)
MSG_GRAD = (
    "Cannot set a tensor that has requires_grad=True. The entry {!r} does, and a file keeps "
    "no history: give .detach() of it, or of the whole collection."
)
MSG_READ_ONLY = (
    "Cannot write {!r}: the file {} is open for reading only (mode {!r}). Open it with "
    "mode='r+' to change it."
)
MSG_CLOSED = "The file {} is closed: open it again to use its entries."


class Content(NamedTuple):
    """The content of an array, and what is noted beside it."""

    data: Any
    """An array of NumPy, or a text."""
    attributes: dict[str, Any]
    is_value: bool = False
    """True where it is no tensor."""


class Array(abc.ABC):
    """One array in a file."""

    attributes: dict[str, Any]
    """The notes beside it, of the names above."""
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """The dtype of a tensor of it; None where there is none."""
    is_value: bool
    """True where it holds no tensor."""

    @property
    def kind(self) -> EntryKind | None:
        """The kind of the special entry that it holds; None for any other."""
        return kind_marked(self.attributes, KIND)

    @abc.abstractmethod
    def read(self, selection: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """The part at a slice for each dim, all of step one or more; as it is stored."""

    @abc.abstractmethod
    def read_rows(
        self, rows: np.ndarray[Any, Any], rest: tuple[slice, ...]
    ) -> np.ndarray[Any, Any]:
        """The rows at positions of the first dim, which increase."""

    @abc.abstractmethod
    def write(self, selection: object, data: np.ndarray[Any, Any]) -> None:
        """Write into the part at a slice for each dim, or all of it at an ellipsis."""


class Group(abc.ABC):
    """One group in a file: names, and what is there."""

    file: ArrayFile
    path: str
    """The names that lead to it, joined by slashes; empty for the root."""
    handle: Any
    """The object of the library."""

    _found: dict[str, Array | Group]
    _found_at: int = -1

    @property
    def known(self) -> dict[str, Any]:
        """The arrays and groups that were found in this one, by name.

        Each of them holds the file, which holds none of them: there is no cycle, and a
        file that nobody uses any more is closed at once.
        """
        if self._found_at != self.file.changes:
            self._found_at, self._found = self.file.changes, {}
        return self._found

    @abc.abstractmethod
    def names(self) -> list[str]:
        """The names, in order."""

    @abc.abstractmethod
    def group(self, key: str) -> Group | None:
        """The group of a name; None where there is none."""

    @abc.abstractmethod
    def array(self, key: str) -> Array | None:
        """The array of a name; None where there is none."""

    @abc.abstractmethod
    def create_group(self, key: str, metadata: dict[str, Any]) -> Group:
        """Make a group that notes ``metadata``."""

    @abc.abstractmethod
    def create(self, key: str, content: Content, options: dict[str, Any]) -> None:
        """Make an array. ``options`` are those of the library."""

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Remove what has a name."""

    @abc.abstractmethod
    def move(self, old: str, target: Group, new: str) -> None:
        """Rename what has the name ``old``: it is ``new`` in ``target`` from then on."""

    @abc.abstractmethod
    def metadata(self) -> Any:
        """Read what :data:`METADATA` notes; None where there is nothing."""

    @abc.abstractmethod
    def note(self, metadata: dict[str, Any]) -> None:
        """Set :data:`METADATA`."""


class ArrayFile(abc.ABC):
    """An open file."""

    backend: ClassVar[str]
    kind: ClassVar[str]
    """The name of its format."""

    handle: Any
    """The object of the library."""
    filename: Any
    """Its path, or the store that was given; None for what was given open."""
    mode: str
    allow_pickle: bool | None = None
    """True to read pickles, False to refuse them; None reads them with a warning."""
    is_own: bool = True
    """True where it was opened here, and is closed with what uses it."""
    changes: int = 0
    """The number of times that what groups know of their names became invalid."""

    def note_change(self) -> None:
        """Note that what groups know of their names is invalid."""
        self.changes += 1

    @classmethod
    @abc.abstractmethod
    def open(cls, filename: object, mode: str, options: dict[str, Any]) -> Self:
        """Open a file; every error of this names it.

        Raises:
            FileNotFoundError: there is none.
            OSError: it is no file of this kind, is cut, or is open elsewhere.
        """

    @classmethod
    @abc.abstractmethod
    def of_open(cls, handle: object) -> Self:
        """Wrap a file that was opened by somebody else, who closes it."""

    @property
    @abc.abstractmethod
    def root(self) -> Group:
        """The group that holds everything in the file."""

    @property
    @abc.abstractmethod
    def is_open(self) -> bool:
        """Tell whether entries can be read."""

    @property
    @abc.abstractmethod
    def is_writable(self) -> bool:
        """Tell whether entries can be changed."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the file in errors."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Write what is not written yet."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close it; again does nothing."""

    @classmethod
    @abc.abstractmethod
    def encode(cls, key: str, value: object) -> Content:
        """Encode a value that is no tensor as the content of an array.

        Raises:
            TypeError: the format cannot hold it.
        """

    @abc.abstractmethod
    def decode(self, key: str, array: Array, rows: slice | None = None) -> Any:
        """Give the value that an array holds, or the stack of those that it holds.

        ``rows`` are those to read of a stack whose values the array has one by one.
        """

    @classmethod
    @abc.abstractmethod
    def create(
        cls, filename: str | os.PathLike[str], metadata: dict[str, Any], fill: Any
    ) -> None:
        """Write a file that ``fill(root)`` fills in place of what is there, or nothing.

        Its root notes ``metadata``.

        A call that fails leaves what was there.
        """

    def check_open(self) -> None:
        """Raise where the file is closed.

        Raises:
            ValueError: it is.
        """
        if not self.is_open:
            raise ValueError(MSG_CLOSED.format(self.name))

    def check_writable(self, key: object) -> None:
        """Raise where nothing can be written at ``key``.

        Raises:
            io.UnsupportedOperation: the file is open for reading; it is an OSError and a
                ValueError.
            ValueError: it is closed.
        """
        self.check_open()
        if not self.is_writable:
            raise io.UnsupportedOperation(
                MSG_READ_ONLY.format(key, self.name, self.mode)
            )


def is_name(key: str) -> bool:
    """Tell whether a key can be a name in a file."""
    return key not in {"", ".", ".."} and "/" not in key and "\0" not in key


def check_key(key: str, kind: str) -> None:
    """Raise where ``key`` cannot be a name in a file.

    Raises:
        ValueError: it cannot.
    """
    if not is_name(key):
        raise ValueError(MSG_KEY.format(key, kind))


_DTYPES: dict[np.dtype[Any], torch.dtype | None] = {}


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    """The dtype of a tensor of numbers like those of an array; None where there is none."""
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
    """Give the content of the array of a tensor.

    Raises:
        RuntimeError: it requires grad.
        TypeError: files have no such dtype or layout.
    """
    if value.requires_grad:
        raise RuntimeError(MSG_GRAD.format(key))
    if not special.is_strided(value):
        is_ragged = special.rows(value) is not None
        what = "nested tensor" if is_ragged else f"tensor of {value.layout}"
        raise TypeError(MSG_LAYOUT.format(key, what, kind))
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
    """The dtype of the tensor of an array that may note another one than it has."""
    noted = attributes.get(DTYPE)
    found = getattr(torch, noted, None) if isinstance(noted, str) else None
    return found if found in WIDER and WIDER[found] is dtype else dtype


def leading_chunks(chunks: object, shape: Sequence[int]) -> Any:
    """The sizes of chunks that are given for the leading dims, for all dims of an array."""
    if isinstance(chunks, int) and not isinstance(chunks, bool):
        chunks = (chunks,)
    if not isinstance(chunks, (tuple, list)):
        return chunks
    ends = [*chunks[: len(shape)], *shape[len(chunks) :]]
    return tuple(max(1, min(end, size)) for end, size in zip(ends, shape, strict=True))


def runs_of(rows: np.ndarray[Any, Any]) -> Iterable[tuple[int, int]]:
    """The runs of neighbours among positions that increase: where each starts and ends."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = [0, *breaks.tolist()]
    return zip(starts, [*starts[1:], len(rows)], strict=True)
