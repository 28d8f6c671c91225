"""The memory-mapped tensor."""

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
    """``_parent_shape`` of a tensor over a whole file: the shape of the tensor.

    A view has an instance attribute of this name, which hides this descriptor.
    """

    def __get__(
        self, tensor: torch.Tensor | None, owner: object = None
    ) -> Self | torch.Size:
        return self if tensor is None else tensor.shape


class MemoryMappedTensor(torch.Tensor):
    """A CPU tensor whose memory is a file, or shared memory without a name.

    Writes to the tensor reach the file and all processes that map it. The system reads only the
    pages that are touched, so the file may be larger than the memory. A pickle holds the name of
    the file instead of the values, also when the tensor is sent to another process. A pickle of
    memory without a name holds the values.

    Create it with a class method: :meth:`from_tensor` writes a tensor,
    :meth:`from_filename` maps an existing file, :meth:`empty`, :meth:`zeros`,
    :meth:`ones` and :meth:`full` create new tensors. Without ``filename`` the memory has no
    name, and only processes to which the tensor is sent share it.

    Plain indexing, :meth:`unbind`, :meth:`split` and :meth:`chunk` return memory-mapped views of
    the same file. All other operations return ordinary tensors.

    Args:
        source: a tensor, which is wrapped without a copy, or written to ``filename`` if that is
            given; a storage, see :meth:`from_storage`; or the name of a file, see
            :meth:`from_filename`.
        dtype: the dtype, if ``source`` is a storage or a file.
        shape: the shape, if ``source`` is a storage or a file.
        index: an index into the result, which is returned instead.
        device: None or the CPU.
        handler: internal.
        filename: the file to write the tensor to.

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

    # Defaults of instance attributes. A tensor over a whole file sets `_filename` only.
    _filename: str | None = None
    _handler: FileHandler | None = None
    _mode: str | None = None
    _index: Any = None
    _index_chain: tuple[Any, ...] = ()
    """The indices that made a view: ``()``, or ``(chain of its source, last index)``."""
    _parent_shape: Any = _ParentShape()

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def __new__(  # noqa: D102 (documented by the class)
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
            mapped = cls.from_tensor(source, filename=filename, shape=shape)
        else:
            if not isinstance(source, torch.Tensor):
                source = as_tensor(source)
            mapped = source.as_subclass(cls)
            if mapped.is_nested:
                mapped._parent_shape = nested_table(source)
        return mapped if index is None else mapped[index]  # type: ignore[return-value]

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
        """Do nothing: :meth:`__new__` uses the arguments."""

    # Creating --------------------------------------------------------------------

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

        The file is written beside ``filename`` and then renamed: a partial file never has this
        name. If ``input`` is not contiguous, the call needs memory for a second copy of it.

        Args:
            input: the tensor to write. If it is mapped from ``filename`` already, it is
                returned unchanged.
            filename: the file to write. The default is shared memory.
            existsok: whether to replace an existing file.
            copy_existing: whether to copy a tensor that is mapped from another file.
            copy_data: whether to write the values. If false, a new file holds zeros, and
                an existing file keeps its bytes.
            shape: the shape of the result, to which ``input`` is broadcast.

        Raises:
            TypeError: ``input`` is a numpy array.
            RuntimeError: ``input`` requires gradients; it is mapped from another file, but
                ``copy_existing`` is false; ``filename`` exists, but ``existsok`` is false;
                or ``filename`` is a symbolic link.
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
            own_file = input._filename
            if own_file is not None and own_file == absolute(filename):
                return input  # type: ignore[return-value]
            if own_file is not None and not copy_existing:
                raise RuntimeError(
                    "A filename was provided but the tensor already has a file "
                    f"associated ({own_file}). To copy the tensor onto the new location, "
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
            # `copy_` broadcasts, and raises torch's error if the shapes do not fit.
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
        """Wrap a storage: the result is a view of its memory.

        Args:
            storage: the memory. If it is mapped from a file, the result holds the file name.
            shape: the shape of the tensor. The default is one dimension.
            dtype: the dtype of the tensor. The default is the dtype of a typed storage, and
                int64 for an untyped storage.
            device: ignored.
            index: an index into the result, which is returned instead.
            filename: the file of the memory, if the caller knows it.
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
        mapped = wrap(cls, tensor, name, handler)
        if isinstance(shape, torch.Tensor):
            mapped._parent_shape = shape
        return mapped if index is None else mapped[index]

    @classmethod
    def from_filename(
        cls,
        filename: str | Path,
        dtype: torch.dtype,
        shape: Any,
        index: Any = None,
        mode: str | None = None,
    ) -> Self:
        """Map an existing file. The call neither reads nor changes the file.

        Args:
            filename: the file. It holds the items in row-major order.
            dtype: the dtype of the items. None is torch's default dtype.
            shape: the shape of the tensor. The file may be longer.
            index: an index into the result, which is returned instead.
            mode: ``"r"`` keeps writes in this process; ``"r+"`` writes to the file, and
                requires that the file is writable. None writes to the file if it is
                writable, and keeps writes in this process otherwise.

        Raises:
            FileNotFoundError: the file does not exist.
            RuntimeError: the file is shorter than the tensor.
            PermissionError: ``mode`` is ``"r+"`` and the file is not writable.
            ValueError: ``mode`` has another value.
            TypeError: ``dtype`` is not a dtype.
        """
        path, dtype = absolute(filename), checked_dtype(dtype)
        if isinstance(shape, torch.Tensor):
            flat = _rust.map_file(path, str(dtype), [int(shape.prod(1).sum())], mode)
            mapped = wrap(cls, nested_from_flat(flat, shape), path, None)
            mapped._parent_shape = shape
        else:
            mapped = _rust.map_file(path, str(dtype), list(shape), mode)
        return mapped if index is None else mapped[index]

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
            mapped = wrap(cls, nested_from_flat(flat, shape), None, handler)
            mapped._parent_shape = shape
        else:
            mapped = wrap(cls, over_handler(handler, dtype, shape), None, handler)
        return mapped if index is None else mapped[index]

    @classmethod
    def empty(cls, *args: object, **kwargs: object) -> Self:
        """Create a tensor of zeros that takes no disk space until it is written to.

        Args:
            *args: the shape, as for :func:`torch.empty`.
            **kwargs: ``dtype``, ``filename``, ``existsok`` (an existing file keeps its
                bytes), ``device`` (only the CPU), ``shape``.

        Raises:
            TypeError: the shape is missing.
            RuntimeError: the file exists and ``existsok`` is false; or the device is not
                the CPU.
        """
        shape, dtype, filename, existsok, _ = parse_arguments(args, kwargs)
        return make_zeros(cls, shape, dtype, filename, existsok)

    @classmethod
    def zeros(cls, *args: object, **kwargs: object) -> Self:
        """Create a tensor of zeros. See :meth:`empty`."""
        shape, dtype, filename, existsok, _ = parse_arguments(args, kwargs)
        is_new = filename is None or not os.path.exists(filename)
        mapped = make_zeros(cls, shape, dtype, filename, existsok)
        return mapped if is_new else mapped.zero_()

    @classmethod
    def ones(cls, *args: object, **kwargs: object) -> Self:
        """Create a tensor of ones. See :meth:`empty`."""
        shape, dtype, filename, existsok, _ = parse_arguments(args, kwargs)
        return fill(cls, shape, dtype, filename, existsok, 1)

    @classmethod
    def full(cls, *args: object, **kwargs: object) -> Self:
        """Create a tensor filled with one value: pass the shape, and the value or ``fill_value=``.

        See :meth:`empty` for the other arguments.
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
        """Create a tensor of the shape and dtype of ``input``. See :meth:`empty`."""
        return cls.empty(input.shape, dtype=input.dtype, filename=filename)

    @classmethod
    def zeros_like(
        cls, input: torch.Tensor, *, filename: str | Path | None = None
    ) -> Self:
        """Create zeros of the shape and dtype of ``input``. See :meth:`empty`."""
        return cls.zeros(input.shape, dtype=input.dtype, filename=filename)

    @classmethod
    def ones_like(
        cls, input: torch.Tensor, *, filename: str | Path | None = None
    ) -> Self:
        """Create ones of the shape and dtype of ``input``. See :meth:`empty`."""
        return cls.ones(input.shape, dtype=input.dtype, filename=filename)

    @classmethod
    def full_like(
        cls,
        input: torch.Tensor,
        fill_value: float,
        *,
        filename: str | Path | None = None,
    ) -> Self:
        """Create a tensor of the shape and dtype of ``input``, filled with one value.

        See :meth:`full`.
        """
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
        """The last index that made this view. Deprecated."""
        _warn_deprecated("index")
        return self._index

    @property
    def parent_shape(self) -> torch.Size:
        """The shape of the tensor over the whole file. Deprecated."""
        _warn_deprecated("parent_shape")
        return self._parent_shape

    def is_shared(self) -> bool:
        """Return whether the memory has a file, or torch shares it between processes.

        Memory without a name, which only processes share that it is sent to, returns False.
        """
        return self._filename is not None or super().is_shared()

    def share_memory_(self) -> Self:
        """Move the memory to shared memory, unless it is mapped, and return the tensor."""
        if self._filename is not None or self._handler is not None:
            return self
        return super().share_memory_()

    def __getitem__(self, item: Any) -> Self | torch.Tensor:
        result = torch.Tensor.__getitem__(self, item)
        # An index of lists or masks makes a copy, which is an ordinary tensor. The result
        # for an empty tensor over no bytes stays mapped.
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
        """Split into memory-mapped views along a dimension. See :meth:`torch.Tensor.unbind`."""
        before = (slice(None),) * (dim if dim >= 0 else dim + self.ndim)
        parts = torch.Tensor.unbind(self, dim)
        views = enumerate(parts)
        return tuple(self._view(part, (*before, place)) for place, part in views)

    def split(self, split_size: int | list[int], dim: int = 0) -> tuple[Self, ...]:  # type: ignore[override]
        """Split into memory-mapped views. See :meth:`torch.Tensor.split`."""
        return self._slices(torch.Tensor.split(self, split_size, dim), dim)

    def split_with_sizes(  # type: ignore[override]
        self, split_sizes: list[int], dim: int = 0
    ) -> tuple[Self, ...]:
        """Split into memory-mapped views. See :meth:`torch.Tensor.split_with_sizes`."""
        return self._slices(torch.Tensor.split_with_sizes(self, split_sizes, dim), dim)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """Split into memory-mapped views. See :meth:`torch.Tensor.chunk`."""
        return self._slices(torch.Tensor.chunk(self, chunks, dim), dim)

    def tensor_split(self, indices_or_sections: Any, dim: int = 0) -> tuple[Self, ...]:
        """Split into memory-mapped views. See :meth:`torch.Tensor.tensor_split`."""
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
            # An empty view needs no index into the file. A new dim that was sliced to size 0
            # has none.
            return self.dtype, self.shape, None
        return self.dtype, self._parent_shape, one_index(self)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        dtype, shape, index = self._pickle_args()
        if self._filename is not None:
            arguments: tuple[Any, ...] = (self._filename, dtype, shape, index)
            if self._mode is not None:
                arguments = (*arguments, self._mode)
            return MemoryMappedTensor.from_filename, arguments
        # A reader has no file to open, so the pickle holds the values.
        return MemoryMappedTensor, (self.as_subclass(torch.Tensor).clone(),)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__reduce_ex__(2)

    def __copy__(self) -> Self:
        """Return another tensor over the same memory."""
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
        state = {"dtype": dtype, "shape": shape, "index": index}
        if self._filename is not None:
            return {"filename": self._filename, **state, "mode": self._mode}
        if self._handler is not None:
            return {"handler": self._handler, **state}
        raise RuntimeError("Could not find handler or filename.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        make = self.from_filename if "filename" in state else self._from_handler
        mapped = make(**state)
        self.set_(
            mapped.untyped_storage(),
            mapped.storage_offset(),
            mapped.shape,
            mapped.stride(),
        )
        self.__dict__.update(mapped.__dict__)


MemoryMappedTensor.__module__ = "tensordict.memmap"


def loaded_copy(tensor: torch.Tensor) -> MemoryMappedTensor:
    """Return a memory-mapped tensor with the values of a pickled one, in shared memory.

    ``torch.load(weights_only=True)`` calls this function instead of the class. The class also
    accepts file names, and a pickle from another user must not choose a file.

    Raises:
        TypeError: ``tensor`` is not a plain tensor.
    """
    if type(tensor) is not torch.Tensor:
        msg = f"Only a plain tensor can be mapped, got {type(tensor)}."
        raise TypeError(msg)
    return MemoryMappedTensor.from_tensor(tensor)


def reduce_shared(tensor: MemoryMappedTensor) -> Any:
    """Reduce a memory-mapped tensor for another process that can share its memory."""
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
