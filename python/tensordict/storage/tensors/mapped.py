"""The tensor over a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch

from tensordict import _rust
from tensordict.primitives.arrays import as_tensor
from tensordict.primitives.deprecation import warn_caller
from tensordict.storage.leaves import nested_from_flat, nested_table
from tensordict.storage.tensors.create import (
    absolute,
    checked_dtype,
    file_of,
    fill,
    make_zeros,
    over_handler,
    parse_arguments,
    wrap,
    write,
    write_nested,
)
from tensordict.storage.tensors.view_index import one_index

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tensordict.primitives.protocol import BatchIndex
    from tensordict.storage.tensors.anonymous import FileHandler

__all__ = ["MemoryMappedTensor"]


class _ParentShape:
    """``_parent_shape`` of a tensor that is the whole of its file: its own shape.

    Views have an attribute of their own, which goes before this one.
    """

    def __get__(self, tensor: torch.Tensor | None, owner: object = None) -> Any:
        return self if tensor is None else tensor.shape


class MemoryMappedTensor(torch.Tensor):
    """A tensor on the CPU whose memory is a file, or is shared without a name.

    What is stored into it reaches the file, and other processes that map it. Only the
    pages that are touched are read, so a file may be larger than the memory. Pickling,
    and sending to another process, passes the name of the file and not the values; a
    pickle of memory that has no name holds the values.

    It is made by a class method: :meth:`from_tensor` writes a tensor,
    :meth:`from_filename` maps a file that exists, :meth:`empty`, :meth:`zeros`,
    :meth:`ones` and :meth:`full` make new ones. Without ``filename`` the memory has no
    name and is shared only with processes that it is sent to.

    Plain indexing, :meth:`unbind`, :meth:`split` and :meth:`chunk` give mapped tensors
    over the same file. All other operations give ordinary tensors.

    Args:
        source: a tensor, which is wrapped as it is, or written to ``filename``; a
            storage, see :meth:`from_storage`; or the name of a file, see
            :meth:`from_filename`.
        dtype: the dtype, where ``source`` is a storage or a file.
        shape: the shape, where ``source`` is a storage or a file.
        index: what to take of the result.
        device: None or the CPU.
        handler: internal.
        filename: where to write the tensor.

    Raises:
        ValueError: ``device`` is not the CPU.
        TypeError: ``dtype`` is given with a tensor, or missing with a file.

    Examples:
        >>> import tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "x.memmap")
        >>> x = MemoryMappedTensor.from_tensor(torch.arange(4.0), filename=path)
        >>> x[0] = 10.0
        >>> MemoryMappedTensor.from_filename(path, dtype=torch.float32, shape=(4,))
        MemoryMappedTensor([10.,  1.,  2.,  3.])
        >>> type(x[1:]).__name__, type(x + 1).__name__
        ('MemoryMappedTensor', 'Tensor')
    """

    # Defaults of what an instance may have in its dictionary. A tensor that is the
    # whole of its file has `_filename` only.
    _filename: str | None = None
    _handler: FileHandler | None = None
    _mode: str | None = None
    _index: Any = None
    _index_chain: tuple[Any, ...] = ()
    """The way in which a view was made: ``()`` or ``(chain of its source, index)``."""
    _parent_shape: Any = _ParentShape()

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def __new__(  # noqa: D102 (the class says it)
        cls,
        source: Any,
        *,
        dtype: torch.dtype | None = None,
        shape: Any = None,
        index: BatchIndex = None,
        device: torch.device | str | int | None = None,
        handler: FileHandler | None = None,
        filename: str | Path | None = None,
    ) -> Self:
        if device is not None and torch.device(device).type != "cpu":
            raise ValueError(f"{cls} device must be cpu!")
        if isinstance(source, str):
            if dtype is None or shape is None:
                raise TypeError("dtype and shape are required to map a file.")
            return cls.from_filename(source, dtype, shape, index)
        if isinstance(source, (torch.UntypedStorage, torch.TypedStorage)):
            return cls.from_storage(
                source,
                dtype=dtype,
                shape=shape,
                index=index,
                filename=filename,
                handler=handler,
            )
        if filename is not None:
            if dtype is not None:
                raise TypeError("Cannot pass new dtype if source is provided.")
            made = cls.from_tensor(source, filename=filename, shape=shape)
        else:
            if not isinstance(source, torch.Tensor):
                source = as_tensor(source)
            made = source.as_subclass(cls)
            if made.is_nested:
                made._parent_shape = nested_table(source)
        return made if index is None else made[index]  # type: ignore[return-value]

    def __init__(
        self,
        source: Any,
        *,
        handler: FileHandler | None = None,
        dtype: torch.dtype | None = None,
        shape: Any = None,
        index: Any = None,
        device: Any = None,
        filename: str | Path | None = None,
    ) -> None:
        """Do nothing: :meth:`__new__` has done it all."""

    # Making ----------------------------------------------------------------------

    @classmethod
    def from_tensor(
        cls,
        input: torch.Tensor,
        *,
        filename: str | Path | None = None,
        existsok: bool = False,
        copy_existing: bool = False,
        copy_data: bool = True,
        shape: torch.Size | torch.Tensor | None = None,
    ) -> Self:
        """Write a tensor to a file, or to shared memory without a name.

        The file is written beside ``filename`` and renamed: it is there as a whole or
        not at all. Peak memory: that of ``input``, and once more where it has gaps.

        Args:
            input: what to write. A tensor that is mapped from ``filename`` already is
                returned as it is.
            filename: where to. Default: shared memory.
            existsok: whether a file that exists may be replaced.
            copy_existing: whether a tensor of another file may be copied.
            copy_data: whether the values are written. If not, the file is one of zeros,
                or keeps its bytes where it exists.
            shape: the shape of the result, to which ``input`` is broadcast.

        Raises:
            TypeError: ``input`` is a numpy array.
            RuntimeError: it requires gradients; the file exists; it is a symbolic link;
                ``input`` is mapped from another file.
        """
        if isinstance(input, np.ndarray):
            raise TypeError(
                "Convert input to torch.Tensor before calling "
                "MemoryMappedTensor.from_tensor."
            )
        if input.requires_grad:
            raise RuntimeError(
                "MemoryMappedTensor.from_tensor is incompatible with "
                "tensor.requires_grad."
            )
        if isinstance(input, MemoryMappedTensor) and filename is not None:
            known = input._filename
            if known is not None and known == absolute(filename):
                return input  # type: ignore[return-value]
            if known is not None and not copy_existing:
                raise RuntimeError(
                    "A filename was provided but the tensor already has a file "
                    f"associated ({known}). To copy the tensor onto the new location, "
                    "pass copy_existing=True."
                )
        if input.is_nested:
            if not copy_data:
                table = nested_table(input)
                return make_zeros(cls, table, input.dtype, filename, existsok)
            return write_nested(cls, input, filename, existsok)
        if isinstance(shape, torch.Tensor):
            return make_zeros(cls, shape, input.dtype, filename, existsok)
        size = input.shape if shape is None else torch.Size(shape)
        if not copy_data or (input.device.type == "meta" and not input.numel()):
            return make_zeros(cls, size, input.dtype, filename, existsok)
        if size != input.shape:
            # By copy_, whose rules of broadcasting and whose message they are.
            input = torch.empty(size, dtype=input.dtype).copy_(input)
        return write(cls, input, size, filename, existsok)

    @classmethod
    def from_storage(
        cls,
        storage: torch.UntypedStorage | torch.TypedStorage,
        *,
        shape: torch.Size | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        index: object = None,
        filename: str | Path | None = None,
        handler: FileHandler | None = None,
    ) -> Self:
        """Wrap a storage: a view of its memory.

        Args:
            storage: the memory. Where it is mapped from a file, the result knows it.
            shape: the shape of the tensor. Default: flat.
            dtype: the dtype of the tensor. Default: float64.
            device: ignored.
            index: what to take of the result.
            filename: the file that the memory is of, where that is known to the caller.
            handler: internal.

        Raises:
            RuntimeError: ``filename`` is not the file of the storage.
        """
        if isinstance(storage, torch.TypedStorage):
            dtype = dtype or storage.dtype
            storage = cast("torch.UntypedStorage", storage.untyped())
        found = file_of(storage)
        if (
            filename is not None
            and found is not None
            and os.path.realpath(filename) != os.path.realpath(found)
        ):
            raise RuntimeError(
                "Providing a storage with an associated filename that differs from "
                "the filename argument is not permitted unless filename=None. Got "
                f"filename={filename}, storage.filename={found}"
            )
        tensor = torch.empty(0, dtype=dtype or torch.int64).set_(storage)
        if isinstance(shape, torch.Tensor):
            num_items = int(shape.prod(1).sum())
            tensor = nested_from_flat(tensor[:num_items], shape)
        elif shape is not None:
            tensor = tensor.view(shape)
        name = found if filename is None else absolute(filename)
        made = wrap(cls, tensor, name, handler)
        if isinstance(shape, torch.Tensor):
            made._parent_shape = shape
        return made if index is None else made[index]

    @classmethod
    def from_filename(
        cls,
        filename: str | Path,
        dtype: torch.dtype,
        shape: Any,
        index: Any = None,
        mode: str | None = None,
    ) -> Self:
        """Map a file that exists. Nothing is read yet, and nothing is ever written.

        Args:
            filename: the file, which holds the items row by row.
            dtype: the dtype of the items. None is torch's default dtype.
            shape: the shape of the tensor. The file may be longer.
            index: what to take of the result.
            mode: None to share stores with the file where it is writable, ``"r"`` to
                keep them in this process, ``"r+"`` to require that they are shared.

        Raises:
            FileNotFoundError: there is no such file.
            RuntimeError: the file is shorter than the tensor.
            PermissionError: ``mode`` is ``"r+"`` and the file is not writable.
            ValueError: ``mode`` is something else.
            TypeError: ``dtype`` is no dtype.
        """
        path, dtype = absolute(filename), checked_dtype(dtype)
        if isinstance(shape, torch.Tensor):
            flat = _rust.map_file(path, str(dtype), [int(shape.prod(1).sum())], mode)
            made = wrap(cls, nested_from_flat(flat, shape), path, None)
            made._parent_shape = shape
        else:
            made = _rust.map_file(path, str(dtype), list(shape), mode)
        return made if index is None else made[index]

    @classmethod
    def from_handler(
        cls,
        handler: FileHandler,
        dtype: torch.dtype,
        shape: Sequence[int],
        index: BatchIndex = None,
    ) -> Self:
        """Map shared memory without a name. Deprecated."""
        _warn_deprecated("from_handler()")
        return cls._from_handler(handler, dtype, shape, index)

    @classmethod
    def _from_handler(
        cls,
        handler: FileHandler,
        dtype: torch.dtype,
        shape: Sequence[int],
        index: object = None,
    ) -> Self:
        if isinstance(shape, torch.Tensor):
            flat = over_handler(handler, dtype, [int(shape.prod(1).sum())])
            made = wrap(cls, nested_from_flat(flat, shape), None, handler)
            made._parent_shape = shape
        else:
            made = wrap(cls, over_handler(handler, dtype, shape), None, handler)
        return made if index is None else made[index]

    @classmethod
    def empty(cls, *args: object, **kwargs: object) -> Self:
        """Make a tensor of zeros that takes no space until it is stored to.

        Args:
            *args: the shape, as for :func:`torch.empty`.
            **kwargs: ``dtype``, ``filename``, ``existsok`` (a file that exists keeps its
                bytes), ``device`` (the CPU only), ``shape``.

        Raises:
            TypeError: there is no shape.
            RuntimeError: the file exists and ``existsok`` is not set; another device.
        """
        shape, dtype, filename, existsok, _ = parse_arguments(args, kwargs)
        return make_zeros(cls, shape, dtype, filename, existsok)

    @classmethod
    def zeros(cls, *args: object, **kwargs: object) -> Self:
        """Make a tensor of zeros. See :meth:`empty`."""
        shape, dtype, filename, existsok, _ = parse_arguments(args, kwargs)
        is_new = filename is None or not os.path.exists(filename)
        made = make_zeros(cls, shape, dtype, filename, existsok)
        return made if is_new else made.zero_()

    @classmethod
    def ones(cls, *args: object, **kwargs: object) -> Self:
        """Make a tensor of ones. See :meth:`empty`."""
        shape, dtype, filename, existsok, _ = parse_arguments(args, kwargs)
        return fill(cls, shape, dtype, filename, existsok, 1)

    @classmethod
    def full(cls, *args: object, **kwargs: object) -> Self:
        """Make a tensor of one value: the shape and the value, or ``fill_value=``.

        See :meth:`empty`.
        """
        fill_value = kwargs.pop("fill_value", None)
        if fill_value is None and len(args) == 2 and not isinstance(args[0], int):
            args, fill_value = args[:1], args[1]  # type: ignore[misc]
        shape, dtype, filename, existsok, _ = parse_arguments(args, kwargs)
        if fill_value is None:
            raise TypeError("full() needs the value to fill with: pass fill_value=.")
        return fill(cls, shape, dtype, filename, existsok, fill_value)

    @classmethod
    def empty_like(
        cls, input: torch.Tensor, *, filename: str | Path | None = None
    ) -> Self:
        """Make a tensor of the shape and dtype of another. See :meth:`empty`."""
        return cls.empty(input.shape, dtype=input.dtype, filename=filename)

    @classmethod
    def zeros_like(
        cls, input: torch.Tensor, *, filename: str | Path | None = None
    ) -> Self:
        """Make zeros of the shape and dtype of another. See :meth:`empty`."""
        return cls.zeros(input.shape, dtype=input.dtype, filename=filename)

    @classmethod
    def ones_like(
        cls, input: torch.Tensor, *, filename: str | Path | None = None
    ) -> Self:
        """Make ones of the shape and dtype of another. See :meth:`empty`."""
        return cls.ones(input.shape, dtype=input.dtype, filename=filename)

    @classmethod
    def full_like(
        cls,
        input: torch.Tensor,
        fill_value: float,
        *,
        filename: str | Path | None = None,
    ) -> Self:
        """Make a tensor of one value, of another's shape and dtype. See :meth:`full`."""
        shape, dtype = input.shape, input.dtype
        return cls.full(shape, fill_value=fill_value, dtype=dtype, filename=filename)

    # Reading ---------------------------------------------------------------------

    @property
    def filename(self) -> str:
        """The absolute path of the file.

        Raises:
            RuntimeError: the memory has no name.
        """
        if self._filename is None:
            raise RuntimeError("The MemoryMappedTensor has no file associated.")
        return self._filename

    @filename.setter
    def filename(self, value: str | Path) -> None:
        if self._filename is not None:
            raise RuntimeError(
                "the MemoryMappedTensor has already a filename associated."
            )
        self._filename = absolute(value)

    @property
    def index(self) -> Any:
        """The last index that gave this view. Deprecated."""
        _warn_deprecated("index")
        return self._index

    @property
    def parent_shape(self) -> torch.Size:
        """The shape of the whole file. Deprecated."""
        _warn_deprecated("parent_shape")
        return self._parent_shape

    def is_shared(self) -> bool:
        """Return whether the memory is that of a named file, or shared by torch."""
        return self._filename is not None or super().is_shared()

    def share_memory_(self) -> Self:
        """Do nothing where the memory is mapped: it is shared already."""
        if self._filename is not None or self._handler is not None:
            return self
        return super().share_memory_()

    def __getitem__(self, item: Any) -> Self | torch.Tensor:
        result = torch.Tensor.__getitem__(self, item)
        # An index of lists or masks gives a copy, which is an ordinary tensor. Of no bytes
        # there is no copy.
        if result._is_view() or not (self.numel() or self.untyped_storage().nbytes()):
            return self._view(result, item)
        return result

    def _view(self, result: torch.Tensor, item: object) -> Self:
        result.__class__ = MemoryMappedTensor
        state = result.__dict__
        source = self.__dict__
        for name in ("_filename", "_handler", "_mode"):
            if name in source:
                state[name] = source[name]
        state["_index"] = item
        state["_index_chain"] = (self._index_chain, item)
        state["_parent_shape"] = self._parent_shape
        return result  # type: ignore[return-value]

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Split into mapped tensors along a dim: see :meth:`torch.Tensor.unbind`."""
        before = (slice(None),) * (dim if dim >= 0 else dim + self.ndim)
        parts = torch.Tensor.unbind(self, dim)
        views = enumerate(parts)
        return tuple(self._view(part, (*before, place)) for place, part in views)

    def split(self, split_size: int | list[int], dim: int = 0) -> tuple[Self, ...]:  # type: ignore[override]
        """Split into mapped tensors: see :meth:`torch.Tensor.split`."""
        return self._slices(torch.Tensor.split(self, split_size, dim), dim)

    def split_with_sizes(  # type: ignore[override]
        self, split_sizes: list[int], dim: int = 0
    ) -> tuple[Self, ...]:
        """Split into mapped tensors: see :meth:`torch.Tensor.split_with_sizes`."""
        return self._slices(torch.Tensor.split_with_sizes(self, split_sizes, dim), dim)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """Split into mapped tensors: see :meth:`torch.Tensor.chunk`."""
        return self._slices(torch.Tensor.chunk(self, chunks, dim), dim)

    def tensor_split(self, indices_or_sections: Any, dim: int = 0) -> tuple[Self, ...]:
        """Split into mapped tensors: see :meth:`torch.Tensor.tensor_split`."""
        parts = torch.Tensor.tensor_split(self, indices_or_sections, dim)
        if not isinstance(indices_or_sections, (list, tuple)):
            return self._slices(parts, dim)
        before = (slice(None),) * (dim if dim >= 0 else dim + self.ndim)
        starts = (None, *indices_or_sections)
        stops = (*indices_or_sections, None)
        views = zip(parts, starts, stops, strict=True)
        return tuple(
            self._view(part, (*before, slice(start, stop)))
            for part, start, stop in views
        )

    def _slices(self, parts: tuple[torch.Tensor, ...], dim: int) -> tuple[Self, ...]:
        before = (slice(None),) * (dim if dim >= 0 else dim + self.ndim)
        views = []
        start = 0
        for part in parts:
            stop = start + part.shape[dim]
            views.append(self._view(part, (*before, slice(start, stop))))
            start = stop
        return tuple(views)

    # Pickling --------------------------------------------------------------------

    def _pickle_args(self) -> tuple[Any, ...]:
        if self._index_chain and not self.numel():
            # Nothing is left of the file, and a new dim cut to nothing has no index.
            return self.dtype, self.shape, None
        return self.dtype, self._parent_shape, one_index(self)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        dtype, shape, index = self._pickle_args()
        if self._filename is not None:
            arguments: tuple[Any, ...] = (self._filename, dtype, shape, index)
            if self._mode is not None:
                arguments = (*arguments, self._mode)
            return MemoryMappedTensor.from_filename, arguments
        # No file that a reader could open: a pickle has the values.
        return MemoryMappedTensor, (self.as_subclass(torch.Tensor).clone(),)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__reduce_ex__(2)

    def __copy__(self) -> Self:
        """Another tensor over the same memory."""
        if self._filename is None and self._handler is None:
            return self.as_subclass(torch.Tensor).detach().as_subclass(type(self))
        make, arguments = reduce_shared(self)
        return make(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """Copy the values to an ordinary tensor."""
        if id(self) not in memo:
            memo[id(self)] = self.as_subclass(torch.Tensor).clone()
        return memo[id(self)]

    def __getstate__(self) -> dict[str, Any]:
        dtype, shape, index = self._pickle_args()
        known = {"dtype": dtype, "shape": shape, "index": index}
        if self._filename is not None:
            return {"filename": self._filename, **known, "mode": self._mode}
        if self._handler is not None:
            return {"handler": self._handler, **known}
        raise RuntimeError("Could not find handler or filename.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        make = self.from_filename if "filename" in state else self._from_handler
        made = make(**state)
        self.set_(
            made.untyped_storage(), made.storage_offset(), made.shape, made.stride()
        )
        self.__dict__.update(made.__dict__)


MemoryMappedTensor.__module__ = "tensordict.memmap"


def loaded_copy(tensor: torch.Tensor) -> MemoryMappedTensor:
    """Map what a pickle has of a tensor over shared memory without a name.

    It stands for the class where ``torch.load(weights_only=True)`` reads: that takes
    names of files as well, which a file from somebody else must not choose.

    Raises:
        TypeError: ``tensor`` is no plain tensor.
    """
    if type(tensor) is not torch.Tensor:
        msg = f"Only a plain tensor can be mapped, got {type(tensor)}."
        raise TypeError(msg)
    return MemoryMappedTensor.from_tensor(tensor)


def reduce_shared(tensor: MemoryMappedTensor) -> Any:
    """Reduce a mapped tensor for another process, which can share its memory."""
    if tensor._filename is None and tensor._handler is not None:
        arguments = (tensor._handler, *tensor._pickle_args())
        return MemoryMappedTensor._from_handler, arguments
    return tensor.__reduce_ex__(2)


def _warn_deprecated(name: str) -> None:
    warn_caller(
        f"MemoryMappedTensor.{name} is deprecated and will be removed in "
        "TensorDict 0.17.",
        DeprecationWarning,
    )
